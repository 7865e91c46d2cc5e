"""Idempotency keys of trials that SuggestTrials did not create: one per addition to a study.

Our keys begin with a prefix that no client's key has, and their parts cannot run together. Stores of earlier versions
have keys without these properties: they are still found, never written.
"""

from __future__ import annotations

from suggest.trial import IMPORTED_FROM, REUSED, Trial

_OWN = "tuner.dev/"
_ONCE_OWN = ("value-of/", "import/")  # in stores of earlier versions


def added(request_id: str) -> str:
    """Of a trial that AddTrial made."""
    return f"{_OWN}added/{request_id}" if request_id.startswith((_OWN, *_ONCE_OWN)) else request_id


def added_before(there: Trial | None) -> Trial | None:
    """`there`, the trial under the plain request id, if a client's AddTrial made it."""
    if there is None or REUSED in there.labels or IMPORTED_FROM in there.labels:
        return None
    return there


def value_of(number: int) -> str:
    """Of a trial that took over a known value."""
    return f"{_OWN}value-of/{number}"


def imported(request_id: str, source_id: str) -> str:
    """Of a trial from elsewhere. With the length of the first part: `a/b` and `c` are not `a` and `b/c`."""
    return f"{_OWN}import/{len(request_id)}/{request_id}/{source_id}"


def imported_before(request_id: str, source_id: str) -> str:
    """What an earlier version called it."""
    return f"import/{request_id}/{source_id}"
