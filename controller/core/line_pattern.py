"""Regular expressions that people write for lines of a log: two groups,
a metric's name and its value.

RE2 matches in time linear in the line, whatever the expression, and has the syntax of Go and so of
Katib's filters. It has no look-around and no back-references.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

# The most matches in one line: each may look at the rest of the line.
MAX_MATCHES = 1000
_EXAMPLE = r"(\w+)=(\S+)"
# Outside of a class of characters: an escape, quoted text, a class,
# the beginning or the end of a group.
_TOKEN = re.compile(
    r"\\Q.*?(?:\\E|\Z)|\\.|\[\^?\]?(?:\\.|\[:\^?\w+:\]|[^\]\\])*\]"
    r"|\((?:\?P?<\w+>|(?P<other>\?)|)|\)",
    re.DOTALL,
)
_COMMA = re.compile(rb",\d[\d,.]{0,30}")
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")
_BACK_REFERENCE = re.compile(r"\\[1-9]|\(\?P=")


class LinePattern:
    """One expression.

    Raises ValueError, with the cure, if it is not an expression or has not two groups.

    The two groups are those that are not within another group: `([+-]?\\d+(\\.\\d+)?)` is one.
    """

    def __init__(self, text: str) -> None:
        # Few files have patterns, and the package takes 6 ms.
        import re2

        options = re2.Options()
        options.log_errors = False
        try:
            # Bytes, because the package would count characters for each match of a str.
            self._expression = re2.compile(text.encode(), options)
        except (re2.error, UnicodeEncodeError) as error:
            raise ValueError(
                f"{text!r} is not a regular expression: {_reason(text, error)}"
            ) from None
        groups = _outer_groups(text)
        if len(groups) != 2:
            message = f"{text!r} has {len(groups)} groups where two are needed, name and value"
            raise ValueError(f"{message}; (?:…) groups without one")
        self._name, self._value = groups

    def pairs(self, line: str) -> Iterator[tuple[str, str]]:
        """Yield the name and the value of each match, without spaces around them."""
        raw = line.encode()
        has_comma = b"," in raw
        for match in itertools.islice(self._expression.finditer(raw), MAX_MATCHES):
            name, value = match[self._name], match[self._value]
            if not (name and value):
                continue
            # Not 0 of `accuracy = 0,97`.
            if (
                has_comma
                and value.lstrip(b"+-").isdigit()
                and (rest := _COMMA.match(raw, match.end(self._value)))
            ):
                value += rest[0]
            yield name.decode("utf-8", "replace").strip(), value.decode("utf-8", "replace").strip()


def _reason(text: str, error: Exception) -> str:
    if _LOOK_AROUND.search(text):
        return (
            "look-around such as (?=…) and (?<!…) is not supported; match the text around the "
            "two groups"
        )
    if _BACK_REFERENCE.search(text):
        return r"references to groups such as \1 are not supported; write what they stand for"
    told = error.args[0] if error.args else error
    told = told.decode("utf-8", "replace") if isinstance(told, bytes) else told
    return f"{told}; write one such as {_EXAMPLE!r}, in the syntax of RE2"


def _outer_groups(text: str) -> list[int]:
    """Return the numbers of the outermost capturing groups of a valid expression."""
    outer: list[int] = []
    count = 0
    # For each open group: whether it captures.
    captures: list[bool] = []
    for token in _TOKEN.finditer(text):
        if token[0] == ")":
            captures.pop()
        elif token[0][0] == "(":
            is_capture = token["other"] is None
            if is_capture:
                count += 1
                if not any(captures):
                    outer.append(count)
            captures.append(is_capture)
    return outer
