"""Parse one line of a log into named numbers and a step. docs/experiment.md lists the formats.

This module knows the formats that people and libraries print. It does not know how the log arrives,
what a carriage return does, or what a value is used for. No regular expression here may scan the
same characters twice, hence the possessive quantifiers and bounded names: a trial that prints
endless garbage must not delay the other trials. Groups have no possessive quantifier: before Python
3.11.5, as on Debian 12, a failing one reads 0.5 as 5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

from controller.core.line_pattern import LinePattern
from controller.core.model import STEP_KEYS, MetricsRule

MAX_STEP = 2**53
# Characters; a longer name, or one that cannot be printed, is not a metric.
MAX_NAME = 128
MAX_TEXT = 4000  # characters of a value that is a text
MAX_DEPTH = 8  # of nested JSON
MAX_COLUMNS = 32
# By precedence; matched case-insensitively.
STEP_WORDS = ("global_step", "step", "epoch", "iteration", "iter", "round")

# Begins a collector's message about its source, among the lines that it collects.
NOTE = "# tuner: "
# Printed by a collector that reads its source from the start, also after it was killed.
FIRST_LINE = f"{NOTE}begin"
LAST_LINE = f"{NOTE}end"  # of a collector whose lines are complete
# Begins the line that a runtime writes into its copy of a log where lines are missing.
GAP_LINE = f"{NOTE}gap: "
# A key of JSON lines that is never a metric, unless it is the objective.
TIMESTAMP = "timestamp"

_EXPONENT = r"(?:[eE][+-]?\d++)?"
# Not 1 of `1 234.5` and `1'234.5`, nor 1.234 of `1.234,56`.
_GROUPED = r"(?![1-9]\d{0,2}(?:(?:[ '’\u00a0\u2009\u202f]\d{3}){1,6}(?!\d)|(?:\.\d{3}){1,6},\d))"
_NUMBER = (
    rf"[+-]?{_GROUPED}"
    rf"(?:\d++(?!,\d)\.?+\d*+{_EXPONENT}|\.\d++{_EXPONENT}|nan|NaN|inf(?:inity)?|Infinity)"
)
_NAME = rf"[A-Za-z_][\w./-]{{0,{MAX_NAME - 1}}}+"
# tensor(0.9), np.float64(0.9)
_WRAPPER = r"(?:(?:\w{1,9}\.)?(?:[tT]ensor|[aA]rray|b?float\d*+|int\d*+)\(\[?+)?"
_SHARE = r"/(?P<total>\d++)\s?\(\d++\.?+\d*+\s?%\)"  # 9913/10000 (99%)
# Not a unit, 3x10^-4, a version, a time of day, a fraction, a date.
_END = r"(?![\w%#^]|\.\w|:\d|\s?(?:/\s?\d|[*×·x]\s?10)|-\d\d-\d\d)"
_VALUE = rf"{_WRAPPER}(?P<number>{_NUMBER})(?:{_SHARE}|(?P<percent>\s?%)(?![\w|])|{_END})"
_PAIR = re.compile(
    rf"(?<![\w.])(?<!--)(?<!\s-)(?<![A-Za-z_]-)(?P<name>{_NAME})(?P<quote>[\"'])?"
    rf"(?:\s*+=\s*+|\s*+:\s+|(?P<attached>:))(?(quote)[\"']?){_VALUE}"
)
_WHOLE_VALUE = re.compile(rf"(?P<number>{_NUMBER})(?:{_SHARE}|(?P<percent>\s?%))?")
_BOOSTING_CELL = re.compile(
    # The number may be a mean, followed by + and a deviation.
    rf"([A-Za-z_][^:\t]{{0,{MAX_NAME - 1}}}):\s*+({_NUMBER})(?:\s?\+\s?{_NUMBER})?"
)
_LEADING_STEP = re.compile(
    # A time in brackets may stand before it.
    r"(?:\[(?=[^\]]{0,30}:)[\d:.,/TZ -]{5,32}\]\s?)?"
    r"(?:\[\s?(\d{1,15}+)\](?=[\s:,]|$)|(\d{1,9}+):\s)"
)
_BAR = re.compile(r"(?<![\w.])(\d++)(?:/(\d++)|it) \[\d[^\]]*+\]?+")  # tqdm's
_PROGRESS = re.compile(r"\d++%\||%\s\[|━━|\[\s*+\d++/\s?\d|(?:^|[\s|])\d++/\d++\s[^\s\w]")
_BEFORE_HEADER = re.compile(
    r"(?:[^\w\n]|\d|T\d|INFO|DEBUG|root|__main__)*"
    r"(?:(?:[Ss]tart(?:ing)?|[Bb]egin|[Tt]rain(?:ing)?)\s)?"
)
_COLUMN = re.compile(r"[A-Za-z_][\w ./()@%-]*+")
_GAP = re.compile(r"\s{2,}|\t")
_BORDER = re.compile("[│┃]")
_RESULT_NAME = re.compile(_NAME)
# What is printed about a part of the data. Of a metric that is printed for several,
# the first of these is read.
_PHASES = {
    **dict.fromkeys(("val", "valid", "validation", "eval", "evaluation", "dev"), 2),
    **dict.fromkeys(("test", "testing"), 1),
    **dict.fromkeys(("train", "training"), 0),
}
_EXACT = 3  # the metric without a phase
_ANY_PHASE = "|".join(sorted(_PHASES, key=len, reverse=True))
_LAST_WORD = re.compile(r"(?<![\w.])([A-Za-z]++)(?:[ _](?:set|data))?\Z")
_PHASE_OF_LINE = re.compile(
    rf"\W{{0,9}}({_ANY_PHASE})(?:\s(?:set|data|results?))?(?:\s?[\]:|>-]|\sepoch\b)", re.IGNORECASE
)
_UNIT = re.compile(
    r"\s?((?:(?:[nuµm]|milli|micro|nano)?(?:s|sec|seconds?)|millis"
    r"|min|mins|minutes?|h|hrs?|hours?|d|days?"
    r"|(?:[kKMGTPmgt]i?)?(?:B|b|bits?|[Bb]ytes?|W|Wh|Hz|J|FLOPs|FLOPS)|[kKMGTm]|percent|pct"
    r"|thousand|million|billion|[KMG]?[A-Za-z]{1,9}(?=/s))(?:/s(?:ec)?|ps)?)(?![\w=:(/])"
)
_NEXT_PART = re.compile(r"\s?\d++\s?[a-z]")  # the second one of `1 min 30 s`
# `Namespace(lr=0.1, epochs=3)`: the settings of an object.
# The names of results in it are read, the others are not.
_SETTINGS = re.compile(r"[A-Za-z_][\w.]{0,99}+\((?=\w{1,99}+=)[^()]*+(?:\([^()]*+\)[^()]*+)*")
# The text of a JSON log line, which may be a line with metrics.
_TEXT_KEYS = ("msg", "message", "event", "text", "textpayload", "body", "log")

# These find every place in the raw bytes that may hold a metric, and some that do not. Most of a
# log is not metrics, and these skip it ten times faster than parsing each line would. The
# lookbehind excludes times of day.
_PAIR_AT = re.compile(
    rb"[=:][\x00-\x09\x0b-\x20'\"+-]*[0-9.nNiI\x1b\x80-\xff](?<![^\w./\x80-\xff-][0-9][0-9]:[0-9])"
)
_LOWER_EPOCH_AT = re.compile(rb"poch(?:[ \t\[#:=]{1,3}+[0-9\x1b]|  |\t|\x1b)")
# Each pattern comes with its first byte. A region without that byte is not searched; this check is
# a hundred times faster than the search.
_RARE = (
    (b"P", re.compile(rb"POCH(?:[ \t\[#:=]{1,3}+[0-9\x1b]|  |\t|\x1b)")),
    (b"I", re.compile(rb"Iter  ")),
    (b"(", re.compile(rb"\((?<=[ry]\()[-+.0-9\[ni]")),  # tensor(0.9, Array(0.9
    (b"\xe2", re.compile(rb"\xe2\x94[\x80\x82]")),  # ─ and │
)
_BARE_VALUE = re.compile(rb"[ \t]++[-+.0-9nNiI]")
_ROW_AT = re.compile(rb"[\r\n][ \t]*+(?:\d++|[A-Za-z_][\w./-]*+)[ \t]{2,}+[-+.\dni]")
_FIRST_ROW_AT = re.compile(_ROW_AT.pattern.removeprefix(rb"[\r\n]"))


class ParsedLine(NamedTuple):
    """What one line says. A tuple, because a log has thousands of lines."""

    values: dict[str, float]
    step: int | None = None  # the line's own step, from a key or a word
    # The step is not a whole number, such as half an epoch.
    fraction: bool = False
    # The step also applies to the following lines that have none.
    header: bool = False
    # The same step will be printed again with other values.
    progress: bool = False
    # A number before the line, which is a step or a rank or a process.
    lead: int | None = None
    # Metrics whose values so far were those of another part of the data.
    replaces: tuple[str, ...] = ()
    bar: tuple[int, int] | None = None  # position and length of a tqdm bar


NOTHING = ParsedLine({})


class LineParser:
    """Parses lines.

    Remembers the header of a table, and how the metrics that a trial must report are written.
    """

    def __init__(
        self,
        rule: MetricsRule,
        objective: str,
        *,
        others: Iterable[str] = (),
        parameters: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Create a parser.

        Args:
            rule: How measurements are read from lines.
            objective: The first objective.
            others: Further metrics that the trial must report.
            parameters: Those of the trial: a line that repeats one says no metric.
        """
        self._objective = objective
        self._wanted = {objective: None, **dict.fromkeys(others)}
        self._parameters = parameters
        self._keys = (rule.step_key,) if rule.step_key else STEP_KEYS
        words = tuple(word for word in STEP_WORDS if word in STEP_KEYS or word != objective.lower())
        self._words = self._keys if rule.step_key else words
        self._guesses_step = not rule.step_key
        self._patterns = [LinePattern(pattern) for pattern in rule.patterns]
        # Numbers of these names are steps, but for the objective.
        self._step_names = frozenset(self._keys if rule.patterns else self._words)
        self._is_collected = rule.source is not None
        self._json_only = rule.reads_json_only
        names = "|".join(re.escape(word) for word in self._words)
        self._word = re.compile(
            rf"(?<![\w./-])({names})[\"']?\s*+[:=#]?\s*+\[?\s*+(\d{{1,15}}+)"
            r"(?>(\s*+(?:/|of\s)\s*+\d++)?)(?![\w%]|\.\d|:\d)",
            re.IGNORECASE,
        )
        # Wanted metrics whose names have characters that other names may not have.
        self._odd = {
            name: re.compile(
                rf"(?<![\w.])(?P<name>{re.escape(name)})(?P<quote>[\"'])?"
                rf"\s*+[=:]\s*+(?(quote)[\"']?){_VALUE}"
            )
            for name in self._wanted
            if not _RESULT_NAME.fullmatch(name)
        }
        # `train loss 2.0, val loss 2.1` and ` * Acc@1 55.3`: without = and :,
        # only wanted metrics are read.
        self._bare = {name: (_without_phase(name)[1], _bare(name)) for name in self._wanted}
        self.bare_words = tuple({word.encode() for word, _ in self._bare.values()})
        self._unreadable = {name: _unreadable(name) for name in self._wanted}
        divided = {_without_phase(name): name for name in self._wanted}
        self._by_phase = {
            divided_name: name for divided_name, name in divided.items() if divided_name[0]
        }
        # Names whose values are more than numbers.
        self._special = {*self._wanted, *(rest for _, rest in self._by_phase)}
        # By wanted metric: the part of the data that is read.
        self._phases: dict[str, str] = {}
        self._units: dict[str, str] = {}
        # By kind: what a person should know of how values were read.
        self.remarks: dict[str, str] = {}
        # By wanted metric: the first value that is not a number.
        self.unreadable: dict[str, str] = {}
        # By wanted metric: the last value that is not a number.
        self.texts: dict[str, str] = {}
        self._columns: tuple[str, ...] = ()
        self._results = False
        # Lines that are not JSON objects, where only these are read.
        self.skipped = 0
        self.note = ""  # the collector's last message
        # No line came but the collector's first and last ones.
        self.is_empty = True
        # How often a collector has begun to read its source.
        self.beginnings = 0

    @property
    def reads_all(self) -> bool:
        """Return whether every line has to be parsed.

        A pattern may match anywhere, and a collector's lines count.
        """
        return bool(self._patterns) or self._is_collected

    @property
    def in_table(self) -> bool:
        return bool(self._columns) or self._results

    def parse(self, text: str) -> ParsedLine:
        if self._is_collected and self._is_of_collector(text):
            return NOTHING
        self.is_empty = False
        if self._is_collected and text.startswith(NOTE):
            self.note = text.removeprefix(NOTE)
            return NOTHING
        if self._json_only:
            return self._json_line(text)
        if self._patterns:
            return self._by_patterns(text)
        if text[0] == "{" and text[-1] == "}":
            document = _json_object(text)
            if document is not None:
                return self._json(document, text)
        if (row := self._row(text)) is not None:
            return row
        if text[0] == "[" and "]\t" in text and (values := self._boosting_cells(text)):
            return self._with_step(values, text, is_row=True)
        return self._text(text)

    def _is_of_collector(self, text: str) -> bool:
        """Return whether the line is a collector's first or last one."""
        self.beginnings += text == FIRST_LINE
        return text in (FIRST_LINE, LAST_LINE)

    def _text(self, text: str) -> ParsedLine:
        """Read a line of text that is not a row of a table."""
        self._replaced: list[str] = []
        values = self._pairs(text) if "=" in text or ":" in text else {}
        if len(self._wanted) > 1 or self._objective not in values:
            self._add_bare(values, text)
        if not values and "poch" not in text and "POCH" not in text:
            return NOTHING
        parsed = self._with_step(values, text)
        return parsed._replace(replaces=tuple(self._replaced)) if self._replaced else parsed

    def _json(self, document: dict[str, Any], text: str) -> ParsedLine:
        """Read a JSON object, or else the text that it logs."""
        values = _json_values(document)
        for name in self._wanted:
            is_text = name not in values and isinstance(document.get(name), str)
            if is_text:
                self._note_unreadable(name, document[name])
        logged = "" if self._objective in values else _text_of(document)
        if logged:
            parsed = self.parse(logged)
            if parsed.values:
                return parsed
        return self._with_step(values, text, whole=True)

    def _json_line(self, line: str) -> ParsedLine:
        document = _json_object(line) if line.startswith("{") else None
        if document is None:
            self.skipped += 1
            return NOTHING
        values = _json_values(document)
        if isinstance(text := document.get(self._objective), str) and self._objective not in values:
            self._note_unreadable(self._objective, text)
        if self._objective != TIMESTAMP:
            values.pop(TIMESTAMP, None)
        return self._with_step(values, line, whole=True)

    def _by_patterns(self, text: str) -> ParsedLine:
        values: dict[str, float] = {}
        for pattern in self._patterns:
            for name, number in pattern.pairs(text):
                if (value := _float(number)) is not None:
                    values[name] = value
                elif name in self._wanted:
                    self._note_unreadable(name, number)
        step, fraction = self._step_key(values)
        return ParsedLine(self._metrics(values), step, fraction)

    def _with_step(
        self, values: dict[str, float], text: str, *, whole: bool = False, is_row: bool = False
    ) -> ParsedLine:
        """Add the line's step.

        With `whole`, the values are all that the line says. With `is_row`,
        the number before them is the step.
        """
        step, fraction = self._step_key(values)
        metrics = self._metrics(values)
        if whole or (step is not None and metrics and "/" not in text):
            return ParsedLine(metrics, step, fraction)
        bar = _BAR.search(text) if " [" in text else None
        position = self._position(bar)
        if word := self._step_word(text):
            return self._with_step_word(word, metrics, step, fraction, bar=bar)
        if step is not None:
            progress = bar is not None or _PROGRESS.search(text) is not None
            return ParsedLine(metrics, step, fraction, progress=progress, bar=position)
        lead = None if fraction else self._leading_number(text)
        if is_row:
            step, lead = lead, None
        return ParsedLine(
            metrics, step, fraction, progress=bar is not None, lead=lead, bar=position
        )

    def _with_step_word(
        self,
        word: re.Match[str],
        metrics: dict[str, float],
        step: int | None,
        fraction: bool,
        *,
        bar: re.Match[str] | None,
    ) -> ParsedLine:
        """Add the step of a word such as `Epoch 3/10`, unless a key gives another one."""
        number = int(word[2])
        if step is None and not fraction:
            step = number
        # The word's own total does not mean progress within the step.
        progress = bar is not None or _PROGRESS.search(word.string, word.end()) is not None
        is_epoch = word[1].casefold() == "epoch" and self._guesses_step and step == number
        header = is_epoch and (progress or (not metrics and _stands_alone(word)))
        return ParsedLine(metrics, step, fraction, header, progress, bar=self._position(bar))

    def _position(self, bar: re.Match[str] | None) -> tuple[int, int] | None:
        """Return the position and the length of a progress bar, where it may be a step."""
        if bar is None or not self._guesses_step:
            return None
        return int(bar[1][:15]), int((bar[2] or "0")[:15])

    def _leading_number(self, text: str) -> int | None:
        number = _LEADING_STEP.match(text) if self._guesses_step else None
        return None if number is None else int(number[1] or number[2])

    def _step_key(self, values: dict[str, float]) -> tuple[int | None, bool]:
        """Return the step that a key gives, and whether a key's value is not a step."""
        keys = [key for key in self._keys if key in values]
        if not keys and self._guesses_step:
            folded = {name.lower(): name for name in values}
            keys = [folded[word] for word in self._words if word in folded]
        for key in keys:
            if values[key].is_integer() and 0 <= values[key] <= MAX_STEP:
                return int(values[key]), False
        return None, bool(keys)

    def _step_word(self, text: str) -> re.Match[str] | None:
        by_word: dict[str, re.Match[str]] = {}
        for match in self._word.finditer(text):
            by_word.setdefault(match[1].casefold(), match)
        if "epoch" in by_word and "step" in by_word and by_word["step"][3]:
            # `Epoch [3/10], Step [100/600]`: the step starts over in each epoch.
            return by_word["epoch"]
        for word in map(str.casefold, self._words):
            if word in by_word:
                return by_word[word]
        return None

    def _metrics(self, values: dict[str, float]) -> dict[str, float]:
        words = self._step_names
        steps = {name for name in values if name in words or name.lower() in words}
        steps.discard(self._objective)
        if not steps:
            return values
        return {name: value for name, value in values.items() if name not in steps}

    def _pairs(self, text: str) -> dict[str, float]:
        """Return the `name=value` and `name: value` pairs of a line.

        Without a space after the colon, as in cuda:0 or localhost:8080, only wanted metrics and
        step words count. So do they among the settings of an object.
        """
        values: dict[str, float] = {}
        found: list[str] = []
        for name, pattern in self._odd.items():
            for match in pattern.finditer(text):
                found.append(name)
                self._put(values, name, match)
                begin, end = match.span()
                text = text[:begin] + " " * (end - begin) + text[end:]
        settings = [match.span() for match in _SETTINGS.finditer(text)] if "(" in text else ()
        for match in _PAIR.finditer(text):
            name, _, attached, number, total, percent = match.groups()
            if name in self._special:
                found.append(name)
                self._put(values, name, match)
                continue
            if attached and name not in self._words:
                continue
            if settings and any(begin < match.start() < end for begin, end in settings):
                continue
            value = _value(number, total, percent)
            if value is None or (name in self._parameters and self._is_echo(name, value)):
                continue
            values[name] = value
        if len(found) < len(self._wanted):
            self._look_for_unreadable(found, text)
        return values

    def _is_echo(self, name: str, value: float) -> bool:
        """Return whether the value is the trial's parameter of this name, rounded as printed."""
        parameter = self._parameters[name]
        # Rounding changes a number by half of it at most.
        if not isinstance(parameter, int | float) or abs(value - parameter) > abs(value) / 2:
            return False
        digits = len(f"{value:.15g}".partition("e")[0].lstrip("-0.").replace(".", ""))
        return parameter == value or float(f"{parameter:.{digits}g}") == value

    def _put(self, values: dict[str, float], name: str, match: re.Match[str]) -> None:
        """Add the value of a wanted metric, unless it is of a part of the data that is not read."""
        value = _value(*match.group("number", "total", "percent"))
        if value is None:
            return
        phase = self._phase(match)
        if phase:
            values[self._by_phase.get((phase, name), f"{phase}_{name}")] = value
        if name not in self._wanted or not self._is_read(name, phase):
            return
        if not self._same_unit(name, match):
            return
        values[name] = value
        if match["percent"] and name == self._objective:
            read = f"read as a fraction: {match['number']}% is {value:.6g}"
            remark = f'"{name}" is printed as a percentage and {read}'
            self.remarks.setdefault("percentage", remark)

    def _phase(self, match: re.Match[str]) -> str:
        """Return the part of the data that the metric is of, such as `train`; "" if unknown."""
        text, begin = match.string, match.start("name")
        if begin > 1 and text[begin - 1] in " _-" and text[begin - 2].isalpha():
            before = _LAST_WORD.search(text[max(0, begin - 17) : begin - 1])
            word = "" if before is None else before[1].lower()
            if word in _PHASES:
                return word
        of_line = _PHASE_OF_LINE.match(text)
        if of_line is not None and of_line.end() <= begin:
            return of_line[1].lower()
        return ""

    def _is_read(self, name: str, phase: str) -> bool:
        """Return whether the metric is read for this part of the data.

        Of several, the best for a search is.
        """
        read = self._phases.setdefault(name, phase)
        if phase == read:
            return True
        better = _PHASES.get(phase, _EXACT) > _PHASES.get(read, _EXACT)
        if better:
            self._replaced.append(name)
            self._phases[name] = phase
        best, other = (phase, read) if better else (read, phase)
        taken = f'"{best} {name}"' if best else f'"{name}" alone'
        dropped = f'"{other} {name}"' if other else f'"{name}" alone'
        cure = f"to choose, set the metric to {other or best}_{name}"
        self.remarks["phases"] = f"{taken} is read as {name}, and {dropped} is not; {cure}"
        return better

    def _same_unit(self, name: str, match: re.Match[str]) -> bool:
        """Return whether the value has the unit of the values before."""
        text, end, number = match.string, match.end(), match["number"]
        after = _UNIT.match(text, end) if end < len(text) else None
        if after is not None and _NEXT_PART.match(text, after.end()):
            self._note_unreadable(name, f"{number}{after[0]}…")
            return False
        unit = "" if after is None else after[1]
        before = self._units.setdefault(name, unit)
        if unit != before:
            known, other = before or "no unit", unit or "no unit"
            remark = f'"{name}" is printed in {known} and in {other}: only {known} is read'
            self.remarks["units"] = remark
            return False
        if unit:
            read = f"{number} {unit} is read as {number}"
            remark = f'"{name}" is printed with a unit: {read}; print one unit in all trials'
            self.remarks.setdefault("unit", remark)
        return True

    def _add_bare(self, values: dict[str, float], text: str) -> None:
        """Add wanted metrics that stand before their values without a sign."""
        for name, (word, pattern) in self._bare.items():
            if name not in values and word in text:
                for match in pattern.finditer(text):
                    self._put(values, match["name"], match)

    def _look_for_unreadable(self, found: Sequence[str], text: str) -> None:
        for name, pattern in self._unreadable.items():
            if name in found or name not in text or name in self.unreadable:
                continue
            if m := pattern.search(text):
                self._note_unreadable(name, m[1])

    def _note_unreadable(self, name: str, value: str) -> None:
        shown = value[:40]
        self.unreadable.setdefault(name, shown)
        self.texts[name] = value[:MAX_TEXT]
        if value[:2].lstrip("+-.")[:1].isdigit():
            remark = f'"{name}" is printed as {shown}, which is not read: {number_cure(value)}'
            self.remarks.setdefault("unreadable", remark)

    def _boosting_cells(self, text: str) -> dict[str, float]:
        """Read a line of a booster such as `[3]\\ttrain-rmse:0.1\\tvalid_0's auc: 0.9`.

        The short name `auc` is read as well, with the value of the last data set.
        """
        matches = [_BOOSTING_CELL.fullmatch(cell.strip()) for cell in text.split("\t")[1:]]
        values = {match[1]: float(match[2]) for match in matches if match}
        if not values:
            return self._pairs(text)
        long = (name for name in values if "'s " in name)
        short = {name.rpartition("'s ")[2]: values[name] for name in long}
        return {**short, **values}

    # Tables

    def _row(self, text: str) -> ParsedLine | None:
        """Read a row of a result table (Lightning), or of a table with named columns (fastai)."""
        if "│" in text:
            stripped = map(str.strip, _BORDER.split(text))
            return self._result([cell for cell in stripped if cell])
        if self._columns and text[0].isdigit():
            cells = _GAP.split(text)
            if len(cells) == len(self._columns) and cells[0].isdecimal() and len(cells[0]) < 16:
                numbers = map(_whole, cells[1:])
                row = zip(self._columns[1:], numbers, strict=True)
                values = {name: value for name, value in row if value is not None}
                return ParsedLine(values, int(cells[0]))
        if self._results and (result := self._result(_GAP.split(text))) is not None:
            return result
        self._note_head(text)
        return None

    def _result(self, cells: Sequence[str]) -> ParsedLine | None:
        if len(cells) != 2 or not _RESULT_NAME.fullmatch(cells[0]):
            return None
        value = _whole(cells[1])
        return None if value is None else ParsedLine({cells[0]: value})

    def _note_head(self, text: str) -> None:
        if text.startswith("────"):
            self._results = True
        elif text[:5].casefold() in ("epoch", "iter ", "iter\t") and ("  " in text or "\t" in text):
            columns = _GAP.split(text)
            if 2 <= len(columns) <= MAX_COLUMNS and all(map(_COLUMN.fullmatch, columns)):
                self._columns = tuple(columns)


class MetricCandidates:
    """The places in a region of a log that may hold a metric.

    The region is searched once for each kind of place.
    """

    def __init__(self, region: bytes, parser: LineParser) -> None:
        self._region = region
        self._parser = parser
        self._in_table = parser.in_table
        self._searches: list[Callable[[int], int]] = [
            self._row,
            partial(self._matching, _PAIR_AT, b""),
            *(partial(self._bare, word) for word in parser.bare_words),
            partial(self._matching, _LOWER_EPOCH_AT, b""),
            *(partial(self._matching, pattern, byte) for byte, pattern in _RARE),
        ]
        self._next = [-1] * len(self._searches)

    def next(self, begin: int) -> int:
        """Return the first place from `begin` on, the start of a line; else the region's length."""
        if self._parser.reads_all:
            return begin
        if self._parser.in_table != self._in_table:
            self._in_table = self._parser.in_table
            self._next[0] = -1
        places = self._next
        for kind, place in enumerate(places):
            if place < begin:
                place = self._searches[kind](begin)
                places[kind] = len(self._region) if place < 0 else place
        return min(places)

    def _matching(self, pattern: re.Pattern[bytes], byte: bytes, begin: int) -> int:
        if byte and (begin := self._region.find(byte, begin)) < 0:
            return -1
        match = pattern.search(self._region, begin)
        return -1 if match is None else match.start()

    def _bare(self, name: bytes, begin: int) -> int:
        """Find the name of a wanted metric that a space and a number follow."""
        while (begin := self._region.find(name, begin)) >= 0:
            if _BARE_VALUE.match(self._region, begin + len(name)):
                return begin
            begin += len(name)
        return -1

    def _row(self, begin: int) -> int:
        if not self._in_table:
            return -1
        if _FIRST_ROW_AT.match(self._region, begin):
            return begin
        match = _ROW_AT.search(self._region, begin)
        return -1 if match is None else match.start() + 1


def has_word(line: str) -> bool:
    """Return whether a line says something: more than a bracket or a rule."""
    return any(map(str.isalnum, line))


def end_of_bar(text: str) -> int:
    """Return where a progress bar ends, or 0 without one.

    Other output lands on the same line, after the bar.
    """
    bar = _BAR.search(text) if " [" in text and "]" in text else None
    return bar.end() if bar is not None and bar[0].endswith("]") else 0


def _without_phase(name: str) -> tuple[str, str]:
    """Divide `val_loss` and `val loss` into the part of the data, "" if none, and the metric."""
    first, sign, rest = name.partition("_") if "_" in name else name.partition(" ")
    return (first.lower(), rest) if sign and first.lower() in _PHASES else ("", name)


def _bare(name: str) -> re.Pattern[str]:
    """Return what finds `name 0.5` where a line or part begins, before its end or another pair."""
    phase, rest = _without_phase(name)
    before = rf"(?i:{phase})[ _]" if phase else rf"(?:(?i:{_ANY_PHASE})\s)?"
    # A share such as 9913/10000 is not read here, so `total` never matches.
    return re.compile(
        rf"(?:^|[,;|:*)\]]|\s-|\d)\s*+{before}(?P<name>{re.escape(rest)})\s++(?P<number>{_NUMBER})"
        rf"(?P<total>(?!))?(?:(?P<percent>\s?%)(?![\w|])|{_END})"
        r"(?=\s*+(?:$|[,;|()\[]|[A-Za-z_][^\s=:]*+[=:\s]\s*+[-+.\d]))"
    )


def _unreadable(name: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<![\w./-]){re.escape(name)}[\"']?\s*+[=:](?!=)\s*+[\"']?"
        r"((?:[^\s\"']|'(?=\d)|\s(?=[\d/*x×])){1,200})"
    )


def number_cure(value: str) -> str:
    """Return how to print a value that is not read as a number."""
    if re.fullmatch(r"[+-]?\d+,\d+", value):
        return f"print it with a point, {value.replace(',', '.')}"
    return "print a plain number such as 0.97"


def _stands_alone(word: re.Match[str]) -> bool:
    """Return whether the step word is all that the line says, apart from a logger's prefix.

    `Epoch 3/10` is; `resumed from epoch 3` and `epoch 3 took long` are not.
    """
    if any(map(str.isalnum, word.string[word.end() :])):
        return False
    return _BEFORE_HEADER.fullmatch(word.string, 0, word.start()) is not None


def _float(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _value(number: str, total: str | None, percent: str | None) -> float | None:
    if percent:
        return _hundredth(number)
    if total is None:
        return float(number)
    return float(number) / float(total) if float(total) else None


def _hundredth(number: str) -> float:
    """Divide a number's text by 100, so that 91.3 gives 0.913 and not 0.9129999999999999."""
    if number[-1].isdigit() and "e" not in number.lower():
        return float(f"{number}e-2")
    return float(number) / 100


def _whole(text: str) -> float | None:
    """Return the value of a table cell or JSON string that is only a value; None for other text."""
    match = _WHOLE_VALUE.fullmatch(text)
    return None if match is None else _value(*match.groups())


def _json_object(line: str) -> dict[str, Any] | None:  # Any: JSON may hold values of any type
    """Return the JSON object of the line; None if it is not JSON, {} for another JSON value."""
    try:
        document = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else {}


def _text_of(document: dict[str, Any]) -> str:
    """Return the text that a JSON log line has; "" if it has none."""
    given = {key: text for key, text in document.items() if isinstance(text, str)}
    texts = {key.lstrip("@_").lower(): text for key, text in given.items()}
    return next((texts[key].strip() for key in _TEXT_KEYS if key in texts), "")


def _json_values(document: dict[str, Any]) -> dict[str, float]:
    """Return the numbers of a JSON object.

    A nested number is named by its path, such as `eval.loss`,
    and also `loss` if no other number has that name.
    """
    values: dict[str, float] = {}
    nested: dict[str, list[float]] = {}
    for path, value in _leaves(document, "", MAX_DEPTH):
        values[path] = value
        if "." in path:
            nested.setdefault(path.rpartition(".")[2], []).append(value)
    short = {
        name: numbers[0]
        for name, numbers in nested.items()
        if len(numbers) == 1 and name not in values
    }
    return {**values, **short}


def _leaves(document: dict[str, Any], prefix: str, depth: int) -> Iterator[tuple[str, float]]:
    """Yield each number with its path. `Any`, because JSON may hold values of any type."""
    for key, value in document.items():
        if isinstance(value, dict):
            if depth > 0:
                yield from _leaves(value, f"{prefix}{key}.", depth - 1)
        elif isinstance(value, str):
            if (number := _whole(value)) is not None:
                yield prefix + key, number
        elif isinstance(value, int | float) and not isinstance(value, bool):
            try:
                yield prefix + key, float(value)
            except OverflowError:
                continue
