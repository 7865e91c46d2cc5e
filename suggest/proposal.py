"""A request for a point, and the steps in which a sampler answers it.
Pure: samplers and workers share it.

A sampler whose model computes in a worker process proposes in steps: it yields each computation,
which does not touch the sampler, and is sent the resulting points. Its owner therefore need not
hold the study's lock meanwhile.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from suggest.space import Assignment

T = TypeVar("T")
Computation: TypeAlias = Callable[[], list[Assignment]]
Computed: TypeAlias = Generator[Computation, list[Assignment], T]
Steps: TypeAlias = Computed[list[Assignment]]


@dataclass(frozen=True, slots=True)
class PointRequest:
    """A trial that needs a point.

    fixed: the values that a person has chosen, valid and canonical; usually empty.
    again: 0 for the first draw for this trial, 1 for the next one, and so on.
    new: the point must be new to the study, if possible.
    """

    number: int
    fixed: Assignment
    again: int = 0
    new: bool = False

    @property
    def key(self) -> tuple[int, int]:
        return self.number, self.again

    def source(self, seed: int, purpose: str) -> random.Random:
        return generator(
            seed, self.number, f"{purpose} again {self.again}" if self.again else purpose
        )


def generator(seed: int, number: int, purpose: str) -> random.Random:
    """Return the source of all randomness for one trial and one purpose."""
    digest = hashlib.sha256(f"{seed}/{number}/{purpose}".encode()).digest()
    return random.Random(int.from_bytes(digest[:16], "big"))


def completed(steps: Computed[T]) -> T:
    """Run all computations in this process, and return the result."""
    try:
        computation = next(steps)
        while True:
            computation = steps.send(computation())
    except StopIteration as end:
        result: T = end.value
        return result
