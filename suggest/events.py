"""One log line per event of a server: `event=study_created study=…`.

Values that others chose (names, messages) are quoted unless they are plain characters, so that nobody can forge a line
or a field, and cut when they are long. A field never holds a secret.
"""

from __future__ import annotations

import json
import logging
import re

log = logging.getLogger(__name__)

_PLAIN = re.compile(r"[A-Za-z0-9._:/@+,*\[\]-]+", re.ASCII)
_LONGEST = 300


def tell(event: str, /, **facts: object) -> None:
    """Facts in the order given; one that is None or empty is left out."""
    if log.isEnabledFor(logging.INFO):
        log.info("%s", line(event, **facts))


def warn(event: str, /, **facts: object) -> None:
    """The same, for what somebody may have to look after."""
    log.warning("%s", line(event, **facts))


def line(event: str, /, **facts: object) -> str:
    return " ".join(
        [f"event={event}"] + [f"{key}={_shown(value)}" for key, value in facts.items() if value not in (None, "")]
    )


def _shown(value: object) -> str:
    text = f"{value:.3f}" if isinstance(value, float) else str(value)
    if len(text) > _LONGEST:
        text = text[:_LONGEST] + "…"
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
