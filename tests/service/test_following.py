"""A follower's record equals a full read,
and each of its reads covers only what can have changed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.app import following
from controller.app.following import ONE_BY_ONE, StudyFollower
from controller.report.record import TrialRecord, in_order
from suggest.client import AsyncClient, StudyName
from suggest.errors import NotFound
from suggest.study import Algorithm, Direction, Objective
from suggest.trial import Measurement, Outcome, Trial, TrialState
from tests.service.running import NAME, SPEC, a_server, score

ENDS = (
    TrialState.SUCCEEDED,
    TrialState.SUCCEEDED,
    TrialState.PRUNED,
    TrialState.FAILED,
    TrialState.INFEASIBLE,
)


class Counting(AsyncClient):
    """Remembers the methods that it calls."""

    def __init__(self, address: str) -> None:
        super().__init__(address)
        self.sent: list[str] = []
        self.measured = asyncio.Event()

    # the overridden method is generic
    async def _send(self, method: str, *rest: Any, **options: Any) -> Any:
        self.sent.append(method)
        return await super()._send(method, *rest, **options)


def followed(
    folder: Path,
    see: Callable[[Counting, StudyFollower], Awaitable[None]],
    spec: Any = SPEC,
    client_type: type[Counting] = Counting,
) -> None:
    """Call `see` with a client and a follower of a new study."""

    async def run(address: str) -> None:
        client = client_type(address)
        async with client:
            study = await client.create_study(NAME, spec, request_id="r")
            await see(client, StudyFollower(client, study))

    with a_server(folder / "s.db") as server:
        asyncio.run(run(server.address))


async def read(follower: StudyFollower, *, changed: bool = True) -> set[int]:
    """Read, and return the numbers of the trials that may have changed."""
    return {number async for trials in follower.read(changed=changed) for number in trials}


def loss(step: int, value: float) -> Measurement:
    return Measurement(1, "loss", step, value)


async def begin(client: AsyncClient, count: int, request: str) -> list[int]:
    found = await client.suggest(NAME, count, client_id="me", request_id=request)
    return [trial.number for trial in found.trials]


def test_only_unfinished_and_new_trials_are_read_again(tmp_path: Path) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        first, second, third = await begin(client, 3, "a")
        await client.complete(NAME, first, Outcome(TrialState.SUCCEEDED, 0.5))
        assert await read(follower) == {first, second, third}
        assert await read(follower) == {first, second, third}, (
            "the first one may have ended during the first read"
        )
        await client.report(NAME, third, [score(1, 0.25)])
        await client.complete(NAME, second, Outcome(TrialState.SUCCEEDED, 0.75))
        (fourth,) = await begin(client, 1, "b")
        await client.complete(NAME, fourth, Outcome(TrialState.FAILED, reason="too late"))
        assert await read(follower) == {second, third, fourth}, "not the one that had ended"
        states = {
            one.trial.number: (one.state.value, one.trial.value) for one in follower.record.trials
        }
        assert states == {
            first: ("succeeded", 0.5),
            second: ("succeeded", 0.75),
            third: ("running", 0.25),
            fourth: ("failed", None),
        }

    followed(tmp_path, see)


def test_the_cost_of_a_read_does_not_depend_on_ended_trials(tmp_path: Path) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        for number in await begin(client, 30, "a"):
            await client.complete(NAME, number, Outcome(TrialState.SUCCEEDED, 0.5))
        await read(follower)
        await begin(client, 1, "b")
        await read(follower)
        client.sent.clear()
        await read(follower)
        assert client.sent == ["GetStudy", "ListTrials", "ListTrials", "ListMeasurements"]

    followed(tmp_path, see)


class Ending(Counting):
    """Completes a trial after the first page of measurements was read,
    and before the page that has the trial.
    """

    async def trials_page(
        self, name: StudyName, token: str, *, page_size: int
    ) -> tuple[list[Trial], str]:
        await self.measured.wait()
        await self.complete(
            NAME, 0, Outcome(TrialState.SUCCEEDED, 0.5), measurements=[loss(9, 0.9)]
        )
        return await super().trials_page(name, token, page_size=page_size)

    async def latest_page(
        self, name: StudyName, token: str
    ) -> tuple[list[tuple[int, Measurement]], str]:
        found = await super().latest_page(name, token)
        self.measured.set()
        return found


def test_the_last_measurements_of_a_trial_that_ends_during_the_first_read_are_found(
    tmp_path: Path,
) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        (number,) = await begin(client, 1, "a")
        await client.report(NAME, number, [loss(3, 0.3)])
        await read(follower)
        assert follower.record.metrics == {number: {"loss": 0.3}}
        await read(follower)
        assert follower.record.metrics == {number: {"loss": 0.9}}

    followed(tmp_path, see, client_type=Ending)


def test_labels_and_deletions_of_ended_trials_are_found_by_sweeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(following, "SWEEP_S", 0.0)
    monkeypatch.setattr(following, "SWEEP_SPARE", 0)
    monkeypatch.setattr(following, "PAGE", 2)

    async def see(client: Counting, follower: StudyFollower) -> None:
        numbers = await begin(client, 5, "a")
        for number in numbers:
            await client.complete(NAME, number, Outcome(TrialState.SUCCEEDED, float(number)))
        await read(follower)
        await client.update_trial(NAME, numbers[0], labels={"a": "b"})
        await client.delete_trial(NAME, numbers[-1])
        await read(follower)
        while follower.due:
            await read(follower, changed=False)
        assert [one.trial.number for one in follower.record.trials] == numbers[:-1]
        assert follower.record.trials[0].trial.labels == {"a": "b"}
        assert [trial.number for trial in follower.record.front] == [numbers[-2]], (
            "the best one was deleted"
        )
        assert not follower.due, "a sweep ends if nothing changes"

    followed(tmp_path, see)


def test_a_trial_that_this_process_has_changed_is_read_at_once(tmp_path: Path) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        (number,) = await begin(client, 1, "a")
        await client.complete(NAME, number, Outcome(TrialState.SUCCEEDED, 0.5))
        await read(follower)
        await client.update_trial(NAME, number, labels={"a": "b"})
        follower.read_again(number)
        assert await read(follower) == {number}
        assert follower.record.trials[0].trial.labels == {"a": "b"}

    followed(tmp_path, see)


def test_a_queued_trial_that_is_deleted_is_forgotten(tmp_path: Path) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        queued = await client.add_trial(NAME, {"x": 1.0, "kind": "a"}, request_id="q")
        await read(follower)
        await client.delete_trial(NAME, queued.number)
        assert await read(follower) == {queued.number}
        assert follower.record.trials == []

    followed(tmp_path, see)


def test_many_trials_that_end_at_once_are_read_as_a_list(tmp_path: Path) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        numbers = await begin(client, ONE_BY_ONE + 10, "a")
        await read(follower)
        for number in numbers:
            await client.complete(
                NAME,
                number,
                Outcome(TrialState.SUCCEEDED, float(number)),
                measurements=[score(1, 1.0)],
            )
        client.sent.clear()
        assert await read(follower) == set(numbers)
        assert "GetTrial" not in client.sent
        assert {one.state for one in follower.record.trials} == {TrialState.SUCCEEDED}

    followed(tmp_path, see)


def test_a_deleted_study_is_not_found(tmp_path: Path) -> None:
    async def see(client: Counting, follower: StudyFollower) -> None:
        await read(follower)
        await client.delete_study(NAME)
        with pytest.raises(NotFound):
            await read(follower)

    followed(tmp_path, see)


@pytest.mark.parametrize("objectives", [1, 2])
@pytest.mark.parametrize("seed", range(2))
def test_an_incremental_read_equals_a_full_read(tmp_path: Path, seed: int, objectives: int) -> None:
    several = (*SPEC.objectives, Objective("loss", Direction.MINIMIZE))[:objectives]
    spec = replace(SPEC, objectives=several, pruning=None, algorithm=Algorithm("random", seed=1))

    async def see(client: Counting, follower: StudyFollower) -> None:
        chance = random.Random(seed)
        running: list[int] = []
        for turn in range(25):
            for _ in range(chance.randrange(4)):
                match chance.randrange(4):
                    case 0 | 1:
                        running += await begin(client, 1, f"{turn}-{chance.random()}")
                    case 2 if running:
                        number = running.pop(chance.randrange(len(running)))
                        state, value = chance.choice(ENDS), chance.choice([0.0, 0.5, 0.5, 1.0])
                        kept = value if state is TrialState.SUCCEEDED else None
                        further = (
                            (chance.choice([0.0, 1.0]),) * (objectives - 1)
                            if kept is not None
                            else ()
                        )
                        await client.complete(
                            NAME, number, Outcome(state, kept, "why", "userError", further)
                        )
                    case 3 if running:
                        await client.report(NAME, running[0], [score(turn + 1, chance.random())])
            await read(follower)
            trials = [TrialRecord(each, by_client=True) for each in await client.list_trials(NAME)]
            record = follower.record
            assert [one.trial.number for one in record.trials] == [
                one.trial.number for one in trials
            ]
            assert [one.state for one in record.trials] == [one.state for one in trials]
            best = in_order(spec.criteria.best(one.trial for one in trials), spec.criteria)
            assert [t.number for t in record.front] == [t.number for t in best]
            assert record.totals is not None
            states = [one.state for one in trials]
            assert record.totals.counts == {
                state: states.count(state) for state in TrialState if state in states
            }

    followed(tmp_path, see, spec)
