"""GP: random search first, then Gaussian processes over a bounded window of the study.

This part runs in the server. It decides which trials the model is shown, and when the model is
fitted again. The model itself runs in a worker process: `gp_branches`. The trials that it is fitted
to follow from the numbers of the trials alone, never from the order of calls, so an engine that was
rebuilt from the store proposes what the lost one would have. Imports neither NumPy nor Optuna.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from suggest.proposal import PointRequest, Steps
from suggest.samplers.belief import FirstValues
from suggest.samplers.family import MOST_MODELED, DrawSettings, Family
from suggest.samplers.history import BARRED_STATES, ModelSampler
from suggest.samplers.running import LIARS, RunningTrials
from suggest.samplers.sampler import Sampler
from suggest.samplers.uniform import BITS, RandomSampler, at_fraction
from suggest.settings import setting
from suggest.space import Choice, Value
from suggest.study import Criteria, StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import ModelSetup, Workers


@dataclass(frozen=True, slots=True)
class GpSettings(DrawSettings):
    startup_trials: int = setting(
        0,
        "finished trials before the model takes over from random search; 0: parameters + 1, from 8 "
        "to 12",
        min=0,
    )
    window: int = setting(
        200,
        "finished trials the model is fitted to: half the best, half the most recent",
        min=20,
        max=1000,
    )


LEAST_STARTUP, MOST_STARTUP = 8, 12
HALF = 1 << (BITS - 1)
# From this many numeric parameters on, the middle of the space is usually nearer to the optimum
# than each of ten random points.
CENTERED = 10
MODEL = "suggest.samplers.gp_branches:BranchesModel"
# The model is shown this many failed and infeasible trials, the most recent ones.
BARRED = 100
# The most trials between two fits.
MOST_BETWEEN = 50
# Trials kept beyond a window: `fitted_below` may fall by this many when an old trial runs again.
SPARE = 2 * LIARS


class GpSampler(ModelSampler):
    """The sampler `gp`.

    workers: None: this process computes the model.
    first: proposes until the model does; None: random search.
    """

    def __init__(
        self,
        spec: StudySpec,
        seed: int,
        settings: GpSettings,
        *,
        workers: Workers | None = None,
        first: Sampler | None = None,
    ) -> None:
        self._trials = LearnedTrials(spec.criteria, settings.window)
        super().__init__(ModelSetup(MODEL, spec, seed, settings), self._trials, workers=workers)
        self._space = spec.space
        self._first_values = FirstValues(spec.prior, spec.space, seed)
        self._learns_from_others = bool(spec.learn_from)
        self._first = first or RandomSampler(spec, seed, settings)
        enough = min(max(len(spec.space.parameters) + 1, LEAST_STARTUP), MOST_STARTUP)
        self._startup = settings.startup_trials or enough

    def steps(self, wanted: Sequence[PointRequest], *, beside: Sequence[Trial] = ()) -> Steps:
        if self._trials.count < self._startup and not self._learns_from_others:
            return self._first.propose([self._begun(one) for one in wanted])
        return (yield from super().steps(wanted, beside=beside))

    def _begun(self, one: PointRequest) -> PointRequest:
        """Return the request with the values that a person believes in.

        In the study's first trial, other numbers are at their middles if there are many numbers.
        """
        values = {**self._middles(one), **self._first_values.of(one)}
        return replace(one, fixed={**values, **one.fixed}) if values else one

    def _middles(self, one: PointRequest) -> dict[str, Value]:
        numbers = [
            p for p in self._space.parameters if not isinstance(p.domain, Choice) and not p.when
        ]
        if one.number or one.again or len(numbers) < CENTERED:
            return {}
        return {p.name: at_fraction(p.domain, HALF) for p in numbers}


class LearnedTrials:
    """The trials of a study that a model can learn from, and the choice of those it is shown."""

    def __init__(self, criteria: Criteria, window: int) -> None:
        self.count = 0  # also of those that were forgotten
        self._criteria = criteria
        self._sign = criteria.objectives[0].direction.sign
        self._window = window
        self._taught: dict[int, Trial] = {}
        self._numbers: list[int] = []  # of these trials, ascending
        # (violation, first loss, number) of these trials, ascending.
        self._ranked: list[tuple[float, float, int]] = []
        self._front: list[Trial] = []  # of several objectives, by number
        self._running = RunningTrials()
        # Failed and infeasible trials, and their numbers, ascending.
        self._others: dict[int, Trial] = {}
        self._barred: list[int] = []

    def put(self, trial: Trial) -> None:
        number = trial.number
        if self._running.put(trial):
            return
        if teaches(trial, self._criteria):
            if number not in self._taught:
                insort(self._numbers, number)
                insort(
                    self._ranked,
                    (self._criteria.violation(trial), self._sign * (trial.value or 0.0), number),
                )
                self.count += 1
            self._taught[number] = trial
            if len(self._criteria.objectives) > 1:
                self._front = self._criteria.best([*self._front, trial])
            if len(self._numbers) > 2 * (self._window + SPARE):
                self._forget()
        elif trial.state in BARRED_STATES and number not in self._others:
            insort(self._barred, number)
            self._others[number] = trial
            if len(self._barred) > BARRED:
                del self._others[self._barred.pop(0)]

    def _best(self, below: int) -> Iterator[int]:
        """Return the numbers of the Pareto front, latest first, or else of the ranked trials."""
        if self._front:
            return (trial.number for trial in reversed(self._front) if trial.number < below)
        return (number for *_, number in self._ranked if number < below)

    def _forget(self) -> None:
        """Forget trials that are neither recent nor among the best.

        No later trial can change that.
        """
        kept = {number for *_, number in self._ranked[: self._window // 2 + SPARE]}
        kept.update(trial.number for trial in self._front)
        kept.update(self._numbers[-self._window - SPARE :])
        self._taught = {number: trial for number, trial in self._taught.items() if number in kept}
        self._numbers = sorted(kept)
        self._ranked = [ranked for ranked in self._ranked if ranked[-1] in kept]

    def running(self) -> list[Trial]:
        return self._running.trials

    def learned(self) -> list[Trial]:
        """Return the trials that the model is shown, by number.

        These are the best and the most recent trials below `fitted_below`, and all later ones.
        """
        numbers = [*self._numbers[-1:], *self._barred[-1:]]
        below = fitted_below(max(numbers, default=-1), self._running.numbers)
        end = bisect_left(self._numbers, below)
        chosen = set(islice(self._best(below), self._window // 2))
        start = end
        # Some of the recent ones are among the best.
        while start and len(chosen) < self._window:
            start, stop = max(0, start - (self._window - len(chosen))), start
            chosen.update(self._numbers[start:stop])
        chosen.update(self._numbers[end:])
        found = [self._taught[n] for n in chosen] + list(self._others.values())
        return sorted(found, key=lambda t: t.number)


def teaches(trial: Trial, criteria: Criteria) -> bool:
    """Return whether the trial succeeded, or was pruned, with a finite value of each objective."""
    if trial.state is not TrialState.SUCCEEDED and trial.state is not TrialState.PRUNED:
        return False
    return criteria.losses(trial) is not None


def fitted_below(last: int, running: Sequence[int]) -> int:
    """Return the number below which trials decide the model's parameters.

    It grows by a tenth at a time. It waits for running trials with lower numbers, because each that
    finished later would change what the model is fitted to, but not for stragglers.

    last: the number of the latest finished trial.
    """
    end = last + 1
    settled = min([*running, end])
    return _milestone(max(settled, end * 4 // 5, end - LIARS))


def _milestone(count: int) -> int:
    """Return the largest of 0, 1, ..., 10, 12, 14, ... that is at most `count`."""
    here = 0
    while (after := here + min(max(here // 10, 1), MOST_BETWEEN)) <= count:
        here = after
    return here


ENTRIES = (
    Family(
        "gp",
        "Models values by a Gaussian process, for studies of up to some hundreds of trials.",
        GpSettings,
        GpSampler,
        most_objectives=MOST_MODELED,
    ),
)
