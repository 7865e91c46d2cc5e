"""Parts of messages for people: counts, and commands to type next. Pure.

A message contains a command in its plain form, in backticks. Only the command line knows how tuner
was called and with which flags; `render` replaces the plain form accordingly. A message that is
never rendered is still readable.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence

_COMMAND = re.compile(r"`tuner ([^`\n]+)`")


def quantity(number: int, noun: str) -> str:
    """Return the number with its noun in the singular or plural: `1 trial`, `2 trials`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def command(*words: str) -> str:
    """Return a command such as `tuner resume digits`, in backticks.

    The words are those of the command line after `tuner`, in order and not quoted yet.
    """
    return f"`tuner {shlex.join(words).replace('`', '')}`"


def render(text: str, rewrite: Callable[[Sequence[str]], Sequence[str]]) -> str:
    """Return `text` with every command rewritten and without its backticks.

    `rewrite` gets the words after `tuner` and returns the words to show.
    """

    def rewritten(match: re.Match[str]) -> str:
        try:
            words = shlex.split(match[1])
        except ValueError:  # not a command, but a foreign text quoted in a reason
            return match[0]
        return shlex.join(rewrite(words))

    return _COMMAND.sub(rewritten, text)
