"""`tuner confirm` runs the best trials again with new seeds, outside of the search."""

from __future__ import annotations

import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in, experiment

ROOT = Path(__file__).parents[2]
SEEDED = 'echo "$TUNER_SEED $1" >> seeds.txt; echo score=$(( $1 * 100 + TUNER_SEED % 7 ))'


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A search of four trials, whose values also depend on the seed."""
    with cli_in(tmp_path) as cli:
        cli.file.write_text(
            experiment(
                ["sh", "-c", SEEDED, "sh", "${x}"],
                trials=4,
                parameters="x: {type: int, min: 1, max: 9}",
                algorithm="grid",
            )
        )
        assert cli.tuner("run", cli.file)[0] == 0
        yield cli


def seeds(cli: Cli) -> dict[str, set[int]]:
    """Return the seeds with which each value of x ran."""
    found: dict[str, set[int]] = {}
    for line in (cli.folder / "seeds.txt").read_text().splitlines():
        seed, x = line.split()
        found.setdefault(x, set()).add(int(seed))
    return found


def test_every_candidate_runs_with_the_same_new_seeds(cli: Cli) -> None:
    before = seeds(cli)
    trials = cli.trials()
    (cli.folder / "seeds.txt").unlink()
    code, out, err = cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "3")
    assert code == 0, err
    assert "is better than trial" in out
    again = seeds(cli)
    assert len(again) == 2
    first, second = again.values()
    assert first == second
    assert len(first) == 3
    assert not first & set().union(*before.values())
    best = sorted(trials, key=lambda trial: -trial["value"])[:2]
    assert set(again) == {str(trial["parameters"]["x"]) for trial in best}


def test_the_search_does_not_learn_of_its_reruns(cli: Cli) -> None:
    before = cli.trials()
    assert cli.tuner("confirm", "tiny", "--top", "1", "--seeds", "2")[0] == 0
    assert cli.trials() == before
    found = cli.json("get", "trials", "tiny-confirm", "-o", "json")
    assert len(found) == 2


def test_the_answer_is_in_best_and_in_the_report(cli: Cli) -> None:
    code, _, err = cli.tuner("best", "tiny", "--confirmed")
    assert (code, "no rerun of trials of tiny has succeeded; run them: tuner confirm" in err) == (
        5,
        True,
    )
    _, out, _ = cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "3")
    assert cli.tuner("best", "tiny", "--confirmed")[1].endswith(out)
    assert cli.tuner("report", "tiny")[1].endswith(out)
    best = cli.json("best", "tiny", "--confirmed", "-o", "json")
    assert best["confirmed"]["candidates"][0]["trial"] == best["number"]
    report = cli.json("report", "tiny", "-o", "json")
    assert report["confirmed"] == best["confirmed"]


def test_killed_reruns_continue_with_the_same_command(cli: Cli) -> None:
    (cli.folder / "seeds.txt").unlink()
    cli.env["TUNER_FAILPOINT"] = "runtime.start.after:2"
    process = cli.start("confirm", "tiny", "--top", "2", "--seeds", "2")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    del cli.env["TUNER_FAILPOINT"]
    code, _, err = cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
    assert code == 0, err
    lines = (cli.folder / "seeds.txt").read_text().splitlines()
    assert (len(lines), len(set(lines))) == (4, 4)
    again = cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
    assert again[0] == 0
    assert (cli.folder / "seeds.txt").read_text().splitlines() == lines


def test_what_cannot_be_confirmed_is_refused(cli: Cli) -> None:
    for flags, said in (
        (("--seeds", "1"), "--seeds: 1 is too few; use 2 or more"),
        (("--top", "0"), "--top: 0 is too few; use 1 or more"),
    ):
        code, _, err = cli.tuner("confirm", "tiny", *flags)
        assert (code, said in err) == (2, True), err
    assert cli.tuner("confirm", "tinny")[0] == 5
    assert cli.tuner("confirm", "tiny", "--top", "1", "--seeds", "2")[0] == 0
    code, _, err = cli.tuner("confirm", "tiny", "--top", "1", "--seeds", "3")
    assert "of tiny, 2 each; to run others, first delete it: tuner delete tiny-confirm" in err
    assert code == 6
    cli.file.write_text(experiment(["false"], name="bad", trials=1))
    cli.tuner("run", cli.file)
    code, _, err = cli.tuner("confirm", "bad")
    assert (code, "no trial of bad has succeeded" in err) == (6, True), err


def test_the_commands_of_the_page_work(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reruns.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\$ tuner (.*)$", page, re.MULTILINE)
    assert len(shown) == 5
    folder = tmp_path / "reruns"
    shutil.copytree(ROOT / "examples" / "reruns", folder)
    with cli_in(folder) as cli:
        for line in shown:
            code, _, err = cli.tuner(*shlex.split(line))
            assert code == 0, f"{line}: {err}"
