"""A console with another encoding than UTF-8, with closed streams,
and with file names that are not text.
"""

from __future__ import annotations

import json
import os
import pty
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.e2e.cli import Cli, cli_in, experiment

CORPUS = "日本語"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with cli_in(tmp_path_factory.mktemp("console")) as cli:
        cli.file.write_text(
            experiment(
                parameters=f'corpus: ["{CORPUS}", latin]',
                algorithm="grid",
                command=["sh", "-c", "echo score=1", "${corpus}"],
            )
        )
        code, _, err = cli.tuner("run", cli.file)
        assert code == 0, err
        yield cli


def in_ascii(cli: Cli, *words: str) -> subprocess.CompletedProcess[bytes]:
    """Run a command whose streams are ASCII, which only a new interpreter reads."""
    env = {**cli.env, "PYTHONIOENCODING": "ascii"}
    return subprocess.run(
        [forked.TUNER, *words], cwd=cli.folder, env=env, capture_output=True, check=False
    )


@pytest.mark.parametrize(
    "words",
    ["run experiment.yaml", "get trials tiny", "describe tiny/0", "best tiny", "report tiny"],
)
def test_a_character_that_the_console_lacks_is_shown_as_its_escape(cli: Cli, words: str) -> None:
    done = in_ascii(cli, *words.split())
    assert (done.returncode, rb"\u65e5\u672c\u8a9e" in done.stdout) == (0, True), done.stderr


def test_an_error_with_such_a_character_has_its_own_exit_code(cli: Cli) -> None:
    done = in_ascii(cli, "get", "trials", CORPUS)
    assert (done.returncode, rb"'\u65e5\u672c\u8a9e' is not a name" in done.stderr) == (2, True), (
        done.stderr
    )


def test_a_log_of_json_lines_is_json_on_every_console(cli: Cli) -> None:
    done = in_ascii(cli, "get", "trials", "é", "--log-format", "json")
    assert "'é' is not a name" in json.loads(done.stderr)["message"]


def test_data_is_utf8_on_every_console(cli: Cli) -> None:
    trials = json.loads(in_ascii(cli, "get", "trials", "tiny", "-o", "json").stdout.decode())
    assert CORPUS in [trial["parameters"]["corpus"] for trial in trials]
    assert CORPUS in in_ascii(cli, "export", "tiny", "--format", "csv").stdout.decode()


@pytest.mark.parametrize("optimized", ["", "1"])
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_run_with_closed_streams_ends_as_usual(
    tmp_path: Path, closed: str, optimized: str
) -> None:
    with cli_in(tmp_path) as cli:
        cli.write(trials=1)
        # The first files that a command opens take the closed descriptors, if nothing else has.
        command = f"{shlex.quote(str(forked.TUNER))} run experiment.yaml {closed}"
        env = {**cli.env, "PYTHONOPTIMIZE": optimized}
        done = subprocess.run(
            ["sh", "-c", command], cwd=cli.folder, env=env, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert [trial["state"] for trial in cli.trials()] == ["succeeded"]


@pytest.mark.parametrize("words", ["get trials tiny", "describe tiny", "export tiny --format csv"])
def test_output_to_a_closed_stream_is_dropped(cli: Cli, words: str) -> None:
    command = f"{shlex.quote(str(forked.TUNER))} {words} >&-"
    done = subprocess.run(
        ["sh", "-c", command], cwd=cli.folder, env=cli.env, capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.parametrize("words", ["run experiment.yaml", "get trials tiny", "best tiny -o json"])
def test_a_closed_terminal_is_not_a_bug(cli: Cli, words: str) -> None:
    terminal, other = pty.openpty()
    os.close(terminal)
    done = subprocess.run(
        [forked.TUNER, *words.split()],
        cwd=cli.folder,
        env=cli.env,
        stdout=other,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(other)
    assert (done.returncode, done.stderr) == (143, b"tuner: the terminal is closed\n")


def test_a_folder_whose_name_is_not_text_is_named(cli: Cli) -> None:
    folder = cli.folder / os.fsdecode(b"d\xff")
    folder.mkdir()
    (folder / "tiny.yaml").write_text(experiment(name="other"))
    done = subprocess.run(
        [forked.TUNER, "run", "tiny.yaml"],
        cwd=folder,
        env=cli.env,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"has a name that is not UTF-8; rename it" in done.stderr
