"""docs/final.md: its file is valid, and its variables are set."""

from __future__ import annotations

import re
from pathlib import Path

from controller.core.model import FINAL, Attempt
from controller.runtime.launch import identity
from controller.spec import read
from tests.unit.builders import a_trial, an_experiment

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "final.md").read_text(encoding="utf-8")


def test_its_file_is_an_experiment_with_a_final_stage() -> None:
    (file,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    document = read(file, source="final.md")
    assert document.warnings == ()
    assert document.spec.final is not None
    assert (document.spec.final.timeout_s, document.spec.final.resources.cpu) == (3600.0, 1.0)


def test_every_variable_on_the_page_is_set() -> None:
    variables = identity(
        an_experiment(), a_trial(12), Attempt(FINAL, 1), output="/o", checkpoint="/c"
    )
    named = set(re.findall(r"TUNER_[A-Z_]+", PAGE))
    assert named
    assert named <= set(variables)
