"""`tuner reproduce` runs a trial again as it ran: parameters, seed, revision, commit and changes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli, cli_in, eventually, experiment
from tests.small_disk import fill, small_disk

PROGRAM = "echo score=$(( $1 * 100000 + TUNER_SEED % 1000 + {constant} ))\n"
FILE = "train.sh"


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=Ann", "-c", "user.email=ann@example.org")
    done = subprocess.run(
        ["git", "-C", folder, *identity, *words], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def write(cli: Cli, constant: int) -> None:
    (cli.folder / FILE).write_text(PROGRAM.format(constant=constant))


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    """A search in a checkout whose program differs from its commit."""
    with cli_in(tmp_path) as cli:
        git(cli.folder, "init", "-q")
        write(cli, 1)
        git(cli.folder, "add", FILE)
        git(cli.folder, "commit", "-qm", "one")
        write(cli, 2)
        cli.file.write_text(
            experiment(["sh", FILE, "${x}"], parameters="x: {type: int, min: 1, max: 9}")
        )
        assert cli.tuner("run", cli.file)[0] == 0
        yield cli


def provenance(cli: Cli) -> Path:
    (found,) = [
        path
        for path in (cli.folder / "state").glob("experiments/*/trials/1/1/provenance.json")
        if json.loads(path.read_text())["experiment"] == "tiny"
    ]
    return found


def changed(cli: Cli, **git_record: Any) -> None:
    """Write other values into the record of the commit."""
    path = provenance(cli)
    document = json.loads(path.read_text())
    document["git"] |= git_record
    path.write_text(json.dumps(document))


def refused(cli: Cli) -> str:
    code, _, err = cli.tuner("reproduce", "tiny/1")
    assert code == 6, err
    assert [one["name"] for one in cli.json("get", "experiments", "-o", "json")] == ["tiny"]
    return err


def test_unchanged_code_runs_where_it_is(cli: Cli) -> None:
    before = cli.trials()
    code, out, err = cli.tuner("reproduce", "tiny/1", "--times", "2")
    assert code == 0, err
    assert f"with the recorded changes, as it is in {cli.folder}" in err
    assert "reproduced (2 runs)" in out
    assert "the recorded value is reproduced exactly" in out
    assert cli.trials() == before


def test_changed_code_runs_as_it_was_in_a_worktree(cli: Cli) -> None:
    write(cli, 3)
    git(cli.folder, "commit", "-qam", "two")
    code, out, err = cli.tuner("reproduce", "tiny/1")
    assert (code, "the recorded value is reproduced exactly" in out) == (0, True), out + err
    assert "recorded files that git does not track; files that git ignores, such as data" in err
    assert "PROGRAM" not in out
    (checkout,) = (cli.folder / "state").glob("experiments/*/checkout")
    assert (checkout / FILE).read_text() == PROGRAM.format(constant=2)
    assert (cli.folder / FILE).read_text() == PROGRAM.format(constant=3)
    assert str(checkout) in git(cli.folder, "worktree", "list")
    assert cli.tuner("delete", "tiny-reproduce-1", "--yes")[0] == 0
    assert not checkout.exists()
    assert str(checkout) not in git(cli.folder, "worktree", "list")


def test_no_files_are_counted_where_git_tracked_all(cli: Cli) -> None:
    git(cli.folder, "add", "-A", ".", ":!state", ":!starts.txt")
    (cli.folder / ".git" / "info" / "exclude").write_text("state\n*.txt\nnext.yaml\n")
    git(cli.folder, "commit", "-qm", "all")
    text = cli.file.read_text().replace("name: tiny", "name: next")
    (cli.folder / "next.yaml").write_text(text)
    assert cli.tuner("run", cli.folder / "next.yaml")[0] == 0
    write(cli, 7)
    err = cli.tuner("reproduce", "next/1")[2]
    assert "/checkout; files that git ignores, such as data, are not in it\n" in err


def test_untracked_files_are_as_they_were_or_named(cli: Cli) -> None:
    (cli.folder / ".gitignore").write_text("ignored\n")
    (cli.folder / "ignored").write_text("old")
    (cli.folder / "sub").mkdir()
    new, data = cli.folder / "sub" / "new.sh", cli.folder / "sub" / "large.bin"
    new.write_text("#!/bin/sh\necho score=$(( $1 * 3 ))\n")
    new.chmod(0o755)
    data.write_bytes(bytes((1 << 20) + 1))
    text = experiment(
        ["./sub/new.sh", "${x}"], name="fresh", parameters="x: {type: int, min: 1, max: 9}"
    )
    cli.file.write_text(text)
    assert cli.tuner("run", cli.file)[0] == 0
    (cli.folder / "later.txt").write_text("of a trial")
    _, out, err = cli.tuner("reproduce", "fresh/1")
    assert f"as it is in {cli.folder}" in err
    assert "reproduced exactly" in out

    new.write_text("#!/bin/sh\necho score=0\n")
    _, out, err = cli.tuner("reproduce", "fresh/0")
    assert "reproduced exactly" in out, err
    assert "not recorded, and not in it: sub/large.bin; files that git ignores" in err
    (checkout,) = (cli.folder / "state").glob("experiments/*/checkout")
    assert (checkout / "sub" / "new.sh").exists()
    assert not list(checkout.glob("**/large.bin")) + list(checkout.glob("ignored"))
    assert not (checkout / "state").exists()


def test_untracked_files_that_are_changed_in_the_record_are_refused(cli: Cli) -> None:
    changed(cli, untrackedFiles="untracked/../../../x.zip")
    assert "is missing, or was changed since it was recorded" in refused(cli)


def test_it_runs_with_the_revision_of_the_file_that_the_trial_had(cli: Cli) -> None:
    text = cli.file.read_text().replace("command:", "env: {OTHER: '1'}\n    command:")
    cli.file.write_text(text.replace("trials: 2", "trials: 3"))
    assert cli.tuner("extend", cli.file)[0] == 0
    assert cli.tuner("reproduce", "tiny/1")[0] == 0
    made = cli.json("describe", "tiny-reproduce-1", "-o", "json")
    assert made["file"]["spec"]["trial"]["env"] == {}


def test_a_killed_reproduction_continues_with_the_same_command(cli: Cli) -> None:
    write(cli, 3)
    for point in ("controller.experiment_store.create_experiment.before", "runtime.start.after"):
        cli.env["TUNER_FAILPOINT"] = point
        process = cli.start("reproduce", "tiny/1", "--times", "2")
        process.communicate(timeout=60)
        assert process.returncode == -signal.SIGKILL
    del cli.env["TUNER_FAILPOINT"]
    code, out, err = cli.tuner("reproduce", "tiny/1", "--times", "2")
    assert (code, "reproduced (2 runs)" in out) == (0, True), err
    assert "reproduced exactly" in out


def test_a_checkout_that_was_interrupted_is_made_again(cli: Cli, tmp_path: Path) -> None:
    begun, go = tmp_path / "begun", tmp_path / "go"
    slow = f"touch {begun}; until [ -e {go} ]; do sleep 0.05; done; cat"
    git(cli.folder, "config", "filter.slow.smudge", slow)
    (cli.folder / ".gitattributes").write_text("*.sh filter=slow\n")
    git(cli.folder, "add", ".gitattributes")
    git(cli.folder, "commit", "-qam", "two")
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: slow"))
    assert cli.tuner("run", cli.file)[0] == 0
    elsewhere = tmp_path / "elsewhere"
    go.touch()
    git(cli.folder, "worktree", "add", "--quiet", str(elsewhere))
    elsewhere.rename(tmp_path / "not-mounted")
    go.unlink()
    begun.unlink()
    write(cli, 3)
    process = cli.start("reproduce", "slow/1")
    eventually(begun.exists)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    assert process.returncode == 130
    go.touch()
    code, out, err = cli.tuner("reproduce", "slow/1")
    assert (code, "reproduced exactly" in out) == (0, True), err
    assert str(elsewhere) in git(cli.folder, "worktree", "list")


def test_a_branch_without_a_commit_keeps_nothing_from_running_again(cli: Cli) -> None:
    git(cli.folder, "checkout", "-q", "--orphan", "new")
    write(cli, 3)
    code, out, err = cli.tuner("reproduce", "tiny/1")
    assert (code, "the recorded value is reproduced exactly" in out) == (0, True), out + err


def test_a_commit_that_is_gone_is_refused(cli: Cli) -> None:
    changed(cli, commit="1" * 40)
    assert f"fetch it and repeat: git fetch origin {'1' * 40}" in refused(cli)
    changed(cli, commit="--upload-pack=x")
    assert "which is not a commit" in refused(cli)


def test_a_checkout_that_is_gone_is_refused(cli: Cli) -> None:
    shutil.rmtree(cli.folder / ".git")
    assert "is not in a git checkout" in refused(cli)


def test_a_patch_that_does_not_apply_is_refused(cli: Cli) -> None:
    git(cli.folder, "checkout", "-q", FILE)
    git(cli.folder, "rm", "-q", FILE)
    git(cli.folder, "commit", "-qm", "without")
    changed(cli, commit=git(cli.folder, "rev-parse", "HEAD"))
    err = refused(cli)
    assert "does not apply to commit" in err
    assert FILE in err


@pytest.mark.parametrize("name", ["patches/0123456789abcdef.patch", "../../../outside"])
def test_a_patch_that_was_changed_or_is_elsewhere_is_refused(cli: Cli, name: str) -> None:
    changed(cli, patch=name)
    assert "is missing, or was changed since it was recorded" in refused(cli)


def test_other_packages_are_told(cli: Cli) -> None:
    path = provenance(cli)
    recorded = json.loads(path.read_text())
    root = path.parents[3]
    listed = (root / recorded["packages"]).read_text().splitlines()
    assert any(
        line.startswith("SQLAlchemy==") or line.startswith("sqlalchemy==") for line in listed
    )
    from controller.app.surroundings import store_packages

    recorded["packages"] = store_packages(["abacus==1.0", *listed], root)
    recorded["python"] = "3.9.1"
    path.write_text(json.dumps(recorded))
    code, _, err = cli.tuner("reproduce", "tiny/1")
    assert code == 0
    assert "1 package recorded in another version, or missing here: abacus==1.0" in err
    assert "python: 3.9.1 recorded" in err


def test_a_trial_without_a_value_is_refused(cli: Cli) -> None:
    cli.file.write_text(experiment(["false"], name="bad", trials=1))
    cli.tuner("run", cli.file)
    code, _, err = cli.tuner("reproduce", "bad/0")
    assert (code, "trial 0 of bad never succeeded, it is" in err) == (6, True), err
    assert cli.tuner("reproduce", "tiny/7")[0] == 5
    code, _, err = cli.tuner("reproduce", "tiny")
    assert (code, "write NAME/N, such as tiny/0" in err) == (2, True), err
    code, _, err = cli.tuner("reproduce", "tiny/1", "--times", "0")
    assert (code, "--times: 0 is too few; use 1 or more" in err) == (2, True), err
    code, _, err = cli.tuner("reproduce", "tiny/1", "--times", "1001")
    assert (code, "--times: 1001 is too many; use at most 1000" in err) == (2, True), err


def test_changes_that_are_too_large_are_not_recorded(cli: Cli) -> None:
    (cli.folder / FILE).write_text(PROGRAM.format(constant=2) + "#" * (5 << 20))
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: large"))
    assert cli.tuner("run", cli.file)[0] == 0
    code, _, err = cli.tuner("reproduce", "large/1")
    assert code == 0
    assert "by more than is recorded (4 MiB)" in err


def test_a_commit_is_recorded_also_when_its_changes_take_too_long(cli: Cli, tmp_path: Path) -> None:
    slow = tmp_path / "bin" / "git"
    slow.parent.mkdir()
    real = shutil.which("git")
    slow.write_text(f'#!/bin/sh\ncase "$*" in *" diff "*) sleep 60;; esac\nexec {real} "$@"\n')
    slow.chmod(0o755)
    git(cli.folder, "checkout", "-q", FILE)
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: slow"))
    path = cli.env.get("PATH", os.environ["PATH"])
    cli.env["PATH"] = f"{slow.parent}:{path}"
    assert cli.tuner("run", cli.file)[0] == 0
    cli.env["PATH"] = path
    write(cli, 3)
    code, out, err = cli.tuner("reproduce", "slow/1")
    assert (code, "reproduced exactly" in out) == (0, True), err
    assert "git failed, or took too long to say" in err


def test_a_program_that_git_waits_for_ends_with_git(cli: Cli, tmp_path: Path) -> None:
    monitor, started = tmp_path / "monitor.sh", tmp_path / "started"
    monitor.write_text(f"#!/bin/sh\necho $$ >> {started}\nexec sleep 600\n")
    monitor.chmod(0o755)
    git(cli.folder, "config", "core.fsmonitor", str(monitor))
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: watched"))
    assert cli.tuner("run", cli.file)[0] == 0
    pids = started.read_text().split()
    assert pids
    eventually(lambda: not any(Path("/proc", pid).exists() for pid in pids))


@pytest.mark.parametrize(
    "setting",
    [
        "diff.noprefix=true",
        "diff.relative=true",
        "diff.context=0",
        "diff.mnemonicPrefix=true",
        "diff.orderFile=missing",
    ],
)
def test_the_changes_are_recorded_whatever_git_is_configured_to_show(
    cli: Cli, setting: str
) -> None:
    git(cli.folder, "config", *setting.split("="))
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: other"))
    assert cli.tuner("run", cli.file)[0] == 0
    git(cli.folder, "checkout", "-q", FILE)
    code, out, err = cli.tuner("reproduce", "other/1")
    assert (code, "reproduced exactly" in out) == (0, True), err


def test_what_a_worktree_lacks_of_submodules_is_said(cli: Cli) -> None:
    inner = cli.folder / "inner"
    inner.mkdir()
    git(inner, "init", "-q")
    (inner / "net.py").write_text("one")
    git(inner, "add", "net.py")
    git(inner, "commit", "-qm", "one")
    link = ("-c", "protocol.file.allow=always", "submodule", "--quiet", "add")
    git(cli.folder, *link, str(inner), "sub")
    git(cli.folder, "commit", "-qam", "two")
    write(cli, 2)
    (cli.folder / "sub" / "net.py").write_text("two")
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: linked"))
    assert cli.tuner("run", cli.file)[0] == 0
    write(cli, 3)
    code, _, err = cli.tuner("reproduce", "linked/1")
    assert code == 0, err
    assert "changes within submodules were not recorded: sub" in err
    assert "its submodules are empty in" in err


def test_what_git_failed_to_say_is_not_taken_for_no_change(cli: Cli) -> None:
    index = cli.folder / ".git" / "index"
    kept, before = index.read_bytes(), index.stat()
    index.write_bytes(b"junk")
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: damaged"))
    assert cli.tuner("run", cli.file)[0] == 0
    index.write_bytes(kept)
    # Git reads a file again that is not older than the index, and trusts its time otherwise.
    os.utime(index, ns=(before.st_atime_ns, before.st_mtime_ns))
    code, out, err = cli.tuner("reproduce", "damaged/1")
    assert "its code may have differed from commit" in err
    assert (code, "the recorded value differs" in out) == (0, True), err


def test_large_changes_are_not_taken_for_none(cli: Cli) -> None:
    git(cli.folder, "checkout", "-q", FILE)
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: clean"))
    assert cli.tuner("run", cli.file)[0] == 0
    write(cli, 3)
    with (cli.folder / FILE).open("a") as file:
        file.write("# much\n" * 1_000_000)
    code, out, err = cli.tuner("reproduce", "clean/1")
    assert (code, "reproduced exactly" in out) == (0, True), err


def test_a_folder_that_was_renamed_within_its_checkout_is_found(cli: Cli) -> None:
    inner = cli.folder / "inner"
    inner.mkdir()
    shutil.copy(cli.folder / FILE, inner)
    git(cli.folder, "add", "inner")
    git(cli.folder, "commit", "-qam", "two")
    moved = inner / "experiment.yaml"
    moved.write_text(cli.file.read_text().replace("name: tiny", "name: below"))
    assert cli.tuner("run", moved)[0] == 0
    git(cli.folder, "mv", "inner", "outer")
    code, out, err = cli.tuner("reproduce", "below/1")
    assert (code, "reproduced exactly" in out) == (0, True), err


def test_a_checkout_that_was_renamed_is_found_from_within_it(cli: Cli) -> None:
    folder = cli.folder / "project"
    folder.mkdir()
    for name in (FILE, cli.file.name):
        shutil.copy(cli.folder / name, folder)
    moved = folder / cli.file.name
    moved.write_text(moved.read_text().replace("name: tiny", "name: renamed"))
    git(folder, "init", "-q")
    git(folder, "add", FILE)
    git(folder, "commit", "-qm", "one")
    shutil.rmtree(cli.folder / ".git")
    assert cli.tuner("run", moved)[0] == 0
    there = Cli(folder.rename(cli.folder / "renamed"))
    there.env = cli.env
    code, _, err = cli.tuner("reproduce", "renamed/1")
    assert code == 6
    assert f"{folder}: is not in a git checkout" in err
    code, out, err = there.tuner("reproduce", "renamed/1")
    assert (code, "reproduced exactly" in out) == (0, True), err


def test_variables_of_another_repository_change_nothing(cli: Cli) -> None:
    # As in a hook of another repository, which starts a search.
    other = cli.folder / "other"
    other.mkdir()
    git(other, "init", "-q")
    git(other, "commit", "-q", "--allow-empty", "-m", "other")
    cli.env |= {"GIT_DIR": str(other / ".git"), "GIT_INDEX_FILE": ".git/index"}
    write(cli, 3)
    code, out, err = cli.tuner("reproduce", "tiny/1")
    assert (code, "reproduced exactly" in out) == (0, True), err
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: hooked"))
    assert cli.tuner("run", cli.file)[0] == 0
    found = [
        json.loads(path.read_text())
        for path in (cli.folder / "state").glob("experiments/*/trials/1/1/provenance.json")
    ]
    (recorded,) = (one["git"] for one in found if one["experiment"] == "hooked")
    assert recorded["commit"] == git(cli.folder, "rev-parse", "HEAD")
    assert recorded["dirty"]


def test_two_reproductions_at_once_make_one_worktree(cli: Cli) -> None:
    """The first one waits in git until the second one could make the worktree, too."""
    calls, wrapper = cli.folder / "calls", cli.folder / "bin" / "git"
    wrapper.parent.mkdir()
    wrapper.write_text(
        f"""#!/bin/sh
echo "$*" >> {calls}
case "$*" in *" worktree add "*)
  until [ -e {cli.folder}/go ]; do sleep 0.05; done ;;
esac
exec {shutil.which("git")} "$@"
"""
    )
    wrapper.chmod(0o755)
    write(cli, 3)
    cli.env["PATH"] = f"{wrapper.parent}{os.pathsep}{cli.env['PATH']}"

    def called(word: str) -> int:
        return calls.read_text().split().count(word) if calls.exists() else 0

    first = cli.start("reproduce", "tiny/1")
    eventually(lambda: called("add") == 1)
    second = cli.start("reproduce", "tiny/1")
    eventually(lambda: called("cat-file") == 2)
    cli.let_go()
    ends = [(*process.communicate(timeout=60), process.returncode) for process in (first, second)]
    # The later one finds the experiment that runs, or its result.
    assert {code for _, _, code in ends} <= {0, 6}, ends
    assert any("reproduced exactly" in out for out, _, _ in ends), ends
    assert called("add") == 1


def test_a_checkout_that_git_refuses_is_said(cli: Cli) -> None:
    cli.env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: foreign"))
    assert cli.tuner("run", cli.file)[0] == 0
    code, _, err = cli.tuner("reproduce", "foreign/1")
    assert (code, "; git: detected dubious ownership in repository at" in err) == (0, True), err


def test_a_checkout_that_git_cannot_read_any_more_is_not_taken_for_none(
    cli: Cli, tmp_path: Path
) -> None:
    cli.env["GIT_TEST_ASSUME_DIFFERENT_OWNER"] = "1"
    assert "cannot be checked; git: detected dubious ownership in repository at" in refused(cli)
    empty = tmp_path / "empty"
    empty.mkdir()
    cli.env["PATH"] = str(empty)
    assert "cannot be checked; git is not installed; correct this" in refused(cli)


def test_a_filter_that_is_missing_is_named_with_the_cure(cli: Cli) -> None:
    git(cli.folder, "config", "filter.large.clean", "cat")
    git(cli.folder, "config", "filter.large.smudge", "no-such-program")
    git(cli.folder, "config", "filter.large.required", "true")
    (cli.folder / ".gitattributes").write_text("*.sh filter=large\n")
    git(cli.folder, "add", ".gitattributes")
    cli.file.write_text(cli.file.read_text().replace("name: tiny", "name: filtered"))
    git(cli.folder, "commit", "-qam", "two")
    assert cli.tuner("run", cli.file)[0] == 0
    write(cli, 3)
    code, _, err = cli.tuner("reproduce", "filtered/1")
    assert code == 6
    assert "smudge filter large failed; correct this, such as by freeing space or" in err


@pytest.mark.parametrize("untracked", [False, True])
def test_a_full_disk_is_named_and_the_command_repeated(tmp_path: Path, untracked: bool) -> None:
    with cli_in(tmp_path) as cli, small_disk(tmp_path / "disk", "8m") as disk:
        git(cli.folder, "init", "-q")
        write(cli, 1)
        data = cli.folder / "data"
        data.write_bytes(random.Random(1).randbytes(900_000))
        git(cli.folder, "add", FILE, *([] if untracked else ["data"]))
        git(cli.folder, "commit", "-qm", "one")
        command = ["sh", FILE, "${x}"]
        cli.file.write_text(experiment(command, parameters="x: {type: int, min: 1, max: 9}"))
        there = ("--state-dir", disk / "state")
        assert cli.tuner("run", cli.file, *there)[0] == 0
        write(cli, 2)
        fill(disk / "full")
        os.truncate(disk / "full", (disk / "full").stat().st_size - 400_000)
        code, _, err = cli.tuner("reproduce", "tiny/1", *there)
        assert (code, "such as by freeing space" in err) == (7 if untracked else 6, True), err
        if not untracked:
            assert "unable to write file data" in err
        (disk / "full").unlink()
        code, out, err = cli.tuner("reproduce", "tiny/1", *there)
        assert (code, "the recorded value is reproduced exactly" in out) == (0, True), out + err


def test_a_rerun_that_fails_tries_no_other_point(cli: Cli) -> None:
    fails = 'case "$TUNER_TRIAL_NAME" in *reproduce*) exit 3;; esac; echo score=1'
    text = experiment(["sh", "-c", fails], name="flaky")
    cli.file.write_text(text.replace("canary: 0s", "canary: 5s"))
    assert cli.tuner("run", cli.file)[0] == 0
    code, out, err = cli.tuner("reproduce", "flaky/1")
    assert (code, "is paused: the only run failed: exit code 3" in err) == (8, True), err
    assert "correct what its trials need, then: tuner resume flaky-reproduce-1" in err
    assert "reproduced (0 runs): none has succeeded yet" in out
    assert len(cli.json("get", "trials", "flaky-reproduce-1", "-o", "json")) == 1


def test_each_objective_is_compared(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli:
        text = experiment(["sh", "-c", "echo score=$0 loss=$TUNER_SEED", "${x}"])
        one = "objective: {metric: score, direction: maximize}"
        assert one in text
        both = "{metric: score, direction: maximize}, {metric: loss, direction: minimize}"
        cli.file.write_text(text.replace(one, f"objectives: [{both}]"))
        assert cli.tuner("run", cli.file)[0] == 0
        code, out, err = cli.tuner("reproduce", "tiny/0")
        assert (code, out.count("reproduced exactly")) == (0, 2), err
        assert "trial 0, score: recorded" in out
        assert "trial 0, loss: recorded" in out


def test_outside_of_git_the_files_of_now_run(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli:
        cli.file.write_text(experiment())
        assert cli.tuner("run", cli.file)[0] == 0
        code, out, err = cli.tuner("reproduce", "tiny/0")
        assert (code, "reproduced exactly" in out) == (0, True)
        assert "no commit was recorded: the code is that of" in err
