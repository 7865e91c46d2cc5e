"""TPE: random search first, then a model of where good points are dense,
over a bounded window of the study.

The parameters are drawn along the tree of conditions, from the root: parameters with the same
conditions form a group, which is drawn together (jointly if `multivariate`) once its conditions are
decided. `tpe` computes Optuna's estimator itself; `optuna:tpe` calls Optuna's own `TPESampler`.
Randomness depends on the trial only, so a crash loses nothing. Importing this module loads neither
NumPy nor Optuna; the first proposal of the model loads them, or `warm_up`.
"""

from __future__ import annotations

import math
from bisect import insort
from collections import deque
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nsmallest

from suggest.proposal import PointRequest, Steps
from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.history import BARRED_STATES, ModelSampler
from suggest.samplers.running import LIARS, RunningTrials
from suggest.samplers.sampler import Sampler
from suggest.samplers.uniform import RandomSampler
from suggest.settings import setting
from suggest.space import Assignment, Parameter, Space, Value
from suggest.study import StudySpec
from suggest.trial import Trial, TrialBatch, TrialState
from suggest.workers import Model, ModelSetup, Workers


@dataclass(frozen=True, slots=True)
class TpeSettings(DrawSettings):
    startup_trials: int = setting(
        10, "finished trials before the model takes over from random search", min=0
    )
    window: int = setting(
        200, "finished trials the model sees: the best 25 and the most recent", min=50, max=1000
    )
    candidates: int = setting(
        24, "points drawn for each trial; the most promising one is used", min=1, max=1000
    )
    multivariate: bool = setting(True, "model parameters jointly, not one by one")
    constant_liar: bool = setting(True, "avoid the points of running trials")


@dataclass(frozen=True, slots=True)
class OwnSettings(TpeSettings):
    """Settings that Optuna's sampler does not have. The defaults are Optuna's behavior."""

    good_share: float = setting(
        0.1, "share of the finished trials that count as good ones, 25 at most", min=0.01, max=0.5
    )
    sharpness: float = setting(
        1.0,
        "how fast the smallest kernel width decreases with the number of trials",
        min=0.1,
        max=10.0,
    )


OWN_MODEL = "suggest.samplers.tpe_model:TpeModel"
OPTUNAS_MODEL = "suggest.samplers.optuna_model:OptunaTpeModel"
# densities; a proposal that needs more takes over 20 ms, and a worker process computes it.
SHORT = 2_000_000


class TpeSampler(ModelSampler):
    """The sampler of `tpe` and `optuna:tpe`.

    `model` is a `ModelSetup.path`. Without `workers` it computes here.

    first: proposes until the model does; None for random search.
    """

    def __init__(
        self,
        spec: StudySpec,
        seed: int,
        settings: TpeSettings,
        *,
        model: str,
        workers: Workers | None,
        first: Sampler | None = None,
    ) -> None:
        self._is_optunas = model == OPTUNAS_MODEL
        self._window = Window(spec, settings.window, avoids_failures=not self._is_optunas)
        setup = ModelSetup(model, spec, seed, settings)
        super().__init__(setup, self._window, workers=workers)
        self._first = first or RandomSampler(spec, seed, settings)
        self._settings = settings
        self._here: Model | None = None

    def put_batch(self, batch: TrialBatch) -> None:
        self._window.put_batch(batch)

    def steps(self, wanted: Sequence[PointRequest], *, beside: Sequence[Trial] = ()) -> Steps:
        if self._window.finished < self._settings.startup_trials:
            return self._first.propose(wanted)
        return (yield from super().steps(wanted, beside=beside))

    def warm_up(self) -> None:
        if self._is_optunas:
            super().warm_up()
        else:
            self._setup.load()

    def _model_for(self, count: int) -> Model:
        """Return the model to ask. Both propose the same points and differ in time only."""
        if self._is_optunas or self._workers is None or self._densities(count) > SHORT:
            return super()._model_for(count)
        if self._here is None:
            self._here = self._setup.model()
        return self._here

    def _densities(self, count: int) -> int:
        """Return an upper bound of the one-dimensional densities that so many points need."""
        trials = min(self._window.finished, self._settings.window) + LIARS
        parameters = len(self._setup.spec.space.parameters)
        return count * self._settings.candidates * trials * parameters


def tpe(
    spec: StudySpec,
    seed: int,
    settings: OwnSettings,
    *,
    workers: Workers | None = None,
    first: Sampler | None = None,
) -> TpeSampler:
    return TpeSampler(spec, seed, settings, model=OWN_MODEL, workers=workers, first=first)


def optuna_tpe(
    spec: StudySpec, seed: int, settings: TpeSettings, *, workers: Workers | None = None
) -> TpeSampler:
    return TpeSampler(spec, seed, settings, model=OPTUNAS_MODEL, workers=workers)


def groups(space: Space) -> Iterator[list[Parameter]]:
    """Yield groups of parameters with the same conditions, parents before children."""
    groups: dict[str, list[Parameter]] = {}
    for parameter in space.ordered:
        # By repr, because True == 1.
        groups.setdefault(repr(parameter.when), []).append(parameter)
    yield from groups.values()


def decided(
    group: Iterable[Parameter], fixed: Assignment, modeled: Container[str]
) -> tuple[dict[str, Value], list[str]]:
    """Return the values of a group that a request or a domain fixes, and the other parameters.

    modeled: the parameters with more than one value.
    """
    values: dict[str, Value] = {}
    free: list[str] = []
    for parameter in group:
        name = parameter.name
        if name in fixed:
            values[name] = fixed[name]
        elif name in modeled:
            free.append(name)
        else:
            values[name] = parameter.domain.at(0)
    return values, free


# The most trials that Optuna's gamma counts as good.
BEST = 25


class Window:
    """The trials that a model learns from: the best and the most recent.

    With several objectives, the best are the most recent BEST trials of the Pareto front or, while
    no trial satisfies the constraints, those that break them least.

    avoids_failures: failed and infeasible trials count as running ones, whose points are avoided.
        Optuna ignores them, and then a choice with which every trial fails looks new, and so good.
    """

    def __init__(self, spec: StudySpec, size: int, *, avoids_failures: bool = False) -> None:
        # How many trials there were to learn from, including those that left the window.
        self.finished = 0
        self._criteria = spec.criteria
        self._sign = spec.objective.direction.sign
        self._size = size
        self._finished: dict[int, Trial] = {}
        self._numbers: list[int] = []
        # (violation, loss, number) of the BEST lowest.
        self._succeeded: list[tuple[float, float, int]] = []
        self._front: list[Trial] = []  # with several objectives, by number
        # (-step, loss, number): Optuna's order of pruned trials.
        self._pruned: list[tuple[float, float, int]] = []
        self._running = RunningTrials()
        self._avoids_failures = avoids_failures
        self._failures: list[Trial] = []  # by number

    def put(self, trial: Trial) -> None:
        number = trial.number
        # It may run again.
        self._failures = [failed for failed in self._failures if failed.number != number]
        if self._running.put(trial):
            return
        if self._avoids_failures and trial.state in BARRED_STATES:
            insort(self._failures, trial, key=lambda t: t.number)
            del self._failures[: -2 * LIARS]
        if self._teaches(trial):
            self.finished += 1
            self._finished[number] = trial
            insort(self._numbers, number)
            self._rank(trial)
            if len(self._numbers) > 2 * self._size:
                self._forget()

    def put_batch(self, batch: TrialBatch) -> None:
        """As `put` for each trial.

        Looks only at those that stay in the window if one value orders the trials.
        """
        succeeded: Sequence[int] = range(len(batch))
        values = batch.values
        if batch.states.count(TrialState.SUCCEEDED) < len(batch):
            succeeded = [
                place for place, state in enumerate(batch.states) if state is TrialState.SUCCEEDED
            ]
            values = [values[place] for place in succeeded]
        if not self._criteria.is_plain or TrialState.PRUNED in batch.states or None in values:
            for trial in batch.trials():
                self.put(trial)
            return
        losses = [self._sign * value for value in values if value is not None]
        limit = max(nsmallest(BEST, losses), default=0.0)
        good = sorted(
            (loss, place) for loss, place in zip(losses, succeeded, strict=True) if loss <= limit
        )
        chosen = sorted({*(place for _, place in good[:BEST]), *succeeded[-self._size :]})
        failed = (place for place, state in enumerate(batch.states) if state in BARRED_STATES)
        for place in sorted((*chosen, *deque(failed, LIARS))):
            self.put(batch.result(place))
        self.finished += len(succeeded) - len(chosen)

    def _rank(self, trial: Trial) -> None:
        if trial.state is TrialState.PRUNED:
            if trial.value is None or trial.step is None:
                return
            insort(self._pruned, (-trial.step, self._sign * trial.value, trial.number))
            del self._pruned[BEST:]
        elif len(self._criteria.objectives) > 1 and self._criteria.violation(trial) == 0:
            self._front = self._criteria.best([*self._front, trial])
        elif trial.value is not None:
            insort(
                self._succeeded,
                (self._criteria.violation(trial), self._sign * trial.value, trial.number),
            )
            del self._succeeded[BEST:]

    def _forget(self) -> None:
        """Forget trials that are neither recent nor among the best.

        No later trial can change that.
        """
        ranked = {number for *_, number in self._succeeded} | {
            number for *_, number in self._pruned
        }
        ranked.update(trial.number for trial in self._front)
        for number in self._numbers[: -self._size]:
            if number not in ranked:
                del self._finished[number]
        self._numbers = sorted(ranked.union(self._numbers[-self._size :]))

    def learned(self) -> Iterator[Trial]:
        """Yield finished trials in the order of their numbers, as many as fit into the window."""
        ranked = [trial.number for trial in reversed(self._front)]
        ranked += [number for *_, number in self._succeeded] + [
            number for *_, number in self._pruned
        ]
        chosen = set(ranked[:BEST])
        earliest = len(self._numbers)
        # Some of the recent ones are among the best.
        while earliest and len(chosen) < self._size:
            latest, earliest = earliest, max(0, earliest - (self._size - len(chosen)))
            chosen.update(self._numbers[earliest:latest])
        return map(self._finished.__getitem__, sorted(chosen))

    def running(self) -> list[Trial]:
        """Return the most recent trials to avoid in the order of their numbers."""
        every = [*self._failures, *self._running.trials]
        return sorted(every, key=lambda trial: trial.number)[-LIARS:]

    def _teaches(self, trial: Trial) -> bool:
        """Return whether models learn from the trial: succeeded with finite values, or pruned."""
        if trial.state is TrialState.PRUNED:
            return trial.value is None or math.isfinite(trial.value)
        return trial.state is TrialState.SUCCEEDED and self._criteria.losses(trial) is not None


ENTRIES = (
    Family(
        "tpe",
        "Models where good points are dense, from finished trials (Tree-structured Parzen "
        "Estimator).",
        OwnSettings,
        tpe,
    ),
    Family(
        "optuna:tpe", "Optuna's own TPESampler, which `tpe` reimplements.", TpeSettings, optuna_tpe
    ),
)
