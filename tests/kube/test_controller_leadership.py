"""One controller of an installation writes: its lease on the small API server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.core.attempt import RuntimeLost
from controller.experiment_store import Fence
from controller.kube import client as kube_client
from controller.kube.client import KubernetesClient
from controller.kube.errors import AccessDenied
from controller.operator import leadership
from controller.operator.leadership import CONTROLLER_LEASE_S, NAME, Leadership
from controller.runtime.kubernetes.lease import Superseded, format_time
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script
from tests.kube.operated import Installation, experiment, on_a_cluster
from tests.kube.small_cluster import eventually, with_a_cluster

NAMESPACE = "user1"
# One request gives up after so many answers of 429.
_CLIENTS_TRIES = kube_client._TRIES
SECOND = {"holderIdentity": "second", "leaseTransitions": 9}


class Clock:
    """Monotonic seconds that the test sets, or that stand still for a frozen process."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def member(
    client: KubernetesClient,
    name: str,
    clock: Callable[[], float],
    on_lost: Callable[[], None] = lambda: None,
) -> Leadership:
    return Leadership(client, NAMESPACE, name, on_lost=on_lost, clock=clock)


@pytest.fixture(autouse=True)
def _brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "RENEW_S", 0.01)
    monkeypatch.setattr(kube_client, "_LONGEST_PAUSE_S", 0.01)


def holder(api: FakeApi) -> object:
    return api.get("leases", NAMESPACE, NAME)["spec"].get("holderIdentity")


async def waits(task: asyncio.Task[None]) -> bool:
    await asyncio.sleep(0.1)
    return not task.done()


def test_a_standby_waits_while_the_holder_renews() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first, second = member(client, "first", Clock()), member(client, "second", Clock())
        await first.acquire()
        standby = asyncio.create_task(second.acquire())
        assert await waits(standby)
        assert (holder(api), first.holds, second.holds) == ("first", True, False)
        await first.release()
        await standby
        assert (holder(api), second.holds, second.epoch) == ("second", True, first.epoch + 1)
        await second.release()

    check()


def test_a_standby_takes_over_from_a_silent_holder_after_the_duration() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock = Clock()
        silent = member(client, "silent", Clock())
        await silent._try()
        second = member(client, "second", clock)
        standby = asyncio.create_task(second.acquire())
        assert await waits(standby)
        clock.now_s += CONTROLLER_LEASE_S
        await standby
        assert holder(api) == "second"
        await second.release()

    check()


@pytest.mark.parametrize("hours", [-1, 1])
def test_a_standby_does_not_compare_its_clock_with_the_holders(hours: int) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock, theirs = Clock(), datetime.now(UTC) + timedelta(hours=hours)
        silent, second = member(client, "silent", Clock()), member(client, "second", clock)
        await silent._try()

        def renew(seconds: float) -> None:
            clock.now_s += seconds
            time = format_time(theirs + timedelta(seconds=clock.now_s))
            api.change("leases", NAMESPACE, NAME, lambda each: each["spec"].update(renewTime=time))

        for _ in range(4):
            renew(CONTROLLER_LEASE_S - 1)
            assert not await second._try()
        clock.now_s += CONTROLLER_LEASE_S
        assert await second._try()

    check()


def test_a_holder_that_could_not_renew_writes_nothing() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock = Clock()
        first = member(client, "first", clock)
        await first._try()
        await first.check()
        clock.now_s += CONTROLLER_LEASE_S - 1
        with pytest.raises(RuntimeLost, match="could not be renewed in time"):
            await first.check()

    check()


def test_a_holder_that_was_frozen_finds_its_successor_and_never_writes_again() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock, lost = Clock(), asyncio.Event()
        frozen = member(client, "frozen", clock, lost.set)
        await frozen.acquire()
        api.change(
            "leases",
            NAMESPACE,
            NAME,
            lambda lease: lease["spec"].update(
                holderIdentity="second", leaseTransitions=frozen.epoch + 1
            ),
        )
        async with asyncio.timeout(10):
            await lost.wait()
        with pytest.raises(Superseded, match="another controller holds it"):
            await frozen.check()
        await frozen.release()
        assert holder(api) == "second"

    check()


def test_a_deleted_lease_is_made_again_under_a_higher_epoch() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first._try()
        api.remove("leases", NAMESPACE, NAME)
        await first._try()
        assert (first.holds, first.epoch) == (True, 2)

    check()


def test_two_standbys_never_both_hold_it() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        members = [member(client, f"m{n}", Clock()) for n in range(5)]
        await asyncio.gather(*(each._try() for each in members))
        assert sum(each.holds for each in members) == 1

    check()


def test_a_holder_that_gave_the_lease_up_may_hold_it_again_under_a_higher_epoch() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first.acquire()
        before = first.fence
        await first.release()
        assert not first.holds
        await first.acquire()
        assert (first.holds, first.fence) == (True, Fence(before.epoch + 1, "first"))
        await first.release()

    check()


def test_a_holder_raises_its_epoch_above_that_of_a_store() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first._try()
        await first.exceed(7)
        assert (first.holds, first.fence) == (True, Fence(8, "first"))
        assert await first._try()
        assert api.get("leases", NAMESPACE, NAME)["spec"]["leaseTransitions"] == 8

    check()


@pytest.mark.parametrize("status", [404, 409, 429, 500])
@pytest.mark.parametrize("method", ["GET", "PATCH"])
def test_the_epoch_is_raised_when_the_api_server_answers_again(method: str, status: int) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first._try()
        api.answer(status, times=_CLIENTS_TRIES, method=method, path="/leases/")
        await first.exceed(7)
        assert (first.holds, first.epoch) == (True, 8)
        assert api.get("leases", NAMESPACE, NAME)["spec"]["leaseTransitions"] == 8

    check()


def test_the_holder_remains_if_the_answer_to_the_raised_epoch_is_lost() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first.acquire()
        losses = iter([504] * 5)  # renewals come in between

        def hides(_method: str, _path: str) -> int:
            is_raised = api.get("leases", NAMESPACE, NAME)["spec"]["leaseTransitions"] == 8
            return next(losses, 0) if is_raised else 0

        api.hides = hides
        await first.exceed(7)
        await eventually(lambda: not first.trouble and next(losses, None) is None)
        assert (first.lost, first.epoch, holder(api)) == (None, 8, "first")
        await first.release()
        assert not holder(api)

    check()


def test_a_lease_that_is_deleted_while_its_epoch_is_raised_is_made_again() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first.acquire()
        api.remove("leases", NAMESPACE, NAME)
        await first.exceed(7)
        assert api.get("leases", NAMESPACE, NAME)["spec"]["leaseTransitions"] == 8
        await first.release()

    check()


def test_only_the_holder_raises_the_epoch() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first, second = member(client, "first", Clock()), member(client, "second", Clock())
        await first._try()
        api.change(
            "leases", NAMESPACE, NAME, lambda lease: lease["spec"].update(holderIdentity="second")
        )
        with pytest.raises(Superseded):
            await first.exceed(7)
        assert api.get("leases", NAMESPACE, NAME)["spec"]["leaseTransitions"] == 1
        assert not second.holds

    check()


def test_a_standby_whose_takeover_got_no_answer_takes_over_again_at_once() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        standby = member(client, "standby", Clock())
        await standby._try()
        standby.epoch = 0  # as it has it without the answer
        assert await standby._try()
        assert (standby.holds, standby.epoch) == (True, 2)

    check()


@pytest.mark.parametrize("status", [429, 500])
def test_a_standby_waits_for_an_api_server_that_refuses_or_fails(status: int) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        standby = member(client, "standby", Clock())
        api.answer(status, times=_CLIENTS_TRIES)
        await standby.acquire()
        assert standby.holds
        await standby.release()

    check()


def test_a_standby_waits_for_an_api_server_that_has_not_read_its_rules() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        standby = member(client, "standby", Clock())
        api.forbid("get", "leases")
        waiting = asyncio.create_task(standby.acquire())
        await eventually(lambda: "cannot get resource" in standby.trouble)
        api.permit()
        await waiting
        assert standby.holds
        await standby.release()

    check()


def test_a_missing_right_to_the_lease_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "LEASE_SETTLE_S", 0.0)

    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        api.forbid("get", "leases")
        with pytest.raises(AccessDenied, match=r"the missing rule: - \{apiGroups: \[coordination"):
            await member(client, "standby", Clock()).acquire()

    check()


def test_an_api_server_that_fails_is_logged_once_and_its_return_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO", logger=leadership.__name__)

    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        standby = member(client, "standby", Clock())
        api.answer(500, times=3)
        await standby.acquire()
        await standby.release()

    check()
    said = [record.levelname for record in caplog.records if record.name == leadership.__name__]
    assert said == ["WARNING", "INFO"]


def test_a_renewal_is_one_request() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        first = member(client, "first", Clock())
        await first._try()
        await first._try()
        before = len(api.requests)
        assert await first._try()
        assert [method for method, _, _ in api.requests[before:]] == ["PATCH"]

    check()


def test_a_holder_repeats_a_renewal_that_gets_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leadership, "_CALL_S", 0.1)

    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock = Clock()
        first = member(client, "first", clock)
        await first.acquire()
        api.hold("PATCH", "/leases/")
        await eventually(lambda: "has not answered" in first.trouble)
        clock.now_s += CONTROLLER_LEASE_S
        api.release()
        await eventually(lambda: first.holds)
        await first.release()

    check()


def test_a_holder_whose_late_renewals_overtake_each_other_remains_the_holder() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock = Clock()
        first = member(client, "first", clock)
        await first.acquire()
        # As when the API server goes on after a while, with renewals that were given up.
        api.answer(409, times=6, method="PATCH", path="/leases/")
        clock.now_s += CONTROLLER_LEASE_S
        await eventually(lambda: first.holds or first.lost)
        assert (first.lost, holder(api)) == (None, "first")
        await first.release()

    check()


def test_a_standby_that_was_outrun_takes_over_later() -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        standby = member(client, "standby", Clock())
        api.answer(409, method="POST", path="/leases")
        assert not await standby._try()
        assert await standby._try()
        assert holder(api) == "standby"

    check()


def test_a_holder_renews_after_an_unforeseen_error(monkeypatch: pytest.MonkeyPatch) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        clock = Clock()
        first = member(client, "first", clock)
        await first.acquire()
        take = first._take
        failed = asyncio.Event()

        async def fails_once() -> bool:
            if failed.is_set():
                return await take()
            failed.set()
            raise ValueError("not a time")

        monkeypatch.setattr(first, "_take", fails_once)
        async with asyncio.timeout(10):
            await failed.wait()
            clock.now_s += CONTROLLER_LEASE_S
        await eventually(lambda: first.holds)
        await first.release()

    check()


def reads_lease(request: tuple[str, str, dict[str, str]]) -> bool:
    method, path, _ = request
    return method == "GET" and path.endswith(f"/leases/{NAME}")


def test_a_leader_that_loses_its_lease_says_nothing_of_each_status(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_cluster(Script(forever=True))
    async def claim(installed: Installation) -> None:
        api = installed.api
        api.hold("PATCH", "/status")
        for name in ("one", "two"):
            installed.apply(experiment(name))
        await installed.until(lambda: api.held == 2)
        before = len(api.requests)
        api.change("leases", NAMESPACE, NAME, lambda lease: lease["spec"].update(SECOND))
        await installed.until(lambda: any(map(reads_lease, api.requests[before:])))
        api.release()
        assert isinstance(await installed.until_ended(), Superseded)

    claim(tmp_path)
    assert "status of" not in caplog.text
