"""Lightning: report the metrics of each validation, and stop when the trial is pruned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tuner.integrations import needed
from tuner.integrations.reporting import MetricReporter
from tuner.trial import Trial

with needed("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer


class LightningReport(Callback):  # type: ignore[misc]  # Any, see pyproject.toml
    """For `callbacks=` of the Trainer.

    The step is the epoch; with several validations in an epoch, their number.

    Steps begin at 0. Lightning's checkpoints hold the last one,
    so a run that is resumed from one repeats no step.

    Args:
        metrics: Names that the module logs, such as "val_loss". None: all.
        trial: None: that of this process.
    """

    def __init__(
        self, metrics: str | Sequence[str] | None = None, *, trial: Trial | None = None
    ) -> None:
        self._metrics = metrics
        self._reporter = MetricReporter(metrics, trial)
        self._step = -1

    @property
    def state_key(self) -> str:
        """The key of its state in a checkpoint.

        It names the metrics, because a Trainer may have several callbacks.
        """
        key: str = self._generate_state_key(metrics=self._metrics)
        return key

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking:
            return
        self._step = max(trainer.current_epoch, self._step + 1)
        if trainer.is_global_zero:
            self._reporter.report(self._step, trainer.callback_metrics)

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._step = state_dict["step"]
