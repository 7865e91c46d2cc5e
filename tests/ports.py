"""Ports for the servers of tests."""

from __future__ import annotations

import itertools
import random
import socket
from contextlib import closing

# Drawn apart from the tests' own random numbers, which workers may seed alike.
_random = random.SystemRandom()
# One per port that was drawn: other processes of tests see it until this one ends.
_claims: list[socket.socket] = []


def free_port() -> int:
    """Return a TCP port that is free on all addresses, and that no other process of tests draws.

    It lies below the ephemeral range, so that no outgoing connection takes it first. The UDP port
    of the same number is held meanwhile: the server may bind its own much later.
    """
    for _ in itertools.repeat(None, 200):
        port = _random.randint(20000, 30000)
        claim = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        try:
            claim.bind(("127.0.0.1", port))
            with closing(socket.create_server(("", port))):
                pass
        except OSError:
            claim.close()
            continue
        _claims.append(claim)
        return port
    raise RuntimeError("no free port between 20000 and 30000")
