"""A search of the cluster's controller is packed, also while it runs, and continues on a laptop."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import IO
from unittest import mock

import yaml  # type: ignore[import-untyped]

from controller.app import cluster_changes, pack
from controller.app.cluster_workspace import ClusterExperiments
from controller.app.local_experiments import LocalExperiments
from controller.core.model import Experiment, Uid, uid_of_resource
from controller.kube.objects import Raw
from controller.runtime.kubernetes.job_builder import files_object
from controller.runtime.trial_files import TrialFiles
from tests.kube.console import ended, start
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, SCORED, Installation, experiment
from tests.kube.test_cluster_commands import RUNS_ON, Terminal, at_a_terminal, finished, written
from tests.kube.test_files_in_the_cluster import WITH_FILES, folder_of
from tests.kube.test_katib_in_the_cluster import KatibInstallation, katib, on_katibs_cluster

DELETE_THERE = f"tuner delete tiny --namespace {NAMESPACE} --context lab"


class Laptop:
    """A machine of a person, with a state directory of its own and access to the cluster."""

    def __init__(self, installed: Installation) -> None:
        self.folder = installed.state.root.parent
        self.state = self.folder / "elsewhere"
        text = Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8")
        self._config = yaml.safe_load(text)

    async def fails(self, *words: str) -> tuple[int, str]:
        found = await ended(start(self.folder, self._config, *words, state="elsewhere"))
        return found.code, found.err

    async def tuner(self, *words: str) -> str:
        found = await ended(start(self.folder, self._config, *words, state="elsewhere"))
        assert found.code == 0, found.err
        return found.out + found.err

    async def attempts(self) -> list[tuple[int, int, str]]:
        """Return trial, attempt and state of all attempts, in order."""
        trials = json.loads(await self.tuner("get", "trials", "tiny", "-o", "json"))
        return [(each["number"], len(each["attempts"]), each["state"]) for each in trials]


async def packed(terminal: Terminal, name: str = "tiny") -> str:
    file = terminal.installed.state.root.parent / "tiny.tar.gz"
    found = await terminal.tuner("pack", name, "--to", str(file))
    assert found.code == 0, found.err
    return found.out + found.err


@at_a_terminal(RUNS_ON)
async def test_a_search_is_packed_while_it_runs_and_its_trials_run_again_elsewhere(
    terminal: Terminal,
) -> None:
    installed = terminal.installed
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    await packed(terminal)
    assert installed.status()["running"] == 2
    laptop = Laptop(installed)
    await laptop.tuner("unpack", "tiny.tar.gz")
    for words in (("resume", "tiny"), ("stop", "tiny"), ("delete", "tiny", "--yes")):
        code, err = await laptop.fails(*words)
        assert (code, "still has it" in err, DELETE_THERE in err) == (6, True, True), err
    assert len(installed.jobs) == 2
    installed.delete()
    await installed.until(lambda: not installed.jobs)
    installed.api.kubelet.play(lambda _job: SCORED)
    await laptop.tuner("resume", "tiny")
    assert await laptop.attempts() == [
        (0, 2, "succeeded"),
        (1, 2, "succeeded"),
        (2, 1, "succeeded"),
    ]


@at_a_terminal(RUNS_ON)
async def test_trials_continue_from_the_checkpoints_that_the_pack_lacks(terminal: Terminal) -> None:
    installed = terminal.installed

    def checkpoint_of(job: Raw) -> tuple[str, str]:
        """Return the claim of a Job's checkpoint, and the folder in it."""
        pod, name = job["spec"]["template"]["spec"], "tuner-checkpoints"
        (volume,) = (each for each in pod["volumes"] if each["name"] == name)
        mounts = pod["containers"][0]["volumeMounts"]
        (mount,) = (each for each in mounts if each["name"] == name)
        return volume["persistentVolumeClaim"]["claimName"], mount["subPath"]

    kept = {"image": "tiny:1", "command": ["train"], "checkpoints": {"claim": "kept"}}
    installed.apply(experiment(trial=kept))
    await installed.until(lambda: installed.status().get("running") == 1)
    (job,) = installed.jobs
    claim, path = checkpoint_of(job)
    place = f"in the folder {path.partition('/')[0]} of the claim {claim}, namespace {NAMESPACE}"
    assert f"checkpoints are not in the pack: they are {place}" in await packed(terminal)
    laptop = Laptop(installed)
    assert place in await laptop.tuner("unpack", "tiny.tar.gz")
    installed.delete()
    await installed.until(lambda: not installed.jobs)
    mounted: list[tuple[str, str]] = []

    def scored(job: Raw) -> Script:
        mounted.append(checkpoint_of(job))
        return SCORED

    installed.api.kubelet.play(scored)
    await laptop.tuner("resume", "tiny")
    assert mounted[0] == (claim, path)


@at_a_terminal(RUNS_ON)
async def test_an_unpacked_copy_is_deleted_without_harm_to_the_search(terminal: Terminal) -> None:
    installed = terminal.installed
    installed.apply(experiment(parallelism=2))
    await installed.until(lambda: installed.status().get("running") == 2)
    await packed(terminal)
    laptop = Laptop(installed)
    await laptop.tuner("unpack", "tiny.tar.gz")
    await laptop.tuner("delete", "tiny", "--yes", "--local-only")
    assert (len(installed.jobs), installed.status()["running"]) == (2, 2)


@at_a_terminal()
async def test_the_rows_of_both_stores_are_of_one_moment(terminal: Terminal) -> None:
    looked: list[int] = []
    newest_event = LocalExperiments.newest_event

    def outdated_at_first(experiments: LocalExperiments, uid: Uid) -> int:
        looked.append(newest_event(experiments, uid))
        return looked[-1] - (1 if len(looked) < 3 else 0)

    await finished(terminal)
    with mock.patch.object(LocalExperiments, "newest_event", outdated_at_first):
        await packed(terminal)
    assert len(looked) == 3
    target = terminal.installed.state.root.parent / "other.tar.gz"
    with mock.patch.object(LocalExperiments, "newest_event", return_value=-1):
        refused = await terminal.tuner("pack", "tiny", "--to", str(target))
    assert (refused.code, "changes all the time" in refused.err) == (7, True), refused.err


@at_a_terminal()
async def test_a_pack_has_the_files_that_were_sent_with_the_search(terminal: Terminal) -> None:
    folder = folder_of(terminal)
    applied = await terminal.tuner("apply", "-f", written(folder, WITH_FILES))
    assert applied.code == 0, applied.err
    await terminal.installed.until_state("succeeded")
    await packed(terminal)
    for path in ("train.py", "lib/net.py"):
        (folder / path).unlink()
    laptop = Laptop(terminal.installed)
    said = await laptop.tuner("unpack", "tiny.tar.gz")
    (place,) = laptop.state.glob("experiments/*/files")
    assert f"its trials get the files in {place}: lib/net.py, train.py" in said
    terminal.installed.delete()
    await terminal.installed.until(lambda: not terminal.installed.jobs)
    await laptop.tuner("extend", "tiny", "--trials", "+1")
    assert len(await laptop.attempts()) == 4
    # Once more, from there.
    await laptop.tuner("pack", "tiny", "--to", "again.tar.gz")
    await laptop.tuner("delete", "tiny", "--yes")
    await laptop.tuner("unpack", "again.tar.gz")
    assert (place / "lib" / "net.py").read_bytes() == b"\x00 of any content"


@at_a_terminal()
async def test_a_function_comes_with_its_search(terminal: Terminal) -> None:
    function = {"image": "tiny:1", "command": ["python", "/tuner/files/objective.pyz"]}
    sent = TrialFiles.of({"objective.pyz": b"a function"})
    files = {"files": [*sent.paths], "filesDigest": sent.digest}
    terminal.installed.apply(experiment(trial={**function, **files}))
    await terminal.installed.until_state("succeeded")
    lacking = await packed(terminal)
    assert "not in the pack: objective.pyz of spec.trial.files; take them along" in lacking
    assert "cannot be read" in lacking
    (terminal.installed.state.root.parent / "tiny.tar.gz").unlink()
    about = terminal.installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]
    uid = uid_of_resource(about["uid"])
    terminal.installed.api.put("configmaps", files_object(sent, NAMESPACE, "tiny", uid))
    assert "not in the pack" not in await packed(terminal)
    laptop = Laptop(terminal.installed)
    await laptop.tuner("unpack", "tiny.tar.gz")
    (function_file,) = laptop.state.glob("experiments/*/objective.pyz")
    assert function_file.read_bytes() == b"a function"
    terminal.installed.delete()
    await terminal.installed.until(lambda: not terminal.installed.jobs)
    await laptop.tuner("extend", "tiny", "--trials", "+1")
    assert len(await laptop.attempts()) == 4


@at_a_terminal()
async def test_files_of_another_revision_are_not_packed(terminal: Terminal) -> None:
    await terminal.tuner("apply", "-f", written(folder_of(terminal), WITH_FILES))
    await terminal.installed.until_state("succeeded")
    other = TrialFiles.of({"train.py": b"another", "lib/net.py": b"one"})

    async def files_of(*_: object) -> TrialFiles:
        return other

    target = terminal.installed.state.root.parent / "tiny.tar.gz"
    with mock.patch.object(cluster_changes, "files_of", files_of):
        refused = await terminal.tuner("pack", "tiny", "--to", str(target))
    assert (refused.code, "tiny has changed while it was packed" in refused.err) == (7, True)
    assert not list(target.parent.glob("*.tar.gz*"))


@at_a_terminal()
async def test_a_download_that_is_cut_anywhere_leaves_no_pack(terminal: Terminal) -> None:
    await finished(terminal)
    await packed(terminal)
    whole = (terminal.installed.state.root.parent / "tiny.tar.gz").stat().st_size
    download = ClusterExperiments.download
    target = terminal.installed.state.root.parent / "other.tar.gz"
    # The second one is where its manifest ends, which is an archive by itself.
    for kept in (20, len(pack._head({})), 0, whole // 2, whole - 300, whole - 30):

        def cut(
            experiments: ClusterExperiments, one: Experiment, file: IO[bytes], kept: int = kept
        ) -> None:
            download(experiments, one, file)
            file.truncate(kept)

        with mock.patch.object(ClusterExperiments, "download", cut):
            refused = await terminal.tuner("pack", "tiny", "--to", str(target))
        assert (refused.code, "broke off" in refused.err) == (7, True), (kept, refused.err)
        assert not list(target.parent.glob("*other.tar.gz*"))


@on_katibs_cluster()
async def test_an_experiment_of_katibs_continues_as_a_native_one(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib())
    await installed.until_last("Succeeded")
    await packed(Terminal(installed), "tiny.kubeflow.org")
    laptop = Laptop(installed)
    assert "tiny is unpacked: succeeded" in await laptop.tuner("unpack", "tiny.tar.gz")
    code, err = await laptop.fails("extend", "tiny", "--trials", "+1")
    assert (code, "tuner delete tiny.kubeflow.org --namespace user1" in err) == (6, True), err
    installed.delete()
    await installed.until(lambda: not installed.jobs)
    await laptop.tuner("extend", "tiny", "--trials", "+1")
    assert len(await laptop.attempts()) == 4
    assert "kubeflow" not in await laptop.tuner("describe", "tiny")
