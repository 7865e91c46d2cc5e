"""One attempt as several processes of this machine: a leader forks the workers, and ends like the
first that failed.

The supervisor sees the leader as the attempt's only process. All workers are in its process group,
so that a stop, a timeout and a kill reach all of them. The leader executes no other program; its
code is here. Standard library only. Imported only if an attempt has several workers, to save the
time in all other cases.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

from controller.runtime.local.attempt_files import logs, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

LOST_FILE = "worker.json"  # which worker caused a failure, unless it is rank 0, and its message
_LOOK_S = 0.05
_TAIL = 4096
_LONGEST_LINE = 1000


class WorkerGroup:
    """The workers of one attempt.

    `environments` has the additional variables of each worker, by rank.
    """

    def __init__(
        self, environments: list[dict[str, str]], *, directory: str, grace_s: float
    ) -> None:
        self._environments = environments
        self._directory = directory
        self._grace_s = grace_s
        self._meeting: socket.socket | None = None

    def log(self, rank: int) -> str:
        """Return the path of a worker's log; the log of rank 0 is the attempt's."""
        return self.logs()[rank]

    def logs(self) -> list[str]:
        return logs(self._directory, len(self._environments))

    def divide(self, env: dict[str, str], *, fault: int, inherits: int | None) -> dict[str, str]:
        """Fork the workers, in the process that becomes the leader.

        Returns in the workers only, with the environment.

        Args:
            fault: A file to which a worker that cannot be executed writes; it is closed once all
                were executed. The leader reads the message first.
            inherits: A file that stays open in all workers.
        """
        _close_all_but(fault, inherits)
        reading_end, writing_end = os.pipe()
        env = {**env, **self._port(env)}
        ranks: dict[int, int] = {}
        for rank, environment in enumerate(self._environments):
            pid = os.fork()
            if pid == 0:
                os.dup2(writing_end, fault, inheritable=False)
                if rank:
                    fd = os.open(
                        self.log(rank), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
                    )
                    os.dup2(fd, 1)
                    os.dup2(fd, 2)
                return {**env, **environment}
            ranks[pid] = rank
        os.close(writing_end)
        if report := os.read(reading_end, 64):  # end-of-file once exec has closed it in all workers
            os.write(fault, report)
            os.killpg(0, signal.SIGKILL)
        # the workers get the signal, too, and are to handle it
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.close(fault)
        self._lead(ranks)

    def _port(self, env: dict[str, str]) -> dict[str, str]:
        """Return the variable with a free port for rank 0.

        On Linux the leader reserves the port as long as it lives, by a socket
        that is bound but does not listen. Such a socket does not disturb a server
        that sets SO_REUSEADDR, as servers do.
        """
        port = env.get("MASTER_PORT")
        if port is None:
            self._meeting = socket.socket()
            self._meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._meeting.bind(("127.0.0.1", 0))
            port = str(self._meeting.getsockname()[1])
            if sys.platform != "linux":
                self._meeting.close()  # on other systems it would block rank 0, too
        return {"MASTER_PORT": port, "PET_MASTER_PORT": env.get("PET_MASTER_PORT", port)}

    def _lead(self, alive: dict[int, int]) -> NoReturn:
        """Wait for the workers and exit like the first that failed.

        `alive` maps pids of running workers to ranks.
        """
        failed = None
        while alive and failed is None:
            failed = _cause(_ended(alive))
        if failed is None:
            os._exit(0)
        rank, code = failed
        if rank and code > 0:
            self._record_lost(rank)
        if alive:
            os.killpg(0, signal.SIGTERM)
            kill_at = time.monotonic() + self._grace_s
            while alive and time.monotonic() < kill_at:
                time.sleep(_LOOK_S)
                _reap(alive, os.WNOHANG)
        _end_as(code)  # the supervisor kills the remaining workers

    def _record_lost(self, rank: int) -> None:
        try:
            last_line = _last_line(self.log(rank))
            lost = {"rank": rank, "workers": len(self._environments), "said": last_line}
            write_json(os.path.join(self._directory, LOST_FILE), lost)
        except OSError:
            pass  # the disk is full or the folder is gone; the exit code is still reported


def _ended(alive: dict[int, int]) -> list[tuple[int, int]]:
    """Wait until a worker ends, and return all that have ended by then."""
    ended = _reap(alive, 0)
    while alive and (reaped := _reap(alive, os.WNOHANG)):
        ended += reaped
    return ended


def _reap(alive: dict[int, int], options: int) -> list[tuple[int, int]]:
    """Return (rank, exit code) of at most one worker that has ended; code -n means signal n."""
    pid, status = os.waitpid(-1, options)
    rank = alive.pop(pid, None)
    return [] if rank is None else [(rank, os.waitstatus_to_exitcode(status))]


def _cause(ended: list[tuple[int, int]]) -> tuple[int, int] | None:
    """Return the worker that caused the failure, if several failed at once.

    A killed worker is the cause of the other failures. A worker that exits with EX_TEMPFAIL reports
    that it lost another one, so it is not the cause.
    """
    failed = [exit_of_worker for exit_of_worker in ended if exit_of_worker[1] != 0]
    return min(
        failed,
        key=lambda exit_of_worker: (
            exit_of_worker[1] == os.EX_TEMPFAIL,
            exit_of_worker[1] > 0,
            exit_of_worker[0],
        ),
        default=None,
    )


def _end_as(code: int) -> NoReturn:
    if code > 0:
        os._exit(code)
    import resource  # lazy: rarely needed

    # the worker's core dump is useful, the leader's is not
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
    os._exit(128 - code)


def _last_line(path: str) -> str:
    with open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL))
        lines = file.read().decode(errors="replace").split("\n")
    # Skip the rule that torchrun prints below its message.
    return next((line.strip() for line in reversed(lines) if any(map(str.isalnum, line))), "")[
        :_LONGEST_LINE
    ]


def _close_all_but(*kept: int | None) -> None:
    """Close all files but these.

    This includes the supervisor's lock and sockets, which must not outlive the supervisor.
    """
    for name in os.listdir("/dev/fd"):
        if int(name) > 2 and int(name) not in kept:
            try:
                os.close(int(name))
            except OSError:
                pass  # the descriptor of the listing itself
