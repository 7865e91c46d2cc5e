"""`tuner logs`: what trials printed, as bytes, in the order they came. Reads files and controller.db only."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from controller.cli.admission import find
from controller.cli.exits import ExitCode
from controller.cli.facts import controlled_by, opened, split_name
from controller.cli.home import Home
from controller.model import Attempt, Experiment, trial_label
from controller.phrases import command
from controller.store import SqlStore
from suggest.errors import NotFound

POLL_S = 0.1
PORTION = 1 << 16


def logs(arguments: argparse.Namespace) -> ExitCode:
    name, number = split_name(arguments.name)
    home = Home.find(arguments.state_dir)
    with opened(home) as store:
        experiment = find(store, name, arguments.namespace)
        reader = _Reader(home, store, experiment)
        chosen = reader.chosen(number)
        if not chosen:
            which = name if number is None else f"{name}/{trial_label(number)}"
            raise NotFound(f"{which} has not started yet: there is no log; see {command('get', 'trials', name)}")
        prefix = len(chosen) > 1
        while True:
            # Ended first, read then: what was written before its end is not missed.
            over = not arguments.follow or reader.all_ended(number)
            for attempt in reader.chosen(number) if arguments.follow else chosen:
                reader.print_new(attempt, prefix=prefix, last=over)
            if over:
                return ExitCode.OK
            time.sleep(POLL_S)


class _Reader:
    def __init__(self, home: Home, store: SqlStore, experiment: Experiment) -> None:
        self._home = home
        self._store = store
        self._experiment = experiment
        self._offsets: dict[Path, int] = {}
        self._partial: dict[Path, bytes] = {}

    def chosen(self, number: int | None) -> list[Attempt]:
        """The newest attempt of the trial; without a number, of all that run, else of the last that began."""
        newest = {each.trial: each for each in self._store.attempts(self._experiment.uid, number)}
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
                file.seek(self._offsets.get(path, 0))
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
