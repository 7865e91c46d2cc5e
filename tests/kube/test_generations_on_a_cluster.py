"""Population based training on a (fake) cluster: which Jobs copy
which checkpoint, and what if they cannot.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kubelet import Script

PBT = {
    "algorithm: {name: random, seed: 1}": "algorithm: {name: pbt, seed: 1, settings: {population: "
    "3}}",
    "budget: {trials: 3}": "budget: {trials: 8}\n  parallelism: 2",
}


def written(folder: Path, *, trial: str = "") -> None:
    text = experiment(trial=trial)
    for old, new in PBT.items():
        assert old in text
        text = text.replace(old, new)
    (folder / "x.yaml").write_text(text)


def played(folder: Path) -> tuple[dict[int, dict[str, Any]], dict[int, Any]]:
    """Run the experiment to its end.

    Return the pod that each Job asked for, and the trials, by number.
    """
    asked: dict[int, dict[str, Any]] = {}

    def script(job: dict[str, Any]) -> Script:
        number = int(job["metadata"]["labels"]["tuner.dev/trial"])
        asked[number] = job["spec"]["template"]["spec"]
        return Script(lines=(f"score=0.{number}",), seconds=0.05)

    async def go() -> dict[int, Any]:
        async with FakeApi() as api:
            api.kubelet.play(script)
            done = await ended(start(folder, api.kubeconfig(), "run", "x.yaml"))
            assert done.code == 0, done.err
            shown = await tuner(api, folder, "get", "trials", "tiny", "-o", "json")
            assert shown.code == 0, shown.err
            return {trial["number"]: trial for trial in json.loads(shown.out)}

    return asked, asyncio.run(go())


def test_the_job_of_a_child_copies_its_parents_folder_on_the_claim(tmp_path: Path) -> None:
    written(tmp_path, trial="checkpoints: {claim: kept}")
    asked, trials = played(tmp_path)
    assert len(trials) == len(asked) == 8
    for number, trial in trials.items():
        parent = trial.get("parent")
        assert (parent is None) == (number < 3)
        if parent is None:
            assert "initContainers" not in asked[number]
        else:
            (copier,) = asked[number]["initContainers"]
            assert copier["command"][4:6] == [
                f"/tuner/checkpoints/{parent}",
                f"/tuner/checkpoints/{number}",
            ]
            (mount,) = copier["volumeMounts"]
            own = next(
                m
                for m in asked[number]["containers"][0]["volumeMounts"]
                if m["name"] == mount["name"]
            )
            assert own["subPath"] == f"{mount['subPath']}/{number}"


def test_without_a_claim_children_start_over_which_is_said_before(tmp_path: Path) -> None:
    written(tmp_path)
    asked, trials = played(tmp_path)
    assert any("parent" in trial for trial in trials.values())
    assert not any("initContainers" in pod for pod in asked.values())
