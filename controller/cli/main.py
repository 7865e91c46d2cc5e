"""The program `tuner`: parse the arguments, run the verb, return the exit code.

Only this module turns errors into a message and an exit code (through `exits`). It imports only light parts of the
standard library; the module of a verb is imported once the verb is known.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import os
import sys
from typing import TYPE_CHECKING

from controller.cli.exits import ExitCode, of_error

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence


HIDDEN = "__complete"  # called by the scripts of `tuner completion`, not by people


def main(argv: Sequence[str] | None = None) -> int:
    """Run the console script and return the exit code. `--help` and wrong usage exit the process, as in argparse."""
    try:
        return _main(sys.argv[1:] if argv is None else argv)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED


def _main(words: Sequence[str]) -> int:
    from controller.cli.arguments import parse

    if words and words[0] == HIDDEN:
        from controller.cli.completion import complete

        return complete(words[1:])
    atexit.register(gc.freeze)  # saves the last collection, 0.1 s of CPU for each command: docs/adr/0022
    arguments = parse(words)
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader has closed the pipe, as in `tuner get trials x | head`. Flushing at exit must not fail again.
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
    except Exception as error:  # the only blanket handler: an unknown error is a bug
        if arguments.verbose:
            import traceback

            traceback.print_exception(error)
        from controller.cli.invocation import rendered

        code, sentence = of_error(error)
        sentence = rendered(sentence, arguments)
        _print_error(sentence, as_json=arguments.log_format == "json")
        return code


def _print_error(sentence: str, *, as_json: bool) -> None:
    if as_json:
        import json

        sentence = json.dumps({"level": "error", "message": sentence}, ensure_ascii=False)
    print(sentence, file=sys.stderr)
