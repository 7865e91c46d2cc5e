"""All attempts of one experiment that were not removed, from start to end; part of the supervisor.

Facts that a later supervisor needs are written to files before they take effect or are reported:
`live/<name>` links to the folder of each attempt that was not removed, and `supervised` describes
the files there. Standard library only; knows nothing about sockets.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from controller.boot_time import since_boot_s
from controller.runtime import processes
from controller.runtime.local.attempt_files import (
    log_error,
    logs,
    read_json,
    unlink,
    write_json,
)
from controller.runtime.local.launching import LaunchRefused, launch
from controller.runtime.local.supervised import MARK, SupervisedAttempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.local.attempt_files import Message
    from controller.runtime.local.forked_python import ForkedModule
    from controller.runtime.local.gpu_claims import GpuClaim
    from controller.runtime.local.worker_group import WorkerGroup

CLEARING_S = 2.0  # how long the end of an attempt waits for its remaining processes to be gone
TICK_S = 0.05  # polling interval for changes that give no wakeup
# other supervisors wake this one when they release GPUs, but the kernel does not
LOOK_FOR_GPUS_S = 0.25


class Trials:
    """The attempts of one experiment.

    `send` is called with each ended attempt once its end is recorded. `forked` is the module that
    is forked for trials whose command runs it.
    """

    def __init__(
        self, folder: str, *, send: Callable[[Message], None], forked: ForkedModule | None
    ) -> None:
        self._send = send
        self._forked = forked
        self._live = os.path.join(folder, "live")
        self._attempts: dict[str, SupervisedAttempt] = {}
        self._running: dict[int, SupervisedAttempt] = {}  # by pid, until the exit is written
        self._waiting: dict[str, Message] = {}  # requests that wait for a slot, oldest first
        # claims of requests that wait for GPUs, oldest first
        self._claims: dict[str, GpuClaim] = {}
        # shown for waiting attempts that could not be started in their turn
        self._refused: dict[str, Message] = {}
        self._slots: int | None = None
        processes.adopt_orphans()
        os.makedirs(self._live, exist_ok=True)
        for name in os.listdir(self._live):
            self._take_over(name)

    @property
    def running(self) -> bool:
        return bool(self._running)

    def shown(self) -> list[Message]:
        waiting = [_shown_waiting(request) for request in self._waiting.values()]
        waiting += [_shown_waiting(claim.request, claim.reason) for claim in self._claims.values()]
        return [
            *(attempt.shown() for attempt in self._attempts.values()),
            *waiting,
            *self._refused.values(),
        ]

    def start(self, request: Message) -> list[Message]:
        """Start the attempt or let it wait, and return its status.

        None: it was started, ended and removed before. Raises LaunchRefused.
        """
        name = request["name"]
        if name in self._attempts:
            return [self._attempts[name].shown()]
        if name in self._waiting:
            return [_shown_waiting(self._waiting[name])]
        if name in self._claims:
            return [_shown_waiting(self._claims[name].request, self._claims[name].reason)]
        if os.path.exists(os.path.join(request["directory"], "process.json")):
            return []  # it was started, ended and removed before
        self._refused.pop(name, None)
        if request["gpu"] > 0:
            return [self._claim(request)]
        self._slots = request["slots"]
        if self._full():
            self._waiting[name] = request
            return [_shown_waiting(request)]
        return [self._begin(request).shown()]

    def _full(self) -> bool:
        return self._slots is not None and len(self._running) >= self._slots

    def _fill_slots(self) -> list[Message]:
        """Start waiting attempts in free slots, oldest first, and return their statuses."""
        messages: list[Message] = []
        while self._waiting and not self._full():
            request = self._waiting.pop(next(iter(self._waiting)))
            messages.append(self._begin_by_itself(request))
        return messages

    def _begin_by_itself(self, request: Message, claim: GpuClaim | None = None) -> Message:
        """Start a waiting attempt and return its status.

        No request waits for it, so a refusal becomes its end.
        """
        try:
            return self._begin(request, claim).shown()
        except LaunchRefused as refused:
            return self._refuse(request, refused)

    def _refuse(self, request: Message, refused: LaunchRefused) -> Message:
        reason = {"refused": refused.message, "infrastructure": refused.infrastructure}
        end = {
            **reason,
            "time": time.time(),
            "stopped": False,
            "timed_out": False,
            "out_of_memory": False,
        }
        message = self._refused[request["name"]] = {**_shown_waiting(request), "exit": end}
        return message

    def _claim(self, request: Message) -> Message:
        # lazy: most attempts ask for no GPU
        from controller.runtime.local.gpu_claims import GpuClaim, allocate

        claim = GpuClaim(request)
        if allocate([claim]):  # unless older claims that wait are ahead of it
            return self._begin(request, claim).shown()
        self._claims[request["name"]] = claim
        return _shown_waiting(request, claim.reason)

    def _allocate(self) -> list[Message]:
        """Start attempts whose GPUs are free now.

        Returns their statuses, and those of attempts with a new reason.
        """
        if not self._claims:
            return []
        from controller.runtime.local.gpu_claims import allocate

        reasons = {name: claim.reason for name, claim in self._claims.items()}
        try:
            ready = allocate(list(self._claims.values()))
        except LaunchRefused as refused:
            waiting = [self._claims.pop(name) for name in reasons]
            return [self._refuse(claim.request, refused) for claim in waiting]
        for claim in ready:
            del self._claims[claim.request["name"]]
        messages = [self._begin_by_itself(claim.request, claim) for claim in ready]
        changed = [claim for name, claim in self._claims.items() if claim.reason != reasons[name]]
        return [*messages, *(_shown_waiting(claim.request, claim.reason) for claim in changed)]

    def _begin(self, request: Message, claim: GpuClaim | None = None) -> SupervisedAttempt:
        name, directory = request["name"], request["directory"]
        record_path = os.path.join(directory, "process.json")
        keys = ("name", "timeout_s", "grace_s", "gpu", "gpus", "log_limit")
        record: Message = {key: request[key] for key in keys}
        record["workers"] = len(request["workers"]) or 1
        record["claim"] = "" if claim is None else claim.path
        link = os.path.join(self._live, name)

        def write_down(pid: int) -> None:
            # Attempts that run together have one clock.
            now = next((each.now for each in self._running.values()), time.time())
            record.update(
                pid=pid, birth=processes.birth(pid), time=now, since_boot_s=since_boot_s()
            )
            if claim is not None:
                claim.record_leader(pid, record["birth"])
            os.symlink(directory, link)
            write_json(record_path, record)

        env = {**request["env"], MARK: directory}
        (log,) = logs(directory, 1)
        workers = _workers(request) if request["workers"] else None
        try:
            pid = launch(
                request["command"],
                env,
                folder=request["folder"],
                log=log,
                write_down=write_down,
                workers=workers,
                inherits=None if claim is None else claim.fd,
                forked=self._forked,
            )
        except LaunchRefused:
            unlink(record_path)
            unlink(link)
            if claim is not None:
                claim.release()
            raise
        attempt = self._attempts[name] = self._running[pid] = SupervisedAttempt(record, directory)
        attempt.claim = claim
        return attempt

    def stop(self, name: str, *, grace_s: float) -> bool:
        """Stop an attempt. Returns False if it had not begun, so that nothing is left of it."""
        if self._waiting.pop(name, None) is not None or self._withdraw(name):
            return False
        self._reap()  # an attempt that has ended already was not stopped
        attempt = self._attempts.get(name)
        if attempt is not None and attempt.running:
            attempt.stopped = True
            attempt.stop(grace_s)
        return True

    def remove(self, name: str, *, on_removed: Callable[[], None]) -> None:
        """Kill the attempt if it runs, forget it once it has ended, and then call `on_removed`."""
        self._waiting.pop(name, None)
        self._refused.pop(name, None)
        self._withdraw(name)
        attempt = self._attempts.get(name)
        if attempt is None:
            on_removed()
            return
        attempt.when_forgotten.append(on_removed)
        if attempt.exit is None:
            attempt.stop(0)
        else:
            self._forget(attempt)

    def _withdraw(self, name: str) -> bool:
        """Withdraw the claim of a waiting attempt; return whether it waited for GPUs."""
        claim = self._claims.pop(name, None)
        if claim is not None:
            claim.release()
        return claim is not None

    def look_after(self) -> None:
        """Notice ended attempts and act on deadlines.

        To be called when a child may have ended, a pidfd is readable
        or the time of `next_look` has come.
        """
        self._reap()
        for attempt in [a for a in self._running.values() if a.watched and a.end is None]:
            if processes.birth(attempt.pid) != attempt.record["birth"]:
                self._leader_ended(attempt, {"unknown": True})
        now = time.monotonic()
        # after the ends, so that an attempt that ended in time is not timed out
        for attempt in self._running.values():
            attempt.act_on_time(now)
            if attempt.claim is not None:
                attempt.claim.refresh()
        for message in self._allocate():
            self._send(message)

    def next_look(self) -> float | None:
        """Return by when (monotonic clock) to call `look_after`; None means only after a wakeup."""
        times = [attempt.next_time() for attempt in self._running.values()]
        if any(
            a.end is not None or (a.watched and a.pidfd is None) for a in self._running.values()
        ):
            times.append(time.monotonic() + TICK_S)
        if self._claims:
            times.append(time.monotonic() + LOOK_FOR_GPUS_S)
        return min(times, default=None)

    def pidfds(self) -> list[int]:
        return [attempt.pidfd for attempt in self._running.values() if attempt.pidfd is not None]

    def _take_over(self, name: str) -> None:
        link = os.path.join(self._live, name)
        try:
            directory = os.readlink(link)
        except OSError:
            return  # not a link of this module
        record = read_json(os.path.join(directory, "process.json"))
        if record is None:
            unlink(link)  # its folder was deleted, or its start was never recorded
            return
        attempt = self._attempts[name] = SupervisedAttempt(record, directory)
        if attempt.record["claim"]:
            from controller.runtime.local.gpu_claims import taken_over

            attempt.claim = taken_over(attempt.record["claim"], directory)
        attempt.exit = read_json(os.path.join(directory, "exit.json")) or None
        if attempt.exit is not None:
            self._release(attempt)  # its end was recorded, but its claim may not be released
            return
        pidfd = processes.open_pidfd(attempt.pid)
        if processes.birth(attempt.pid) == attempt.record["birth"]:
            attempt.watched = True
            attempt.pidfd = pidfd
            self._running[attempt.pid] = attempt
            return
        if pidfd is not None:
            os.close(pidfd)
        # not by group: its number may have been reused
        was_alive = self._kill_marked(attempt, processes.all_pids())
        # The machine may have been off since, which nobody should pay for.
        ended = {} if was_alive else {"time": attempt.last_seen()}
        self._settle(attempt, {"unknown": True, **ended})

    def _reap(self) -> None:
        while (ended := processes.ended_child()) is not None:
            pid, status = ended
            attempt = self._running.get(pid)
            if attempt is not None:
                processes.signal_group(pid, signal.SIGKILL)
            if status is None:
                _, status = os.waitpid(pid, 0)
            if attempt is not None:
                code = os.waitstatus_to_exitcode(status)
                self._leader_ended(attempt, {"code": code} if code >= 0 else {"signal": -code})
        for attempt in [a for a in self._running.values() if a.end is not None]:
            self._clear(attempt)

    def _leader_ended(self, attempt: SupervisedAttempt, end: Message) -> None:
        attempt.end = end
        attempt.clear_by = time.monotonic() + CLEARING_S
        if attempt.pidfd is not None:
            os.close(attempt.pidfd)
            attempt.pidfd = None
        self._clear(attempt)

    def _clear(self, attempt: SupervisedAttempt) -> None:
        """Kill processes that the leader left, in its group or not, as a container's end would."""
        assert attempt.end is not None
        alive = processes.signal_group(attempt.pid, signal.SIGKILL)
        if attempt.watched:
            # zombies of init may also keep a group alive
            alive = self._kill_marked(attempt, processes.all_pids())
        else:
            alive |= self._kill_marked(attempt, processes.children())
        if not alive or time.monotonic() >= attempt.clear_by:
            self._settle(attempt, attempt.end)

    def _kill_marked(self, attempt: SupervisedAttempt, pids: list[int]) -> bool:
        """Kill processes with the attempt's mark, of any group or parent; return if any existed."""
        marked = [p for p in pids if p not in self._running and processes.carries(p, attempt.mark)]
        for pid in marked:
            processes.kill(pid)
        return bool(marked)

    def _settle(self, attempt: SupervisedAttempt, end: Message) -> None:
        self._running.pop(attempt.pid, None)
        by_kill = end.get("signal") == signal.SIGKILL or end.get("code") == 128 + signal.SIGKILL
        by_system = by_kill and not attempt.killed
        attempt.exit = {
            "time": attempt.now,
            **end,
            "stopped": attempt.stopped,
            "timed_out": attempt.timed_out,
            "out_of_memory": by_system and processes.oom_kills() > attempt.ooms,
        }
        if attempt.record["workers"] > 1 and (lost := _lost_worker(attempt)):
            attempt.exit["lost"] = lost
        try:
            write_json(os.path.join(attempt.directory, "exit.json"), attempt.exit)
        except OSError as error:  # deleted folder or full disk; the end is kept in memory
            log_error(f"{attempt.name}: exit.json: {error}")
        self._release(attempt)
        # before reporting, which wakes processes that need the CPU
        begun = [*self._fill_slots(), *self._allocate()]
        self._send(attempt.shown())
        for message in begun:
            self._send(message)
        if attempt.when_forgotten:
            self._forget(attempt)

    def _release(self, attempt: SupervisedAttempt) -> None:
        if attempt.claim is not None:
            attempt.claim.release()
            attempt.claim = None

    def _forget(self, attempt: SupervisedAttempt) -> None:
        del self._attempts[attempt.name]
        unlink(os.path.join(self._live, attempt.name))
        for call in attempt.when_forgotten:
            call()


def _workers(request: Message) -> WorkerGroup:
    from controller.runtime.local.worker_group import WorkerGroup  # lazy: few attempts have several

    return WorkerGroup(
        request["workers"], directory=request["directory"], grace_s=request["grace_s"]
    )


def _lost_worker(attempt: SupervisedAttempt) -> Message | None:
    from controller.runtime.local.worker_group import LOST_FILE

    return read_json(os.path.join(attempt.directory, LOST_FILE))


def _shown_waiting(request: Message, reason: str = "") -> Message:
    return {
        "name": request["name"],
        "directory": request["directory"],
        "time": None,
        "gpu": request["gpu"],
        "gpus": request["gpus"],
        "exit": None,
        "waiting": reason,
    }
