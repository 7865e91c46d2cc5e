"""What `tuner version` says was built, and the command that adds an extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tuner
from suggest import distribution
from suggest.distribution import COMMIT_FILE, VERSION, commit_of, install_command

ROOT = Path(__file__).parents[2]


def git(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org")
    subprocess.run(["git", "-C", str(folder), *identity, *words], check=True, capture_output=True)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init")
    (tmp_path / "file").write_text("one\n")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-m", "first")
    git(tmp_path, "tag", "v9")
    return tmp_path


def test_a_checkout_has_its_commit(checkout: Path) -> None:
    head = subprocess.run(
        ["git", "-C", str(checkout), "rev-parse", "HEAD"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert commit_of(checkout) == head[:12]


def test_a_changed_checkout_is_marked(checkout: Path) -> None:
    clean = commit_of(checkout)
    (checkout / "file").write_text("two\n")
    assert commit_of(checkout) == f"{clean}+"


def test_a_folder_without_history_has_no_commit(tmp_path: Path) -> None:
    assert commit_of(tmp_path) == ""


def test_a_build_has_the_commit_that_it_was_built_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / COMMIT_FILE).write_text("3f2a81c09d7e\n")
    monkeypatch.setattr(distribution, "_PACKAGE", tmp_path)
    assert distribution.described() == f"{VERSION} (3f2a81c09d7e)"


@pytest.mark.parametrize("words", [["version"], ["--version"]])
def test_both_spellings_say_what_was_built(words: list[str]) -> None:
    program = "import sys; from controller.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.removesuffix("\n").partition(", ")[0] == f"tuner {distribution.described()}"


def test_python_has_the_version_too() -> None:
    assert tuner.__version__ == VERSION


def test_the_command_adds_an_extra_to_a_checkout_without_an_index() -> None:
    assert install_command("postgres", "cmaes") == "pip install 'tuner-hpo[postgres,cmaes]'"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--no-index",
        "--no-deps",
        "tuner-hpo[postgres]",
    ]
    done = subprocess.run(pip, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "Requirement already satisfied: tuner-hpo[postgres]" in done.stdout
