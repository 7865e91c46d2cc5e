"""The reports of a trial: one curve for each attempt and metric, by step.
The last report of a step counts.

Curves are columns of numbers, so that half a million measurements take a few megabytes.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from suggest.study import Direction
from suggest.trial import Measurement, TrialState


class Curve:
    """The values of one metric in one attempt; values may be NaN or infinite."""

    __slots__ = ("steps", "values")

    def __init__(self, points: Sequence[tuple[int, float]] = ()) -> None:
        """Create a curve of points (step, value) with ascending steps."""
        self.steps = array("q", [step for step, _ in points])
        self.values = array("d", [value for _, value in points])

    def has(self, step: int, value: float) -> bool:
        """Return whether this is the value of the step."""
        steps = self.steps
        if not steps or step > steps[-1]:
            return False
        at = bisect_left(steps, step)
        known = self.values[at]
        return steps[at] == step and (known == value or (math.isnan(known) and math.isnan(value)))

    def add(self, step: int, value: float) -> None:
        """Set the value of the step."""
        steps = self.steps
        if not steps or step > steps[-1]:
            steps.append(step)
            self.values.append(value)
            return
        at = bisect_left(steps, step)
        if steps[at] == step:
            self.values[at] = value
        else:
            steps.insert(at, step)
            self.values.insert(at, value)

    def at_or_before(self, step: int) -> float | None:
        at = bisect_right(self.steps, step)
        return self.values[at - 1] if at else None

    def best(self, direction: Direction) -> float | None:
        """Return the best finite value; None if there is none."""
        finite = [v for v in self.values if math.isfinite(v)]
        return min(finite, key=lambda value: direction.sign * value, default=None)


@dataclass(frozen=True, slots=True)
class TrialCurve:
    """The curve of the objective's metric in a trial's newest attempt, and the trial's state.

    The curve is not empty. That of an unfinished trial grows in place; do not change it. `value` is
    the trial's value, once it has one.
    """

    number: int
    state: TrialState
    curve: Curve
    value: float | None = None


class Report:
    """All curves of one trial."""

    __slots__ = ("_curves", "newest_attempt")

    def __init__(self) -> None:
        self._curves: dict[tuple[int, str], Curve] = {}
        self.newest_attempt = 0

    def add(self, m: Measurement) -> None:
        self.add_all((m,))

    def add_all(self, measurements: Iterable[Measurement]) -> None:
        curves = self._curves
        for attempt, metric, step, value in measurements:
            curve = curves.get((attempt, metric))
            if curve is None:
                curve = curves[attempt, metric] = Curve()
                self.newest_attempt = max(self.newest_attempt, attempt)
            curve.add(step, value)

    def fresh(self, measurements: Iterable[Measurement]) -> tuple[Measurement, ...]:
        """Return the measurements that are new or have another value.

        Of equal keys, the last one counts.
        """
        curves = self._curves
        last = {(attempt, metric, step): value for attempt, metric, step, value in measurements}
        return tuple(
            Measurement(attempt, metric, step, value)
            for (attempt, metric, step), value in last.items()
            if (curve := curves.get((attempt, metric))) is None or not curve.has(step, value)
        )

    def newest_with(self, further: Sequence[Measurement], metric: str) -> Curve | None:
        """Return what newest() would return after adding `further`.

        Returns a copy; the report does not change.
        """
        attempt = max(self.newest_attempt, max((m.attempt for m in further), default=0))
        curve, known = Curve(), self._curves.get((attempt, metric))
        if known is not None:
            curve.steps, curve.values = known.steps[:], known.values[:]
        for m in further:
            if (m.attempt, m.metric) == (attempt, metric):
                curve.add(m.step, m.value)
        return curve if curve.steps else None

    def newest(self, metric: str) -> Curve | None:
        """Return the metric's curve in the newest attempt with any reports; None if it has none."""
        return self._curves.get((self.newest_attempt, metric))
