"""The exit codes, which scripts rely on (docs/cli.md),
and the mapping of errors and results to them.

No verb maps errors itself. This module is fast to import: each function imports what it needs.
"""

from __future__ import annotations

import enum
import errno
import signal
from typing import TYPE_CHECKING

import suggest
from controller import core

if TYPE_CHECKING:
    from collections.abc import Iterable

    from controller.app.run import RunResult
    from controller.runtime.provider import Finding, ServerVerdicts
    from suggest.server.start_check import StartFinding


# Modules of extras that are imported where they are needed, and nowhere looked for before.
_EXTRAS = {
    "aiohttp": "kubernetes",
    "cryptography": "kubernetes",
    "jwt": "kubernetes",
    "obstore": "archive",
}


class ExitCode(enum.IntEnum):
    OK = 0
    FAILED = 1  # the limit of failed trials was reached
    USAGE = 2  # wrong usage, or an invalid file
    NO_RESULT = 3  # finished or failed without a succeeded trial
    NOT_ALLOWED = 4
    NOT_FOUND = 5
    CONFLICT = 6
    UNAVAILABLE = 7
    PAUSED = 8
    BUG = 70
    INTERRUPTED = 130
    TERMINATED = 143


class KilledRun(Exception):
    """An error that ended a run which a user had interrupted twice. received: the first signal."""

    def __init__(self, error: Exception, received: signal.Signals | None) -> None:
        super().__init__(str(error))
        self.received = received


def of_error(error: Exception) -> tuple[ExitCode, str]:
    """Return the exit code of an error, and the message for stderr."""
    from controller.kube.errors import ApiError
    from controller.spec.problems import SpecErrors
    from suggest import threads
    from suggest.distribution import install_command

    match error:
        case KilledRun():
            return of_interruption(error.received), f"tuner: {error}"
        case SpecErrors():
            return ExitCode.USAGE, str(error)  # begins with the file's name, like a compiler's
        case suggest.errors.TunerError():
            return _of_tuner_error(error), f"tuner: {error}"
        case ApiError():
            return ExitCode.UNAVAILABLE, f"tuner: the cluster reports: {error}"
        case core.attempt.RuntimeLost():
            return (
                ExitCode.UNAVAILABLE,
                f"tuner: {error}; running trials continue; run the same command again to continue",
            )
        case OSError() if error.filename is not None:
            return ExitCode.UNAVAILABLE, f"tuner: {error.filename}: {error.strerror}"
        case OSError(errno=errno.ENOSPC | errno.EDQUOT | errno.EFBIG):
            return ExitCode.UNAVAILABLE, (
                f"tuner: {error.strerror}: standard output or a temporary file is incomplete; free "
                "some space, and repeat the command"
            )
        case ModuleNotFoundError(name=str(name)) if name in _EXTRAS:
            return ExitCode.USAGE, (
                f"tuner: the Python package {name} is missing; install with: "
                f"{install_command(_EXTRAS[name])}"
            )
        case RuntimeError() if threads.is_refused(error):
            return ExitCode.UNAVAILABLE, f"tuner: {threads.NO_THREAD_LEFT}"
        case MemoryError():
            return ExitCode.UNAVAILABLE, (
                "tuner: this command ran out of memory; raise its limit (ulimit -v, the limit of "
                "the container or of the batch job), and repeat the command"
            )
        case OSError(errno=errno.EIO):  # its SIGHUP ends a command that was about to print
            return ExitCode.TERMINATED, "tuner: the terminal is closed"
        case _:
            return ExitCode.BUG, (
                f"tuner: this is a bug in tuner: {type(error).__name__}: {error}\n"
                "Nothing that was recorded is lost; the same command usually continues where it "
                "stopped.\n"
                "Please report it with what you did, the output of `tuner version`, and of the "
                "same command with -v."
            )


def _of_tuner_error(error: Exception) -> ExitCode:
    match error:
        case suggest.errors.InvalidArgument():
            return ExitCode.USAGE
        case suggest.errors.Unauthenticated() | suggest.errors.PermissionDenied():
            return ExitCode.NOT_ALLOWED
        case suggest.errors.NotFound():
            return ExitCode.NOT_FOUND
        case suggest.errors.AlreadyExists() | suggest.errors.FailedPrecondition():
            return ExitCode.CONFLICT
        case (
            suggest.errors.Unavailable()
            | suggest.errors.StoreBroken()
            | suggest.errors.LimitReached()
        ):
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.BUG


def of_run(result: RunResult, *, stopped: ExitCode) -> ExitCode:
    """Return the exit code of a run; `stopped` is the one of a stopped experiment."""
    experiment = result.experiment
    match experiment.state:
        case core.model.ExperimentState.SUCCEEDED if result.final_failed:
            return ExitCode.FAILED
        case core.model.ExperimentState.SUCCEEDED:
            return ExitCode.OK if result.some_succeeded else ExitCode.NO_RESULT
        case core.model.ExperimentState.FAILED:
            too_many_failed = core.budget.too_many_failed(experiment.spec, result.counts)
            return ExitCode.FAILED if too_many_failed else ExitCode.NO_RESULT
        case core.model.ExperimentState.PAUSED:
            return ExitCode.PAUSED
        case _:
            return stopped


def of_interruption(received: signal.Signals | None) -> ExitCode:
    """Return the exit code of an experiment stopped by a signal, or (None) by `tuner stop`."""
    return ExitCode.INTERRUPTED if received is signal.SIGINT else ExitCode.TERMINATED


def of_verdicts(answer: ServerVerdicts) -> ExitCode:
    """Return the exit code of `tuner run --dry-run=server`."""
    if answer.not_allowed:
        return ExitCode.NOT_ALLOWED
    return ExitCode.USAGE if answer.refused else ExitCode.OK


def of_findings(findings: Iterable[Finding]) -> ExitCode:
    """Return the exit code of `tuner doctor`.

    A missing right takes precedence over all other failures.
    """
    from controller.runtime.provider import Level

    failed = [finding for finding in findings if finding.level is Level.FAIL]
    if any(finding.rights for finding in failed):
        return ExitCode.NOT_ALLOWED
    return ExitCode.UNAVAILABLE if failed else ExitCode.OK


def of_server_check(findings: Iterable[StartFinding]) -> ExitCode:
    """Return the exit code of `tuner serve --check`.

    Wrong flags and files take precedence over failed connections.
    """
    problems = [finding.problem for finding in findings if finding.problem is not None]
    if any(isinstance(problem, suggest.errors.InvalidArgument) for problem in problems):
        return ExitCode.USAGE
    return ExitCode.UNAVAILABLE if problems else ExitCode.OK
