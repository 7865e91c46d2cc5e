"""`tuner logs`: what trials printed, as bytes, in the order they came. Reads files and controller.db only.

The suggestion service is asked only whether a trial without a log exists.
"""

from __future__ import annotations

import argparse
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO

from controller.cli.admission import find
from controller.cli.exits import ExitCode
from controller.cli.facts import controlled_by, look_up, opened, split_name
from controller.cli.home import Home
from controller.core.model import FINAL, Attempt, Experiment, trial_label
from controller.phrases import command
from controller.runtime.log_file import size_at
from controller.store import SqlStore
from suggest.errors import InvalidArgument, NotFound, Problem

POLL_S = 0.1
PORTION = 1 << 16


def logs(arguments: argparse.Namespace) -> ExitCode:
    name, number = split_name(arguments.name)
    part = _Part.of(arguments, number)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, name, arguments.namespace)
        reader = _Reader(home, store, experiment, part)
        chosen = reader.chosen(number)
        if not chosen:
            raise _nothing(arguments, name, number, store.attempts(experiment.uid, number))
        prefix = len(chosen) > 1
        while True:
            # Ended first, read then: what was written before its end is not missed.
            over = not arguments.follow or reader.all_ended(number)
            for attempt in reader.chosen(number) if arguments.follow else chosen:
                reader.print_new(attempt, prefix=prefix, last=over)
            if over:
                return ExitCode.OK
            time.sleep(POLL_S)


def _nothing(arguments: argparse.Namespace, name: str, number: int | None, attempts: list[Attempt]) -> NotFound:
    """Why there is no log."""
    trials = command("get", "trials", name)
    if number is None:
        return NotFound(f"{name} has not started yet: there is no log; see {trials}")
    whose = f"{name}/{trial_label(number)}"
    if attempts:
        last = attempts[-1].number
        has = "only attempt 1" if last == 1 else f"attempts 1 to {last}"
        return NotFound(f"{whose} has no attempt {arguments.attempt}; it has {has}")
    if number != FINAL:
        from controller.cli.show import find_trial

        one = find_trial(look_up(arguments, name=name), number)  # raises NotFound: there is no such trial
        if one.trial.finished:
            return NotFound(f"{whose} was not run here: there is no log; see {command('describe', whose)}")
    return NotFound(f"{whose} has not started yet: there is no log; see {trials}")


class _Part:
    """Which part of a log is wanted, and of which attempt."""

    def __init__(self, *, tail: int | None = None, since: datetime | None = None, attempt: int | None = None) -> None:
        self._tail = tail
        self._since = since
        self.attempt = attempt

    @classmethod
    def of(cls, arguments: argparse.Namespace, number: int | None) -> _Part:
        """Raises InvalidArgument."""
        if arguments.tail is not None and arguments.tail < 0:
            raise InvalidArgument([Problem("--tail", f"{arguments.tail} is not a number of lines; write 0 or more")])
        if arguments.attempt is not None and number is None:
            raise InvalidArgument(
                [Problem("--attempt", f"goes with a trial: {arguments.name}/N --attempt {arguments.attempt}")]
            )
        since = None if arguments.since is None else _moment(arguments.since)
        return cls(tail=arguments.tail, since=since, attempt=arguments.attempt)

    def begins_at(self, file: BinaryIO, log: Path, attempt: Attempt) -> int:
        """The offset of the first byte that is wanted."""
        begin = 0
        if self._since is not None and (attempt.start_time is None or attempt.start_time < self._since):
            over = attempt.end_time is not None and attempt.end_time < self._since
            begin = file.seek(0, 2) if over else _line_at(file, size_at(log, self._since.timestamp()))
        return begin if self._tail is None else max(begin, _tail(file, self._tail))


def _moment(text: str) -> datetime:
    """`10m` ago, or a time with its zone. Raises InvalidArgument."""
    from datetime import timedelta

    from controller.spec.quantities import parse_duration

    try:
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    except (ValueError, OverflowError):
        pass
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        cure = "write 90s, 10m or 1h30m, or a time with its zone: 2026-01-31T09:00:00Z"
        raise InvalidArgument([Problem("--since", f"{text!r} is neither a duration nor a time; {cure}")])
    return moment


def _tail(file: BinaryIO, lines: int) -> int:
    """Where the last so many lines begin; the rest of a line without an end counts as one."""
    end = at = file.seek(0, 2)
    if lines == 0:
        return end
    while at > 0:
        size = min(PORTION, at)
        at -= size
        file.seek(at)
        data = file.read(size)
        stop = len(data)
        while (found := data.rfind(b"\n", 0, stop)) >= 0:
            if at + found + 1 < end:  # the last byte ends the last line, and begins none
                lines -= 1
                if lines == 0:
                    return at + found + 1
            stop = found
    return 0


def _line_at(file: BinaryIO, offset: int) -> int:
    """Where the line begins that this byte is in."""
    at = offset
    while at > 0:
        size = min(PORTION, at)
        at -= size
        file.seek(at)
        found = file.read(size).rfind(b"\n")
        if found >= 0:
            return at + found + 1
    return 0


class _Reader:
    def __init__(self, home: Home, store: SqlStore, experiment: Experiment, part: _Part) -> None:
        self._home = home
        self._store = store
        self._experiment = experiment
        self._part = part
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}

    def chosen(self, number: int | None) -> list[Attempt]:
        """The newest attempt of the trial, or the one asked for; without a number, of all that run, else of the last
        that began."""
        attempts = self._store.attempts(self._experiment.uid, number)
        if self._part.attempt is not None:
            return [each for each in attempts if each.number == self._part.attempt]
        newest = {each.trial: each for each in attempts}
        if number is not None:
            return list(newest.values())
        running = [each for each in newest.values() if not each.ended]
        started = sorted(newest.values(), key=_began)
        return running or started[-1:]

    def all_ended(self, number: int | None) -> bool:
        """Nothing will be written any more, as far as a controller looks after it."""
        if all(each.ended for each in self.chosen(number)):
            return number is not None or not controlled_by(self._home, self._experiment)
        return False

    def print_new(self, attempt: Attempt, *, prefix: bool, last: bool) -> None:
        path = self._home.folders(self._experiment.uid).attempt(attempt.trial, attempt.number).log
        out = sys.stdout.buffer
        try:
            with path.open("rb") as file:
                if path not in self._offsets:
                    self._offsets[path] = self._part.begins_at(file, path, attempt)
                file.seek(self._offsets[path])
                while data := file.read(PORTION):
                    self._offsets[path] = file.tell()
                    out.write(self._prefixed(path, data, attempt.trial) if prefix else data)
        except FileNotFoundError:
            return
        rest = self._partial.pop(path, b"") if last else b""
        if rest:
            out.write(b"%s| %s\n" % (trial_label(attempt.trial).encode(), rest))
        out.flush()

    def _prefixed(self, path: Path, data: bytes, trial: int) -> bytes:
        """Whole lines, each after its trial's number; the rest of the last one waits."""
        *lines, self._partial[path] = (self._partial.get(path, b"") + data).split(b"\n")
        return b"".join(b"%s| %s\n" % (trial_label(trial).encode(), line) for line in lines)


def _began(attempt: Attempt) -> float:
    return 0.0 if attempt.start_time is None else attempt.start_time.timestamp()
