"""`tuner import` before the first run, repeated, from another experiment, and with invalid data."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import create_trial

from tests.e2e.cli import Cli, cli_in, experiment

RESULTS = "lr,score\n0.25,0.9\n0.5,0.8\n7,0.95\nwide,1\n0.75,nan\n"


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        cli.file.write_text(experiment(trials=1))
        (tmp_path / "results.csv").write_text(RESULTS.replace("lr", "x"))
        yield cli


def test_results_imported_before_the_first_run_are_part_of_the_search_once(cli: Cli) -> None:
    cli.env["TUNER_FAILPOINT"] = "store.add_trials.before"
    assert cli.tuner("import", cli.file, "--from", "results.csv")[0] == -9
    del cli.env["TUNER_FAILPOINT"]
    code, out, err = cli.tuner("import", cli.file, "--from", "results.csv")
    assert (code, out) == (0, "tiny: 3 trials imported from results.csv\n"), err
    assert "outside the search space (number of trials): x (1);" in err
    assert (
        "2 trials not imported:\n  line 5: x: 'wide' is not a number\n  line 6: score: 'nan' is "
        "not a finite number" in err
    )
    assert f"Run it: tuner run {cli.file}" in err
    code, out, _ = cli.tuner("import", "tiny", "--from", "results.csv", "-q")
    assert (code, out) == (0, "tiny: 0 trials imported from results.csv, 3 were there already\n")
    code, out, err = cli.tuner("run", cli.file)
    assert (code, out) == (0, "tiny: best score 0.95 (trial 2, imported)\n  x  7\n"), err
    assert [line for line in err.splitlines() if "best so far" in line] == [
        "best so far: trial 2 (imported), score 0.95"
    ]
    assert [(t["number"], t["state"], t["labels"], len(t["attempts"])) for t in cli.trials()] == [
        *((n, "succeeded", {"tuner.dev/imported-from": "results.csv"}, 0) for n in range(3)),
        (3, "succeeded", {}, 1),
    ]
    cli.file.write_text(experiment(trials=1, name="other"))
    code, out, err = cli.tuner("import", cli.file, "--from", "tiny")
    assert (code, out) == (0, "other: 4 trials imported from tiny\n"), err


def test_an_export_is_imported_from_standard_input_as_it_was(cli: Cli) -> None:
    choices = r'x: [" a", "", "one\rtwo", "\r\n", é]'
    cli.file.write_text(
        experiment(
            trials=5, parameters=choices, algorithm="grid, seed: 1", command=["echo", "score=1"]
        )
    )
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    exported = subprocess.run(
        ["tuner", "export", "tiny", "--format", "csv"], env=cli.env, capture_output=True, check=True
    )
    cli.file.write_text(experiment(name="other", parameters=choices))
    imported = ["tuner", "import", str(cli.file), "--from", "-"]
    subprocess.run(imported, env=cli.env, input=exported.stdout, capture_output=True, check=True)
    ours, theirs = (cli.json("get", "trials", name, "-o", "json") for name in ("tiny", "other"))
    assert [trial["parameters"] for trial in theirs] == [trial["parameters"] for trial in ours]
    latin = subprocess.run(
        imported,
        env=cli.env,
        input="score,x\n1,é\n".encode("latin-1"),
        capture_output=True,
        check=False,
    )
    assert latin.returncode == 2
    assert b"standard input: is not UTF-8 text" in latin.stderr


def test_a_file_without_the_right_columns_creates_no_experiment(cli: Cli) -> None:
    (cli.folder / "bad.csv").write_text("y,loss\n1,2\n")
    code, _, err = cli.tuner("import", cli.file, "--from", "bad.csv")
    assert (code, "bad.csv: has no column for x; it has y, loss; or add --fill x=VALUE" in err) == (
        2,
        True,
    ), err
    assert "has no column 'score' or 'value' for the value" in err
    assert list((cli.folder / "state" / "experiments").iterdir()) == []


def test_a_journal_of_optuna_with_several_objectives_is_imported(cli: Cli) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = JournalStorage(JournalFileBackend(str(cli.folder / "journal.log")))
    study = optuna.create_study(
        storage=storage, study_name="mine", directions=["maximize", "minimize"]
    )
    x = {"x": FloatDistribution(0.0, 1.0)}
    study.add_trial(create_trial(values=[0.9, 3.0], params={"x": 0.25}, distributions=x))
    cli.file.write_text(
        experiment().replace(
            "objective: {metric: score, direction: maximize}",
            "objectives: [{metric: score, direction: maximize}, {metric: size, direction: "
            "minimize}]",
        )
    )
    code, out, err = cli.tuner("import", cli.file, "--from", "journal.log")
    assert (code, out) == (0, "tiny: 1 trial imported from mine in journal.log\n"), err
    [trial] = cli.trials()
    assert (trial["value"], trial["parameters"]) == (0.9, {"x": 0.25})


def test_a_crashed_run_of_wandb_is_imported_as_a_failure_and_told(cli: Cli) -> None:
    (cli.folder / "wandb.csv").write_text(
        '"Name","State","x","score"\n"a","finished",0.1,0.9\n"b","crashed",0.5,0.99\n'
    )
    code, _, err = cli.tuner("import", cli.file, "--from", "wandb.csv")
    assert code == 0
    assert "how trials ended is taken from State (1 succeeded, 1 failed)" in err
    assert [trial["state"] for trial in cli.trials()] == ["succeeded", "failed"]
