"""Named places where a test may kill the process: `TUNER_FAILPOINT=NAME[:HIT]` ends it with SIGKILL
the HIT-th time (default 1) that NAME is reached. `tuner debug failpoints` lists the names.

Every write to a store and every call between parts has one before and one after it, so that "killed
at any moment" is tested at each moment. A failpoint must do nothing else: no logging, no cleanup,
no exception that could be caught.
"""

from __future__ import annotations

import os
import signal
from typing import NamedTuple

_NAMES: dict[str, None] = {}


_armed, _hits_left = "", 0


def arm(setting: str) -> None:
    """Read the variable. Called at import, and again by a process that a test forks later."""
    global _armed, _hits_left  # noqa: PLW0603 - one process, one countdown
    _armed, _, hit = setting.partition(":")
    _hits_left = int(hit) if hit else 1


arm(os.environ.get("TUNER_FAILPOINT", ""))


class Failpoints(NamedTuple):
    """The points around a call, which is made in a `with` block."""

    before: str
    after: str

    def __enter__(self) -> None:
        reach(self.before)

    def __exit__(self, error: object, *_: object) -> None:
        if error is None:
            reach(self.after)


def register(call: str) -> Failpoints:
    """Declare the two points around `call`, at import."""
    points = Failpoints(f"{call}.before", f"{call}.after")
    _NAMES.update(dict.fromkeys(points))
    return points


def names() -> list[str]:
    """Return all points of the modules imported so far, in the order of declaration."""
    return list(_NAMES)


def reach(point: str) -> None:
    """Kill this process if the variable names this point and this hit."""
    global _hits_left  # noqa: PLW0603 - one process, one countdown
    if point != _armed:
        return
    _hits_left -= 1
    if _hits_left == 0:
        os.kill(os.getpid(), signal.SIGKILL)
