"""Read measurements from a log, so that a trial needs no library: it prints. docs/experiment.md
lists the formats.

The step of a line is the first of these that exists: the line's own step, from a key or a word; the
epoch of a header or progress bar above it; the position of a progress bar; a counter.

A value is final or provisional. A progress bar shows many values for one step, and only the last
one matters. A provisional value therefore becomes a reading when its step is over: the next step
begins or the log ends. A reading replaces an earlier one of the same step.

A number before a line, as in `[3] loss=0.5`, is a step unless it stays the same:
then it is a rank or a process.

Pure: bytes in, measurements out. The measurements do not depend on how the bytes are divided into
portions, so that a restarted controller can read a log again from the start.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

from controller.core.metric_lines import (
    GAP_LINE,
    MAX_NAME,
    LineParser,
    MetricCandidates,
    ParsedLine,
    end_of_bar,
    has_word,
)
from controller.core.model import ExperimentObjective, MetricsRule
from suggest.study import ValueRule

MAX_LINE_BYTES = 64 << 10  # the rest of a longer line is ignored
LINES_AFTER_EXCEPTION = 30
LINES_WITHOUT_WORD = 100  # that are skipped to find the last one with a word
MAX_METRICS = 32  # per attempt; the objective is always read
# Printed names that are remembered, to say what was printed in place of the objective's.
MAX_NAMES = 256
MAX_BARS = 8  # progress bars of different lengths
# A near miss has at least this similarity ratio to the metric's name.
NEAR = 0.75
MAX_GAP = 500  # characters of the description of gaps
# This many positions of a progress bar become readings; after that, fewer and fewer do.
DENSE = 128

# Terminal escape sequences: colors, titles, character sets.
# Also removed where a log is shown to people.
ESCAPES = re.compile(rb"\x1b(?:\[[0-9;?]*+[@-~]|\][^\x07\x1b]{0,999}+(?:\x07|\x1b\\)?|\([0-9A-Z])")
_RETURNS = re.compile(rb"\r*+")
_GAP_LINE = GAP_LINE.encode()
_TRACEBACK_WORDS = b"Traceback (most recent call last):"
# Launchers put a prefix such as "[rank0]: " before each line. An exception in a finalizer ends
# nothing, and a group of exceptions has boxes.
_TRACEBACK = re.compile(
    rb"^(?P<ignored>.*Exception ignored.*\n)?(?!.*Exception Group)(?P<prefix>.{0,80}?)"
    + re.escape(_TRACEBACK_WORDS)
    + rb"\s*?\n",
    re.MULTILINE,
)
_GAP_MARK = re.compile(rb"^" + re.escape(_GAP_LINE) + rb"(.*)\n", re.MULTILINE)


class MetricReading(NamedTuple):
    """One metric's value at one step."""

    metric: str
    step: int
    value: float


@dataclass(slots=True)
class _Bar:
    """A progress bar that does not name its epoch.

    It is either one bar over all epochs, or one per epoch over its batches. Its positions are steps
    until a second bar of the same length begins. From then on only the end of each bar is one.
    """

    length: int
    base: int  # the step at position 0
    # The objective's best or worst value when the bar began.
    extreme: float | None
    position: int = 0
    ended: bool = False
    repeated: bool = False

    @property
    def is_full(self) -> bool:
        return self.position >= self.length


class _LineStep(NamedTuple):
    """The step of a line's values; None is the next one that the counter gives."""

    step: int | None
    provisional: bool
    bar: _Bar | None = None  # that the step is the position of


_COUNTED = _LineStep(None, False)


@dataclass(frozen=True, slots=True)
class _Provisional:
    step: int
    value: float
    overwritten: bool  # by a carriage return


class LogReader:
    """Reads one attempt's log in portions, and keeps the objective's last and best value so far."""

    def __init__(
        self,
        rule: MetricsRule,
        objective: ExperimentObjective,
        *,
        other_metrics: Mapping[str, ValueRule] = MappingProxyType({}),
        parameters: Mapping[str, object] = MappingProxyType({}),
        start: int = 0,
    ) -> None:
        """Create a reader.

        Args:
            rule: How measurements are read from lines.
            objective: The first objective, whose values are always kept.
            other_metrics: Further metrics that the trial must report.
            parameters: Those of the trial: lines that repeat them are not metrics.
            start: The last step of the trial's earlier attempts, from which the counter continues.
        """
        self._others = other_metrics
        self._values: dict[str, float] = {}  # values of the other metrics
        self._objective = objective
        self._start = start
        self._parser = LineParser(
            rule, objective.metric, others=other_metrics, parameters=parameters
        )
        self._partial = b""
        self._counters: dict[str, int] = {}  # the highest step of each metric so far
        # Metrics that once lacked a step; their later steps may not go back.
        self._counted: set[str] = set()
        # The step of each metric's newest reading.
        self._emitted: dict[str, int] = {}
        # Metrics that were printed twice for one step.
        self._repeating: set[str] = set()
        self._provisional: dict[str, _Provisional] = {}
        # Readings of each metric from bars that were redrawn on the same line.
        self._passed: dict[str, int] = {}
        self._epoch: int | None = None  # the epoch of the newest header
        # The number before the first line that had one.
        self._lead: int | None = None
        # None while every such number was that one.
        self._lead_is_step: bool | None = None
        self._beginnings = 0
        self._bars: dict[int, _Bar] = {}  # by length
        # Printed names, and in how many lines they appeared.
        self._names: dict[str, int] = {}
        # The best value so far, or the worst one, by the objective's rule.
        self._extreme: float | None = None
        self._last: float | None = None
        self._step: int | None = None
        # Metrics that were read behind the newest gap.
        self._since_gap: set[str] = set()
        # Which lines of the log are missing, for people.
        self.gap = ""
        self.offset = 0  # bytes taken so far
        # Completed since `feed` returned last.
        self._readings: list[MetricReading] = []
        # The last one with a word: some errors end with a bracket on a line of its own.
        self.last_line = ""
        # The line of Python's last traceback that names the exception, if it is near the end of the
        # log: what exits, such as a logger or a pool of processes, may print more behind it.
        self.exception = ""
        self._traceback: bytes | None = None  # what precedes each line of an open traceback
        self._since_exception = 0  # lines

    @property
    def value(self) -> float | None:
        """Return the objective's value by the experiment's rule; it may be non-finite.

        None before the first one. Provisional values do not count yet. Of an objective that is a
        text, 0 once there is one.
        """
        if self._objective.text:
            return 0.0 if self.text else None
        if self._objective.value is not ValueRule.LAST and self._extreme is not None:
            return self._extreme
        return self._last

    @property
    def text(self) -> str:
        """Return the last text of an objective that is a text; "" before the first one."""
        return self._parser.texts.get(self._objective.metric, "") if self._objective.text else ""

    @property
    def lacking(self) -> str:
        """Return the first required metric without a finite value; "" if all have one."""
        for metric in (self._objective.metric, *self._others):
            value = self.value_of(metric)
            if value is None or not math.isfinite(value):
                return metric
        return ""

    def value_of(self, metric: str) -> float | None:
        """Return the value of a required metric by its rule; None before the first value."""
        return self.value if metric == self._objective.metric else self._values.get(metric)

    @property
    def last(self) -> float | None:
        """Return the objective's newest value, which may be provisional."""
        provisional = self._provisional.get(self._objective.metric)
        return self._last if provisional is None else provisional.value

    @property
    def step(self) -> int | None:
        """Return the step of `last`."""
        provisional = self._provisional.get(self._objective.metric)
        return self._step if provisional is None else provisional.step

    @property
    def remarks(self) -> Mapping[str, str]:
        """Return, by kind, what a person should know of how values were read."""
        return self._parser.remarks

    def unreadable(self, metric: str) -> str:
        """Return the first value of a required metric that is not a number, as printed.

        Return "" if there is none.
        """
        return self._parser.unreadable.get(metric, "")

    @property
    def skipped(self) -> int:
        """Return how many lines are not JSON objects, where only these are read."""
        return self._parser.skipped

    @property
    def is_empty(self) -> bool:
        """Return whether a collector has read nothing."""
        return self._parser.is_empty

    @property
    def note(self) -> str:
        """Return the collector's last message about its source."""
        return self._parser.note

    def other_names(self, metric: str = "") -> list[tuple[str, int]]:
        """Return at most three names printed in place of the metric's, and in how many lines.

        They are the most similar ones or, if none is similar, the most frequent ones. `metric` is
        the objective's by default.
        """
        metric = metric or self._objective.metric
        likely = {name: _similarity(name, metric) for name in self._names if name != metric}
        near = [name for name in likely if likely[name] >= NEAR]
        near.sort(key=lambda name: (-likely[name], -self._names[name]))
        names = near or sorted(likely, key=lambda name: -self._names[name])
        return [(name, self._names[name]) for name in names[:3]]

    def feed(self, data: bytes) -> list[MetricReading]:
        """Take the log's next bytes and return the readings that they complete."""
        self.offset += len(data)
        if self._partial:
            data = self._partial + data
        lines = data.rfind(b"\n") + 1
        # A carriage return at the end may still be the first half of a line ending.
        parts = max(lines, data.rfind(b"\r", 0, len(data.rstrip(b"\r"))) + 1)
        whole = data[:lines]
        if lines:
            self._scan_around_gaps(whole)
        if parts > lines:
            self._scan(data[lines:parts])
        if lines:
            self._note_last_line(data, lines)
            self._note_exception(whole)
        self._partial = data[parts:]
        if len(self._partial) > MAX_LINE_BYTES:
            returned = b"\r" if self._partial.endswith(b"\r") else b""
            self._partial = self._partial.rstrip(b"\r")[:MAX_LINE_BYTES] + returned
        return self._completed()

    def _completed(self) -> list[MetricReading]:
        readings, self._readings = self._readings, []
        return readings

    def may_lack(self, metric: str) -> bool:
        """Return whether the value of a required metric may be another without the gaps in the log.

        The last value is the right one once it was read behind them. The best one may be in a gap.
        """
        if not self.gap:
            return False
        rule = self._objective.value if metric == self._objective.metric else self._others[metric]
        return rule is not ValueRule.LAST or metric not in self._since_gap

    def _scan_around_gaps(self, region: bytes) -> None:
        """Read whole lines, except for those that mark a gap."""
        if _GAP_LINE not in region:
            self._scan(region)
            return
        begin = 0
        for mark in _GAP_MARK.finditer(region):
            self._scan(region[begin : mark.start()])
            gap = mark[1].decode(errors="replace").strip()
            self.gap = "; ".join(filter(None, (self.gap, gap)))[:MAX_GAP]
            self._since_gap.clear()
            begin = mark.end()
        self._scan(region[begin:])

    def finish(self) -> list[MetricReading]:
        """Take the end of the log: read a last line without line ending, and settle every step."""
        last, self._partial = self._partial, b""
        self._take(last)
        self._settle_all()
        return self._completed()

    def _take(self, line: bytes) -> None:
        """Read one line without its line ending, like `feed`, but without skipping a part of it."""
        text = _text(_visible(line))
        if text and (has_word(text) or not has_word(self.last_line)):
            self.last_line = text[:1000]
        self._note_exception(line + b"\n")
        *overwritten, last = line.rstrip(b"\r").split(b"\r")
        for part in overwritten:
            self._read(part, overwritten=True)
        self._read(last, overwritten=False)

    def _scan(self, region: bytes) -> None:
        """Read lines that may hold a metric, or parts of a line that end in a carriage return."""
        begin, newline = 0, -1
        candidates = MetricCandidates(region, self._parser)
        while (at := candidates.next(begin)) < len(region):
            if newline < at:
                newline = region.find(b"\n", at)
                newline = len(region) if newline < 0 else newline
            after_newline = region.rfind(b"\n", begin, at) + 1
            after_return = region.rfind(b"\r", begin, at) + 1
            begin = max(begin, after_newline, after_return)
            end = region.find(b"\r", at, newline)
            if end < 0:
                self._read(region[begin:newline], overwritten=False)
                begin = newline + 1
                continue
            returns = _RETURNS.match(region, end)
            following = end if returns is None else returns.end()
            overwritten = following < newline or newline == len(region)
            self._read(region[begin:end], overwritten=overwritten)
            begin = following if overwritten else newline + 1

    def _note_last_line(self, data: bytes, end: int) -> None:
        passed: list[str] = []
        while end > 0 and len(passed) < LINES_WITHOUT_WORD:
            begin = data.rfind(b"\n", 0, end - 1) + 1
            line = _text(_visible(data[begin : end - 1]))
            if has_word(line):
                self.last_line = line[:1000]
                return
            passed += [line] if line else []
            end = begin
        if passed and not has_word(self.last_line):
            self.last_line = passed[0][:1000]

    def _note_exception(self, region: bytes) -> None:
        """Note what whole lines say of an exception that nothing caught."""
        begin = 0
        headers = _TRACEBACK.finditer(region) if _TRACEBACK_WORDS in region else ()
        for header in headers:
            if header["ignored"] is None:
                self._traceback, begin = header["prefix"], header.end()
                self.exception = ""
        while self._traceback is not None and begin < len(region):
            end = region.find(b"\n", begin) + 1
            line = region[begin:end].removeprefix(self._traceback).rstrip()
            begin = end
            # The lines of code are indented.
            if line and not line[:1].isspace():
                self.exception = _text(_visible(line))[:1000]
                self._traceback, self._since_exception = None, 0
        if self.exception:
            self._since_exception += region.count(b"\n", begin)
            if self._since_exception > LINES_AFTER_EXCEPTION:
                self.exception = ""

    def _read(self, raw: bytes, *, overwritten: bool) -> None:
        text = _text(raw)
        if not text:
            return
        # Other output of a program with a progress bar lands on the same line, after the bar.
        end = end_of_bar(text)
        if 0 < end < len(text):
            self._note(self._parser.parse(text[:end]), overwritten=True)
            text = text[end:].strip()
        parsed = self._parser.parse(text)
        if self._parser.beginnings > self._beginnings:
            self._begin_again()
        if not overwritten:
            names = self._names
            for name in parsed.values:
                if name in names or len(names) < MAX_NAMES:
                    names[name] = names.get(name, 0) + 1
        self._note(parsed, overwritten=overwritten)

    def _begin_again(self) -> None:
        """Count from the start: a collector that was killed reads its source again.

        Known steps have their values.
        """
        self._beginnings = self._parser.beginnings
        self._counters = dict.fromkeys(self._counters, self._start)
        self._epoch = None
        self._lead = self._lead_is_step = None
        self._provisional.clear()
        self._counted.clear()
        self._repeating.clear()
        self._emitted.clear()
        self._passed.clear()
        self._bars.clear()

    def _note(self, parsed: ParsedLine, *, overwritten: bool) -> None:
        if parsed.header and parsed.step != self._epoch:
            self._epoch = parsed.step
            self._settle_all()
        metrics = [m for m in parsed.values if m in self._counters or self._admit(m)]
        if not metrics:
            return
        for metric in parsed.replaces:
            self._forget(metric)
        line = self._step_of(parsed, metrics)
        if line.step is None and overwritten:
            # Without a step, only the last state of an overwritten line counts.
            return
        for metric in metrics:
            self._note_value(metric, parsed.values[metric], line, overwritten=overwritten)
        if line.bar is not None and line.bar.is_full and not overwritten:
            line.bar.ended = True
            self._settle(metrics)

    def _step_of(self, parsed: ParsedLine, metrics: Sequence[str]) -> _LineStep:
        """Return the line's step by the first rule that applies; the counter is the last one."""
        if parsed.step is not None:
            return _LineStep(parsed.step, parsed.progress)
        if parsed.lead is not None and self._epoch is None:
            step = self._leading_step(parsed.lead, metrics)
            if step is not None:
                return _LineStep(step, parsed.progress or self._lead_is_step is None)
        if parsed.fraction:
            return _COUNTED
        if self._epoch is not None:
            return _LineStep(self._epoch, True)
        if parsed.bar is not None and self._objective.metric in parsed.values:
            bar = self._bar_at(*parsed.bar, metrics)
            return _LineStep(bar.base + bar.position, True, bar)
        return _COUNTED

    def _note_value(self, metric: str, value: float, line: _LineStep, *, overwritten: bool) -> None:
        step = self._counted_step(metric, line.step, from_bar=line.bar is not None)
        before = self._provisional.get(metric)
        if before is not None and before.step != step:
            if line.bar is not None and line.bar.repeated:
                # A batch's value, which the next batch replaces.
                del self._provisional[metric]
            else:
                self._settle([metric], passed=overwritten)
        is_provisional = line.provisional or (overwritten and line.step is not None)
        if is_provisional or self._repeats(metric, step):
            self._provisional[metric] = _Provisional(step, value, overwritten)
        else:
            self._provisional.pop(metric, None)
            self._emit(metric, step, value)

    def _admit(self, metric: str) -> bool:
        needed = metric == self._objective.metric or metric in self._others
        if not needed and (len(self._counters) >= MAX_METRICS or not _is_name(metric)):
            return False
        self._counters[metric] = self._start
        return True

    def _counted_step(self, metric: str, step: int | None, *, from_bar: bool) -> int:
        """Return the line's step, or the counter's next one if the counter has passed that step.

        Epochs such as 0.5, 1.0, 1.5 are therefore counted throughout; otherwise the value at epoch
        1.0 would be taken for the step that the first half epoch was counted as.
        """
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
        """Return whether the metric is printed several times per step: the last one counts."""
        if self._emitted.get(metric) == step:
            self._repeating.add(metric)
        return metric in self._repeating

    def _leading_step(self, lead: int, metrics: Sequence[str]) -> int | None:
        """Return the step that the number before a line is; None if such numbers are not steps.

        Undecided while the number is the same: if a metric comes with it again,
        it is a rank or a process.
        """
        if self._lead_is_step is None and self._lead not in (None, lead):
            self._lead_is_step = True
            self._settle_all()
        if self._lead_is_step is None and any(metric in self._provisional for metric in metrics):
            self._lead_is_step = False
            self._count_leading()
        if self._lead is None:
            self._lead = lead
        return None if self._lead_is_step is False else lead

    def _count_leading(self) -> None:
        """Count the values that waited for the meaning of the number before them."""
        for metric, provisional in list(self._provisional.items()):
            if provisional.step == self._lead:
                del self._provisional[metric]
                self._counters[metric] = self._start
                step = self._counted_step(metric, None, from_bar=False)
                self._emit(metric, step, provisional.value)

    def _settle_all(self) -> None:
        self._settle(list(self._provisional))

    def _forget(self, metric: str) -> None:
        """Forget the values of a metric that were of another part of the data.

        The next one replaces the newest.
        """
        self._provisional.pop(metric, None)
        self._values.pop(metric, None)
        if metric in self._counted and metric in self._emitted:
            self._counters[metric] = self._emitted[metric] - 1
        if metric == self._objective.metric:
            self._extreme = self._last = self._step = None

    def _settle(self, metrics: Sequence[str], *, passed: bool = False) -> None:
        """Turn the provisional values of metrics whose step is over into readings.

        With `passed`, the step ended within one line, on which a bar may pass thousands of steps.
        """
        for metric in metrics:
            provisional = self._provisional.pop(metric, None)
            if provisional is None:
                continue
            if passed and provisional.overwritten:
                count = self._passed.get(metric, 0)
                # Doubles with every 64 readings.
                stride = 1 << max(0, 2 * count // DENSE - 1)
                if abs(provisional.step - self._emitted.get(metric, -stride)) < stride:
                    continue
                self._passed[metric] = count + 1
            self._emit(metric, provisional.step, provisional.value)

    def _emit(self, metric: str, step: int, value: float) -> None:
        self._since_gap.add(metric)
        if metric == self._objective.metric:
            self._step, self._last = step, value
            self._extreme = self._more_extreme(self._extreme, value)
        elif metric in self._others:
            takes_any = self._others[metric] is ValueRule.LAST or metric not in self._values
            if takes_any or math.isfinite(value):
                self._values[metric] = value
        self._emitted[metric] = step
        self._readings.append(MetricReading(metric, step, value))

    def _more_extreme(self, extreme: float | None, value: float) -> float | None:
        if not math.isfinite(value):
            return extreme
        sign = (self._objective.extreme or self._objective.direction).sign
        if extreme is None or sign * value < sign * extreme:
            return value
        return extreme

    def _bar_at(self, position: int, length: int, metrics: Sequence[str]) -> _Bar:
        """Return the bar of that length, moved to its new position."""
        bar = self._bars.get(length)
        if bar is None:
            if len(self._bars) >= MAX_BARS:
                self._bars.clear()
            top = max(self._counters[metric] for metric in metrics)
            bar = _Bar(length, _base_of_bar(top, position), self._extreme)
            self._bars[length] = bar
        elif bar.ended or position < bar.position:
            self._settle(metrics)
            if not bar.repeated:
                # The positions were batches, so the value must be recomputed from whole epochs.
                bar.repeated = True
                self._extreme = bar.extreme
                if self._last is not None:
                    self._extreme = self._more_extreme(bar.extreme, self._last)
            bar.base += bar.position
            bar.ended = False
        bar.position = position
        return bar


def _visible(line: bytes) -> bytes:
    """Return the visible rest of a line that a progress bar rewrote with carriage returns."""
    line = line.rstrip(b"\r")
    return line[line.rfind(b"\r") + 1 :]


def _base_of_bar(top: int, position: int) -> int:
    """Return the step at position 0 of a bar that is first seen at this position.

    The bar of a resumed attempt may start at its real position;
    one that starts at 0 follows the last step, `top`.
    """
    if top == 0:
        return 0
    if position == 0:
        return top + 1
    return 0 if top <= position else top


def _text(raw: bytes) -> str:
    raw = raw[:MAX_LINE_BYTES]
    if b"\x1b" in raw:
        raw = ESCAPES.sub(b"", raw)
    if b"\b" in raw:
        raw = raw.replace(b"\b", b"")
    return raw.decode("utf-8", "replace").strip()


def _is_name(metric: str) -> bool:
    return 0 < len(metric) <= MAX_NAME and metric.isprintable()


def _similarity(name: str, metric: str) -> float:
    """Return how alike two names are, from 0 to 1, whatever their cases and signs."""
    shorter, longer = sorted((_letters(name), _letters(metric)), key=len)
    ratio = difflib.SequenceMatcher(None, shorter, longer).ratio()
    if len(shorter) > 2 and (longer.startswith(shorter) or longer.endswith(shorter)):
        return max(ratio, 0.9)
    return ratio


def _letters(name: str) -> str:
    return "".join(filter(str.isalnum, name.casefold()))
