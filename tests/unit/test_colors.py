"""One color for each state, on pages and in figures."""

from __future__ import annotations

import re
from importlib import resources

import pytest

from controller.core.model import AttemptState, ExperimentState
from controller.report import colors
from suggest.trial import TrialState


@pytest.mark.parametrize("states", [TrialState, AttemptState, ExperimentState])
def test_every_state_has_a_color(states: type[TrialState]) -> None:
    assert {state.value for state in states} <= colors.STATES.keys()


def test_no_other_file_has_the_color_of_a_state() -> None:
    told = {shade for color in colors.STATES.values() for shade in (color.light, color.dark)}
    for folder in (
        resources.files("controller.report"),
        resources.files("controller.ui") / "static",
    ):
        for file in folder.iterdir():
            if file.is_file() and file.name != "colors.py":
                found = set(re.findall(r"#[0-9a-f]{6}\b", file.read_text(encoding="utf-8"))) & told
                assert not found, f"{file.name} declares {found} again"


def test_the_stylesheet_gives_states_the_colors_of_figures() -> None:
    css = colors.stylesheet()
    light, _, dark = css.partition("@media (prefers-color-scheme: dark)")
    assert f".running {{ --state: {colors.STATES['running'].light}; }}" in light
    assert f".running {{ --state: {colors.STATES['running'].dark}; }}" in dark
