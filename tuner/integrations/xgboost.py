"""XGBoost: report the evaluation of each boosting round, and stop when the trial is pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.integrations import needed
from tuner.integrations.reporting import MetricReporter
from tuner.trial import Trial

with needed("xgboost"):
    from xgboost.callback import TrainingCallback


class XGBoostReport(TrainingCallback):  # type: ignore[misc]  # Any, see pyproject.toml
    """For `callbacks=` of `xgboost.train`, `xgboost.cv` and the scikit-learn classes.

    Args:
        metrics: Such as "validation_0-logloss": the data set and the metric. None: all.
        trial: None: that of this process.
    """

    def __init__(
        self, metrics: str | Sequence[str] | None = None, *, trial: Trial | None = None
    ) -> None:
        super().__init__()
        self._reporter = MetricReporter(metrics, trial)

    def after_iteration(
        self, model: object, epoch: int, evals_log: Mapping[str, Mapping[str, Sequence[object]]]
    ) -> bool:
        newest = {}
        for data, log in evals_log.items():
            for name, history in log.items():
                value = history[-1]
                # xgboost.cv gives pairs of mean and standard deviation.
                newest[f"{data}-{name}"] = value[0] if isinstance(value, tuple) else value
        self._reporter.report(epoch, newest)
        return False
