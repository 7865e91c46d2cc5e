"""Files of this machine reach trials on a cluster: `spec.trial.files`,
and the function of `tuner.minimize`.
"""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import yaml

import tuner as python_api
from controller.runtime.trial_files import MOST_BYTES
from tests.kube.console import CommandResult, ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi, Raw, kubeconfig_of
from tests.kube.fake_kubelet import Script

FILES = "files: [train.py, lib/net.py]"


def materialized(api: FakeApi, job: Raw, folder: Path) -> Path:
    """Write the files that a Job's pod sees below `folder`, as the kubelet would,
    and return their directory.
    """
    spec = job["spec"]["template"]["spec"]
    (volume,) = (each["configMap"] for each in spec["volumes"] if each["name"] == "tuner-files")
    data = api.get("configmaps", "user1", volume["name"])["binaryData"]
    for item in volume["items"]:
        file = folder / item["path"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(data[item["key"]]))
    return folder


def sent(api: FakeApi) -> list[Raw]:
    return [
        each for each in api.all("configmaps", "user1") if "-files-" in each["metadata"]["name"]
    ]


async def typed(api: FakeApi, folder: Path, *words: str) -> None:
    """Run `tuner` as a process, which must succeed."""
    done = await ended(start(folder, api.kubeconfig(), *words))
    assert done.code == 0, done.err


def searched(folder: Path, *words: str, text: str = "") -> tuple[CommandResult, FakeApi]:
    (folder / "x.yaml").write_text(text or experiment(trial=FILES))
    (folder / "train.py").write_text("print('one')")
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "net.py").write_bytes(b"\x00 of any content")

    async def go() -> tuple[CommandResult, FakeApi]:
        async with FakeApi() as api:
            api.kubelet.play(lambda job: Script(lines=("score=1",)))
            return await tuner(api, folder, *words), api

    return asyncio.run(go())


def test_all_trials_mount_one_config_map_and_start_among_the_files(tmp_path: Path) -> None:
    seen: list[bytes] = []
    (tmp_path / "x.yaml").write_text(experiment(trial=FILES))
    (tmp_path / "train.py").write_text("first")
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "net.py").write_bytes(b"\x00")

    async def go() -> None:
        async with FakeApi() as api:

            def script(job: Raw) -> Script:
                container = job["spec"]["template"]["spec"]["containers"][0]
                assert container["workingDir"] == "/tuner/files"
                directory = materialized(api, job, tmp_path / job["metadata"]["name"])
                seen.append(
                    (directory / "train.py").read_bytes()
                    + (directory / "lib" / "net.py").read_bytes()
                )
                return Script(lines=("score=1",))

            api.kubelet.play(script)
            await typed(api, tmp_path, "run", "x.yaml")
            (config_map,) = sent(api)
            assert config_map["immutable"] is True
            posts = [(path, query) for method, path, query in api.requests if method == "POST"]
            created = [
                path
                for path, query in posts
                if path.endswith("/configmaps") and "dryRun" not in query
            ]
            assert len(created) == 2, "the anchor and the files, once"
            (tmp_path / "train.py").write_text("second")
            await typed(api, tmp_path, "extend", "tiny", "--trials", "+2")
            assert len(sent(api)) == 2, "the trials that exist keep the files that they have"
            await typed(api, tmp_path, "delete", "tiny", "--yes")
            assert not sent(api), "the garbage collector deletes them with their owner"

    asyncio.run(go())
    assert seen == [b"first\x00"] * 3 + [b"second\x00"] * 2


def test_a_missing_file_is_named_with_its_line(tmp_path: Path) -> None:
    answer, api = searched(
        tmp_path,
        "run",
        str(tmp_path / "x.yaml"),
        text=experiment(trial="files: [train.py, nett.py]"),
    )
    assert answer.code == 2
    assert "spec.trial.files[1]: 'nett.py' is not a file in" in answer.err
    assert not api.all("jobs", "user1")


def test_files_above_the_limit_of_a_config_map_are_refused(tmp_path: Path) -> None:
    (tmp_path / "weights.bin").write_bytes(bytes(MOST_BYTES + 1))
    answer, _ = searched(
        tmp_path,
        "validate",
        str(tmp_path / "x.yaml"),
        text=experiment(trial="files: [weights.bin]"),
    )
    assert answer.code == 2
    assert "spec.trial.files: the files have 1.0 MiB together" in answer.err
    assert "put large ones into the image or on a volume" in answer.err


@pytest.mark.parametrize("path", ["/etc/passwd", "../up.py", "a/../b.py", ".hidden"])
def test_a_path_outside_of_the_folder_is_refused(tmp_path: Path, path: str) -> None:
    answer, _ = searched(
        tmp_path, "validate", str(tmp_path / "x.yaml"), text=experiment(trial=f"files: [{path}]")
    )
    assert answer.code == 2
    assert "is not a path; use a path below the file's folder" in answer.err


def test_a_dry_run_shows_the_files(tmp_path: Path) -> None:
    answer, api = searched(tmp_path, "run", str(tmp_path / "x.yaml"), "--dry-run=client")
    kinds = [each["kind"] for each in yaml.safe_load_all(answer.out)]
    assert (answer.code, kinds, api.requests) == (0, ["ConfigMap", "Job", "Pod"], [])


# Functions


def container_run(api: FakeApi, job: Raw, folder: Path) -> Script:
    """Run the trial's command with its files, by an interpreter
    without any installed package, as a bare image has.
    """
    directory = materialized(api, job, folder)
    container = job["spec"]["template"]["spec"]["containers"][0]
    program, *arguments = container["command"]
    assert program == "python"
    env = {each["name"]: each["value"] for each in container["env"]}
    assert env["TUNER_OUTPUT_DIR"] == "/tuner/output"
    words = [word.replace("/tuner/files", str(directory)) for word in arguments]
    done = subprocess.run(
        [sys.executable, "-S", *words],
        check=False,
        cwd=directory,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return Script(lines=tuple(done.stdout.splitlines()), exit_code=done.returncode)


def test_a_function_runs_in_an_image_that_has_python_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shared_part.py").write_text("def square(x):\n    return x * x\n")
    offset = 2.0

    def objective(trial):  # type: ignore[no-untyped-def]
        import shared_part  # type: ignore[import-not-found]

        trial.report(0, loss=abs(trial["x"]))
        if trial.number == 1:
            raise python_api.Infeasible("of no use")
        return shared_part.square(trial["x"] - offset)

    objective.__module__ = "__main__"  # as in a script: sent by value

    async def go() -> python_api.Study:
        async with FakeApi() as api:
            api.kubelet.play(
                lambda job: container_run(api, job, tmp_path / job["metadata"]["name"])
            )
            with kubeconfig_of(api.kubeconfig()):
                return await asyncio.to_thread(
                    python_api.minimize,
                    objective,
                    {"x": python_api.Float(-5, 5)},
                    trials=4,
                    name="parabola",
                    runtime="kubernetes",
                    image="python:3.11-slim",
                    namespace="user1",
                    spec={"trial": {"files": ["shared_part.py"]}},
                    state_dir=tmp_path / "state",
                    progress=False,
                )

    study = asyncio.run(go())
    results = study.results()
    assert [result.state for result in results] == [
        "succeeded",
        "infeasible",
        "succeeded",
        "succeeded",
    ]
    assert all(
        result.value == (result.parameters["x"] - 2.0) ** 2
        for result in results
        if result.number != 1
    )
    assert results[1].reason == "of no use"


def test_the_program_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (definition,) = (block.partition("\nstudy = ")[0] for block in blocks[:1])
    (shown,) = (block for block in blocks if 'runtime="kubernetes"' in block)
    program = f"{definition}\n{shown}".replace("team-a", "user1").replace(
        "trials=20", "trials=2, progress=False"
    )
    monkeypatch.setenv("TUNER_STATE_DIR", str(tmp_path / "state"))
    names: dict[str, object] = {"__name__": "__main__"}

    limits: list[Raw] = []

    async def go() -> None:
        async with FakeApi() as api:

            def script(job: Raw) -> Script:
                limits.append(
                    job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]
                )
                return container_run(api, job, tmp_path / job["metadata"]["name"])

            api.kubelet.play(script)
            with kubeconfig_of(api.kubeconfig()):
                await asyncio.to_thread(exec, program, names)

    asyncio.run(go())
    assert limits == [{"nvidia.com/gpu": "1"}] * 2
    study = names["study"]
    assert isinstance(study, python_api.Study)
    assert study.state == "succeeded"


def test_a_function_of_another_version_of_python_says_which_image_it_needs(tmp_path: Path) -> None:
    import pickle

    from tuner.archive import archive

    packed = pickle.dumps({"objective": b"", "metric": "value", "path": [], "python": (3, 99)})
    (tmp_path / "objective.pyz").write_bytes(archive(packed))
    command = [sys.executable, "-S", "objective.pyz"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 1
    assert (
        done.stdout
        == f"the objective was pickled by Python 3.99, and this is Python {here}; use an image "
        f"with 3.99\n"
    )


def test_a_function_in_an_image_uses_processes_that_it_spawns(tmp_path: Path) -> None:
    import pickle

    import cloudpickle  # type: ignore[import-untyped]

    from tuner.archive import archive

    script: dict[str, object] = {"__name__": "__main__"}
    exec(
        """
import multiprocessing

def double(x):
    return 2 * x

def objective(trial):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(double, [trial["x"]])[0]
""",
        script,
    )
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")  # where the script's functions are looked up
    vars(sys.modules["__main__"]).update(script)
    try:
        objective = cloudpickle.dumps(script["objective"])
    finally:
        sys.modules["__main__"] = main
    packed = pickle.dumps(
        {"objective": objective, "objectives": ["value"], "path": [], "sources": {}}
    )
    (tmp_path / "objective.pyz").write_bytes(archive(packed))
    done = subprocess.run(
        [sys.executable, "-S", "objective.pyz"],
        cwd=tmp_path,
        env={"TUNER_PARAMETERS": '{"x": 4}', "TUNER_OUTPUT_DIR": "/tuner/output"},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout, done.stderr, done.returncode) == (
        "\ntuner.step=0 tuner.value=8.0\n",
        "",
        0,
    )
