"""The settings of algorithms and pruning rules in docs/experiment.md are those
of the service's registries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import yaml

from suggest.pruners.registry import pruning_problems, rules
from suggest.samplers.registry import algorithms
from suggest.settings import Setting
from suggest.study import Pruning


class HasSettings(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def settings(self) -> Sequence[Setting]: ...


def rows(families: Iterable[HasSettings]) -> list[str]:
    """Return a row for each setting, with the names of all that have it with the same default."""
    names: dict[str, list[str]] = {}
    for family in families:
        for setting in family.settings:
            cells = f"`{setting.name}` | `{str(setting.default).lower()}` | {setting.meaning}"
            names.setdefault(cells, []).append(f"`{family.name}`")
    return [f"| {', '.join(having)} | {cells} |" for cells, having in names.items()]


def test_the_reference_lists_every_setting_with_its_default() -> None:
    page = Path("docs/experiment.md").read_text(encoding="utf-8")
    wanted = [*rows(algorithms()), *rows(rules())]
    assert [row for row in wanted if row not in page] == []
    listed = [f"| `{rule.name}` | {rule.summary} |" for rule in rules()]
    assert [row for row in listed if row not in page] == []
    assert [family.name for family in algorithms() if f"`{family.name}`" not in page] == []


def test_every_pruning_that_the_page_shows_is_right() -> None:
    page = Path("docs/experiment.md").read_text(encoding="utf-8")
    shown = [yaml.safe_load(each) for each in re.findall(r"pruning: (\{name: .*?\})", page)]
    assert {each["name"] for each in shown} >= {"median", "patient"}
    for each in shown:
        assert list(pruning_problems(Pruning(each.pop("name"), each))) == []
