"""Parameters inside the script of a shell, which reads their text as code: `sh -c "train --opt ${optimizer}"`. Pure.

A warning, not a refusal: the values of a file are its author's. Numbers, booleans and null cannot be read as code, so
only choices with text, lists or mappings are warned of.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from controller.spec.document import Json
from controller.spec.substitute import placeholders

SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})
_WITH_ARGUMENT = frozenset({"--rcfile", "--init-file"})

Word = tuple[str, object]  # with its path


def warnings(spec: Json) -> Iterator[str]:
    """Of a canonical `spec`: the place, the parameters and the cure."""
    text = {name for name, given in spec["parameters"].items() if _may_be_code(given)}
    for path, script in _scripts_of(spec):
        names = [name for name in dict.fromkeys(placeholders(script)) if name in text]
        if names:
            shown = ", ".join(f"${{{name}}}" for name in names)
            places = " ".join(f'"${place}"' for place in range(1, len(names) + 1))
            words = ", ".join(["sh", *(f'"${{{name}}}"' for name in names)])
            one = len(names) == 1
            yield (
                f"{path}: the shell reads the text of {shown} as code; write {places} in the script and append "
                f"the words {words} to the command, or set {'a variable' if one else 'variables'} in env"
            )


def _may_be_code(parameter: Json) -> bool:
    return any(isinstance(value, str | list | dict) for value in parameter.get("values", ()))


def _scripts_of(spec: Json) -> Iterator[tuple[str, str]]:
    trial, final = spec["trial"], spec.get("final", {})
    yield from scripts(_words("spec.trial", trial))
    yield from _in_template("spec.trial.template", trial.get("template"))
    if "command" in final or "args" in final:
        parts = [("spec.final" if key in final else "spec.trial", key) for key in ("command", "args")]
        yield from scripts(
            [word for section, key in parts for word in _words(section, {key: {**trial, **final}.get(key)})]
        )


def _in_template(path: str, data: object) -> Iterator[tuple[str, str]]:
    if isinstance(data, dict):
        yield from scripts(_words(path, data))
        for key, each in data.items():
            yield from _in_template(f"{path}.{key}", each)
    elif isinstance(data, list):
        for index, each in enumerate(data):
            yield from _in_template(f"{path}[{index}]", each)


def _words(path: str, container: Mapping[str, object]) -> list[Word]:
    words: list[Word] = []
    for key in ("command", "args"):
        given = container.get(key)
        if isinstance(given, list):
            words += [(f"{path}.{key}[{index}]", word) for index, word in enumerate(given)]
    return words


def scripts(words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """What shells are given after `-c`, wherever the shell is: `env -i bash -lc …` too."""
    for place, (_, word) in enumerate(words):
        if isinstance(word, str) and word.rpartition("/")[2] in SHELLS:
            path, script = _script(words[place + 1 :])
            if script:
                yield path, script


def _script(arguments: Sequence[Word]) -> tuple[str, str]:
    """The first operand of a shell that has `-c` among its options; text is "" where there is none."""
    has_command = False
    rest = iter(arguments)
    for path, word in rest:
        if not isinstance(word, str):
            break
        if word.startswith("--command="):
            return path, word
        if word.startswith("--") and word != "--":
            has_command |= word == "--command"
            if word in _WITH_ARGUMENT:
                next(rest, None)
        elif word[:1] in ("-", "+") and len(word) > 1 and word != "--":
            has_command |= word[0] == "-" and "c" in word
            if word[-1] in "oO":  # -o pipefail, -euo pipefail
                next(rest, None)
        elif word != "--":
            return (path, word) if has_command else ("", "")
    return "", ""
