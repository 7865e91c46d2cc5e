"""Decide which experiment a file or a name means, and create, continue, revise or refuse it.

Every decision is made under the experiment's lease, from what is read under it, and `Admitted`
includes the lease. A finished experiment is reported without a lease, because that changes nothing,
and its controller may be about to exit. This module runs nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from controller.app.experiments import (
    Changed,
    ControlledElsewhere,
    ControllerLease,
    Extensible,
    Revisable,
    final_attempts,
    final_has_failed,
    find,
    new_uid,
)
from controller.app.local_experiments import LocalExperiments
from controller.core import breaker, budget
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    ReasonCode,
    Revision,
    Uid,
    short_name,
)
from controller.core.spending import spent_by_all
from controller.experiment_store import Changes
from controller.phrases import command
from controller.report.spending import raise_limit
from controller.spec import (
    REVISABLE,
    SETTABLE,
    Change,
    Document,
    allowed_in_extension,
    allowed_in_revision,
    allowed_while_running,
    diff,
    from_document,
    is_label,
    is_renaming,
    redacted_document,
    unknown_keys,
)
from suggest.errors import FailedPrecondition, NotFound
from suggest.study import StudyName
from suggest.trial import TrialState

NOT_RUN = "trials were imported; it has not run yet"
# The end of the first line of a revision by `extend NAME` or `set NAME`.
EXTENDED, SET = ", as tuner extend has made it.", ", as tuner set has made it."


@dataclass(frozen=True, slots=True)
class Admitted:
    """An experiment that may run now.

    The caller releases the lease. `notes` are sentences for people.
    """

    experiment: Experiment
    lease: ControllerLease
    text: str  # the file in force
    source: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NothingToRun:
    """An experiment that is finished, or paused until a person acts.

    `notes` are sentences for people.
    """

    experiment: Experiment
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reservation:
    """A new uid with its lease, under which nothing is recorded yet."""

    uid: Uid
    lease: ControllerLease


@dataclass(frozen=True, slots=True)
class _FileInForce:
    """The file in force after a file was given for a known experiment.

    `labels` are the changes of labels.
    """

    text: str
    source: str
    notes: tuple[str, ...] = ()
    labels: tuple[Change, ...] = ()


class ExperimentService:
    """Admits experiments to one store of experiments."""

    def __init__(self, experiments: LocalExperiments) -> None:
        self._store = experiments

    def run(self, document: Document, directory: Path) -> Admitted | NothingToRun | None:
        """Admit `tuner run FILE` for a known experiment; None if there is none of that name yet."""
        experiment = self._store.experiment(document.spec.namespace, document.spec.name)
        if experiment is None:
            return None
        if experiment.state.finished:
            notes = self._read_again(experiment, document).notes
            if experiment.directory != str(directory):
                # A copied project has the name of the first, too.
                note = (
                    f"nothing runs here: {experiment.name} has ended, in {experiment.directory}; "
                    f"for another search choose another metadata.name"
                )
                notes = (*notes, document.spec.words(note))
            return NothingToRun(experiment, notes)
        with ExitStack() as undo:
            lease, experiment = self.leased(experiment, undo)
            again = self._read_again(experiment, document)
            if experiment.state.finished or experiment.state is ExperimentState.PAUSED:
                return NothingToRun(experiment, again.notes)
            experiment, notes = self._follow(experiment, directory)
            notes = (*again.notes, *notes)
            if again.labels:
                whole = self.completed(experiment, document)
                experiment, notes = self._revised(experiment, whole, again.labels, notes)
            admitted = self._go_on(experiment, lease, again.text, again.source, notes)
            undo.pop_all()
        return admitted

    def known(self, document: Document) -> Experiment | None:
        """Return the experiment of the file, in any state. Raises Changed for another one."""
        experiment = self._store.experiment(document.spec.namespace, document.spec.name)
        if experiment is not None:
            self._read_again(experiment, document)
        return experiment

    def reserve(self, name: str, *, uid: Uid = "") -> Reservation:
        """Reserve a uid for a new experiment, without recording anything.

        The caller discards the lease or passes it to `create`. `uid` is given for an experiment
        that is recovered from a cluster.
        """
        uid = uid or new_uid()
        return Reservation(uid, self._store.lease(uid, name))

    def draft(
        self,
        document: Document,
        directory: Path,
        reserved: Reservation,
        *,
        service: str,
        context: str,
    ) -> Experiment:
        """Return a new experiment as `create` would record it."""
        spec, uid = document.spec, reserved.uid
        return Experiment(
            uid=uid,
            spec=spec,
            revision=1,
            directory=str(directory),
            study=str(StudyName(spec.namespace, short_name(spec.name, uid))),
            server=service,
            context=context,
        )

    def create(
        self,
        document: Document,
        directory: Path,
        reserved: Reservation,
        *,
        service: str,
        context: str,
    ) -> Admitted:
        """Record a new experiment. Raises AlreadyExists if another process was faster."""
        now = datetime.now(UTC)
        draft = self.draft(document, directory, reserved, service=service, context=context)
        experiment = replace(draft, start_time=now)
        self._store.create_experiment(experiment, Revision(1, document.spec, document.text, now))
        return Admitted(experiment, reserved.lease, document.text, document.source)

    def resume_file(self, document: Document, directory: Path) -> Admitted | NothingToRun:
        """Admit `tuner resume FILE`, which accepts allowed changes and lifts a pause."""
        spec = document.spec
        experiment = self._store.experiment(spec.namespace, spec.name)
        if experiment is None:
            raise NotFound(
                f"there is no experiment {spec.name} to resume; start it with: "
                f"{_again('run', document)}"
            )
        if experiment.state.finished and not final_has_failed(self._store, experiment):
            whole = self.completed(experiment, document).spec.document
            if not diff(experiment.spec.document, whole):
                return NothingToRun(experiment)
        with ExitStack() as undo:
            lease, experiment = self.leased(experiment, undo)
            earlier = self._earlier(experiment, document, extended_since=True)
            if earlier is None:
                document = self.completed(experiment, document)
            changes = [] if earlier is not None else self.allowed_changes(experiment, document)
            old_notes = () if earlier is None else earlier.notes
            if (
                experiment.state.finished
                and all(map(is_label, changes))
                and not final_has_failed(self._store, experiment)
            ):
                return NothingToRun(experiment, old_notes)
            if changes:
                self._refuse_an_end(experiment, document)
            experiment, notes = self._follow(experiment, directory)
            notes = (*old_notes, *notes)
            if changes:
                experiment, notes = self._revised(experiment, document, changes, notes)
            read = document if earlier is None else earlier
            admitted = self._go_on(experiment, lease, read.text, read.source, notes)
            undo.pop_all()
        return admitted

    def _refuse_an_end(self, experiment: Experiment, document: Document) -> None:
        """Raise FailedPrecondition if a failed experiment would immediately fail again."""
        if experiment.state is not ExperimentState.FAILED:
            return
        attempts = self._store.attempts(experiment.uid)
        ending = ending_now(experiment, document.spec, _outcomes(attempts), attempts)
        if ending is not None and ending.state is ExperimentState.FAILED:
            message = (
                f"{experiment.name} has failed, and its budget is still used up: {ending.reason}; "
                "nothing was changed. Run its failed trials again with this file: "
                f"{_again('retry', document, '--failed')}; or raise spec.budget in the file"
            )
            raise FailedPrecondition(document.spec.words(message))

    def resume_name(self, name: str, namespace: str | None) -> Admitted | NothingToRun:
        """Admit `tuner resume NAME`, with the file as last accepted."""
        return self.resume_known(find(self._store, name, namespace))

    def resume_known(self, experiment: Experiment) -> Admitted | NothingToRun:
        """Admit an experiment that has been read, with the file as last accepted."""
        if experiment.state.finished and not final_has_failed(self._store, experiment):
            return NothingToRun(experiment)
        with ExitStack() as undo:
            lease, experiment = self.leased(experiment, undo)
            if experiment.state.finished and not final_has_failed(self._store, experiment):
                return NothingToRun(experiment)
            admitted = self._go_on(experiment, lease, *self._in_force(experiment), ())
            undo.pop_all()
        return admitted

    def extend_or_retry(
        self,
        experiment: Experiment,
        lease: ControllerLease,
        document: Document | None,
        changes: Sequence[Change],
        *,
        directory: Path | None,
        failures: Sequence[Attempt] = (),
    ) -> Admitted:
        """Admit `tuner extend` or `tuner retry` of an experiment whose lease the caller has.

        Args:
            document: The experiment from now on; None: it is not changed.
            directory: The folder of the file that the command named, if it named one.
            failures: The newest attempts of the trials that run again.
        """
        notes: tuple[str, ...] = ()
        if directory is not None:
            experiment, notes = self._follow(experiment, directory)
        if document is None:
            text, source = self._in_force(experiment)
        else:
            text, source = document.text, document.source
            if changes:
                experiment, notes = self._revised(experiment, document, changes, notes)
        return self._go_on(experiment, lease, text, source, notes, failed=failures)

    def _in_force(self, experiment: Experiment) -> tuple[str, str]:
        """Return the text and the source of the file as last accepted."""
        revision = self._store.revisions(experiment.uid)[-1]
        return revision.file_text, self._store.revision_source(experiment.uid, revision.number)

    def take_over(self, experiment: Experiment) -> Admitted:
        """Take the lease of an experiment without a controller, to stop or delete it.

        Changes nothing.
        """
        with ExitStack() as undo:
            lease, experiment = self.leased(experiment, undo)
            undo.pop_all()
        return Admitted(experiment, lease, "", "")

    def not_run(self, experiment: Experiment) -> Experiment:
        """Record that an experiment has imported trials and has not run, and return it.

        Returns it unchanged if it has run. Raises ControlledElsewhere, NotFound.
        """
        with ExitStack() as release:
            _, experiment = self.leased(experiment, release)
            if experiment.state is ExperimentState.RUNNING and not self._store.attempts(
                experiment.uid
            ):
                code = ReasonCode.IMPORTED
                experiment = replace(
                    experiment, state=ExperimentState.STOPPED, reason=NOT_RUN, reason_code=code
                )
                self._store.save(experiment.uid, Changes(experiment))
            return experiment

    @contextmanager
    def known_and_leased(
        self, target: Document | str, namespace: str | None, *, refused: str
    ) -> Iterator[tuple[Experiment, ControllerLease]]:
        """Find the experiment of a file or a name and take its lease.

        An error in the block releases the lease. `refused` is the beginning of the message if the
        experiment is running. Raises NotFound, FailedPrecondition.
        """
        if isinstance(target, Document):
            experiment = find(self._store, target.spec.name, target.spec.namespace)
        else:
            experiment = find(self._store, target, namespace)
        with ExitStack() as undo:
            try:
                lease, experiment = self.leased(experiment, undo)
            except ControlledElsewhere as error:
                raise FailedPrecondition(
                    f"{refused.format(name=experiment.name)}: {error}"
                ) from error
            yield experiment, lease
            undo.pop_all()

    def leased(self, experiment: Experiment, undo: ExitStack) -> tuple[ControllerLease, Experiment]:
        """Take the lease until `undo`, and return it with the experiment as read under it."""
        lease = self._store.lease(experiment.uid, experiment.name)
        undo.callback(lease.release)
        fresh = self._store.experiment(experiment.namespace, experiment.name)
        if fresh is None or fresh.uid != experiment.uid:
            lease.discard()
            raise NotFound(f"{experiment.name} was deleted just now")
        return lease, fresh

    def _go_on(
        self,
        experiment: Experiment,
        lease: ControllerLease,
        text: str,
        source: str,
        notes: tuple[str, ...],
        *,
        failed: Sequence[Attempt] = (),
    ) -> Admitted:
        """Continue the experiment.

        `failed` are the attempts of `tuner retry`, which are set aside in the same write.
        Raises FailedPrecondition for a file with keys that only another version has.
        """
        if unknown := unknown_keys(experiment.spec.document):
            raise FailedPrecondition(
                f"{experiment.name} has {', '.join(unknown)}, which this version of tuner does not "
                "know; update tuner, or continue with a file that lacks it: tuner resume FILE"
            )
        if experiment.stop_requested:
            self._store.request_stop(experiment.uid, wanted=False)
        now = datetime.now(UTC)
        attempts = self._store.attempts(experiment.uid)
        marked = {attempt.trial: replace(attempt, set_aside=True) for attempt in failed}
        events = []
        for attempt in failed:
            message = f"trial {attempt.trial} runs again; it failed: {attempt.reason}"
            events.append(Event(now, "retried", message, attempt.trial, attempt.number))
        if experiment.state is not ExperimentState.RUNNING:
            before = experiment.state.value
            # A person has seen these failures, unless the experiment was only stopped: the circuit
            # breaker starts over.
            if experiment.state is not ExperimentState.STOPPED:
                marked = {attempt.trial: attempt for attempt in breaker.reviewed(attempts)} | marked
            if experiment.state.finished:
                experiment = replace(self._without_old_final(experiment), ended_by="")
            experiment = replace(
                experiment,
                state=ExperimentState.RUNNING,
                reason="",
                reason_code=None,
                end_time=None,
                stop_requested=False,
            )
            events.append(Event(now, "resumed", f"resumed (was {before})"))
            marks = list(marked.values())
            self._store.save(
                experiment.uid,
                Changes(experiment=experiment, attempts=marks, events=events, final=True),
            )
            # A search that only has imported trials begins now.
            if attempts:
                notes = (*notes, f"resuming {experiment.name} (was {before})")
        elif marked:
            self._store.save(experiment.uid, Changes(attempts=list(marked.values()), events=events))
        elif attempts:
            notes = (
                *notes,
                f"resuming {experiment.name}; its last controller ended without finishing it",
            )
        return Admitted(replace(experiment, stop_requested=False), lease, text, source, notes)

    def _without_old_final(self, experiment: Experiment) -> Experiment:
        """Drop a final stage that has ended.

        It belongs to the search so far, and runs again after the search's next end.
        """
        attempts = final_attempts(self._store, experiment)
        if not attempts or attempts[-1].state not in (AttemptState.SUCCEEDED, AttemptState.FAILED):
            return experiment
        return replace(experiment, final=None)

    def _revised(
        self,
        experiment: Experiment,
        document: Document,
        changes: Sequence[Change],
        notes: tuple[str, ...],
    ) -> tuple[Experiment, tuple[str, ...]]:
        experiment = self._revise(experiment, document, changes)
        note = f"revision {experiment.revision}:\n{listed(changes)}"
        return experiment, (*notes, document.spec.words(note))

    def _revise(
        self, experiment: Experiment, document: Document, changes: Sequence[Change]
    ) -> Experiment:
        number = experiment.revision + 1
        now = datetime.now(UTC)
        message = f"revision {number}: " + "; ".join(
            str(_without_secrets(change)) for change in changes
        )
        event = Event(now, "revised", document.spec.words(message))
        experiment = self._without_old_final(experiment)
        return self._store.add_revision(
            experiment, Revision(number, document.spec, document.text, now), event
        )

    def set(self, experiment: Experiment, document: Document) -> Sequence[Change]:
        """Record a revision of an experiment that may run, and return its changes.

        Returns none if nothing changes. A controller applies it within a second, the next one when
        it begins. Raises Changed, FailedPrecondition.
        """
        if experiment.state.finished:
            more = command("extend", experiment.name, "--trials", "+20")
            cure = raise_limit(experiment) or f"to add trials: {more}"
            if experiment.spec.rerun is not None:
                first = command("delete", experiment.name)
                cure = f"to run its reruns again, first delete it: {first}"
            raise FailedPrecondition(f"{experiment.name} has {experiment.state.value}; {cure}")
        changes = diff(experiment.spec.document, document.spec.document)
        refused = [change for change in changes if not allowed_while_running(change)]
        if refused:
            ways = [f"tuner set accepts {', '.join(SETTABLE)}"]
            if all(map(allowed_in_extension, refused)):
                ways.append(
                    f"for more, stop it and run: {_extension(experiment, document, refused)}"
                )
            ways.append("for anything else choose another metadata.name")
            message = (
                f"these cannot change while {experiment.name} "
                f"runs:\n{listed(refused)}\n{'; '.join(ways)}"
            )
            raise Changed(document.spec.words(message))
        if changes:
            self._revise(experiment, document, changes)
        return changes

    def _follow(
        self, experiment: Experiment, directory: Path
    ) -> tuple[Experiment, tuple[str, ...]]:
        """Record the file's folder, in which trials run, if the file has moved."""
        if experiment.directory == str(directory):
            return experiment, ()
        note = f"trials run in {directory} from now on; it was {experiment.directory}"
        moved = replace(experiment, directory=str(directory))
        self._store.save(
            experiment.uid,
            Changes(experiment=moved, events=(Event(datetime.now(UTC), "moved", note),)),
        )
        return moved, (note,)

    def _read_again(self, experiment: Experiment, document: Document) -> _FileInForce:
        """Return the file in force. Raises Changed if this file means another search."""
        changes = diff(experiment.spec.document, self.completed(experiment, document).spec.document)
        if all(map(is_label, changes)):
            return _FileInForce(document.text, document.source, labels=tuple(changes))
        earlier = self._earlier(experiment, document, extended_since=False)
        if earlier is not None:
            return earlier
        way_on = "these cannot change during a search: "
        kind: type[Changed] = Changed
        if all(map(allowed_in_revision, changes)):
            kind = Revisable
            way_on = f"apply them with: {_again('resume', document)}, or "
        elif all(map(allowed_in_extension, changes)):
            others = [change for change in changes if change.path != "spec.initial"]
            kind = Extensible if all(map(allowed_in_revision, others)) else Changed
            way_on = (
                f"to add values or widen ranges, run: "
                f"{_extension(experiment, document, changes)}, or "
            )
        if not experiment.state.finished:
            # The file may be unchanged: another version of tuner can read it differently.
            way_on += f"continue with the stored file: {command('resume', experiment.name)}, or "
        in_force = self._store.revision_source(experiment.uid, experiment.revision)
        since = ""
        if experiment.revision > 1:
            since = f"The file in effect since revision {experiment.revision}: {in_force}\n"
        message = (
            f"{document.source} differs from the existing experiment "
            f"{experiment.name}:\n{listed(changes)}\n{since}"
            f"{way_on}choose another name (metadata.name), or remove the old one with: "
            f"{command('delete', experiment.name)}"
        )
        raise kind(document.spec.words(message))

    def completed(self, experiment: Experiment, document: Document) -> Document:
        """Return the file with the initial points that `extend NAME` has added to the experiment.

        Files of people do not have them, and that is not a change.
        """
        stored, given = (_initial(spec.document) for spec in (experiment.spec, document.spec))
        if stored == given:
            return document
        added = []
        for before, after in pairwise(self._store.revisions(experiment.uid)):
            if _is_by_name(after):
                earlier = _initial(before.spec.document)
                points = _initial(after.spec.document)
                added += [point for point in points if point not in earlier]
        of_person = [point for point in stored if point not in added or point in given]
        if given[: len(of_person)] != of_person:
            return document
        spec = document.spec.document["spec"]
        assert isinstance(spec, dict)
        whole = {
            **document.spec.document,
            "spec": {**spec, "initial": [*stored, *given[len(of_person) :]]},
        }
        return replace(document, spec=from_document(whole))

    def allowed_changes(self, experiment: Experiment, document: Document) -> Sequence[Change]:
        """Return the changes of the file. Raises Changed if some are no longer allowed."""
        changes = diff(experiment.spec.document, document.spec.document)
        refused = [change for change in changes if not allowed_in_revision(change)]
        if refused:
            growth = (
                f"to add values or widen ranges, run: {_extension(experiment, document, refused)}; "
            )
            message = (
                f"{document.source} changes parts of {experiment.name} that can no longer "
                f"change:\n{listed(refused)}\n"
                f"tuner resume accepts changes under {', '.join(REVISABLE)}; "
                f"{growth if all(map(allowed_in_extension, refused)) else ''}"
                "for anything else choose another metadata.name"
            )
            raise Changed(document.spec.words(message))
        self.check_renamings(experiment, document, changes)
        return changes

    def check_renamings(
        self, experiment: Experiment, document: Document, changes: Sequence[Change]
    ) -> None:
        """Raise Changed if values of two metrics would count as values of one.

        A metric may have another name while no trial has a value, or if the experiment is paused
        because trials did not report it. The values of earlier trials then have the new name.
        """
        renamings = [change for change in changes if is_renaming(change)]
        if not renamings:
            return
        attempts = self._store.attempts(experiment.uid)
        marked = [attempt.failure_class for attempt in attempts if attempt.set_aside]
        is_paused = experiment.state is ExperimentState.PAUSED
        is_missing = is_paused and FailureClass.METRICS_MISSING in marked
        if is_missing or all(attempt.value is None for attempt in attempts):
            return
        message = (
            f"{document.source} names another metric, and trials of {experiment.name} have values "
            f"of the old one:\n"
            f"{listed(renamings)}\nchoose another metadata.name"
        )
        raise Changed(document.spec.words(message))

    def _earlier(
        self, experiment: Experiment, document: Document, *, extended_since: bool
    ) -> _FileInForce | None:
        """Return the revision in force if the file is an earlier revision.

        Then the experiment has changed, not the file. With `extended_since`, all
        newer revisions must come from `extend NAME`. Returning to a revision
        before one that `resume` accepted is an edit.
        """
        if experiment.revision == 1 or not diff(experiment.spec.document, document.spec.document):
            return None
        *earlier, newest = self._store.revisions(experiment.uid)
        for at in reversed(range(len(earlier))):
            if not all(map(is_label, diff(earlier[at].spec.document, document.spec.document))):
                continue
            newer = [*earlier[at + 1 :], newest]
            if extended_since and not all(map(_is_by_name, newer)):
                return None
            path = self._store.revision_source(experiment.uid, newest.number)
            changes = diff(earlier[at].spec.document, newest.spec.document)
            note = (
                f"{document.source} is revision {earlier[at].number} of {experiment.name}; "
                f"continuing with revision "
                f"{newest.number}, {path}:\n{listed(changes)}"
            )
            return _FileInForce(newest.file_text, path, notes=(note,))
        return None


def ending_now(
    experiment: Experiment,
    spec: ExperimentSpec,
    outcomes: Iterable[tuple[TrialState, float | None]],
    attempts: Iterable[Attempt],
) -> budget.Ending | None:
    """Return how the experiment would end at once if it went on by this spec; None: it would not.

    outcomes: of its trials, with their values. attempts: all of the experiment.
    """
    spent = spent_by_all(attempts, now=datetime.now(UTC))
    return budget.ending_of(spec, outcomes, running_s=experiment.running_s, spent=spent)


def _is_by_name(revision: Revision) -> bool:
    """Return whether the revision comes from `extend NAME` or `set NAME`, not from a file."""
    return revision.file_text.partition("\n")[0].endswith((EXTENDED, SET))


def _initial(document: Mapping[str, object]) -> list[object]:
    spec = document["spec"]
    assert isinstance(spec, dict)
    return list(spec["initial"])


def _outcomes(attempts: Sequence[Attempt]) -> list[tuple[TrialState, float | None]]:
    """Return how the trials of a finished experiment ended, by their newest attempts."""
    newest = {attempt.trial: attempt for attempt in attempts if attempt.trial is not FINAL}
    counted = (each for each in newest.values() if each.ended and not each.set_aside)
    return [(TrialState(each.state.value), each.value) for each in counted]


def _again(verb: str, document: Document, *flags: str) -> str:
    """Return the verb with the file, or with the name of an experiment built in Python.

    Such an experiment has no file. The command line adds the flags that change the file.
    """
    if document.source == "standard input":
        return command(verb, "-", *flags)
    return command(
        verb, document.source if Path(document.source).exists() else document.spec.name, *flags
    )


def _extension(experiment: Experiment, document: Document, changes: Sequence[Change]) -> str:
    """Return the command that extends the experiment.

    It goes by name if the experiment was built in Python, without a file.
    """
    if document.source == "standard input" or Path(document.source).exists():
        return _again("extend", document)
    flags: list[str] = []
    for change in changes:
        value = json.dumps(change.new, ensure_ascii=False)
        flags += ["--set", f"{change.path}={value}"]
    return command("extend", experiment.name, *flags)


def listed(changes: Sequence[Change]) -> str:
    return "\n".join(f"  {_without_secrets(change)}" for change in changes)


def _without_secrets(change: Change) -> Change:
    """Return the change without the values of variables that look like secrets."""
    above, _, key = change.path.rpartition(".")
    old, new = (
        _redacted(key, value, env=above.endswith(".env")) for value in (change.old, change.new)
    )
    if change.old is not None and change.new is not None and old == new:
        new = "[redacted, another value]"
    return Change(
        change.path,
        old if change.old is not None else None,
        new if change.new is not None else None,
    )


def _redacted(key: str, value: object, *, env: bool) -> object:
    redacted = redacted_document({"env": {key: value}} if env else {key: value})
    inner = redacted["env"] if env else redacted
    assert isinstance(inner, dict)
    return inner[key]
