"""How a trial's process comes into being: forked behind a gate, written down, let go.

Whatever dies at whatever moment, the command never runs without having been written down first: the child waits for one
byte, and reads end-of-file instead if the parent is gone. Imported by the supervisor: standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

from controller.runtime import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.forked_python import ForkedModule
    from controller.runtime.worker_group import WorkerGroup

_CHANGED_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)  # by Python or by the supervisor
_MACHINE = {
    errno.ENOMEM,
    errno.EAGAIN,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.ETXTBSY,
}


class Refused(Exception):
    """The command cannot be run; nothing was. infrastructure: the machine is to blame, not the description."""

    def __init__(self, message: str, infrastructure: bool) -> None:
        super().__init__(message)
        self.message = message
        self.infrastructure = infrastructure


def launch(
    command: list[str],
    env: dict[str, str],
    *,
    folder: str,
    log: str,
    write_down: Callable[[int], None],
    workers: WorkerGroup | None = None,
    inherits: int | None = None,
    forked: ForkedModule | None = None,
) -> int:
    """Run the command in a session of its own, in `folder`, with its output appended to `log`. Returns its pid.

    `workers`: it runs once for each of them; the pid is their leader's. `write_down` gets the pid when the process
    exists, before the command runs; if it raises, the command never does. `inherits`: a file that stays open in it.
    `forked`: is called in place of the command where it is the same.

    Raises:
        Refused: the system would not run it. `write_down` had been called if the command itself was the problem.
    """
    try:
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"cannot write {log}: {error.strerror}", infrastructure=True) from error
    gate_read, gate_write = os.pipe()
    fault_read, fault_write = os.pipe()
    try:
        pid = os.fork()
    except OSError as error:
        for fd in (log_fd, gate_read, gate_write, fault_read, fault_write):
            os.close(fd)
        raise Refused(f"cannot create a process: {error.strerror}", infrastructure=True) from error
    if pid == 0:
        os.close(gate_write)  # else the gate would not close when the parent dies
        _run(command, env, folder=folder, log_fd=log_fd, gate=gate_read, fault=fault_write, workers=workers,
             inherits=inherits, forked=forked)  # fmt: skip
    for fd in (log_fd, gate_read, fault_write):
        os.close(fd)
    try:
        try:
            write_down(pid)
            os.write(gate_write, b"!")
        except BrokenPipeError:
            pass  # somebody killed it at the gate: it was started, and its end will be seen
        except OSError as error:
            raise Refused(f"cannot write beside {log}: {error.strerror}", infrastructure=True) from error
        finally:
            os.close(gate_write)
        fault = os.read(fault_read, 64).split()  # end-of-file when exec has closed its end
    except Refused:
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(fault_read)
    if fault:
        processes.signal_group(pid, signal.SIGKILL)  # other workers may have begun
        os.waitpid(pid, 0)
        for path in [log] if workers is None else workers.logs():
            _drop_empty(path)
        raise _refusal(command[0], env, folder=folder, stage=fault[0], number=int(fault[1]))
    return pid


def _run(command: list[str], env: dict[str, str], *, folder: str, log_fd: int, gate: int, fault: int,
         workers: WorkerGroup | None, inherits: int | None, forked: ForkedModule | None) -> None:  # fmt: skip
    """The child's whole life until exec. Never returns; all other files close at exec."""
    stage = b"exec"
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(log_fd, 1)
        os.dup2(log_fd, 2)
        for number in _CHANGED_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        if inherits is not None:
            os.set_inheritable(inherits, True)
        if os.read(gate, 1):
            stage = b"folder"
            os.chdir(folder)
            stage = b"exec"
            if workers is not None:
                env = workers.divide(env, fault=fault, inherits=inherits)
            elif forked is not None and forked.fits(command, env):
                os.close(fault)
                forked.run(env, kept=inherits)
            _execute(command, env)
    except OSError as error:
        os.write(fault, b"%s %d\n" % (stage, error.errno or errno.EINVAL))
    except BaseException:  # a NUL in an argument, say: the parent must hear of everything
        os.write(fault, b"%s %d\n" % (stage, errno.EINVAL))
    finally:
        os._exit(127)


def _places(program: str, env: dict[str, str]) -> list[str]:
    """Where the program may be. Not os.get_exec_path: it imports `warnings`, again in each child."""
    if "/" in program:
        return [program]
    return [os.path.join(folder, program) for folder in env.get("PATH", os.defpath).split(os.pathsep)]


def _execute(command: list[str], env: dict[str, str]) -> None:
    """As execvpe. Raises OSError: the most telling of those that the places gave."""
    denied: OSError | None = None
    for place in _places(command[0], env):
        try:
            os.execve(place, command, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            missing = error
        except PermissionError as error:
            denied = error
    raise denied or missing


def _drop_empty(log: str) -> None:
    try:
        if os.stat(log).st_size == 0:
            os.unlink(log)
    except OSError:
        pass


def _refusal(program: str, env: dict[str, str], *, folder: str, stage: bytes, number: int) -> Refused:
    infrastructure = number in _MACHINE
    if stage == b"folder":
        words = {errno.ENOENT: "no such folder", errno.ENOTDIR: "not a folder", errno.EACCES: "permission denied"}
        return Refused(f"{words.get(number, os.strerror(number))}: {folder}", infrastructure)
    exists = any(os.path.exists(os.path.join(folder, place)) for place in _places(program, env))
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EACCES) and not exists:
        where = f" (in {folder})" if "/" in program else ""  # not PATH: this sentence is in every line and table
        return Refused(f'command not found: "{program}"{where}', infrastructure)
    if number == errno.ENOENT:
        return Refused(f'the interpreter that the first line of "{program}" names does not exist', infrastructure)
    if number == errno.EACCES:
        return Refused(
            f'permission denied: "{program}" is not executable; chmod +x it, or put its interpreter before it',
            infrastructure,
        )
    if number == errno.ENOEXEC:
        return Refused(f'"{program}" is not a program: its first line must be one such as #!/bin/sh', infrastructure)
    return Refused(f'cannot run "{program}": {os.strerror(number)}', infrastructure)
