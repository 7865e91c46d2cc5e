"""The program `tuner`: parse the arguments, run the verb, return the exit code.

Errors become a message and an exit code only here (through `exits`).
The module of a verb is imported once the verb is known. All imports
that take a while are below `main`, where Ctrl-C is caught.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import io
import os
import sys

from controller import cli

TYPE_CHECKING = False  # importing typing takes longer than this module
if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


_NEW_OBJECTS = 50_000  # before Python looks for cycles among them; its default is 700


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script and return the exit code.

    `--help` and wrong usage exit the process, as in argparse.
    """
    try:
        set_up_streams()
        return _main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return 130  # ExitCode.INTERRUPTED, which may not be imported yet


def set_up_streams() -> None:
    """Let every character pass stdin, stdout and stderr; replace those that the caller has closed.

    A character that the encoding lacks is shown as its escape, such as `\\u65e5`.
    """
    for descriptor, name in enumerate(("stdin", "stdout", "stderr")):
        stream = getattr(sys, name)
        if stream is None:
            # Before any other file takes the descriptor, which subprocesses inherit and write to.
            opened = os.open(os.devnull, os.O_RDWR)
            assert opened == descriptor
            stream = os.fdopen(descriptor, "r" if descriptor == 0 else "w", encoding="utf-8")
            setattr(sys, name, stream)
        # a caller may have put another object in its place
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _main(words: Sequence[str]) -> int:
    # Collecting in what has just been imported takes an eighth of a command's CPU, and collecting
    # before the exit 0.1 s more: docs/adr/0015.
    gc.set_threshold(_NEW_OBJECTS)
    if "_ARGCOMPLETE" in os.environ:  # the script of `tuner completion` asks
        cli.completion.complete()
    atexit.register(gc.freeze)
    arguments = cli.arguments.parse(words)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as in `tuner get trials x | head`
        _discard_output()
        return cli.exits.ExitCode.OK
    except OSError as error:
        _discard_output()
        return _report(error, arguments)
    return code


def _discard_output() -> None:
    """Prevent that flushing stdout at exit fails again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _run(arguments: argparse.Namespace) -> int:
    module, _, function = arguments.verb.partition(":")
    try:
        cli.terminal.set_up_logging(arguments)
        verb = getattr(importlib.import_module(f"controller.cli.{module}"), function)
        return int(verb(arguments))
    except BrokenPipeError:
        raise
    except Exception as error:  # the only blanket handler: an unknown error is a bug
        return _report(error, arguments)


def _report(error: Exception, arguments: argparse.Namespace) -> int:
    """Print the error, and return its exit code."""
    from contextlib import suppress

    code, sentence = cli.exits.of_error(error)
    sentence = cli.invocation.rendered(sentence, arguments)
    if arguments.log_format == "json":
        sentence = cli.terminal.json_line({"level": "error", "message": sentence})
    with suppress(OSError):  # stderr is on a full disk: the exit code still tells what happened
        if arguments.verbose:
            import traceback

            traceback.print_exception(error)
        print(sentence, file=sys.stderr, flush=True)
    return code
