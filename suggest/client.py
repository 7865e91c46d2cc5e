"""The typed client of the suggestion service: the nouns in, the nouns out, never protobuf.

`AsyncClient` is what the controller uses; `Client` (below it) is the same for people's own scripts.
Every call has a deadline; every method may be repeated: what changes something carries a request id or is idempotent
by its meaning. An error of the service arrives as the type of `suggest.errors` that it left as.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from suggest.replies import KEEP, AlgorithmInfo, Keep, Suggestions
from suggest.space import Assignment, Value
from suggest.study import Pruning, Study, StudyName, StudySpec
from suggest.trial import NO_LABELS, Measurement, Outcome, StopAdvice, Trial, TrialState


class AsyncClient:
    """Belongs to one event loop. `address`: `HOST:PORT` or `unix:PATH`. Connects at the first call.

    All methods raise NotFound, InvalidArgument, FailedPrecondition (NotOwner), Unavailable, StoreBroken as they apply.
    """

    def __init__(self, address: str, *, timeout_s: float = 10.0) -> None:
        self.address = address
        self._timeout_s = timeout_s

    async def create_study(
        self, name: StudyName, spec: StudySpec, *, request_id: str, labels: Mapping[str, str] = NO_LABELS
    ) -> Study:
        """The same request_id and spec again returns the study; the name otherwise taken: AlreadyExists."""
        raise NotImplementedError

    async def get_study(self, name: StudyName) -> Study:
        raise NotImplementedError

    async def list_studies(self, namespace: str = "-") -> list[Study]:
        """`-` means all namespaces."""
        raise NotImplementedError

    async def update_study(
        self, name: StudyName, *, pruning: Pruning | Keep | None = KEEP, labels: Mapping[str, str] | Keep = KEEP
    ) -> Study:
        raise NotImplementedError

    async def delete_study(self, name: StudyName) -> None:
        raise NotImplementedError

    async def list_trials(
        self, name: StudyName, *, client_id: str = "", states: Iterable[TrialState] = ()
    ) -> list[Trial]:
        """All that match, ordered by number."""
        raise NotImplementedError

    async def get_trial(self, name: StudyName, number: int) -> Trial:
        raise NotImplementedError

    async def suggest(
        self,
        name: StudyName,
        count: int,
        *,
        client_id: str,
        request_id: str,
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Suggestions:
        """Up to `count` trials, running from now on. The same request_id again: the same trials, as they are now."""
        raise NotImplementedError

    async def report(self, name: StudyName, number: int, measurements: Sequence[Measurement]) -> StopAdvice:
        """Known (attempt, metric, step) are ignored. A finished trial takes nothing new: FailedPrecondition."""
        raise NotImplementedError

    async def complete(
        self, name: StudyName, number: int, outcome: Outcome, *, measurements: Sequence[Measurement] = ()
    ) -> Trial:
        """`measurements` are stored with it, in one write. Completing the same way again succeeds."""
        raise NotImplementedError

    async def add_trial(
        self,
        name: StudyName,
        parameters: Assignment,
        *,
        request_id: str,
        outcome: Outcome | None = None,
        measurements: Sequence[Measurement] = (),
        labels: Mapping[str, str] = NO_LABELS,
    ) -> Trial:
        """Without an outcome: enqueued (may be partial), handed out by the next suggest(). With one: imported."""
        raise NotImplementedError

    async def list_measurements(self, name: StudyName, number: int | None = None) -> list[tuple[int, Measurement]]:
        """(trial number, measurement), in the order in which they were reported; of one trial or of all."""
        raise NotImplementedError

    async def optimal_trials(self, name: StudyName) -> list[Trial]:
        """The best succeeded trial, or nothing (a list: with several objectives there will be several)."""
        raise NotImplementedError

    async def validate(self, spec: StudySpec) -> None:
        """Raises InvalidArgument with all problems; stores nothing."""
        raise NotImplementedError

    async def algorithms(self) -> list[AlgorithmInfo]:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError


__all__ = ["KEEP", "AlgorithmInfo", "AsyncClient", "Keep", "Suggestions", "Value"]
