"""`tuner`: argument, verb, exit code. Every error becomes a sentence and a number here, and nowhere else.

Imports nothing but the standard library's light parts: a verb's module is imported once the verb is known.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING

from controller.cli.exits import ExitCode

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


HIDDEN = "__complete"  # what the scripts of `tuner completion` ask; no verb for people

# Objects: imports make many and no garbage, and what is made in a run goes without being looked for. To look through
# all of them now and then was a tenth of what a short run costs.
GARBAGE = 200_000


def main(argv: Sequence[str] | None = None) -> int:
    """The console script. Returns the exit code; `--help` and wrong usage end the process as argparse does."""
    from controller.cli.arguments import parse

    words = sys.argv[1:] if argv is None else argv
    if words and words[0] == HIDDEN:
        from controller.cli.completion import complete

        return complete(words[1:])
    gc.set_threshold(GARBAGE)
    atexit.register(gc.freeze)  # all memory goes at once then: to look through it for garbage costs 0.2 s of CPU
    arguments = parse(words)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read us has enough (`tuner get trials x | head`); flushing at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.OK
    return code


def _run(arguments: argparse.Namespace) -> int:
    module, _, function = arguments.verb.partition(":")
    try:
        verb = getattr(importlib.import_module(f"controller.cli.{module}"), function)
        return int(verb(arguments))
    except BrokenPipeError:
        raise
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    except Exception as error:  # the one blanket handler: what is not somebody's fault is a bug of ours
        if arguments.verbose:
            import traceback

            traceback.print_exception(error)
        from controller.cli.invocation import rendered

        code, sentence = _explained(error)
        sentence = rendered(sentence, arguments)
        _tell(sentence, as_json=arguments.log_format == "json")
        return code


def _tell(sentence: str, *, as_json: bool) -> None:
    if as_json:
        import json

        sentence = json.dumps({"level": "error", "message": sentence}, ensure_ascii=False)
    print(sentence, file=sys.stderr)


def _explained(error: Exception) -> tuple[ExitCode, str]:
    from controller.runtime.kubernetes.errors import ApiError, BadKubeconfig, NotAllowed
    from controller.runtime.protocol import RuntimeLost
    from controller.spec.problems import SpecErrors
    from suggest.errors import TunerError

    match error:
        case SpecErrors():
            return ExitCode.USAGE, str(error)  # begins with the file's name, as compilers do
        case TunerError():
            return _code(error), f"tuner: {error}"
        case NotAllowed():
            return ExitCode.NOT_ALLOWED, f"tuner: {error}"
        case BadKubeconfig():
            return ExitCode.USAGE, f"tuner: {error}"
        case ApiError():
            return ExitCode.UNAVAILABLE, f"tuner: the cluster answers: {error}"
        case RuntimeLost():
            return ExitCode.UNAVAILABLE, f"tuner: {error}; what runs goes on running, the same command continues"
        case OSError() if error.filename is not None:
            return ExitCode.UNAVAILABLE, f"tuner: {error.filename}: {error.strerror}"
        case _:
            return ExitCode.BUG, (
                f"tuner: this is a bug in tuner: {type(error).__name__}: {error}\n"
                "Nothing that was recorded is lost; the same command usually goes on where it was.\n"
                "Please report it with what you did, the output of `tuner version`, and of the same command with -v."
            )


def _code(error: Exception) -> ExitCode:
    from suggest import errors

    match error:
        case errors.InvalidArgument():
            return ExitCode.USAGE
        case errors.Unauthenticated() | errors.PermissionDenied():
            return ExitCode.NOT_ALLOWED
        case errors.NotFound():
            return ExitCode.NOT_FOUND
        case errors.AlreadyExists() | errors.FailedPrecondition():
            return ExitCode.CONFLICT
        case errors.Unavailable() | errors.StoreBroken() | errors.LimitReached():
            return ExitCode.UNAVAILABLE
        case _:
            return ExitCode.BUG
