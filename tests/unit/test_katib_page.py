"""docs/katib.md: its commands are ones that the command line takes, its files and its YAML are
those of examples.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from controller.cli.arguments import parse
from suggest.katib_settings import ALGORITHMS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "katib.md").read_text(encoding="utf-8")
SHOWN = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))
IN_TABLES = re.findall(r"`(tuner (?:run|get|describe|logs|extend|delete|stop|ui) [^`]+)`", PAGE)


@pytest.mark.parametrize("line", IN_TABLES)
def test_every_command_in_a_table_is_one(line: str) -> None:
    assert parse(shlex.split(line)[1:]).verb


def test_every_file_that_a_command_names_is_there() -> None:
    files = [word for word in SHOWN.split() if word.endswith(".yaml")]
    assert len(files) >= 3
    assert [file for file in files if not (ROOT / file).exists()] == []


def test_the_layers_are_those_of_the_example() -> None:
    (shown,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    example = (ROOT / "examples" / "layers" / "experiment.yaml").read_text(encoding="utf-8")
    assert all(f"    {line}\n" in example for line in shown.splitlines())


def test_every_algorithm_and_setting_has_a_row() -> None:
    for name, algorithm in ALGORITHMS.items():
        assert f"`{name}`" in PAGE
        assert [setting for setting in algorithm.takes if f"`{setting}`" not in PAGE] == []
