"""Every command of the documentation is one, and docs/cli.md has every verb, flag and reason code."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.cli.arguments import _parser, parse
from controller.core.model import ReasonCode
from controller.spec.document import REVISABLE, SETTABLE
from suggest.imports import MAX_ROWS

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: Path) -> Iterator[str]:
    """Yield the commands in the blocks of a page, without where a shell sends their output."""
    for block in re.findall(r"```\w*\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            command = line.removeprefix("$ ")
            if command.startswith("tuner ") and "…" not in command:
                yield re.split(" [>|] ", command)[0]


@pytest.mark.parametrize(
    "page", [*DOCS.glob("*.md"), DOCS.parent / "README.md"], ids=lambda p: p.stem
)
def test_every_command_of_a_page_is_one(page: Path) -> None:
    for command in commands(page):
        words = shlex.split(command.replace("ADDRESS", "localhost:7117"), comments=True)
        assert parse(words[1:]).verb, command


def test_the_pages_have_commands() -> None:
    assert {"growth", "final", "katib"} <= {p.stem for p in DOCS.glob("*.md") if any(commands(p))}


def test_every_verb_is_on_the_page() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    _, verbs, _ = _parser()
    assert [verb for verb in sorted(verbs) if f"tuner {verb}" not in page] == []


def test_every_flag_that_takes_a_value_is_on_a_page() -> None:
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("cli.md", "api.md"))
    _, _, flags = _parser()
    assert [flag for flag in sorted(flags) if flag.startswith("--") and flag not in pages] == []


def test_the_page_lists_every_reason_code_and_no_other() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    table = page.partition("### Reason codes")[2].partition("\n## ")[0]
    listed = re.findall(r"`([A-Z]\w+)`", table)
    assert sorted(listed) == sorted(code.value for code in ReasonCode)


def test_the_limit_of_an_import_is_that_of_the_code() -> None:
    assert f"At most {MAX_ROWS:,} rows" in (DOCS / "growth.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(("verb", "keys"), [("resume", REVISABLE), ("set", SETTABLE)])
def test_the_help_and_the_page_name_every_key_that_a_verb_can_change(
    verb: str, keys: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse([verb, "--help"])
    text = capsys.readouterr().out
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    assert [key for key in keys if key not in text] == []
    assert [key for key in keys if f"`{key}`" not in page] == []
