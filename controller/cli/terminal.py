"""The output of this process: whether stderr is a terminal, whether it may have colors, and what is logged."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from datetime import UTC, datetime


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
        return json.dumps(fields, ensure_ascii=False)


class Stderr(logging.Handler):
    """Writes to the current sys.stderr, which a live view replaces in order to keep its picture intact."""

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
    # The logs of libraries are of no use to the person, and refusals of an embedded service reach the person as errors.
    logging.getLogger("controller").setLevel(
        logging.DEBUG if arguments.verbose else logging.INFO if as_json else logging.ERROR
    )
    logging.getLogger("suggest").setLevel(logging.DEBUG if arguments.verbose else logging.ERROR)


def live(arguments: argparse.Namespace) -> bool:
    """Return whether to use a view that redraws itself."""
    plain = arguments.quiet or arguments.verbose or arguments.log_format == "json"
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not plain


def uses_color(arguments: argparse.Namespace) -> bool:
    """Return whether to use colors.

    The first of these decides: --color, NO_COLOR (no-color.org), FORCE_COLOR (force-color.org), whether stderr is a
    terminal.
    """
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
