"""One attempt as several processes of this machine: a leader forks them, and ends as the first of them that failed.

To the supervisor the leader is the attempt's only process; all workers are in its group, so that a stop, a timeout and
a kill mean all. It executes nothing: this is its whole code. Standard library only; imported where an attempt has
several workers, for the others are not to wait for it.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from controller.runtime.supervised import write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LOST_FILE = "worker.json"  # which worker was the cause of a failed end, where it was not the first, and what it said
_LOOK_S = 0.05
_TAIL = 4096
_LONGEST_LINE = 1000


class WorkerGroup:
    """own: of each worker, the first the one of rank 0, what its environment has beside the attempt's."""

    def __init__(self, own: list[dict[str, str]], *, directory: str, grace_s: float) -> None:
        self._own = own
        self._directory = directory
        self._grace_s = grace_s
        self._meeting: socket.socket | None = None

    def log(self, rank: int) -> str:
        """Where what it prints goes: the attempt's log is that of rank 0."""
        return os.path.join(self._directory, f"log.{rank}.txt" if rank else "log.txt")

    def logs(self) -> list[str]:
        return [self.log(rank) for rank in range(len(self._own))]

    def divide(self, env: dict[str, str], *, fault: int, inherits: int | None) -> dict[str, str]:
        """Called in the process that becomes the leader, and returns in each worker only: with its environment.

        fault: where a worker that cannot be executed says so; closes when all have been. The leader hears it first.
        inherits: a file that stays open in all of them.
        """
        _close_all_but(fault, inherits)
        hear, say = os.pipe()
        env = {**env, **self._port(env)}
        ranks: dict[int, int] = {}
        for rank, own in enumerate(self._own):
            pid = os.fork()
            if pid == 0:
                os.dup2(say, fault, inheritable=False)
                if rank:
                    fd = os.open(self.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
                    os.dup2(fd, 1)
                    os.dup2(fd, 2)
                return {**env, **own}
            ranks[pid] = rank
        os.close(say)
        if said := os.read(hear, 64):  # end-of-file when all have closed it by exec
            os.write(fault, said)
            os.killpg(0, signal.SIGKILL)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # meant for the workers, who get it too
        os.close(fault)
        self._lead(ranks)

    def _port(self, env: dict[str, str]) -> dict[str, str]:
        """Where rank 0 is to listen. On Linux it is kept from everybody else for as long as the leader lives: a socket
        that is bound and does not listen is in nobody's way who allows an address to be used again, as servers do."""
        port = env.get("MASTER_PORT")
        if port is None:
            self._meeting = socket.socket()
            self._meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._meeting.bind(("127.0.0.1", 0))
            port = str(self._meeting.getsockname()[1])
            if sys.platform != "linux":
                self._meeting.close()  # elsewhere it would be in rank 0's way too
        return {"MASTER_PORT": port, "PET_MASTER_PORT": env.get("PET_MASTER_PORT", port)}

    def _lead(self, left: dict[int, int]) -> NoReturn:
        """left: ranks by pid."""
        failed = None
        while left and failed is None:
            failed = _cause(_ended(left))
        if failed is None:
            os._exit(0)
        rank, code = failed
        if rank and code > 0:
            self._tell(rank)
        if left:
            os.killpg(0, signal.SIGTERM)
            kill_at = time.monotonic() + self._grace_s
            while left and time.monotonic() < kill_at:
                time.sleep(_LOOK_S)
                _reap(left, os.WNOHANG)
        _end_as(code)  # the supervisor kills who is left

    def _tell(self, rank: int) -> None:
        try:
            said = _last_line(self.log(rank))
            lost = {"rank": rank, "workers": len(self._own), "said": said}
            write_json(os.path.join(self._directory, LOST_FILE), lost)
        except OSError:
            pass  # a full disk, a folder that is gone: the exit code is still told


def _ended(left: dict[int, int]) -> list[tuple[int, int]]:
    """Wait for one, and collect the others that have ended by then."""
    ended = _reap(left, 0)
    while left and (more := _reap(left, os.WNOHANG)):
        ended += more
    return ended


def _reap(left: dict[int, int], options: int) -> list[tuple[int, int]]:
    """(rank, exit code) of a worker that has ended, with -n for a signal n."""
    pid, status = os.waitpid(-1, options)
    rank = left.pop(pid, None)
    return [] if rank is None else [(rank, os.waitstatus_to_exitcode(status))]


def _cause(ended: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Of several that failed at once, who was killed is the cause of the others, and who ends with EX_TEMPFAIL says
    himself that he has lost another."""
    failed = [each for each in ended if each[1] != 0]
    return min(failed, key=lambda each: (each[1] == os.EX_TEMPFAIL, each[1] > 0, each[0]), default=None)


def _end_as(code: int) -> NoReturn:
    if code > 0:
        os._exit(code)
    import resource  # here: hardly ever needed

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the worker's memory is worth looking at, ours is not
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _last_line(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    # Not the rule that torchrun draws under what it says.
    return next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")[:_LONGEST_LINE]


def _close_all_but(*kept: int | None) -> None:
    """The supervisor's lock and sockets too: what a leader held of them would outlive their owner."""
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the one that was listing
