"""A reflector shows the objects of the server, despite errors; on a small server with real HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.kube.client import JOBS, KubernetesClient
from controller.kube.errors import ApiError, Unreachable
from controller.kube.objects import AttemptObject, Raw
from controller.kube.reflector import Reflector, WatchTiming
from suggest.backoff import Backoff
from tests.kube.fake_api import FakeApi
from tests.kube.small_cluster import eventually, with_a_cluster

QUICK = WatchTiming(watch_s=(1.0, 1.0), backoff=Backoff(0.005, 0.02, 0.5))
PATIENT = WatchTiming(
    watch_s=(60.0, 60.0), backoff=Backoff(0.005, 0.02, 0.5), settled_s=0.0, hidden_s=0.02
)
NAMESPACE = "user1"
OURS = {"app": "tuner"}
KEY = "tuner.dev/uid"


def uids(objects: Iterable[Raw]) -> set[str]:
    return {str(obj["metadata"]["uid"]) for obj in objects}


def job(name: str, labels: dict[str, str] = OURS) -> Raw:
    return {"metadata": {"name": name, "namespace": NAMESPACE, "labels": labels}, "spec": {}}


def touch(obj: Raw) -> None:
    obj["spec"]["touched"] = obj["spec"].get("touched", 0) + 1


class Watcher:
    """A reflector and its owner, who notes all that it ever showed and all that it called
    deleted, and what of that was untrue: something called deleted that is there,
    something that is back though we deleted it ourselves.
    """

    def __init__(
        self,
        client: KubernetesClient,
        *,
        resync_s: float = 600.0,
        timing: WatchTiming = PATIENT,
        value: str = "",
        **selection: str,
    ) -> None:
        """value: of the label `grouped_by`."""
        self.changes = 0
        self.seen: set[str] = set()
        self.taken: set[str] = set()
        self.dropped: set[str] = set()
        self.untrue: list[str] = []
        self.there: Callable[[], set[str]] = set
        self.reflector: Reflector[AttemptObject] = Reflector(
            client,
            JOBS,
            NAMESPACE,
            labels="app=tuner",
            resync_s=resync_s,
            timing=timing,
            **selection,
        )
        self.view = self.reflector.view(NAMESPACE, value, changed=self._look)
        self.view.keeps_deleted = True

    def _look(self) -> None:
        self.changes += 1
        shown = uids(self.view.objects.values())
        gone = uids(self.view.deleted.values())
        self.view.deleted.clear()
        self.untrue += [f"{uid} is back" for uid in shown & self.dropped]
        self.untrue += [f"{uid} is there" for uid in gone & self.there()]
        self.untrue += [f"{uid} is shown, and deleted" for uid in shown & gone]
        self.seen |= shown
        self.taken |= gone

    @property
    def names(self) -> list[str]:
        return sorted(self.view.objects)


@asynccontextmanager
async def a_watcher(
    api: FakeApi,
    client: KubernetesClient,
    *,
    resync_s: float = 600.0,
    timing: WatchTiming = PATIENT,
    value: str = "",
    **selection: str,
) -> AsyncIterator[Watcher]:
    watcher = Watcher(client, resync_s=resync_s, timing=timing, value=value, **selection)
    await watcher.reflector.start()
    try:
        yield watcher
    finally:
        await watcher.reflector.close()


def uid(api: FakeApi, name: str) -> str:
    return str(api.get("jobs", NAMESPACE, name)["metadata"]["uid"])


def watches(api: FakeApi) -> int:
    return sum("watch" in query for _, _, query in api.requests)


def lists(api: FakeApi) -> int:
    return sum(method == "GET" and "watch" not in query for method, _, query in api.requests)


@with_a_cluster
async def test_start_returns_with_the_existing_objects(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", job("a"))
    api.put("jobs", job("strange", {"app": "other"}))
    async with a_watcher(api, client) as watcher:
        assert watcher.names == ["a"]
        assert watcher.view.objects["a"] == api.get("jobs", NAMESPACE, "a")


@with_a_cluster
async def test_a_start_that_fails_says_why_and_leaves_nothing_running(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.forbid("list", "jobs")
    watcher = Watcher(client)
    with pytest.raises(ApiError, match="cannot list"):
        await watcher.reflector.start()
    await watcher.reflector.close()


@with_a_cluster
async def test_more_than_a_page_is_listed_whole(api: FakeApi, client: KubernetesClient) -> None:
    for number in range(1203):
        api.put("jobs", job(f"j{number}"))
    async with a_watcher(api, client) as watcher:
        assert len(watcher.names) == 1203
        assert lists(api) == 3


@with_a_cluster
async def test_changes_are_delivered(api: FakeApi, client: KubernetesClient) -> None:
    async with a_watcher(api, client) as watcher:
        api.put("jobs", job("a"))
        first = uid(api, "a")
        await eventually(lambda: watcher.names == ["a"])
        api.change("jobs", NAMESPACE, "a", touch)
        await eventually(lambda: watcher.view.objects["a"]["spec"] == {"touched": 1})
        api.remove("jobs", NAMESPACE, "a")
        await eventually(lambda: watcher.names == [])
        assert watcher.taken == {first}


@with_a_cluster
async def test_an_object_that_loses_its_label_is_gone(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", job("a"))
    async with a_watcher(api, client) as watcher:
        api.change("jobs", NAMESPACE, "a", lambda obj: obj["metadata"]["labels"].clear())
        await eventually(lambda: watcher.taken == {uid(api, "a")})


def owned_job(name: str) -> Raw:
    return job(name, {**OURS, KEY: "ours"})


def relabel(obj: Raw) -> None:
    obj["metadata"]["labels"] = {"app": "other"}


@with_a_cluster
async def test_a_grouped_object_that_loses_its_labels_is_shown_with_them_until_it_is_deleted(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", owned_job("a"))
    async with a_watcher(api, client, grouped_by=KEY, value="ours") as watcher:
        api.change("jobs", NAMESPACE, "a", relabel)
        await eventually(lambda: watcher.view.objects["a"]["metadata"]["labels"]["app"] == "other")
        assert watcher.view.objects["a"]["metadata"]["labels"][KEY] == "ours"
        assert not watcher.taken
        first = uid(api, "a")
        api.remove("jobs", NAMESPACE, "a")
        await eventually(lambda: watcher.taken == {first})


@with_a_cluster
async def test_a_hidden_object_whose_labels_come_back_is_watched_again(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", owned_job("a"))
    async with a_watcher(api, client, grouped_by=KEY, value="ours") as watcher:
        api.change("jobs", NAMESPACE, "a", relabel)
        await eventually(lambda: watcher.view.objects["a"]["metadata"]["labels"]["app"] == "other")
        api.change("jobs", NAMESPACE, "a", lambda obj: obj["metadata"].update(labels=OURS))
        await eventually(lambda: watcher.view.objects["a"]["metadata"]["labels"]["app"] == "tuner")
        first = uid(api, "a")
        api.remove("jobs", NAMESPACE, "a")
        await eventually(lambda: watcher.taken == {first})


@with_a_cluster
async def test_an_object_in_the_place_of_a_hidden_one_is_shown(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", owned_job("a"))
    async with a_watcher(api, client, grouped_by=KEY, value="ours") as watcher:
        first = uid(api, "a")
        api.change("jobs", NAMESPACE, "a", relabel)
        api.remove("jobs", NAMESPACE, "a")
        api.put("jobs", owned_job("a"))
        await eventually(lambda: uids(watcher.view.objects.values()) == {uid(api, "a")})
        await eventually(lambda: watcher.taken <= {first})


@with_a_cluster
async def test_an_object_is_read_by_name_once_if_it_was_deleted(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", owned_job("a"))
    async with a_watcher(api, client, grouped_by=KEY, value="ours") as watcher:
        before = lists(api)
        first = uid(api, "a")
        api.remove("jobs", NAMESPACE, "a")
        await eventually(lambda: watcher.taken == {first})
        assert lists(api) == before + 1


@with_a_cluster
async def test_objects_deleted_one_after_another_are_each_read_by_name_at_once(
    api: FakeApi, client: KubernetesClient
) -> None:
    for name in ("a", "b", "relabelled"):
        api.put("jobs", owned_job(name))
    rarely = replace(PATIENT, hidden_s=3600.0)
    async with a_watcher(api, client, timing=rarely, grouped_by=KEY, value="ours") as watcher:
        api.change("jobs", NAMESPACE, "relabelled", relabel)
        shown = watcher.view.objects
        await eventually(lambda: shown["relabelled"]["metadata"]["labels"]["app"] == "other")
        for name in ("a", "b"):
            gone = uid(api, name)
            api.remove("jobs", NAMESPACE, name)
            await eventually(lambda gone=gone: gone in watcher.taken)
        assert watcher.names == ["relabelled"]


@with_a_cluster
async def test_a_pod_that_ended_and_an_object_that_was_asked_to_end_are_not_read_by_name(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", owned_job("asked"))
    api.put("jobs", owned_job("ended") | {"status": {"phase": "Succeeded"}})
    async with a_watcher(api, client, grouped_by=KEY, value="ours") as watcher:
        before = lists(api)
        api.change(
            "jobs",
            NAMESPACE,
            "asked",
            lambda obj: obj["metadata"].update(deletionTimestamp="2026-01-01T00:00:00Z"),
        )
        api.remove("jobs", NAMESPACE, "asked")
        api.remove("jobs", NAMESPACE, "ended")
        await eventually(lambda: len(watcher.taken) == 2)
        assert lists(api) == before


@with_a_cluster
async def test_a_broken_watch_continues_from_the_last_version_without_a_list(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client) as watcher:
        await eventually(lambda: watches(api) == 1)
        api.drop_connections()
        api.put("jobs", job("a"))
        await eventually(lambda: watcher.names == ["a"])
        assert (lists(api), watcher.reflector.trouble) == (1, "")


@pytest.mark.parametrize("form", ["event", "status"])
def test_after_a_compaction_the_objects_are_listed_again(form: str) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        api.gone_as = form
        for name in ("kept", "gone", "replaced"):
            api.put("jobs", job(name))
        gone = {uid(api, "gone"), uid(api, "replaced")}
        async with a_watcher(api, client) as watcher:
            await eventually(lambda: watches(api) == 1)
            await api.stop()
            api.remove("jobs", NAMESPACE, "gone")
            api.remove("jobs", NAMESPACE, "replaced")
            api.put("jobs", job("replaced"))
            api.put("jobs", job("new"))
            api.compact()
            await api.start()
            await eventually(lambda: watcher.names == ["kept", "new", "replaced"])
            assert watcher.taken == gone
            assert watcher.view.objects["replaced"]["metadata"]["uid"] == uid(api, "replaced")

    check()


@with_a_cluster
async def test_a_bookmark_moves_the_version_past_a_compaction(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client) as watcher:
        await eventually(lambda: watches(api) == 1)
        api.put("pods", {"metadata": {"name": "of no interest"}})
        api.bookmark()
        await asyncio.sleep(0.05)
        api.compact()
        api.drop_connections()
        api.put("jobs", job("a"))
        await eventually(lambda: watcher.names == ["a"])
        assert lists(api) == 1


@with_a_cluster
async def test_a_lost_event_is_repaired_by_the_next_full_list(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", job("a"))
    async with a_watcher(api, client, resync_s=0.1) as watcher:
        await eventually(lambda: watches(api) >= 1)
        api.lose_events(2)
        lost = uid(api, "a")
        api.remove("jobs", NAMESPACE, "a")
        api.put("jobs", job("b"))
        await eventually(lambda: watcher.names == ["b"])
        assert watcher.taken == {lost}


@with_a_cluster
async def test_an_outage_of_the_server_is_reported_and_then_made_up_for(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client, timing=QUICK) as watcher:
        await eventually(lambda: watches(api) == 1)
        await api.stop()
        await eventually(lambda: "cannot be reached" in watcher.reflector.trouble)
        api.put("jobs", job("a"))
        await api.start()
        await eventually(lambda: watcher.names == ["a"])
        assert watcher.reflector.trouble == ""


@with_a_cluster
async def test_revoked_rights_are_reported_until_they_are_restored(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client, timing=QUICK) as watcher:
        await eventually(lambda: watches(api) == 1)
        api.forbid("watch", "jobs")
        api.drop_connections()
        await eventually(lambda: 'cannot watch resource "jobs"' in watcher.reflector.trouble)
        api.permit()
        api.put("jobs", job("a"))
        await eventually(lambda: watcher.names == ["a"] and not watcher.reflector.trouble)


@with_a_cluster
async def test_a_server_that_hangs_is_detected(api: FakeApi, client: KubernetesClient) -> None:
    async with a_watcher(api, client, timing=QUICK) as watcher:
        await eventually(lambda: watches(api) == 1)
        api.silent = True
        await eventually(lambda: "not answered in time" in watcher.reflector.trouble)
        api.silent = False
        api.put("jobs", job("a"))
        await eventually(lambda: watcher.names == ["a"])


@with_a_cluster
async def test_our_own_writes_are_seen_at_once_and_never_unseen(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client, resync_s=0.02) as watcher:
        for number in range(20):
            made = await client.create(JOBS, NAMESPACE, job(f"j{number}"))
            watcher.reflector.put(made)
            assert len(watcher.names) == number + 1
            await asyncio.sleep(0.005)
            assert len(watcher.names) == number + 1
        assert watcher.taken == set()


@with_a_cluster
async def test_an_object_created_during_a_list_is_not_missed(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client, resync_s=0.05) as watcher:
        api.quiet = api.late = True
        before = lists(api)
        await eventually(lambda: lists(api) > before)
        watcher.reflector.put(await client.create(JOBS, NAMESPACE, job("a")))
        api.late = False
        before = lists(api)
        await eventually(lambda: lists(api) > before)
        assert (watcher.names, watcher.taken) == (["a"], set())


@with_a_cluster
async def test_a_late_deletion_event_does_not_hide_the_successor(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", job("a"))
    async with a_watcher(api, client) as watcher:
        await eventually(lambda: watches(api) == 1)
        first = uid(api, "a")
        api.quiet = True
        api.remove("jobs", NAMESPACE, "a")
        watcher.reflector.put(await client.create(JOBS, NAMESPACE, job("a")))
        api.quiet = False
        api.put("jobs", job("b"))
        await eventually(lambda: watcher.names == ["a", "b"])
        assert watcher.view.objects["a"]["metadata"]["uid"] == uid(api, "a")
        assert watcher.taken == {first}


@with_a_cluster
async def test_an_old_list_does_not_hide_newer_events(
    api: FakeApi, client: KubernetesClient
) -> None:
    async with a_watcher(api, client) as watcher:
        made = await client.create(JOBS, NAMESPACE, job("a"))
        api.change("jobs", NAMESPACE, "a", touch)
        await eventually(lambda: watcher.view.objects.get("a", {}).get("spec") == {"touched": 1})
        watcher.reflector.put(made)
        assert watcher.view.objects["a"]["spec"] == {"touched": 1}


@with_a_cluster
async def test_a_deleted_object_does_not_reappear(api: FakeApi, client: KubernetesClient) -> None:
    api.put("jobs", job("a"))
    api.put(
        "pods",
        {
            "metadata": {
                "name": "p",
                "namespace": NAMESPACE,
                "ownerReferences": [{"uid": uid(api, "a")}],
            }
        },
    )
    async with a_watcher(api, client, resync_s=0.02) as watcher:
        await client.delete(JOBS, NAMESPACE, "a", propagation="Foreground")
        watcher.view.drop("a")
        await eventually(lambda: api.all("jobs") == [])
        api.put("jobs", job("b"))
        await eventually(lambda: watcher.names == ["b"])
        assert watcher.taken == set()


@with_a_cluster
async def test_a_deleted_object_stays_hidden_while_it_terminates(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.put("jobs", job("a"))
    async with a_watcher(api, client, resync_s=0.02) as watcher:
        watcher.view.drop("a")
        listed = lists(api)
        await eventually(lambda: lists(api) > listed + 2)
        api.change(
            "jobs", NAMESPACE, "a", lambda obj: obj["metadata"].update(deletionTimestamp="now")
        )
        api.put("jobs", job("b"))
        await eventually(lambda: watcher.names == ["b"])


@with_a_cluster
async def test_the_state_of_a_restored_server_is_accepted(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.version = 5000
    api.put("jobs", job("a"))
    async with a_watcher(api, client, timing=QUICK) as watcher:
        await api.stop()
        await eventually(lambda: bool(watcher.reflector.trouble))
        lower = FakeApi()
        lower._port = api._port
        lower.put("jobs", job("a") | {"spec": {"from": "backup"}})
        async with lower:
            await eventually(lambda: watcher.view.objects["a"]["spec"] == {"from": "backup"})


@dataclass(frozen=True)
class Step:
    what: str
    name: str = ""
    count: int = 1


NAMES = st.sampled_from(["a", "b"])
STEPS = st.one_of(
    st.builds(
        Step,
        st.sampled_from(
            ["create", "change", "remove", "replace", "relabel", "our create", "our delete"]
        ),
        NAMES,
    ),
    st.builds(
        Step,
        st.sampled_from(
            ["drop", "compact", "compact, by status", "bookmark", "restart", "rest", "turn"]
        ),
    ),
    st.builds(Step, st.sampled_from(["quiet", "speak", "late", "in time"])),
    st.builds(Step, st.sampled_from(["lose", "refuse", "overload"]), count=st.integers(1, 3)),
)


async def take(step: Step, api: FakeApi, client: KubernetesClient, watcher: Watcher) -> None:
    name, there = step.name, api.find("jobs", NAMESPACE, step.name) is not None
    match step.what:
        case "create" if not there:
            api.put("jobs", job(name))
        case "change" if there:
            api.change("jobs", NAMESPACE, name, touch)
        case "remove":
            api.remove("jobs", NAMESPACE, name)
        case "replace" if there:
            api.remove("jobs", NAMESPACE, name)
            api.put("jobs", job(name))
        case "relabel" if there:
            labels = api.get("jobs", NAMESPACE, name)["metadata"]["labels"]
            new = OURS if labels != OURS else {"app": "other"}
            api.change("jobs", NAMESPACE, name, lambda obj: obj["metadata"].update(labels=new))
        case "our create" if not there:
            with suppress(Unreachable, ApiError):
                watcher.reflector.put(await client.create(JOBS, NAMESPACE, job(name)))
        case "our delete" if name in watcher.view.objects:
            (mine,) = uids([watcher.view.objects[name]])
            with suppress(Unreachable, ApiError):
                await client.delete(JOBS, NAMESPACE, name, uid=mine)
                if name in watcher.view.objects and uids([watcher.view.objects[name]]) == {mine}:
                    watcher.dropped.add(mine)
                    watcher.view.drop(name)
        case "quiet" | "speak":
            api.quiet = step.what == "quiet"
        case "late" | "in time":
            api.late = step.what == "late"
        case "drop":
            api.drop_connections()
        case "compact" | "compact, by status":
            api.gone_as = "status" if "status" in step.what else "event"
            api.compact()
        case "bookmark":
            api.bookmark()
        case "restart":
            await api.stop()
            await api.start()
        case "rest":
            await asyncio.sleep(0.01)
        case "turn":
            await asyncio.sleep(0)
        case "lose":
            api.lose_events(step.count)
        case "refuse":
            api.answer(503, times=step.count, method="GET")
        case "overload":
            api.answer(429, times=step.count, retry_after_s=0)


async def play(steps: list[Step], api: FakeApi, client: KubernetesClient) -> None:
    # Events that were lost come back with the next full list; all else has to do without.
    resync_s = 0.15 if any(step.what == "lose" for step in steps) else 600.0
    # gone, and back again: there is no telling
    relabeled = any(step.what == "relabel" for step in steps)
    async with a_watcher(api, client, resync_s=resync_s, timing=QUICK) as watcher:
        if not relabeled:
            watcher.there = lambda: uids(api.all("jobs"))
        for step in steps:
            await take(step, api, client, watcher)
        api.lose_events(-api._lose)
        api._answers.clear()
        api.quiet = api.late = False

        def truth() -> dict[str, Raw]:
            return {
                obj["metadata"]["name"]: obj
                for obj in api.all("jobs")
                if obj["metadata"]["labels"] == OURS
            }

        await eventually(lambda: watcher.view.objects == truth() and not watcher.reflector.trouble)
        assert watcher.untrue == []
        assert watcher.seen - uids(watcher.view.objects.values()) <= watcher.taken | watcher.dropped


def test_after_any_failure_the_cache_equals_the_server_and_every_deletion_was_reported() -> None:
    with asyncio.Runner() as runner:
        opened = AsyncExitStack()
        api = runner.run(opened.enter_async_context(FakeApi()))
        client = runner.run(opened.enter_async_context(api.client()))

        @settings(max_examples=150, deadline=None)
        @given(st.lists(STEPS, min_size=1, max_size=25))
        def check(steps: list[Step]) -> None:
            for left in api.all("jobs"):
                api.remove("jobs", NAMESPACE, left["metadata"]["name"])
            runner.run(play(steps, api, client))

        try:
            check()
        finally:
            runner.run(opened.aclose())
