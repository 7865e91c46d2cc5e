"""Events are watched only while an attempt waits for an explanation,
and earlier events are found.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from controller.kube import reflector
from controller.kube.client import JOBS, KubernetesClient
from controller.kube.cluster import Cluster
from controller.kube.objects import Raw
from controller.kube.reflector import MissingRights
from controller.runtime.kubernetes import informer
from controller.runtime.kubernetes.informer import EventWatcher, OwnerLookup
from tests.kube.fake_api import FakeApi
from tests.kube.small_cluster import eventually, with_a_cluster

NAMESPACE = "user1"
UNPLACED: Raw = {"metadata": {"name": "p", "uid": "pod"}, "spec": {}}
PLACED: Raw = {"metadata": {"name": "p", "uid": "pod"}, "spec": {"nodeName": "n"}}


class Clock:
    now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(informer, "time", made)
    for module in (informer, reflector):
        monkeypatch.setattr(module, "AGAIN_S", 0.01)
    Clock.now_s = 0.0
    return made


def asked(api: FakeApi) -> int:
    return sum(path.endswith("/events") for _, path, _ in api.requests)


def say(api: FakeApi, reason: str, uid: str, message: str) -> None:
    about = {"reason": reason, "message": message, "involvedObject": {"uid": uid}}
    api.put("events", {"metadata": {"generateName": "e.", "namespace": NAMESPACE}, **about})


@asynccontextmanager
async def heard(
    client: KubernetesClient, *, changed: Callable[[], None] = lambda: None
) -> AsyncIterator[EventWatcher]:
    notices = MissingRights()
    owners = OwnerLookup(
        client,
        NAMESPACE,
        "tiny-",
        notices,
        is_attempt=lambda uid: uid == "attempt",
        on_found=changed,
    )
    cluster = Cluster(client, labels="")
    made = EventWatcher(cluster, NAMESPACE, notices, owners, changed=changed)
    try:
        yield made
    finally:
        await made.close()
        await cluster.close()


@with_a_cluster
async def test_the_refusal_of_a_pod_is_found_although_its_event_came_earlier(
    api: FakeApi, client: KubernetesClient
) -> None:
    say(api, "FailedCreate", "job", "forbidden")
    changes: list[bool] = []
    async with heard(client, changed=lambda: changes.append(True)) as found:
        found.note_waiting("before", JOBS, [UNPLACED], has_quota=False)
        found.note_waiting("a", JOBS, [], has_quota=False)
        Clock.now_s = 9.9
        found.note_waiting("a", JOBS, [], has_quota=False)
        await asyncio.sleep(0.05)
        assert (asked(api), found.quiet) == (0, True)
        Clock.now_s = 10.0
        found.note_waiting("a", JOBS, [], has_quota=False)
        await eventually(lambda: found.refusal("job") == "forbidden")
        assert (found.quiet, found.refusal("other"), bool(changes)) == (False, "", True)


@with_a_cluster
async def test_the_refusal_of_the_first_pod_is_found_sooner(
    api: FakeApi, client: KubernetesClient
) -> None:
    say(api, "FailedCreate", "job", "violates PodSecurity")
    async with heard(client) as found:
        found.note_waiting("a", JOBS, [], has_quota=False)
        Clock.now_s = 1.0
        found.note_waiting("a", JOBS, [], has_quota=False)
        await eventually(lambda: found.refusal("job") == "violates PodSecurity")


@with_a_cluster
async def test_under_a_quota_the_refusal_of_a_pod_is_found_at_once(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with heard(client) as found:
        found.note_waiting("a", JOBS, [], has_quota=True)
        say(api, "FailedCreate", "job", "exceeded quota")
        await eventually(lambda: found.refusal("job") == "exceeded quota")


@with_a_cluster
async def test_a_volume_that_cannot_be_mounted_is_found_once_its_pod_waits_on_a_node(
    api: FakeApi, client: KubernetesClient
) -> None:
    say(api, "FailedMount", "pod", "no such claim")
    async with heard(client) as found:
        found.note_waiting("a", JOBS, [UNPLACED], has_quota=True)
        Clock.now_s = 600.0  # for a node it may wait for hours
        found.note_waiting("a", JOBS, [UNPLACED], has_quota=True)
        found.note_waiting("a", JOBS, [PLACED], has_quota=True)
        Clock.now_s = 609.9
        found.note_waiting("a", JOBS, [PLACED], has_quota=True)
        await asyncio.sleep(0.05)
        assert asked(api) == 0
        Clock.now_s = 610.0
        found.note_waiting("a", JOBS, [PLACED], has_quota=True)
        await eventually(lambda: found.mount_trouble([PLACED]) == "no such claim")


@with_a_cluster
async def test_an_attempt_that_ran_in_between_has_not_waited_long(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with heard(client) as found:
        found.note_waiting("a", JOBS, [], has_quota=False)
        found.note_running("a")
        Clock.now_s = 60.0
        found.note_waiting("a", JOBS, [], has_quota=False)
        await asyncio.sleep(0.05)
        assert asked(api) == 0


@with_a_cluster
async def test_without_the_right_to_events_nothing_fails(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.forbid("list", "events")
    async with heard(client) as found:
        for _ in range(3):
            found.note_waiting("a", JOBS, [], has_quota=True)
            await eventually(lambda: asked(api) > 0)
            await asyncio.sleep(0.05)
        assert (asked(api), found.quiet) == (1, True)


@with_a_cluster
async def test_a_server_in_trouble_is_asked_again(api: FakeApi, client: KubernetesClient) -> None:
    api.answer(500, times=2, method="GET", path="/events")
    say(api, "FailedCreate", "job", "forbidden")
    async with heard(client) as found:
        found.note_waiting("a", JOBS, [], has_quota=True)
        await eventually(lambda: found.refusal("job") == "forbidden")
