"""The settings of algorithms and pruning rules in docs/experiment.md are those
of the service's registries.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

import yaml

from suggest.pruners.registry import pruning_problems, rules
from suggest.samplers.registry import algorithms
from suggest.settings import Setting
from suggest.study import Pruning


def rows(name: str, settings: Iterable[Setting]) -> list[str]:
    return [
        f"| `{name}` | `{s.name}` | `{str(s.default).lower()}` | {s.meaning} |" for s in settings
    ]


def test_the_reference_lists_every_setting_with_its_default() -> None:
    page = Path("docs/experiment.md").read_text(encoding="utf-8")
    wanted = [row for family in algorithms() for row in rows(family.name, family.settings)]
    wanted += [row for rule in rules() for row in rows(rule.name, rule.settings)]
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
