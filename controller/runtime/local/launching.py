"""Start the process of a trial: fork it, let it wait for a byte on its start pipe,
record it, and write the byte.

The command never runs unrecorded, whichever process is killed at whatever moment: the child waits
for one byte, and reads end-of-file instead if the parent is gone. The supervisor imports this
module: standard library only.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Callable

from controller.runtime import processes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from controller.runtime.local.forked_python import ForkedModule
    from controller.runtime.local.worker_group import WorkerGroup

# changed by Python or the supervisor
_CHANGED_SIGNALS = (signal.SIGPIPE, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
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


class LaunchRefused(Exception):
    """The command cannot be run, and nothing was.

    `infrastructure` says that the machine is to blame, not the file.
    """

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
    """Run the command in a new session in `folder`, append its output to `log`, and return its pid.

    Args:
        write_down: Called with the pid when the process exists, before the command runs. If it
            raises, the command never runs.
        workers: The command runs once for each worker; the pid is that of their leader.
        inherits: A file that stays open in the process.
        forked: A module that is called in place of the command if both do the same.

    Raises:
        LaunchRefused: The system refused to run the command. `write_down` was called if the command
            itself was the problem.
    """

    pid, start_fd, faults = _fork(
        lambda *fds: _run(command, env, folder, fds, workers, inherits, forked), log
    )
    try:
        try:
            write_down(pid)
            os.write(start_fd, b"!")
        except BrokenPipeError:
            pass  # it was killed before its start: it counts as started, and its end will be seen
        except OSError as error:
            raise LaunchRefused(
                f"cannot write beside {log}: {error.strerror}", infrastructure=True
            ) from error
        finally:
            os.close(start_fd)
        fault = os.read(faults, 64).split()  # end-of-file once exec has closed the other end
    except LaunchRefused:
        os.waitpid(pid, 0)
        raise
    finally:
        os.close(faults)
    if fault:
        processes.signal_group(pid, signal.SIGKILL)  # other workers may have started
        os.waitpid(pid, 0)
        for path in [log] if workers is None else workers.logs():
            _drop_empty(path)
        raise _refusal(command[0], env, folder=folder, stage=fault[0], number=int(fault[1]))
    return pid


def _fork(run: Callable[[int, int, int], None], log: str) -> tuple[int, int, int]:
    """Fork a child that calls run(log, start, fault), which does not return.

    Returns its pid, the end of the pipe that starts it, and the end from which faults are read.
    Raises LaunchRefused.
    """
    try:
        log_fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LaunchRefused(f"cannot write {log}: {error.strerror}", infrastructure=True) from error
    fds = [log_fd]
    try:
        fds += os.pipe()
        fds += os.pipe()
        pid = os.fork()
    except OSError as error:
        for fd in fds:
            os.close(fd)
        raise LaunchRefused(
            f"cannot create a process: {error.strerror}", infrastructure=True
        ) from error
    _, start_read, start_write, fault_read, fault_write = fds
    if pid == 0:
        os.close(start_write)  # otherwise the child would wait forever after the parent's death
        run(log_fd, start_read, fault_write)
    for fd in (log_fd, start_read, fault_write):
        os.close(fd)
    return pid, start_write, fault_read


def _run(
    command: list[str],
    env: dict[str, str],
    folder: str,
    fds: tuple[int, int, int],
    workers: WorkerGroup | None,
    inherits: int | None,
    forked: ForkedModule | None,
) -> None:
    """Run the child until exec. Never returns; exec closes all other files."""
    log_fd, start_fd, fault = fds
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
        if os.read(start_fd, 1):
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
    except BaseException:  # for example a NUL in an argument: the parent must learn of every error
        os.write(fault, b"%s %d\n" % (stage, errno.EINVAL))
    finally:
        os._exit(127)


def _places(program: str, env: dict[str, str]) -> list[str]:
    """Return the paths where the program may be.

    Avoids os.get_exec_path, which imports `warnings` in each child.
    """
    if "/" in program:
        return [program]
    return [
        os.path.join(folder, program) for folder in env.get("PATH", os.defpath).split(os.pathsep)
    ]


def _execute(command: list[str], env: dict[str, str]) -> None:
    """Execute the command like execvpe. Raises the most informative OSError of all places."""
    denied: OSError | None = None
    for place in _places(command[0], env):
        try:
            os.execve(place, command, env)
        except (FileNotFoundError, NotADirectoryError) as error:
            error_of_path = error
        except PermissionError as error:
            denied = error
    raise denied or error_of_path


def _drop_empty(log: str) -> None:
    try:
        if os.stat(log).st_size == 0:
            os.unlink(log)
    except OSError:
        pass


def _refusal(
    program: str, env: dict[str, str], *, folder: str, stage: bytes, number: int
) -> LaunchRefused:
    infrastructure = number in _MACHINE
    if stage == b"folder":
        words = {
            errno.ENOENT: "no such folder",
            errno.ENOTDIR: "not a folder",
            errno.EACCES: "permission denied",
        }
        return LaunchRefused(f"{words.get(number, os.strerror(number))}: {folder}", infrastructure)
    exists = any(os.path.exists(os.path.join(folder, place)) for place in _places(program, env))
    if number in (errno.ENOENT, errno.ENOTDIR, errno.EACCES) and not exists:
        # Without PATH, because lines and tables show this message.
        in_folder = f" (in {folder})" if "/" in program else ""
        return LaunchRefused(f'command not found: "{program}"{in_folder}', infrastructure)
    if number == errno.ENOENT:
        return LaunchRefused(
            f'the interpreter that the first line of "{program}" names does not exist',
            infrastructure,
        )
    if number == errno.EACCES and os.path.isdir(os.path.join(folder, program)):
        return LaunchRefused(f'"{program}" is a folder, not a program', infrastructure)
    if number == errno.EACCES:
        return LaunchRefused(
            f'permission denied: "{program}" is not executable; chmod +x it, or put its '
            f"interpreter before it",
            infrastructure,
        )
    if number == errno.ENOEXEC:
        return LaunchRefused(
            f'"{program}" is not a program: its first line must be one such as #!/bin/sh',
            infrastructure,
        )
    return LaunchRefused(f'cannot run "{program}": {os.strerror(number)}', infrastructure)
