"""What a trial of Optuna keeps for its results, beside parameters and metrics, and their names.

Used in the trial's process, which writes it, and in that of the search.
"""

from __future__ import annotations

import base64
import json
import pickle
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tuner.trial import plain

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

FILE = "optuna.json"
# What JSON would change, of a trial that shares files with its search: its user attributes, and the
# choices of its parameters.
OBJECTS_FILE = "optuna.pickle"
PRINTED = b"tuner.optuna "
# The reason of a trial that its own objective has pruned.
PRUNED = "the objective raised optuna.TrialPruned"
# The metrics of several objectives, and of constraints.
VALUE, CONSTRAINT = "value", "constraint."
# The constraint whose value is the largest that a `constraints_func` returns.
CONSTRAINTS_FUNC = "constraints_func"
# The same of those that an objective sets under names that the search does not know.
SET_CONSTRAINT = "set_constraint"
# The attribute in which Optuna keeps what it returns.
CONSTRAINTS = "constraints"


# Any: a choice of an objective
def stored_choice(value: Any) -> Any:
    """Return what the search stores of a choice: the name of a class, a function or another object
    that JSON does not have.

    The choice itself is returned if JSON has it, or if no name is the same in each trial.
    """
    value = plain(value)
    try:
        # JSON has no infinity, either.
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        name = getattr(value, "__qualname__", None)
        text = repr(value) if name is None else f"{value.__module__}.{name}"
        has_own = any(sign in text for sign in ("<lambda>", "<locals>", " at 0x"))
        return value if has_own else text
    return value


# Any: a choice of an objective
def own_choice(choices: Iterable[Any], stored: Any) -> Any:
    """Return the choice that the search has stored: JSON makes lists of its tuples, too."""
    text = json.dumps(stored, sort_keys=True)
    for each in choices:
        if json.dumps(stored_choice(each), sort_keys=True) == text:
            return each
    return stored


def with_largest(constraints: Mapping[str, float], metrics: Collection[str]) -> dict[str, float]:
    """Return the constraints of a trial, and the largest one that is not among the metrics."""
    others = [value for name, value in constraints.items() if CONSTRAINT + name not in metrics]
    return {**constraints, SET_CONSTRAINT: max(others)} if others else dict(constraints)


def metrics_of(objectives: int) -> list[str]:
    """Return the metrics that stand for the values of an objective of Optuna."""
    return [VALUE] if objectives == 1 else [f"{VALUE}_{place}" for place in range(objectives)]


def read(file: Path, log: Callable[[], str]) -> Mapping[str, Any]:
    """Return what a trial has kept in its file, or else in its log; nothing if neither has it.

    A trial that was killed in its container has printed nothing.
    """
    found: dict[str, Any] = {}
    if file.exists():
        found = json.loads(file.read_text(encoding="utf-8"))
    else:
        _, printed, rest = log().encode().rpartition(b"\n" + PRINTED)
        if printed:
            found = json.loads(base64.b64decode(rest.partition(b"\n")[0]))
    return found


def read_objects(file: Path) -> tuple[dict[str, Any], dict[str, list[Any]], list[str]]:
    """Return what a trial has pickled: attributes, choices, and warnings of what cannot be read."""
    attributes: dict[str, Any] = {}
    warned: list[str] = []
    if not file.exists():
        return {}, {}, []
    pickled = pickle.loads(file.read_bytes())
    for key, value in pickled["user_attrs"].items():
        try:
            attributes[key] = pickle.loads(value)
        except Exception as error:
            warned.append(f"attribute {key!r} is not read: {error}")
    return attributes, pickled["choices"], warned


def read_distributions(
    domains: Mapping[str, Mapping[str, Any]], choices: Mapping[str, Sequence[Any]]
) -> dict[str, BaseDistribution]:
    """Return Optuna's distributions of the ranges, and of the choices, that a trial has kept.

    choices: those that JSON would change.
    """
    # Here, because it takes long, and few objectives ask for them.
    from optuna.distributions import CategoricalDistribution, json_to_distribution

    return {
        name: CategoricalDistribution(choices[name])
        if name in choices
        else json_to_distribution(json.dumps(domain))
        for name, domain in domains.items()
    }
