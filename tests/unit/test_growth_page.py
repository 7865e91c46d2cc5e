"""docs/growth.md: its commands parse, and its files exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from controller.cli.arguments import parse
from suggest.imports import MAX_ROWS

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "growth.md").read_text(encoding="utf-8")


def test_every_command_on_the_page_is_one() -> None:
    lines = [
        line
        for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
        for line in block.splitlines()
    ]
    assert len(lines) >= 7
    for line in lines:
        program, *words = shlex.split(line, comments=True)
        assert program == "tuner"
        assert parse(words).verb in ("lifecycle:extend", "lifecycle:import_trials")


def test_the_limit_is_that_of_the_code() -> None:
    assert f"At most {MAX_ROWS:,} rows" in PAGE


def test_every_file_that_it_links_to_is_there() -> None:
    linked = re.findall(r"\]\(([^)#]+)", PAGE)
    assert linked
    assert [link for link in linked if not (DOCS / link).exists()] == []
