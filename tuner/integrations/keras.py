"""Keras: report the metrics of each epoch, and stop when the trial is pruned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.integrations import needed
from tuner.integrations.reporting import MetricReporter
from tuner.trial import Trial

with needed("keras"):
    import keras


class KerasReport(keras.callbacks.Callback):  # type: ignore[misc]  # Any, see pyproject.toml
    """For `callbacks=` of `model.fit`.

    Args:
        metrics: Such as "val_loss". None: all.
        trial: None: that of this process.
    """

    def __init__(
        self, metrics: str | Sequence[str] | None = None, *, trial: Trial | None = None
    ) -> None:
        super().__init__()
        self._reporter = MetricReporter(metrics, trial)

    def on_epoch_end(self, epoch: int, logs: Mapping[str, object] | None = None) -> None:
        self._reporter.report(epoch, logs or {})
