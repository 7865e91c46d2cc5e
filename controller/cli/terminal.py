"""What this process may write on: is stderr a terminal, may it be coloured, how much does the person want to hear."""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from datetime import UTC, datetime


class JsonLines(logging.Formatter):
    """One JSON object a line, for collectors of logs."""

    def format(self, record: logging.LogRecord) -> str:
        facts: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC)
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts, ensure_ascii=False)


class Stderr(logging.Handler):
    """Whatever stderr is now: a live view puts itself in its place, to keep its picture whole."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:
            self.handleError(record)


def set_up_logging(arguments: argparse.Namespace) -> None:
    """All with -v, transitions with --log-format json; else only errors, for the views and the verbs say the rest."""
    handler = Stderr()
    as_json = arguments.log_format == "json"
    handler.setFormatter(JsonLines() if as_json else logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.ERROR)
    if arguments.quiet:
        return
    # The libraries' own chatter helps nobody, and what an embedded service refuses reaches the person as an error.
    logging.getLogger("controller").setLevel(
        logging.DEBUG if arguments.verbose else logging.INFO if as_json else logging.ERROR
    )
    logging.getLogger("suggest").setLevel(logging.DEBUG if arguments.verbose else logging.ERROR)


def live(arguments: argparse.Namespace) -> bool:
    """Whether a view that redraws itself makes sense."""
    plain = arguments.quiet or arguments.verbose or arguments.log_format == "json"
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb" and not plain


def coloured(arguments: argparse.Namespace) -> bool:
    """--color, else NO_COLOR, FORCE_COLOR (both: no-color.org, force-color.org), else whether stderr is a terminal."""
    if arguments.color != "auto":
        return bool(arguments.color == "always")
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or (sys.stderr.isatty() and os.environ.get("TERM") != "dumb")
