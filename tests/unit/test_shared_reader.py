"""A page is sent each change, also one that is read while the page is sent another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from controller.app.following import Changed, Follower
from controller.report.record import StudyTrials, TrialRecord
from controller.ui.live_table import Event
from controller.ui.shared_reader import SharedReader
from suggest.client import AsyncClient
from suggest.errors import NotFound
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState
from tests.contract.local_testbed import eventually

SPEC = StudySpec(
    Space((Parameter("x", Float(0.0, 1.0)),)),
    (Objective("score", Direction.MAXIMIZE),),
    Algorithm("random"),
)
STUDY = Study(StudyName("default", "s"), "uid", SPEC, seed=1)
PATIENCE_S = 30.0


class Store:
    """One study with one trial. `changes` counts its changes, which are the values of its trial."""

    def __init__(self) -> None:
        self.changes = 0
        self.reads = 0
        self.is_there = True


class OneTrial(Follower[StudyTrials]):
    def __init__(self, store: Store) -> None:
        super().__init__(
            AsyncClient("localhost:1"), STUDY.name, StudyTrials(STUDY), lambda trial: True
        )
        self._store = store

    @property
    def due(self) -> bool:
        return False

    async def read(self, *, changed: bool = True) -> AsyncIterator[Changed]:
        if not self._store.is_there:
            self._store.reads += 1
            raise NotFound("s does not exist")
        self.loaded = True
        yield {0: self._record_of(Trial(0, TrialState.SUCCEEDED, {"x": 0.5}, self._store.changes))}
        self._store.reads += 1

    def _record_of(self, trial: Trial) -> TrialRecord:
        return TrialRecord(trial, by_client=True)


def run(see: Callable[[Store, SharedReader[StudyTrials]], Awaitable[None]]) -> None:
    async def seen() -> None:
        store = Store()

        async def connect() -> OneTrial:
            return OneTrial(store)

        reader = SharedReader[StudyTrials](
            mark=lambda: (store.changes, store.is_there),
            connect=connect,
            summarize=lambda record, loaded: {"loaded": loaded},
            slots=asyncio.Semaphore(1),
        )
        try:
            await see(store, reader)
        finally:
            await reader.close()

    asyncio.run(seen())


async def following(events: AsyncIterator[Event]) -> tuple[str, Any]:
    name, encoded = await asyncio.wait_for(anext(events), PATIENCE_S)
    return name, json.loads(encoded.text)


async def read_again(store: Store, reader: SharedReader[StudyTrials]) -> None:
    """Let the store be read for another page."""
    reads = store.reads

    def is_read() -> bool:
        reader.look()
        return store.reads > reads

    await eventually(is_read, within_s=PATIENCE_S)


def test_a_change_that_is_read_while_an_event_is_sent_is_sent_afterwards() -> None:
    async def see(store: Store, reader: SharedReader[StudyTrials]) -> None:
        events = reader.follow("", None)
        await following(events)
        store.changes += 1
        await read_again(store, reader)  # before the page, which is slow, asks for what follows
        name, data = await following(events)
        assert (name, [row[2] for row in data["rows"]]) == ("update", [1])

    run(see)


def test_a_study_that_is_gone_while_an_event_is_sent_ends_the_stream() -> None:
    async def see(store: Store, reader: SharedReader[StudyTrials]) -> None:
        events = reader.follow("", None)
        await following(events)
        store.is_there = False
        await read_again(store, reader)
        await eventually(lambda: reader.gone, within_s=PATIENCE_S)
        assert (await following(events))[0] == "gone"

    run(see)
