"""docs/cli.md documents every verb, every flag and every reason code."""

from __future__ import annotations

import re
from pathlib import Path

from controller.cli.arguments import _parser
from controller.core.model import ReasonCode

DOCS = Path(__file__).parents[2] / "docs"


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
