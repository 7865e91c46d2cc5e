"""The median rule: stop a trial whose best value so far is worse than the median of its peers at the same step.

The percentile rule at 50 percent, like Optuna's MedianPruner; Golovin et al. 2017 (Google Vizier), section 3.5.2.
"""

from __future__ import annotations

from dataclasses import dataclass

from suggest.pruners.percentile import PercentilePruner, PercentileSettings
from suggest.settings import setting
from suggest.study import Objective


@dataclass(frozen=True, slots=True)
class MedianSettings:
    warmup_steps: int = setting(0, "no trial is judged before this step", min=0)
    interval: int = setting(1, "steps between judgments, counted from warmupSteps", min=1)
    min_trials: int = setting(5, "succeeded trials with a value at or before the step that a judgment requires", min=1)


class MedianPruner(PercentilePruner):
    def __init__(self, objective: Objective, settings: MedianSettings) -> None:
        half = PercentileSettings(50.0, settings.warmup_steps, settings.interval, settings.min_trials)
        super().__init__(objective, half)
