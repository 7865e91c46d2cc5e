"""Names the problems of an experiment that was built in Python by its arguments,
instead of the keys of a file.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from controller.spec.problems import NOWHERE, SpecErrors

_KEYS = {
    "metadata.name": "name",
    "metadata.namespace": "namespace",
    "spec.algorithm.name": "algorithm",
    "spec.algorithm.seed": "seed",
    "spec.algorithm.settings": "settings",
    "spec.budget.trials": "trials",
    "spec.budget.wallClock": "timeout",
    "spec.constraints": "constraints",
    "spec.fidelity": "fidelity",
    "spec.initial": "initial",
    "spec.learnFrom": "learn_from",
    "spec.objective.direction": "direction",
    "spec.objective.metric": "metric",
    "spec.objective.target": "target",
    "spec.objectives": "objectives",
    "spec.parallelism": "parallelism",
    "spec.parameters": "parameters",
    "spec.prior": "prior",
    "spec.pruning": "pruning",
    "spec.runtime": "runtime",
    "spec.trial.command": "command",
    "spec.trial.image": "image",
    "spec.trial.resources.gpu": "gpu",
    "spec.trial.timeout": "trial_timeout",
}
_KEY = re.compile(r"\b(?:spec|metadata)\.[\w.\[\]]*\w\]?")
_WORDS = {
    "remove the key": "omit the argument",
    "--runtime kubernetes": 'runtime="kubernetes"',
    "--context": "context",
}


def arguments_of_keys(
    names: Iterable[str],
    *,
    written: Mapping[str, object],
    parameters: Iterable[str],
    objectives: Iterable[str] = (),
    constraints: Iterable[str] = (),
) -> dict[str, str]:
    """Return the arguments by the keys that they set.

    Args:
        names: The arguments that the caller has.
        written: What the caller wrote as keys of the file's `spec`, which keep their names.
        parameters, objectives, constraints: Their names, in order.
    """
    by_key = {
        key: name
        for key, name in _KEYS.items()
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
