"""Hugging Face Transformers: report the metrics of each evaluation,
and stop when the trial is pruned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tuner.integrations import needed
from tuner.integrations.reporting import MetricReporter
from tuner.trial import Trial

with needed("transformers"):
    from transformers import (
        IntervalStrategy,
        TrainerCallback,
        TrainerControl,
        TrainerState,
        TrainingArguments,
    )


class TransformersReport(TrainerCallback):  # type: ignore[misc]  # Any, see pyproject.toml
    """For `callbacks=` of the Trainer.

    The step is the epoch with `eval_strategy="epoch"`, else the optimizer's.

    Args:
        metrics: Such as "eval_loss". None: all, with times such as "eval_runtime".
        trial: None: that of this process.
    """

    def __init__(
        self, metrics: str | Sequence[str] | None = None, *, trial: Trial | None = None
    ) -> None:
        self._reporter = MetricReporter(metrics, trial)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: Mapping[str, object] | None = None,
        **_: object,
    ) -> None:
        by_epoch = args.eval_strategy == IntervalStrategy.EPOCH and state.epoch is not None
        if state.is_world_process_zero:
            self._reporter.report(
                round(state.epoch) if by_epoch else state.global_step, metrics or {}
            )
