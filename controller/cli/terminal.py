"""What this process prints and asks: data, messages, what a terminal gets that a pipe does not,
colors, and what is logged.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import re
import shutil
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

from controller import cli
from suggest.errors import InvalidArgument


def json_line(fields: Mapping[str, object]) -> str:
    """Return JSON for a line of stderr, escaping what the encoding of stderr lacks."""
    return json.dumps(fields, ensure_ascii="utf" not in (sys.stderr.encoding or "").lower())


class JsonLines(logging.Formatter):
    """Formats a record as one JSON object per line, for log collectors."""

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json_line(fields)


class Stderr(logging.Handler):
    """Writes to the current sys.stderr, which a live view replaces to protect its picture."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def set_up_logging(arguments: argparse.Namespace) -> None:
    """Log everything with -v, transitions with --log-format json, and otherwise only errors.

    The views and the verbs print the rest.
    """
    handler = Stderr()
    as_json = arguments.log_format == "json"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.ERROR)
    if arguments.quiet:
        return
    # The logs of libraries are of no use to the person, and refusals of an embedded service reach
    # the person as errors.
    level = logging.DEBUG if arguments.verbose else logging.ERROR
    logging.getLogger("suggest").setLevel(level)
    if as_json and not arguments.verbose:
        level = logging.INFO
    logging.getLogger("controller").setLevel(level)


def leave_root_logger() -> None:
    """Move the handler to the loggers of this program: a script may set up the root logger."""
    root = logging.getLogger()
    (handler,) = root.handlers
    root.handlers.clear()
    root.setLevel(logging.WARNING)
    for name in ("controller", "suggest"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


def write_data(text: str) -> None:
    """Write JSON, YAML or CSV to stdout in UTF-8, whatever the encoding of the terminal."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
    sys.stdout.buffer.flush()


def say(arguments: argparse.Namespace, text: str) -> None:
    """Print a message to stderr, unless -q is set."""
    if not arguments.quiet:
        print(cli.invocation.rendered(text, arguments), file=sys.stderr, flush=True)


def is_sure(target: str) -> bool:
    """Ask for confirmation on a terminal. Raises InvalidArgument without a terminal."""
    if not sys.stdin.isatty():
        raise InvalidArgument.at("", f"this would delete {target}; add --yes to confirm")
    print(f"Delete {target}? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def live(arguments: argparse.Namespace) -> bool:
    """Return whether to use a view that redraws itself."""
    plain = arguments.quiet or arguments.verbose or arguments.log_format == "json"
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not plain


def uses_color(arguments: argparse.Namespace) -> bool:
    """Return whether to use colors.

    The first of these decides: --color, NO_COLOR (no-color.org), FORCE_COLOR (force-color.org),
    whether stderr is a terminal.
    """
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def cropped(text: str) -> str:
    """Return the lines cut to the width of the terminal if stdout is one; otherwise, unchanged."""
    if not sys.stdout.isatty():
        return text
    width = shutil.get_terminal_size().columns
    return "".join(_cut(line, width) for line in text.splitlines(keepends=True))


def _cut(line: str, width: int) -> str:
    return line if len(line.rstrip("\n")) <= width else f"{line[: width - 1]}…\n"


class ControlSequences:
    """Removes terminals' control sequences (ECMA-48) from a stream of UTF-8 that arrives in parts.

    Tabs, line feeds and carriage returns remain. A sequence ends at the end of its line at the
    latest, so that an unfinished one hides no other line.
    """

    _SEQUENCE = re.compile(
        rb"\x1b\[[0-?]*[ -/]*[@-~]?"
        rb"|\x1b[\]PX^_][^\n\x07\x1b]*(?:\x07|\x1b\\)?"
        rb"|\x1b[ -/]*[0-~]?"
        rb"|\xc2[\x80-\x9f]"
        rb"|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
    )
    # What the next part may continue: a sequence without its end,
    # or the first byte of a C1 control character.
    _UNFINISHED = re.compile(
        rb"(?:\x1b(?:\[[0-?]*[ -/]*|[\]PX^_][^\n\x07\x1b]*\x1b?|[ -/]*)|\xc2)\Z"
    )

    _LONGEST = 4096

    def __init__(self) -> None:
        self._rest = b""

    def strip(self, data: bytes) -> bytes:
        data = self._rest + data
        unfinished = self._UNFINISHED.search(data)
        end = len(data) if unfinished is None else unfinished.start()
        if len(data) - end > self._LONGEST:
            end = len(data)
        self._rest = data[end:]
        return self._SEQUENCE.sub(b"", data[:end])
