"""The suggestion service as an object: all operations on studies and trials.
No gRPC, no protobuf, no SQL.

Thread-safe and blocking; `suggest.studies.sessions` orders the calls of a study. All
methods can be repeated. They raise the types of `suggest.errors`; paths of problems are
fields of the request. The caller, `suggest.server.service`, has validated the request;
this module checks only what depends on the study.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from suggest import events
from suggest.domain import NO_MEMBER, NoMember, compact_json, show
from suggest.engine import Engine, Met
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    LeaseExpired,
    LimitReached,
    Problem,
    raise_if,
    under,
)
from suggest.estimate import Estimate
from suggest.imports import FinishedTrial, ImportResult
from suggest.replies import KEEP, AlgorithmInfo, Keep, Suggestions
from suggest.samplers import registry
from suggest.settings import Setting
from suggest.space import Assignment, Parameter, Space, Value
from suggest.storage.store import Addition, StudyRecord
from suggest.storage.study_json import fingerprint, spec_document
from suggest.studies import request_keys, spec_rules
from suggest.studies.dispatch import Dispatch, ReplyBudget
from suggest.studies.estimates import Estimates
from suggest.studies.learning import learned
from suggest.studies.metric_names import new_names, renamed
from suggest.studies.outcomes import (
    added_again,
    finished_trial,
    in_words,
    paused_trial,
    same_way,
    taken,
)
from suggest.studies.proposing import SuggestionBatch
from suggest.studies.reading import StudyReader
from suggest.studies.sessions import IDLE_S, StudySessions, Writer
from suggest.studies.space_growth import grown
from suggest.studies.trial_leases import MAX_TRIES, AwakeClock
from suggest.study import (
    SIMILAR,
    Constraint,
    Objective,
    Pruning,
    Study,
    StudyName,
    StudySpec,
)
from suggest.trial import (
    ENQUEUED,
    NO_LABELS,
    OWN_LABELS,
    Measurement,
    Outcome,
    StopAdvice,
    Trial,
    TrialState,
)

if TYPE_CHECKING:
    from suggest.storage.sql_store import StudyStore

INFRASTRUCTURE = "infrastructure"  # the failure class of a trial whose lease expired too often


def _check_size(engine: Engine, met: Met, size_of: Callable[[Study], int]) -> None:
    """Raise InvalidArgument if the study with the parameter does not fit into a reply.

    For a parameter that joins, the sum of its parts bounds the size: to write a whole study takes
    longer than all the rest.
    """
    known = engine.size_bound
    if met.joining is not None and known is not None and known[0] is engine.study:
        alone = replace(met.study.spec, space=Space((met.joining,)))
        bound = known[1] + size_of(replace(met.study, spec=alone))
        if bound <= spec_rules.MAX_STUDY_BYTES:
            engine.size_bound = met.study, bound
            return
    size = size_of(met.study)
    what = "the study with all parameters that its trials named"
    raise_if(spec_rules.size_problems("parameter", what, size))
    engine.size_bound = met.study, size


def _nothing(noun: object) -> int:
    """Return 0 as the size of a study or a trial, for replies without a limit."""
    return 0


def check(spec: StudySpec, *, runs_here: bool = True) -> None:
    """Validate the spec without a store, for ValidateStudy.

    Raises InvalidArgument with all problems.

    runs_here: as in `check_spec`.
    """
    raise_if(spec_rules.spec_problems(spec, runs_here=runs_here))


class StudyService(StudyReader):
    """All operations on the studies of one store.

    `address` is where other processes reach this one; `NotOwner` carries it.
    For `idle_s` see `StudySessions`.
    """

    def __init__(
        self,
        store: StudyStore,
        *,
        address: str,
        clock: AwakeClock | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        """Take ownership of `clock`, which measures trial leases; close() closes it."""
        super().__init__(store)
        self.sessions = StudySessions(
            store, address=address, clock=clock or AwakeClock(), idle_s=idle_s
        )
        self._estimates = Estimates(store, self.sessions.workers)

    def close(self) -> None:
        """Release every study. The store belongs to the caller and stays open."""
        self.sessions.close()

    # Studies

    def algorithms(self) -> tuple[AlgorithmInfo, ...]:
        return tuple(
            AlgorithmInfo(a.name, a.summary, {s.name: _setting_words(s) for s in a.settings})
            for a in registry.algorithms()
        )

    def create_study(
        self,
        name: StudyName,
        spec: StudySpec,
        *,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
        validate_only: bool = False,
    ) -> Study:
        given = fingerprint(spec)
        existing = self._store.study(name) if spec.learn_from else None
        # A repeated call returns the study, whatever has become of what it learned from.
        if existing is None:
            spec = learned(self._store, name, spec)
        seed = spec.algorithm.seed
        study = Study(
            name=name,
            uid=secrets.token_hex(8),
            spec=registry.resolve(spec),
            seed=secrets.randbits(31) if seed is None else seed,
            labels=dict(labels),
            create_time=datetime.now(UTC),
        )
        if validate_only:
            return study
        record = StudyRecord(study, request_id, given)
        if existing is None and self._store.insert_study(record):
            events.log_event(
                "study_created",
                study=name,
                uid=study.uid,
                algorithm=spec.algorithm.name,
                learn_from=",".join(each.study for each in spec.learn_from),
            )
            return study
        existing = existing or self.record(name)
        if (existing.request_id, existing.fingerprint) == (request_id, record.fingerprint):
            if labels.items() <= existing.study.labels.items():
                return existing.study
            raise AlreadyExists(f"{name} exists with other labels; change them by UpdateStudy")
        raise AlreadyExists(
            f"{name} exists{_difference(existing.study.spec, study.spec)}; use another name, or "
            f"delete it first"
        )

    def update_study(
        self,
        name: StudyName,
        *,
        space: Space | Keep = KEEP,
        pruning: Pruning | Keep | None = KEEP,
        labels: Mapping[str, str] | Keep = KEEP,
        objectives: Sequence[Objective] | Keep = KEEP,
        constraints: Sequence[Constraint] | Keep = KEEP,
        validate_only: bool = False,
        size_of: Callable[[Study], int] = _nothing,
    ) -> Study:
        """Change the given parts of the study.

        `size_of` returns the study's size in a reply, in bytes.

        Of objectives and constraints only the names of their metrics can change.
        """
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            study = engine.study
            if pruning is not KEEP:
                study = replace(study, spec=replace(study.spec, pruning=pruning))
            if objectives is not KEEP or constraints is not KEEP:
                new_objectives = study.spec.objectives if objectives is KEEP else objectives
                new_constraints = study.spec.constraints if constraints is KEEP else constraints
                study = renamed(study, new_objectives, new_constraints)
            if space is not KEEP:
                study = grown(study, space, trials=engine.next_number)
            if study.spec is not engine.study.spec:
                # A belief cannot change, and may say no more than chance of a wider range.
                check(replace(study.spec, prior=()))
            if labels is not KEEP:
                study = replace(study, labels=dict(labels))
            if study != engine.study:
                size = size_of(study)
                raise_if(
                    spec_rules.size_problems(
                        "spec.parameters", "the study with its earlier parameters", size
                    )
                )
            if study != engine.study and not validate_only:
                with writer.changing():
                    names = new_names(engine.study.spec, study.spec)
                    self._store.update_study(writer.lease, study, renamed=names)
                    if study.spec.criteria == engine.study.spec.criteria:
                        engine.update_study(study)
                    else:
                        writer.load_again()
            return study

    def delete_study(self, name: StudyName) -> None:
        with self.sessions.deleting(name) as lease:
            self._store.delete_study(lease)
            events.log_event("study_deleted", study=name, uid=lease.uid)

    # Trials

    def suggest(
        self,
        name: StudyName,
        count: int,
        *,
        client_id: str,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
        lease_s: float | None = None,
        expired_only: bool = False,
        paused_only: bool = False,
        size_of: Callable[[Trial], int] = _nothing,
    ) -> Suggestions:
        """Hand out up to `count` trials. `size_of` returns a trial's size in the reply, in bytes.

        The study's lock is not held while a worker process computes, so other calls for the study
        continue. If the time of the call does not suffice for another portion of a computation, it
        has the trials that were computed. A limit that is reached after the first trials ends the
        call in the same way.
        """
        _refuse_own_labels(labels)
        budget = ReplyBudget(size_of)
        batch = SuggestionBatch(count, expired_only=expired_only, paused_only=paused_only)
        with self.sessions.proposing(name):
            try:
                while True:
                    with self.sessions.writing(name) as writer:
                        dispatch = Dispatch(writer, client_id, request_id, labels, lease_s, budget)
                        reply = self._next_portion(name, batch, dispatch)
                    if reply is not None:
                        return reply
                    batch.wait()
            except LimitReached:
                if not batch.trials:
                    raise
                # Trials of earlier portions run already, so the client must know them.
                # Its next call is refused.
                trials = self.sessions.with_expiry(name, batch.trials)
                return Suggestions(tuple(trials), exhausted=False, independent=batch.independent)

    def _next_portion(
        self, name: StudyName, batch: SuggestionBatch, dispatch: Dispatch
    ) -> Suggestions | None:
        """Hand out what is computed.

        Return the reply once it is complete, None to be called again after a wait.
        """
        writer = dispatch.writer
        engine = writer.engine
        spec = engine.study.spec
        batch.independent = not registry.learns(spec.algorithm) and spec.fidelity is None
        repeated = engine.trials_of_request(dispatch.request_id)
        if repeated and not batch.trials:
            # A repeated call never reports the search as exhausted:
            # a client that wants more asks again.
            trials = self.sessions.with_expiry(name, dispatch.again(repeated))
            return Suggestions(tuple(trials), exhausted=False, independent=batch.independent)
        batch.trials = list(repeated)
        for trial in repeated:  # of earlier portions: a computation may take longer than a lease
            writer.trial_leases.renew(trial.number)
        self._requeue_expired(name, writer)
        last = batch.continued(dispatch)
        if last is None:
            return None
        trials = self.sessions.with_expiry(name, batch.trials)
        exhausted = last.exhausted and not dispatch.budget.full
        return Suggestions(tuple(trials), exhausted, batch.independent, last.waiting)

    def renew_leases(self, name: StudyName, leases: Mapping[int, int]) -> frozenset[int]:
        """Renew trial leases; `leases` maps trial numbers to tries.

        Return the trials that could not be renewed.
        """
        with self.sessions.writing(name) as writer:
            lost: set[int] = set()
            back: list[Trial] = []
            for number, tries in leases.items():
                trial = writer.engine.open_trial(number)
                is_leased = (
                    trial is not None and trial.tries and trial.state is not TrialState.PAUSED
                )
                if trial is None or not is_leased or tries not in (0, trial.tries):
                    lost.add(number)
                elif trial.expired:
                    back.append(trial)
                else:
                    writer.trial_leases.renew(number)
            writer.revive(back)
            return frozenset(lost)

    def _requeue_expired(self, name: StudyName, writer: Writer) -> None:
        """Queue trials with an expired lease again; fail those that have used up MAX_TRIES."""
        numbers = writer.trial_leases.expired()
        if not numbers:
            return
        expired = [
            trial for number in numbers if (trial := writer.engine.open_trial(number)) is not None
        ]
        again = [
            replace(trial, state=TrialState.QUEUED) for trial in expired if _may_run_again(trial)
        ]
        for trial in expired:
            queued = _may_run_again(trial)
            becomes = "queued" if queued else "failed"
            events.log_event(
                "lease_expired", study=name, trial=trial.number, tries=trial.tries, becomes=becomes
            )
        if again:
            with writer.changing():
                self._store.requeue(writer.lease, [trial.number for trial in again])
                for trial in again:
                    writer.engine.put(trial)
        for trial in expired:
            if not _may_run_again(trial):
                reason = (
                    f"its lease expired {MAX_TRIES} times: every client that ran it stopped "
                    f"renewing it"
                )
                outcome = Outcome(TrialState.FAILED, reason=reason, failure_class=INFRASTRUCTURE)
                writer.finish(finished_trial(writer.engine, trial, outcome, ()))

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
        _refuse_own_labels(labels)
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            key = request_keys.added(request_id)
            existing = self._store.trial_added_by(name, key)
            space = engine.study.spec.space
            labels = dict(labels)
            if engine.study.spec.define_by_run and outcome is None:
                # Kept until the trial meets them, whether or not the space has them yet.
                labels[ENQUEUED] = compact_json(dict(parameters))
                parameters = {}
            if existing is None:
                raise_if(
                    list(
                        under(
                            "parameters", space.point_problems(parameters, partial=outcome is None)
                        )
                    )
                )
            trial = Trial(
                number=engine.next_number,
                state=TrialState.QUEUED if outcome is None else TrialState.RUNNING,
                parameters=space.canonical(parameters),
                labels=dict(labels),
                create_time=datetime.now(UTC),
            )
            fresh = engine.fresh(trial.number, measurements)
            added = trial if outcome is None else finished_trial(engine, trial, outcome, fresh)
            if existing is not None:
                as_spelled_now = replace(existing, parameters=space.canonical(existing.parameters))
                has_more = parameters.keys() - space.by_name or engine.fresh(
                    existing.number, measurements
                )
                if has_more or not added_again(as_spelled_now, added):
                    raise AlreadyExists(
                        f"{name}: request_id {request_id!r} has added trial {existing.number}, "
                        "which is another one; use another request_id for another trial"
                    )
                return existing
            with writer.changing():
                self._store.add_trials(writer.lease, [Addition(added, key, fresh)])
                engine.put(trial)
                engine.measure(trial.number, fresh)
                if added.finished:
                    engine.put(added)
            return added

    def import_trials(
        self, name: StudyName, trials: Sequence[FinishedTrial], *, source: str, request_id: str
    ) -> list[ImportResult]:
        sources = [trial.source_id or str(place) for place, trial in enumerate(trials)]
        keys = [request_keys.imported(request_id, source_id) for source_id in sources]
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            existing = self._store.numbers_added_by(name, keys)
            results: list[ImportResult] = []
            additions: list[Addition] = []
            for key, trial in zip(keys, trials, strict=True):
                if key in existing:
                    results.append(ImportResult(existing[key], known=True))
                    continue
                number = engine.next_number + len(additions)
                added, result = taken(engine, trial, number=number, source=source)
                results.append(result)
                if added is not None:
                    existing[key] = number
                    additions.append(Addition(added, key, engine.fresh(number, trial.measurements)))
            if additions:
                with writer.changing():
                    self._store.add_trials(writer.lease, additions)
                    for addition in additions:
                        engine.take_in(addition.trial, addition.measurements)
                writer.warm_up()
            return results

    def report(
        self, name: StudyName, number: int, measurements: Sequence[Measurement], *, tries: int = 0
    ) -> StopAdvice:
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            trial = engine.trial(number)
            _check_tries(name, trial, tries)
            fresh = engine.fresh(number, measurements)
            if trial.finished:
                if fresh:
                    raise _refused(name, trial, "it accepts no more reports")
                return StopAdvice(True, f"the trial is {trial.state.value} already")
            if trial.state is TrialState.PAUSED:
                if fresh:
                    raise _refused(name, trial, "it accepts reports again once it continues")
                return StopAdvice(True, "the trial is paused")
            if trial.state is TrialState.QUEUED and not trial.expired:
                raise _refused(
                    name, trial, "it accepts reports after SuggestTrials has handed it out"
                )
            if trial.expired:
                writer.revive([trial])
            writer.trial_leases.renew(number)
            if fresh:
                with writer.changing():
                    self._store.add_measurements(writer.lease, number, fresh)
                    engine.measure(number, fresh)
            return engine.advise(number)

    def decide_parameter(
        self,
        name: StudyName,
        number: int,
        parameter: Parameter,
        *,
        value: Value | NoMember = NO_MEMBER,
        tries: int = 0,
        size_of: Callable[[Study], int] = _nothing,
    ) -> Value:
        """Return the value of a parameter that a running trial meets, and store it first.

        `value` is the one that the client asks for. `size_of` returns the study's size in a
        reply, in bytes.
        """
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            trial = engine.trial(number)
            _check_tries(name, trial, tries)
            if not engine.study.spec.define_by_run:
                raise FailedPrecondition(
                    f"{name} has its parameters from the start; only trials of a study that is "
                    "define_by_run name parameters"
                )
            raise_if(under("parameter", Space((parameter,)).problems()))
            if parameter.name in trial.parameters:
                # A retry may run changed code, which cannot use a value of another kind.
                engine.refuse_another_kind(parameter)
                return trial.parameters[parameter.name]
            if trial.state is not TrialState.RUNNING:
                raise _refused(name, trial, "it meets parameters only while it runs")
            writer.trial_leases.renew(number)
            met = engine.met(trial, parameter.name, parameter.domain, value)
            if met.study is not engine.study:
                _check_size(engine, met, size_of)
            writer.decide(met)
            return engine.trial(number).parameters[parameter.name]

    def complete(
        self,
        name: StudyName,
        number: int,
        outcome: Outcome,
        *,
        measurements: Sequence[Measurement] = (),
        tries: int = 0,
    ) -> Trial:
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            trial = engine.trial(number)
            _check_tries(name, trial, tries)
            fresh = engine.fresh(number, measurements)
            if trial.finished:
                if fresh or not same_way(trial, outcome):
                    raise FailedPrecondition(
                        f"{name}: trial {number} has ended as "
                        f"{in_words(trial.state, trial.value)}; it cannot end again as "
                        f"{in_words(outcome.state, outcome.value)}"
                        + (" with further measurements" if fresh else "")
                    )
                return trial
            if trial.state is TrialState.PAUSED:
                if (
                    outcome.state is TrialState.SUCCEEDED
                    and not fresh
                    and outcome.value in (None, trial.value)
                ):
                    return trial
                if outcome.state not in (TrialState.PRUNED, TrialState.CANCELLED) or fresh:
                    raise FailedPrecondition(
                        f"{name}: trial {number} is {in_words(TrialState.PAUSED, trial.value)}; it "
                        "can end as pruned or cancelled, or continue once SuggestTrials hands it "
                        "out again"
                    )
            never_run = trial.state is TrialState.QUEUED and not trial.expired
            if never_run and (outcome.state is not TrialState.CANCELLED or fresh):
                raise FailedPrecondition(
                    f"{name}: trial {number} is queued and has not run; it can only be cancelled"
                )
            finished = finished_trial(engine, trial, outcome, fresh)
            if trial.state is TrialState.PAUSED and outcome.state is TrialState.PRUNED:
                finished = replace(finished, value=trial.value, step=trial.step)
            if finished.state is TrialState.SUCCEEDED and engine.pauses(trial):
                finished = paused_trial(engine, finished)
            writer.finish(finished, fresh)
            if engine.study.spec.define_by_run and finished.state is TrialState.SUCCEEDED:
                writer.explain(finished)
            # Not earlier: before the first outcome an algorithm has nothing to learn from, and a
            # fast start matters.
            writer.warm_up()
            writer.expect_more()
            return finished

    def reopen_trials(self, name: StudyName, numbers: Sequence[int]) -> list[Trial]:
        """Run failed trials again, all or none. A trial that already runs is returned unchanged."""
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            trials = [engine.trial(number) for number in numbers]
            for trial in trials:
                if trial.state not in (TrialState.FAILED, TrialState.RUNNING):
                    raise _refused(name, trial, "only a failed trial can be reopened")
            if failed := [trial for trial in trials if trial.finished]:
                writer.reopen(failed)
            return [engine.trial(number) for number in numbers]

    def relabel_trial(self, name: StudyName, number: int, labels: Mapping[str, str]) -> Trial:
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            current = engine.trial(number)
            # Clients must not change the labels that record the origin
            # of the trial and of its point.
            reserved = {key: current.labels[key] for key in OWN_LABELS if key in current.labels}
            _refuse_own_labels(labels.keys() - reserved.keys())
            trial = replace(current, labels={**labels, **reserved})
            self.trial(name, number)
            writer.relabel(trial)
            return trial

    def delete_trial(self, name: StudyName, number: int) -> None:
        with self.sessions.writing(name) as writer:
            engine = writer.engine
            trial = engine.trial(number)
            self.trial(name, number)
            if trial.state is TrialState.RUNNING:
                raise _refused(name, trial, "complete it as cancelled first")
            with writer.changing():
                self._store.delete_trial(writer.lease, number)
            writer.load_again()  # without what the algorithm has learned from the trial

    def trial(self, name: StudyName, number: int) -> Trial:
        return self.sessions.with_expiry(name, [super().trial(name, number)])[0]

    def list_trials(
        self,
        name: StudyName,
        *,
        states: Sequence[TrialState] = (),
        client_id: str = "",
        after: int = -1,
        limit: int,
    ) -> list[Trial]:
        trials = super().list_trials(
            name, states=states, client_id=client_id, after=after, limit=limit
        )
        return self.sessions.with_expiry(name, trials)

    def estimate(self, name: StudyName) -> Estimate:
        """Return what a model says of the study.

        The models of the studies that were asked about last are kept.
        """
        return self._estimates.of(self.study(name))


def _refuse_own_labels(labels: Iterable[str]) -> None:
    """Refuse labels that say where a trial comes from: what has them counts in another way.

    Raises InvalidArgument.
    """
    forged = sorted(OWN_LABELS & set(labels))
    raise_if(
        [Problem(f"labels.{key}", "only the service sets this label; remove it") for key in forged]
    )


def _refused(name: StudyName, trial: Trial, rule: str) -> FailedPrecondition:
    """Return the error for a request that the trial's state does not allow."""
    return FailedPrecondition(f"{name}: trial {trial.number} is {trial.state.value}; {rule}")


def _may_run_again(trial: Trial) -> bool:
    """Return whether a trial whose lease has expired is queued again.

    Runs that ended in a pause are not lost.
    """
    return trial.tries - len(trial.rungs) < MAX_TRIES


def _check_tries(name: StudyName, trial: Trial, tries: int) -> None:
    """Check `tries` as sent by the caller, 0 if the caller sent none. Raises LeaseExpired."""
    if not 0 <= tries <= trial.tries:
        raise LeaseExpired(
            f"{name}: there was no try {tries} of trial {trial.number}, whose last one is "
            f"{trial.tries}: send `tries` as SuggestTrials returned it; if the store was restored, "
            "stop running the trial"
        )
    if tries not in (0, trial.tries):
        raise LeaseExpired(
            f"{name}: the lease of trial {trial.number} expired, and it was handed out again (try "
            f"{trial.tries}; this is try {tries}); stop running it"
        )


def _setting_words(setting: Setting) -> str:
    kind = " or ".join(setting.words) or setting.kind.__name__
    return f"{kind}, default {show(setting.default)}: {setting.meaning}"


def _difference(existing: StudySpec, requested: StudySpec) -> str:
    if any(each.study == SIMILAR for each in requested.learn_from):
        # What was found is not what was requested.
        existing = replace(existing, learn_from=requested.learn_from)
    old, new = (spec_document(_without_learned(spec)) for spec in (existing, requested))
    parts = [
        key
        for key in (
            "parameters",
            "objectives",
            "constraints",
            "algorithm",
            "fidelity",
            "pruning",
            "learnFrom",
            "prior",
        )
        if old.get(key) != new.get(key)
    ]
    return f" with other {' and '.join(parts)}" if parts else ", created by another request"


def _without_learned(spec: StudySpec) -> StudySpec:
    """Return the spec as a client gave it, without the trials of earlier studies."""
    return replace(spec, learn_from=tuple(replace(each, trials=()) for each in spec.learn_from))
