"""How many files and connections a server may have open."""

from __future__ import annotations

import contextlib
import resource

MAX_CONNECTIONS = 10_000  # of a port
MAX_DESCRIPTORS = 1 << 20


def max_connections() -> int:
    """Return how many connections a port may have, which leaves file descriptors for the store."""
    return min(MAX_CONNECTIONS, descriptor_limit() // 2)


def descriptor_limit() -> int:
    """Return how many files and connections this process may have open."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else limit


def raise_descriptor_limit() -> None:
    """Raise the limit of file descriptors as far as allowed.

    Each connection and each study being written takes one.

    `tuner run` must not call this: trials would inherit the limit, and programs that use select()
    fail with high descriptor numbers.
    """
    now, hard_limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = (
        MAX_DESCRIPTORS
        if hard_limit == resource.RLIM_INFINITY
        else min(hard_limit, MAX_DESCRIPTORS)
    )
    for limit in (target, 10_240):  # macOS reports no limit, but has one
        if limit > now:
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard_limit))
                return
