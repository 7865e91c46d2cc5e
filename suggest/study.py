"""A study: the durable record of a search. Pure values and the rules a study must obey.

The nouns of the API; protobuf stays in `suggest.wire`, SQL in `suggest.storage`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from suggest.space import Space, Value
from suggest.trial import NO_LABELS


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


def better(objectives: Sequence[Objective], values: Sequence[float], than: Sequence[float]) -> bool:
    """Whether a trial with these values, one per objective, is better than one with those: the one definition.

    It is if it is as good in each objective and better in one (Pareto dominance); of equal trials neither is, and the
    first counts. NaN is never better.
    """
    pairs = [(o.direction.sign * a, o.direction.sign * b) for o, a, b in zip(objectives, values, than, strict=True)]
    return all(a <= b for a, b in pairs) and any(a < b for a, b in pairs)


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


@dataclass(frozen=True, slots=True)
class StudySpec:
    """Exactly one objective for now; the tuple keeps the place of several."""

    space: Space
    objectives: tuple[Objective, ...]
    algorithm: Algorithm
    pruning: Pruning | None = None

    @property
    def objective(self) -> Objective:
        return self.objectives[0]


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
