"""Data-parallel training: each process takes a share of every batch,
and the gradients are summed over TCP.

The topology is a star: rank 0 listens and the others connect to it. In each step rank 0 adds the
gradients in the order of the ranks and sends the sum back. All ranks draw the same random numbers
and take the same steps, so the networks stay equal to the last bit and weights are never sent. This
is meant for a few ranks and small networks.

The ranks are given by the variables that torchrun uses: MASTER_ADDR, MASTER_PORT, WORLD_SIZE, RANK.
If a rank is lost, all others end, too.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import sys
import time
from collections.abc import Iterable
from typing import NoReturn

import numpy as np

# EX_TEMPFAIL of sysexits: the parameters are fine (else 42), and another attempt may succeed
LOST = 75
JOINING_S = 300.0  # another node may have to pull the image first
# a step takes milliseconds, so a rank that is silent for this long hangs, or its node is gone
SILENCE_S = 10.0
RETRY_S = 0.2
HELLO = struct.Struct("!8sII")  # the first message of a rank: greeting, rank, size of the world
GREETING = b"digits/1"
VERDICT = struct.Struct("!i")  # sent by rank 0 before each sum: the lost rank or NOBODY
NOBODY = -1


class World:
    """The ranks of one training; `peers` are the connections of rank 0 to all others,
    and of the others to rank 0.
    """

    def __init__(self, rank: int, size: int, peers: dict[int, socket.socket]) -> None:
        self.rank, self.size, self.peers = rank, size, peers

    def add_up(self, vector: np.ndarray) -> None:
        """Replace `vector` in every rank by its sum over the ranks, in place;
        ends the process if a rank is lost.
        """
        if self.rank > 0:
            self._send(vector)
            return
        deadline = time.monotonic() + SILENCE_S
        part = np.empty_like(vector)
        for rank, peer in self.peers.items():
            try:
                receive(peer, part.data.cast("B"), deadline)
            except OSError as error:
                self.lose(rank, str(error))
            vector += part
        for rank, peer in self.peers.items():
            try:
                peer.settimeout(SILENCE_S)
                peer.sendall(VERDICT.pack(NOBODY) + vector.tobytes())
            except OSError as error:
                self.lose(rank, str(error))

    def _send(self, vector: np.ndarray) -> None:
        try:
            self.peers[0].settimeout(SILENCE_S)
            self.peers[0].sendall(vector.data)
            # longer, so that rank 0 is the first to report which rank is silent
            self.listen(SILENCE_S * 1.5)
            receive(self.peers[0], vector.data.cast("B"), time.monotonic() + SILENCE_S)
        except OSError as error:
            self.lose(0, str(error))

    def listen(self, within_s: float) -> None:
        """Wait until rank 0 reports that no rank was lost. Raises OSError if it sends nothing."""
        verdict = bytearray(VERDICT.size)
        receive(self.peers[0], memoryview(verdict), time.monotonic() + within_s)
        (lost,) = VERDICT.unpack(verdict)
        if lost != NOBODY:
            self.lose(lost, "says rank 0")

    def lose(self, lost: int, reason: str) -> NoReturn:
        """End this process because a rank was lost; rank 0 tells the others first."""
        if self.rank == 0:
            tell([peer for rank, peer in self.peers.items() if rank != lost], lost)
        end(f"rank {lost} of {self.size} was lost ({reason}); rank {self.rank} ends too")


def join(patience_s: float = JOINING_S) -> World:
    """Join the ranks given by the environment.

    End the process if they are not complete within `patience_s`.
    """
    address, port = variable("MASTER_ADDR"), number("MASTER_PORT")
    rank, size = number("RANK"), number("WORLD_SIZE")
    if not 0 <= rank < size:
        sys.exit(f"train.py: RANK={rank} is not below WORLD_SIZE={size}: ranks count from 0")
    deadline = time.monotonic() + patience_s
    if rank == 0:
        with listener(address, port, deadline) as server:
            return gather(server, size, deadline)
    world = World(rank, size, {0: connection(address, port, deadline)})
    try:
        world.peers[0].sendall(HELLO.pack(GREETING, rank, size))
        world.listen(patience_s + SILENCE_S)
    except OSError as error:
        world.lose(0, str(error))
    return world


def gather(server: socket.socket, size: int, deadline: float) -> World:
    """Accept the other ranks. Notice at once if a rank is lost before all have joined."""
    world = World(0, size, {})
    peers = world.peers
    while absent := [rank for rank in range(1, size) if rank not in peers]:
        ready, _, _ = select.select(
            [server, *peers.values()], [], [], max(deadline - time.monotonic(), 0)
        )
        if not ready:
            tell(peers.values(), absent[0])
            end(f"rank {', '.join(map(str, absent))} of {size} did not join in time; rank 0 ends")
        for rank, peer in peers.items():
            # ranks send nothing before all have joined, so the connection was closed
            if peer in ready:
                world.lose(rank, "before all had joined")
        if server in ready:
            peer, _ = server.accept()
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            rank = introduction(peer, size)
            if rank in absent:
                peers[rank] = peer
            else:  # not a rank, for example a port scanner or a health check
                peer.close()
    world.peers = dict(sorted(peers.items()))  # the order of summation, the same in every run
    tell(peers.values(), NOBODY)
    return world


def introduction(peer: socket.socket, size: int) -> int:
    """Return the rank of the peer, NOBODY if it is not a rank of this world."""
    hello = bytearray(HELLO.size)
    try:
        receive(peer, memoryview(hello), time.monotonic() + 2)
    except OSError:
        return NOBODY
    greeting, rank, its_size = HELLO.unpack(hello)
    return rank if (greeting, its_size) == (GREETING, size) else NOBODY


def listener(address: str, port: int, deadline: float) -> socket.socket:
    while True:
        try:
            family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(place, family=family)
        except socket.gaierror as error:  # its own name may not be in DNS yet
            wait_or_end(
                f"rank 0 cannot find its own address MASTER_ADDR={address}: {error}", deadline
            )
        except OSError as error:
            end(f"rank 0 cannot listen on {address}:{port}: {error}")


def connection(address: str, port: int, deadline: float) -> socket.socket:
    """Connect to rank 0. Retry while its name is unknown or nothing listens,
    which is normal at the start.
    """
    while True:
        try:
            peer = socket.create_connection((address, port), timeout=SILENCE_S)
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return peer
        except OSError as error:
            wait_or_end(f"rank 0 was not found at {address}:{port}: {error}", deadline)


def wait_or_end(reason: str, deadline: float) -> None:
    if time.monotonic() > deadline:
        end(reason)
    time.sleep(RETRY_S)


def receive(peer: socket.socket, buffer: memoryview, deadline: float) -> None:
    """Fill the buffer. Raises OSError if the connection breaks or the deadline passes."""
    while buffer:
        peer.settimeout(max(deadline - time.monotonic(), 0.001))
        count = peer.recv_into(buffer)
        if count == 0:
            raise ConnectionError("its connection was closed")
        buffer = buffer[count:]


def tell(peers: Iterable[socket.socket], lost: int) -> None:
    """Send which rank was lost, and wait until all have read it:
    closing at once could discard the message.
    """
    for peer in peers:
        with contextlib.suppress(OSError):
            peer.settimeout(1)
            peer.sendall(VERDICT.pack(lost))
            if lost != NOBODY:
                peer.shutdown(socket.SHUT_WR)
                while peer.recv(1 << 16):
                    pass


def end(reason: str) -> NoReturn:
    print(reason, file=sys.stderr, flush=True)
    sys.exit(LOST)


def variable(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        sys.exit(
            f"train.py: WORLD_SIZE is above 1, and {name} is not set: torchrun and tuner set it"
        )
    return value


def number(name: str) -> int:
    value = variable(name)
    if not value.isdecimal():
        sys.exit(f"train.py: {name}={value} is not a whole number")
    return int(value)
