"""A study: the durable record of a search. Pure values and the rules a study must obey.

The nouns of the API; protobuf stays in `suggest.wire`, SQL in `suggest.storage`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from suggest import pareto
from suggest.space import Space, Value
from suggest.trial import NO_LABELS, Trial, TrialState


class Direction(enum.Enum):
    """Which values of an objective are better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def sign(self) -> float:
        """Turns a value into a loss: the smaller `sign * value`, the better."""
        return -1.0 if self is Direction.MAXIMIZE else 1.0


class ValueRule(enum.Enum):
    """Which of a trial's measurements is its value."""

    LAST = "last"
    BEST = "best"


@dataclass(frozen=True, slots=True)
class Objective:
    metric: str
    direction: Direction
    value: ValueRule = ValueRule.LAST


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound that the last value of a metric must keep: at least `min`, at most `max`, or both."""

    metric: str
    min: float | None = None
    max: float | None = None

    def excess(self, value: float) -> float:
        """Return by how much a finite value breaks the bound: 0 if it keeps it."""
        below = 0.0 if self.min is None else self.min - value
        above = 0.0 if self.max is None else value - self.max
        return max(0.0, below, above)

    def __str__(self) -> str:
        bounds = [
            f"at {word} {bound:g}" for word, bound in (("least", self.min), ("most", self.max)) if bound is not None
        ]
        return f"{self.metric} {' and '.join(bounds)}"


def better(objectives: Sequence[Objective], values: Sequence[float], than: Sequence[float]) -> bool:
    """Whether a trial with these values, one per objective, is better than one with those: the one definition.

    It is if it is as good in each objective and better in one (Pareto dominance); of equal trials neither is, and the
    first counts. NaN is never better.
    """
    pairs = [(o.direction.sign * a, o.direction.sign * b) for o, a, b in zip(objectives, values, than, strict=True)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


@dataclass(frozen=True, slots=True)
class Criteria:
    """What makes one trial better than another one: the objectives, and the constraints that come before them."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Those that a trial must report to succeed."""
        named = [each.metric for each in self.objectives] + [each.metric for each in self.constraints]
        return tuple(dict.fromkeys(named))

    @property
    def is_plain(self) -> bool:
        """Whether trials are ordered by one value alone: one objective, no constraint."""
        return len(self.objectives) == 1 and not self.constraints

    def losses(self, trial: Trial) -> tuple[float, ...] | None:
        """Return a loss for each objective, the smaller the better; None unless the trial has them all, finite."""
        values = trial.values
        if len(values) != len(self.objectives) or not all(map(math.isfinite, values)):
            return None
        return tuple(o.direction.sign * value for o, value in zip(self.objectives, values, strict=True))

    def violation(self, trial: Trial) -> float:
        """Return by how much the trial breaks the constraints, summed: 0 if it keeps them, infinity if unknown."""
        if len(trial.constraint_values) != len(self.constraints):
            return math.inf
        return sum(c.excess(v) for c, v in zip(self.constraints, trial.constraint_values, strict=True))

    def first_best(self, best: Iterable[Trial]) -> Trial | None:
        """Return that of the best trials that has the best value of the first objective; None of none."""
        sign = self.objectives[0].direction.sign
        return min(best, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None)

    def best(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the best of the succeeded trials that keep the constraints, in the order of their numbers.

        With one objective that is one trial, the first of equals; with several it is the Pareto front: each trial that
        no other one dominates. Of equal values the first trial counts.
        """
        ordered = sorted((t for t in trials if t.state is TrialState.SUCCEEDED), key=lambda t: t.number)
        scored = [(losses, t) for t in ordered if (losses := self.losses(t)) is not None and self.violation(t) == 0]
        return [scored[place][1] for place in pareto.front([losses for losses, _ in scored])]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """`name` is a key of `suggest.samplers.registry`; `settings` are checked there; camelCase keys."""

    name: str
    seed: int | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pruning:
    """`name` is a key of `suggest.pruners.registry`; settings are checked there; camelCase keys: warmupSteps."""

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)


DEFAULT_ETA = 3  # as in the papers of Hyperband and BOHB


@dataclass(frozen=True, slots=True)
class Fidelity:
    """How far a trial is run: a quantity of its program, such as epochs or a share of the data.

    Trials begin with a small one, and those that are among the best 1/eta go on with a larger one. With brackets
    (Hyperband) a share of the trials begins higher. Whole numbers if `min` and `max` are.
    """

    parameter: str
    min: float
    max: float
    eta: int = DEFAULT_ETA

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the fidelities at which trials are compared, rising: max / eta**k, down to `min`.

        Li et al. 2018 (Hyperband), algorithm 1: with eta 3, 1 to 81 gives 1, 3, 9, 27, 81.
        """
        count, reach = 1, self.min * self.eta
        while reach <= self.max * (1 + 1e-9):
            count, reach = count + 1, reach * self.eta
        whole = float(self.min).is_integer() and float(self.max).is_integer()
        found = [self.max / self.eta**k for k in reversed(range(count))]
        return tuple(float(round(level)) if whole else level for level in found)


@dataclass(frozen=True, slots=True)
class StudySpec:
    """What is searched, for which objectives, and how.

    The first objective is the one that pruning watches, and `Trial.value` is its value. With several objectives the
    best trials are the Pareto front. A trial that breaks a constraint is never among the best.
    """

    space: Space
    objectives: tuple[Objective, ...]
    algorithm: Algorithm
    pruning: Pruning | None = None
    constraints: tuple[Constraint, ...] = ()
    fidelity: Fidelity | None = None

    @property
    def objective(self) -> Objective:
        return self.objectives[0]

    @property
    def criteria(self) -> Criteria:
        return Criteria(self.objectives, self.constraints)


@dataclass(frozen=True, slots=True)
class StudyName:
    """`namespaces/{namespace}/studies/{study}`; both are DNS labels of at most 63 characters."""

    namespace: str
    study: str

    def __str__(self) -> str:
        return f"namespaces/{self.namespace}/studies/{self.study}"


@dataclass(frozen=True, slots=True)
class PastSpace:
    """The space as it was, until the study grew when it had so many trials."""

    space: Space
    trials: int
    end_time: datetime


@dataclass(frozen=True, slots=True)
class Study:
    """`seed` is drawn when the study is created without one, and never changes. `past`: of the space, oldest first."""

    name: StudyName
    uid: str
    spec: StudySpec
    seed: int
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    create_time: datetime | None = None
    owner_address: str = ""
    owner_epoch: int = 0
    past: tuple[PastSpace, ...] = ()


MIN_TRIALS_TO_RANK = 40  # with fewer even the most important parameter is often not found


@dataclass(frozen=True, slots=True)
class Importance:
    """How much a parameter matters for good values. `trials`: how many that succeeded have it.

    value: its share of all parameters' importance, 0 to 1; None: too few trials, or they have one value of it.
    spread: the standard deviation of `value`.
    """

    name: str
    trials: int
    value: float | None = None
    spread: float | None = None
