"""Weights & Biases: each trial is a run, in a group with the search's name."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tuner.integrations import needed
from tuner.integrations.trial_log import TrialLog

with needed("wandb"):
    import wandb

if TYPE_CHECKING:
    from tuner.study import TrialResult


class WandbLog(TrialLog):
    """For `callbacks=` of `tuner.minimize`.

    Lists the trials that it has logged in `wandb/SEARCH.tuner`.

    Args:
        project: None: W&B's own, such as that of WANDB_PROJECT.
        folder: For W&B's files. None: W&B's own.
        options: Further arguments of `wandb.init`, such as `mode="offline"`.
    """

    tool = "W&B"

    def __init__(
        self, project: str | None = None, folder: str | Path | None = None, **options: object
    ) -> None:
        super().__init__()
        self._options = {"project": project, "dir": folder, **options}
        self._folder = Path(folder or os.environ.get("WANDB_DIR") or ".", "wandb")

    def copied(self, search: str) -> set[int]:
        file = self._list(search)
        return set(map(int, file.read_text().split())) if file.exists() else set()

    def copy(
        self, search: str, result: TrialResult, measurements: Sequence[tuple[int, str, float]]
    ) -> None:
        name = f"{search}-{result.number}"
        by_step: dict[int, dict[str, float]] = defaultdict(dict)
        for step, metric, value in measurements:
            by_step[step][metric] = value
        outcome = {
            "tuner/trial": result.number,
            "tuner/state": result.state,
            "tuner/reason": result.reason or None,
            "tuner/value": result.value,
        }
        with wandb.init(
            id=name,
            name=name,
            group=search,
            config=result.parameters,
            reinit="create_new",
            **self._options,
        ) as run:
            for step, metrics in sorted(by_step.items()):
                run.log(metrics, step=step)
            run.summary.update({key: value for key, value in outcome.items() if value is not None})
        with self._list(search).open("a") as file:
            file.write(f"{result.number}\n")

    def _list(self, search: str) -> Path:
        return self._folder / f"{search}.tuner"
