"""The service itself, as an object: what may be done with studies and trials. No gRPC, no protobuf, no SQL in here.

Thread-safe and blocking; whose turn it is and which engine answers is the business of `suggest.seats`. All methods
are safe to repeat. They raise what `suggest.errors` has; paths of problems are fields of the request.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from suggest import courtesy, events, requests
from suggest.domain import show
from suggest.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound, Problem
from suggest.growth import grown
from suggest.handout import TURNS, HandOut
from suggest.imports import IMPORTED_FROM, FinishedTrial, ImportResult
from suggest.outcomes import finished_trial, in_words, same_way, taken
from suggest.replies import KEEP, AlgorithmInfo, Keep, Suggestions
from suggest.sampling import registry
from suggest.seats import Seats
from suggest.settings import Setting
from suggest.space import Assignment, Space
from suggest.store.documents import fingerprint, spec_document
from suggest.store.protocol import Addition, Store, StudyRecord
from suggest.study import Pruning, Study, StudyName, StudySpec
from suggest.trial import NO_LABELS, Measurement, Outcome, StopAdvice, Trial, TrialState


def check(spec: StudySpec) -> None:
    """Raises InvalidArgument with all problems of the spec: what ValidateStudy says. Needs no store."""
    requests.raise_if(requests.spec_problems(spec))


class Studies:
    """`address`: where this process can be reached; told to whoever finds a study taken."""

    def __init__(self, store: Store, *, address: str) -> None:
        self._store = store
        self._seats = Seats(store, address=address)

    def close(self) -> None:
        """Give back every study. The store stays open; it is the caller's."""
        self._seats.close()

    def in_memory(self) -> tuple[int, int]:
        """(studies, trials) that are held in memory just now."""
        return self._seats.in_memory()

    # Studies

    def algorithms(self) -> tuple[AlgorithmInfo, ...]:
        return tuple(
            AlgorithmInfo(a.name, a.summary, {s.name: _setting_words(s) for s in a.settings})
            for a in registry.algorithms()
        )

    def validate(self, spec: StudySpec) -> None:
        check(spec)

    def create_study(
        self, name: StudyName, spec: StudySpec, *, request_id: str, labels: Mapping[str, str] = NO_LABELS
    ) -> Study:
        requests.raise_if(requests.request_id_problems(request_id) + requests.spec_problems(spec))
        seed = spec.algorithm.seed
        study = Study(
            name=name,
            uid=secrets.token_hex(8),
            spec=registry.chosen(spec),
            seed=secrets.randbits(31) if seed is None else seed,
            labels=dict(labels),
            create_time=datetime.now(UTC),
        )
        record = StudyRecord(study, request_id, fingerprint(spec))
        if self._store.insert_study(record):
            events.tell("study_created", study=name, uid=study.uid, algorithm=spec.algorithm.name)
            return study
        there = self._seats.record(name)
        if (there.request_id, there.fingerprint) == (request_id, record.fingerprint):
            return there.study
        raise AlreadyExists(
            f"{name} exists{_difference(there.study.spec, study.spec)}; use another name, or delete it first"
        )

    def study(self, name: StudyName) -> Study:
        return self._seats.record(name).study

    def list_studies(
        self,
        namespace: str | None,
        *,
        labels: Mapping[str, str] = NO_LABELS,
        after: StudyName | None = None,
        limit: int,
    ) -> list[Study]:
        return self._store.studies(namespace, labels=labels, after=after, limit=limit)

    def update_study(
        self,
        name: StudyName,
        *,
        space: Space | Keep = KEEP,
        pruning: Pruning | Keep | None = KEEP,
        labels: Mapping[str, str] | Keep = KEEP,
        validate_only: bool = False,
    ) -> Study:
        with self._seats.writing(name) as writer:
            engine = writer.engine
            study = engine.study
            if pruning is not KEEP:
                study = replace(study, spec=replace(study.spec, pruning=pruning))
            if space is not KEEP:
                study = grown(study, space, trials=engine.next_number)
            if study.spec is not engine.study.spec:
                self.validate(study.spec)
            if labels is not KEEP:
                study = replace(study, labels=dict(labels))
            if study != engine.study and not validate_only:
                with writer.changing():
                    self._store.update_study(writer.lease, study)
                    engine.update_study(study)
            return study

    def delete_study(self, name: StudyName) -> None:
        with self._seats.deleting(name) as lease:
            self._store.delete_study(lease)
            events.tell("study_deleted", study=name, uid=lease.uid)

    # Trials

    def suggest(
        self,
        name: StudyName,
        count: int,
        *,
        client_id: str,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Suggestions:
        requests.raise_if(requests.suggest_problems(count, client_id=client_id, request_id=request_id))
        with self._seats.writing(name) as writer:
            engine = writer.engine
            independent = not registry.learns(engine.study.spec.algorithm)
            if known := engine.trials_of_request(request_id):
                # A replay says nothing of the search: whoever wants more trials than it brings asks anew.
                return Suggestions(known, exhausted=False, independent=independent)
            handout = HandOut(self._store, writer, client_id, request_id, labels)
            trials: list[Trial] = []
            for turn in range(TURNS):
                proposal = engine.propose(count - len(trials), to_run=turn == TURNS - 1)
                trials += handout.begin(proposal.trials)
                if proposal.exhausted or len(trials) == count:
                    break
            return Suggestions(tuple(trials), proposal.exhausted, independent)

    def add_trial(
        self,
        name: StudyName,
        parameters: Assignment,
        *,
        request_id: str,
        outcome: Outcome | None = None,
        measurements: Sequence[Measurement] = (),
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Trial:
        requests.raise_if(requests.addition_problems(outcome, measurements, request_id=request_id))
        with self._seats.writing(name) as writer:
            engine = writer.engine
            if known := self._store.trial_added_by(name, request_id):
                return known
            space = engine.study.spec.space
            if problems := space.point_problems(parameters, partial=outcome is None):
                raise InvalidArgument([Problem(f"parameters.{p.path}", p.message) for p in problems])
            trial = Trial(
                number=engine.next_number,
                state=TrialState.QUEUED if outcome is None else TrialState.RUNNING,
                parameters=space.canonical(parameters),
                labels=dict(labels),
                create_time=datetime.now(UTC),
            )
            fresh = engine.fresh(trial.number, measurements)
            added = trial if outcome is None else finished_trial(engine, trial, outcome, fresh)
            with writer.changing():
                self._store.add_trial(writer.lease, added, request_id=request_id, measurements=fresh)
                engine.put(trial)
                engine.measure(trial.number, fresh)
                if added.finished:
                    engine.put(added)
            return added

    def import_trials(
        self, name: StudyName, trials: Sequence[FinishedTrial], *, source: str, request_id: str
    ) -> list[ImportResult]:
        requests.raise_if(requests.import_problems(trials, source=source, request_id=request_id))
        keys = [f"import/{request_id}/{trial.source_id or place}" for place, trial in enumerate(trials)]
        with self._seats.writing(name) as writer:
            engine = writer.engine
            known = self._store.numbers_added_by(name, keys)
            results: list[ImportResult] = []
            additions: list[Addition] = []
            for key, trial in zip(keys, trials, strict=True):
                if key in known:
                    results.append(ImportResult(known[key], known=True))
                    continue
                number = engine.next_number + len(additions)
                added, result = taken(engine, trial, number=number, source=source)
                results.append(result)
                if added is not None:
                    known[key] = number
                    additions.append(Addition(added, key, engine.fresh(number, trial.measurements)))
            if additions:
                with writer.changing():
                    self._store.add_trials(writer.lease, additions)
                    for addition in additions:
                        engine.take_in(addition.trial, addition.measurements)
                writer.warm_up()
            return results

    def report(self, name: StudyName, number: int, measurements: Sequence[Measurement]) -> StopAdvice:
        requests.raise_if(requests.measurement_problems(len(measurements)))
        with self._seats.writing(name) as writer:
            engine = writer.engine
            trial = engine.trial(number)
            fresh = engine.fresh(number, measurements)
            if trial.finished:
                if fresh:
                    raise FailedPrecondition(f"{name}: trial {number} is {trial.state.value}; it takes no more reports")
                return StopAdvice(True, f"the trial is {trial.state.value} already")
            if trial.state is TrialState.QUEUED:
                raise FailedPrecondition(
                    f"{name}: trial {number} is queued; it reports after SuggestTrials handed it out"
                )
            if fresh:
                courtesy.give_way()
                with writer.changing():
                    self._store.add_measurements(writer.lease, number, fresh)
                    engine.measure(number, fresh)
            return engine.advise(number)

    def complete(
        self, name: StudyName, number: int, outcome: Outcome, *, measurements: Sequence[Measurement] = ()
    ) -> Trial:
        requests.raise_if(requests.completion_problems(outcome, measurements))
        with self._seats.writing(name) as writer:
            engine = writer.engine
            trial = engine.trial(number)
            fresh = engine.fresh(number, measurements)
            if trial.finished:
                if fresh or not same_way(trial, outcome):
                    raise FailedPrecondition(
                        f"{name}: trial {number} has ended as {in_words(trial.state, trial.value)}; "
                        f"it cannot end again as {in_words(outcome.state, outcome.value)}"
                        + (" with further measurements" if fresh else "")
                    )
                return trial
            if trial.state is TrialState.QUEUED and (outcome.state is not TrialState.CANCELLED or fresh):
                raise FailedPrecondition(
                    f"{name}: trial {number} is queued, nobody has run it; it can only be cancelled"
                )
            finished = finished_trial(engine, trial, outcome, fresh)
            with writer.changing():
                self._store.finish_trial(writer.lease, finished, fresh)
                engine.measure(number, fresh)
                engine.put(finished)
            # Here, for until its first outcome an algorithm has nothing to compute from, and starting goes first.
            writer.warm_up()
            writer.expect_more()
            return finished

    def reopen_trials(self, name: StudyName, numbers: Sequence[int]) -> list[Trial]:
        """All of them or none: failed trials run again. One that runs already is returned as it is."""
        requests.raise_if(requests.reopening_problems(numbers))
        with self._seats.writing(name) as writer:
            engine = writer.engine
            found = [engine.trial(number) for number in numbers]
            for trial in found:
                if trial.state not in (TrialState.FAILED, TrialState.RUNNING):
                    raise FailedPrecondition(
                        f"{name}: trial {trial.number} is {trial.state.value}; only a failed trial can be reopened"
                    )
            reopened = [
                replace(t, state=TrialState.RUNNING, value=None, step=None, reason="", failure_class="", end_time=None)
                for t in found
                if t.finished
            ]
            if reopened:
                with writer.changing():
                    self._store.reopen_trials(writer.lease, [trial.number for trial in reopened])
                    engine.reopen(reopened)
            return [engine.trial(number) for number in numbers]

    def relabel_trial(self, name: StudyName, number: int, labels: Mapping[str, str]) -> Trial:
        with self._seats.writing(name) as writer:
            engine = writer.engine
            there = engine.trial(number)
            if IMPORTED_FROM in there.labels:  # where it comes from, nobody changes
                labels = {**labels, IMPORTED_FROM: there.labels[IMPORTED_FROM]}
            trial = replace(there, labels=dict(labels))
            self._existing(name, number)
            with writer.changing():
                self._store.relabel_trial(writer.lease, number, labels)
                engine.put(trial)
            return trial

    def delete_trial(self, name: StudyName, number: int) -> None:
        with self._seats.writing(name) as writer:
            engine = writer.engine
            state = engine.trial(number).state
            self._existing(name, number)
            if state is TrialState.RUNNING:
                raise FailedPrecondition(f"{name}: trial {number} is running; complete it as cancelled first")
            with writer.changing():
                self._store.delete_trial(writer.lease, number)
            writer.forget_engine()  # what the search has learned from it goes with it

    def trial(self, name: StudyName, number: int) -> Trial:
        trial = self._store.trial(name, number)
        return self._existing(name, number) if trial is None else trial

    def list_trials(
        self,
        name: StudyName,
        *,
        states: Sequence[TrialState] = (),
        client_id: str = "",
        after: int = -1,
        limit: int,
    ) -> list[Trial]:
        found = self._store.trials(name, states=states, client_id=client_id, after=after, limit=limit)
        if not found:
            self._seats.record(name)
        return found

    def list_measurements(
        self, name: StudyName, number: int | None, *, after: int = 0, limit: int
    ) -> list[tuple[int, int, Measurement]]:
        """(position, trial, measurement)."""
        found = self._store.measurements(name, number, after=after, limit=limit)
        if not found:
            self._seats.record(name) if number is None else self.trial(name, number)
        return found

    def optimal_trials(self, name: StudyName) -> list[Trial]:
        best = self._store.best_trial(name, self._seats.record(name).study.spec.objective.direction)
        return [] if best is None else [best]

    def _existing(self, name: StudyName, number: int) -> Trial:
        """The trial, unless it was deleted (an engine still knows those)."""
        trial = self._store.trial(name, number)
        if trial is None:
            self._seats.record(name)
            raise NotFound(f"{name} has no trial {number}")
        return trial


def _setting_words(setting: Setting) -> str:
    kind = " or ".join(setting.words) or setting.kind.__name__
    return f"{kind}, default {show(setting.default)}: {setting.meaning}"


def _difference(there: StudySpec, wanted: StudySpec) -> str:
    old, new = spec_document(there), spec_document(wanted)
    parts = [key for key in ("parameters", "objectives", "algorithm", "pruning") if old.get(key) != new.get(key)]
    return f" with other {' and '.join(parts)}" if parts else ", created by another request"
