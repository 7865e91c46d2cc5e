"""The settings of algorithms and pruning rules in docs/experiment.md are those of the service's registries."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from suggest.pruners.registry import rules
from suggest.samplers.registry import algorithms
from suggest.settings import Setting


def rows(name: str, settings: Iterable[Setting]) -> list[str]:
    return [f"| `{name}` | `{s.name}` | `{str(s.default).lower()}` | {s.meaning} |" for s in settings]


def test_the_reference_lists_every_setting_with_its_default() -> None:
    page = Path("docs/experiment.md").read_text(encoding="utf-8")
    wanted = [row for family in algorithms() for row in rows(family.name, family.settings)]
    wanted += [row for rule in rules() for row in rows(rule.name, rule.settings)]
    assert [row for row in wanted if row not in page] == []
    assert [family.name for family in algorithms() if f"`{family.name}`" not in page] == []
