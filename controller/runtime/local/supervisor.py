"""The supervisor: a small process that starts an experiment's trials,
ends them and keeps how they ended.

It outlives the controller, and exits by itself when no controller is connected
and no trial runs. It uses only the standard library and its sibling modules,
has one thread, and never waits for anything slow.

Each message is a line of JSON: {"id", "do": start|stop|remove|list|leave, …} is answered by {"id"}
or by {"id", "refused", "infrastructure"}. Any message to a client, requested or not, may have
"attempts", the current status of some attempts.
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
from controller.runtime.local.attempt_files import unlink
from controller.runtime.local.launching import LaunchRefused
from controller.runtime.local.listening import SUPERVISOR_LOCK, ControllerConnection, listen
from controller.runtime.local.trials import Trials

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.local.attempt_files import Message
    from controller.runtime.local.forked_python import ForkedModule

IDLE_S = 2.0  # how long it stays without a connected controller and a running trial
LONG_S = 3600.0


class Supervisor:
    def __init__(self, folder: str, lock: int, forked: ForkedModule | None) -> None:
        self._folder = folder
        self._lock = lock
        self._clients: dict[int, ControllerConnection] = {}  # by file descriptor
        self._idle_until = time.monotonic() + IDLE_S
        self._hung_up = False
        self._wake, wake_write = os.pipe()
        for fd in (self._wake, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, self._hang_up)
        self._trials = Trials(folder, send=self._publish, forked=forked)
        self._listen()

    def run(self) -> None:
        """Run until the supervisor is no longer needed.

        The caller then exits, and the kernel closes open files.
        """
        while self._trials.running or self._needed():
            poll = select.poll()
            for fd in (self._listener.fileno(), self._wake, *self._trials.pidfds()):
                poll.register(fd, select.POLLIN)
            for fd, client in self._clients.items():
                poll.register(fd, select.POLLIN | (select.POLLOUT if client.unsent else 0))
            ready = poll.poll(self._patience_s() * 1000)
            self._drain_wake()
            self._trials.look_after()  # first, so that an end is reported before a new trial begins
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
        if any(not client.is_leaving for client in self._clients.values()):
            return True
        return not self._clients and time.monotonic() < self._idle_until

    def _patience_s(self) -> float:
        now = time.monotonic()
        times = [now + LONG_S]
        if (look_at := self._trials.next_look()) is not None:
            times.append(look_at)
        if not self._clients and not self._trials.running:
            times.append(self._idle_until)
        return max(0.0, min(times) - now) + 0.001  # never too early, which would make it spin

    def _drain_wake(self) -> None:
        try:
            while os.read(self._wake, 4096):
                pass
        except BlockingIOError:
            pass

    def _answer(self, client: ControllerConnection, request: Message) -> None:
        reply: Message = {"id": request["id"]}
        match request["do"]:
            case "start":
                try:
                    reply["attempts"] = self._trials.start(request)
                except LaunchRefused as refused:
                    reply.update(refused=refused.message, infrastructure=refused.infrastructure)
            case "stop":
                reply["existed"] = self._trials.stop(request["name"], grace_s=request["grace_s"])
            case "remove":
                self._trials.remove(request["name"], on_removed=lambda: client.send(reply))
                return
            case "list":
                reply["attempts"] = self._trials.shown()
            case "leave":
                client.is_leaving = True
                reply["last"] = not self._trials.running and not self._needed()
        client.send(reply)

    def _publish(self, attempt: Message) -> None:
        for client in self._clients.values():
            client.send({"attempts": [attempt]})

    def _hang_up(self, *_: object) -> None:
        """Listen again: clients send SIGHUP if the socket is gone.

        A logout that empties $XDG_RUNTIME_DIR deletes it, for example.
        """
        self._hung_up = True

    def _listen(self) -> None:
        self._listener, self.socket_path = listen(self._folder)
        os.ftruncate(self._lock, 0)
        os.pwrite(
            self._lock, json.dumps({"pid": os.getpid(), "socket": self.socket_path}).encode(), 0
        )

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        sock.setblocking(False)
        self._clients[sock.fileno()] = ControllerConnection(sock)

    def _receive(self, client: ControllerConnection) -> None:
        requests = client.receive()
        if requests is None:
            del self._clients[client.sock.fileno()]
            client.sock.close()
            self._idle_until = time.monotonic() + (0 if client.is_leaving else IDLE_S)
            return
        for request in requests:
            self._answer(client, request)


def main() -> None:
    """Detach and run the supervisor.

    The arguments are a module to fork for trials, or "", and the experiment's folder. Prints
    "ready" once the lock file names its socket, or "held" if another supervisor has the lock.
    """
    module, folder = sys.argv[-2:]
    lock = os.open(
        os.path.join(folder, SUPERVISOR_LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600
    )
    if os.fork():
        os._exit(0)  # the supervisor is not the controller's child, so it leaves no zombie
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.write(1, b"held\n")  # another supervisor is running
        os._exit(0)
    os.ftruncate(lock, 0)
    os.chdir("/")
    supervisor = Supervisor(folder, lock, _imported(module) if module else None)
    os.write(1, b"ready\n")
    os.dup2(0, 1)  # /dev/null replaces the pipe
    supervisor.run()
    for pid in processes.children():
        processes.kill(pid)  # processes that escaped from trials without their mark
    unlink(supervisor.socket_path)
    os._exit(0)


def _imported(module: str) -> ForkedModule | None:
    """Return the imported module; None if the import fails; then each trial reports why."""
    # lazy: most experiments run commands
    from controller.runtime.local.forked_python import ForkedModule

    try:
        return ForkedModule(module)
    except Exception as error:
        os.write(2, f"{module}: {error}\n".encode())
        return None
