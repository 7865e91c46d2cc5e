"""All attempts of one experiment that were not removed, and what becomes of them; part of the supervisor.

What a successor must know is in files before it is true or told: `live/<name>` links to the folder of each attempt that
was not removed; `supervised` says what is in there. Standard library only; knows nothing of sockets.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from controller.runtime import processes
from controller.runtime.launching import Refused, launch
from controller.runtime.supervised import MARK, NOTHING_KNOWN, SupervisedAttempt, read_json, unlink, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.forked_python import ForkedModule
    from controller.runtime.gpu_claims import GpuClaim
    from controller.runtime.supervised import Message
    from controller.runtime.worker_group import WorkerGroup

CLEARING_S = 2.0  # how long an end waits for the rest of the attempt's processes to be gone
TICK_S = 0.05  # how often to look at what cannot wake us
LOOK_FOR_GPUS_S = 0.25  # a supervisor that gives some back wakes us; the kernel, which frees locks, does not


class Trials:
    """`tell` hears of each end, once it is written down. `forked`: forked for the trials whose command it is."""

    def __init__(self, folder: str, *, tell: Callable[[Message], None], forked: ForkedModule | None = None) -> None:
        self._tell = tell
        self._forked = forked
        self._live = os.path.join(folder, "live")
        self._attempts: dict[str, SupervisedAttempt] = {}
        self._running: dict[int, SupervisedAttempt] = {}  # by pid, until the exit is written
        self._waiting: dict[str, Message] = {}  # requests whose slot is taken, the first first
        self._claims: dict[str, GpuClaim] = {}  # of requests whose GPUs are taken, the first first
        self._refused: dict[str, Message] = {}  # began by themselves and could not run: what there is to show
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
        return [*(attempt.shown() for attempt in self._attempts.values()), *waiting, *self._refused.values()]

    def start(self, request: Message) -> list[Message]:
        """What there is to show of it now: nothing if it was started, ended and removed before. Raises Refused."""
        name = request["name"]
        if name in self._attempts:
            return [self._attempts[name].shown()]
        if name in self._waiting:
            return [_shown_waiting(self._waiting[name])]
        if name in self._claims:
            return [_shown_waiting(self._claims[name].request, self._claims[name].reason)]
        if os.path.exists(os.path.join(request["directory"], "process.json")):
            return []  # started, ended and removed before
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
        """Who waits longest begins; what there is to tell of them."""
        news: list[Message] = []
        while self._waiting and not self._full():
            request = self._waiting.pop(next(iter(self._waiting)))
            news.append(self._begin_by_itself(request))
        return news

    def _begin_by_itself(self, request: Message, claim: GpuClaim | None = None) -> Message:
        """What there is to show of it; nobody is there to hear a refusal."""
        try:
            return self._begin(request, claim).shown()
        except Refused as refused:
            return self._refuse(request, refused)

    def _refuse(self, request: Message, refused: Refused) -> Message:
        why = {"refused": refused.message, "infrastructure": refused.infrastructure}
        end = {**why, "time": time.time(), "stopped": False, "timed_out": False, "out_of_memory": False}
        shown = self._refused[request["name"]] = {**_shown_waiting(request), "exit": end}
        return shown

    def _claim(self, request: Message) -> Message:
        from controller.runtime.gpu_claims import GpuClaim, allocate  # here: most attempts ask for no GPU

        claim = GpuClaim(request)
        if allocate([claim]):  # older ones that wait are ahead of it
            return self._begin(request, claim).shown()
        self._claims[request["name"]] = claim
        return _shown_waiting(request, claim.reason)

    def _allocate(self) -> list[Message]:
        """Attempts whose GPUs are free now begin; what there is to tell, also of those that wait."""
        if not self._claims:
            return []
        from controller.runtime.gpu_claims import allocate

        told = {name: claim.reason for name, claim in self._claims.items()}
        try:
            ready = allocate(list(self._claims.values()))
        except Refused as refused:
            waiting = [self._claims.pop(name) for name in told]
            return [self._refuse(claim.request, refused) for claim in waiting]
        for claim in ready:
            del self._claims[claim.request["name"]]
        news = [self._begin_by_itself(claim.request, claim) for claim in ready]
        changed = [claim for name, claim in self._claims.items() if claim.reason != told[name]]
        return [*news, *(_shown_waiting(claim.request, claim.reason) for claim in changed)]

    def _begin(self, request: Message, claim: GpuClaim | None = None) -> SupervisedAttempt:
        name, directory = request["name"], request["directory"]
        facts_path = os.path.join(directory, "process.json")
        facts: Message = {key: request[key] for key in ("name", "timeout_s", "grace_s", "gpu", "gpus")}
        facts["workers"] = len(request["workers"]) or 1
        facts["claim"] = "" if claim is None else claim.path
        link = os.path.join(self._live, name)

        def write_down(pid: int) -> None:
            facts.update(pid=pid, birth=processes.birth(pid), time=time.time())
            if claim is not None:
                claim.led_by(pid, facts["birth"])
            os.symlink(directory, link)
            write_json(facts_path, facts)

        env = {**request["env"], MARK: directory}
        log = os.path.join(directory, "log.txt")
        workers = _workers(request) if request["workers"] else None
        try:
            pid = launch(
                request["command"], env, folder=request["folder"], log=log, write_down=write_down, workers=workers,
                inherits=None if claim is None else claim.fd, forked=self._forked,
            )  # fmt: skip
        except Refused:
            unlink(facts_path)
            unlink(link)
            if claim is not None:
                claim.release()
            raise
        attempt = self._attempts[name] = self._running[pid] = SupervisedAttempt(facts, directory)
        attempt.claim = claim
        return attempt

    def stop(self, name: str, *, grace_s: float) -> bool:
        """False: there is nothing of it any more; it had not begun."""
        if self._waiting.pop(name, None) is not None or self._withdraw(name):
            return False
        self._reap()  # who has ended already was not stopped
        attempt = self._attempts.get(name)
        if attempt is not None and attempt.running:
            attempt.stopped = True
            attempt.stop(grace_s)
        return True

    def remove(self, name: str, *, then: Callable[[], None]) -> None:
        """Kill it if it runs, forget it when it has ended, and then call back."""
        self._waiting.pop(name, None)
        self._refused.pop(name, None)
        self._withdraw(name)
        attempt = self._attempts.get(name)
        if attempt is None:
            then()
            return
        attempt.when_forgotten.append(then)
        if attempt.exit is None:
            attempt.stop(0)
        else:
            self._forget(attempt)

    def _withdraw(self, name: str) -> bool:
        """Whether it waited for GPUs."""
        claim = self._claims.pop(name, None)
        if claim is not None:
            claim.release()
        return claim is not None

    def look_after(self) -> None:
        """Whenever a child may have ended, a pidfd is readable or a time has come."""
        self._reap()
        for attempt in [a for a in self._running.values() if a.watched and a.end is None]:
            if processes.birth(attempt.pid) != attempt.facts["birth"]:
                self._leader_ended(attempt, {"unknown": True})
        now = time.monotonic()
        for attempt in self._running.values():  # after the ends: who made it in time was not late
            attempt.act_on_time(now)
            if attempt.claim is not None:
                attempt.claim.refresh()
        for shown in self._allocate():
            self._tell(shown)

    def next_look(self) -> float | None:
        """When to look after them at the latest, by the monotonic clock; None: when something wakes us."""
        times = [t for attempt in self._running.values() if (t := attempt.next_time()) is not None]
        if any(a.end is not None or (a.watched and a.pidfd is None) for a in self._running.values()):
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
            return  # nothing of ours
        facts = read_json(os.path.join(directory, "process.json"))
        if facts is None:
            unlink(link)  # its folder was deleted, or its start was never written down
            return
        attempt = self._attempts[name] = SupervisedAttempt({**NOTHING_KNOWN, **facts, "name": name}, directory)
        if attempt.facts["claim"]:
            from controller.runtime.gpu_claims import taken_over

            attempt.claim = taken_over(attempt.facts["claim"], directory)
        attempt.exit = read_json(os.path.join(directory, "exit.json")) or None
        if attempt.exit is not None:
            self._release(attempt)  # its end was written down, and no more
            return
        pidfd = processes.open_pidfd(attempt.pid)
        if processes.birth(attempt.pid) == attempt.facts["birth"]:
            attempt.watched = True
            attempt.pidfd = pidfd
            self._running[attempt.pid] = attempt
            return
        if pidfd is not None:
            os.close(pidfd)
        self._kill_marked(attempt, processes.everybody())  # its group's number may be another's by now
        self._settle(attempt, {"unknown": True})

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
        """Kill what the leader left behind, in its group or escaped from it, as a container's end would."""
        assert attempt.end is not None
        left = processes.signal_group(attempt.pid, signal.SIGKILL)
        if attempt.watched:
            left = self._kill_marked(attempt, processes.everybody())  # a group may also be kept by init's zombies
        else:
            left |= self._kill_marked(attempt, processes.children())
        if not left or time.monotonic() >= attempt.clear_by:
            self._settle(attempt, attempt.end)

    def _kill_marked(self, attempt: SupervisedAttempt, pids: list[int]) -> bool:
        """Whether there were any. Who bears an attempt's mark is its own, whatever group or parent it has."""
        marked = [p for p in pids if p not in self._running and processes.carries(p, attempt.mark)]
        for pid in marked:
            processes.kill(pid)
        return bool(marked)

    def _settle(self, attempt: SupervisedAttempt, end: Message) -> None:
        self._running.pop(attempt.pid, None)
        by_kill = end.get("signal") == signal.SIGKILL or end.get("code") == 128 + signal.SIGKILL
        attempt.exit = {
            **end,
            "time": time.time(),
            "stopped": attempt.stopped,
            "timed_out": attempt.timed_out,
            "out_of_memory": by_kill and not attempt.killed and processes.oom_kills() > attempt.ooms,
        }
        if attempt.facts["workers"] > 1 and (lost := _lost_worker(attempt)):
            attempt.exit["lost"] = lost
        try:
            write_json(os.path.join(attempt.directory, "exit.json"), attempt.exit)
        except OSError as error:  # its folder was deleted, the disk is full: this life still knows
            _complain(f"{attempt.name}: exit.json: {error}")
        self._release(attempt)
        begun = [*self._fill_slots(), *self._allocate()]  # first: telling wakes others, who want the processor too
        self._tell(attempt.shown())
        for shown in begun:
            self._tell(shown)
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
    from controller.runtime.worker_group import WorkerGroup  # here: hardly any attempt has several

    return WorkerGroup(request["workers"], directory=request["directory"], grace_s=request["grace_s"])


def _lost_worker(attempt: SupervisedAttempt) -> Message | None:
    from controller.runtime.worker_group import LOST_FILE

    return read_json(os.path.join(attempt.directory, LOST_FILE))


def _shown_waiting(request: Message, reason: str = "") -> Message:
    return {
        "name": request["name"], "directory": request["directory"], "time": None, "gpu": request["gpu"],
        "gpus": request["gpus"], "exit": None, "waiting": reason,
    }  # fmt: skip


def _complain(text: str) -> None:
    """In our log, which may lie on the very disk that is full: we must live on, for we alone know how trials ended."""
    try:
        os.write(2, f"{text}\n".encode())
    except OSError:
        pass
