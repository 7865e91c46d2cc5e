"""The errors of the suggestion service: the types that both halves and the wire agree on.

Pure: no gRPC codes (`suggest.wire.status` maps types to codes and back). Every message is a sentence for a person: the
place, the value, the rule, the cure.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with what somebody sent: `path` in the request (`spec.parameters.lr.min`), and a sentence."""

    path: str
    message: str


MAX_HINTED = 100  # names that are compared, and characters of one: the comparison costs a millisecond each


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean momentum?` when a known word is near, else nothing: the end of a sentence.

    Nothing either where there are more than MAX_HINTED known words.
    """
    from difflib import get_close_matches  # costs milliseconds, and only people who mistype need it

    among = [name for name in known if len(name) <= MAX_HINTED]
    if len(among) > MAX_HINTED or len(word) > MAX_HINTED:
        return ""
    near = get_close_matches(word, among, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class Hints:
    """`did_you_mean` among the same words for the first few only: each costs milliseconds where there are many."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = list(known)
        self._left = 10

    def __call__(self, word: str, *, but: str = "") -> str:
        """`but`: the one that it cannot be."""
        self._left -= 1
        if self._left < 0 or len(self._known) > MAX_HINTED:
            return ""
        return did_you_mean(word, (known for known in self._known if known != but))


class TunerError(Exception):
    """The root of all errors that are somebody's fault but a bug's; `reason` is the machine's word for it."""

    reason = "UNKNOWN"


class InvalidArgument(TunerError):
    """The request can never succeed; all problems at once."""

    reason = "INVALID_ARGUMENT"

    def __init__(self, problems: tuple[Problem, ...] | list[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in self.problems))


class NotFound(TunerError):
    """No such namespace, study or trial."""

    reason = "NOT_FOUND"


class AlreadyExists(TunerError):
    """The name is taken by something else than what was asked for."""

    reason = "ALREADY_EXISTS"


class FailedPrecondition(TunerError):
    """Right request, wrong state: a trial completed another way, a study that does not take suggestions."""

    reason = "FAILED_PRECONDITION"


class NotOwner(FailedPrecondition):
    """Another process holds the study; `address` is where it listens ("" when unknown)."""

    reason = "NOT_OWNER"

    def __init__(self, message: str, *, address: str = "") -> None:
        self.address = address
        super().__init__(message)


class LeaseExpired(FailedPrecondition):
    """The trial was handed out again, to somebody else, after the caller's lease had expired: leave it alone."""

    reason = "LEASE_EXPIRED"


class Unauthenticated(TunerError):
    """The server does not know who calls: no token came with the call, or one that it does not know."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(TunerError):
    """The caller may not do that, or not there. Says nothing about what is there."""

    reason = "PERMISSION_DENIED"


class Unavailable(TunerError):
    """The store or the server cannot answer now (locked, full, read-only, gone): try again, nothing was lost."""

    reason = "UNAVAILABLE"


class StoreBroken(TunerError):
    """The store is damaged, or of a newer schema: trying again does not help; the message says what does."""

    reason = "STORE_BROKEN"


class TimedOut(Unavailable):
    """The server gave up waiting for its own answer: it may have been done, or not."""

    reason = "DEADLINE_EXCEEDED"


class StoreUnavailable(Unavailable):
    """The database itself does not answer, or takes nothing: everybody is affected."""


class OutOfFiles(Unavailable):
    """The process has no file descriptor left."""


class RateLimited(Unavailable):
    """Too much at once from this client: the same call will be taken `retry_s` seconds from now."""

    reason = "RATE_LIMITED"

    def __init__(self, message: str, *, retry_s: float = 1.0, late_s: float = 0.0) -> None:
        """late_s: how long the server itself waits before it says so."""
        self.retry_s = retry_s
        self.late_s = late_s
        super().__init__(message)


class StudyBusy(RateLimited):
    """Too many calls wait for one study."""

    reason = "STUDY_BUSY"


class LimitReached(TunerError):
    """There may be no more of something than this: `limit` names it, `subject` whose it is. Waiting does not help; the
    message says what does."""

    reason = "LIMIT_REACHED"

    def __init__(self, message: str, *, limit: str = "", subject: str = "") -> None:
        self.limit = limit
        self.subject = subject
        super().__init__(message)
