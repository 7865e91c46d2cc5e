"""Parameters into a trial's command line: what `${name}` becomes. Pure; knows nothing of files and processes.

`$${` is a literal `${`; other notations ($NAME, $(NAME), {{name}}) are the program's own and left alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from controller.core.model import SecretRef, TrialTemplate
from suggest.domain import compact_json
from suggest.space import Assignment, Value

_PLACEHOLDER = re.compile(r"\$\$\{|\$\{([^{}]*)\}")
# Keys of lists and mappings whose values are text: a number there is refused.
_TEXT = frozenset(
    {"command", "args", "env", "labels", "annotations", "matchLabels", "matchExpressions", "nodeSelector", "data"}
)
_OPENED = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_.-]*)?")


def placeholders(text: str) -> Iterator[str]:
    """The names in `${…}`, in order."""
    return (found[1] for found in _PLACEHOLDER.finditer(text) if found[1] is not None)


def unclosed(text: str) -> Iterator[str]:
    """The name after each `${` that no `}` closes; "" where none stands there."""
    # What is closed, or a literal, becomes a break, so that its rest cannot look like an opening.
    return (found[1] or "" for found in _OPENED.finditer(_PLACEHOLDER.sub("\n", text)))


def as_text(value: Value) -> str:
    """A value as it reaches a program: text as it is, all else as compact JSON, which for numbers is the shortest form
    that reads back the same."""
    if isinstance(value, str):
        return value
    return repr(value) if isinstance(value, float) else compact_json(value)


def fill(text: str, parameters: Assignment) -> str | None:
    """`text` with its placeholders filled in; None where it mentions a parameter that has no value (is inactive)."""
    if any(name not in parameters for name in placeholders(text)):
        return None
    return _PLACEHOLDER.sub(lambda m: "${" if m[1] is None else as_text(parameters[m[1]]), text)


def fill_data(data: object, parameters: Assignment, *, text: bool = False) -> object:
    """The same for every string within plain data (a manifest): keys stay, what mentions an inactive parameter goes.

    A string that is nothing but `${name}` becomes the parameter's value, with its type; but text where Kubernetes takes
    nothing else (`text`): below _TEXT, in any kind of object. A parameter that is null is as if it were inactive.
    """
    if isinstance(data, str):
        only = None if text else _PLACEHOLDER.fullmatch(data)
        return parameters.get(only[1]) if only is not None and only[1] is not None else fill(data, parameters)
    if isinstance(data, list):
        filled_items = [(fill_data(item, parameters, text=text), item) for item in data]
        return [new for new, old in filled_items if new is not None or old is None]
    if isinstance(data, dict):
        filled = {key: (fill_data(value, parameters, text=text or key in _TEXT), value) for key, value in data.items()}
        return {key: new for key, (new, old) in filled.items() if new is not None or old is None}
    return data


def render(template: TrialTemplate, parameters: Assignment) -> tuple[tuple[str, ...], dict[str, str | SecretRef]]:
    """The command line and the environment of one trial; elements that mention an inactive parameter are dropped."""
    words = (fill(word, parameters) for word in (*template.command, *template.args))
    env: dict[str, str | SecretRef] = {}
    for name, value in template.env.items():
        filled = fill(value, parameters) if isinstance(value, str) else value
        if filled is not None:
            env[name] = filled
    return tuple(word for word in words if word is not None), env
