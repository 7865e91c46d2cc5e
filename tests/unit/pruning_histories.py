"""Drawn histories of studies with pruning: the reports in order,
and the advice of an engine that received them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from random import Random

from suggest.engine import Engine
from suggest.space import Value
from suggest.study import Direction, Pruning, Study
from suggest.trial import Measurement, StopAdvice, Trial, TrialState
from tests.unit.searches import MAXIMIZE, MIXED, RUNNING, SUCCEEDED, accuracy, study

ODD = (math.nan, math.inf, -math.inf)


@dataclass(frozen=True, slots=True)
class DrawnEvent:
    """One event: the measurements that a trial reported, or its outcome."""

    number: int
    measurements: tuple[Measurement, ...] = ()
    end: TrialState | None = None


def learning_curve(draw: Random, steps: int) -> list[float]:
    """A saturating curve with noise. Some curves cross."""
    final, speed, noise = draw.uniform(0.3, 1.0), draw.uniform(0.1, 1.5), draw.uniform(0, 0.05)
    return [final * (1 - math.exp(-speed * (k + 1))) + draw.gauss(0, noise) for k in range(steps)]


def draw_history(
    seed: int, *, trials: int = 24, steps: int = 16, at_once: int = 4, odd: float = 0.0
) -> list[DrawnEvent]:
    """Draw parallel trials that report one step or several; most succeed.

    `odd`: the share of NaN and infinities.
    """
    draw = Random(seed)
    events: list[DrawnEvent] = []
    running: dict[int, list[Measurement]] = {}
    number = 0
    while number < trials or running:
        while number < trials and len(running) < at_once:
            values = [
                draw.choice(ODD) if draw.random() < odd else v for v in learning_curve(draw, steps)
            ]
            running[number] = accuracy(*values)
            number += 1
        which = draw.choice(sorted(running))
        batch = draw.choice([1, 1, 1, 3])
        events.append(DrawnEvent(which, tuple(running[which][:batch])))
        del running[which][:batch]
        if not running[which]:
            del running[which]
            states = [SUCCEEDED] * 4 + [TrialState.PRUNED, TrialState.FAILED]
            events.append(DrawnEvent(which, end=draw.choice(states)))
    return events


def negated(events: Iterable[DrawnEvent]) -> list[DrawnEvent]:
    return [
        replace(e, measurements=tuple(m._replace(value=-m.value) for m in e.measurements))
        for e in events
    ]


def a_study(name: str, settings: Mapping[str, Value], direction: Direction = MAXIMIZE) -> Study:
    plain = study(MIXED, direction=direction)
    return replace(plain, spec=replace(plain.spec, pruning=Pruning(name, settings)))


class EngineReplay:
    """Sends events to an engine. `rebuilt` is the engine after a restart."""

    def __init__(self, of: Study) -> None:
        self._study = of
        self.engine = Engine(of, (), ())
        self._trials: dict[int, Trial] = {}
        self._measured: list[tuple[int, Measurement]] = []

    def apply(self, event: DrawnEvent) -> StopAdvice | None:
        """Return the advice after a report."""
        number = event.number
        if number not in self._trials:
            self._put(Trial(number, RUNNING, {}))
        if event.end is None:
            fresh = self.engine.fresh(number, event.measurements)
            self._measured += [(number, m) for m in fresh]
            self.engine.measure(number, fresh)
            return self.engine.advise(number)
        value = (
            self.engine.value_of(number)[0] if event.end in (SUCCEEDED, TrialState.PRUNED) else None
        )
        state = TrialState.FAILED if event.end is SUCCEEDED and value is None else event.end
        self._put(replace(self._trials[number], state=state, value=value))
        return None

    def apply_all(self, events: Iterable[DrawnEvent]) -> list[StopAdvice | None]:
        return [self.apply(event) for event in events]

    def running(self) -> Iterator[int]:
        return (number for number, trial in self._trials.items() if not trial.finished)

    def restart(self) -> None:
        self.engine = Engine(self._study, list(self._trials.values()), self._measured)

    def _put(self, trial: Trial) -> None:
        self._trials[trial.number] = trial
        self.engine.put(trial)
