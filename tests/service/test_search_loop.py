"""The loop over a study's trials in Python programs: processes share it, and every trial ends."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from suggest.client import (
    Choice,
    Client,
    Constraint,
    FinishedTrial,
    Float,
    Search,
    StudyName,
    TrialState,
    async_client,
    maximize,
    minimize,
)
from suggest.errors import AlreadyExists
from suggest.study import Pruning
from suggest.trial import Outcome, Trial
from suggest.v1 import suggest_pb2 as pb
from tests import forked
from tests.service.running import a_server

PROGRAM = """
import sys
from suggest.client import Choice, Client, Float, maximize

client = Client(sys.argv[1])
study = client.study("parabola", {"x": Float(-10, 10), "kind": Choice(("a", "b"))}, maximize("score"), algorithm="tpe")
for trial in study.trials(30):
    x = trial.parameters["x"]
    trial.report(step=1, score=-((x - 2) ** 2))
    trial.complete()
print(study.best.value)
"""


@pytest.fixture
def search(client: Client) -> Search:
    return client.study("s", {"x": Float(0.0, 1.0)}, maximize("score"), algorithm="random")


def states(search: Search) -> list[str]:
    return [t.state.value for t in search.client.list_trials(search.name)]


def test_two_processes_share_one_study_and_its_trials(client: Client) -> None:
    both = [forked.python(PROGRAM, client.address, env=os.environ) for _ in range(2)]
    printed = {process.communicate()[0].strip() for process in both}
    trials = client.list_trials(StudyName("default", "parabola"))
    counts = Counter(t.state for t in trials)
    assert counts.pop(TrialState.SUCCEEDED) == 30
    assert set(counts) <= {TrialState.CANCELLED}, "a trial too many is given back"
    best = max(t.value for t in trials if t.value is not None)
    assert repr(best) in printed


def test_equal_arguments_join_a_study_and_others_are_refused(
    client: Client, search: Search
) -> None:
    again = client.study("s", {"x": Float(0, 1)}, maximize("score"), algorithm="random")
    assert again.name == search.name
    with pytest.raises(AlreadyExists, match="with other parameters and pruning"):
        client.study(
            "s",
            {"x": Float(0, 2)},
            maximize("score"),
            algorithm="random",
            pruning=Pruning("median"),
        )


def test_a_repeated_loop_requests_no_more_trials(search: Search) -> None:
    for _ in range(2):
        for trial in search.trials(3):
            trial.complete(1.0)
    assert states(search) == ["succeeded"] * 3


def test_trials_imported_before_the_first_one_do_not_count(search: Search) -> None:
    done = [FinishedTrial({"x": x}, Outcome(TrialState.SUCCEEDED, x)) for x in (0.25, 0.5)]
    search.client.import_trials(search.name, done, source="elsewhere", request_id="1")
    for trial in search.trials(2):
        trial.complete(trial.number / 10)
    assert states(search) == ["succeeded"] * 4
    assert search.best is not None
    assert search.best.number == 1


def test_trials_end_as_the_loops_body_decides(search: Search) -> None:
    ends = [
        lambda trial: trial.complete(0.5),
        lambda trial: trial.fail("why"),
        lambda trial: trial.infeasible("no"),
        lambda trial: trial.prune("hopeless"),
    ]
    for end, trial in zip(ends, search.trials(4), strict=True):
        end(trial)
    assert states(search) == ["succeeded", "failed", "infeasible", "pruned"]


def test_a_trial_left_open_ends_according_to_its_reports(search: Search) -> None:
    for trial in search.trials(2):
        if trial.number == 0:
            trial.report(score=0.25)
            trial.report(score=0.5)
    trials = search.client.list_trials(search.name)
    assert [(t.state.value, t.value, t.step) for t in trials] == [
        ("succeeded", 0.5, 1),
        ("failed", None, None),
    ]
    assert "no finite score was reported" in trials[1].reason


def test_a_loop_that_is_left_cancels_its_trial(search: Search) -> None:
    for _ in search.trials(5):
        break

    def crash() -> None:
        for _ in search.trials(5):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        crash()
    assert states(search) == ["cancelled", "cancelled"]


def test_a_program_may_end_with_a_trial_open(client: Client, search: Search) -> None:
    program = f"""
from suggest.client import Client, Float, maximize
client = Client({client.address!r})
study = client.study("left", {{"x": Float(0, 1)}}, maximize("score"))
trials = study.trials(3)
open_trial = next(trials)
def later():
    return client, study, trials
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stderr == ""


def test_trials_of_a_long_study_are_counted_correctly(search: Search) -> None:
    """The study has several pages, with trials that end late, out of order,
    cancelled, or in another process.
    """
    client, name = search.client, search.name
    found = client.suggest(name, 230, client_id="other", request_id="many").trials
    for trial in found[5:]:
        client.complete(
            name,
            trial.number,
            Outcome(TrialState.CANCELLED if trial.number % 3 == 0 else TrialState.FAILED),
        )

    def counting() -> int:
        return sum(t.state is not TrialState.CANCELLED for t in client.list_trials(name))

    there = counting()
    loop = search.trials(there + 8)
    for _ in range(3):
        next(loop).complete(1.0)
    for trial in found[:5]:  # from here on the trials of the first pages have ended
        client.complete(name, trial.number, Outcome(TrialState.CANCELLED))
    for trial in loop:
        if trial.number % 2:
            trial.cancel("changed my mind")
        else:
            trial.complete(1.0)
    assert counting() == there + 8
    assert list(search.trials(there + 8)) == []


def test_counted_pages_are_not_read_again(search: Search, monkeypatch: pytest.MonkeyPatch) -> None:
    client, name = search.client, search.name
    for trial in client.suggest(name, 250, client_id="other", request_id="many").trials:
        client.complete(name, trial.number, Outcome(TrialState.FAILED))
    read: list[Trial] = []

    def reading(message: pb.Trial) -> Trial:
        read.append(trial := read_trial(message))
        return trial

    read_trial = async_client.wire.read_trial
    monkeypatch.setattr(async_client.wire, "read_trial", reading)
    sizes = []
    for trial in search.trials(255):
        trial.complete(1.0)
        sizes.append(len(read))
        read.clear()
    assert sizes[0] > 250
    assert max(sizes[1:]) < 120


def test_an_exhausted_space_ends_the_loop(client: Client) -> None:
    search = client.study("grid", {"kind": ["a", "b"]}, maximize("score"), algorithm="grid")
    for trial in search.trials(100):
        trial.complete(1.0)
    assert states(search) == ["succeeded"] * 2
    best = search.best
    assert best is not None
    assert best.number == 0


def test_importing_the_client_loads_neither_grpc_nor_protobuf() -> None:
    program = (
        "import sys, suggest, suggest.client; print([m for m in ('grpc', 'google.protobuf') "
        "if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"


def test_conditional_parameters_and_choices_of_any_json_value_reach_the_loop(
    client: Client,
) -> None:
    kinds = [None, [1, 2], {"kind": "a", "lr": 0.1}, "1", 1, True]
    parameters = {
        "optimizer": Choice(kinds),
        "lr": Float(1e-5, 1, scale="log"),
        "momentum": Float(0, 1, when={"optimizer": [None, {"lr": 0.1, "kind": "a"}]}),
    }
    for _ in range(2):  # equal arguments join the study
        study = client.study("json", parameters, maximize("score"), algorithm="random", seed=3)
        for trial in study.trials(40):
            optimizer = trial.parameters["optimizer"]
            assert ("momentum" in trial.parameters) == (
                optimizer is None or isinstance(optimizer, dict)
            )
            assert any(type(optimizer) is type(kind) and optimizer == kind for kind in kinds)
            trial.complete(1.0 if optimizer is None else 0.0)
    best = study.best
    assert best is not None
    assert best.parameters["optimizer"] is None
    joined = client.study(
        "json",
        {**parameters, "optimizer": [None, [1, 2], {"lr": 0.1, "kind": "a"}, "1", 1, True]},
        maximize("score"),
        algorithm="random",
        seed=3,
    )
    assert joined.name == study.name, "the order of an object's keys does not matter"


def test_several_objectives_have_a_front(tmp_path: Path) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        goals = [minimize("loss"), maximize("speed")]
        bounds = [Constraint("size", max=0.9)]
        study = client.study(
            "two", {"x": Float(0, 1)}, goals, constraints=bounds, algorithm="random", seed=1
        )
        for trial in study.trials(12):
            x = trial.parameters["x"]
            assert isinstance(x, float)
            trial.report(step=1, loss=x, speed=x * x)
            if trial.number != 3:
                trial.report(step=2, size=x)
        found = client.list_trials(study.name)
        assert [t.state.value for t in found] == ["succeeded"] * 3 + ["failed"] + ["succeeded"] * 8
        assert found[3].reason == "no finite size was reported"
        kept = [t for t in found if t.constraint_values and t.constraint_values[0] <= 0.9]
        assert [t.number for t in study.front] == [t.number for t in kept], (
            "loss and speed are in conflict"
        )
        best = study.best
        assert best is not None
        assert best.value == min(t.value for t in kept if t.value is not None)


def test_a_list_of_something_else_is_refused(tmp_path: Path) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        with pytest.raises(
            TypeError, match=r"study: objective: expected maximize\(\"METRIC\"\), minimize"
        ):
            client.study("two", {"x": Float(0, 1)}, ["loss"])  # type: ignore[list-item]
        with pytest.raises(TypeError, match="study: constraints: expected a list of Constraint"):
            client.study("two", {"x": Float(0, 1)}, minimize("loss"), constraints=["size"])  # type: ignore[list-item]
