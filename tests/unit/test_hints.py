"""Commands in messages repeat the program's name and the flags of the user."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import pytest

from controller.cli.arguments import parse
from controller.cli.invocation import rendered
from controller.phrases import command

ROOT = Path(__file__).parents[2]


def say(line: str, *words: str) -> str:
    return rendered(f"resume: {command(*words)}", parse(line.split())).removeprefix("resume: ")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """Run as `tuner`, without options in the environment."""
    monkeypatch.setattr(sys, "argv", ["pytest"])
    for name in ("TUNER_STATE_DIR", "TUNER_TOKEN_FILE", "TUNER_TLS_CA"):
        monkeypatch.delenv(name, raising=False)


def test_a_hint_repeats_the_flags_that_were_typed() -> None:
    typed = "run x.yaml --state-dir s -n team --server h:1 --token-file t --tls-ca system"
    flags = "--state-dir s --namespace team --server h:1 --token-file t --tls-ca system"
    assert say(typed, "resume", "x") == f"tuner resume x {flags}"
    assert (
        say("get trials x --storage sqlite:///a.db", "best", "x")
        == "tuner best x --storage sqlite:///a.db"
    )


def test_a_hint_has_only_flags_that_its_verb_takes() -> None:
    assert (
        say("run x.yaml --context lab --state-dir s", "best", "x") == "tuner best x --state-dir s"
    )
    # There, it would mean an experiment of that cluster's controller.
    assert say("run x.yaml --context lab", "resume", "x") == "tuner resume x"
    where = "--runtime kubernetes --context lab"
    assert say(f"run x.yaml {where}", "resume", "x.yaml") == f"tuner resume x.yaml {where}"
    assert say("get trials x --context lab", "best", "x") == "tuner best x --context lab"
    assert say("run x.yaml -n team --storage sqlite:///a.db", "db", "upgrade") == (
        "tuner db upgrade --storage sqlite:///a.db"
    )
    of_its_own = ("db", "upgrade", "--storage", "c://d")
    assert say("best x --storage a://b", *of_its_own) == "tuner db upgrade --storage c://d"


def test_options_from_the_environment_are_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNER_STATE_DIR", "s")
    assert say("best x --state-dir s", "stop", "x") == "tuner stop x"
    assert say("best x --state-dir t", "stop", "x") == "tuner stop x --state-dir t"


def test_overrides_are_repeated_where_the_file_is() -> None:
    typed = "run x.yaml --set spec.parallelism=2 --runtime kubernetes"
    assert (
        say(typed, "resume", "x.yaml")
        == "tuner resume x.yaml --set spec.parallelism=2 --runtime kubernetes"
    )
    assert (
        say(typed, "resume", "FILE")
        == "tuner resume x.yaml --set spec.parallelism=2 --runtime kubernetes"
    )
    assert say(typed, "resume", "x") == "tuner resume x"


def test_a_hint_is_quoted_for_the_shell() -> None:
    assert rendered(command("init", "my file.yaml"), parse(["version", "--state-dir", "a b"])) == (
        "tuner init 'my file.yaml' --state-dir 'a b'"
    )


def test_a_hint_calls_tuner_as_it_was_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = tmp_path / "bin" / "tuner"
    script.parent.mkdir()
    script.touch(mode=0o755)
    monkeypatch.setattr(sys, "argv", [str(script)])
    monkeypatch.setenv("PATH", "/usr/bin")
    assert say("version", "init") == f"{script} init"
    monkeypatch.setenv("PATH", f"/usr/bin:{script.parent}")
    assert say("version", "init") == "tuner init"
    monkeypatch.setattr(sys, "argv", [str(ROOT / "controller" / "__main__.py")])
    monkeypatch.setattr(
        sys, "orig_argv", [".venv/bin/python", "-X", "dev", "-m", "controller", "version"]
    )
    assert say("version", "init") == ".venv/bin/python -X dev -m controller init"


def test_text_that_only_looks_like_a_hint_is_left_alone() -> None:
    message = "the log says `tuner it's`, `x` and tuner best"
    assert rendered(message, parse(["version"])) == message


def test_every_command_in_a_message_is_a_hint() -> None:
    """A command in a message must be built by `command`;
    a literal one would lack the flags of the user.
    """
    typed_out = re.compile(
        r"tuner (run|resume|extend|retry|stop|delete|get|best|describe|logs|top|report|export|db|"
        r"import|init|validate)( -?\w+)? $|(: |see |with |\()tuner [a-z]+$"
    )
    found = []
    for path in sorted((ROOT / "controller").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for part in node.values if isinstance(node, ast.JoinedStr) else ():
                if isinstance(part, ast.Constant) and typed_out.search(str(part.value)):
                    found.append(
                        f"{path.relative_to(ROOT)}:{part.lineno}: {part.value!r}; use "
                        f"controller.phrases.command"
                    )
    assert found == []


def test_a_hint_shows_no_password_of_a_storage_url() -> None:
    typed = "get trials x --storage postgresql+psycopg://me:secret@db/tuner"
    assert (
        say(typed, "best", "x") == "tuner best x --storage 'postgresql+psycopg://me:***@db/tuner'"
    )
