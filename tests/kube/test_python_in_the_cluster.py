"""`tuner.minimize(…, runtime="cluster")`: a function of this machine, whose search the cluster's
controller runs.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tuner
from suggest.errors import NotFound
from tests.kube.fake_api import Raw
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE
from tests.kube.test_cluster_commands import FILE, Terminal, at_a_terminal
from tests.kube.test_trial_files import container_run

X = {"x": tuner.Float(-5, 5)}
IMAGE = "python:3.11-slim"
RUNS_ON = Script(lines=("tuner.step=0 tuner.value=0.5",), seconds=600)


def objective(trial: tuner.Trial) -> float:
    return float((trial["x"] - 2) ** 2)


def broken(trial: tuner.Trial) -> float:
    raise ValueError("a mistake in the objective")


# As in a script: sent by value, because no pod has this module.
objective.__module__ = broken.__module__ = "__main__"


def runs_functions(terminal: Terminal) -> None:
    """Let each pod run its command among the files that it mounts."""
    folder = terminal.installed.state.root.parent

    def script(job: Raw) -> Script:
        return container_run(terminal.installed.api, job, folder / job["metadata"]["name"])

    terminal.installed.api.kubelet.play(script)


async def minimized(function: Callable[[tuner.Trial], float], **options: Any) -> tuner.Study:
    given = {"trials": 3, "name": "parabola", "image": IMAGE, "progress": False}
    given |= {"spec": {"canary": "0s"}, **options}
    call = partial(tuner.minimize, function, X, runtime="cluster", context="lab", **given)
    return await asyncio.to_thread(call)


@at_a_terminal()
async def test_a_function_is_searched_by_the_controller(terminal: Terminal) -> None:
    runs_functions(terminal)
    study = await minimized(objective)
    results = await asyncio.to_thread(study.results)
    assert isinstance(study, tuner.Study)
    assert [result.state for result in results] == ["succeeded"] * 3
    assert all(result.value == objective(result.parameters) for result in results)  # type: ignore[arg-type]
    best = await asyncio.to_thread(lambda: study.best)
    assert best == min(results, key=lambda result: result.value or 0.0)
    assert "tuner.value=" in await asyncio.to_thread(study.log, 0)


@at_a_terminal()
async def test_nothing_of_the_search_is_on_this_machine(terminal: Terminal) -> None:
    runs_functions(terminal)
    folder = terminal.installed.state.root.parent / "of-the-person"
    os.environ["TUNER_STATE_DIR"] = str(folder)
    try:
        await minimized(objective)
    finally:
        del os.environ["TUNER_STATE_DIR"]
    assert not folder.exists()


@at_a_terminal()
async def test_the_same_call_returns_the_finished_search(terminal: Terminal) -> None:
    runs_functions(terminal)
    first = await minimized(objective)
    before = terminal.installed.api.get("experiments", NAMESPACE, "parabola")
    again = await minimized(objective)
    assert await asyncio.to_thread(first.results) == await asyncio.to_thread(again.results)
    after = terminal.installed.api.get("experiments", NAMESPACE, "parabola")
    assert after["metadata"]["generation"] == before["metadata"]["generation"]
    more = await minimized(objective, trials=5)
    assert len(await asyncio.to_thread(more.results)) == 5


@at_a_terminal()
async def test_a_paused_search_raises_and_goes_on_with_a_corrected_function(
    terminal: Terminal,
) -> None:
    runs_functions(terminal)
    with pytest.raises(tuner.SearchFailed) as failed:
        await minimized(broken)
    assert "ValueError: a mistake in the objective" in str(failed.value)
    assert f"tuner resume parabola --namespace {NAMESPACE} --context lab" in str(failed.value)
    study = await minimized(objective)
    states = {result.state for result in await asyncio.to_thread(study.results)}
    assert states == {"succeeded"}


@at_a_terminal()
async def test_a_search_of_the_cluster_is_changed_like_one_of_this_machine(
    terminal: Terminal,
) -> None:
    runs_functions(terminal)
    await minimized(objective)
    study = await asyncio.to_thread(tuner.open, "parabola", context="lab")
    extended = await asyncio.to_thread(partial(study.extend, 1, progress=False))
    assert len(await asyncio.to_thread(extended.results)) == 4
    terminal.installed.api.kubelet.play(lambda _job: RUNS_ON)
    extending = asyncio.create_task(asyncio.to_thread(partial(study.extend, 1, progress=False)))
    await terminal.installed.until(lambda: terminal.installed.status("parabola")["running"] == 1)
    await asyncio.to_thread(study.set, trials=7)
    assert terminal.installed.api.get("experiments", NAMESPACE, "parabola")["spec"]["budget"] == {
        "trials": 7
    }
    await asyncio.to_thread(study.stop)
    await extending
    assert await asyncio.to_thread(lambda: study.state) == "stopped"
    runs_functions(terminal)
    resumed = await asyncio.to_thread(partial(study.resume, progress=False))
    assert await asyncio.to_thread(lambda: resumed.state) == "succeeded"
    await asyncio.to_thread(study.delete)
    with pytest.raises(NotFound):
        await asyncio.to_thread(study.results)


@at_a_terminal()
async def test_a_file_is_run_from_python_with_its_files(terminal: Terminal) -> None:
    folder = terminal.installed.state.root.parent
    (folder / "train.py").write_text("")
    file = folder / "experiment.yaml"
    file.write_text(FILE.replace("command:", "files: [train.py], command:"))
    call = partial(tuner.run, file, runtime="cluster", context="lab", progress=False)
    study = await asyncio.to_thread(call)
    assert len(await asyncio.to_thread(study.results)) == 3
    assert len(terminal.installed.api.all("configmaps", NAMESPACE)) == 1


@at_a_terminal()
async def test_the_program_of_the_docs_runs_in_the_cluster(terminal: Terminal) -> None:
    runs_functions(terminal)
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    definition = blocks[0].partition("\nstudy = ")[0]
    (shown,) = (block for block in blocks if 'runtime="cluster"' in block)
    program = f"{definition}\n{shown}".replace("team-a", NAMESPACE)
    program = program.replace("trials=20", "trials=2, progress=False")
    names: dict[str, object] = {"__name__": "__main__"}
    await asyncio.to_thread(exec, program, names)
    assert terminal.installed.status("parabola")["done"] == "2/2"


# A script

SCRIPT = """
import tuner

def objective(trial):
    return (trial["x"] - 2) ** 2

study = tuner.minimize(
    objective, {"x": tuner.Float(-5, 5)}, trials=2, parallelism=2, name="parabola",
    runtime="cluster", context="lab", image="python:3.11-slim", spec={"canary": "0s"},
)
print(len(study.results()))
"""


async def started(terminal: Terminal) -> asyncio.subprocess.Process:
    """Start the script, and return when its trials run."""
    folder = terminal.installed.state.root.parent
    (folder / "script.py").write_text(SCRIPT)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(folder / "script.py"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "TUNER_STATE_DIR": str(folder / "none")},
    )
    # It prints its first line when it follows the search.
    assert process.stderr is not None
    assert b"parabola: " in await process.stderr.readline()
    await terminal.installed.until(
        lambda: terminal.installed.status("parabola").get("running") == 2
    )
    return process


@at_a_terminal(RUNS_ON)
async def test_a_script_that_was_killed_follows_the_same_search(terminal: Terminal) -> None:
    process = await started(terminal)
    process.kill()
    await process.wait()
    before = {job["metadata"]["uid"] for job in terminal.installed.jobs}
    again = await started(terminal)
    assert {job["metadata"]["uid"] for job in terminal.installed.jobs} == before
    assert len(terminal.installed.api.all("experiments")) == 1
    kubelet = terminal.installed.api.kubelet
    for pod in terminal.installed.api.all("pods", NAMESPACE):
        name = pod["metadata"]["name"]
        kubelet.print((NAMESPACE, name), "tuner.step=0 tuner.value=0.5")
        kubelet.end((NAMESPACE, name))
        kubelet.finish_job(NAMESPACE, pod["metadata"]["labels"]["job-name"])
    out, err = await again.communicate()
    assert (again.returncode, out) == (0, b"2\n"), err.decode()


@at_a_terminal(RUNS_ON)
async def test_an_interrupted_script_says_that_the_search_goes_on(terminal: Terminal) -> None:
    process = await started(terminal)
    process.send_signal(signal.SIGINT)
    _, err = await process.communicate()
    where = f"--namespace {NAMESPACE} --context lab"
    assert "parabola goes on in the cluster" in err.decode()
    assert f"Stop it: tuner stop parabola {where}" in err.decode()
    assert len(terminal.installed.jobs) == 2


# What cannot be searched


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": None}, "name: is missing"),
        ({"image": None}, "image: is missing; a trial on a cluster needs the image"),
        ({"callbacks": [print]}, 'callbacks: not with runtime="cluster"'),
        ({"import_from": "runs.csv"}, 'import_from: not with runtime="cluster"'),
        ({"state_dir": "here"}, 'state_dir: not with runtime="cluster"'),
        ({"spec": {"trial": {"files": ["none.py"]}}}, "'none.py' is not a file in"),
    ],
    ids=["name", "image", "callbacks", "import_from", "state_dir", "files"],
)
def test_what_the_cluster_cannot_have_is_refused_before(
    options: dict[str, object], message: str, tmp_path: Path
) -> None:
    @at_a_terminal()
    async def claim(terminal: Terminal) -> None:
        with pytest.raises(tuner.TunerError) as refused:
            await minimized(objective, **options)
        assert message in str(refused.value)
        assert terminal.installed.api.all("experiments") == []

    claim(tmp_path)


@at_a_terminal()
async def test_a_function_with_much_data_is_refused(terminal: Terminal) -> None:
    data = os.urandom(2 << 20)

    def heavy(trial: tuner.Trial) -> float:
        return len(data) + float(trial["x"])

    heavy.__module__ = "__main__"
    with pytest.raises(tuner.TunerError) as refused:
        await minimized(heavy)
    assert "the objective is sent with the variables that it uses" in str(refused.value)
    assert terminal.installed.api.all("experiments") == []


@at_a_terminal()
async def test_an_unknown_search_is_not_found(terminal: Terminal) -> None:
    with pytest.raises(NotFound):
        await asyncio.to_thread(tuner.open, "nothing", context="lab")
