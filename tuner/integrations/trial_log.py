"""Copy each trial that has ended to a tracking tool: the rules that all tools share.

No library is imported here.

These are callbacks of `tuner.minimize`. A tool that fails must not end the search: the first error
is a warning, and what was missed is copied with a later trial.
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
        self._study: Study | None = None
        # Its unique name, which runs and folders have.
        self._search = ""
        self._copied: set[int] = set()
        # Trials that have ended before may be missing.
        self._behind = True
        self._warned = False

    def __call__(self, study: Study, result: TrialResult) -> None:
        """Copy a trial that has ended, and those that were missed. An error is a warning, once."""
        try:
            if self._behind or study is not self._study:
                self.copy_all(study)
            else:
                self._copy_missing(study, [result])
        except Exception as error:
            if not self._warned:
                log.warning(
                    "%s: trial %d of %s was not logged, and is tried again after a later trial: "
                    "%s: %s",
                    self.tool,
                    result.number,
                    study.name,
                    type(error).__name__,
                    error,
                )
            self._warned = True

    def copy_all(self, study: Study) -> None:
        """Copy all trials that have ended and that the tool lacks, such as a stored search's.

        Raises whatever the tool raises.
        """
        if study is not self._study:
            self._search = study.unique_name
            self._copied = self.copied(self._search)
            self._study = study
        self._copy_missing(study, study.results())

    def _copy_missing(self, study: Study, results: Sequence[TrialResult]) -> None:
        self._behind = True
        for result in results:
            if result.number not in self._copied and result.state not in UNFINISHED:
                self.copy(self._search, result, study.measurements(result.number))
                self._copied.add(result.number)
        self._behind = False

    @abstractmethod
    def copied(self, search: str) -> set[int]:
        """Return the numbers of the trials that the tool has already.

        Called before the first `copy`.

        search: The unique name of the search. With the number of a trial, it identifies the trial
            in the tool.
        """

    @abstractmethod
    def copy(
        self, search: str, result: TrialResult, measurements: Sequence[tuple[int, str, float]]
    ) -> None:
        """Write one trial, with its measurements (step, metric, value).

        Called again if it raises.
        """


def seconds(time: datetime | None) -> float:
    """Return the seconds since the epoch, of now for None. Times of trials are in UTC."""
    if time is None:
        return datetime.now(UTC).timestamp()
    return (time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp()
