"""Exit codes, the numbers that scripts rely on (docs/cli.md). No verb invents its own."""

from __future__ import annotations

import enum


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1  # the failed-trial limit
    USAGE = 2  # usage, or an invalid file
    NO_RESULT = 3  # finished or failed without one succeeded trial
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    UNAVAILABLE = 7
    PAUSED = 8
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143
