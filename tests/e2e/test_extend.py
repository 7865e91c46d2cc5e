"""`tuner extend`: a finished search gets more trials,
and a kill between the writes does no harm.
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in, experiment

WORDS = (
    "extend",
    "tiny",
    "--trials",
    "+2",
    "--set",
    "spec.parameters.x.max=2",
    "--set",
    "spec.parameters.k=[a, b]",
)
MOMENTS = (
    "controller.experiment_store.add_revision.after",
    "controller.store.save.before",
    "study.update.after",
)


FILE = experiment(parameters="x: {type: float, min: 0, max: 1}, k: [a]", algorithm="tpe, seed: 1")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A command line with a finished experiment.

    Tests copy its state directory and do not change it.
    """
    with cli_in(tmp_path_factory.mktemp("finished")) as cli:
        cli.file.write_text(FILE)
        assert cli.tuner("run", cli.file)[0] == 0
        yield cli


@pytest.fixture
def cli(finished: Cli, tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        cli.file.write_text(FILE)
        shutil.copytree(finished.folder / "state", tmp_path / "state")
        yield cli


def past(folder: Path) -> int:
    """Return how often the study has grown."""
    with closing(sqlite3.connect(folder / "state" / "studies.db")) as connection:
        (grown,) = connection.execute("SELECT json_array_length(past) FROM studies").fetchone()
    return int(grown)


def test_an_extension_killed_between_its_writes_is_repeated_without_harm(cli: Cli) -> None:
    for moment in MOMENTS:
        cli.env["TUNER_FAILPOINT"] = moment
        assert cli.tuner(*WORDS)[0] == -9, moment
    del cli.env["TUNER_FAILPOINT"]
    code, out, err = cli.tuner(*WORDS)
    assert (code, out.startswith("tiny: best score ")) == (0, True), err
    assert "revision 2 already contains these changes; none of its trials has started" in err
    trials = cli.trials()
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3]
    assert trials[2]["parameters"]["k"] == "b", "a new choice is tried first"
    assert past(cli.folder) == 1
    assert [
        path.name for path in sorted((cli.folder / "state" / "experiments").glob("*/*.yaml"))
    ] == [
        "experiment.r2.yaml",
        "experiment.yaml",
    ]
    for verb in ("run", "resume"):  # with the user's own file, which does not contain the extension
        code, out, err = cli.tuner(verb, cli.file)
        assert (code, out.startswith("tiny: best score ")) == (0, True), err
        assert "experiment.yaml is revision 1 of tiny; continuing with revision 2, " in err
        assert "spec.budget.trials: 2 -> 4" in err
    cli.file.write_text(cli.file.read_text().replace("max: 1}", "max: 3}"))
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "The file in effect since revision 2: " in err) == (6, True), err


def test_a_change_that_is_not_growth_is_refused_in_one_sentence(cli: Cli) -> None:
    code, _, err = cli.tuner("extend", "tiny", "--set", "spec.parameters.x.max=0.5")
    assert code == 2
    assert "--set spec.parameters.x.max=0.5: 0.5 is below 1, and a range only grows" in err
    code, _, err = cli.tuner("extend", "tiny", "--trials", "2")
    assert (code, "tiny would not change; it succeeded: all 2 trials are done" in err) == (
        6,
        True,
    ), err
    assert not list((cli.folder / "state" / "experiments").glob("*/experiment.r2.yaml"))


def test_the_changed_file_extends_the_search_too(cli: Cli) -> None:
    text = (
        cli.file.read_text()
        .replace("max: 1}, k: [a]", "max: 4}, k: [a, c]")
        .replace("trials: 2", "trials: 3")
    )
    cli.file.write_text(text)
    assert cli.tuner("extend", cli.file)[0] == 0
    assert len(cli.trials()) == 3


def test_points_that_extend_has_added_are_no_change_of_a_file_without_them(cli: Cli) -> None:
    assert (
        cli.tuner("extend", "tiny", "--trials", "+1", "--set", "spec.parameters.k=[a, c]")[0] == 0
    )
    text = cli.file.read_text().replace("k: [a]", "k: [a, c]").replace("trials: 2", "trials: 4")
    cli.file.write_text(text)
    code, _, err = cli.tuner("extend", cli.file)
    assert (code, len(cli.trials())) == (0, 4), err
    assert cli.tuner("run", cli.file)[0] == 0, "the file is the one in force"
    cli.file.write_text(text.replace("trials: 4", "trials: 5"))
    code, _, err = cli.tuner("resume", cli.file)
    assert (code, len(cli.trials())) == (0, 5), err
