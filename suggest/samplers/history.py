"""A sampler that asks a model, and the trials that a model is shown.

The packages that a model needs are checked when a study is created (`registry`),
and again before the first proposal, because the study may have moved to another
server. This module does not import NumPy.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from suggest.errors import FailedPrecondition
from suggest.proposal import PointRequest, Steps
from suggest.samplers.family import missing, missing_message
from suggest.samplers.sampler import SteppedSampler
from suggest.study import Criteria
from suggest.trial import Trial, TrialState
from suggest.workers import Model, ModelSetup, Workers, ask_model, model_of

# The states of trials that ended without a value; models avoid their points.
BARRED_STATES = (TrialState.FAILED, TrialState.INFEASIBLE)


class ShownTrials(Protocol):
    """The trials that a model is shown."""

    def put(self, trial: Trial) -> None: ...

    def learned(self) -> Iterable[Trial]:
        """Return finished trials in the order of their numbers."""
        ...

    def running(self) -> Iterable[Trial]:
        """Return running trials in the order of their numbers."""
        ...


class ModelSampler(SteppedSampler):
    """A sampler that asks a model.

    `requires` are package names. Without `workers`, the model runs in this process.
    """

    def __init__(
        self,
        setup: ModelSetup,
        shown: ShownTrials,
        *,
        requires: Sequence[str] = (),
        workers: Workers | None = None,
    ) -> None:
        self._setup = setup
        self._shown = shown
        self._requires = requires
        self._workers = workers
        self._model: Model | None = None

    def put(self, trial: Trial) -> None:
        self._shown.put(trial)

    def steps(self, wanted: Sequence[PointRequest], *, beside: Sequence[Trial] = ()) -> Steps:
        """Propose in steps. Raises FailedPrecondition if a package is missing on this server.

        beside: further running trials, with higher numbers than all that were put.
        """
        running = [*self._shown.running(), *beside]
        model = self._model_for(len(wanted))
        return (yield from ask_model(model, self._shown.learned(), running, wanted))

    def warm_up(self) -> None:
        if self._workers is None and not missing(self._requires):
            self._setup.load()

    def _model_for(self, count: int) -> Model:
        """Return the model that proposes so many points, which is the same for any number."""
        if self._model is None:
            if packages := missing(self._requires):
                name = self._setup.spec.algorithm.name
                raise FailedPrecondition(missing_message(name, packages, ("another algorithm",)))
            self._model = model_of(self._setup, self._workers)
        return self._model


class History:
    """All trials that a model learns from.

    points: They are those that ended in any way but cancelled, otherwise those that succeeded with
        finite values of all objectives.
    recent: The model is shown that many of the most recent ones; 0 means all.
    """

    def __init__(self, criteria: Criteria, *, points: bool = False, recent: int = 0) -> None:
        self._criteria = criteria
        self._points = points
        self._recent = recent
        self._numbers: list[int] = []
        self._finished: dict[int, Trial] = {}
        self._running: dict[int, Trial] = {}

    def put(self, trial: Trial) -> None:
        number = trial.number
        self._running.pop(number, None)
        if self._finished.pop(number, None) is not None:
            del self._numbers[bisect_left(self._numbers, number)]
        # There may be many trials.
        kept = trial.for_algorithms()
        # It holds its point; `by_fidelity` shows its values to algorithms.
        if trial.state is TrialState.PAUSED:
            kept = replace(kept, state=TrialState.RUNNING)
        if kept.state is TrialState.RUNNING:
            self._running[number] = kept
        elif self._teaches(trial):
            self._finished[number] = kept
            insort(self._numbers, number)

    def _teaches(self, trial: Trial) -> bool:
        if self._points:
            return trial.finished and trial.state is not TrialState.CANCELLED
        return trial.state is TrialState.SUCCEEDED and self._criteria.losses(trial) is not None

    def learned(self) -> Iterator[Trial]:
        return (self._finished[number] for number in self._numbers[-self._recent :])

    def running(self) -> Iterator[Trial]:
        return (self._running[number] for number in sorted(self._running))
