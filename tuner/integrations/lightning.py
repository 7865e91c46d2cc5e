"""Lightning: report the metrics of each validation, and stop when the trial is pruned."""

from __future__ import annotations

from collections.abc import Sequence

from tuner.integrations import needed
from tuner.integrations.reporting import MetricReporter
from tuner.trial import Trial

with needed("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class LightningReport(Callback):  # type: ignore[misc]  # Any, see pyproject.toml
    """For `callbacks=` of the Trainer. The step is the epoch; of several validations in an epoch, the first counts.

    Args:
        metrics: Names that the module logs, such as "val_loss". None: all.
        trial: None: that of this process.
    """

    def __init__(self, metrics: str | Sequence[str] | None = None, *, trial: Trial | None = None) -> None:
        self._reporter = MetricReporter(metrics, trial)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero and not trainer.sanity_checking:
            self._reporter.report(trainer.current_epoch, trainer.callback_metrics)
