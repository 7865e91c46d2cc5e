"""`tuner confirm` runs the best trials again with new seeds, outside of the search."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in, experiment

ROOT = Path(__file__).parents[2]
SEEDED = 'echo "$TUNER_SEED $1" >> seeds.txt; echo score=$(( $1 * 10000 + TUNER_SEED % 997 ))'


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


def test_reruns_that_failed_are_told_and_run_again_by_the_command_that_is_told(
    tmp_path: Path,
) -> None:
    with cli_in(tmp_path) as cli:
        program = "test -e broken$1 && exit 1; echo score=$(( $1 * 10000 + TUNER_SEED % 997 ))"
        points = "x: {type: int, min: 1, max: 3}"
        command = ["sh", "-c", program, "sh", "${x}"]
        cli.file.write_text(experiment(command, trials=3, parameters=points, algorithm="grid"))
        assert cli.tuner("run", cli.file)[0] == 0
        (cli.folder / "broken2").touch()
        confirm = ("confirm", "tiny", "--top", "2", "--seeds", "2")
        out = cli.tuner(*confirm)[1]
        assert "2 reruns failed" in out
        (cli.folder / "broken2").unlink()
        _, _, told = out.partition("then run them again: tuner ")
        assert cli.tuner(*shlex.split(told))[0] == 0
        code, out, err = cli.tuner(*confirm)
        assert (code, "failed" in out) == (0, False), out + err
        confirmed = cli.json("report", "tiny", "-o", "json")["confirmed"]
        assert confirmed["failed"] == 0
        assert [len(each["values"]) for each in confirmed["candidates"]] == [2, 2]


def test_code_that_is_not_that_of_the_search_is_told_before_the_reruns(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli:
        points = "x: {type: int, min: 1, max: 3}"
        program = cli.folder / "train.sh"
        program.write_text("echo score=$1\n")
        for words in (("init",), ("add", "train.sh"), ("commit", "--message=one")):
            identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
            subprocess.run(["git", *identity, *words], cwd=cli.folder, check=True)
        command = ["sh", "train.sh", "${x}"]
        cli.file.write_text(experiment(command, trials=3, parameters=points, algorithm="grid"))
        assert cli.tuner("run", cli.file)[0] == 0
        confirm = ("confirm", "tiny", "--top", "2", "--seeds", "2")
        assert "other code now" not in cli.tuner(*confirm)[2]
        assert cli.tuner("delete", "tiny-confirm", "--yes")[0] == 0
        program.write_text("echo score=$(( $1 + 1 ))\n")
        err = cli.tuner(*confirm)[2]
        assert f"{cli.folder} has other code now than trial 2, 1 ran: the recorded values" in err
        assert "to run one as it ran: tuner reproduce tiny/N" in err
        # What they ran is not what is there now.
        program.write_text("echo score=$(( $1 + 2 ))\n")
        assert "other code now" not in cli.tuner(*confirm)[2]


def test_code_that_git_does_not_track_or_did_not_compare_is_told_apart(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli:
        points = "x: {type: int, min: 1, max: 3}"
        new = cli.folder / "new.sh"
        new.write_text("echo score=$1\n")
        identity = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        for words in (("init",), ("commit", "--allow-empty", "--message=one")):
            subprocess.run(["git", *identity, *words], cwd=cli.folder, check=True)
        command = ["sh", "new.sh", "${x}"]
        cli.file.write_text(experiment(command, trials=3, parameters=points, algorithm="grid"))
        assert cli.tuner("run", cli.file)[0] == 0
        records = list((cli.folder / "state").glob("experiments/*/trials/*/1/provenance.json"))

        def told() -> tuple[bool, bool]:
            code, _, err = cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
            assert code == 0, err
            assert cli.tuner("delete", "tiny-confirm", "--yes")[0] == 0
            differs = "has other code now than trial 2, 1 ran" in err
            return differs, "may have other code than trial 2, 1 ran" in err

        assert told() == (False, False)
        new.write_text("echo score=$(( $1 + 1 ))\n")
        assert told() == (True, False)
        new.write_text("echo score=$1\n")
        for path in records:
            document = json.loads(path.read_text())
            # As where git took too long to compare.
            del document["git"]["dirty"]
            path.write_text(json.dumps(document))
        assert told() == (False, False)
        for path in records:
            document = json.loads(path.read_text())
            (path.parents[3] / document["git"]["untrackedFiles"]).unlink(missing_ok=True)
        assert told() == (False, True)
        shutil.rmtree(cli.folder / ".git")
        assert told() == (False, True)
        _, _, err = cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "2")
        assert "ran: git finds no commit there" in err


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


def with_rule(cli: Cli, *, trials: int = 4, rule: str = "{top: 2, seeds: 3}") -> None:
    """Write the file of a new search whose best trials run again when it has succeeded."""
    text = experiment(
        ["sh", "-c", SEEDED, "sh", "${x}"],
        name="ruled",
        trials=trials,
        parameters="x: {type: int, min: 1, max: 9}",
        algorithm="grid",
    )
    points = "[{x: 1}, {x: 2}, {x: 3}, {x: 4}]"
    cli.file.write_text(f"{text}  initial: {points}\n  confirm: {rule}\n")
    (cli.folder / "seeds.txt").unlink(missing_ok=True)


def test_a_search_with_the_rule_ends_with_its_best_trials_run_again(cli: Cli) -> None:
    with_rule(cli)
    code, out, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert "Reruns of ruled, with 3 new seeds" in out
    assert cli.tuner("report", "ruled")[1].endswith(out[out.index("Reruns of") :])
    ran = (cli.folder / "seeds.txt").read_text()
    assert len(ran.splitlines()) == 4 + 2 * 3
    assert cli.tuner("confirm", "ruled", "--top", "2", "--seeds", "3")[0] == 0
    assert cli.tuner("run", cli.file)[1] == out
    assert (cli.folder / "seeds.txt").read_text() == ran


def test_reruns_of_the_rule_continue_after_a_kill_before_or_among_them(cli: Cli) -> None:
    with_rule(cli)
    for starts in (4, 6):
        cli.env["TUNER_FAILPOINT"] = f"runtime.start.after:{starts}"
        cli.start("run", cli.file).communicate(timeout=60)
        del cli.env["TUNER_FAILPOINT"]
    code, out, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert "Reruns of ruled" in out
    lines = (cli.folder / "seeds.txt").read_text().splitlines()
    assert (len(lines), len(set(lines))) == (10, 10)


def test_a_search_that_found_better_trials_says_that_they_did_not_run_again(cli: Cli) -> None:
    with_rule(cli)
    assert cli.tuner("run", cli.file)[0] == 0
    code, out, err = cli.tuner("extend", "ruled", "--trials", "+5")
    assert code == 0, err
    again = "tuner delete ruled-confirm"
    assert again in err
    best = cli.json("best", "ruled", "-o", "json")["number"]
    report = cli.tuner("report", "ruled")[1]
    assert f"trial {best}, the best of the search, did not run again" in report
    assert cli.tuner("delete", "ruled-confirm", "--yes")[0] == 0
    code, out, err = cli.tuner("resume", "ruled")
    assert (code, again in err) == (0, False), err
    assert f"\n{best} " in out


def test_a_failed_final_stage_still_counts_after_the_reruns(cli: Cli) -> None:
    with_rule(cli, rule="{top: 1, seeds: 2}\n  final: {command: ['false']}")
    code, out, err = cli.tuner("run", cli.file)
    assert (code, "Reruns of ruled, with 2 new seeds" in out) == (1, True), err


def test_an_ended_search_is_confirmed_when_its_file_gets_the_rule(cli: Cli) -> None:
    text = cli.file.read_text()
    cli.file.write_text(f"{text}  confirm: {{top: 1}}\n")
    code, out, err = cli.tuner("resume", cli.file)
    assert (code, "Reruns of tiny, with 5 new seeds" in out) == (0, True), err


def test_a_file_whose_trials_cannot_run_again_with_other_seeds_is_refused(cli: Cli) -> None:
    for rule, said in (
        ("{top: 0}", "spec.confirm.top: expected a whole number of at least 1"),
        ("{seeds: 1}", "spec.confirm.seeds: expected a whole number of at least 2"),
        ("{seeds: 1001}", "spec.confirm.seeds: 1001 is too large; use at most 1000"),
        ("5", "spec.confirm: expected a mapping such as {top: 3, seeds: 5}"),
    ):
        with_rule(cli, rule=rule)
        code, _, err = cli.tuner("validate", cli.file)
        assert (code, said in err) == (2, True), err


def test_reruns_cannot_be_extended_by_trials_that_repeat_nothing(cli: Cli) -> None:
    assert cli.tuner("confirm", "tiny", "--top", "2", "--seeds", "3")[0] == 0
    code, _, err = cli.tuner("extend", "tiny-confirm", "--trials", "+20")
    assert code == 2
    assert "26 is more than 6, the reruns that spec.rerun has: 2 trials with 3 seeds each" in err
    code, _, err = cli.tuner("set", "tiny-confirm", "spec.parallelism=1")
    assert (code, "first delete it: tuner delete tiny-confirm" in err) == (6, True), err


def test_reruns_are_not_confirmed_again(cli: Cli) -> None:
    assert cli.tuner("confirm", "tiny", "--top", "1", "--seeds", "2")[0] == 0
    code, _, err = cli.tuner("confirm", "tiny-confirm", "--seeds", "3")
    assert code == 6, err
    assert "tiny-confirm has reruns of tiny" in err
    assert "delete tiny-confirm and run: tuner confirm tiny --seeds 12" in err
    text = cli.tuner("describe", "tiny-confirm", "-o", "json")[1]
    document = json.loads(text)["file"]
    document["metadata"]["name"] = "again"
    document["spec"]["confirm"] = {"top": 1}
    cli.file.write_text(json.dumps(document))
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "spec.confirm: cannot confirm reruns" in err) == (2, True), err


def test_what_cannot_be_confirmed_is_refused(cli: Cli) -> None:
    for flags, said in (
        (("--seeds", "1"), "--seeds: 1 is too few; use 2 or more"),
        (("--top", "0"), "--top: 0 is too few; use 1 or more"),
        (("--seeds", "9" * 30), f"--seeds: {'9' * 30} is too many; use at most 1000"),
    ):
        code, _, err = cli.tuner("confirm", "tiny", *flags)
        assert (code, said in err) == (2, True), err
    assert cli.tuner("confirm", "tinny")[0] == 5
    assert cli.tuner("confirm", "tiny", "--top", "1", "--seeds", "2")[0] == 0
    code, _, err = cli.tuner("confirm", "tiny", "--top", "1", "--seeds", "3")
    assert "of tiny, with 2 seeds; to run others, first delete it: tuner delete tiny-confirm" in err
    assert code == 6
    cli.file.write_text(experiment(["false"], name="bad", trials=1))
    cli.tuner("run", cli.file)
    code, _, err = cli.tuner("confirm", "bad")
    assert (code, "no trial of bad has succeeded" in err) == (6, True), err


def test_more_reruns_than_a_file_can_have_are_refused(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli:
        # Two points of a kilobyte, which a thousand seeds make two megabytes.
        values = ", ".join(letter * 1000 for letter in "ab")
        cli.file.write_text(
            experiment(["sh", "-c", "echo score=1"], trials=2, parameters=f"x: [{values}]")
        )
        cli.file.write_text(f"{cli.file.read_text()}  confirm: {{seeds: 1000}}\n")
        said = "the file of tiny-confirm, with 2000 reruns, would have 2.0 MB, and one has at most"
        code, _, err = cli.tuner("run", cli.file)
        assert (code, f"tiny is not confirmed: {said}" in err) == (0, True), err
        code, _, err = cli.tuner("confirm", "tiny", "--seeds", "1000")
        assert (code, said in err) == (6, True), err


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
