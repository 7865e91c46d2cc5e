"""Warn of parameters inside a shell script such as `sh -c "train --opt ${optimizer}"`, which reads
them as code. Pure.

This is only a warning, because the author of the file chooses the values. Numbers, booleans, null
and plain words cannot be read as code, so only choices with other strings, lists or mappings get a
warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from controller.core.substitute import nodes, placeholders
from controller.spec.document import Json

SHELLS = frozenset({"ash", "bash", "csh", "dash", "fish", "ksh", "mksh", "sh", "tcsh", "zsh"})
_PLAIN = re.compile(r"[\w./:=,@%+-]*")  # a shell leaves this text as it is
_WITH_ARGUMENT = frozenset({"--rcfile", "--init-file"})

# Its path, and the word. Any: a template may have anything as a word.
Word = tuple[str, Any]


def warnings(spec: Json) -> Iterator[str]:
    """Yield the warnings of a canonical `spec`: each has the place, the parameters and the cure."""
    text = {name for name, fields in spec["parameters"].items() if _may_be_code(fields)}
    for path, script in _scripts_of(spec):
        names = [name for name in dict.fromkeys(placeholders(script)) if name in text]
        if names:
            shown = [f"${{{name}}}" for name in names]
            arguments = " ".join(f'"${number}"' for number in range(1, len(names) + 1))
            quoted = ", ".join(["sh", *(f'"{each}"' for each in shown)])
            variables = "a variable" if len(names) == 1 else "variables"
            yield (
                f"{path}: the shell reads the text of {', '.join(shown)} as code; write "
                f"{arguments} in the script and append the words {quoted} to the command, or set "
                f"{variables} in env"
            )


def _may_be_code(parameter: Json) -> bool:
    return any(
        isinstance(value, list | dict) or (isinstance(value, str) and not _PLAIN.fullmatch(value))
        for value in parameter.get("values", ())
    )


def _scripts_of(spec: Json) -> Iterator[tuple[str, str]]:
    trial, final = spec["trial"], spec.get("final", {})
    yield from scripts(words("spec.trial", trial))
    for path, value in nodes(trial.get("template"), "spec.trial.template"):
        if isinstance(value, dict):
            yield from scripts(words(path, value))
    if "command" in final or "args" in final:
        line: list[Word] = []
        for key in ("command", "args"):
            section, workload = ("spec.final", final) if key in final else ("spec.trial", trial)
            line += words(section, {key: workload.get(key)})
        yield from scripts(line)


def words(path: str, container: Mapping[str, object]) -> list[Word]:
    """Return the words of the command and its arguments, with their paths."""
    found: list[Word] = []
    for key in ("command", "args"):
        value = container.get(key)
        if isinstance(value, list):
            found += [(f"{path}.{key}[{index}]", word) for index, word in enumerate(value)]
    return found


def scripts(line: Sequence[Word]) -> Iterator[tuple[str, str]]:
    """Yield the scripts that shells get after `-c`, with their paths.

    The shell may be anywhere on the command line, as in `env -i bash -lc …`.
    """
    for place, (_, word) in enumerate(line):
        if isinstance(word, str) and word.rpartition("/")[2] in SHELLS:
            path, script = _script(line[place + 1 :])
            if script:
                yield path, script


def _script(arguments: Sequence[Word]) -> tuple[str, str]:
    """Return the path and text of the first operand of a shell with `-c`; "" without one."""
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
            # Takes an argument: -o pipefail, -euo pipefail.
            if word[-1] in "oO":
                next(remaining, None)
        elif word != "--":
            return (path, word) if has_command else ("", "")
    return "", ""
