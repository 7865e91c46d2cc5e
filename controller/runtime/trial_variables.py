"""The names that a trial finds on every runtime: variables and host names
for what it reports besides its log.
"""

from __future__ import annotations

from pathlib import Path

# Where a trial asks for a parameter that it meets: the path of a file with the path of a socket.
PARAMETER_REQUESTS = "TUNER_PARAMETER_REQUESTS"
# Where a trial that asks in its log finds the answers: a file with a JSON object, or nothing.
PARAMETER_ANSWERS = "TUNER_PARAMETER_ANSWERS"
# What the trial need not wait for: `suggest.trial.PLANNED`.
PARAMETER_PLAN = "TUNER_PARAMETER_PLAN"
# Where a trial writes its metrics, or serves them, if the file's `spec.metrics` says so.
METRICS_FILE, METRICS_PORT = "TUNER_METRICS_FILE", "TUNER_METRICS_PORT"
# The names of Katib's DBManager, to which programs written for Katib report.
DB_MANAGER_NAMES = (
    "katib-db-manager.kubeflow",
    "katib-db-manager.kubeflow.svc",
    "katib-db-manager",
)


def place_below(output: Path, path: str) -> Path:
    """Return where a trial without a container writes to.

    A container's absolute path is moved below the output.
    """
    return output / path.lstrip("/")
