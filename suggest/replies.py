"""Arguments and results of calls that are not nouns themselves.

Pure; for `suggest.studies` and `suggest.client`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from suggest.trial import Trial, TrialState


class Keep(enum.Enum):
    """The type of `KEEP`: do not change this. None means to remove it."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Suggestions:
    """The trials of one request.

    exhausted: there are fewer than requested, because the search space has no further
    point. waiting: there are fewer than requested, because a running trial has to end
    first. independent: the next points do not depend on the outcome of any trial, so
    they may be requested ahead of need.
    """

    trials: tuple[Trial, ...]
    exhausted: bool
    independent: bool = False
    waiting: bool = False


@dataclass(frozen=True, slots=True)
class StudySummary:
    """How far a study is. `trials` counts the trials in each state that occurs."""

    trials: Mapping[TrialState, int]
    best: Trial | None = None


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """An algorithm that the service offers.

    `settings` maps names to a sentence with type, default and meaning.
    """

    name: str
    description: str
    settings: Mapping[str, str]
