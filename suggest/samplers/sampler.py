"""The contract of a sampler: it is shown every trial of a study and proposes points for the next ones.

Its state must follow from the trials it was shown, in any order: an engine rebuilt from a store has to propose what the
lost one would have. All randomness for trial n comes from (study seed, n).

A sampler whose model computes in a worker process proposes in steps: it yields each computation, which touches nothing
of the sampler, and is sent the points. So its owner need not hold the study's lock while a worker computes.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeVar

from suggest.space import Assignment
from suggest.trial import Trial

T = TypeVar("T")
Computation: TypeAlias = Callable[[], list[Assignment]]
Computed: TypeAlias = Generator[Computation, list[Assignment], T]
Steps: TypeAlias = Computed[list[Assignment]]


@dataclass(frozen=True, slots=True)
class PointRequest:
    """A trial that needs a point. `fixed` is the part a person has decided (valid, canonical), mostly empty.

    `again`: which of several draws for the same trial this is. `new`: no point that the study knows will do, if there
    is another.
    """

    number: int
    fixed: Assignment
    again: int = 0
    new: bool = False

    def source(self, seed: int, purpose: str) -> random.Random:
        return generator(seed, self.number, f"{purpose} again {self.again}" if self.again else purpose)


class Sampler(Protocol):
    """One study's sampler. Not thread-safe: its owner holds the study's lock.

    One that leaves computations to workers also has `steps(wanted)`, of which `propose` is all, one after the other.
    """

    def put(self, trial: Trial) -> None:
        """A new trial, or a new version of a known one."""
        ...

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        """Points for the first of `wanted`, each aware of those before it; fewer when the space is finished.

        Active parameters only, in the order of the space. Those with a fixed part always get one. Changes no answer.
        """
        ...

    def warm_up(self) -> None:
        """Load what the first proposal would have to wait for. May run in another thread; repeating it is cheap."""
        ...


def generator(seed: int, number: int, purpose: str) -> random.Random:
    """The source of everything random about one trial, for one purpose."""
    digest = hashlib.sha256(f"{seed}/{number}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def steps_of(sampler: Sampler, wanted: Sequence[PointRequest]) -> Steps:
    """What `propose` does, step by step where the sampler has steps. Between two of them it may be shown trials."""
    steps: Callable[[Sequence[PointRequest]], Steps] | None = getattr(sampler, "steps", None)
    if steps is None:
        return sampler.propose(wanted)
    return (yield from steps(wanted))


def completed(steps: Computed[T]) -> T:
    """The result, with every computation done here."""
    try:
        computation = next(steps)
        while True:
            computation = steps.send(computation())
    except StopIteration as end:
        result: T = end.value
        return result
