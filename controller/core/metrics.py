"""Log -> measurements. A trial needs no library: it prints, and this reads. What is read: docs/experiment.md.

The step of a line is, in this order: its own, by a key or a word; the epoch of a header or progress bar above it; the
position of a progress bar; and last a counter.

A value is final or provisional. A progress bar shows many values for one step, and the store keeps the first that it is
told: a provisional value becomes a reading when its step is over (the next one begins, or the log ends), so that each
step has one reading, its last value.

Pure: bytes in, measurements out. The same bytes in other portions give the same measurements, so that a restarted
controller may read a log again from 0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from controller.core.metric_lines import MAX_NAME, LineParser, MetricCandidates, Said, end_of_bar
from controller.core.model import ExperimentObjective, MetricsRule
from suggest.study import ValueRule

MAX_LINE_BYTES = 64 << 10  # the rest of a longer line is not looked at
MAX_METRICS = 32  # of one attempt; the objective's always has a place
MAX_NAMES = 256  # that are remembered, to say which of them is nearly the objective's
MAX_BARS = 8  # progress bars of different lengths
NEAR = 0.75  # so much of two names is the same if one is a near miss of the other
DENSE = 128  # so many positions of a progress bar all become readings; after that ever fewer

# What terminals read as commands: colors, titles, character sets. Also used where a log is shown to people.
ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*+[@-~]|\][^\x07\x1b]{0,999}+(?:\x07|\x1b\\)?+|\([0-9A-Z])")
_RETURNS = re.compile(rb"\r*+")


class MetricReading(NamedTuple):
    """One metric's value at one step."""

    metric: str
    step: int
    value: float


@dataclass(slots=True)
class _Bar:
    """A progress bar that does not say its epoch: one over all epochs, or one of many over the batches of an epoch.
    Until a second one of the same length begins its positions are steps; then only the end of each one is."""

    base: int  # the step at its position 0
    best: float | None  # the objective's best value when it began
    position: int = 0
    ended: bool = False
    repeated: bool = False


@dataclass(frozen=True, slots=True)
class _Provisional:
    step: int
    value: float
    overwritten: bool  # by a carriage return


class LogReader:
    """Reads one attempt's log in portions. Knows the objective's last and best value so far."""

    def __init__(
        self,
        rule: MetricsRule,
        objective: ExperimentObjective,
        *,
        others: Mapping[str, ValueRule] = MappingProxyType({}),
        start: int = 0,
    ) -> None:
        """others: further metrics that the trial must report. start: the last step of the trial's earlier attempts,
        where the counter goes on."""
        self._others = others
        self._values: dict[str, float] = {}  # of the others
        self._objective = objective
        self._start = start
        self._parser = LineParser(rule, objective.metric)
        self._partial = b""
        self._counters: dict[str, int] = {}  # the highest step of each metric so far
        self._counted: set[str] = set()  # metrics that have lacked a step: later steps may not go back
        self._emitted: dict[str, int] = {}  # the step of each metric's newest reading
        self._repeating: set[str] = set()  # metrics that have come twice for one step
        self._provisional: dict[str, _Provisional] = {}
        self._passed: dict[str, int] = {}  # readings of each metric from bars that went on in the same line
        self._epoch: int | None = None  # of the newest header
        self._bars: dict[int, _Bar] = {}  # by their length
        self._names: dict[str, int] = {}  # and in how many lines they were
        self._best: float | None = None
        self._last: float | None = None
        self._step: int | None = None
        self.offset = 0  # bytes taken so far
        self.last_line = ""  # the last line that is not blank

    @property
    def value(self) -> float | None:
        """The objective's value by the experiment's rule; may be non-finite, None before the first. Provisional values
        do not count yet."""
        if self._objective.value is ValueRule.BEST and self._best is not None:
            return self._best
        return self._last

    @property
    def lacking(self) -> str:
        """The first metric that the trial must report and that has no finite value; "" if all have."""
        values = {self._objective.metric: self.value, **{metric: self._values.get(metric) for metric in self._others}}
        return next((m for m, value in values.items() if value is None or not math.isfinite(value)), "")

    def value_of(self, metric: str) -> float | None:
        """What counts of a metric that the trial must report; None before the first value."""
        return self.value if metric == self._objective.metric else self._values.get(metric)

    @property
    def last(self) -> float | None:
        """The objective's newest value, also while it is provisional."""
        provisional = self._provisional.get(self._objective.metric)
        return self._last if provisional is None else provisional.value

    @property
    def step(self) -> int | None:
        """Of `last`."""
        provisional = self._provisional.get(self._objective.metric)
        return self._step if provisional is None else provisional.step

    @property
    def percentage(self) -> str:
        """The first percentage that was read as the objective's value, as it was written; empty before it."""
        return self._parser.percentage

    def near_misses(self, metric: str = "") -> list[tuple[str, int]]:
        """Which of the printed names could be the metric's, and in how many lines they are; the likeliest first.
        metric: by default the objective's."""
        metric = metric or self._objective.metric
        import difflib  # of no use until a trial has failed

        def letters(name: str) -> str:
            return "".join(filter(str.isalnum, name.casefold()))

        def likeness(name: str) -> float:
            shorter, longer = sorted((letters(metric), letters(name)), key=len)
            part = len(shorter) > 2 and (longer.startswith(shorter) or longer.endswith(shorter))
            ratio = difflib.SequenceMatcher(None, shorter, longer).ratio()
            return max(ratio, 0.9) if part else ratio

        likely = {name: likeness(name) for name in self._names if name != metric}
        near = [name for name in likely if likely[name] >= NEAR]
        near.sort(key=lambda name: (-likely[name], -self._names[name]))
        return [(name, self._names[name]) for name in near[:3]]

    def feed(self, data: bytes) -> list[MetricReading]:
        """Take the log's next bytes; returns the readings of what they complete."""
        self.offset += len(data)
        if self._partial:
            data = self._partial + data
        lines = data.rfind(b"\n") + 1
        # A carriage return at the end may yet belong to the end of a line.
        parts = max(lines, data.rfind(b"\r", 0, len(data.rstrip(b"\r"))) + 1)
        readings = self._scan(data[:lines]) if lines else []
        if parts > lines:
            readings += self._scan(data[lines:parts])
        if lines:
            self._note_last_line(data, lines)
        self._partial = data[parts:]
        if len(self._partial) > MAX_LINE_BYTES:
            returned = b"\r" if self._partial.endswith(b"\r") else b""
            self._partial = self._partial.rstrip(b"\r")[:MAX_LINE_BYTES] + returned
        return readings

    def finish(self) -> list[MetricReading]:
        """The log is complete: its last line may lack its end, and every step is over."""
        last, self._partial = self._partial, b""
        readings = self._take(last)
        self._settle(list(self._provisional), readings)
        return readings

    def _take(self, line: bytes) -> list[MetricReading]:
        """Read one line without its end. What `feed` does for a line, without skipping any part of it."""
        if text := _text(_visible(line)):
            self.last_line = text[:1000]
        readings: list[MetricReading] = []
        *overwritten, last = line.rstrip(b"\r").split(b"\r")
        for part in overwritten:
            self._read(part, readings, overwritten=True)
        self._read(last, readings, overwritten=False)
        return readings

    def _scan(self, region: bytes) -> list[MetricReading]:
        """Read whole lines, or parts of a line that a carriage return ends: those that may say something."""
        readings: list[MetricReading] = []
        begin, newline = 0, -1
        candidates = MetricCandidates(region, self._parser)
        while (at := candidates.next(begin)) < len(region):
            if newline < at:
                newline = region.find(b"\n", at)
                newline = len(region) if newline < 0 else newline
            begin = max(begin, region.rfind(b"\n", begin, at) + 1, region.rfind(b"\r", begin, at) + 1)
            end = region.find(b"\r", at, newline)
            if end < 0:
                self._read(region[begin:newline], readings, overwritten=False)
                begin = newline + 1
                continue
            returns = _RETURNS.match(region, end)
            following = end if returns is None else returns.end()
            overwritten = following < newline or newline == len(region)
            self._read(region[begin:end], readings, overwritten=overwritten)
            begin = following if overwritten else newline + 1
        return readings

    def _note_last_line(self, data: bytes, end: int) -> None:
        while end > 0:
            begin = data.rfind(b"\n", 0, end - 1) + 1
            if line := _text(_visible(data[begin : end - 1])):
                self.last_line = line[:1000]
                return
            end = begin

    def _read(self, raw: bytes, readings: list[MetricReading], *, overwritten: bool) -> None:
        text = _text(raw)
        if not text:
            return
        # What is printed beside a progress bar lands behind it, in the same line.
        end = end_of_bar(text)
        if 0 < end < len(text):
            self._note(self._parser.said(text[:end]), readings, overwritten=True)
            text = text[end:].strip()
        said = self._parser.said(text)
        if not overwritten:
            names = self._names
            for name in said.values:
                if name in names or len(names) < MAX_NAMES:
                    names[name] = names.get(name, 0) + 1
        self._note(said, readings, overwritten=overwritten)

    def _note(self, said: Said, readings: list[MetricReading], *, overwritten: bool) -> None:
        if said.header and said.step != self._epoch:
            self._epoch = said.step
            self._settle(list(self._provisional), readings)
        metrics = [metric for metric in said.values if metric in self._counters or self._admit(metric)]
        if not metrics:
            return
        step, provisional, bar = said.step, said.progress or overwritten, None
        if step is None and not said.fraction:
            if self._epoch is not None:
                step, provisional = self._epoch, True
            elif said.bar is not None and self._objective.metric in said.values:
                bar = self._bar_at(*said.bar, metrics, readings)
                step, provisional = bar.base + bar.position, True
        if step is None and overwritten:
            return  # of what has no step only what is left in the end counts
        provisional = provisional and step is not None
        for metric in metrics:
            value = said.values[metric]
            at = self._counted_step(metric, step, from_bar=bar is not None)
            before = self._provisional.get(metric)
            if before is not None and before.step != at:
                if bar is not None and bar.repeated:
                    del self._provisional[metric]  # a batch's: it does not count once the next one is over
                else:
                    self._settle([metric], readings, passed=overwritten)
            if provisional or self._repeats(metric, at):
                self._provisional[metric] = _Provisional(at, value, overwritten)
            else:
                self._provisional.pop(metric, None)
                self._emit(metric, at, value, readings)
        if bar is not None and said.bar is not None and not overwritten and said.bar[0] >= said.bar[1]:
            bar.ended = True
            self._settle(metrics, readings)

    def _admit(self, metric: str) -> bool:
        needed = metric == self._objective.metric or metric in self._others
        if not needed and (len(self._counters) >= MAX_METRICS or not _is_name(metric)):
            return False
        self._counters[metric] = self._start
        return True

    def _counted_step(self, metric: str, step: int | None, *, from_bar: bool) -> int:
        """The line's step, unless the metric has been counted as far: epochs of 0.5, 1.0, 1.5 are counted throughout,
        or 1.0 would hide behind the first half epoch's place."""
        counter = self._counters[metric]
        if step is None or from_bar:
            self._counted.add(metric)
        if step is None:
            step = counter + 1
        elif step <= counter and metric in self._counted and not from_bar:
            provisional = self._provisional.get(metric)
            if provisional is None or provisional.step != step:
                step = counter + 1
        if step > counter:
            self._counters[metric] = step
        return step

    def _repeats(self, metric: str, step: int) -> bool:
        """Whether its lines come more than once for a step. From the second step on the last of them counts."""
        if self._emitted.get(metric) == step:
            self._repeating.add(metric)
            return False
        return metric in self._repeating

    def _settle(self, metrics: Sequence[str], readings: list[MetricReading], *, passed: bool = False) -> None:
        """Their steps are over. passed: within one line, where a bar may pass thousands of steps."""
        for metric in metrics:
            provisional = self._provisional.pop(metric, None)
            if provisional is None:
                continue
            if passed and provisional.overwritten:
                count = self._passed.get(metric, 0)
                stride = 1 << max(0, 2 * count // DENSE - 1)  # doubles with every 64 readings
                if abs(provisional.step - self._emitted.get(metric, -stride)) < stride:
                    continue
                self._passed[metric] = count + 1
            self._emit(metric, provisional.step, provisional.value, readings)

    def _emit(self, metric: str, step: int, value: float, readings: list[MetricReading]) -> None:
        if metric == self._objective.metric:
            self._step, self._last = step, value
            self._best = self._better(self._best, value)
        elif metric in self._others and (
            self._others[metric] is ValueRule.LAST or math.isfinite(value) or metric not in self._values
        ):
            self._values[metric] = value
        if self._emitted.get(metric) != step:  # else the store has the first
            self._emitted[metric] = step
            readings.append(MetricReading(metric, step, value))

    def _better(self, best: float | None, value: float) -> float | None:
        return self._objective.better(best, value) if math.isfinite(value) else best

    def _bar_at(self, position: int, length: int, metrics: Sequence[str], readings: list[MetricReading]) -> _Bar:
        """The bar of that length, at its new position."""
        bar = self._bars.get(length)
        if bar is None:
            if len(self._bars) >= MAX_BARS:
                self._bars.clear()
            top = max(self._counters[metric] for metric in metrics)
            # A resumed attempt's bar may know where it goes on; one that begins at 0 goes on after the last step.
            base = 0 if 0 < top <= position else top + (position == 0 < top)
            bar = self._bars[length] = _Bar(base, self._best)
        elif bar.ended or position < bar.position:
            self._settle(metrics, readings)
            if not bar.repeated:
                # Its positions were batches: the best value is that of an epoch, not that of a batch.
                bar.repeated = True
                self._best = bar.best if self._last is None else self._better(bar.best, self._last)
            bar.base, bar.ended = bar.base + bar.position, False
        bar.position = position
        return bar


def _visible(line: bytes) -> bytes:
    """What is left of a line that a progress bar rewrote with carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def _text(raw: bytes) -> str:
    raw = raw[:MAX_LINE_BYTES]
    if b"\x1b" in raw:
        raw = ESCAPES.sub(b"", raw)
    if b"\b" in raw:
        raw = raw.replace(b"\b", b"")
    return raw.decode("utf-8", "replace").strip()


def _is_name(metric: str) -> bool:
    return 0 < len(metric) <= MAX_NAME and metric.isprintable()
