"""A complete search with objects of an operator: `tuner run` with a FakeApi
and a simulated operator.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import yaml

from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi
from tests.kube.fake_operator import NAMESPACE, PLURAL, READING, TRAINING_JOB, FakeOperator
from tests.kube.small_cluster import eventually

Raw = dict[str, Any]


def search(**trial: Any) -> str:
    document = yaml.safe_load(experiment())
    document["spec"] |= {
        "budget": {"trials": 1},
        "trial": {"template": TRAINING_JOB, **READING, **trial},
    }
    return yaml.safe_dump(document)


def jobs(api: FakeApi) -> list[str]:
    return [job["metadata"]["name"] for job in api.all(PLURAL, NAMESPACE)]


def test_nothing_of_a_failed_attempt_runs_on_during_the_retry(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(search(retries={"infrastructure": 1}))

    async def go() -> None:
        async with FakeApi() as api:
            operator = FakeOperator(api)
            run = start(tmp_path, api.kubeconfig(namespace="user1"), "run", "x.yaml")
            await eventually(lambda: len(jobs(api)) == 1, within_s=30)
            (first,) = jobs(api)
            master, worker = operator.make_pods(first)
            api.kubelet.print(master, "score=0.1")
            api.remove("pods", NAMESPACE, master)
            operator.fail(first)
            await eventually(lambda: jobs(api) != [first], within_s=30)
            await eventually(lambda: len(jobs(api)) == 1, within_s=30)
            (second,) = jobs(api)
            assert second != first
            assert worker not in operator.running_pods()
            master, _ = operator.make_pods(second)
            api.kubelet.print(master, "score=0.9")
            api.kubelet.end(master)
            operator.succeed(second)
            done = await ended(run)
            assert done.code == 0, done.err
            best = json.loads((await tuner(api, tmp_path, "best", "tiny", "-o", "json")).out)
            assert best["value"] == 0.9
            assert operator.running_pods() == []

    asyncio.run(go())
