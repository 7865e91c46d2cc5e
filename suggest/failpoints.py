"""Named places where a test may kill the process: `TUNER_FAILPOINT=NAME[:HIT]` ends it with SIGKILL the HIT-th time
(default 1) that NAME is reached. `tuner debug failpoints` lists the names.

Every write to a store and every call between parts has one before and one after, so that "killed at any moment" is
tested moment by moment. Nothing else may hide here: no logging, no cleanup, no exception that somebody could catch.
"""

from __future__ import annotations

import os
import signal

_NAMES: dict[str, None] = {}


_armed, _hits_left = "", 0


def arm(setting: str) -> None:
    """Done at import; repeated by a process that a test forked after that."""
    global _armed, _hits_left  # noqa: PLW0603 - one process, one countdown
    _armed, _, hit = setting.partition(":")
    _hits_left = int(hit) if hit else 1


arm(os.environ.get("TUNER_FAILPOINT", ""))


def register(call: str) -> tuple[str, str]:
    """Declare the two points around `call`, at import; returns (before, after)."""
    points = (f"{call}.before", f"{call}.after")
    _NAMES.update(dict.fromkeys(points))
    return points


def names() -> list[str]:
    """All points of the modules imported so far, in order of declaration."""
    return list(_NAMES)


def reach(point: str) -> None:
    """Die here if this is the point and the hit that were asked for."""
    global _hits_left  # noqa: PLW0603 - one process, one countdown
    if point != _armed:
        return
    _hits_left -= 1
    if _hits_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
