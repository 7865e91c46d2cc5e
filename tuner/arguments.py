"""Arguments in Python as keys of a file: what they are there, and problems with a file's keys as
problems with arguments.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from numbers import Real
from typing import Any

from controller.spec.problems import NOWHERE, SpecErrors

# The key of a file that each argument sets.
KEYS = {
    "name": "metadata.name",
    "namespace": "metadata.namespace",
    "algorithm": "spec.algorithm.name",
    "seed": "spec.algorithm.seed",
    "settings": "spec.algorithm.settings",
    "trials": "spec.budget.trials",
    "timeout": "spec.budget.wallClock",
    "constraints": "spec.constraints",
    "fidelity": "spec.fidelity",
    "initial": "spec.initial",
    "learn_from": "spec.learnFrom",
    "direction": "spec.objective.direction",
    "metric": "spec.objective.metric",
    "target": "spec.objective.target",
    "objectives": "spec.objectives",
    "parallelism": "spec.parallelism",
    "parameters": "spec.parameters",
    "prior": "spec.prior",
    "pruning": "spec.pruning",
    "runtime": "spec.runtime",
    "command": "spec.trial.command",
    "image": "spec.trial.image",
    "gpu": "spec.trial.resources.gpu",
    "trial_timeout": "spec.trial.timeout",
}
_KEY = re.compile(r"\b(?:spec|metadata)\.[\w.\[\]]*\w\]?")
_WORDS = {
    "remove the key": "omit the argument",
    "--runtime kubernetes": 'runtime="kubernetes"',
    "--context": "context",
}


def in_file(name: str, value: object) -> object:
    """Return the value of an argument as a file has it."""
    match value:
        case Real() if name.endswith("timeout"):
            # Never with an exponent, which durations do not have.
            return f"{float(value):.3f}".rstrip("0").rstrip(".") + "s"
        case str() if name == "pruning":
            return {"name": value}
        case Sequence() if not isinstance(value, str):
            return list(value)
    return value


def spec_of(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return the keys of a file's `spec` that these arguments set."""
    spec: dict[str, Any] = {}
    for name, value in arguments.items():
        _, *above, last = KEYS[name].split(".")
        section = spec
        for key in above:
            section = section.setdefault(key, {})
        section[last] = in_file(name, value)
    return spec


def arguments_of_keys(
    names: Iterable[str],
    *,
    written: Mapping[str, object],
    parameters: Iterable[str],
    objectives: Iterable[str],
    constraints: Iterable[str],
) -> dict[str, str]:
    """Return the arguments by the keys that they set.

    Args:
        names: The arguments that the caller has.
        written: What the caller wrote as keys of the file's `spec`, which keep their names.
        parameters, objectives, constraints: Their names, in order.
    """
    by_key = {
        key: name
        for name, key in KEYS.items()
        if name in names and not _has({"spec": written}, key)
    }
    by_key |= {f"spec.parameters.{name}": f"parameters[{name!r}]" for name in parameters}
    for index, name in enumerate(objectives):
        by_key[f"spec.objectives[{index}]"] = by_key[f"spec.objectives[{index}].direction"] = (
            f"objectives[{name!r}]"
        )
    return by_key | {
        f"spec.constraints[{index}]": f"constraints[{name!r}]"
        for index, name in enumerate(constraints)
    }


@contextmanager
def problems_by_argument(by_key: Mapping[str, str]) -> Iterator[None]:
    """Let problems of the block name arguments. Errors keep their types."""
    try:
        yield
    except SpecErrors as error:
        located = []
        for problem in error.located:
            argument = _argument(problem.path, by_key)
            message = (
                _in_words(problem.message, by_key) if argument != problem.path else problem.message
            )
            mark = NOWHERE if argument != problem.path else problem.mark
            located.append(replace(problem, path=argument, message=message, mark=mark))
        raise SpecErrors(error.source, located) from None


def _argument(key: str, by_key: Mapping[str, str]) -> str:
    """Return the argument that sets a key, or one above it; the key itself if there is none."""
    above = [
        known for known in by_key if key == known or key.startswith((f"{known}.", f"{known}["))
    ]
    longest = max(above, key=len, default="")
    return f"{by_key[longest]}{key[len(longest) :]}" if longest else key


def _in_words(message: str, by_key: Mapping[str, str]) -> str:
    for file, python in _WORDS.items():
        message = message.replace(file, python)
    return _KEY.sub(lambda found: _argument(found[0], by_key), message)


def _has(written: Mapping[str, object], key: str) -> bool:
    value: object = written
    for part in key.split("."):
        if not isinstance(value, Mapping) or part not in value:
            return False
        value = value[part]
    return True
