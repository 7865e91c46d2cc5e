"""Log lines -> measurements. A trial needs no library: it prints, and this reads.

Understood, anywhere in a line: `epoch=3 accuracy=0.97`, `accuracy: 0.97`; a whole line of JSON: `{"accuracy": 0.97}`.
The step is the key `step`, else `epoch`, else the metric's own counter from 1. Pure: bytes in, measurements out; the
same bytes in other portions give the same measurements, so that a restarted controller may read a log again from 0.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

from controller.model import MetricsRule, Objective

MAX_LINE_BYTES = 64 << 10  # the rest of a longer line is not looked at
MAX_METRICS = 32  # of one attempt; the objective's always has a place
MAX_STEP = 2**53
STEP_KEYS = ("step", "epoch")

_NUMBER = r"[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|nan|NaN|inf(?:inity)?|Infinity)"
_PAIR = re.compile(rf"(?<![\w.])([A-Za-z_][\w./-]*)[\"']?(?:\s*=\s*|\s*:\s+|:)({_NUMBER})(?![\w%]|\.\w)")


@dataclass(frozen=True, slots=True)
class Reading:
    """One metric's value at one step."""

    metric: str
    step: int
    value: float


class LogReader:
    """Reads one attempt's log in portions. Knows the objective's last and best value so far."""

    def __init__(self, rule: MetricsRule, objective: Objective) -> None:
        self._objective = objective
        self._step_keys = (rule.step,) if rule.step else STEP_KEYS
        self._pattern = re.compile(rule.pattern) if rule.pattern else None
        self._partial = b""
        self._skipping = False
        self._counters: dict[str, int] = {}
        self._best: float | None = None
        self._last: float | None = None
        self.offset = 0  # bytes taken so far
        self.last_line = ""  # the last line that is not blank
        self.step: int | None = None  # of the objective's last reading

    @property
    def value(self) -> float | None:
        """The objective's value by the experiment's rule; may be non-finite, None before the first."""
        if self._objective.value == "best" and self._best is not None:
            return self._best
        return self._last

    @property
    def last(self) -> float | None:
        return self._last

    def feed(self, data: bytes) -> list[Reading]:
        """Take the log's next bytes; returns the readings of the lines that they complete."""
        self.offset += len(data)
        *lines, rest = data.split(b"\n")
        readings: list[Reading] = []
        for line in lines:
            readings += self._take(line)
        self._hold(rest)
        return readings

    def finish(self) -> list[Reading]:
        """The log is complete: its last line may lack its end."""
        return self._take(b"") if self._partial else []

    def _hold(self, rest: bytes) -> None:
        if not self._skipping:
            self._partial += rest
        if len(self._partial) > MAX_LINE_BYTES:
            self._partial = self._partial[:MAX_LINE_BYTES]
            self._skipping = True

    def _take(self, end: bytes) -> list[Reading]:
        raw = self._partial if self._skipping else self._partial + end
        self._partial, self._skipping = b"", False
        # A progress bar rewrites its line with carriage returns: what counts is what is left standing.
        line = raw[:MAX_LINE_BYTES].decode("utf-8", "replace").rstrip("\r").rsplit("\r", 1)[-1].strip()
        if not line:
            return []
        self.last_line = line[:1000]
        return self._readings(self._pairs(line))

    def _pairs(self, line: str) -> dict[str, float]:
        if self._pattern is not None:
            found = ((m[1], _number(m[2])) for m in self._pattern.finditer(line))
            return {name: value for name, value in found if name and value is not None}
        if line.startswith("{") and line.endswith("}"):
            return _json_pairs(line)
        if "=" not in line and ":" not in line:
            return {}
        return {m[1]: float(m[2]) for m in _PAIR.finditer(line)}

    def _readings(self, pairs: dict[str, float]) -> list[Reading]:
        step = next((int(pairs[key]) for key in self._step_keys if _is_step(pairs.get(key))), None)
        readings = []
        for metric, value in pairs.items():
            if metric in self._step_keys and metric != self._objective.metric:
                continue
            if metric not in self._counters:
                if metric != self._objective.metric and len(self._counters) >= MAX_METRICS:
                    continue
                self._counters[metric] = 0
            self._counters[metric] += 1
            at = self._counters[metric] if step is None else step
            readings.append(Reading(metric, at, value))
            if metric == self._objective.metric:
                self._note(at, value)
        return readings

    def _note(self, step: int, value: float) -> None:
        self.step, self._last = step, value
        if math.isfinite(value):
            better = max if self._objective.maximize else min
            self._best = value if self._best is None else better(self._best, value)


def _is_step(value: float | None) -> bool:
    return value is not None and value.is_integer() and 0 <= value <= MAX_STEP


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _json_pairs(line: str) -> dict[str, float]:
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return {m[1]: float(m[2]) for m in _PAIR.finditer(line)}
    if not isinstance(document, dict):
        return {}
    pairs = {}
    for key, value in document.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                pairs[key] = float(value)
            except OverflowError:
                continue
    return pairs
