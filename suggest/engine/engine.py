"""One study in memory: proposes points, knows the state of each trial,
and advises which trials to stop.

The engine is a function of the study, its trials and their measurements: an engine rebuilt from the
store gives the same answers as the lost one. There is one exception: the engine repeats its advice
about a curve until the curve grows, even if reports of other trials would change it. A rebuilt
engine advises from what is known by then.

The engine has no store, no clock and no lock. Its owner writes to the store first
and then tells the engine.
"""

from __future__ import annotations

import json
import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from suggest import pruners, samplers
from suggest.curves import Curve, Report, TrialCurve
from suggest.domain import NO_MEMBER, Domain, NoMember, Value
from suggest.engine.met_parameters import Evidence, conditioned, joined, nearest
from suggest.engine.promotion import PROMOTING, promotion
from suggest.engine.trial_index import FinishedTrials, TrialIndex
from suggest.errors import NotFound
from suggest.proposal import generator
from suggest.pruners import Pruner
from suggest.samplers import Computation, Computed, Distinct, PointRequest, Sampler, registry
from suggest.samplers.uniform import draw
from suggest.space import Assignment, Parameter, Space
from suggest.study import Constraint, Objective, Study
from suggest.trial import (
    ENQUEUED,
    IMPORTED_FROM,
    PLANNED,
    Measurement,
    StopAdvice,
    Trial,
    TrialBatch,
    TrialState,
)
from suggest.workers import Workers

# Trials before which the samplers behind `propose_cheaper` know too little.
RANDOM_NUMBERS = 12


@dataclass(frozen=True, slots=True)
class Proposed:
    """A trial to hand out.

    queued: the study has the trial under this number already: enqueued, expired or paused.
        Otherwise it is new.
    known: the trial with the same point whose value this trial takes over instead of running.
    proposed_by: the sampler that proposed the point, if it is not the study's own.
    fidelity: how far to run the trial; None in studies without a fidelity.
    parent: the trial from whose checkpoint it continues.
    """

    number: int
    parameters: Assignment
    queued: bool
    known: int | None = None
    proposed_by: str = ""
    fidelity: float | None = None
    parent: int | None = None


@dataclass(frozen=True, slots=True)
class Proposal:
    """Trials to hand out.

    exhausted: there are fewer than requested, because the space has no further point.
    waiting: there are fewer than requested, because a running trial has to end first.
    """

    trials: tuple[Proposed, ...]
    exhausted: bool
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class Met:
    """A parameter that a running trial has met: the trial with its value, and the study.

    study: the engine's own, or another one if its space has grown.
    rest: the values that the model proposes for what the trial may meet next.
    joining: the parameter that is all by which the study's space has grown; None if nothing has
        changed, or more.
    """

    trial: Trial
    study: Study
    rest: Assignment
    joining: Parameter | None


class Draft:
    """A proposal that is being computed.

    It has either its `proposal` or the next `computation` that it waits for.

    A computation does not touch the engine, so it runs without the study's lock, and other calls
    may change the study meanwhile. The owner then asks the engine whether the draft still `fits`.
    All other methods need the lock.
    """

    def __init__(
        self,
        steps: Computed[Proposal],
        *,
        first: int,
        queued: Sequence[Trial],
        basis: object,
        results: int,
    ):
        """Begin a proposal.

        Args:
            steps: The computations of the proposal, in order.
            first: The number of the next trial.
            queued: The known trials that the proposal hands out.
            basis: The sampler that proposes.
            results: How many trials had ended.
        """
        self.first = first
        self.queued = queued
        self.basis = basis
        self.results = results
        self.proposal: Proposal | None = None
        self._steps = steps
        self._computation: Computation | None = None
        self._advance(lambda: next(steps))

    @property
    def computation(self) -> Computation:
        assert self._computation is not None
        return self._computation

    def resume(self, points: list[Assignment]) -> None:
        """Continue with the points that the computation returned."""
        self._advance(lambda: self._steps.send(points))

    def _advance(self, step: Callable[[], Computation]) -> None:
        try:
            self._computation = step()
        except StopIteration as end:
            self.proposal, self._computation = end.value, None


class Engine:
    """The engine of one study. Not thread-safe: its owner holds the study's lock."""

    def __init__(
        self,
        study: Study,
        trials: Iterable[Trial],
        measurements: Iterable[tuple[int, Measurement]],
        *,
        source: FinishedTrials | None = None,
        workers: Workers | None = None,
    ) -> None:
        """Load the study.

        Args:
            source: Reads finished trials again, so that the engine need not keep them, nor needs
                their measurements. None: the engine keeps all trials.
            workers: Processes that compute long proposals. None: this process computes them.
        """
        self._workers = workers
        self.study = study
        # A bound of what a reply takes with that study, for `StudyService.decide_parameter`.
        self.size_bound: tuple[Study, int] | None = None
        # What `prepare` has computed; None if the study has changed since.
        self.prepared: Proposal | None = None
        # How many trials have ended since the engine was created, pauses included; it only grows.
        self.results = 0
        self._source = source
        self._trials = TrialIndex(source)
        # Sets and keys of trials are their numbers.
        self._queued: list[int] = []  # ascending
        # The queued trials that were handed out before.
        self._expired: set[int] = set()
        self._reports: dict[int, Report] = {}
        # The last step of each running trial before its latest report.
        self._before: dict[int, int | None] = {}
        # The latest advice about each running trial: the curve, its length then, the advice.
        self._advice: dict[int, tuple[Curve, int, StopAdvice]] = {}
        self._running: set[int] = set()
        # What the model proposed for each running trial that names its parameters.
        self._plans: dict[int, Assignment] = {}
        # In a define-by-run study: the parameters that succeeded trials lack for unknown reasons.
        self._unexplained: frozenset[str] = frozenset()
        # The space whose conditions explain what imported trials lack.
        self._explained: Space | None = None
        self._has_imported = False
        self._promotion = promotion(study.spec)
        # Built with the first advice: the curves may be half a million measurements.
        self._pruner: Pruner | None = None
        self._new_samplers()
        for trial in self._trials.fill(trials):
            self._index(trial, None)
            self._show(trial)
        reports = self._reports
        for number, measurement in measurements:
            report = reports.get(number) or reports.setdefault(number, Report())
            report.add(measurement)

    @property
    def next_number(self) -> int:
        return self._trials.next_number

    @property
    def size(self) -> int:
        """Return how many trials the study has. May be called without the lock."""
        return len(self._trials)

    def warm_up(self) -> None:
        """Load the modules that the first proposal would wait for. Another thread may call it."""
        self._built_sampler.warm_up()

    def warm_up_cheaper(self) -> None:
        """Load the modules that `propose_cheaper` would wait for."""
        if self._built_cheaper is not None:
            self._built_cheaper.warm_up()

    @property
    def is_repeatable(self) -> bool:
        """Return whether a person set the seed, which asks for the same points each time."""
        return self.study.spec.algorithm.seed is not None

    @property
    def has_cheaper(self) -> bool:
        """Return whether `propose_cheaper` may be called.

        Its first points are random, and a study that learns from earlier ones has better ones.
        """
        if self.study.spec.learn_from and self.next_number < RANDOM_NUMBERS:
            return False
        return self._built_cheaper is not None

    @property
    def running(self) -> int:
        """Return how many trials are running."""
        return len(self._running)

    @property
    def is_prepared(self) -> bool:
        """Return whether a proposal is ready, or need not be: the algorithm proposes at once."""
        return self.prepared is not None or not registry.learns(self.study.spec.algorithm)

    def prepare(self) -> Draft | None:
        """Compute the next proposal of one trial ahead of need.

        It is valid until the study changes.

        Returns the draft if a worker process has to compute it; the caller then sets `prepared`.
        """
        if self.prepared is None:
            draft = self.draft(1)
            if draft.proposal is None:
                return draft
            self.prepared = draft.proposal
        return None

    def draft(self, count: int, *, to_run: bool = False) -> Draft:
        """Return a proposal whose long computations are left to the caller."""
        return Draft(
            self._proposing(count, to_run=to_run),
            first=self.next_number,
            queued=self._known_to_hand_out(count),
            basis=self._sampler,
            results=self.results,
        )

    def is_basis_of(self, draft: Draft) -> bool:
        """Return whether the draft comes from the present sampler, made for the present space."""
        return draft.basis is self._sampler

    def fits(self, draft: Draft) -> bool:
        """Return whether the draft can be handed out: trials have since only ended or reported."""
        same = self.is_basis_of(draft) and draft.first == self.next_number
        return same and self._known_to_hand_out(len(draft.queued)) == draft.queued

    def renumbered(self, draft: Draft) -> Proposal | None:
        """Return the proposal of a finished draft of one new trial, under the number now next.

        Returns None if it cannot be used: the space has changed, or a trial that began meanwhile
            has the same point.
        """
        proposal = draft.proposal
        if proposal is None or not self.is_basis_of(draft) or draft.queued:
            return None
        for number in range(draft.first, self.next_number):
            begun = self.open_trial(number)
            if begun is not None and any(begun.parameters == p.parameters for p in proposal.trials):
                return None
        number = self.next_number
        trials = tuple(
            replace(p, number=number, fidelity=self._first_fidelity(number))
            for p in proposal.trials
        )
        return Proposal(trials, proposal.exhausted)

    def propose_cheaper(self) -> Proposal:
        """Propose one new trial by a sampler that needs only milliseconds.

        It has seen the same trials.
        """
        assert self._cheaper is not None
        sampler = self._cheaper
        if isinstance(self._sampler, Distinct):
            sampler = self._sampler.beside(sampler)
        number = self.next_number
        points = sampler.propose([PointRequest(number, {})])
        value_of = self._value_of(to_run=False)
        trials = tuple(
            Proposed(
                number,
                point,
                False,
                value_of(point),
                registry.CHEAPER,
                self._first_fidelity(number),
            )
            for point in points
        )
        return Proposal(trials, exhausted=not trials)

    def propose(self, count: int, *, to_run: bool = False, expired_only: bool = False) -> Proposal:
        """Propose queued trials first, with missing parameters filled in, then new ones.

        Changes no later answer.

        Args:
            to_run: Propose no trial that takes over a known value.
            expired_only: Propose only trials that were handed out before and whose lease has
                expired.
        """
        if expired_only:
            again = [self.trial(number) for number in sorted(self._expired)[:count]]
            return Proposal(tuple(self._proposed_again(trial) for trial in again), exhausted=False)
        if count == 1 and not to_run and self.prepared is not None:
            return self.prepared
        return samplers.completed(self._proposing(count, to_run=to_run))

    def propose_paused(self, count: int) -> Proposal:
        """Propose paused trials that continue, for a client that begins no new ones.

        Changes no later answer.

        The proposal is `exhausted` if no paused trial will ever continue: none is promoted, and
        none runs that could change that.
        """
        promotion = self._promotion
        if promotion is None:
            return Proposal((), exhausted=True)
        numbers = sorted(self._expired)[:count]
        numbers += promotion.next(count - len(numbers))
        idle = not self._running and not self._queued
        if not numbers and idle and (last := promotion.last_resort()) is not None:
            numbers = [last]
        trials = tuple(self._proposed_again(self.trial(number)) for number in numbers)
        return Proposal(trials, exhausted=idle and not trials)

    def _proposed_again(self, trial: Trial) -> Proposed:
        """Propose a known trial: a paused one with its next fidelity, others with their own."""
        fidelity = trial.fidelity
        if trial.state is TrialState.PAUSED and self._promotion is not None:
            fidelity = self._promotion.following(trial)
        fidelity = fidelity or self._first_fidelity(trial.number)
        return Proposed(
            trial.number, trial.parameters, queued=True, fidelity=fidelity, parent=trial.parent
        )

    def _first_fidelity(self, number: int) -> float | None:
        return None if self._promotion is None else self._promotion.first(number)

    def pauses(self, trial: Trial) -> bool:
        """Return whether the trial pauses on success: it runs below the largest fidelity."""
        return self._promotion is not None and not self._promotion.is_last(trial.fidelity)

    def waits_for(self, trial: Trial) -> str:
        """Return the reason of a paused trial: how far it has run, and what it waits for."""
        assert self._promotion is not None
        return self._promotion.waits_for(trial)

    @property
    def has_queued(self) -> bool:
        """Return whether known trials are handed out before any new one."""
        return bool(self._queued) or (self._promotion is not None and bool(self._promotion.next(1)))

    def _known_to_hand_out(self, count: int) -> list[Trial]:
        """Return up to `count` known trials: queued ones, then paused ones that may continue."""
        numbers = self._queued[:count]
        if self._promotion is not None:
            numbers = numbers + self._promotion.next(count - len(numbers))
        return [self.trial(number) for number in numbers]

    def plan(self, number: int, point: Assignment) -> None:
        """Take the point that a define-by-run trial was proposed, before the trial is put.

        It is the value of each parameter that the trial meets, unless that has another range.
        """
        self._plans[number] = point

    def refuse_another_kind(self, parameter: Parameter) -> None:
        """Raise InvalidArgument if a known parameter differs from this one in more than range."""
        if parameter.name in self.study.spec.space.by_name:
            joined(self.study.spec.space, parameter.name, parameter.domain)

    def met(
        self, trial: Trial, name: str, domain: Domain, given: Value | NoMember = NO_MEMBER
    ) -> Met:
        """Return the trial with a value of the parameter, given what the trial has already.

        Changes nothing. given: the value that the client asks for.

        Raises:
            InvalidArgument: the parameter differs from that of earlier trials in more than range,
                or cannot have a value near the one that was given or enqueued.
        """
        study = self.study
        space = joined(study.spec.space, name, domain)
        is_new = len(space.parameters) > len(study.spec.space.parameters)
        joining = space.parameters[-1] if is_new else None
        if not space.active(trial.parameters, name):
            # Only that it has a value counts.
            having = replace(trial, parameters={**trial.parameters, name: ""})
            space, joining = conditioned(space, self._evidence(having)), None
        if space != study.spec.space:
            study = replace(study, spec=replace(study.spec, space=space))
        value, rest = self._decided(study, trial, name, domain, given)
        having = replace(trial, parameters={**trial.parameters, name: value})
        return Met(having, study, rest, joining)

    def _decided(
        self, study: Study, trial: Trial, name: str, domain: Domain, given: Value | NoMember
    ) -> tuple[Value, Assignment]:
        """Return a value for the parameter, and the plan from then on."""
        plan = self._plans.get(trial.number, {})
        chosen = json.loads(trial.labels.get(ENQUEUED, "{}"))
        planned = json.loads(trial.labels.get(PLANNED, "{}"))
        if given is not NO_MEMBER:
            chosen.setdefault(name, given)
            planned.pop(name, None)
        told = {name: planned[name][0]} if name in planned else {}
        if name in chosen and name not in told:
            return nearest(name, domain, chosen[name]), plan
        for known in (told, plan):
            if name in known and (value := domain.canonical(known[name])) is not NO_MEMBER:
                return value, plan
        if study is self.study:
            sampler = self._cheaper or self._sampler
            fixed = study.spec.space.canonical(trial.parameters)
            request = PointRequest(trial.number, fixed, again=len(fixed) + 1)
            plan = sampler.propose([request])[0]
            if name in plan and (value := domain.canonical(plan[name])) is not NO_MEMBER:
                return value, plan
        # New to the study, or in this trial of another range.
        source = generator(self.study.seed, trial.number, f"parameter {name}")
        return draw(domain, source), plan

    def decide(self, met: Met) -> None:
        """Take a parameter that a trial has met, after that was stored."""
        self._plans[met.trial.number] = met.rest
        self._trials.put(met.trial)
        if met.study is not self.study:
            self.prepared = None
            self.study = met.study
            # Rebuilt once, for the next proposal: a first trial meets many parameters in a row.
            self._is_outdated = True
        self._show(met.trial)

    def explained(self, trial: Trial) -> Study:
        """Return the study with conditions that also explain what a succeeded trial did not meet.

        It is the engine's own if they do already, or if nothing explains it.
        """
        study = self.study
        space = study.spec.space
        surprising = {p.name for p in space.missing(trial.parameters)} - self._unexplained
        if not surprising and (not self._has_imported or space == self._explained):
            return study
        space = self._explained = conditioned(space, self._evidence(trial))
        still = {p.name for p in space.missing(trial.parameters)}
        self._unexplained = self._unexplained | (still & surprising)
        if space == study.spec.space:
            return study
        return replace(study, spec=replace(study.spec, space=space))

    def _evidence(self, trial: Trial) -> Evidence:
        """Return the points of all trials, with this version of one.

        Imported points outside of the space are left out.
        """
        domains = {p.name: p.domain for p in self.study.spec.space.parameters}

        def counts(other: Trial) -> bool:
            return other.number != trial.number and (
                IMPORTED_FROM not in other.labels
                or all(
                    domains[name].canonical(value) is not NO_MEMBER
                    for name, value in other.parameters.items()
                    if name in domains
                )
            )

        return Evidence.of([*filter(counts, self._trials.all()), trial])

    def _value_of(self, *, to_run: bool) -> Callable[[Assignment], int | None]:
        """Return a function that returns the trial whose value a point takes over."""
        if isinstance(self._sampler, Distinct) and not to_run:
            return self._sampler.value_of
        return lambda point: None

    def _proposing(self, count: int, *, to_run: bool) -> Computed[Proposal]:
        space = self.study.spec.space
        chosen = self._known_to_hand_out(count)
        if not space.parameters:
            return self._without_parameters(chosen, count)
        fixed = {t.number: self._fixed(t) for t in chosen}
        new = range(self.next_number, self.next_number + count - len(chosen))
        partial = [
            PointRequest(number, part, new=True)
            for number, part in fixed.items()
            if space.missing(part)
        ]
        # Last those that may find the space exhausted.
        partial.sort(key=lambda request: not request.fixed)
        requests = [*partial, *(PointRequest(number, {}, new=to_run) for number in new)]
        points = (yield from self._sampler.steps(requests)) if requests else []
        points_by_number = dict(zip([w.number for w in partial] + list(new), points, strict=False))
        parents = self._sampler.parents(requests)
        proposed = [
            replace(
                self._proposed_again(trial),
                parameters=points_by_number.get(trial.number, fixed[trial.number]),
            )
            for trial in chosen
            if trial.number in points_by_number or not space.missing(fixed[trial.number])
        ]
        value_of = self._value_of(to_run=to_run)
        proposed += [
            Proposed(
                number,
                points_by_number[number],
                False,
                value_of(points_by_number[number]),
                fidelity=self._first_fidelity(number),
                parent=parents.get(number),
            )
            for number in new
            if number in points_by_number
        ]
        fewer, waits = len(proposed) < count, registry.waits(self.study.spec.algorithm)
        return Proposal(tuple(proposed), exhausted=fewer and not waits, waiting=fewer and waits)

    def _without_parameters(self, chosen: Sequence[Trial], count: int) -> Proposal:
        """Propose trials of a define-by-run study that has not met a parameter yet."""
        first, new = self.next_number, count - len(chosen)
        proposed = [self._proposed_again(trial) for trial in chosen]
        proposed += [Proposed(number, {}, False) for number in range(first, first + new)]
        return Proposal(tuple(proposed), exhausted=False)

    def _fixed(self, trial: Trial) -> Assignment:
        """Return the values that a person chose for a queued trial, as far as the space has them.

        Those of a define-by-run trial that was handed out before are what it has met.
        """
        space = self.study.spec.space
        if ENQUEUED not in trial.labels:
            return space.canonical(trial.parameters)
        chosen = json.loads(trial.labels[ENQUEUED]) | dict(trial.parameters)
        members = {
            p.name: chosen[p.name]
            for p in space.parameters
            if p.name in chosen and p.domain.canonical(chosen[p.name]) is not NO_MEMBER
        }
        return space.canonical(space.restricted(members))

    def put(self, trial: Trial) -> None:
        """Take a new trial, or a new version of a known one.

        A deleted trial is passed as a cancelled one.
        """
        self.prepared = None
        old = self._trials.state(trial.number)
        self._trials.put(trial)
        self._index(trial, old)
        if old is not None and old.finished:
            # Usually only its labels have changed, on which nothing depends.
            if old is not trial.state:
                self._recompute()
            return
        self._show(trial)
        if trial.finished and self._pruner is not None:
            self._show_curve(self._pruner, trial.number, trial.state, trial.value)
        if trial.finished and self._source is not None:
            self._reports.pop(trial.number, None)

    def take_batch(self, batch: TrialBatch) -> None:
        """Take new trials that have ended, after they were stored: as `put` for each, in less time.

        Only for a study without a fidelity.
        """
        self.prepared = None
        self._trials.put_batch(batch)
        self.results += len(batch)
        if IMPORTED_FROM in batch.labels:
            for trial in batch.trials():
                self._show(trial)
            return
        self._sampler.put_batch(batch)
        if self._cheaper is not None:
            self._cheaper.put_batch(batch)

    def trial(self, number: int) -> Trial:
        trial = self._trials.get(number)
        if trial is None:
            numbers = f"0 to {self.next_number - 1}" if self.next_number else "none yet"
            raise NotFound(f"{self.study.name} has no trial {number}; there are {numbers}")
        return trial

    def open_trial(self, number: int) -> Trial | None:
        """Return the trial if it has not finished, else None. Does not read the store."""
        state = self._trials.state(number)
        return None if state is None or state.finished else self._trials.get(number)

    def trials(self) -> Iterator[Trial]:
        """Return all trials in the order of their numbers."""
        return self._trials.all()

    def trials_of_request(self, request_id: str) -> tuple[Trial, ...]:
        return self._trials.of_request(request_id)

    def fresh(self, number: int, measurements: Sequence[Measurement]) -> tuple[Measurement, ...]:
        """Return the measurements that are new or have another value.

        Of equal keys, the last one counts.
        """
        return self._report(number).fresh(measurements)

    def measure(self, number: int, measurements: Sequence[Measurement]) -> None:
        """Take measurements that have been stored."""
        if not measurements:
            return
        state = self.trial(number).state
        report = self._reports.setdefault(number, Report())
        attempt, curve = report.newest_attempt, self._curve(number)
        last = curve.steps[-1] if curve is not None else None
        report.add_all(measurements)
        if not state.finished:
            self._before[number] = last if report.newest_attempt == attempt else None
            if self._pruner is not None:
                self._show_curve(self._pruner, number, state, None)
        else:
            # Finished curves rarely change, so read all of them again.
            self._drop_pruner()

    def take_in(self, trial: Trial, measurements: Sequence[Measurement]) -> None:
        """Take in a finished new trial with all its measurements, after both were stored."""
        if measurements:
            self._reports[trial.number] = report = Report()
            report.add_all(measurements)
        self.put(trial)

    def value_of(
        self,
        number: int,
        further: Sequence[Measurement] = (),
        *,
        objective: Objective | None = None,
    ) -> tuple[float | None, int | None]:
        """Return the trial's value by the objective's rule, and the value's step.

        The value is None if it is not finite; the step is then that of the last measurement.

        Args:
            further: Measurements that are not stored yet, which count as well.
            objective: The first one by default.
        """
        objective = objective or self.study.spec.objective
        curve = self._report(number).newest_with(further, objective.metric)
        if curve is None:
            return None, None
        last, step = curve.values[-1], curve.steps[-1]
        if (extreme := objective.extreme) is not None:
            best = curve.best(extreme)
            return best, step if best is None else curve.steps[curve.values.index(best)]
        return (last if math.isfinite(last) else None), step

    def constraint_value(
        self, number: int, constraint: Constraint, further: Sequence[Measurement]
    ) -> float | None:
        """Return the last value of the constraint's metric, None when that is not finite."""
        curve = self._report(number).newest_with(further, constraint.metric)
        return curve.values[-1] if curve is not None and math.isfinite(curve.values[-1]) else None

    def last_step(self, number: int, further: Sequence[Measurement]) -> int | None:
        """Return the last step of the objective's metric.

        `further` are measurements that are not stored yet.
        """
        curve = self._report(number).newest_with(further, self.study.spec.objective.metric)
        return None if curve is None else curve.steps[-1]

    def advise(self, number: int) -> StopAdvice:
        """Return whether a running trial should stop. Called after each of its reports."""
        curve, spec = self._curve(number), self.study.spec
        if spec.pruning is None or (spec.fidelity is not None and spec.pruning.name in PROMOTING):
            return StopAdvice(False)
        if curve is None or self.trial(number).state is not TrialState.RUNNING:
            return StopAdvice(False)
        cached = self._advice.get(number)
        if cached is not None and cached[0] is curve and cached[1] == len(curve.steps):
            return cached[2]
        previous = curve.steps[-2] if len(curve.steps) > 1 else None
        before = self._before.get(number, previous)
        if self._pruner is None:
            pruner = pruners.new_pruner(spec.pruning, spec.objective)
            self._show_curves(pruner)
            self._pruner = pruner  # once it has all of them
        advice = self._pruner.judge(TrialCurve(number, TrialState.RUNNING, curve), before=before)
        self._advice[number] = curve, len(curve.steps), advice
        return advice

    def update_study(self, study: Study) -> None:
        self.prepared = None
        self.study = study
        self._recompute()

    def reopen(self, trials: Sequence[Trial]) -> None:
        """Take finished trials that run again, after that was stored.

        Their measurements stay known.
        """
        self.prepared = None
        for trial in trials:
            if self._source is not None and trial.number not in self._reports:
                self._reports[trial.number] = self._source.report(trial.number)
            self._trials.put(trial)
            self._running.add(trial.number)
        # Once for all of them, because it reads every trial.
        self._recompute()

    def _index(self, trial: Trial, old: TrialState | None) -> None:
        number = trial.number
        if old is TrialState.QUEUED:
            del self._queued[bisect_left(self._queued, number)]
            self._expired.discard(number)
        if trial.state is TrialState.QUEUED:
            insort(self._queued, number)
            if trial.expired:
                self._expired.add(number)
        if trial.state is TrialState.RUNNING:
            self._running.add(number)
        else:
            self._running.discard(number)
        if self._promotion is not None:
            self._promotion.put(trial)
        if trial.finished or trial.state is TrialState.PAUSED:
            self.results += old is None or old in (TrialState.QUEUED, TrialState.RUNNING)
            self._before.pop(number, None)
            self._advice.pop(number, None)

    def _curve(self, number: int) -> Curve | None:
        """Return the trial's curve: the values of the objective's metric in its newest attempt."""
        return self._report(number).newest(self.study.spec.objective.metric)

    def _report(self, number: int) -> Report:
        """Return what the trial has reported. Do not change it, because it may be a copy."""
        report = self._reports.get(number)
        if report is not None:
            return report
        state = self._trials.state(number)
        if self._source is not None and state is not None and state.finished:
            return self._source.report(number)
        return Report()

    def _recompute(self) -> None:
        """Compute again what depends on all trials, after a change too rare to track in steps."""
        self._new_samplers()
        self._promotion = promotion(self.study.spec)
        for trial in self._trials.all():
            self._show(trial)
            if self._promotion is not None:
                self._promotion.put(trial)
        self._drop_pruner()

    def _show(self, trial: Trial) -> None:
        """Show the trial to the samplers.

        An imported trial outside of the space is not shown until the space has grown to include it.
        Otherwise the best values could lie where nothing can be proposed.
        """
        if trial.finished:
            self._plans.pop(trial.number, None)
        elif plan := self._plans.get(trial.number):
            trial = replace(trial, parameters={**plan, **trial.parameters})
        imported = IMPORTED_FROM in trial.labels
        self._has_imported |= imported
        if self._is_outdated:
            return
        space = self.study.spec.space
        if imported and self.study.spec.define_by_run:
            known = {n: value for n, value in trial.parameters.items() if n in space.by_name}
            trial = replace(trial, parameters=known)
        if not imported or not space.point_problems(trial.parameters, partial=False):
            self._sampler.put(trial)
            if self._cheaper is not None:
                self._cheaper.put(trial)

    def _new_samplers(self) -> None:
        spec, seed = self.study.spec, self.study.seed
        self._built_sampler: Sampler = samplers.new_sampler(spec, seed, self._workers)
        self._built_cheaper = (
            None if self._workers is None else samplers.cheaper_sampler(spec, seed)
        )
        self._is_outdated = False

    @property
    def _sampler(self) -> Sampler:
        if self._is_outdated:
            self._recompute()
        return self._built_sampler

    @property
    def _cheaper(self) -> Sampler | None:
        if self._is_outdated:
            self._recompute()
        return self._built_cheaper

    def _drop_pruner(self) -> None:
        self._advice.clear()
        self._pruner = None

    def _show_curves(self, pruner: Pruner) -> None:
        if self._source is not None:
            for finished in self._source.curves():
                pruner.put(finished)
        else:
            for number in self._trials.in_states(TrialState.SUCCEEDED, TrialState.PRUNED):
                trial = self.trial(number)
                self._show_curve(pruner, number, trial.state, trial.value)
        for number in self._trials.in_states(
            TrialState.QUEUED, TrialState.RUNNING, TrialState.PAUSED
        ):
            self._show_curve(pruner, number, TrialState.RUNNING, None)

    def _show_curve(
        self, pruner: Pruner, number: int, state: TrialState, value: float | None
    ) -> None:
        # A report that was dropped has been shown before.
        report = self._reports.get(number)
        curve = None if report is None else report.newest(self.study.spec.objective.metric)
        if curve is not None:
            pruner.put(TrialCurve(number, state, curve, value))
