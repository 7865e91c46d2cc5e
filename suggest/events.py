"""One line in the log for each event of a server: `event=study_created study=…`.

What others chose (names, messages) is put in quotes where it has anything but plain characters, so that nobody writes
a line or a fact of their own; it is cut where it is long. No secret is ever a fact.
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
