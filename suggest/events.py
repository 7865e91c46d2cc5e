"""One log line per event of a server: `event=study_created study=…`.

Values from others (names, messages) are quoted unless they are plain characters, so that they
cannot forge a line or a field, and cut when they are long. A field never holds a secret.
"""

from __future__ import annotations

import json
import logging
import re

log = logging.getLogger(__name__)

_PLAIN = re.compile(r"[A-Za-z0-9._:/@+,*\[\]-]+", re.ASCII)
_LONGEST = 300


def log_event(event: str, /, **fields: object) -> None:
    """Log the fields in the given order, without those that are None or empty."""
    if log.isEnabledFor(logging.INFO):
        log.info("%s", line(event, **fields))


def warn(event: str, /, **fields: object) -> None:
    """Log an event that a person may have to act on."""
    log.warning("%s", line(event, **fields))


def line(event: str, /, **fields: object) -> str:
    return " ".join(
        [f"event={event}"]
        + [f"{key}={_quoted(value)}" for key, value in fields.items() if value not in (None, "")]
    )


def _quoted(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
