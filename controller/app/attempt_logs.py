"""Print the logs of trials, as bytes and in order.

The suggestion service is called only to find out whether a trial without a log exists.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from controller import app
from controller.app.experiments import ReadableExperiments, find
from controller.app.workspace import ReadableWorkspace
from controller.core.model import FINAL, Attempt, Experiment, TrialOrFinal, trial_label
from controller.phrases import command
from suggest.errors import InvalidArgument, NotFound


@dataclass(frozen=True, slots=True)
class LogPart:
    """The part of a log to print; None means the whole log and the newest attempt.

    tail: the number of last lines.
    """

    tail: int | None = None
    attempt: int | None = None

    @classmethod
    def parse(
        cls,
        name: str,
        trial: TrialOrFinal | None,
        *,
        tail: int | None,
        attempt: int | None,
    ) -> LogPart:
        """Parse the flags for the log of an experiment or of one trial. Raises InvalidArgument."""
        if attempt is not None and trial is None:
            raise InvalidArgument.at("--attempt", f"requires a trial: {name}/N --attempt {attempt}")
        if tail is not None and tail < 0:
            raise InvalidArgument.at("--tail", f"{tail} is not a number of lines; write 0 or more")
        return cls(tail, attempt)


async def print_logs(
    workspace: ReadableWorkspace,
    name: str,
    namespace: str | None,
    trial: TrialOrFinal | None,
    part: LogPart,
    *,
    follow: bool,
    write: Callable[[bytes], None],
) -> None:
    """Pass the log of a trial, or of all running trials, to `write`; with `follow`, until they end.

    Raises NotFound if there is no log.
    """
    with workspace.opened() as experiments:
        experiment = find(experiments, name, namespace)
        reader = _LogFollower(experiments, experiment, part, write)
        chosen = reader.chosen(trial)
        if not chosen:
            raise await _no_log(workspace, experiments, experiment, namespace, trial, part)
        prefix = len(chosen) > 1
        while True:
            # Check for the end before reading, so that the last lines are not missed.
            over = not follow or reader.all_ended(trial)
            for attempt in reader.chosen(trial) if follow else chosen:
                reader.write_new(attempt, prefix=prefix, last=over)
            if over:
                return
            await asyncio.sleep(experiments.poll_s)


async def _no_log(
    workspace: ReadableWorkspace,
    experiments: ReadableExperiments,
    experiment: Experiment,
    namespace: str | None,
    trial: TrialOrFinal | None,
    part: LogPart,
) -> NotFound:
    """Return an error that says why there is no log."""
    name = experiment.name
    trials = command("get", "trials", name)
    if trial is None:
        return NotFound(f"{name} has not started yet: there is no log; see {trials}")
    label = f"{name}/{trial_label(trial)}"
    if attempts := experiments.attempts(experiment.uid, trial):
        last = attempts[-1].number
        has = "only attempt 1" if last == 1 else f"attempts 1 to {last}"
        return NotFound(f"{label} has no attempt {part.attempt}; it has {has}")
    if trial is not FINAL:
        found = await app.query.look_up(workspace, name, namespace, trial=trial)
        record = app.query.find_trial(found, trial)  # raises NotFound for an unknown trial
        if record.trial.finished:
            return NotFound(
                f"{label} was not run here: there is no log; see {command('describe', label)}"
            )
    return NotFound(f"{label} has not started yet: there is no log; see {trials}")


_Key: TypeAlias = tuple[TrialOrFinal, int]  # the trial and the number of an attempt


class _LogFollower:
    def __init__(
        self,
        experiments: ReadableExperiments,
        experiment: Experiment,
        part: LogPart,
        write: Callable[[bytes], None],
    ) -> None:
        self._experiments = experiments
        self._experiment = experiment
        self._part = part
        self._write = write
        self._offsets: dict[_Key, int] = {}
        self._partial: dict[_Key, bytes] = {}

    def chosen(self, number: TrialOrFinal | None) -> list[Attempt]:
        """Return the attempts whose logs to print.

        For a trial, this is the newest attempt or the requested one. Without a trial, these are the
        newest attempts of all running trials, or of the trial that started last if none runs.
        """
        attempts = self._experiments.attempts(self._experiment.uid, number)
        if self._part.attempt is not None:
            return [attempt for attempt in attempts if attempt.number == self._part.attempt]
        newest = {attempt.trial: attempt for attempt in attempts}
        if number is not None:
            return list(newest.values())
        running = [attempt for attempt in newest.values() if not attempt.ended]
        started = sorted(newest.values(), key=_began)
        return running or started[-1:]

    def all_ended(self, number: TrialOrFinal | None) -> bool:
        """Return whether nothing more will be written unless the experiment is resumed."""
        if all(attempt.ended for attempt in self.chosen(number)):
            return number is not None or self._experiments.holder(self._experiment.uid) is None
        return False

    def write_new(self, attempt: Attempt, *, prefix: bool, last: bool) -> None:
        key = attempt.trial, attempt.number
        log = self._experiments.log(self._experiment.uid, attempt)
        try:
            if key not in self._offsets:
                tail = self._part.tail
                self._offsets[key] = 0 if tail is None else log.begins_at(tail)
            while True:
                begin, data = log.read(self._offsets[key])
                if not data:
                    break
                self._offsets[key] = begin + len(data)
                self._write(self._prefixed(key, data) if prefix else data)
        except NotFound:
            return
        partial = self._partial.pop(key, b"") if last else b""
        if partial:
            self._write(b"%s| %s\n" % (trial_label(attempt.trial).encode(), partial))

    def _prefixed(self, key: _Key, data: bytes) -> bytes:
        """Return whole lines with their trial's number before each.

        An incomplete last line is kept for later.
        """
        *lines, self._partial[key] = (self._partial.get(key, b"") + data).split(b"\n")
        label = trial_label(key[0]).encode()
        return b"".join(b"%s| %s\n" % (label, line) for line in lines)


def _began(attempt: Attempt) -> float:
    return 0.0 if attempt.start_time is None else attempt.start_time.timestamp()
