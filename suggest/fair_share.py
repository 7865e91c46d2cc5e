"""What callers have to share or to take turns at: threads, bytes, studies, requests to others.
A waiting call takes no thread.

Everything here belongs to one event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

from suggest.errors import StudyBusy, TunerError

MAX_WAITING = 256  # calls for one study; each holds its request
BUSY_PAUSE_S = 0.5  # retry delay of a client that is refused because there are more


class FairShare:
    """An amount of which each caller may hold as much as is still free.

    So a single caller gets half of it, and there is always room for the next one. Of the callers
    that wait, the one that holds least goes first. The parts of a caller take turns.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self._free = total
        self._held: Counter[str] = Counter()  # only callers that hold anything
        self._waiting: dict[str, _WaitingCalls] = {}

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def held(self, caller: str) -> int:
        return self._held[caller]

    def has_room(self, caller: str, size: int) -> bool:
        return self._held[caller] + size <= self._free

    def add(self, caller: str, size: int = 1) -> None:
        """Count what a caller holds already, even if there is no room for it."""
        self._held[caller] += size
        self._free -= size

    async def take(self, caller: str, size: int = 1, *, part: str = "") -> None:
        """Wait until there is room. Raises what close() is given."""
        if caller not in self._waiting and self.has_room(caller, size):
            self.add(caller, size)
            return
        turn = _WaitingCall(asyncio.get_running_loop().create_future(), size)
        self._waiting.setdefault(caller, _WaitingCalls()).append(part, turn)
        try:
            await turn.granted
        except BaseException:
            if _is_granted(turn.granted):
                self.give(caller, size)
            else:
                self._leave(caller, part, turn)
            raise

    def give(self, caller: str, size: int = 1) -> None:
        """Give back what was taken or added."""
        self._held[caller] -= size
        self._free += size
        if not self._held[caller]:
            del self._held[caller]
        if self._waiting:
            self._serve()

    def close(self, error: TunerError) -> None:
        """Let all calls that wait raise the error."""
        for line in self._waiting.values():
            for turn in line:
                if not turn.granted.done():
                    turn.granted.set_exception(error)

    def _serve(self) -> None:
        for caller in sorted(self._waiting, key=self.held):
            line = self._waiting.pop(caller)
            while line and (line.first.granted.done() or self.has_room(caller, line.first.size)):
                turn = line.pop()
                if not turn.granted.done():
                    self.add(caller, turn.size)
                    turn.granted.set_result(None)
            if line:
                # At the end, so that callers that hold the same take turns.
                self._waiting[caller] = line

    def _leave(self, caller: str, part: str, turn: _WaitingCall) -> None:
        """Remove a call that waits no longer, unless serving others has done it.

        Others may have waited behind it.
        """
        if (line := self._waiting.get(caller)) is not None:
            line.remove(part, turn)
        self._serve()


@dataclass(frozen=True, slots=True, eq=False)
class _WaitingCall:
    """What a call waits for."""

    granted: asyncio.Future[None]
    size: int


class _WaitingCalls:
    """The calls of one caller that wait: those of a part in order, and the parts in turn."""

    def __init__(self) -> None:
        # The next part is the first; none is empty.
        self._parts: dict[str, deque[_WaitingCall]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._parts.values()))

    def __bool__(self) -> bool:
        return bool(self._parts)

    def __iter__(self) -> Iterator[_WaitingCall]:
        return chain.from_iterable(self._parts.values())

    @property
    def first(self) -> _WaitingCall:
        return next(iter(self._parts.values()))[0]

    def append(self, part: str, turn: _WaitingCall) -> None:
        self._parts.setdefault(part, deque()).append(turn)

    def pop(self) -> _WaitingCall:
        """Return the first turn; its part is the last one from now on."""
        part = next(iter(self._parts))
        turns = self._parts.pop(part)
        turn = turns.popleft()
        if turns:
            self._parts[part] = turns
        return turn

    def remove(self, part: str, turn: _WaitingCall) -> None:
        """Remove a turn if it is still there."""
        turns = self._parts.get(part, deque())
        if turn in turns:
            turns.remove(turn)
            if not turns:
                del self._parts[part]


class KeyedLock:
    """A lock for each study. Calls get it in the order of arrival."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}  # by study whose lock is taken

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    async def acquire(self, study: str) -> None:
        """Raises StudyBusy: too many calls wait for the study."""
        turns = self._waiting.get(study)
        if turns is None:
            self._waiting[study] = deque()
            return
        if len(turns) >= MAX_WAITING:
            raise StudyBusy(
                f"{study}: {len(turns)} calls already wait to write it, one at a time; try again "
                "later, or send fewer at once",
                retry_s=BUSY_PAUSE_S,
            )
        turn = asyncio.get_running_loop().create_future()
        turns.append(turn)
        try:
            await turn
        except BaseException:
            if _is_granted(turn):
                self.release(study)
            elif turn in turns:
                turns.remove(turn)
            raise

    def release(self, study: str) -> None:
        turns = self._waiting[study]
        while turns:
            turn = turns.popleft()
            if not turn.done():
                turn.set_result(None)
                return
        del self._waiting[study]

    def close(self, error: TunerError) -> None:
        """Let all calls that wait raise the error."""
        for turns in self._waiting.values():
            for turn in turns:
                if not turn.done():
                    turn.set_exception(error)


def _is_granted(turn: asyncio.Future[None]) -> bool:
    """Return whether a cancelled call had got its turn at that moment."""
    return turn.done() and not turn.cancelled() and turn.exception() is None
