"""`tuner top` of an experiment on a cluster: its namespace's quotas, or why they are unknown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from controller.app.state_directory import StateDirectory
from controller.core.model import Experiment, Revision
from controller.experiment_store import SqlExperimentStore, sqlite_database
from controller.spec import from_document, read
from tests.kube.console import CommandResult, experiment, tuner
from tests.kube.fake_api import FakeApi
from tests.unit.builders import START


def known(folder: Path) -> None:
    """Return an admitted experiment whose controller has not created anything yet."""
    home = StateDirectory(folder / "state")
    home.make()
    text = experiment(trial="resources: {gpu: 1}")
    spec = read(text, source="x.yaml").spec
    store = SqlExperimentStore(sqlite_database(home.controller_db), from_document)
    study = "namespaces/user1/studies/tiny-aaaaa"
    store.create_experiment(
        Experiment("a" * 16, spec, 1, "/work", study, context="fake"),
        Revision(1, spec, text, START),
    )
    store.close()


def ask(folder: Path, prepare: Callable[[FakeApi], object]) -> CommandResult:
    known(folder)

    async def go() -> CommandResult:
        async with FakeApi() as api:
            prepare(api)
            return await tuner(api, folder, "top", "tiny")

    return asyncio.run(go())


def quota(api: FakeApi) -> None:
    hard = {
        "requests.nvidia.com/gpu": "8",
        "pods": "9",
        "requests.cpu": "16",
        "limits.memory": "64Gi",
    }
    amounts = {"hard": hard, "used": {"requests.nvidia.com/gpu": "6", "requests.cpu": "4500m"}}
    api.put(
        "resourcequotas", {"metadata": {"name": "gpus", "namespace": "user1"}, "status": amounts}
    )


@pytest.mark.parametrize(
    ("prepare", "said"),
    [
        (quota, "6 of 8 nvidia.com/gpu used (quota gpus); this experiment holds 0"),
        (lambda api: None, "no quota limits them; this experiment holds 0"),
        (
            lambda api: api.forbid("list", "resourcequotas"),
            "unknown, resourcequotas is forbidden: User",
        ),
    ],
)
def test_top_shows_used_and_allowed_gpus(
    tmp_path: Path, prepare: Callable[[FakeApi], object], said: str
) -> None:
    answer = ask(tmp_path, prepare)
    assert (answer.code, answer.err) == (0, "")
    head, gpus, *_, running = answer.out.splitlines()
    assert (head, running) == ("tiny  running (no controller)  no trials yet of 3", "nothing runs")
    assert gpus.startswith(f"GPUs in user1: {said}")


def test_top_shows_quotas_of_cpu_and_memory_too(tmp_path: Path) -> None:
    others = "4500m of 16 cpu used (quota gpus), 0 of 64Gi limits.memory used (quota gpus)"
    assert f"CPU and memory in user1: {others}\n" in ask(tmp_path, quota).out
