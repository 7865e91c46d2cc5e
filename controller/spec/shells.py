"""Warn of parameters inside a shell script such as `sh -c "train --opt ${optimizer}"`, which reads them as code. Pure.

This is only a warning, because the author of the file chooses the values. Numbers, booleans and null cannot be read as
code, so only choices with strings, lists or mappings get a warning.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from controller.spec.document import Json
from controller.spec.substitute import placeholders

SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})
_WITH_ARGUMENT = frozenset({"--rcfile", "--init-file"})

Word = tuple[str, object]  # its path, and the word


def warnings(spec: Json) -> Iterator[str]:
    """Yield the warnings of a canonical `spec`, each with the place, the parameters and the cure."""
    text = {name for name, fields in spec["parameters"].items() if _may_be_code(fields)}
    for path, script in _scripts_of(spec):
        names = [name for name in dict.fromkeys(placeholders(script)) if name in text]
        if names:
            list_of_names = ", ".join(f"${{{name}}}" for name in names)
            places = " ".join(f'"${place}"' for place in range(1, len(names) + 1))
            words = ", ".join(["sh", *(f'"${{{name}}}"' for name in names)])
            single = len(names) == 1
            yield (
                f"{path}: the shell reads the text of {list_of_names} as code; write {places} in the script and append "
                f"the words {words} to the command, or set {'a variable' if single else 'variables'} in env"
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
        for key, item in data.items():
            yield from _in_template(f"{path}.{key}", item)
    elif isinstance(data, list):
        for index, item in enumerate(data):
            yield from _in_template(f"{path}[{index}]", item)


def _words(path: str, container: Mapping[str, object]) -> list[Word]:
    words: list[Word] = []
    for key in ("command", "args"):
        value = container.get(key)
        if isinstance(value, list):
            words += [(f"{path}.{key}[{index}]", word) for index, word in enumerate(value)]
    return words


def scripts(words: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """Yield the scripts that shells get after `-c`, with their paths.

    The shell may be anywhere on the command line, as in `env -i bash -lc …`.
    """
    for place, (_, word) in enumerate(words):
        if isinstance(word, str) and word.rpartition("/")[2] in SHELLS:
            path, script = _script(words[place + 1 :])
            if script:
                yield path, script


def _script(arguments: Sequence[Word]) -> tuple[str, str]:
    """Return the path and text of the first operand of a shell with the option `-c`; "" if there is none."""
    has_command = False
    remaining = iter(arguments)
    for path, word in remaining:
        if not isinstance(word, str):
            break
        if word.startswith("--command="):
            return path, word
        if word.startswith("--") and word != "--":
            has_command |= word == "--command"
            if word in _WITH_ARGUMENT:
                next(remaining, None)
        elif word[:1] in ("-", "+") and len(word) > 1 and word != "--":
            has_command |= word[0] == "-" and "c" in word
            if word[-1] in "oO":  # takes an argument: -o pipefail, -euo pipefail
                next(remaining, None)
        elif word != "--":
            return (path, word) if has_command else ("", "")
    return "", ""
