"""A study: the durable record of a search. Pure values and the rules for them.

These are the nouns of the API. Protobuf is in `suggest.wire`, SQL in `suggest.storage`.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from suggest import pareto
from suggest.space import Assignment, Space, Value
from suggest.trial import NO_LABELS, Trial, TrialState


class Direction(enum.Enum):
    """Which values of an objective are better."""

    MINIMIZE = "minimize"
    MAXIMIZE = "maximize"

    @property
    def opposite(self) -> Direction:
        return Direction.MINIMIZE if self is Direction.MAXIMIZE else Direction.MAXIMIZE

    @property
    def sign(self) -> float:
        """Return the factor that turns a value into a loss: a smaller `sign * value` is better."""
        return -1.0 if self is Direction.MAXIMIZE else 1.0


class ValueRule(enum.Enum):
    """Which of a trial's measurements is its value."""

    LAST = "last"
    BEST = "best"
    WORST = "worst"


@dataclass(frozen=True, slots=True)
class Objective:
    metric: str
    direction: Direction
    value: ValueRule = ValueRule.LAST

    @property
    def extreme(self) -> Direction | None:
        """Return the direction whose best measurement is a trial's value; None for the last one."""
        if self.value is ValueRule.LAST:
            return None
        is_best = self.value is ValueRule.BEST
        return self.direction if is_best else self.direction.opposite


@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound that the last value of a metric must keep: at least `min`, at most `max`, or both."""

    metric: str
    min: float | None = None
    max: float | None = None

    def margin(self, value: float) -> float:
        """Return how far a finite value is beyond the nearest bound: negative if it keeps both."""
        below = -math.inf if self.min is None else self.min - value
        above = -math.inf if self.max is None else value - self.max
        return max(below, above)

    def excess(self, value: float) -> float:
        """Return by how much a finite value breaks the bound: 0 if it keeps it."""
        return max(0.0, self.margin(value))

    def __str__(self) -> str:
        bounds = [
            f"at {word} {bound:g}"
            for word, bound in (("least", self.min), ("most", self.max))
            if bound is not None
        ]
        return f"{self.metric} {' and '.join(bounds)}"


def better(objectives: Sequence[Objective], values: Sequence[float], than: Sequence[float]) -> bool:
    """Return whether a trial with `values` is better than one with the values `than`.

    Both have one value for each objective.

    This is the only definition of "better": at least as good in each objective,
    and better in one (Pareto dominance). Of equal trials neither is better, and
    the first one counts. NaN is never better.
    """
    losses = (
        [o.direction.sign * value for o, value in zip(objectives, each, strict=True)]
        for each in (values, than)
    )
    return pareto.dominates(*losses)


@dataclass(frozen=True, slots=True)
class Criteria:
    """The criteria by which trials are compared: first the constraints, then the objectives."""

    objectives: tuple[Objective, ...]
    constraints: tuple[Constraint, ...] = ()

    @property
    def metrics(self) -> tuple[str, ...]:
        """Return the metrics that a trial must report to succeed."""
        named = [each.metric for each in self.objectives] + [
            each.metric for each in self.constraints
        ]
        return tuple(dict.fromkeys(named))

    @property
    def is_plain(self) -> bool:
        """Return whether a single value orders the trials: one objective and no constraint."""
        return len(self.objectives) == 1 and not self.constraints

    def losses(self, trial: Trial) -> tuple[float, ...] | None:
        """Return a loss for each objective, the smaller the better.

        None unless the trial has finite values of all.
        """
        values = trial.values
        if len(self.objectives) == 1:  # as below, without loops: there may be thousands of trials
            one = len(values) == 1 and math.isfinite(values[0])
            return (self.objectives[0].direction.sign * values[0],) if one else None
        if len(values) != len(self.objectives) or not all(map(math.isfinite, values)):
            return None
        return tuple(
            o.direction.sign * value for o, value in zip(self.objectives, values, strict=True)
        )

    def violation(self, trial: Trial) -> float:
        """Return the sum by which the trial breaks the constraints.

        0 if it keeps them, infinity if that is unknown.
        """
        if not self.constraints:
            return 0.0
        if len(trial.constraint_values) != len(self.constraints):
            return math.inf
        return sum(
            c.excess(v) for c, v in zip(self.constraints, trial.constraint_values, strict=True)
        )

    def first_best(self, best: Iterable[Trial]) -> Trial | None:
        """Return the trial of `best` with the best value of the first objective, if any."""
        sign = self.objectives[0].direction.sign
        return min(
            best, key=lambda trial: (sign * (trial.value or 0.0), trial.number), default=None
        )

    def compromise(self, best: Iterable[Trial], weights: Sequence[float]) -> Trial | None:
        """Return the trial of the Pareto front `best` with the smallest weighted loss, if any.

        weights: one for each objective. See `suggest.pareto.compromise`.
        """
        scored = [(losses, trial) for trial in best if (losses := self.losses(trial)) is not None]
        if scored:
            return scored[pareto.compromise([losses for losses, _ in scored], weights)][1]
        return None

    def best(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the best succeeded trials that satisfy the constraints, by number.

        With one objective this is at most one trial. With several objectives it
        is the Pareto front: each trial that no other one dominates. Of trials
        with equal values, only the first one counts.
        """
        ordered = sorted(
            (t for t in trials if t.state is TrialState.SUCCEEDED), key=lambda t: t.number
        )
        scored = [
            (losses, t)
            for t in ordered
            if (losses := self.losses(t)) is not None and self.violation(t) == 0
        ]
        return [scored[place][1] for place in pareto.front([losses for losses, _ in scored])]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """The algorithm of a study, by its name in `suggest.samplers.registry`.

    Settings have keys in camelCase.
    """

    name: str
    seed: int | None = None
    settings: Mapping[str, Value] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Pruning:
    """A pruning rule, by its name in `suggest.pruners.registry`.

    Settings have keys in camelCase.
    """

    name: str
    settings: Mapping[str, Value] = field(default_factory=dict)


DEFAULT_ETA = 3  # as in the papers of Hyperband and BOHB
MOST_RUNGS = 32  # levels of a fidelity
WIDEST = 1e305  # of max / min: powers of eta beyond it are no floats


@dataclass(frozen=True, slots=True)
class Fidelity:
    """A quantity that says how far a trial runs, such as epochs or a share of the data.

    Trials begin with a small fidelity, and those among the best 1/eta continue with a larger one.
    With the brackets of Hyperband, some trials begin with a larger one. Fidelities are whole
    numbers if `min` and `max` are.
    """

    parameter: str
    min: float
    max: float
    eta: int = DEFAULT_ETA

    @classmethod
    def of_resource(cls, parameter: str, most: float, eta: int) -> Fidelity:
        """Return the fidelity of Katib's hyperband, which names the largest one.

        The fidelities are whole numbers, as many as fit.
        """
        rungs = int(math.log(most, eta) + 1e-9) if most > 1 else 0
        return cls(parameter, max(1, round(most / eta**rungs)), max(1, round(most)), eta)

    @property
    def levels(self) -> tuple[float, ...]:
        """Return the fidelities to compare trials at, ascending: max / eta**k, down to `min`.

        Li et al. 2018 (Hyperband), algorithm 1: with eta 3, 1 to 81 gives 1, 3, 9, 27, 81. A
        fidelity with more than MOST_RUNGS levels is invalid, and only one more is returned.
        """
        count = 1
        reach = self.min * self.eta
        while count <= MOST_RUNGS and reach <= self.max * (1 + 1e-9):
            count += 1
            reach *= self.eta
        levels = [self.max / self.eta**k for k in reversed(range(count))]
        if float(self.min).is_integer() and float(self.max).is_integer():
            levels = [float(round(level)) for level in levels]
        return tuple(levels)


@dataclass(frozen=True, slots=True)
class EarlierTrial:
    """A trial of an earlier study, as a point of the later study's space.

    The point has only parameters that both studies have.
    """

    parameters: Assignment
    value: float


# In the place of a name: the most recent similar studies.
SIMILAR = "-"
# A label: the search whose trials run again in this study, which is not a search itself.
RERUNS_OF = "tuner.dev/reruns-of"


@dataclass(frozen=True, slots=True)
class EarlierStudy:
    """A finished study from which a search learns.

    study: its name, in the same namespace. SIMILAR until the later study is created.
    weight: how much it is trusted before the search has trials of its own, from 0 to 1.
    trials: what was read of it when the later study was created. They are stored with that study,
        so that the earlier one may be deleted.
    """

    study: str
    weight: float = 1.0
    trials: tuple[EarlierTrial, ...] = ()


@dataclass(frozen=True, slots=True)
class Belief:
    """What a person believes of the best value of one parameter.

    around: a member of the parameter's domain.
    sure: for a choice, the probability that it is the best one. For a number, the probability that
        the best one is within a tenth of the range, on the parameter's scale.
    """

    parameter: str
    around: Value
    sure: float


@dataclass(frozen=True, slots=True)
class StudySpec:
    """What to search, for which objectives, and how.

    Pruning watches the first objective, and `Trial.value` is its value. With several objectives the
    best trials are the Pareto front. A trial that breaks a constraint is never among the best.

    define_by_run: trials name their parameters while they run, and the space has those that were
    named so far.
    """

    space: Space
    objectives: tuple[Objective, ...]
    algorithm: Algorithm
    pruning: Pruning | None = None
    constraints: tuple[Constraint, ...] = ()
    fidelity: Fidelity | None = None
    define_by_run: bool = False
    learn_from: tuple[EarlierStudy, ...] = ()
    prior: tuple[Belief, ...] = ()

    @property
    def objective(self) -> Objective:
        return self.objectives[0]

    @property
    def criteria(self) -> Criteria:
        return Criteria(self.objectives, self.constraints)


@dataclass(frozen=True, slots=True)
class StudyName:
    """The name `namespaces/{namespace}/studies/{study}`.

    Both parts are DNS labels of at most 63 characters.
    """

    namespace: str
    study: str

    def __str__(self) -> str:
        return f"namespaces/{self.namespace}/studies/{self.study}"


@dataclass(frozen=True, slots=True)
class PastSpace:
    """An earlier space of a study.

    `trials` is how many trials the study had when its space grew, at `end_time`.
    """

    space: Space
    trials: int
    end_time: datetime


@dataclass(frozen=True, slots=True)
class Study:
    """The record of a study.

    seed: drawn when the study is created without one; it never changes.
    past: the earlier spaces, oldest first.
    """

    name: StudyName
    uid: str
    spec: StudySpec
    seed: int
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    create_time: datetime | None = None
    owner_address: str = ""
    owner_epoch: int = 0
    past: tuple[PastSpace, ...] = ()


MIN_TRIALS_TO_RANK = 10  # with fewer trials, importances are chance


@dataclass(frozen=True, slots=True)
class Importance:
    """How much a parameter matters for good values.

    trials: how many succeeded and pruned trials have the parameter.
    value: its share of the importance of all parameters, from 0 to 1. None if there are too few
        trials, or all of them have the same value of it.
    spread: the standard deviation of `value`.
    """

    name: str
    trials: int
    value: float | None = None
    spread: float | None = None
