"""Models for tests of the worker processes: they return what they were shown,
wait, allocate memory, or exit.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from suggest import deadline
from suggest.proposal import PointRequest
from suggest.samplers.uniform import draw_points
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial


class EchoModel:
    """Proposes what it was shown: the finished trials, the running trials,
    and its own process id.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        self._seed = seed

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        shown = ",".join(f"{t.number}={t.value}" for t in learned)
        away = ",".join(str(t.number) for t in running)
        return [
            {"shown": shown, "running": away, "pid": os.getpid(), "seed": self._seed}
            for _ in wanted
        ]


class Waits(EchoModel):
    """Writes its process id to the file that `settings` names,
    and waits until the file is gone or its time is up.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        super().__init__(spec, seed, settings)
        self._file = Path(str(settings))

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not self._file.with_suffix(".done").exists():
            self._file.write_text(str(os.getpid()), encoding="utf-8")
        while self._file.exists():
            deadline.check()
            time.sleep(0.005)  # the test decides how long it takes
        return super().propose(learned, running, wanted)


class IgnoresDeadline(EchoModel):
    """Like `Waits`, but ignores its deadline."""

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        super().__init__(spec, seed, settings)
        self._file = Path(str(settings))

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        self._file.write_text(str(os.getpid()), encoding="utf-8")
        while self._file.exists():
            time.sleep(0.005)
        return super().propose(learned, running, wanted)


class AllocatesMemory(EchoModel):
    """Allocates `settings` bytes, and returns how often it was called."""

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        super().__init__(spec, seed, settings)
        self._kept = b"x" * int(str(settings))
        self._asked = 0

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        self._asked += 1
        return [
            {**point, "asked": self._asked} for point in super().propose(learned, running, wanted)
        ]


class Overflows(EchoModel):
    """Allows its process 256 MB more than Python has mapped, and allocates as long as the file
    `settings` names exists.

    It keeps what it has allocated, as a model keeps what it has computed.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        super().__init__(spec, seed, settings)
        self._file = Path(str(settings))
        self._kept: list[bytes] = []

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if self._file.exists():
            mapped = (
                int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
                * resource.getpagesize()
            )
            resource.setrlimit(resource.RLIMIT_AS, (mapped + (256 << 20),) * 2)
        while self._file.exists():
            self._kept.append(b"x" * (1 << 20))
        return super().propose(learned, running, wanted)


class Exits(EchoModel):
    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        sys.exit(0)


class Dies(EchoModel):
    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        os._exit(3)


class Raises(EchoModel):
    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        raise ZeroDivisionError("in the model")


LATCH = "TUNER_TEST_LATCH"  # in the environment: the folder of `Latched`


class Latched:
    """Random points of the study's space. Its folder gets a line for each request,
    in `asked`: the numbers wanted, of the finished and of the running trials, and
    the upper end of the first parameter. As long as `closed` is there, it waits,
    but for a request for 2 and 3 when `answer 2,3` is there; while `broken` is
    there, it fails, and while `memory` is there, it runs out of memory.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: object) -> None:
        self._space = spec.space
        self._seed = seed
        self._folder = Path(os.environ[LATCH])

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        line = {
            "wanted": [one.number for one in wanted],
            "finished": [t.number for t in learned],
            "running": [t.number for t in running],
            "max": getattr(self._space.parameters[0].domain, "max", None),
        }
        with (self._folder / "asked").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
        while (self._folder / "closed").exists() and not self._may_answer(wanted):
            deadline.check()
            time.sleep(0.002)  # the test decides how long it takes
        if (self._folder / "broken").exists():
            raise ZeroDivisionError("in the model")
        if (self._folder / "memory").exists():
            raise MemoryError
        # no points that random search would give
        return draw_points(self._space, self._seed + 1, wanted)

    def _may_answer(self, wanted: Sequence[PointRequest]) -> bool:
        try:
            (
                self._folder / "answer {}".format(",".join(str(one.number) for one in wanted))
            ).unlink()
        except FileNotFoundError:
            return False
        return True
