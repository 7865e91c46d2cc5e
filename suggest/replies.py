"""Values that calls take and return beyond the nouns. Pure; shared by `suggest.studies` and `suggest.client`."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

from suggest.trial import Trial, TrialState


class Keep(enum.Enum):
    """`KEEP`: leave this as it is (None would mean: remove it)."""

    KEEP = "keep"


KEEP = Keep.KEEP


@dataclass(frozen=True, slots=True)
class Suggestions:
    """Fewer trials than asked and `exhausted`: the search space has no further point. `independent`: what comes next
    does not depend on how any trial ends, so that asking ahead of need changes nothing."""

    trials: tuple[Trial, ...]
    exhausted: bool
    independent: bool = False


@dataclass(frozen=True, slots=True)
class StudySummary:
    """How far a study is. `trials`: by state, those that there are."""

    trials: Mapping[TrialState, int]
    best: Trial | None = None


@dataclass(frozen=True, slots=True)
class AlgorithmInfo:
    """One algorithm on offer; `settings`: name -> a sentence (type, default, meaning)."""

    name: str
    description: str
    settings: Mapping[str, str]
