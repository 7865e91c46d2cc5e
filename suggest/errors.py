"""The errors of the suggestion service, which the service, its clients and the controller share.

Pure: gRPC codes are in `suggest.grpc_status`, which maps types to codes and back. Each message is a
sentence for a person, with the place, the value, the rule and the cure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a request: its `path`, such as `spec.parameters.lr.min`, and a sentence."""

    path: str
    message: str


class Problems(list[Problem]):
    """The problems that a reader has found so far."""

    def add(self, path: str, message: str) -> None:
        self.append(Problem(path, message))


MAX_HINTED = 100  # names to compare, and characters of each; one comparison takes a millisecond


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence, such as `; did you mean momentum?`; "" if none is similar.

    Returns "" as well if there are more than MAX_HINTED known words.
    """
    # lazy: takes milliseconds, and is needed only for mistyped names
    from difflib import get_close_matches

    among = [name for name in known if len(name) <= MAX_HINTED]
    if len(among) > MAX_HINTED or len(word) > MAX_HINTED:
        return ""
    near = get_close_matches(word, among, n=1, cutoff=0.6)
    return f"; did you mean {near[0]}?" if near else ""


class Hints:
    """`did_you_mean` among the same words, for the first few calls: each takes milliseconds."""

    def __init__(self, known: Iterable[str]) -> None:
        self._known = list(known)
        self._left = 10

    def __call__(self, word: str, *, but: str = "") -> str:
        """Return the hint for a word. `but` is a word that it cannot be."""
        self._left -= 1
        if self._left < 0 or len(self._known) > MAX_HINTED:
            return ""
        return did_you_mean(word, (known for known in self._known if known != but))


class TunerError(Exception):
    """The base of all errors that are not bugs. `reason` is a stable word for programs."""

    reason = "UNKNOWN"


class InvalidArgument(TunerError):
    """The request can never succeed. Has all of its problems."""

    reason = "INVALID_ARGUMENT"

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__(
            "; ".join(f"{p.path}: {p.message}" if p.path else p.message for p in self.problems)
        )

    @classmethod
    def at(cls, path: str, message: str) -> InvalidArgument:
        """Return the error for a single problem."""
        return cls([Problem(path, message)])


def under(place: str, problems: Iterable[Problem]) -> Iterator[Problem]:
    """Yield the problems with a place in front of their paths."""
    for problem in problems:
        yield Problem(f"{place}.{problem.path}" if problem.path else place, problem.message)


def raise_if(problems: Iterable[Problem]) -> None:
    """Raise InvalidArgument if there are problems."""
    if found := tuple(problems):
        raise InvalidArgument(found)


class NotFound(TunerError):
    """There is no such namespace, study or trial."""

    reason = "NOT_FOUND"


class AlreadyExists(TunerError):
    """The name belongs to something else than what was requested."""

    reason = "ALREADY_EXISTS"


class FailedPrecondition(TunerError):
    """The state does not allow the request.

    For example, to complete a trial that has ended in another way.
    """

    reason = "FAILED_PRECONDITION"


class NotOwner(FailedPrecondition):
    """Another process owns the study and listens at `address`, which is "" if unknown."""

    reason = "NOT_OWNER"

    def __init__(self, message: str, *, address: str = "") -> None:
        self.address = address
        super().__init__(message)


class LeaseExpired(FailedPrecondition):
    """The caller's lease expired and the trial was handed out to another client.

    The caller must stop running it.
    """

    reason = "LEASE_EXPIRED"


class Unauthenticated(TunerError):
    """The call had no token, or one that the server does not know."""

    reason = "UNAUTHENTICATED"


class PermissionDenied(TunerError):
    """The caller lacks the right. The message does not reveal what exists."""

    reason = "PERMISSION_DENIED"


class Unavailable(TunerError):
    """The store or the server cannot answer now: it is locked, full, read-only or gone.

    Retry; nothing was lost.
    """

    reason = "UNAVAILABLE"


class StoreBroken(TunerError):
    """The store is damaged, or has a schema that this version does not know.

    Retrying does not help; the message says what does.
    """

    reason = "STORE_BROKEN"


class UnknownSchema(StoreBroken):
    """A newer version has upgraded the store, or it is too old for this version to upgrade."""


class TimedOut(Unavailable):
    """The server gave up waiting for its own answer.

    The request may or may not have been carried out.
    """

    reason = "DEADLINE_EXCEEDED"


class StoreUnavailable(Unavailable):
    """The database itself does not answer or accepts no writes, which affects all studies."""


class TooManyOpenFiles(Unavailable):
    """The process has no file descriptor left."""


class RateLimited(Unavailable):
    """The client sends too much at once. Retry after `retry_s` seconds."""

    reason = "RATE_LIMITED"

    def __init__(self, message: str, *, retry_s: float = 1.0, late_s: float = 0.0) -> None:
        """`late_s` is how long the server delays this answer."""
        self.retry_s = retry_s
        self.late_s = late_s
        super().__init__(message)


class StudyBusy(RateLimited):
    """Too many calls wait for one study."""

    reason = "STUDY_BUSY"


class LimitReached(TunerError):
    """A limit is reached. `limit` names it, `subject` is whose limit it is.

    Waiting does not help; the message says what does.
    """

    reason = "LIMIT_REACHED"

    # `limit` has a default because a worker process sends the error pickled.
    def __init__(self, message: str, *, limit: str = "", subject: str = "") -> None:
        self.limit = limit
        self.subject = subject
        super().__init__(message)
