"""Which experiment a file or a name means, and whether it may run now: created, continued, revised, or refused.

Everything is decided under the experiment's lock, on what is read under it; whoever gets an `Admitted` holds it. Only
what is finished is told without: telling changes nothing, and its controller may be about to leave. Nothing runs here.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from controller.cli.final import attempts_of, has_failed
from controller.cli.home import ControllerLock, Home, new_uid
from controller.core import breaker, budget
from controller.core.decide import better
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    Revision,
    Uid,
    short_name,
)
from controller.phrases import command
from controller.spec import (
    Change,
    Document,
    allowed_in_extension,
    allowed_in_revision,
    diff,
    is_label,
    redacted_document,
)
from controller.store import Changes, SqlStore
from suggest.errors import FailedPrecondition, NotFound
from suggest.study import StudyName
from suggest.trial import TrialState

EXTENDED = ", as tuner extend has made it."  # ends the first line of a revision that has no file of a person


@dataclass(frozen=True, slots=True)
class Admitted:
    """To be run now. The caller releases the lock. `notes`: sentences for the person."""

    experiment: Experiment
    lock: ControllerLock
    text: str  # the file in force
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Standing:
    """Nothing to run: finished, or paused until a person acts. `notes`: as of `Admitted`."""

    experiment: Experiment
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reserved:
    """A folder under a new uid, and its lock."""

    uid: Uid
    folder: Path
    lock: ControllerLock

    def give_back(self) -> None:
        import shutil  # slow to import, and hardly ever needed here

        self.lock.release()
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class _ReadAgain:
    """The file in force, after one was given again. `labels`: changes that it brings."""

    text: str
    source: str
    notes: tuple[str, ...] = ()
    labels: tuple[Change, ...] = ()


class Changed(FailedPrecondition):
    """Another file under the same name."""

    reason = "CHANGED"


def find(store: SqlStore, name: str, namespace: str | None) -> Experiment:
    """By name; without a namespace in any, if only one has it. Raises NotFound; FailedPrecondition: in several."""
    if namespace is not None:
        found = store.experiment(namespace, name)
        if found is None:
            raise NotFound(f"there is no experiment {name} in {namespace}; see {command('get', 'experiments')}")
        return found
    having = [experiment for experiment in store.experiments() if experiment.name == name]
    if not having:
        raise NotFound(f"there is no experiment {name}; see {command('get', 'experiments')}")
    if len(having) > 1:
        places = ", ".join(experiment.namespace for experiment in having)
        raise FailedPrecondition(f"several namespaces have an experiment {name} ({places}); say which one with -n")
    return having[0]


def named(target: str) -> bool:
    """Whether FILE|NAME is a name."""
    return not (target == "-" or "/" in target or target.endswith((".yaml", ".yml")) or Path(target).is_file())


class Desk:
    """Admits to one state directory."""

    def __init__(self, home: Home, store: SqlStore) -> None:
        self._home = home
        self._store = store

    def run(self, document: Document, directory: Path) -> Admitted | Standing | None:
        """`tuner run FILE` of an experiment that is there; None: there is none of that name yet."""
        known = self._store.experiment(document.spec.namespace, document.spec.name)
        if known is None:
            return None
        if known.state.finished:
            return Standing(known, self._read_again(known, document).notes)
        with ExitStack() as undo:
            lock, known = self.locked(known, undo)
            again = self._read_again(known, document)
            if known.state.finished or known.state is ExperimentState.PAUSED:
                return Standing(known, again.notes)
            known, notes = self._follow(known, directory)
            notes = (*again.notes, *notes)
            if again.labels:
                known, notes = self._revised(known, document, again.labels, notes)
            admitted = self._go_on(known, lock, again.text, again.source, notes)
            undo.pop_all()
        return admitted

    def known(self, document: Document) -> Experiment | None:
        """The experiment that the file means, whatever its state. Raises Changed: it is another one."""
        known = self._store.experiment(document.spec.namespace, document.spec.name)
        if known is not None:
            self._read_again(known, document)
        return known

    def reserve(self, name: str, *, uid: Uid = "") -> Reserved:
        """A place for a new experiment; nothing is recorded yet. The caller gives it back or hands it to `create`.

        uid: of one that comes back from a cluster; its folder may still be there.
        """
        uid = uid or new_uid()
        folder = self._home.folders(uid).root
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = ControllerLock(folder)
        lock.take(name)
        return Reserved(uid, folder, lock)

    def create(self, document: Document, directory: Path, place: Reserved, *, service: str, context: str) -> Admitted:
        """Raises AlreadyExists: somebody was faster."""
        spec, uid = document.spec, place.uid
        now = datetime.now(UTC)
        experiment = Experiment(
            uid=uid,
            spec=spec,
            revision=1,
            directory=str(directory),
            study=str(StudyName(spec.namespace, short_name(spec.name, uid))),
            server=service,
            context=context,
            start_time=now,
        )
        self._write_file(uid, 1, document.text)
        self._store.create_experiment(experiment, Revision(1, spec, document.text, now))
        return Admitted(experiment, place.lock, document.text, document.source)

    def resume_file(self, document: Document, directory: Path) -> Admitted | Standing:
        """`tuner resume FILE`: accepts allowed changes, lifts a pause."""
        spec = document.spec
        known = self._store.experiment(spec.namespace, spec.name)
        if known is None:
            raise NotFound(f"there is no experiment {spec.name} to resume; start it with: {_again('run', document)}")
        if known.state.finished and not diff(known.spec.document, spec.document) and not has_failed(self._store, known):
            return Standing(known)
        with ExitStack() as undo:
            lock, known = self.locked(known, undo)
            old = self._earlier(known, document, extended_since=True)
            changes = [] if old is not None else allowed_changes(known, document)
            told = () if old is None else old.notes
            if known.state.finished and all(map(is_label, changes)) and not has_failed(self._store, known):
                return Standing(known, told)
            if changes:
                self._refuse_an_end(known, document)
            known, notes = self._follow(known, directory)
            notes = (*told, *notes)
            if changes:
                known, notes = self._revised(known, document, changes, notes)
            text, source = (document.text, document.source) if old is None else (old.text, old.source)
            admitted = self._go_on(known, lock, text, source, notes)
            undo.pop_all()
        return admitted

    def _refuse_an_end(self, known: Experiment, document: Document) -> None:
        """Raises FailedPrecondition: an experiment that has failed would fail again at once."""
        if known.state is not ExperimentState.FAILED:
            return
        spec = document.spec
        counts, best = _outcomes(self._store.attempts(known.uid), spec)
        ending = budget.ending(spec, counts, best=best, exhausted=False, running_s=known.running_s)
        if ending is not None and ending.state is ExperimentState.FAILED:
            raise FailedPrecondition(
                f"{known.name} has failed, and would fail again at once: {ending.reason}; nothing was changed. "
                f"Run its failed trials again with this file: {_again('retry', document, '--failed')}; "
                "or raise spec.budget in the file"
            )

    def resume_name(self, name: str, namespace: str | None) -> Admitted | Standing:
        """`tuner resume NAME`: the file as it was last accepted."""
        known = find(self._store, name, namespace)
        if known.state.finished and not has_failed(self._store, known):
            return Standing(known)
        with ExitStack() as undo:
            lock, known = self.locked(known, undo)
            if known.state.finished and not has_failed(self._store, known):
                return Standing(known)
            revision = self._store.revisions(known.uid)[-1]
            source = str(self._home.folders(known.uid).revision(revision.number))
            admitted = self._go_on(known, lock, revision.file_text, source, ())
            undo.pop_all()
        return admitted

    def extend(
        self,
        known: Experiment,
        lock: ControllerLock,
        document: Document,
        changes: Sequence[Change],
        *,
        directory: Path | None,
    ) -> Admitted:
        """`tuner extend`, of an experiment whose lock the caller has. `directory`: of a file that it named."""
        notes: tuple[str, ...] = ()
        if directory is not None:
            known, notes = self._follow(known, directory)
        if changes:
            known, notes = self._revised(known, document, changes, notes)
        return self._go_on(known, lock, document.text, document.source, notes)

    def retry(
        self,
        known: Experiment,
        lock: ControllerLock,
        failures: Sequence[Attempt],
        *,
        document: Document | None,
        changes: Sequence[Change],
        directory: Path | None,
    ) -> Admitted:
        """`tuner retry`, of an experiment whose lock the caller has. `failures`: the newest attempts of the trials that
        run again. `document`: of a file that it named."""
        notes: tuple[str, ...] = ()
        if directory is not None:
            known, notes = self._follow(known, directory)
        if document is not None and changes:
            known, notes = self._revised(known, document, changes, notes)
        revision = self._store.revisions(known.uid)[-1]
        source = str(self._home.folders(known.uid).revision(revision.number))
        text, source = (revision.file_text, source) if document is None else (document.text, document.source)
        return self._go_on(known, lock, text, source, notes, rerun=failures)

    def to_stop(self, known: Experiment) -> Admitted:
        """For `tuner stop` where nobody runs it: everything as it is, the wish to stop included."""
        with ExitStack() as undo:
            lock, known = self.locked(known, undo)
            undo.pop_all()
        return Admitted(known, lock, "", "")

    def locked(self, known: Experiment, undo: ExitStack) -> tuple[ControllerLock, Experiment]:
        """The lock, which `undo` releases, and the experiment as it stands under it."""
        folder = self._home.folders(known.uid).root
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = ControllerLock(folder)
        lock.take(known.name)
        undo.callback(lock.release)
        fresh = self._store.experiment(known.namespace, known.name)
        if fresh is None or fresh.uid != known.uid:
            Reserved(known.uid, folder, lock).give_back()  # the folder went with the experiment: this one is ours
            raise NotFound(f"{known.name} was deleted just now")
        return lock, fresh

    def _go_on(
        self,
        known: Experiment,
        lock: ControllerLock,
        text: str,
        source: str,
        notes: tuple[str, ...],
        *,
        rerun: Sequence[Attempt] = (),
    ) -> Admitted:
        """`rerun`: what `tuner retry` marks, in the same write."""
        if known.stop_requested:
            self._store.request_stop(known.uid, wanted=False)
        now = datetime.now(UTC)
        attempts = self._store.attempts(known.uid)
        marked = {each.trial: replace(each, rerun=True) for each in rerun}
        events = [
            Event(now, "retried", f"trial {each.trial} runs again; it failed: {each.reason}", each.trial, each.number)
            for each in rerun
        ]
        if known.state is not ExperimentState.RUNNING:
            before = known.state.value
            # A person has seen these, unless it was only stopped: the circuit breaker begins again.
            if known.state is not ExperimentState.STOPPED:
                marked = {each.trial: each for each in breaker.reviewed(attempts)} | marked
            anew = self._without_old_final(known) if known.state.finished else known
            known = replace(anew, state=ExperimentState.RUNNING, reason="", end_time=None, stop_requested=False)
            events.append(Event(now, "resumed", f"resumed; it was {before}"))
            marks = list(marked.values())
            self._store.save(known.uid, Changes(experiment=known, attempts=marks, events=events, final=True))
            notes = (*notes, f"{known.name} goes on; it was {before}")
        elif marked:
            self._store.save(known.uid, Changes(attempts=list(marked.values()), events=events))
        elif attempts:
            notes = (*notes, f"{known.name} goes on; its controller had ended without finishing it")
        return Admitted(replace(known, stop_requested=False), lock, text, source, notes)

    def _without_old_final(self, known: Experiment) -> Experiment:
        """What ran to its end belongs to the search as it was then: when it ends again, the stage runs again."""
        attempts = attempts_of(self._store, known)
        if not attempts or attempts[-1].state not in (AttemptState.SUCCEEDED, AttemptState.FAILED):
            return known
        return replace(known, final=None)

    def _revised(
        self, known: Experiment, document: Document, changes: Sequence[Change], notes: tuple[str, ...]
    ) -> tuple[Experiment, tuple[str, ...]]:
        known = self._revise(known, document, changes)
        return known, (*notes, f"revision {known.revision}:\n{listed(changes)}")

    def _revise(self, known: Experiment, document: Document, changes: Sequence[Change]) -> Experiment:
        number = known.revision + 1
        now = datetime.now(UTC)
        self._write_file(known.uid, number, document.text)
        event = Event(now, "revised", f"revision {number}: " + "; ".join(str(_shown(change)) for change in changes))
        known = self._without_old_final(known)
        return self._store.add_revision(known, Revision(number, document.spec, document.text, now), event)

    def _follow(self, known: Experiment, directory: Path) -> tuple[Experiment, tuple[str, ...]]:
        """Trials run in the folder of the file, also after both have moved."""
        if known.directory == str(directory):
            return known, ()
        note = f"trials run in {directory} from now on; it was {known.directory}"
        moved = replace(known, directory=str(directory))
        self._store.save(known.uid, Changes(experiment=moved, events=(Event(datetime.now(UTC), "moved", note),)))
        return moved, (note,)

    def _write_file(self, uid: str, number: int, text: str) -> None:
        path = self._home.folders(uid).revision(number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)

    def _read_again(self, known: Experiment, document: Document) -> _ReadAgain:
        """What a file means that was given for an experiment that exists. Raises Changed: another search."""
        changes = diff(known.spec.document, document.spec.document)
        if all(map(is_label, changes)):
            return _ReadAgain(document.text, document.source, labels=tuple(changes))
        old = self._earlier(known, document, extended_since=False)
        if old is not None:
            return old
        way_on = "a search cannot change these under way: "
        if all(map(allowed_in_revision, changes)):
            way_on = f"take them with: {_again('resume', document)}, or "
        elif all(map(allowed_in_extension, changes)):
            way_on = f"if they are growth, take them with: {_again('extend', document)}, or "
        in_force = self._home.folders(known.uid).revision(known.revision)
        since = f"The file in force since revision {known.revision}: {in_force}\n" if known.revision > 1 else ""
        raise Changed(
            f"{document.source} is not the {known.name} that is there:\n{listed(changes)}\n{since}"
            f"{way_on}choose another metadata.name, or remove the old one with: {command('delete', known.name)}"
        )

    def _earlier(self, known: Experiment, document: Document, *, extended_since: bool) -> _ReadAgain | None:
        """The revision in force, if the file is an earlier one. extended_since: only `extend NAME` has made newer ones.

        Such a file has not changed: the experiment has. To go back is an edit, and that of a file that `resume` took.
        """
        if known.revision == 1 or not diff(known.spec.document, document.spec.document):
            return None
        *earlier, newest = self._store.revisions(known.uid)
        for at in reversed(range(len(earlier))):
            if not all(map(is_label, diff(earlier[at].spec.document, document.spec.document))):
                continue
            newer = [*earlier[at + 1 :], newest]
            if extended_since and not all(each.file_text.partition("\n")[0].endswith(EXTENDED) for each in newer):
                return None
            path = str(self._home.folders(known.uid).revision(newest.number))
            changes = diff(earlier[at].spec.document, newest.spec.document)
            note = (
                f"{document.source} is revision {earlier[at].number} of {known.name}; going on with revision "
                f"{newest.number}, {path}:\n{listed(changes)}"
            )
            return _ReadAgain(newest.file_text, path, notes=(note,))
        return None


def allowed_changes(known: Experiment, document: Document) -> Sequence[Change]:
    """What the file changes. Raises Changed: some of it cannot be changed any more."""
    changes = diff(known.spec.document, document.spec.document)
    refused = [change for change in changes if not allowed_in_revision(change)]
    if refused:
        growth = f"wider ranges and new choices go with: {_again('extend', document)}; "
        raise Changed(
            f"{document.source} changes what {known.name} cannot change any more:\n{listed(refused)}\n"
            "tuner resume accepts changes under spec.trial, spec.final, spec.parallelism, spec.budget and "
            "spec.pruning; "
            f"{growth if all(map(allowed_in_extension, refused)) else ''}for anything else choose another metadata.name"
        )
    return changes


def _outcomes(attempts: Sequence[Attempt], spec: ExperimentSpec) -> tuple[dict[TrialState, int], float | None]:
    """How the trials of an experiment that has ended did end, by their newest attempts, and the best value."""
    newest = {each.trial: each for each in attempts if each.trial != FINAL}
    counts: dict[TrialState, int] = {}
    best: float | None = None
    for each in newest.values():
        if each.ended and not each.rerun:
            state = TrialState(each.state.value)
            counts[state] = counts.get(state, 0) + 1
        if each.state is AttemptState.SUCCEEDED:
            best = better(best, each.value, maximize=spec.objective.maximize)
    return counts, best


def _again(verb: str, document: Document, *flags: str) -> str:
    """The verb with the file that was named; the command line adds the flags that change the file."""
    return command(verb, "-" if document.source == "standard input" else document.source, *flags)


def listed(changes: Sequence[Change]) -> str:
    return "\n".join(f"  {_shown(change)}" for change in changes)


def _shown(change: Change) -> Change:
    """Without the values of variables that look like secrets."""
    above, _, key = change.path.rpartition(".")
    old, new = (_redacted(key, value, env=above.endswith(".env")) for value in (change.old, change.new))
    if change.old is not None and change.new is not None and old == new:
        new = "[redacted, another value]"
    return Change(change.path, old if change.old is not None else None, new if change.new is not None else None)


def _redacted(key: str, value: object, *, env: bool) -> object:
    shown = redacted_document({"env": {key: value}} if env else {key: value})
    inner = shown["env"] if env else shown
    assert isinstance(inner, dict)
    return inner[key]
