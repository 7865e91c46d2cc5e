"""Values that another user added to a study never reach the shell of this experiment."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client, FinishedTrial, Outcome, TrialState
from suggest.space import Choice, Space
from suggest.study import StudyName
from tests.e2e.cli import Cli, cli_in, experiment
from tests.service.running import a_server

EVIL = "a; touch pwned"
SCRIPT = 'echo "run ${c}" >> ran.txt; echo score=1'
FILE = experiment(["sh", "-c", SCRIPT], parameters="c: [a, b]", algorithm="random, seed: 1")


@pytest.fixture
def member(tmp_path: Path) -> Iterator[Client]:
    """A client of another member of the namespace, at the server that both use."""
    with a_server(tmp_path / "shared.db") as server, Client(server.address) as client:
        yield client


@pytest.fixture
def cli(tmp_path: Path, member: Client) -> Iterator[Cli]:
    (tmp_path / "mine").mkdir()
    with cli_in(tmp_path / "mine") as cli:
        cli.file.write_text(FILE)
        assert cli.tuner("run", cli.file, "--server", member.address)[0] == 0
        yield cli


def grow(member: Client) -> StudyName:
    (study,) = member.list_studies()
    (parameter,) = study.spec.space.parameters
    member.update_study(
        study.name, space=Space((replace(parameter, domain=Choice(("a", "b", EVIL))),))
    )
    return study.name


def test_a_choice_added_by_another_member_is_refused_and_the_search_continues(
    cli: Cli, member: Client
) -> None:
    member.add_trial(grow(member), {"c": EVIL}, request_id="evil")
    code, _, err = cli.tuner("extend", "tiny", "--trials", "+4", "--server", member.address)
    assert code == 8, err
    assert f"c: '{EVIL}' is not one of the choices 'a', 'b'" in err
    assert "tuner resume tiny" in err
    assert [trial["state"] for trial in cli.trials()] == ["succeeded", "succeeded", "infeasible"]
    # the algorithm may propose the value again, and each refusal is reported once
    for _ in range(4):
        code, _, err = cli.tuner("resume", "tiny", "--server", member.address)
        if code != 8:
            break
    assert code == 0, err
    trials = cli.trials()
    assert len(trials) == 6
    assert {trial["state"] for trial in trials if trial["parameters"]["c"] == EVIL} == {
        "infeasible"
    }
    assert {trial["state"] for trial in trials if trial["parameters"]["c"] != EVIL} == {"succeeded"}
    assert not (cli.folder / "pwned").exists()
    assert set((cli.folder / "ran.txt").read_text().split()) == {"run", "a", "b"}


def test_a_best_trial_that_another_member_imported_does_not_reach_the_final_stage(
    cli: Cli, member: Client
) -> None:
    best = FinishedTrial({"c": EVIL}, Outcome(TrialState.SUCCEEDED, 99.0))
    assert (
        member.import_trials(grow(member), [best], source="evil", request_id="evil")[0].number
        is not None
    )
    final = '  final: {command: [sh, -c, "echo final ${c} >> ran.txt"]}\n'
    cli.file.write_text(FILE.replace("trials: 2,", "trials: 3,") + final)
    code, _, err = cli.tuner("resume", cli.file, "--server", member.address)
    assert code in (0, 1), err
    assert "its final stage failed" in cli.tuner("describe", "tiny")[1]
    assert not (cli.folder / "pwned").exists()
    assert "final" not in (cli.folder / "ran.txt").read_text()


def test_values_run_once_the_experiments_own_file_allows_them(cli: Cli, member: Client) -> None:
    sets = ("--trials", "+2", "--set", "spec.parameters.c=[a, b, d]")
    code, _, err = cli.tuner("extend", "tiny", *sets, "--server", member.address)
    assert code == 0, err
    assert "run d" in (cli.folder / "ran.txt").read_text()
