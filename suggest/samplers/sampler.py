"""The contract of a sampler: it is shown every trial of a study, and proposes points for the next ones.

A sampler's state is a function of the trials that it was shown, in any order, because an engine rebuilt from the store
has to propose what the lost one would have. All randomness for trial n is derived from (study seed, n).

A sampler whose model computes in a worker process proposes in steps: it yields each computation, which does not touch
the sampler, and is sent the resulting points. Its owner therefore need not hold the study's lock meanwhile.
"""

from __future__ import annotations

import hashlib
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

from suggest.space import Assignment
from suggest.trial import Trial, TrialBatch

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
        return generator(seed, self.number, f"{purpose} again {self.again}" if self.again else purpose)


class Sampler(ABC):
    """The sampler of one study. Not thread-safe: its owner holds the study's lock.

    A sampler that may compute in workers derives from `SteppedSampler`.
    """

    @abstractmethod
    def put(self, trial: Trial) -> None:
        """Take a new trial, or a new version of a known one.

        Without a default: a sampler that forgot it would propose points, but learn nothing.
        """

    def put_batch(self, batch: TrialBatch) -> None:
        """As `put` for each trial; a sampler that forgets most trials has a faster way."""
        for trial in batch.trials():
            self.put(trial)

    @abstractmethod
    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        """Return a point for each request, or for the first ones only if the space is exhausted.

        A sampler whose family `waits` also returns fewer while a trial has to end first.

        Each point takes the earlier ones into account. Points have active parameters only, in the order of the space. A
        request with fixed values always gets a point. The call has no effect on later proposals.
        """

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        """Return the steps of `propose`. Trials may be put into the sampler between two of them."""
        yield from ()  # no computation by default
        return self.propose(wanted)

    def parents(self, wanted: Sequence[PointRequest]) -> Mapping[int, int]:
        """Return the trials from whose checkpoints the proposed trials continue, by trial, of those that do.

        The sampler must not be shown a trial between this call and that of `propose`.
        """
        return {}

    def warm_up(self) -> None:  # noqa: B027 - a default that does nothing
        """Load the modules that the first proposal needs. Any thread may call this; a repeated call is cheap."""


class SteppedSampler(Sampler):
    """A sampler that is defined by its steps."""

    @abstractmethod
    def steps(self, wanted: Sequence[PointRequest]) -> Steps: ...

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return completed(self.steps(wanted))


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
