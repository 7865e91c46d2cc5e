"""One experiment or study that pages show: when it is read again, and what the pages are sent.

It is read when its mark (`mark`, cheap to compute) has changed, once for all pages, and takes at
most half of the time. What is read each time is decided in `controller.app.following`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Generic

from controller.app.following import Changed, Follower, Record
from controller.background_tasks import cancelled
from controller.ui.live_table import Encoded, Event, Json, LiveTable
from suggest.errors import NotFound, TunerError

LOOK_S = 0.04  # between looks at the mark
SHARED_S = 1.0  # between reads of a store whose changes do not show, and after a failed read
Mark = tuple[object, ...]


async def when_changed(
    event: str, read: Callable[[], Awaitable[Encoded]], *, every_s: float
) -> AsyncIterator[Event]:
    """Yield what `read` returns, under the name of an event, and again whenever it has changed."""
    sent: Encoded | None = None
    while True:
        now = await read()
        if now != sent:
            yield event, now
        sent = now
        await asyncio.sleep(every_s)


class SharedReader(Generic[Record]):
    """Belongs to one event loop.

    Args:
        mark: Returns a value that differs from the last one if the store may have changed.
        connect: Returns the follower, when it is first needed. May raise the errors of the service.
        summarize: Returns the summary of a record; its flag says whether all of it was read.
        slots: Limits how many reads run at once.
    """

    def __init__(
        self,
        *,
        mark: Callable[[], Mark],
        connect: Callable[[], Awaitable[Follower[Record]]],
        summarize: Callable[[Record, bool], Json],
        slots: asyncio.Semaphore,
    ) -> None:
        self._mark = mark
        self._connect: Callable[[], Awaitable[Follower[Record]]] = connect
        self._summarize: Callable[[Record, bool], Json] = summarize
        self._slots = slots
        self._follower: Follower[Record] | None = None
        self._table = LiveTable()
        self._seen: Mark = ()
        self._began = 0.0  # when the last successful read began
        self._idle_until = 0.0
        self._reading: asyncio.Task[None] | None = None
        self._looking: asyncio.Task[None] | None = None
        self._waiting = 0  # for `_looking`
        self.summary: Json = {}
        self.error: TunerError | None = None  # of the last read, if it failed

    async def close(self) -> None:
        await cancelled(self._looking, self._reading)

    @property
    def gone(self) -> bool:
        return isinstance(self.error, NotFound)

    async def record(self) -> Record:
        """Return the current record. Raises NotFound and the errors of its service."""
        asked_at = time.monotonic()
        while True:
            self.look()
            if self._reading is not None:
                await self._wait()
            if self.error is not None:
                raise self.error
            if self._follower is not None and self._is_current(asked_at):
                return self._follower.record
            await self._wait()

    async def follow(self, position: str, trials: frozenset[int] | None) -> AsyncIterator[Event]:
        """Yield changes since `position`, and later ones, as names of events with their data.

        The events are those of `LiveTable.since`. If the store does not answer, a `trouble` event
        says so, and the store is asked again. The last event is `gone`, when there is no such
        experiment or study any more.

        `trials` limits the rows to these trials.
        """
        asked_at = time.monotonic()
        trouble = ""
        while True:
            self.look()
            if self._reading is not None:
                await self._wait()
            known = self._table.position, self.error
            if self.gone:
                yield "gone", Encoded.of({"message": str(self.error)})
                return
            if (message := str(self.error or "")) != trouble:
                trouble = message
                yield "trouble", Encoded.of({"message": message})
            # While it is read for the first time, what is known is shown already.
            if self.summary and (not self.summary["loaded"] or self._is_current(asked_at)):
                events, position = self._table.since(position, trials), self._table.position
                for event, data in events:
                    yield event, data
            # A read may have ended while a slow page was sent its events.
            if self._reading is None and known == (self._table.position, self.error):
                await self._wait()

    def read_again(self, number: int) -> None:
        """Let the next read include a trial that has ended, because this process has changed it."""
        if self._follower is not None:
            self._follower.read_again(number)
            self._seen = ()

    def look(self) -> None:
        """Begin to read if something may have changed."""
        if self._reading is not None and self._reading.done():
            ended, self._reading = self._reading, None
            ended.result()  # a bug must not stay unseen
        if self._reading is None and not self.gone and time.monotonic() >= self._idle_until:
            is_due = self._follower is not None and self._follower.due
            if is_due or self._mark() != self._seen:
                self._reading = asyncio.create_task(self._read())

    async def _wait(self) -> None:
        """Wait until there may be something new."""
        if self._reading is not None:
            await asyncio.wait({self._reading}, timeout=LOOK_S)
            return
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look_for_all())
        looking = self._looking
        self._waiting += 1
        try:
            await asyncio.wait({looking})
        finally:
            self._waiting -= 1
        looking.result()  # as in `look`

    async def _look_for_all(self) -> None:
        """Look for everybody who waits.

        Ends when it is being read or was read, or nobody waits any more.
        """
        began, error = self._began, self.error
        while self._reading is None and self._began == began and self.error is error:
            await asyncio.sleep(LOOK_S)
            if not self._waiting:
                return
            self.look()

    def _is_current(self, asked_at: float) -> bool:
        """Return whether what is known is not older than a request of the time `asked_at`."""
        return self._began >= asked_at or self._mark() == self._seen

    async def _read(self) -> None:
        async with self._slots:
            began = time.monotonic()
            mark = self._mark()  # before reading, so that concurrent changes are read next time
            try:
                if self._follower is None:
                    self._follower = await self._connect()
                follower = self._follower
                async for trials in follower.read(changed=mark != self._seen):
                    self._show(follower.record, trials, loaded=follower.loaded)
                self._show(follower.record, {}, loaded=True)
                self._seen, self._began, self.error = mark, began, None
                self._idle_until = 2 * time.monotonic() - began
            except TunerError as error:
                self.error, self._idle_until = error, time.monotonic() + SHARED_S

    def _show(self, record: Record, trials: Changed, *, loaded: bool) -> None:
        self.summary = self._summarize(record, loaded)
        self._table.apply(record, self.summary, trials)


def file_mark(*databases: Path) -> Mark:
    """Return the times and sizes of SQLite databases, which change with every write."""
    mark: list[object] = []
    for database in databases:
        for path in (database, database.with_name(f"{database.name}-wal")):
            try:
                status = path.stat()
                mark += [status.st_mtime_ns, status.st_size]
            except OSError:
                mark.append(None)
    return tuple(mark)


def clock_mark() -> Mark:
    """Return a mark that changes at intervals, for stores whose changes do not show."""
    return (int(time.monotonic() / SHARED_S),)
