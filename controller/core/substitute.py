"""Substitute parameters for `${name}` in a trial's command line.

Pure; knows nothing about files and processes.

`${name:+word}` is the word, or nothing if the parameter is inactive, false,
null or empty, as in a shell. `$${` is a literal `${`. Other notations ($NAME,
$(NAME), {{name}}) belong to the program and are left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from controller.core.model import SecretRef, TrialTemplate
from suggest.domain import compact_json
from suggest.space import Assignment, Value

# The only variable of an attempt that is substituted like a parameter.
TRIAL_NAME = "TUNER_TRIAL_NAME"
# Between a name and the word that is written only if the parameter has a value.
OPTIONAL = ":+"
_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
# Keys of lists and mappings in which Kubernetes accepts only strings and refuses numbers.
_TEXT = frozenset(
    {
        "command",
        "args",
        "env",
        "labels",
        "annotations",
        "matchLabels",
        "matchExpressions",
        "nodeSelector",
        "data",
    }
)
_OPENED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)?")


def literal(text: str) -> str:
    """Return what is written for this text, so that nothing in it is substituted."""
    return text.replace("${", "$${")


def bodies(text: str) -> Iterator[str]:
    """Yield what is written in each `${…}`, in order: a name, or `name:+word`."""
    return (match[1] for match in _PLACEHOLDER.finditer(text) if match[1] is not None)


def placeholders(text: str) -> Iterator[str]:
    """Yield the names in `${…}`, in order."""
    return (body.partition(OPTIONAL)[0] for body in bodies(text))


def unclosed(text: str) -> Iterator[str]:
    """Yield the name after each `${` without a closing `}`; "" if there is no name."""
    # Closed and literal placeholders become line breaks,
    # so that no rest of them looks like an opening.
    return (match[1] or "" for match in _OPENED.finditer(_PLACEHOLDER.sub("\n", text)))


def as_text(value: Value) -> str:
    """Return a value in the form that a program gets.

    Strings are unchanged. All other values are compact JSON, which has the shortest form of a
    number that reads back as the same number.
    """
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else compact_json(value)


def is_nothing(value: Value) -> bool:
    """Return whether `${name:+word}` writes nothing for this value. The number 0 is a value."""
    return value is False or value is None or value == ""


def fill(text: str, parameters: Assignment) -> str | None:
    """Return `text` with its placeholders substituted; None if it is dropped.

    It is dropped if it mentions an inactive parameter as `${name}`,
    or if `${name:+word}` leaves nothing of it.
    """
    if any(OPTIONAL not in body and body not in parameters for body in bodies(text)):
        return None
    filled = _PLACEHOLDER.sub(
        lambda match: "${" if match[1] is None else _substituted(match[1], parameters), text
    )
    return None if not filled and OPTIONAL in text else filled


def _substituted(body: str, parameters: Assignment) -> str:
    name, optional, word = body.partition(OPTIONAL)
    if not optional:
        return as_text(parameters[name])
    return "" if is_nothing(parameters.get(name)) else word


def fill_data(data: object, parameters: Assignment, *, text: bool = False) -> object:
    """Substitute the placeholders of every string within plain data, such as a manifest.

    Keys stay as they are. Elements that mention an inactive parameter are dropped.
    A string that is only `${name}` becomes the parameter's value with its type,
    and is dropped if that is null. Where Kubernetes accepts only strings (`text`,
    and everything below a key of _TEXT), it becomes text.
    """
    if isinstance(data, str):
        whole = None if text else _PLACEHOLDER.fullmatch(data)
        if whole is None or whole[1] is None or OPTIONAL in whole[1]:
            return fill(data, parameters)
        return parameters.get(whole[1])
    if isinstance(data, list):
        filled_items = [(fill_data(item, parameters, text=text), item) for item in data]
        return [new for new, old in filled_items if new is not None or old is None]
    if isinstance(data, dict):
        filled = {
            key: (fill_data(value, parameters, text=text or key in _TEXT), value)
            for key, value in data.items()
        }
        return {key: new for key, (new, old) in filled.items() if new is not None or old is None}
    return data


def nodes(data: object, path: str) -> Iterator[tuple[str, object]]:
    """Yield a value and all values in it, each before those that it contains, with their paths."""
    yield path, data
    if isinstance(data, dict):
        for key, item in data.items():
            yield from nodes(item, f"{path}.{key}")
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from nodes(item, f"{path}[{index}]")


def render(
    template: TrialTemplate, parameters: Assignment
) -> tuple[tuple[str, ...], dict[str, str | SecretRef]]:
    """Return the command line and environment of one trial, without what `fill` drops."""
    words = (fill(word, parameters) for word in (*template.command, *template.args))
    env: dict[str, str | SecretRef] = {}
    for name, value in template.env.items():
        filled = fill(value, parameters) if isinstance(value, str) else value
        if filled is not None:
            env[name] = filled
    return tuple(word for word in words if word is not None), env
