"""Idempotency keys of trials that SuggestTrials did not create: one key for each trial added to a
study.

The keys begin with a prefix that no client's key has, and their parts are unambiguous. Stores of
earlier versions contain keys without these properties; such keys are still looked up, but never
written.
"""

from __future__ import annotations

from suggest.trial import IMPORTED_FROM, REUSED, Trial

_OWN = "tuner.dev/"
_ONCE_OWN = ("value-of/", "import/")  # in stores of earlier versions


def added(request_id: str) -> str:
    """Return the key of a trial that AddTrial creates."""
    return f"{_OWN}added/{request_id}" if request_id.startswith((_OWN, *_ONCE_OWN)) else request_id


def added_before(trial: Trial | None) -> Trial | None:
    """Return `trial`, the trial with the plain request id as key, if a client's AddTrial created
    it.
    """
    if trial is None or REUSED in trial.labels or IMPORTED_FROM in trial.labels:
        return None
    return trial


def value_of(number: int) -> str:
    """Return the key of a trial that was finished with a known value."""
    return f"{_OWN}value-of/{number}"


def imported(request_id: str, source_id: str) -> str:
    """Return the key of an imported trial.

    The length of the request id tells (`a/b`, `c`) from (`a`, `b/c`).
    """
    return f"{_OWN}import/{len(request_id)}/{request_id}/{source_id}"


def imported_before(request_id: str, source_id: str) -> str:
    """Return the key that earlier versions gave an imported trial."""
    return f"import/{request_id}/{source_id}"
