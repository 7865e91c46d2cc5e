"""TAB completion in real shells: bash always, zsh and fish if they are installed."""

from __future__ import annotations

import os
import pty
import select
import shutil
import subprocess
import time
from collections.abc import Iterator

import pytest

from tests.e2e.cli import Cli, cli_in, experiment
from tests.forked import TUNER

STARTS = {
    "bash": (
        ["bash", "--norc", "--noprofile", "-i"],
        'PS1="> "; bind "set enable-bracketed-paste off"\n',
    ),
    "zsh": (
        ["zsh", "-f", "-i"],
        'PS1="> "; unset zle_bracketed_paste; autoload -Uz compinit; compinit -u -D\n',
    ),
}


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with cli_in(tmp_path_factory.mktemp("completion")) as cli:
        cli.file.write_text(
            experiment(
                parameters="rate: {type: float, min: 0, max: 1}",
                name="digits",
                trials=12,
                command=["sh", "-c", "echo score=$1 loss=2", "sh", "${rate}"],
            )
        )
        assert cli.tuner("run", cli.file)[0] == 0
        yield cli


def offered(cli: Cli, line: str) -> list[str]:
    """What bash is offered at a TAB after `line`."""
    answer = cli.folder / "offered"
    answer.unlink(missing_ok=True)
    asked = {
        "_ARGCOMPLETE": "1",
        "_ARGCOMPLETE_COMP_WORDBREAKS": " =:",
        "_ARGCOMPLETE_SHELL": "bash",
        "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
        "COMP_LINE": line,
        "COMP_POINT": str(len(line)),
        "COMP_TYPE": "9",
    }
    subprocess.run([TUNER], env={**cli.env, **asked}, cwd=cli.folder, check=True)
    words = answer.read_text().split("\v")
    return [word.rstrip() for word in words if word]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tuner re", ["resume", "retry", "report", "reproduce"]),
        ("tuner get ", ["experiments", "studies", "trials"]),
        ("tuner get trials digits --no", ["--no-headers"]),
        ("tuner get trials digits -o ", ["table", "json", "yaml", "csv", "name"]),
        ("tuner get trials digits --state failed,pr", ["failed,pruned"]),
        ("tuner get trials digits --output=js", ["json"]),
        ("tuner get trials digits --sort r", ["reason", "rate"]),
        ("tuner get trials digits --sort=-r", ["-reason", "-rate"]),
        ("tuner get trials digits --columns number,pa", ["number,parent"]),
        ("tuner get trials digits --columns metrics", ["metrics.loss"]),
        ("tuner -q describe di", ["digits"]),
        ("tuner delete other di", ["digits"]),
        ("tuner describe digits/1", ["digits/1", "digits/10", "digits/11"]),
        ("tuner best digits -n def", ["default"]),
        ("tuner describe digits --color a", ["auto", "always"]),
        ("tuner get trials --state-dir /nowhere ", []),
        ("tuner run ex", ["experiment.yaml"]),
        ("tuner serve --tokens ex", ["experiment.yaml"]),
        ("tuner get experiments --state-dir st", ["state/"]),
        ("tuner get trials digits --limit ", []),
    ],
)
def test_completions_match_what_the_parser_accepts(
    cli: Cli, line: str, expected: list[str]
) -> None:
    assert offered(cli, line) == expected


class Shell:
    """A shell in a pseudo-terminal."""

    def __init__(self, name: str, cli: Cli) -> None:
        command, setup = STARTS[name]
        self.terminal, other = pty.openpty()
        environment = {
            **cli.env,
            "TERM": "dumb",
            "PATH": f"{TUNER.parent}:/usr/bin:/bin",
            "INPUTRC": "/dev/null",
        }
        self.process = subprocess.Popen(
            command,
            cwd=cli.folder,
            env=environment,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
        )
        os.close(other)
        self.seen = ""
        self.type(f"{setup}source <(tuner completion {name}); echo rea''dy\n")
        self.shows("ready")

    def type(self, text: str) -> None:
        os.write(self.terminal, text.encode())

    def shows(self, text: str, *, within_s: float = 60) -> None:
        """Wait until the shell has printed `text` since the last check."""
        deadline = time.monotonic() + within_s
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self.terminal], [], [], 0.2)[0]:
                self.seen += os.read(self.terminal, 4096).decode(errors="replace")
        self.seen = self.seen.partition(text)[2]

    def completes(self, typed: str, whole: str) -> None:
        """Check that TAB after `typed` completes it to `whole`,
        by letting the shell echo the command line.
        """
        self.type(f"{typed}\t")
        self.shows(whole)
        self.type("\x15")  # clear the line

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.terminal)


@pytest.mark.parametrize("name", ["bash", "zsh"])
def test_tab_completes_verbs_flags_names_trials_and_files(name: str, cli: Cli) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")
    shell = Shell(name, cli)
    try:
        shell.completes("tuner desc", "ribe ")
        shell.completes("tuner get tri", "als ")
        shell.completes("tuner get trials digits --no-h", "eaders ")
        shell.completes("tuner get trials di", "gits ")
        shell.completes("tuner get trials digits -o js", "on ")
        shell.completes("tuner get trials digits --output=js", "on ")
        shell.completes("tuner logs digits/10", " ")
        shell.completes("tuner run exp", "eriment.yaml ")
        shell.completes("tuner resume dig", "its ")
    finally:
        shell.end()


def test_fish_completes_verbs_names_trials_and_files(cli: Cli) -> None:
    fish = shutil.which("fish")
    if fish is None:
        pytest.skip("fish is not installed")

    def offered(typed: str) -> list[str]:
        done = subprocess.run(
            [fish, "--no-config", "-c", f"tuner completion fish | source; complete -C '{typed}'"],
            cwd=cli.folder,
            env={**cli.env, "HOME": str(cli.folder)},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return [line.partition("\t")[0] for line in done.stdout.splitlines()]

    assert offered("tuner desc") == ["describe"]
    assert offered("tuner get trials di") == ["digits"]
    assert offered("tuner get trials digits -o js") == ["json"]
    assert offered("tuner get trials digits --output=js") == ["--output=json"]
    assert offered("tuner logs digits/11") == ["digits/11"]
    assert "experiment.yaml" in offered("tuner run exp")
