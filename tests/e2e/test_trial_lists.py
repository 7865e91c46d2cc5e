"""`tuner get trials`, `get studies`, `export` and `report`: sorting, filters,
all metrics, also for studies.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from suggest.client import Client, Outcome, StudyName, TrialState
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, StudySpec
from suggest.trial import Measurement
from tests.e2e.cli import Cli, cli_in, experiment
from tests.service.running import a_server

SCRIPT = (
    "echo step=1 score=$1 loss=9 acc=nan; echo step=2 score=$1 loss=$TUNER_TRIAL_NUMBER; "
    "test $TUNER_TRIAL_NUMBER != 1"
)
STUDY = StudyName("default", "by-hand")


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A command line with four trials, of which the second has failed."""
    with cli_in(tmp_path_factory.mktemp("lists")) as cli:
        cli.file.write_text(experiment(["sh", "-c", SCRIPT, "sh", "${x}"], trials=4))
        assert cli.tuner("run", cli.file)[0] == 0
        yield cli


def numbers(cli: Cli, *words: str) -> list[int]:
    return [trial["number"] for trial in cli.json("get", "trials", "tiny", "-o", "json", *words)]


@pytest.mark.parametrize("words", [["get", "trials"], ["export"], ["best"], ["report"]])
def test_a_trial_in_place_of_an_experiment_gets_the_cure(cli: Cli, words: list[str]) -> None:
    code, out, err = cli.tuner(*words, "tiny/1")
    assert (code, out) == (5, "")
    assert (
        "there is no experiment tiny/1: it is a trial; name the experiment, tiny, or see the trial: "
        "tuner describe tiny/1" in err
    )


def test_trials_are_sorted_with_those_without_a_value_last(cli: Cli) -> None:
    value = {trial["number"]: trial.get("value") for trial in cli.trials()}
    ascending = sorted((n for n in value if value[n] is not None), key=lambda n: value[n])
    assert numbers(cli, "--sort", "value") == [*ascending, 1]
    assert numbers(cli, "--sort", "-value") == [*reversed(ascending), 1]
    assert numbers(cli, "--sort", "-number", "--limit", "2") == [3, 2]
    assert numbers(cli, "--sort", "-loss", "--state", "failed,succeeded", "--limit", "2") == [3, 2]
    assert numbers(cli, "--sort=-x") == sorted(
        value, key=lambda n: -cli.trials()[n]["parameters"]["x"]
    )
    assert len(numbers(cli, "--sort", "time")) == 4


def test_trials_are_filtered_by_state(cli: Cli) -> None:
    assert numbers(cli, "--state", "failed") == [1]
    assert numbers(cli, "--state", "failed", "--state", "running,pruned") == [1]
    code, _, err = cli.tuner("get", "trials", "tiny", "--state", "faild")
    assert (code, "--state: faild is not a state of a trial; did you mean failed?" in err) == (
        2,
        True,
    )


def test_columns_are_selected_by_name(cli: Cli) -> None:
    out = cli.tuner(
        "get", "trials", "tiny", "--columns", "trial,loss,metrics.acc,x", "--limit", "1"
    )[1]
    assert out.splitlines()[0].split() == ["TRIAL", "metrics.loss", "metrics.acc", "x"]
    assert out.splitlines()[1].split()[:3] == ["0", "0", "nan"]
    out = cli.tuner(
        "get", "trials", "tiny", "-o", "csv", "--columns", "number,loss,attempts", "--sort", "loss"
    )[1]
    assert out.splitlines() == [
        "number,metrics.loss,attempts",
        "0,0.0,1",
        "1,1.0,1",
        "2,2.0,1",
        "3,3.0,1",
    ]
    for words in (
        ("--columns", "nope"),
        ("--sort", "nope"),
        ("--columns", "x", "-o", "json"),
        ("--limit", "0"),
    ):
        assert cli.tuner("get", "trials", "tiny", *words)[0] == 2


def test_other_metrics_are_shown_with_their_last_values(cli: Cli) -> None:
    assert cli.trials()[2]["metrics"] == {"loss": 2.0, "acc": "NaN"}
    for words in (
        ("export", "tiny"),
        ("report", "tiny", "-o", "csv"),
        ("get", "trials", "tiny", "-o", "csv"),
    ):
        rows = list(csv.DictReader(io.StringIO(cli.tuner(*words)[1])))
        assert {row["number"]: row["metrics.loss"] for row in rows} == {
            str(n): f"{n}.0" for n in range(4)
        }
    assert "metrics.loss" in cli.tuner("report", "tiny")[1]
    assert {
        one["number"]: one["metrics"]["loss"]
        for one in cli.json("report", "tiny", "-o", "json")["trials"]
    } == {n: float(n) for n in range(4)}


def make_a_study(address: str) -> None:
    with Client(address) as client:
        spec = StudySpec(
            space=Space((Parameter("lr", Float(0.0, 1.0)),)),
            objectives=(Objective("acc", Direction.MAXIMIZE),),
            algorithm=Algorithm("random"),
        )
        client.create_study(STUDY, spec, request_id="r")
        for trial in client.suggest(STUDY, 3, client_id="me", request_id="s").trials[:2]:
            client.report(STUDY, trial.number, [Measurement(1, "loss", 4, 0.5)])
            client.complete(STUDY, trial.number, Outcome(TrialState.SUCCEEDED, float(trial.number)))


def test_studies_of_a_server_are_listed_and_exported(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli, a_server(tmp_path / "shared.db") as server:
        at = ("--server", server.address)
        assert cli.tuner("get", "studies", *at)[0] == 0
        make_a_study(server.address)
        (study,) = cli.json("get", "studies", "-o", "json", *at)
        assert (study["name"], study["trials"], study["algorithm"]) == (
            "by-hand",
            {"running": 1, "succeeded": 2},
            "random",
        )
        assert (study["best"]["number"], study["best"]["value"]) == (1, 1.0)
        assert "1 running, 2 succeeded" in cli.tuner("get", "studies", *at)[1]
        trials = cli.json("get", "trials", "by-hand", "-o", "json", "--sort", "-value", *at)
        assert [trial["number"] for trial in trials] == [1, 0, 2]
        assert (trials[0]["metrics"], trials[0]["clientId"]) == ({"loss": 0.5}, "me")
        assert cli.tuner("get", "trials", str(STUDY), *at)[1].splitlines()[3].split()[:2] == [
            "2",
            "running",
        ]
        whole = cli.json("export", "by-hand", "--format", "json", *at)
        assert whole["study"]["best"]["number"] == 1
        assert whole["trials"][0]["measurements"] == [
            {"attempt": 1, "metric": "loss", "step": 4, "value": 0.5}
        ]
        assert cli.tuner("export", "by-hand", *at)[1].splitlines()[1].endswith(",0.5")
        code, _, err = cli.tuner("get", "trials", "nothing", *at)
        assert (code, "there is no experiment nothing here, and no study " in err) == (5, True)
        storage = ("--storage", f"sqlite:///{tmp_path}/shared.db")
        assert [one["name"] for one in cli.json("get", "studies", "-o", "json", *storage)] == [
            "by-hand"
        ]


def test_the_studies_of_the_state_directory_are_those_of_its_experiments(cli: Cli) -> None:
    (study,) = cli.json("get", "studies", "-o", "json")
    assert study["trials"] == {"succeeded": 3, "failed": 1}
    assert cli.tuner("get", "studies", "-o", "name")[1].startswith("tiny-")
    assert json.loads(cli.tuner("get", "trials", study["name"], "-o", "json")[1])[3]["number"] == 3


def test_described_trials_and_experiments_are_data_on_request(cli: Cli) -> None:
    trial = cli.json("describe", "tiny/2", "-o", "json")
    assert {key: trial[key] for key in ("number", "state", "step")} == {
        "number": 2,
        "state": "succeeded",
        "step": 2,
    }
    assert [sample["value"] for sample in trial["measurements"] if sample["metric"] == "loss"] == [
        9,
        2,
    ]
    whole = cli.json("describe", "tiny", "-o", "json")
    assert (whole["name"], whole["state"], whole["revision"]) == ("tiny", "succeeded", 1)
    assert whole["file"]["spec"]["objective"]["metric"] == "score"


def test_a_pipe_gets_whole_reasons(tmp_path: Path) -> None:
    reason = "a reason of many words " * 9 + "and its end"
    with cli_in(tmp_path) as cli:
        cli.file.write_text(
            experiment(["sh", "-c", f"echo {reason}; exit 42", "sh", "${x}"], trials=1)
        )
        cli.tuner("run", cli.file)
        assert reason in cli.tuner("get", "trials", "tiny")[1]
        assert reason in cli.tuner("describe", "tiny/0")[1]
