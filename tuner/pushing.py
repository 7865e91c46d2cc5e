"""Report measurements from inside a trial whose experiment has `metrics: {push: true}`.

Standard library only.

Each call appends one line to the file that the controller reads, so nothing is lost if the
controller is not running.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping

VARIABLE = "TUNER_METRICS_FILE"


def push(
    metrics: Mapping[str, float] | None = None, /, *, step: int | None = None, **named: float
) -> None:
    """Report metrics of this trial: `push(step=3, accuracy=0.97)`.

    Args:
        metrics: Metrics whose names are not Python names: `push({"val/loss": 0.3}, step=3)`.
        step: The step that they belong to; without it each metric counts its reports.
        named: More metrics, by name.

    Raises:
        RuntimeError: this process is not a trial of an experiment with `metrics: {push: true}`.
        TypeError: a value is not a number.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        raise RuntimeError(
            f"{VARIABLE} is not set: push works in trials of an experiment with metrics: {{push: "
            f"true}}"
        )
    values: dict[str, object] = {} if step is None else {"step": int(step)}
    for name, value in {**(metrics or {}), **named}.items():
        # Also a NumPy or torch scalar.
        number = float(value)
        values[name] = number if math.isfinite(number) else str(number)
    line = json.dumps(values).encode() + b"\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # In one piece, also beside other processes.
        os.write(file, line)
    finally:
        os.close(file)
