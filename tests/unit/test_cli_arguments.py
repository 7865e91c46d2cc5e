"""Parsing of the command line: verbs and flags in any order."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from controller.cli.arguments import parse
from controller.cli.options import split_name
from controller.cli.program import program_words
from suggest.errors import InvalidArgument

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    "line",
    [
        "get trials digits -o json --state-dir here",
        "-o json get trials --state-dir here digits",
        "--state-dir here -o json get trials digits",
        "get --state-dir here trials -o json digits",
        "get --state-dir=here trials --output=json digits",
    ],
)
def test_flags_may_precede_or_follow_their_verb(line: str) -> None:
    arguments = parse(line.split())
    assert (arguments.verb, arguments.name) == ("show:trials", "digits")
    assert (arguments.output, arguments.state_dir) == ("json", "here")


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("run x.yaml --parallelism 4", "--set spec.parallelism=4"),
        ("run x.yaml --jobs=4", "--set spec.parallelism=4"),
        ("run x.yaml --max-trials 20", "--set spec.budget.trials=20"),
        ("validate x.yaml --algorithm", "--set spec.algorithm.name=VALUE"),
        (
            "run x.yaml -n 20",
            "-n is --namespace, and 20 is not one; for the number of trials write: --set "
            "spec.budget.tri",
        ),
        ("extend x -n 20", "write: --trials +20"),
    ],
)
def test_a_flag_that_the_file_has_a_key_for_ends_with_the_override(
    line: str, cure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    assert ended.value.code == 2
    assert cure in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("run x.py --seed 4 -v", "with: --set spec.algorithm.seed=4; {} run x.py -v -- --seed 4"),
        ("run x.py --seed=4 -v", "with: --set spec.algorithm.seed=4; {} run x.py -v -- --seed=4"),
        ("run x.py --lr 1 2", "unrecognized arguments: --lr 1 2; {} run x.py -- --lr 1 2"),
        ("run x.yaml --lr 1 2", "unrecognized arguments: --lr 1 2"),
        ("get trials x.py --lr", "unrecognized arguments: --lr"),
    ],
)
def test_arguments_of_a_script_are_named_with_the_command(
    line: str, error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse(line.split())
    program = shlex.join(program_words())
    printed = error.format(f"arguments of the script follow --: {program}")
    assert capsys.readouterr().err.endswith(f"{printed}\n")


def test_a_namespace_of_a_word_is_one() -> None:
    assert parse(["run", "x.yaml", "-n", "team", "--set", "spec.parallelism=4"]).namespace == "team"
    assert parse(["extend", "x", "--trials", "+20"]).trials == "+20"


def test_several_overrides_are_combined() -> None:
    assert parse(["--set", "a=1", "run", "-", "--set", "b=2"]).set == ["a=1", "b=2"]


@pytest.mark.parametrize(
    "line",
    ["", "runn x", "run", "get", "run x --set", "run x -q -v", "best x --server a --storage b"],
)
def test_invalid_arguments_are_usage_errors(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    assert ended.value.code == 2
    assert "usage: tuner" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["get trials \udcff", "run x --set spec.trial.env.A=\udcff"])
def test_arguments_that_are_not_utf_8_are_usage_errors(
    line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    assert ended.value.code == 2
    assert "\\udcff' is not UTF-8; write it in UTF-8" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("", "Hyperparameter tuning that survives"),
        ("runn x", "there is no verb runn; did you mean run?"),
        ("-q resum x", "there is no verb resum; did you mean resume?"),
        ("status tiny", "there is no verb status; did you mean describe?"),
        ("-v ls", "there is no verb ls; did you mean get experiments?"),
        ("xyzzy", "there is no verb xyzzy; see tuner --help"),
    ],
)
def test_an_unknown_verb_is_reported_with_the_known_ones(
    line: str, sentence: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["tuner"])  # the message repeats how the program was called
    with pytest.raises(SystemExit) as ended:
        parse(line.split())
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from controller.cli.main import main\n"
        "try:\n    main(['--help'])\n"
        "except SystemExit:\n    pass\n"
        "heavy = {'asyncio', 'grpc', 'sqlalchemy', 'yaml', 'rich', 'logging', 'json'}\n"
        # Since 3.14 argparse loads it for its colors.
        "heavy |= {'dataclasses'} if sys.version_info < (3, 14) else set()\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "[]"


_INTERRUPTED = """
import os, signal, sys
sys.addaudithook(lambda event, details: event == "import" and details[0] == {module!r}
                 and os.kill(os.getpid(), signal.SIGINT))
from {imported} import {function}
sys.argv = ["tuner", "version"]
sys.exit({function}())
"""


@pytest.mark.parametrize(
    "module", ["controller.cli", "gc", "typing", "argparse", "controller.cli.exits"]
)
def test_an_interrupt_while_the_program_starts_is_no_traceback(module: str) -> None:
    """The program is the console script as installers write it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    imported, _, function = project["scripts"]["tuner"].partition(":")
    program = _INTERRUPTED.format(module=module, imported=imported, function=function)
    ended = subprocess.run(
        [sys.executable, "-S", "-c", program], capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stderr) == (130, "")


@pytest.mark.parametrize("number", ["-1", "x", "1.0", "9" * 19, "9" * 5000, "١"])
def test_a_number_that_no_trial_can_have_is_refused(number: str) -> None:
    assert split_name("digits/12") == ("digits", 12)
    with pytest.raises(InvalidArgument, match="write NAME/N, N being the number of a trial"):
        split_name(f"digits/{number}")
