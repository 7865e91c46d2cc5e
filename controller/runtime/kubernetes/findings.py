"""One line of a preflight check: what was looked at, how it is, and what to do about it. A value, no more."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Level(enum.Enum):
    """The value is the word that people see."""

    OK = "ok"
    WARN = "warn"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class Finding:
    """rights: what fails is that somebody may not do something."""

    level: Level
    what: str
    detail: str
    rights: bool = False


def ok(what: str, detail: str) -> Finding:
    return Finding(Level.OK, what, detail)


def warn(what: str, detail: str) -> Finding:
    return Finding(Level.WARN, what, detail)


def fail(what: str, detail: str, *, rights: bool = False) -> Finding:
    return Finding(Level.FAIL, what, detail, rights)
