"""MLflow: each trial is a run, which the tags `tuner.search` and `tuner.trial` identify."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tuner.integrations import needed
from tuner.integrations.trial_log import TrialLog, seconds

with needed("mlflow"):
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param, RunTag

if TYPE_CHECKING:
    from tuner.study import TrialResult

SEARCH = "tuner.search"
TRIAL = "tuner.trial"
_STATUS = {"succeeded": "FINISHED", "pruned": "KILLED", "cancelled": "KILLED"}
_AT_ONCE = 1000  # metrics of a request: MLflow's limit


class MLflowLog(TrialLog):
    """For `callbacks=` of `tuner.minimize`.

    Args:
        tracking_uri: None: MLflow's own, such as that of MLFLOW_TRACKING_URI.
        experiment: The name of the MLflow experiment.
    """

    tool = "MLflow"

    def __init__(self, tracking_uri: str | None = None, *, experiment: str = "tuner") -> None:
        super().__init__()
        self._client = MlflowClient(tracking_uri)
        self._experiment = experiment
        self._id = ""

    def copied(self, search: str) -> set[int]:
        experiment = self._client.get_experiment_by_name(self._experiment)
        self._id = (
            experiment.experiment_id
            if experiment
            else self._client.create_experiment(self._experiment)
        )
        query = f"tags.`{SEARCH}` = '{search}' and attributes.status != 'RUNNING'"
        numbers: set[int] = set()
        page = None
        while True:
            runs = self._client.search_runs([self._id], query, page_token=page)
            numbers.update(int(run.data.tags[TRIAL]) for run in runs)
            page = runs.token
            if not page:
                return numbers

    def copy(
        self, search: str, result: TrialResult, measurements: Sequence[tuple[int, str, float]]
    ) -> None:
        tags = {SEARCH: search, TRIAL: f"{result.number}", "tuner.state": result.state}
        if result.reason:
            tags["tuner.reason"] = result.reason
        start_ms, end_ms = (
            int(1000 * seconds(time)) for time in (result.start_time, result.end_time)
        )
        created = self._client.create_run(self._id, start_ms, run_name=f"{search}-{result.number}")
        run_id = created.info.run_id
        metrics = [Metric(name, value, end_ms, step) for step, name, value in measurements]
        self._client.log_batch(
            run_id,
            params=[Param(name, f"{value}") for name, value in result.parameters.items()],
            tags=[RunTag(name, value) for name, value in tags.items()],
        )
        for first in range(0, len(metrics), _AT_ONCE):
            self._client.log_batch(run_id, metrics=metrics[first : first + _AT_ONCE])
        self._client.set_terminated(run_id, _STATUS.get(result.state, "FAILED"), end_ms)
