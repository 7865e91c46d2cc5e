"""One attempt under the supervisor: its process group, its deadlines and its two files.

`process.json` is written before the command runs, `exit.json` before the end is reported. The
supervisor imports this module: standard library only.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from controller.boot_time import since_boot_s
from controller.runtime import processes
from controller.runtime.local.attempt_files import log_error, logs
from controller.runtime.log_limit import CHECK_S, trim

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.local.attempt_files import Message
    from controller.runtime.local.gpu_claims import GpuClaim

# in the environment of all processes of an attempt; unlike names, folders are unique
MARK = "TUNER_ATTEMPT_DIR"


class SupervisedAttempt:
    """A process group that was started or taken over. record: what process.json has."""

    def __init__(self, record: Message, directory: str) -> None:
        self.record = record
        self.directory = directory
        self.claim: GpuClaim | None = None
        self.exit: Message | None = None  # exit.json: known once all its processes are gone
        # how the leader ended, while the other processes are being killed
        self.end: Message | None = None
        self.clear_by = 0.0
        self.watched = False  # taken over from an earlier supervisor, so it is not a child process
        self.pidfd: int | None = None
        self.ooms = processes.oom_kills()
        self.stopped = self.timed_out = self.killed = False
        self.kill_at: float | None = None
        timeout_s = record["timeout_s"]
        # Right even if the wall clock was set since.
        age_s = since_boot_s() - record["since_boot_s"]
        self.timeout_at = None if timeout_s is None else time.monotonic() + timeout_s - age_s
        self.when_forgotten: list[Callable[[], None]] = []
        # By path, where the end of the log begins once its middle was dropped.
        self.logs = dict.fromkeys(logs(directory, record["workers"]), 0)
        self.check_at = time.monotonic() + CHECK_S
        self.keeps_log_limit = bool(record["log_limit"])

    @property
    def name(self) -> str:
        return str(self.record["name"])

    @property
    def pid(self) -> int:
        return int(self.record["pid"])

    @property
    def now(self) -> float:
        """Return the present by the clock of its start, even if the wall clock was set since."""
        return float(self.record["time"]) + since_boot_s() - float(self.record["since_boot_s"])

    @property
    def _record_path(self) -> str:
        return os.path.join(self.directory, "process.json")

    @property
    def mark(self) -> str:
        return f"{MARK}={self.directory}"

    def shown(self) -> Message:
        record = self.record
        return {
            "name": record["name"],
            "directory": self.directory,
            "time": record["time"],
            "since_boot_s": record["since_boot_s"],
            "gpu": record["gpu"],
            "gpus": record["gpus"],
            "exit": self.exit,
            "waiting": "",
        }

    @property
    def running(self) -> bool:
        return self.end is None and self.exit is None

    def stop(self, grace_s: float) -> None:
        """Stop the attempt, on request or at its timeout.

        For a request, the caller sets `stopped`.
        """
        if not self.running:
            return
        now = time.monotonic()
        if grace_s > 0 and self.kill_at is None and not self.killed:
            processes.signal_group(self.pid, signal.SIGTERM)
        self.kill_at = now + grace_s if self.kill_at is None else min(self.kill_at, now + grace_s)
        self.act_on_time(now)

    def act_on_time(self, now: float) -> None:
        if self.timeout_at is not None and now >= self.timeout_at:
            self.timeout_at = None
            self.timed_out = True
            self.stop(self.record["grace_s"])
        if self.kill_at is not None and now >= self.kill_at and not self.killed:
            self.killed = True
            processes.signal_group(self.pid, signal.SIGKILL)

        if now >= self.check_at:
            self.check_at = now + CHECK_S
            self._sign()
            if self.keeps_log_limit:
                self._trim_logs()

    def _sign(self) -> None:
        """Record that the attempt runs now; `last_seen` reads it after a restart of the machine."""
        try:
            os.utime(self._record_path)
        except OSError:
            pass  # the folder was deleted

    def last_seen(self) -> float:
        """Return when a supervisor has seen the attempt, or when it has printed something."""
        times = [float(self.record["time"])]
        for path in (self._record_path, *self.logs):
            try:
                times.append(os.stat(path).st_mtime)
            except OSError:
                pass
        return max(times)

    def _trim_logs(self) -> None:
        for path, dropped_to in self.logs.items():
            try:
                self.logs[path] = trim(path, self.record["log_limit"], dropped_to)
            except FileNotFoundError:
                pass
            except OSError as error:
                self.keeps_log_limit = False
                log_error(f"{self.name}: spec.trial.logLimit cannot be kept: {error}")

    def next_time(self) -> float:
        kill_at = None if self.killed else self.kill_at
        return min(t for t in (self.timeout_at, kill_at, self.check_at) if t is not None)
