"""docs/cli.md documents every verb and every flag."""

from __future__ import annotations

from pathlib import Path

from controller.cli.arguments import _parser

DOCS = Path(__file__).parents[2] / "docs"


def test_every_verb_is_on_the_page() -> None:
    page = (DOCS / "cli.md").read_text(encoding="utf-8")
    _, verbs, _ = _parser()
    assert [verb for verb in sorted(verbs) if f"tuner {verb}" not in page] == []


def test_every_flag_that_takes_a_value_is_on_a_page() -> None:
    pages = "".join((DOCS / name).read_text(encoding="utf-8") for name in ("cli.md", "api.md"))
    _, _, flags = _parser()
    assert [flag for flag in sorted(flags) if flag.startswith("--") and flag not in pages] == []
