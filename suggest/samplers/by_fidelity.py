"""A sampler that learns from trials that were run up to different fidelities.

It shows another sampler the values of one fidelity only, because values of different fidelities are
not comparable. This is the largest fidelity at which enough trials have a value (Falkner et al.
2018, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale", section 3.2). A trial's
value at one fidelity never changes. When a larger fidelity has enough values, the other sampler
starts over with those.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from suggest.proposal import PointRequest, Steps
from suggest.samplers.sampler import Sampler, SteppedSampler
from suggest.study import Fidelity
from suggest.trial import Trial, TrialState


class ByFidelity(SteppedSampler):
    """Shows one fidelity's values to a sampler that `make` creates.

    `enough` is how many values a fidelity needs.
    """

    def __init__(self, fidelity: Fidelity, make: Callable[[], Sampler], *, enough: int) -> None:
        self._make = make
        self._enough = enough
        self._levels = fidelity.levels
        # How many trials have a value at each fidelity.
        self._values = [0] * len(self._levels)
        self._level = 0  # the one whose values are shown
        self._trials: dict[int, Trial] = {}
        self._sampler = make()

    def put(self, trial: Trial) -> None:
        before = self._trials.get(trial.number)
        # There may be many trials.
        kept = trial.for_algorithms()
        self._trials[trial.number] = kept
        for level in range(len(self._levels)):
            if before is not None and self._value(before, level) is not None:
                self._values[level] -= 1
            if self._value(kept, level) is not None:
                self._values[level] += 1
        level = self._best_level()
        if level != self._level:
            self._level, self._sampler = level, self._make()
            for each in self._trials.values():
                self._sampler.put(self._at_level(each))
        elif before is None or self._at_level(before) != self._at_level(kept):
            self._sampler.put(self._at_level(kept))

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        return self._sampler.steps(wanted)

    def warm_up(self) -> None:
        self._sampler.warm_up()

    def _best_level(self) -> int:
        """Return the largest fidelity with enough values; the one with the most while none has."""
        rich = [level for level, count in enumerate(self._values) if count >= self._enough]
        return rich[-1] if rich else self._values.index(max(self._values))

    def _value(self, trial: Trial, level: int) -> float | None:
        at = self._levels[level]
        if at == self._levels[-1]:
            return trial.value if trial.state is TrialState.SUCCEEDED else None
        return next((each.value for each in trial.rungs if each.fidelity == at), None)

    def _at_level(self, trial: Trial) -> Trial:
        """Return the trial as the other sampler sees it."""
        value = self._value(trial, self._level)
        if value is not None:
            shown = replace(
                trial, state=TrialState.SUCCEEDED, value=value, step=None, fidelity=None, rungs=()
            )
            # A rung has the value of the first objective only.
            largest = self._level == len(self._levels) - 1
            return shown if largest else replace(shown, further=(), constraint_values=())
        if trial.state in (TrialState.SUCCEEDED, TrialState.PRUNED, TrialState.PAUSED):
            # It has no value at this fidelity, and the sampler would take
            # that of a smaller one for it.
            return Trial(trial.number, TrialState.CANCELLED, trial.parameters)
        return replace(trial, value=None, step=None, fidelity=None, rungs=())
