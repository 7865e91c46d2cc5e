"""Parts of messages for people: counts, and commands to type next. Pure.

A message carries a command in backticks, in its plain form. Only the command line knows how tuner was called and with
which flags; `render` puts its form in place of the plain one. A message that is never rendered stays readable.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

_COMMAND = re.compile(r"`tuner ([^`\n]+)`")


def quantity(number: int, noun: str) -> str:
    """`1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def command(*words: str) -> str:
    """`tuner resume digits`, in backticks: words in the order of the command line, not quoted yet."""
    return f"`tuner {shlex.join(words).replace('`', '')}`"


def render(text: str, rewrite: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """`text` with every command as `rewrite` says it, without backticks. It gets the words after `tuner`."""

    def rewritten(found: re.Match[str]) -> str:
        try:
            words = shlex.split(found[1])
        except ValueError:  # no command of ours: somebody's text, quoted in a reason
            return found[0]
        return shlex.join(rewrite(words))

    return _COMMAND.sub(rewritten, text)
