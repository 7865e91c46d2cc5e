"""The pruning rules by name: what each is, its settings, and how its pruner is made. No pruning is no `Pruning`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from suggest import settings as checked
from suggest.curves import Curve
from suggest.errors import Problem, did_you_mean
from suggest.pruners.median import MedianPruner, MedianSettings
from suggest.settings import Setting
from suggest.study import Objective, Pruning
from suggest.trial import StopAdvice


class Pruner(Protocol):
    """One study's pruner. Not thread-safe: its owner holds the study's lock."""

    def add_peer(self, curve: Curve) -> None:
        """A trial has succeeded with this curve, which will not change."""
        ...

    def judge(self, curve: Curve, *, before: int | None) -> StopAdvice:
        """Should the trial with this curve (not empty) stop at its last step?

        `before` is the last step that was there before the latest report, None for the first: what lies between has
        not been judged.
        """
        ...


@dataclass(frozen=True, slots=True)
class Rule:
    """`settings_type` and the second argument of `build` belong together; Any, for a table cannot say so."""

    name: str
    summary: str
    settings_type: type
    build: Callable[[Objective, Any], Pruner]

    @property
    def settings(self) -> tuple[Setting, ...]:
        return checked.declared(self.settings_type)


_RULES = (
    Rule(
        "median",
        "Stops a trial whose best value so far is worse than the median of succeeded trials at the same step.",
        MedianSettings,
        MedianPruner,
    ),
)
_BY_NAME = {rule.name: rule for rule in _RULES}


def rules() -> tuple[Rule, ...]:
    return _RULES


def pruning_problems(pruning: Pruning) -> Iterator[Problem]:
    """Paths are the pruning's fields: `name`, `settings.interval`."""
    rule = _BY_NAME.get(pruning.name)
    if rule is None:
        hint = did_you_mean(pruning.name, _BY_NAME) or f"; there are {', '.join(_BY_NAME)}"
        yield Problem("name", f"{pruning.name!r} is not a pruning rule{hint}")
        return
    for problem in checked.problems(rule.settings_type, pruning.settings):
        yield Problem(f"settings.{problem.path}", problem.message)


def new_pruner(pruning: Pruning, objective: Objective) -> Pruner:
    """For a pruning without problems."""
    rule = _BY_NAME[pruning.name]
    return rule.build(objective, checked.read(rule.settings_type, pruning.settings))
