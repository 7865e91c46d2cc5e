"""The memory of an algorithm with generations, replayed from the trials of a study.

A generation is a number of trials, in the order of their numbers; the memory before it decides how
many. The memory after generation k is a function of its trials and of the memory before it, so
nothing is stored, and a rebuilt model has the same memory. Memories are kept from one proposal to
the next. A trial that ends late changes only its own generation and the later ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, Protocol, TypeVar

from suggest import deadline

# How many memories are kept, because most trials that end late are recent ones.
KEPT = 16


class Numbered(Protocol):
    @property
    def number(self) -> int: ...


T = TypeVar("T", bound=Numbered)
M = TypeVar("M")


class Generations(Generic[T, M]):
    """Replays the memory of an algorithm.

    size: trials per generation, or a function that returns the trials of the generation after a
        memory.
    first: returns the memory before any trial.
    step: returns the memory after generation k from k, its trials, and the memories by number of
        generations.
    recent: how many of the latest memories `step` reads.
    """

    def __init__(
        self,
        size: int | Callable[[M], int],
        first: Callable[[], M],
        step: Callable[[int, Sequence[T], Mapping[int, M]], M],
        recent: int = 1,
    ) -> None:
        self._size = size
        self._first = first
        self._step = step
        self._recent = recent
        self._numbers: list[tuple[int, ...]] = []  # of the trials of each generation
        self._memories: dict[int, M] = {}

    def replay(self, trials: Sequence[T]) -> tuple[int, M]:
        """Return how many generations these trials complete, and the memory after them."""
        numbers = tuple(trial.number for trial in trials)
        unchanged = self._unchanged(numbers)
        self._memories = {k: memory for k, memory in self._memories.items() if k <= unchanged}
        last = max(self._memories, default=0)
        read = range(max(0, last + 1 - self._recent), last + 1)
        if any(k not in self._memories for k in read):
            last, self._memories = 0, {0: self._first()}
        del self._numbers[last:]
        start = sum(map(len, self._numbers))
        while (end := start + self._next_size(last)) <= len(trials):
            deadline.check()
            self._memories[last + 1] = self._step(last, trials[start:end], self._memories)
            self._memories.pop(last + 1 - KEPT, None)
            self._numbers.append(numbers[start:end])
            last, start = last + 1, end
        return last, self._memories[last]

    def _unchanged(self, numbers: tuple[int, ...]) -> int:
        """Return how many generations have the same trials as before."""
        end = 0
        for generation, before in enumerate(self._numbers):
            if numbers[end : end + len(before)] != before:
                return generation
            end += len(before)
        return len(self._numbers)

    def _next_size(self, generation: int) -> int:
        return self._size if isinstance(self._size, int) else self._size(self._memories[generation])
