"""`tuner … --context C`: the command line on the experiments of a cluster's controller."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Coroutine
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from controller.cli.main import main
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, SCORED, Installation, experiment, on_a_cluster

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
        installed.api.backends[SERVICE] = f"https://localhost:{installed.http_port}"

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


# What keeps a person from reading


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
