"""Tables of changes to a good file and what is said of each, written as differences are.

Lines with - are replaced by those with +, and the lines behind two spaces are the message; no such
line means that the change is accepted.
"""

from __future__ import annotations

import re

_CHANGE = re.compile(r"((?:-.*\n)+)((?:\+.*\n)+)((?:  .*\n)*)")


def changes(table: str) -> list[tuple[str, str, str]]:
    """Return the old text, the new text and the message of each change in a table."""
    return [
        (_unmarked(old), _unmarked(new), _unmarked(message))
        for old, new, message in _CHANGE.findall(table)
    ]


def _unmarked(lines: str) -> str:
    return "\n".join(line[2:] for line in lines.splitlines())
