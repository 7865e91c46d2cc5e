"""Format values, durations, parameters and trends. Pure; used by all modules of `report`."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from controller.core.model import ExperimentObjective
from suggest.domain import Value, compact_json
from suggest.study import Criteria
from suggest.trial import Trial

_SPARKS = "▁▂▃▄▅▆▇█"


def number(value: float | None) -> str:
    """Return a number with six significant digits: they tell trials apart and fit a table."""
    return "" if value is None else f"{value:z.6g}"  # z: no -0


def text(value: object) -> str:
    return "" if value is None else str(value)


def duration(seconds: float) -> str:
    """Return a duration in at most two units: `0.3s`, `42s`, `3m07s`, `2h05m`, `3d04h`."""
    if seconds < 9.95:
        return f"{max(0.0, seconds):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    if whole < 3600:
        return f"{whole // 60}m{whole % 60:02d}s"
    if whole < 86400:
        return f"{whole // 3600}h{whole % 3600 // 60:02d}m"
    return f"{whole // 86400}d{whole % 86400 // 3600:02d}h"


def between(start: datetime | None, end: datetime | None) -> str:
    return "" if start is None or end is None else duration((end - start).total_seconds())


def parameter(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.4g}"
    # A line break or an escape sequence would tear the table, or color the terminal.
    return value if isinstance(value, str) and value.isprintable() else compact_json(value)


def parameter_of(assignment: Mapping[str, Value], name: str) -> str:
    """Return the value of a parameter; "" if it is inactive."""
    return parameter(assignment[name]) if name in assignment else ""


def scores(criteria: Criteria, trial: Trial) -> str:
    """Return the objectives' values, then the constraints': `accuracy 0.97, latency_ms 18`.

    Of an objective that is a text only its name: the text is the reason of the attempt.
    """
    first = criteria.objectives[0]
    if isinstance(first, ExperimentObjective) and first.text:
        return first.metric
    metrics = [objective.metric for objective in criteria.objectives]
    results: dict[str, float | None] = {metrics[0]: trial.value}
    results |= dict(zip(metrics, trial.values, strict=False))
    bounded = [constraint.metric for constraint in criteria.constraints]
    results |= dict(zip(bounded, trial.constraint_values, strict=False))
    return ", ".join(f"{metric} {number(value)}" for metric, value in results.items())


def parameters(assignment: Mapping[str, Value]) -> str:
    """Return the parameters on one line: `lr=0.0123 layers=4`."""
    return " ".join(f"{name}={parameter(value)}" for name, value in assignment.items())


def sparkline(trend: Sequence[float], width: int) -> str:
    """Draw the trend in at most `width` characters.

    Each of them shows the last value of its section. A constant trend is a line in the middle.
    """
    finite = [value for value in trend if math.isfinite(value)]
    count = len(finite)
    if count < 2:
        return ""
    if count > width:
        finite = [finite[(i + 1) * count // width - 1] for i in range(width)]
    low, high = min(finite), max(finite)
    highest = len(_SPARKS) - 1
    if low == high:
        return _SPARKS[len(_SPARKS) // 2] * len(finite)
    if math.isinf(high - low):
        finite = [value / 2 for value in finite]
        low, high = low / 2, high / 2
    heights = [round((value - low) / (high - low) * highest) for value in finite]
    return "".join(_SPARKS[height] for height in heights)


def digest(image: str) -> str:
    """Return an image's digest shortened for a table: `sha256:1a2b3c4d5e6f`.

    An image without a digest is unchanged.
    """
    _, separator, digits = image.rpartition("sha256:")
    return f"{separator}{digits[:12]}" if separator else image


def json_number(value: float) -> float | str:
    """Return a number for JSON, which has no NaN and infinities.

    They become the words of protobuf's JSON.
    """
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def timestamp(time: datetime | None) -> str:
    """Return the time in RFC 3339 format, in UTC; "" for None."""
    if time is None:
        return ""
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def ranges(numbers: Iterable[int]) -> str:
    """Return numbers with consecutive ones joined: `0-3, 7`."""
    runs: list[tuple[int, int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], number
        else:
            runs.append((number, number))
    texts = [str(low) if low == high else f"{low}-{high}" for low, high in runs]
    return ", ".join(texts)
