"""`tuner … --context C`: the command line on the experiments of a cluster's controller."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import tarfile
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any
from unittest import mock

import yaml  # type: ignore[import-untyped]
from starlette.requests import ClientDisconnect

from controller.cli.main import main
from controller.core.model import uid_of_resource
from controller.operator.http_api import Download
from controller.runtime.kubernetes.job_builder import files_object
from controller.runtime.trial_files import TrialFiles
from tests.kube.console import ended, start
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, SCORED, Installation, experiment, on_a_cluster
from tests.kube.test_controller_logs import variables_of
from tests.service.small_bucket import small_bucket

PERSON = "token-of-a-person"
SERVICE = "namespaces/tuner-system/services/https:tuner:https"
VERBS = ("get", "list", "create", "update", "patch", "delete")


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


class Terminal:
    """A person's terminal: a kubeconfig with a token, and no state directory."""

    def __init__(self, installed: Installation) -> None:
        self.installed = installed
        config = installed.api.kubeconfig()
        config["users"].append({"name": "ann", "user": {"token": PERSON}})
        person = {"cluster": "fake", "user": "ann", "namespace": NAMESPACE}
        config["contexts"].append({"name": "lab", "context": person})
        Path(os.environ["KUBECONFIG"]).write_text(yaml.safe_dump(config), encoding="utf-8")
        installed.api.people = {(PERSON, ""): "ann"}
        installed.api.grants = {("ann", verb, NAMESPACE) for verb in VERBS}
        self.connect()

    def connect(self) -> None:
        """Lead to the controller, which has another port after it has started again."""
        port = self.installed.http_port
        self.installed.api.backends[SERVICE] = f"https://localhost:{port}"

    async def tuner(self, *words: str) -> Outcome:
        """Run a command with --context lab, in a thread of its own."""
        out, err = (TextIOWrapper(BytesIO(), encoding="utf-8") for _ in range(2))

        def run() -> int:
            with redirect_stdout(out), redirect_stderr(err):
                return int(main([*words, "--context", "lab"]))

        code = await asyncio.to_thread(run)
        texts = []
        for stream in (out, err):
            stream.flush()
            texts.append(stream.buffer.getvalue().decode())
        return Outcome(code, *texts)


Claim = Callable[[Terminal], Coroutine[Any, Any, None]]


def at_a_terminal(script: Script = SCORED) -> Callable[[Claim], Callable[[Path], None]]:
    def decorate(claim: Claim) -> Callable[[Path], None]:
        async def main_of(installed: Installation) -> None:
            await installed.until(lambda: installed.serves)
            await claim(Terminal(installed))

        main_of.__name__, main_of.__doc__ = claim.__name__, claim.__doc__
        return on_a_cluster(script)(main_of)

    return decorate


async def finished(terminal: Terminal) -> None:
    terminal.installed.apply(experiment())
    await terminal.installed.until_state("succeeded")


# Reading


@at_a_terminal()
async def test_experiments_are_listed(terminal: Terminal) -> None:
    await finished(terminal)
    listed = await terminal.tuner("get", "experiments", "-o", "json")
    (found,) = json.loads(listed.out)
    assert (found["name"], found["state"], found["trials"]) == (
        "tiny",
        "succeeded",
        {"succeeded": 3},
    )


@at_a_terminal()
async def test_a_list_of_experiments_takes_one_request(terminal: Terminal) -> None:
    await finished(terminal)
    terminal.installed.apply(experiment("other", final={"command": ["train"]}))
    await terminal.installed.until_state("succeeded", "other")
    terminal.installed.api.requests.clear()
    listed = await terminal.tuner("get", "experiments", "-o", "json")
    assert [each["best"]["value"] for each in json.loads(listed.out)] == [0.5, 0.5]
    assert [each.get("final", {}).get("state") for each in json.loads(listed.out)] == [
        "succeeded",
        None,
    ]
    proxied = [path for _, path, _ in terminal.installed.api.requests if "/services/" in path]
    assert len(proxied) == 1


@at_a_terminal()
async def test_an_experiment_that_was_not_accepted_is_named_with_its_reason(
    terminal: Terminal,
) -> None:
    terminal.installed.apply(experiment(budget={"trials": 0}))
    await terminal.installed.until_state("invalid")
    listed = await terminal.tuner("get", "experiments")
    assert (listed.code, listed.out) == (0, "")
    assert listed.err.startswith(
        "tuner: user1/tiny is invalid: experiment tiny: spec.budget.trials"
    )


@at_a_terminal()
async def test_trials_are_those_of_the_state_directory(terminal: Terminal) -> None:
    await finished(terminal)
    remote = await terminal.tuner("get", "trials", "tiny", "-o", "json")
    state = ["--state-dir", str(terminal.installed.state.root), "-n", NAMESPACE]
    out = TextIOWrapper(BytesIO(), encoding="utf-8")

    def local() -> int:
        with redirect_stdout(out):
            return int(main(["get", "trials", "tiny", "-o", "json", *state]))

    assert await asyncio.to_thread(local) == 0
    out.flush()
    assert json.loads(remote.out) == json.loads(out.buffer.getvalue())


@at_a_terminal()
async def test_an_experiment_and_its_best_trial_are_described(terminal: Terminal) -> None:
    await finished(terminal)
    described = await terminal.tuner("describe", "tiny")
    assert described.code == 0, described.err
    assert "State:      succeeded" in described.out
    assert "Folder:" not in described.out
    trial = await terminal.tuner("describe", "tiny/0")
    assert "score" in trial.out
    best = await terminal.tuner("best", "tiny", "-o", "json")
    assert json.loads(best.out)["value"] == 0.5


@at_a_terminal()
async def test_a_report_and_an_export_are_made(terminal: Terminal) -> None:
    await finished(terminal)
    exported = await terminal.tuner("export", "tiny", "--format", "csv")
    assert len(exported.out.splitlines()) == 4
    reported = await terminal.tuner("report", "tiny")
    assert (reported.code, "0.5" in reported.out) == (0, True), reported.err


@at_a_terminal()
async def test_a_log_is_printed(terminal: Terminal) -> None:
    await finished(terminal)
    assert (await terminal.tuner("logs", "tiny/1")).out == "score=0.5\n"
    assert (await terminal.tuner("logs", "tiny/1", "--tail", "0")).out == ""
    missing = await terminal.tuner("logs", "tiny/7")
    assert missing.code == 5


RUNS_ON = Script(lines=("score=0.1",), seconds=600)


@at_a_terminal(RUNS_ON)
async def test_running_trials_are_shown(terminal: Terminal) -> None:
    terminal.installed.apply(experiment(parallelism=2))
    await terminal.installed.until(lambda: terminal.installed.status().get("running") == 2)
    top = await terminal.tuner("top", "-A")
    assert (top.code, "tiny" in top.out) == (0, True), top.err


@at_a_terminal(Script(lines=("score=0.1",), seconds=600, waits_s=600))
async def test_top_begins_with_a_line_for_each_of_several_experiments(terminal: Terminal) -> None:
    for name in ("one", "two"):
        terminal.installed.apply(experiment(name))
        await terminal.installed.until(lambda: len(terminal.installed.jobs) > 0)
    await terminal.installed.until(lambda: len(terminal.installed.jobs) == 2)
    top = await terminal.tuner("top", "-A")
    header, one, two, empty, *_ = top.out.splitlines()
    assert header.split(maxsplit=5)[-1] == "THE FIRST WAITS FOR", top.err
    assert [line.split()[:3] for line in (one, two)] == [
        [NAMESPACE, "one", "running"],
        [NAMESPACE, "two", "running"],
    ]
    assert empty == ""


# What keeps a person from reading


@at_a_terminal()
async def test_a_list_of_a_namespace_that_one_may_not_read_is_refused(terminal: Terminal) -> None:
    await finished(terminal)
    refused = await terminal.tuner("get", "experiments", "-n", "default")
    assert (refused.code, "ann may not list" in refused.err) == (4, True), refused.err


@at_a_terminal()
async def test_a_list_of_all_is_empty_for_a_reader_of_a_namespace_that_has_none(
    terminal: Terminal,
) -> None:
    other = experiment()
    other["metadata"]["namespace"] = "default"
    terminal.installed.api.put("experiments", other)
    await terminal.installed.until(
        lambda: terminal.installed.api.get("experiments", "default", "tiny").get("status")
    )
    listed = await terminal.tuner("get", "experiments", "-A", "-o", "name")
    assert (listed.code, listed.out) == (0, ""), listed.err


@at_a_terminal()
async def test_without_a_controller_it_says_how_to_install_one(terminal: Terminal) -> None:
    terminal.installed.api.backends.clear()
    refused = await terminal.tuner("get", "trials", "tiny")
    assert refused.code == 5
    assert "no controller is installed there" in refused.err


@at_a_terminal()
async def test_a_controller_that_is_away_is_said_to_be(terminal: Terminal) -> None:
    await terminal.installed.stop()
    refused = await terminal.tuner("get", "experiments")
    assert (refused.code, "the controller is away" in refused.err) == (7, True), refused.err


@at_a_terminal()
async def test_without_the_right_to_the_proxy_it_names_the_rule(terminal: Terminal) -> None:
    terminal.installed.api.forbid("get", "services/proxy")
    refused = await terminal.tuner("describe", "tiny")
    assert refused.code == 4
    assert "resources: [services/proxy], verbs: [get, create]" in refused.err


@at_a_terminal()
async def test_another_namespace_is_refused(terminal: Terminal) -> None:
    await finished(terminal)
    refused = await terminal.tuner("describe", "tiny", "-n", "default")
    assert (refused.code, "ann may not get" in refused.err) == (4, True), refused.err


@at_a_terminal()
async def test_an_unknown_token_is_refused(terminal: Terminal) -> None:
    terminal.installed.api.people = {}
    refused = await terminal.tuner("describe", "tiny")
    assert (refused.code, "the token is not valid here" in refused.err) == (4, True), refused.err


@at_a_terminal()
async def test_an_unknown_name_is_not_found(terminal: Terminal) -> None:
    await finished(terminal)
    refused = await terminal.tuner("describe", "tinny")
    assert (refused.code, "did you mean tiny?" in refused.err) == (5, True), refused.err


# Changing

FILE = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny, namespace: user1}
spec:
  objective: {metric: score, direction: maximize}
  parameters:
    x: {type: float, min: 0, max: 1}
  algorithm: {name: random}
  budget: {trials: 3}
  trial: {image: "tiny:1", command: [train, "--x=${x}"]}
"""


def written(folder: Path, text: str = FILE) -> str:
    path = folder / "experiment.yaml"
    path.write_text(text, encoding="utf-8")
    return str(path)


@at_a_terminal()
async def test_a_file_is_applied_and_says_what_comes_next(terminal: Terminal) -> None:
    file = written(terminal.installed.state.root.parent)
    tried = await terminal.tuner("apply", "-f", file, "--dry-run")
    assert tried.out == "experiment user1/tiny created (dry run)\n", tried.err
    applied = await terminal.tuner("apply", "-f", file)
    assert (applied.code, applied.out) == (0, "experiment user1/tiny created\n"), applied.err
    assert "tuner get trials tiny -w --namespace user1 --context lab" in applied.err
    await terminal.installed.until_state("succeeded")
    assert (await terminal.tuner("apply", "-f", file)).out == "experiment user1/tiny unchanged\n"
    again = await terminal.tuner("apply", "-f", file, "--set", "spec.budget.trials=5")
    assert again.out == "experiment user1/tiny configured\n", again.err
    await terminal.installed.until(lambda: terminal.installed.status().get("done") == "5/5")


@at_a_terminal()
async def test_an_invalid_file_is_refused_with_its_line(terminal: Terminal) -> None:
    text = FILE.replace("type: float, min: 0", "type: float, min: 2")
    refused = await terminal.tuner(
        "apply", "-f", written(terminal.installed.state.root.parent, text)
    )
    assert refused.code == 2
    assert "7:" in refused.err
    assert "spec.parameters.x" in refused.err
    assert terminal.installed.api.all("experiments") == []


@at_a_terminal()
async def test_a_change_that_the_controller_refuses_is_a_conflict(terminal: Terminal) -> None:
    await finished(terminal)
    text = FILE.replace("max: 1}", "max: 0.5}")
    refused = await terminal.tuner(
        "apply", "-f", written(terminal.installed.state.root.parent, text)
    )
    assert refused.code == 6, refused.err
    assert "spec.parameters.x.max: 0.5 is below 1, and a range only grows" in refused.err


@at_a_terminal(RUNS_ON)
async def test_a_running_experiment_is_stopped_and_resumed(terminal: Terminal) -> None:
    terminal.installed.apply(experiment(parallelism=2))
    await terminal.installed.until(lambda: terminal.installed.status().get("running") == 2)
    stopped = await terminal.tuner("stop", "tiny")
    assert (stopped.code, "tiny: suspended" in stopped.err) == (0, True), stopped.err
    assert terminal.installed.jobs == []
    resumed = await terminal.tuner("resume", "tiny")
    assert (resumed.code, "tiny: running" in resumed.err) == (0, True), resumed.err
    await terminal.installed.until(lambda: terminal.installed.status().get("running") == 2)


@at_a_terminal(RUNS_ON)
async def test_a_value_is_set_while_trials_run(terminal: Terminal) -> None:
    terminal.installed.apply(experiment())
    await terminal.installed.until(lambda: terminal.installed.status().get("running") == 1)
    before = {job["metadata"]["uid"] for job in terminal.installed.jobs}
    changed = await terminal.tuner("set", "tiny", "spec.parallelism=3")
    assert "revision 2 of tiny takes effect now" in changed.err, changed.err
    await terminal.installed.until(lambda: terminal.installed.status().get("running") == 3)
    assert before <= {job["metadata"]["uid"] for job in terminal.installed.jobs}
    same = await terminal.tuner("set", "tiny", "spec.parallelism=3")
    assert "has these values already" in same.err
    wrong = await terminal.tuner("set", "tiny", "spec.paralellism=3")
    assert (wrong.code, "did you mean" in wrong.err) == (2, True), wrong.err


@at_a_terminal(RUNS_ON)
async def test_a_refused_value_is_not_left_in_the_resource(terminal: Terminal) -> None:
    terminal.installed.apply(experiment())
    await terminal.installed.until(lambda: terminal.installed.status().get("running") == 1)
    refused = await terminal.tuner("set", "tiny", "spec.parameters.x.max=0.5")
    assert (refused.code, "a range only grows" in refused.err) == (6, True), refused.err
    spec = terminal.installed.api.get("experiments", NAMESPACE, "tiny")["spec"]
    assert spec["parameters"]["x"]["max"] == 1
    await terminal.installed.until(
        lambda: terminal.installed.condition("Accepted").get("status") == "True"
    )


@at_a_terminal()
async def test_an_ended_experiment_is_extended(terminal: Terminal) -> None:
    await finished(terminal)
    extended = await terminal.tuner("extend", "tiny", "--trials", "+2")
    assert extended.code == 0, extended.err
    await terminal.installed.until(lambda: terminal.installed.status().get("done") == "5/5")


FAILS_AT_FIRST = Script(lines=("no score",), exit_code=1)


@at_a_terminal(FAILS_AT_FIRST)
async def test_failed_trials_are_retried(terminal: Terminal) -> None:
    terminal.installed.apply(experiment(budget={"trials": 2}, breaker="off"))
    await terminal.installed.until(
        lambda: terminal.installed.status().get("trials", {}).get("failed") == 2
    )
    terminal.installed.api.kubelet.play(lambda _job: SCORED)
    retried = await terminal.tuner("retry", "tiny", "--failed")
    assert retried.code == 0, retried.err
    await terminal.installed.until_state("succeeded")
    assert terminal.installed.status()["trials"] == {"succeeded": 2}
    none = await terminal.tuner("retry", "tiny", "--failed")
    assert (none.code, "has no failed trial" in none.err) == (6, True), none.err


@at_a_terminal()
async def test_an_experiment_is_deleted(terminal: Terminal) -> None:
    await finished(terminal)
    unsure = await terminal.tuner("delete", "tiny")
    assert (unsure.code, "add --yes to confirm" in unsure.err) == (2, True), unsure.err
    deleted = await terminal.tuner("delete", "tiny", "--yes")
    assert (deleted.code, deleted.err) == (0, "tiny is deleted\n")
    again = await terminal.tuner("delete", "tiny", "--yes")
    assert again.code == 5


@at_a_terminal()
async def test_a_person_without_the_right_to_change_is_refused(terminal: Terminal) -> None:
    await finished(terminal)
    terminal.installed.api.forbid("delete", "experiments")
    refused = await terminal.tuner("delete", "tiny", "--yes")
    assert refused.code == 4
    assert "ask for the role tuner-experiments-edit" in refused.err


# Reruns


@at_a_terminal()
async def test_trials_run_again_in_the_cluster_and_the_command_waits(terminal: Terminal) -> None:
    sent = TrialFiles.of({"train.py": b"print('score=0.5')"})
    trial = {"image": "tiny:1", "command": ["python", "train.py"]}
    files = {"files": ["train.py"], "filesDigest": sent.digest}
    terminal.installed.apply(experiment(trial={**trial, **files}))
    await terminal.installed.until_state("succeeded")
    uid = uid_of_resource(
        terminal.installed.api.get("experiments", NAMESPACE, "tiny")["metadata"]["uid"]
    )
    terminal.installed.api.put("configmaps", files_object(sent, NAMESPACE, "tiny", uid))
    confirmed = await terminal.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
    assert (confirmed.code, "Reruns of tiny, with 2 new seeds" in confirmed.out) == (0, True), (
        confirmed
    )
    maps = [each["metadata"]["name"] for each in terminal.installed.api.all("configmaps")]
    assert any(name.startswith("tiny-confirm-") and sent.digest in name for name in maps), maps
    again = await terminal.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
    assert (again.code, again.out) == (0, confirmed.out), again.err
    best = await terminal.tuner("best", "tiny", "--confirmed")
    assert best.out.endswith(confirmed.out)
    others = await terminal.tuner("confirm", "tiny", "--top", "1", "--seeds", "2")
    cure = "delete tiny-confirm --namespace user1 --context lab"
    assert (others.code, cure in others.err) == (6, True), others.err

    reproduced = await terminal.tuner("reproduce", "tiny/1", "--times", "2")
    assert reproduced.code == 0, reproduced.err
    assert "image: tiny:1@sha256:0" in reproduced.err
    assert "reproduced (2 runs): 0.5, 0.5" in reproduced.out
    spec = terminal.installed.api.get("experiments", NAMESPACE, "tiny-reproduce-1")["spec"]
    assert spec["trial"]["image"] == "tiny:1@sha256:0"


@at_a_terminal()
async def test_reruns_need_the_right_to_create_experiments(terminal: Terminal) -> None:
    await finished(terminal)
    terminal.installed.api.forbid("patch", "experiments")
    refused = await terminal.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
    assert (refused.code, "tuner-experiments-edit" in refused.err) == (4, True), refused


# A pack


@at_a_terminal()
async def test_a_search_of_the_cluster_is_packed_and_continues_elsewhere(
    terminal: Terminal,
) -> None:
    await finished(terminal)
    folder = terminal.installed.state.root.parent
    file = str(folder / "tiny.tar.gz")
    packed = await terminal.tuner("pack", "tiny", "--to", file)
    assert (packed.code, packed.err) == (0, ""), packed
    assert f"{file}: tiny with 3 attempts" in packed.out
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))

    async def there(*words: str) -> str:
        found = await ended(start(folder, config, *words, state="elsewhere"))
        assert found.code == 0, found.err
        return found.out

    assert await there("unpack", "tiny.tar.gz") == "tiny is unpacked: succeeded\n"
    remote = await terminal.tuner("get", "trials", "tiny", "-o", "json")
    assert await there("get", "trials", "tiny", "-o", "json") == remote.out
    assert await there("logs", "tiny/1") == "score=0.5\n"
    assert len([*(folder / "elsewhere").glob("experiments/*/trials/*/1/provenance.json")]) == 3
    terminal.installed.delete("tiny")
    await terminal.installed.until(lambda: not terminal.installed.jobs)
    await there("extend", "tiny", "--trials", "+2")
    trials = json.loads(await there("get", "trials", "tiny", "-o", "json"))
    assert [each["state"] for each in trials] == ["succeeded"] * 5


def test_a_download_that_breaks_off_closes_its_file(tmp_path: Path) -> None:
    (tmp_path / "tiny.tar.gz").write_bytes(b"content")

    async def receive() -> dict[str, object]:
        return {"type": "http.disconnect"}

    async def send(_message: object) -> None:
        raise OSError("the client has gone away")

    async def main() -> bool:
        owned = AsyncExitStack()
        file = owned.enter_context((tmp_path / "tiny.tar.gz").open("rb"))
        with suppress(OSError, ClientDisconnect):
            await Download(file, owned)(
                {"type": "http", "asgi": {"spec_version": "2.4"}}, receive, send
            )
        return file.closed

    assert asyncio.run(main())


@at_a_terminal()
async def test_a_pack_has_the_logs_that_only_the_bucket_has(terminal: Terminal) -> None:
    installed = terminal.installed
    folder = installed.state.root.parent
    await installed.stop()
    with small_bucket() as bucket, mock.patch.dict(os.environ, variables_of(bucket)):
        installed.archive = "s3://logs/team"
        installed.start()
        installed.api.backends[SERVICE] = f"https://localhost:{installed.http_port}"
        await finished(terminal)
        await installed.until(lambda: len(bucket.content) == 6, within_s=60)
        for trial in installed.state.experiments.glob("*/trials/*"):
            shutil.rmtree(trial)
        packed = await terminal.tuner("pack", "tiny", "--to", str(folder / "tiny.tar.gz"))
        assert packed.code == 0, packed.err
        with tarfile.open(folder / "tiny.tar.gz") as archive:
            names = archive.getnames()
        for number in range(3):
            assert {f"trials/{number}/1/log.txt", f"trials/{number}/1/provenance.json"} < {*names}
        bucket.refuses = True
        for trial in installed.state.experiments.glob("*/trials/*"):
            shutil.rmtree(trial)
        away = await terminal.tuner("pack", "tiny", "--to", str(folder / "other.tar.gz"))
        assert (away.code, "the bucket with the logs is away" in away.err) == (7, True), away
        assert [path.name for path in folder.glob("*.tar.gz*")] == ["tiny.tar.gz"]
        await installed.stop()
