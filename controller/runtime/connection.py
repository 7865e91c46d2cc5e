"""The controller's end of the socket to an experiment's supervisor: numbered requests, answers, news in between.

Knows the form of messages, not their meaning, and never reconnects: a lost connection stays lost.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Message: TypeAlias = dict[str, Any]  # JSON; both ends of the socket are in this folder

_LINE_LIMIT = 1 << 28  # a list of 100,000 attempts fits
_LEAVE_S = 5.0


class SupervisorConnection:
    """`open` one; `lost` once the other end is gone. Each attempt that any message carries is shown, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, show: Callable[[Message], None],
                 lost: Callable[[], None]) -> None:  # fmt: skip
        self.lost = False
        self._reader = reader
        self._writer = writer
        self._show = show
        self._tell_lost = lost
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[Message]] = {}
        self._listening = asyncio.create_task(self._listen())

    @classmethod
    async def open(
        cls, path: str, *, show: Callable[[Message], None], lost: Callable[[], None]
    ) -> SupervisorConnection:
        """Raises OSError if nobody listens at the path."""
        reader, writer = await asyncio.open_unix_connection(path, limit=_LINE_LIMIT)
        return cls(reader, writer, show=show, lost=lost)

    async def ask(self, do: str, request: Mapping[str, object]) -> Message:
        """Raises ConnectionError if the other end goes away first: whether it heard is not known."""
        if self.lost:
            raise ConnectionResetError
        number = next(self._numbers)
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self._answers[number] = answer
        self._writer.write(json.dumps({"id": number, "do": do, **request}).encode() + b"\n")
        return await answer

    async def leave(self) -> None:
        """Say good-bye. If that ends the supervisor, return when it has ended."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                if (await self.ask("leave", {}))["last"]:
                    await self._listening
        except (ConnectionError, TimeoutError):
            pass
        self.abandon()

    def abandon(self) -> None:
        """Let go without a word, as a crash would."""
        self._listening.cancel()
        self._writer.transport.abort()

    async def _listen(self) -> None:
        try:
            while line := await self._reader.readline():
                message: Message = json.loads(line)
                # Shown here, not by who asked: the next line may already tell of its end.
                for attempt in message.get("attempts", ()):
                    self._show(attempt)
                answer = self._answers.pop(message.get("id", 0), None)
                if answer is not None and not answer.done():
                    answer.set_result(message)
        except ConnectionError:
            pass
        finally:
            self.lost = True
            self._writer.transport.abort()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(ConnectionResetError())
            self._tell_lost()
