"""The small process that stays with an experiment's trials: starts them, ends them, keeps how they ended.

It outlives the controller, and exits by itself when nobody is connected and nothing runs. Standard library only,
nothing of the project but its sibling rooms, one thread, no waiting for anything slow.
What a successor must know is in files before it is true or told: `live/<name>` links to the folder of each attempt that
was not removed; there, `process.json` is written before the command runs, `exit.json` before its end is told.

A line of JSON each: {"id", "do": start|stop|remove|list|leave, …} -> {"id"} or {"id", "refused", "infrastructure"}. Any
message to a client, also unasked ones, may carry "attempts": what is true of these now.
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import signal
import sys
import time

from controller.runtime import processes
from controller.runtime.launching import Refused, launch
from controller.runtime.listening import Client, listen
from controller.runtime.supervised import NOTHING_KNOWN, Attempt, read_json, unlink, write_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, TypeAlias

    Message: TypeAlias = dict[str, Any]  # JSON; both ends of the socket are in this folder

ALONE_S = 2.0  # how long it stays with nobody connected and nothing running
CLEARING_S = 2.0  # how long an end waits for the rest of the attempt's processes to be gone
TICK_S = 0.05


class Supervisor:
    def __init__(self, folder: str, lock: int) -> None:
        self._folder = folder
        self._lock = lock
        self._live = os.path.join(folder, "live")
        self._attempts: dict[str, Attempt] = {}
        self._running: dict[int, Attempt] = {}  # by pid, until the exit is written
        self._clients: dict[int, Client] = {}  # by file number
        self._alone_at = time.monotonic() + ALONE_S
        self._hung_up = False
        self._wake, wake_write = os.pipe()
        for fd in (self._wake, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, self._hang_up)
        processes.adopt_orphans()
        os.makedirs(self._live, exist_ok=True)
        for name in os.listdir(self._live):
            self._take_over(name)
        self._listen()

    # What runs already

    def _take_over(self, name: str) -> None:
        link = os.path.join(self._live, name)
        directory = os.readlink(link)
        facts = read_json(os.path.join(directory, "process.json"))
        if facts is None:
            unlink(link)  # its folder was deleted, or its start was never written down
            return
        attempt = self._attempts[name] = Attempt({**NOTHING_KNOWN, **facts, "name": name}, directory)
        attempt.exit = read_json(os.path.join(directory, "exit.json")) or None
        if attempt.exit is not None:
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

    def _look_after_the_watched(self) -> None:
        for attempt in [a for a in self._running.values() if a.watched and a.end is None]:
            if processes.birth(attempt.pid) != attempt.facts["birth"]:
                self._leader_ended(attempt, {"unknown": True})

    # Ends

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

    def _leader_ended(self, attempt: Attempt, end: Message) -> None:
        attempt.end = end
        attempt.clear_by = time.monotonic() + CLEARING_S
        if attempt.pidfd is not None:
            os.close(attempt.pidfd)
            attempt.pidfd = None
        self._clear(attempt)

    def _clear(self, attempt: Attempt) -> None:
        """Kill what the leader left behind, in its group or escaped from it, as a container's end would."""
        assert attempt.end is not None
        left = processes.signal_group(attempt.pid, signal.SIGKILL)
        if attempt.watched:
            left = self._kill_marked(attempt, processes.everybody())  # a group may also be kept by init's zombies
        else:
            left |= self._kill_marked(attempt, processes.children())
        if not left or time.monotonic() >= attempt.clear_by:
            self._settle(attempt, attempt.end)

    def _kill_marked(self, attempt: Attempt, pids: list[int]) -> bool:
        """Whether there were any. Who bears an attempt's marks is its own, whatever group or parent it has."""
        marked = [p for p in pids if p not in self._running and processes.carries(p, attempt.facts["marks"])]
        for pid in marked:
            processes.kill(pid)
        return bool(marked)

    def _settle(self, attempt: Attempt, end: Message) -> None:
        self._running.pop(attempt.pid, None)
        by_kill = end.get("signal") == signal.SIGKILL or end.get("code") == 128 + signal.SIGKILL
        attempt.exit = {
            **end,
            "time": time.time(),
            "stopped": attempt.stopped,
            "timed_out": attempt.timed_out,
            "out_of_memory": by_kill and not attempt.killed and processes.oom_kills() > attempt.ooms,
        }
        try:
            write_json(os.path.join(attempt.directory, "exit.json"), attempt.exit)
        except OSError as error:  # its folder was deleted, the disk is full: this life still knows
            print(f"{attempt.name}: exit.json: {error}", file=sys.stderr, flush=True)
        self._tell({"attempts": [attempt.shown()]})
        if attempt.removers:
            self._forget(attempt)

    def _forget(self, attempt: Attempt) -> None:
        del self._attempts[attempt.name]
        unlink(os.path.join(self._live, attempt.name))
        for client, number in attempt.removers:
            client.send({"id": number})

    # Requests

    def _start(self, request: Message) -> Message | None:
        name, directory = request["name"], request["directory"]
        if name in self._attempts:
            return self._attempts[name].shown()
        facts_path = os.path.join(directory, "process.json")
        if os.path.exists(facts_path):
            return None  # started, ended and removed before
        env = request["env"]
        facts: Message = {key: request[key] for key in ("name", "timeout_s", "grace_s", "gpu", "gpus")}
        facts["marks"] = [f"{key}={env[key]}" for key in ("TUNER_TRIAL_NAME", "TUNER_ATTEMPT") if key in env]
        link = os.path.join(self._live, name)

        def write_down(pid: int) -> None:
            facts.update(pid=pid, birth=processes.birth(pid), time=time.time())
            os.symlink(directory, link)
            write_json(facts_path, facts)

        try:
            pid = launch(
                request["command"], env, folder=request["folder"], log=os.path.join(directory, "log.txt"),
                write_down=write_down,
            )  # fmt: skip
        except Refused:
            unlink(facts_path)
            unlink(link)
            raise
        attempt = self._attempts[name] = self._running[pid] = Attempt(facts, directory)
        return attempt.shown()

    def _answer(self, client: Client, request: Message) -> None:
        reply: Message = {"id": request["id"]}
        attempt = self._attempts.get(request.get("name", ""))
        match request["do"]:
            case "start":
                try:
                    started = self._start(request)
                    reply["attempts"] = [] if started is None else [started]
                except Refused as refused:
                    reply.update(refused=refused.message, infrastructure=refused.infrastructure)
            case "stop" if attempt is not None and attempt.end is None and attempt.exit is None:
                attempt.stopped = True
                attempt.stop(request["grace_s"])
            case "remove" if attempt is not None:
                attempt.removers.append((client, request["id"]))
                if attempt.exit is None:
                    attempt.stop(0)
                else:
                    self._forget(attempt)
                return  # answered when forgotten
            case "list":
                reply["attempts"] = [attempt.shown() for attempt in self._attempts.values()]
            case "leave":
                client.leaving = True
                reply["last"] = not self._running and not self._needed()
        client.send(reply)

    def _tell(self, message: Message) -> None:
        for client in self._clients.values():
            client.send(message)

    # The loop

    def run(self) -> None:
        """Until nobody needs us. The caller ends the process at once: the kernel closes what is open."""
        while self._running or self._needed():
            poll = select.poll()
            poll.register(self._listener, select.POLLIN)
            poll.register(self._wake, select.POLLIN)
            for fd, client in self._clients.items():
                poll.register(fd, select.POLLIN | (select.POLLOUT if client.unsent else 0))
            for attempt in self._running.values():
                if attempt.pidfd is not None:
                    poll.register(attempt.pidfd, select.POLLIN)
            ready = poll.poll(self._patience_s() * 1000)
            self._look_after_trials()  # first: an end that is seen now is told before anything new is begun
            for fd, event in ready:
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._clients:
                    if event & select.POLLOUT:
                        self._clients[fd].flush()
                    if event & ~select.POLLOUT:
                        self._receive(self._clients[fd])
            if self._hung_up:
                self._hung_up = False
                self._listener.close()
                unlink(self.socket_path)
                self._listen()

    def _needed(self) -> bool:
        if any(not client.leaving for client in self._clients.values()):
            return True
        return not self._clients and time.monotonic() < self._alone_at

    def _patience_s(self) -> float:
        now = time.monotonic()
        times = [t for attempt in self._running.values() if (t := attempt.next_time()) is not None]
        if any(a.end is not None or (a.watched and a.pidfd is None) for a in self._running.values()):
            times.append(now + TICK_S)
        if not self._clients and not self._running:
            times.append(self._alone_at)
        return max(0.0, min(min(times, default=now + 3600) - now, 3600) + 0.001)

    def _look_after_trials(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass
        self._reap()
        self._look_after_the_watched()
        now = time.monotonic()
        for attempt in self._running.values():  # after the ends: who made it in time was not late
            attempt.act_on_time(now)

    def _hang_up(self, *_: object) -> None:
        """The socket's folder may be gone (a log-out empties $XDG_RUNTIME_DIR): whoever cannot find us sends SIGHUP."""
        self._hung_up = True

    def _listen(self) -> None:
        self._listener, self.socket_path = listen(self._folder)
        os.ftruncate(self._lock, 0)
        os.pwrite(self._lock, json.dumps({"pid": os.getpid(), "socket": self.socket_path}).encode(), 0)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        self._clients[sock.fileno()] = Client(sock)

    def _receive(self, client: Client) -> None:
        requests = client.receive()
        if requests is None:
            del self._clients[client.sock.fileno()]
            client.sock.close()
            self._alone_at = time.monotonic() + (0 if client.leaving else ALONE_S)
            return
        for request in requests:
            self._answer(client, request)


def main() -> None:
    """Argument: the experiment's folder. Detaches, and prints a line once it can be reached as its lock file says."""
    folder = sys.argv[-1]
    lock = os.open(os.path.join(folder, "supervisor.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if os.fork():
        os._exit(0)  # whoever started us is not our parent: nobody has to wait for us
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os._exit(0)  # there is one already
    os.ftruncate(lock, 0)
    os.chdir("/")
    supervisor = Supervisor(folder, lock)
    os.write(1, b"ready\n")
    os.dup2(0, 1)  # /dev/null: lets go of the pipe
    supervisor.run()
    for pid in processes.children():
        processes.kill(pid)  # escaped from trials, without their marks
    unlink(supervisor.socket_path)
    os._exit(0)
