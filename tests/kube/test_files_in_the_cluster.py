"""The files of a person's machine reach trials of the cluster's controller: `tuner apply` sends
them.
"""

from __future__ import annotations

import base64
from pathlib import Path

from controller.core.model import uid_of_resource
from controller.runtime.trial_files import MOST_BYTES
from tests.kube.fake_api import Raw
from tests.kube.operated import NAMESPACE, experiment
from tests.kube.test_cluster_commands import FILE, RUNS_ON, Terminal, at_a_terminal, written

WITH_FILES = FILE.replace("command:", "files: [train.py, lib/net.py], command:")


def folder_of(terminal: Terminal) -> Path:
    """Return the folder of an experiment file with two further files."""
    folder = terminal.installed.state.root.parent
    (folder / "train.py").write_text("print('one')")
    (folder / "lib").mkdir(exist_ok=True)
    (folder / "lib" / "net.py").write_bytes(b"\x00 of any content")
    return folder


def sent(terminal: Terminal) -> list[Raw]:
    found: list[Raw] = terminal.installed.api.all("configmaps", NAMESPACE)
    return found


def seen_by(terminal: Terminal, job: Raw) -> dict[str, bytes]:
    """Return the files in the pod of a Job, by path, as the kubelet mounts them."""
    spec = job["spec"]["template"]["spec"]
    (volume,) = (each["configMap"] for each in spec["volumes"] if each["name"] == "tuner-files")
    (mount,) = (each for each in spec["containers"][0]["volumeMounts"] if "files" in each["name"])
    assert (mount["mountPath"], mount["readOnly"]) == ("/tuner/files", True)
    data = terminal.installed.api.get("configmaps", NAMESPACE, volume["name"])["binaryData"]
    return {item["path"]: base64.b64decode(data[item["key"]]) for item in volume["items"]}


@at_a_terminal(RUNS_ON)
async def test_the_files_of_an_applied_experiment_are_in_its_pods(terminal: Terminal) -> None:
    folder = folder_of(terminal)
    applied = await terminal.tuner("apply", "-f", written(folder, WITH_FILES))
    assert applied.code == 0, applied.err
    await terminal.installed.until(lambda: terminal.installed.jobs)
    (job,) = terminal.installed.jobs
    one = {"train.py": b"print('one')", "lib/net.py": b"\x00 of any content"}
    assert seen_by(terminal, job) == one


@at_a_terminal(RUNS_ON)
async def test_the_experiment_owns_its_files(terminal: Terminal) -> None:
    await terminal.tuner("apply", "-f", written(folder_of(terminal), WITH_FILES))
    (files,) = sent(terminal)
    (owner,) = files["metadata"]["ownerReferences"]
    about = terminal.installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]
    assert (owner["kind"], owner["uid"]) == ("Experiment", about["uid"])
    assert files["immutable"] is True
    assert files["metadata"]["labels"]["tuner.dev/uid"] == uid_of_resource(about["uid"])


@at_a_terminal(RUNS_ON)
async def test_a_changed_file_is_a_new_revision_for_later_trials(terminal: Terminal) -> None:
    folder = folder_of(terminal)
    file = written(folder, WITH_FILES)
    await terminal.tuner("apply", "-f", file)
    await terminal.installed.until(lambda: terminal.installed.jobs)
    (before,) = terminal.installed.jobs
    assert (await terminal.tuner("apply", "-f", file)).out.endswith("unchanged\n")
    (folder / "train.py").write_text("print('two')")
    changed = await terminal.tuner("apply", "-f", file, "--set", "spec.parallelism=2")
    assert "revision 2 is in force" in changed.err, changed.err
    await terminal.installed.until(lambda: len(terminal.installed.jobs) == 2)
    texts = {
        job["metadata"]["name"]: seen_by(terminal, job)["train.py"]
        for job in terminal.installed.jobs
    }
    assert texts.pop(before["metadata"]["name"]) == b"print('one')"
    assert list(texts.values()) == [b"print('two')"]


@at_a_terminal(RUNS_ON)
async def test_files_that_a_crash_left_unsent_are_sent_by_the_next_call(terminal: Terminal) -> None:
    file = written(folder_of(terminal), WITH_FILES)
    await terminal.tuner("apply", "-f", file)
    (files,) = sent(terminal)
    terminal.installed.api.remove("configmaps", NAMESPACE, files["metadata"]["name"])
    again = await terminal.tuner("apply", "-f", file)
    assert again.out.endswith("unchanged\n"), again.err
    (resent,) = sent(terminal)
    assert resent["binaryData"] == files["binaryData"]


@at_a_terminal()
async def test_without_the_right_to_send_files_nothing_is_created(terminal: Terminal) -> None:
    terminal.installed.api.forbid("create", "configmaps")
    refused = await terminal.tuner("apply", "-f", written(folder_of(terminal), WITH_FILES))
    assert refused.code == 4, refused.err
    assert "resources: [configmaps], verbs: [create]" in refused.err
    assert terminal.installed.api.all("experiments") == []


@at_a_terminal()
async def test_a_dry_run_sends_no_files(terminal: Terminal) -> None:
    file = written(folder_of(terminal), WITH_FILES)
    tried = await terminal.tuner("apply", "-f", file, "--dry-run")
    assert (tried.code, sent(terminal)) == (0, []), tried.err


@at_a_terminal()
async def test_files_of_more_than_a_mebibyte_are_refused_before(terminal: Terminal) -> None:
    folder = folder_of(terminal)
    (folder / "train.py").write_bytes(bytes(MOST_BYTES))
    refused = await terminal.tuner("apply", "-f", written(folder, WITH_FILES))
    assert refused.code == 2
    assert "the files have 1.0 MiB together" in refused.err
    assert "put large ones into the image or on a volume" in refused.err
    assert terminal.installed.api.all("experiments") == []


@at_a_terminal()
async def test_files_that_kubectl_does_not_send_are_refused_with_the_way(
    terminal: Terminal,
) -> None:
    trial = {"image": "tiny:1", "command": ["python", "train.py"], "files": ["train.py"]}
    terminal.installed.apply(experiment(trial=trial))
    await terminal.installed.until_state("invalid")
    assert "tuner apply -f FILE" in terminal.installed.condition("Accepted")["message"]
