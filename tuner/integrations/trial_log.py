"""Copy each trial that has ended to a tracking tool: the rules that all tools share. No library is imported here.

These are callbacks of `tuner.minimize`. A tool that fails must not end the search: the first error is a warning, and
what was missed is copied with a later trial.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tuner.study import Study, TrialResult

log = logging.getLogger(__name__)
UNFINISHED = ("queued", "running", "paused")


class TrialLog(ABC):
    """A callback that copies each trial once, also if the search is killed and continued."""

    tool = ""  # its name in messages

    def __init__(self) -> None:
        self._search = ""  # its unique name, which runs and folders have
        self._copied: set[int] = set()
        self._behind = True  # trials that have ended before may be missing
        self._warned = False

    def __call__(self, study: Study, result: TrialResult) -> None:
        try:
            if not self._search:
                self._copied = self.copied(study.unique_name)
                self._search = study.unique_name
            for each in study.results() if self._behind else [result]:
                if each.number not in self._copied and each.state not in UNFINISHED:
                    self._behind = True
                    self.copy(self._search, each, study.measurements(each.number))
                    self._copied.add(each.number)
            self._behind = False
        except Exception as error:
            if not self._warned:
                log.warning(
                    "%s: trial %d of %s was not logged, and is tried again after a later trial: %s: %s",
                    self.tool, result.number, study.name, type(error).__name__, error,
                )  # fmt: skip
            self._warned = True

    @abstractmethod
    def copied(self, search: str) -> set[int]:
        """The numbers of the trials that the tool has already. Called before the first `copy`.

        search: The unique name of the search. With the number of a trial, it identifies the trial in the tool.
        """

    @abstractmethod
    def copy(self, search: str, result: TrialResult, measurements: Sequence[tuple[int, str, float]]) -> None:
        """Write one trial, with its measurements (step, metric, value). Called again if it raises."""


def seconds(time: datetime | None) -> float:
    """Since the epoch; now for None. Times of trials are in UTC."""
    if time is None:
        return datetime.now(UTC).timestamp()
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
