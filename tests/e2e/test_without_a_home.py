"""Users of containers may have no home directory, or that of another user."""

from __future__ import annotations

import pwd
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from controller.app.state_directory import StateDirectory
from tests.e2e.cli import Cli, cli_in


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with cli_in(tmp_path_factory.mktemp("homeless")) as cli:
        del cli.env["HOME"]
        cli.env.pop("KUBECONFIG", None)
        # Without it, root would write to /.cache.
        cli.env["XDG_CACHE_HOME"] = str(cli.folder / "cache")
        yield cli


@pytest.fixture(autouse=True)
def unknown_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(uid: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {uid}")

    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.setattr(pwd, "getpwuid", unknown)


def test_commands_that_need_no_home_work(cli: Cli) -> None:
    cli.write(trials=1)
    for words in (
        ["validate", cli.file],
        ["run", cli.file],
        ["doctor"],
        ["report", "tiny", "--html", "report.html"],
        ["pack", "tiny"],
        ["db", "backup", "copies"],
    ):
        code, _, err = cli.tuner(*words)
        assert code == 0, (words, err)


def test_a_context_without_a_kubeconfig_is_said(cli: Cli) -> None:
    code, _, err = cli.tuner("get", "experiments", "--context", "lab")
    assert code == 2
    assert "there is no kubeconfig at ~/.kube/config" in err


@pytest.mark.parametrize(
    "words",
    [
        "pack tiny --to ~/backup",
        "unpack ~/backup",
        "db backup ~/backup",
        "db restore ~/backup",
        "get studies --state-dir ~/backup",
        "get studies --storage sqlite:///~/backup",
    ],
)
def test_a_path_below_a_home_that_is_unknown_is_refused(cli: Cli, words: str) -> None:
    assert cli.tuner(*words.split()) == (
        2,
        "",
        "tuner: ~/backup: no home directory is known for ~; write the path without ~\n",
    )


def test_the_default_state_directory_is_below_the_root_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("TUNER_STATE_DIR", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)
    assert Path("/") in StateDirectory.find(None).root.parents
