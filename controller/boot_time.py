"""A clock that no change of the wall clock moves, which all processes
of the machine share until it restarts.

The supervisor imports this module: standard library only, nothing of the project.
"""

from __future__ import annotations

import time

# On Linux CLOCK_MONOTONIC, unlike on macOS, stands still while the machine sleeps.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def since_boot_s() -> float:
    """Return the seconds since the machine was started, including those asleep."""
    return time.clock_gettime(_CLOCK)
