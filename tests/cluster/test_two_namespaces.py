"""Shared quotas: two namespaces with quotas of 18 and 6 CPUs,
and two experiments in one namespace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.api import CORE, Object, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import pods, quota
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

ROOM = {"wide": 18, "narrow": 6}


class UsageWatch:
    """Every value that a namespace's quota has shown as used, recorded by a watch."""

    def __init__(self, cluster: ControlPlane, namespace: str, what: str = "requests.cpu") -> None:
        self.seen: list[int] = []
        self._what = what
        self._cluster, self._namespace = cluster, namespace
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join(timeout=10)

    def _watch(self) -> None:
        path = f"{CORE}/namespaces/{self._namespace}/resourcequotas"
        while not self._over.is_set():
            with suppress(OSError, RequestRefused):
                for event in self._cluster.api().watch(path, seconds=5):
                    self._note(event["object"])

    def _note(self, found: Object) -> None:
        used = found.get("status", {}).get("used", {}).get(self._what)
        if used is not None:
            self.seen.append(int(used))


@contextmanager
def two(
    cluster: ControlPlane, wide: str, what: str, room: Mapping[str, int]
) -> Iterator[dict[str, str]]:
    """Create the namespace `wide` and another one, each with a quota."""
    api = cluster.api()
    names = {"wide": wide, "narrow": f"{wide}-narrow"}
    api.post(f"{CORE}/namespaces", {"metadata": {"name": names["narrow"]}})
    api.until(f"{CORE}/namespaces/{names['narrow']}/serviceaccounts/default", bool)
    for which, name in names.items():
        api.post(
            f"{CORE}/namespaces/{name}/resourcequotas", quota("room", **{what: str(room[which])})
        )
        api.until(
            f"{CORE}/namespaces/{name}/resourcequotas/room",
            lambda found: found.get("status", {}).get("hard"),
        )
    yield names
    api.delete(f"{CORE}/namespaces/{names['narrow']}")


@pytest.fixture
def namespaces(level_b: ControlPlane, namespace: str) -> Iterator[dict[str, str]]:
    with two(level_b, namespace, "requests.cpu", ROOM) as names:
        yield names


def one_cpu(path: Path) -> Path:
    path.write_text(path.read_text().replace("resources: {gpu: 1}", "resources: {cpu: 1}"))
    return path


def test_two_namespaces_run_experiments_at_once_and_neither_exceeds_its_quota(
    level_b: ControlPlane, namespaces: dict[str, str], tmp_path: Path
) -> None:
    people, watches, running = [], [], {}
    for which, name in namespaces.items():
        folder = tmp_path / which
        folder.mkdir()
        people.append(Searcher(folder, level_b.kubeconfig(namespace=name), name))
        watches.append(UsageWatch(level_b, name))
    try:
        began_s, took_s = time.monotonic(), {}
        for which, me in zip(namespaces, people, strict=True):
            path = one_cpu(me.file(trials=24, spec="  parallelism: 24\n", env={"KWOK_RUN": "5s"}))
            running[which] = me.start("run", path)
        for which in ("wide", "narrow"):  # the pipes of the other are large enough for its output
            _, err = running[which].communicate(timeout=150)
            assert running[which].returncode == 0, err
            took_s[which] = time.monotonic() - began_s
        for which, me, watch in zip(namespaces, people, watches, strict=True):
            assert me.states() == {"succeeded": 24}
            assert all(len(trial["attempts"]) == 1 for trial in me.trials())
            assert max(watch.seen) <= ROOM[which], watch.seen
        wide, narrow = watches
        assert max(narrow.seen) == ROOM["narrow"], "all of it was used"
        assert max(wide.seen) > ROOM["narrow"]
        print(f"wall times: {took_s}")
    finally:
        for each in (*people, *watches):
            each.close()


def test_two_namespaces_with_real_containers_do_not_exceed_their_quotas(
    level_c: RealNode, namespace: str, tmp_path: Path
) -> None:
    images.digits()
    level_c.load(images.DIGITS)
    room = {"wide": 3, "narrow": 1}
    with two(level_c, namespace, "pods", room) as names:
        people = []
        watches = [UsageWatch(level_c, name, "pods") for name in names.values()]
        try:
            for name in names.values():
                folder = tmp_path / name
                folder.mkdir()
                people.append(Searcher(folder, level_c.kubeconfig(namespace=name), name))
            running = [me.start("run", sleeping(me)) for me in people]
            for process, me, watch, most in zip(
                running, people, watches, room.values(), strict=True
            ):
                _, err = process.communicate(timeout=150)
                assert process.returncode == 0, err
                assert me.states() == {"succeeded": 9}
                assert max(watch.seen) >= most, watch.seen
                # The status of the quota has once counted one pod too many, for one update. The
                # cause is unknown: admission by the API server allows no such pod, so its recount
                # from a cache is suspected.
                assert max(min(pair) for pair in pairwise(watch.seen)) <= most, watch.seen
        finally:
            for each in (*people, *watches):
                each.close()


def sleeping(me: Searcher) -> Path:
    path = me.file(trials=9, spec="  parallelism: 4\n")
    text = path.read_text().replace(
        "image: tiny:1", f"image: {images.DIGITS}\n    imagePullPolicy: Never"
    )
    command = '[sh, -c, "sleep 1; echo score=${x}"]'
    text = text.replace('[python, train.py, "--x=${x}"]', command).replace(
        "{gpu: 1}", "{cpu: 400m}"
    )
    path.write_text(text)
    return path


def test_an_experiment_that_starts_later_gets_room_in_a_full_namespace(
    level_b: ControlPlane, namespaces: dict[str, str], tmp_path: Path
) -> None:
    name = namespaces["narrow"]
    me = Searcher(tmp_path, level_b.kubeconfig(namespace=name), name)
    try:
        played = {"KWOK_RUN": "3s"}
        paths = [
            one_cpu(me.file(name=each, trials=24, spec="  parallelism: 24\n", env=played))
            for each in ("one", "two")
        ]
        first = me.start("run", paths[0])
        eventually(lambda: alive(level_b, name)[0] == ROOM["narrow"], within_s=60)
        second = me.start("run", paths[1])
        shares: list[tuple[int, int]] = []
        while all(process.poll() is None for process in (first, second)):
            shares.append(alive(level_b, name))
            time.sleep(0.2)
        for process in (first, second):
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
        assert sum(two for _, two in shares) / len(shares) >= 1, f"the second one starved: {shares}"
        assert [me.states(each) for each in ("one", "two")] == [{"succeeded": 24}] * 2
    finally:
        me.close()


def alive(cluster: ControlPlane, namespace: str) -> tuple[int, int]:
    """Return the pods of both that have not ended: pods take room,
    while a Job may still wait for its own.
    """
    counts = {"one": 0, "two": 0}
    for pod in cluster.api().items(pods(namespace)):
        if pod["status"].get("phase") not in ("Succeeded", "Failed"):
            counts[pod["metadata"]["labels"]["tuner.dev/experiment"]] += 1
    return counts["one"], counts["two"]
