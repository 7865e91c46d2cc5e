"""The page of `tuner ui` while a search runs on a real control plane,
with the rights of deploy/rbac.yaml only.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.controlplane import ControlPlane
from tests.cluster.objects import quota
from tests.cluster.searcher import Searcher
from tests.cluster.tenant import role_without, tenant
from tests.cluster.waiting import eventually
from tests.ui.page import served, signed_in

LONG = {"KWOK_RUN": "600s"}


@pytest.fixture
def me(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    level_b.api().post(f"/api/v1/namespaces/{namespace}/resourcequotas", quota("gpus", gpus="2"))
    person = Searcher(tmp_path, tenant(level_b, namespace), namespace)
    yield person
    person.close()


def first_event(client: Any, path: str) -> dict[str, Any]:
    with client.stream("GET", path) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: "):
                data: dict[str, Any] = json.loads(line.removeprefix("data: "))
                return data
    raise AssertionError("the stream ended")


def test_the_queue_shows_the_quota_of_the_namespace_and_why_trials_wait(me: Searcher) -> None:
    me.start("run", me.file(trials=4, spec="  parallelism: 4\n", env=LONG))
    with served(me) as page:
        client = signed_in(page)

        def queue() -> dict[str, Any]:
            found = first_event(client, "/api/queue")["namespaces"]
            return found[0] if found else {"trials": [], "quotas": []}

        def in_state(state: str) -> list[dict[str, Any]]:
            return [trial for trial in queue()["trials"] if trial["state"] == state]

        eventually(
            lambda: len(in_state("running")) == 2 and len(in_state("queued")) == 2,
            within_s=180,
            shows=queue,
        )
        assert all(trial["node"].startswith("fake-") for trial in in_state("running"))
        reasons = {trial["reason"] for trial in in_state("queued")}
        assert all("requests.nvidia.com/gpu" in reason for reason in reasons), reasons
        # The page reads quotas every ten seconds.
        used = {"resource": "nvidia.com/gpu", "used": "2", "allowed": "2", "quota": "gpus"}
        eventually(lambda: queue()["quotas"] == [used], within_s=180, shows=queue)

        summary = first_event(client, f"/api/experiments/{me.namespace}/tiny/stream")["summary"]
        assert {reason for _, reason in summary["waiting"]} == reasons
        waiting = in_state("queued")[0]["number"]
        trial = client.get(f"/api/experiments/{me.namespace}/tiny/trials/{waiting}").json()
        assert "requests.nvidia.com/gpu" in trial["why"]


def test_without_the_right_to_read_quotas_the_queue_says_so(
    level_b: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    person = Searcher(tmp_path, level_b.kubeconfig(namespace=namespace), namespace)
    try:
        person.start("run", person.file(trials=1, env=LONG))
        eventually(lambda: person.states().get("running") == 1, within_s=180)
        blind = tenant(level_b, namespace, role_without(namespace, "resourcequotas", "list"))
        person.env["KUBECONFIG"] = str(blind)
        with served(person) as page:
            (found,) = first_event(signed_in(page), "/api/queue")["namespaces"]
            assert (found["quotas"], len(found["trials"])) == ([], 1)
            assert "resourcequotas" in found["quotaTrouble"]
    finally:
        person.close()
