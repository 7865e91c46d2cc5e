"""Idempotency keys of trials that SuggestTrials did not create:
one key for each trial added to a study.

The keys begin with a prefix that no client's key has, and their parts are unambiguous.
"""

from __future__ import annotations

_OWN = "tuner.dev/"


def added(request_id: str) -> str:
    """Return the key of a trial that AddTrial creates."""
    return f"{_OWN}added/{request_id}" if request_id.startswith(_OWN) else request_id


def value_of(number: int) -> str:
    """Return the key of a trial that was finished with a known value."""
    return f"{_OWN}value-of/{number}"


def imported(request_id: str, source_id: str) -> str:
    """Return the key of an imported trial.

    The length of the request id tells (`a/b`, `c`) from (`a`, `b/c`).
    """
    return f"{_OWN}import/{len(request_id)}/{request_id}/{source_id}"
