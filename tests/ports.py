"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import random
import socket

_taken: set[int] = set()
# Drawn apart from the tests' own random numbers, which workers may seed alike.
_random = random.SystemRandom()


def free_port() -> int:
    """Return a free port below the ephemeral range,
    so that no outgoing connection takes it first.
    """
    for _ in itertools.repeat(None, 200):
        port = _random.randint(20000, 30000)
        with socket.socket() as attempt:
            try:
                attempt.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in _taken:
            _taken.add(port)
            return port
    raise RuntimeError("no free port between 20000 and 30000")
