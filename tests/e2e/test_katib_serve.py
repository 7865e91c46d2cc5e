"""`tuner serve --katib` from outside: each algorithm to its end, while the server is killed and
half of the trials are the caller's own. The caller knows Katib's contract and nothing of ours.
"""

from __future__ import annotations

import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
import yaml
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suggest.katib.v1beta1 import api_pb2 as pb
from tests import called, forked
from tests.katib_stubs import SuggestionStub
from tests.service.katib_caller import (
    NUMBERS,
    KatibController,
    a_request,
    a_trial,
    accuracy_of,
    an_experiment,
    double,
    whole,
)

TUNER = Path(sys.executable).parent / "tuner"
GRID = (whole("n", "1", "6"), double("x", "0.0", "0.8", "0.2"))
TRIALS, AT_ONCE = 18, 3
PAGE = Path(__file__).parents[2] / "docs" / "katib.md"
ALGORITHMS = ("grid", "tpe", "cmaes", "hyperband")
OTHERS = ("random", "multivariate-tpe", "bayesianoptimization", "sobol")  # replayed as those are


class KatibServer:
    """`tuner serve --katib` at ports that the system chose,
    which it keeps when it is started again.

    failpoint: where the first process ends.
    """

    def __init__(self, folder: Path, *flags: str, failpoint: str = "") -> None:
        self._folder = folder
        self._flags = flags
        self.ports = "0,0"
        self.process = self._start(TUNER_FAILPOINT=failpoint)

    def _start(self, **env: str) -> subprocess.Popen[str]:
        words = ["serve", "--address", f"unix:{self._folder}/s", "--katib", self.ports]
        words += ["--storage", f"sqlite:///{self._folder}/studies.db", "--quiet", *self._flags]
        process = forked.tuner(words, folder=self._folder, env={**os.environ, **env})
        assert process.stderr is not None
        line = process.stderr.readline()
        found = re.search(r"Katib at 127\.0\.0\.1:(\d+) and 127\.0\.0\.1:(\d+)", line)
        assert found is not None, line
        self.ports = f"{found[1]},{found[2]}"
        return process

    def kill_and_restart(self) -> None:
        self.stop()
        self.process = self._start()

    def stop(self) -> None:
        self.process.kill()
        self.process.communicate()

    def ask(self, request: pb.GetSuggestionsRequest) -> pb.GetSuggestionsReply:
        """Over a connection of its own, as Katib's controller does."""
        with grpc.insecure_channel(f"127.0.0.1:{self.ports.partition(',')[0]}") as channel:
            return SuggestionStub(channel).GetSuggestions(request, timeout=60, wait_for_ready=True)

    def validate(self, experiment: pb.Experiment) -> None:
        with grpc.insecure_channel(f"127.0.0.1:{self.ports.partition(',')[0]}") as channel:
            request = pb.ValidateAlgorithmSettingsRequest(experiment=experiment)
            SuggestionStub(channel).ValidateAlgorithmSettings(
                request, timeout=60, wait_for_ready=True
            )


@contextmanager
def serving(folder: Path, *flags: str) -> Iterator[KatibServer]:
    server = KatibServer(folder, *flags)
    try:
        yield server
    finally:
        server.stop()


def of_numbers(rng: random.Random) -> dict[str, str]:
    return {
        "x": str(rng.uniform(-1, 1)),
        "y": str(rng.uniform(-1, 1)),
        "n": str(rng.randint(1, 100)),
    }


def of_grid(rng: random.Random) -> dict[str, str]:
    return {"n": str(rng.randint(1, 6)), "x": rng.choice(["0.0", "0.2", "0.4", "0.6", "0.8"])}


@pytest.mark.parametrize(
    "algorithm", [*ALGORITHMS, *(pytest.param(name, marks=pytest.mark.soak) for name in OTHERS)]
)
def test_a_search_ends_whatever_is_killed_or_repeated(tmp_path: Path, algorithm: str) -> None:
    parameters = GRID if algorithm == "grid" else NUMBERS
    invent: Callable[[random.Random], dict[str, str]] = (
        of_grid if algorithm == "grid" else of_numbers
    )
    settings = {"r_l": "81", "resource_name": "n"} if algorithm == "hyperband" else {}
    experiment = an_experiment(algorithm, parameters, settings=settings, trials=TRIALS)
    with serving(tmp_path) as server:
        server.validate(experiment)
        controller = KatibController(experiment, server.ask, seed=len(algorithm))
        for turn in range(TRIALS // AT_ONCE):
            if turn in (2, 5):
                server.kill_and_restart()
            controller.turn(AT_ONCE, invent=invent)
    assert len(controller.suggested) == TRIALS == len(controller.trials)
    ran = [
        {a.name: a.value for a in t.spec.parameter_assignments.assignments}
        for t in controller.trials.values()
    ]
    assert sum(point not in controller.suggested for point in ran) > (
        0 if algorithm == "grid" else TRIALS // 4
    )
    assert all(_is_inside(point, parameters) for point in controller.suggested)
    if algorithm != "grid":
        # A suggestion that the client replaced by a point
        # of its own was never run, and may be made again.
        as_suggested = [str(point) for point in ran if point in controller.suggested]
        assert len(set(as_suggested)) == len(as_suggested)


PBT = {"suggestion_trial_dir": "/ckpt", "n_population": "5", "truncation_threshold": "0.4"}
LABELS = "pbt.suggestion.katib.kubeflow.org"


def test_trials_of_pbt_go_on_from_copies_of_their_parents_checkpoints(tmp_path: Path) -> None:
    """Each trial adds a line with its name to the file in its folder,
    so the file names all that it descends from.
    """
    volume = tmp_path / "checkpoints"
    volume.mkdir()
    experiment = an_experiment("pbt", NUMBERS, settings=PBT, trials=30)
    trials: dict[str, pb.Trial] = {}
    generations: dict[str, int] = {}
    with serving(tmp_path, "--katib-checkpoints", str(volume)) as server:
        server.validate(experiment)
        while len(trials) < 30:
            if len(trials) in (10, 20):
                server.kill_and_restart()
            request = a_request(experiment, list(trials.values()), count=5)
            reply = server.ask(request)
            assert server.ask(request) == reply
            for each in reply.parameter_assignments:
                name, parent = each.trial_name, each.labels.get(f"{LABELS}/parent", "")
                generations[name] = int(each.labels[f"{LABELS}/generation"])
                assert generations[name] == (generations[parent] + 1 if parent else 0)
                line = volume / "search" / name / "line"
                assert (line.read_text().split()[-1:] if line.exists() else [""]) == [parent]
                with line.open("a") as file:
                    file.write(f"{name}\n")
                point = {a.name: a.value for a in each.assignments}
                trials[name] = a_trial(
                    name, point, pb.TrialStatus.SUCCEEDED, str(accuracy_of(point))
                )
    assert sorted(generations.values()) == sorted(5 * list(range(6)))
    longest = [
        (volume / "search" / name / "line").read_text().split()
        for name, at in generations.items()
        if at == 5
    ]
    assert [len(line) for line in longest] == 5 * [6]


def test_a_search_of_pbt_counts_trials_that_its_client_invented(tmp_path: Path) -> None:
    """Half of the trials have the client's own names and points.

    They have no checkpoint, and may be parents.
    """
    rng = random.Random(3)
    experiment = an_experiment("pbt", NUMBERS, settings=PBT, trials=30)
    trials: dict[str, pb.Trial] = {}
    parents: list[str] = []
    with serving(tmp_path, "--katib-checkpoints", str(tmp_path)) as server:
        for turn in range(5):
            if turn in (2, 4):
                server.kill_and_restart()
            reply = server.ask(a_request(experiment, list(trials.values()), count=3))
            points = {
                each.trial_name: {a.name: a.value for a in each.assignments}
                for each in reply.parameter_assignments
            }
            parents += [
                each.labels.get(f"{LABELS}/parent", "") for each in reply.parameter_assignments
            ]
            assert {parent for parent in parents if parent} <= trials.keys()
            points |= {f"invented-{turn}-{k}": of_numbers(rng) for k in range(3)}
            for name, point in points.items():
                trials[name] = a_trial(
                    name, point, pb.TrialStatus.SUCCEEDED, str(accuracy_of(point))
                )
    assert len(trials) == 30
    assert any(parent.startswith("invented-") for parent in parents)


def test_a_generation_of_pbt_that_has_to_end_first_is_waited_for(tmp_path: Path) -> None:
    experiment = an_experiment("pbt", NUMBERS, settings=PBT)
    with serving(tmp_path, "--katib-checkpoints", str(tmp_path)) as server:
        begun = server.ask(a_request(experiment, count=5)).parameter_assignments
        points = [{a.name: a.value for a in each.assignments} for each in begun]
        trials = [
            a_trial(each.trial_name, point, pb.TrialStatus.RUNNING)
            for each, point in zip(begun, points, strict=True)
        ]
        with pytest.raises(grpc.RpcError) as caught:
            server.ask(a_request(experiment, trials, count=2))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert "trials of this generation have to end" in caught.value.details()
        for trial, accuracy in zip(trials[:3], ("0.1", "0.2", "0.3"), strict=True):
            trial.status.condition = pb.TrialStatus.SUCCEEDED
            trial.status.observation.metrics.add(name="accuracy", value=accuracy)
        assert len(server.ask(a_request(experiment, trials, count=2)).parameter_assignments) == 2


def _is_inside(point: dict[str, str], parameters: tuple[pb.ParameterSpec, ...]) -> bool:
    spaces = {p.name: p.feasible_space for p in parameters}
    return point.keys() == spaces.keys() and all(
        float(spaces[name].min) <= float(text) <= float(spaces[name].max)
        for name, text in point.items()
    )


def test_a_killed_server_repeats_what_it_had_answered(tmp_path: Path) -> None:
    request = pb.GetSuggestionsRequest(
        experiment=an_experiment("tpe", NUMBERS), current_request_number=5, total_request_number=5
    )
    with serving(tmp_path) as server:
        before = server.ask(request)
        server.kill_and_restart()
        assert server.ask(request) == before


@pytest.mark.parametrize(
    "point", ["add_trials.before", "add_trials.after", "hand_out.before", "hand_out.after"]
)
def test_a_history_that_a_kill_interrupts_is_learned_once(tmp_path: Path, point: str) -> None:
    rng = random.Random(7)
    status = pb.TrialStatus
    conditions = [status.FAILED, status.SUCCEEDED, status.SUCCEEDED, status.RUNNING]
    history = [
        a_trial(f"search-{k}", of_numbers(rng), conditions[k % 4], f"0.{k}") for k in range(60)
    ]
    request = a_request(an_experiment("tpe", NUMBERS), history, count=2)
    server = KatibServer(tmp_path, failpoint=f"store.{point}")
    try:
        with pytest.raises(grpc.RpcError):
            server.ask(request)
        server.kill_and_restart()
        answer = server.ask(request)
        assert server.ask(request) == answer
    finally:
        server.stop()
    with sqlite3.connect(tmp_path / "studies.db") as store:
        names = [
            json.loads(labels).get("katib.kubeflow.org/trial")
            for (labels,) in store.execute("SELECT labels FROM trials")
        ]
    assert sorted(name for name in names if name) == sorted(trial.name for trial in history)
    assert len(names) == 62


def test_the_command_on_the_page_serves_katib_and_its_studies_are_listed(tmp_path: Path) -> None:
    [shown] = re.findall(
        r"^tuner (serve .*--katib)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    words = [str(TUNER), *shown.replace("0.0.0.0:7117", "127.0.0.1:0").split(), "0,0"]
    storage = f"sqlite:///{tmp_path}/studies.db"
    server = subprocess.Popen(
        [*words, "--storage", storage, "--quiet"], stderr=subprocess.PIPE, text=True
    )
    try:
        assert server.stderr is not None
        found = re.search(r"listening on (\S+), .*Katib at (\S+) and ", server.stderr.readline())
        assert found is not None
        with grpc.insecure_channel(found[2]) as channel:
            request = pb.GetSuggestionsRequest(
                experiment=an_experiment(), current_request_number=1, total_request_number=1
            )
            SuggestionStub(channel).GetSuggestions(request, timeout=60, wait_for_ready=True)
        listed = called.run_tuner(
            ["get", "studies", "--server", found[1]], folder=tmp_path, env=os.environ
        )
        assert "search-" in listed.stdout, listed.stderr
    finally:
        server.terminate()
        server.communicate()
    assert server.returncode == 143


def test_ports_are_checked_before_anything_starts(tmp_path: Path) -> None:
    def checked(*flags: str) -> str:
        words = ["serve", "--check", "--storage", f"sqlite:///{tmp_path}/studies.db", *flags]
        done = called.run_tuner(words, folder=tmp_path, env=os.environ)
        return done.stdout + done.stderr

    assert "ok    katib         127.0.0.1:0 is free; Katib's clients need no token" in checked(
        "--insecure", "--katib", "0"
    )
    assert "'six' is not a port; separate them with commas, such as 6789,6788" in checked(
        "--katib", "six"
    )
    assert (
        "Katib's clients send no token, so anyone who reaches 0.0.0.0 could use its studies"
        in checked("--address", "0.0.0.0:7117", "--katib", "0")
    )


CONFIG = PAGE.parents[1] / "deploy" / "katib-config.yaml"
PROBED = "manager.v1beta1.Suggestion"  # by Katib's controller, in the pod that it starts


def entries() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["runtime"][
        "suggestions"
    ]
    return found


def test_the_entries_for_katibs_config_are_those_of_the_algorithms_and_of_the_page() -> None:
    assert sorted(each["algorithmName"] for each in entries()) == sorted((*ALGORITHMS, *OTHERS))
    assert "\n".join(f"    {line}" for line in shown_entry()) in PAGE.read_text(encoding="utf-8")
    for each in entries():
        assert each.keys() == {"algorithmName", "image", "args", "resources"}
        assert each["args"] == entries()[0]["args"]


def shown_entry() -> list[str]:
    lines = CONFIG.read_text(encoding="utf-8").splitlines()
    first = lines.index("    - algorithmName: tpe")
    return [line.removeprefix("    ") for line in lines[first : first + 4]]


def test_the_container_of_katibs_config_answers_its_probe_and_a_request(tmp_path: Path) -> None:
    """The arguments of the entry, after the image's `tuner serve`,
    with ports that the system chooses.
    """
    words = [word.replace(":7117", ":0").replace("=6789", "=0") for word in entries()[0]["args"]]
    assert "--katib=0" in words
    process = forked.tuner(
        ["serve", *words], folder=tmp_path, env={**os.environ, "TUNER_STATE_DIR": str(tmp_path)}
    )
    try:
        assert process.stderr is not None
        line = next(line for line in process.stderr if "Katib at" in line)
        port = line.rstrip().rpartition(":")[2]
        with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
            health = health_pb2_grpc.HealthStub(channel).Check
            answer = health(
                health_pb2.HealthCheckRequest(service=PROBED), timeout=30, wait_for_ready=True
            )
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
            for name in (each["algorithmName"] for each in entries()):
                settings = {"r_l": "81", "resource_name": "n"} if name == "hyperband" else {}
                experiment = an_experiment(
                    name, GRID if name == "grid" else NUMBERS, settings=settings, trials=TRIALS
                )
                reply = SuggestionStub(channel).GetSuggestions(
                    a_request(experiment, [], count=2), timeout=60
                )
                assert len(reply.parameter_assignments) == 2, name
    finally:
        process.kill()
        process.communicate()
