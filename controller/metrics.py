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
MAX_NAME = 128  # characters; what stands under a longer name, or one that cannot be printed, is no metric
STEP_KEYS = ("step", "epoch")

# Nothing here may run twice over the same characters (possessive quantifiers, a bounded name): a trial that prints
# garbage without an end must not hold up the others.
_EXPONENT = r"(?:[eE][+-]?\d++)?+"
_NUMBER = rf"[+-]?(?:\d++\.?+\d*+{_EXPONENT}|\.\d++{_EXPONENT}|nan|NaN|inf(?:inity)?|Infinity)"
_NAME = rf"[A-Za-z_][\w./-]{{0,{MAX_NAME - 1}}}+"
_PAIR = re.compile(rf"(?<![\w.])({_NAME})[\"']?(?:\s*+=\s*|\s*+:\s+|(:))({_NUMBER})(?![\w%]|\.\w)")
# Where a pair may stand in raw bytes, never missing one: most of a log is not metrics, and this skips it ten times
# faster than a look at each line. The look back leaves out the time of day.
_HINT = re.compile(rb"[=:][\x00-\x09\x0b-\x20]*[+-]?[0-9.nNiI\x1b\x80-\xff](?<![^\w./\x80-\xff-][0-9][0-9]:[0-9])")
_COLOUR = re.compile(rb"\x1b\[[0-9;?]*+[@-~]")


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
        self._counters: dict[str, int] = {}  # the highest step of each metric so far
        self._counted: set[str] = set()  # metrics that have lacked a step: their own count is their step
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
        lines, newline, rest = data.rpartition(b"\n")
        if not newline:
            self._hold(rest)
            return []
        end, _, lines = lines.partition(b"\n")
        readings = self._take(self._partial + end)
        readings += self._take_all(lines) if self._pattern is None else self._take_each(lines)
        self._partial = b""
        self._hold(rest)
        return readings

    def finish(self) -> list[Reading]:
        """The log is complete: its last line may lack its end."""
        last, self._partial = self._partial, b""
        return self._take(last)

    def _hold(self, rest: bytes) -> None:
        self._partial += rest
        if len(self._partial) > MAX_LINE_BYTES:
            returned = b"\r" if self._partial.endswith(b"\r") else b""
            self._partial = _standing(self._partial) + returned

    def _take_each(self, lines: bytes) -> list[Reading]:
        return [reading for line in lines.split(b"\n") for reading in self._take(line)]

    def _take_all(self, lines: bytes) -> list[Reading]:
        """The same as _take_each, for the built-in forms: only lines with a hint are looked at, and the last one."""
        readings: list[Reading] = []
        begin = 0
        while hint := _HINT.search(lines, begin):
            begin = lines.rfind(b"\n", begin, hint.start()) + 1 or begin
            end = lines.find(b"\n", hint.start())
            end = len(lines) if end < 0 else end
            readings += self._take(lines[begin:end])
            begin = end + 1
        end = len(lines.rstrip(b"\n"))
        while end > begin:
            last = lines.rfind(b"\n", begin, end)
            if line := _text(lines[max(last + 1, begin) : end]):
                self.last_line = line[:1000]
                break
            end = last
        return readings

    def _take(self, raw: bytes) -> list[Reading]:
        line = _text(raw)
        if not line:
            return []
        self.last_line = line[:1000]
        return self._readings(self._pairs(line))

    def _pairs(self, line: str) -> dict[str, float]:
        if self._pattern is not None:
            found = ((m[1], _number(m[2])) for m in self._pattern.finditer(line))
            return {name: value for name, value in found if name and value is not None}
        if line.startswith("{") and line.endswith("}"):
            pairs = _json_pairs(line)
            return self._found(line) if pairs is None else pairs
        if "=" not in line and ":" not in line:
            return {}
        return self._found(line)

    def _found(self, line: str) -> dict[str, float]:
        """`name:5` without a space is also how people write cuda:0 and localhost:8080: only what we wait for counts."""
        awaited = (self._objective.metric, *self._step_keys)
        return {m[1]: float(m[3]) for m in _PAIR.finditer(line) if not m[2] or m[1] in awaited}

    def _readings(self, pairs: dict[str, float]) -> list[Reading]:
        step = next((int(pairs[key]) for key in self._step_keys if _is_step(pairs.get(key))), None)
        readings = []
        for metric, value in pairs.items():
            if metric in self._step_keys and metric != self._objective.metric:
                continue
            if metric not in self._counters:
                if metric != self._objective.metric and (len(self._counters) >= MAX_METRICS or not _is_name(metric)):
                    continue
                self._counters[metric] = 0
            at = self._step_of(metric, step)
            readings.append(Reading(metric, at, value))
            if metric == self._objective.metric:
                self._note(at, value)
        return readings

    def _step_of(self, metric: str, step: int | None) -> int:
        """The line's step, unless the metric has been counted before: epochs of 0.5, 1.0, 1.5 are counted throughout,
        or 1.0 would hide behind the first half epoch's place."""
        if step is None:
            self._counted.add(metric)
        if metric in self._counted or step is None:
            step = self._counters[metric] + 1
        self._counters[metric] = max(self._counters[metric], step)
        return step

    def _note(self, step: int, value: float) -> None:
        self.step, self._last = step, value
        if math.isfinite(value):
            better = max if self._objective.maximize else min
            self._best = value if self._best is None else better(self._best, value)


def _standing(raw: bytes) -> bytes:
    """What is left of a line that a progress bar rewrote with carriage returns: that is what counts."""
    raw = raw.rstrip(b"\r")
    return raw[raw.rfind(b"\r") + 1 :][:MAX_LINE_BYTES]


def _text(raw: bytes) -> str:
    raw = _standing(raw)
    if b"\x1b" in raw:
        raw = _COLOUR.sub(b"", raw)
    return raw.decode("utf-8", "replace").strip()


def _is_name(metric: str) -> bool:
    return 0 < len(metric) <= MAX_NAME and metric.isprintable()


def _is_step(value: float | None) -> bool:
    return value is not None and value.is_integer() and 0 <= value <= MAX_STEP


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _json_pairs(line: str) -> dict[str, float] | None:
    """The numbers of a JSON object; None if it is not JSON."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
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
