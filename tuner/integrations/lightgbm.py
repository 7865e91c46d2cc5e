"""LightGBM: report the evaluation of each boosting round, and stop when the trial is pruned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.integrations import needed
from tuner.integrations.reporting import MetricReporter
from tuner.trial import Trial

with needed("lightgbm"):
    import lightgbm  # noqa: F401  # so that a missing library is named here

if TYPE_CHECKING:
    from lightgbm.callback import CallbackEnv


class LightGBMReport:
    """For `callbacks=` of `lightgbm.train`, `lightgbm.cv` and the scikit-learn classes.

    Args:
        metrics: Such as "valid_0 l2": the data set and the metric. None: all.
        trial: None: that of this process.
    """

    order = 20  # before lightgbm.early_stopping, which is 30
    before_iteration = False

    def __init__(
        self, metrics: str | Sequence[str] | None = None, *, trial: Trial | None = None
    ) -> None:
        self._reporter = MetricReporter(metrics, trial)

    def __call__(self, env: CallbackEnv) -> None:
        values = {
            f"{data} {name}": value for data, name, value, *_ in env.evaluation_result_list or ()
        }
        self._reporter.report(env.iteration, values)
