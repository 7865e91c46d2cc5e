"""Models for tests of the worker processes: they say what they were shown, wait, or end their process."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from suggest import deadline, workers
from suggest.samplers.sampler import PointRequest
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial


class Told:
    """Proposes what it was shown: finished trials, running trials, and the process that computes."""

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        self._seed = seed
        self._settings = settings

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        shown = ",".join(f"{t.number}={t.value}" for t in learnt)
        away = ",".join(str(t.number) for t in running)
        return [{"shown": shown, "running": away, "pid": os.getpid(), "seed": self._seed} for _ in wanted]


class Waits(Told):
    """Writes the process id to the file `settings` names, and waits until that file is gone or its time is up."""

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        super().__init__(spec, seed, settings)
        self._file = Path(str(settings))

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not self._file.with_suffix(".done").exists():
            self._file.write_text(str(os.getpid()), encoding="utf-8")
        while self._file.exists():
            deadline.check()
            time.sleep(0.005)  # the test decides how long it takes
        return super().propose(learnt, running, wanted)


class Dies(Told):
    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        os._exit(3)


class Large(Told):
    """Its worker has more memory than it may have."""

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        super().__init__(spec, seed, settings)
        workers.MOST_BYTES = 1


class Hungry(Told):
    """Needs more memory than its process gets, until the file `settings` exists."""

    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not Path(str(self._settings)).exists():
            resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
            bytearray(1 << 31)
        return super().propose(learnt, running, wanted)


class Raises(Told):
    def propose(
        self, learnt: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        raise ZeroDivisionError("in the model")
