"""The view of a run that has just begun or continues shows only what is known."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.core.progress import Progress
from controller.report.lines import Lines
from controller.report.live import Live
from suggest.trial import TrialState
from tests.unit.builders import a_spec, an_experiment

RESUMED = replace(an_experiment(a_spec(trials=4)), running_s=30.0)
OPENING = Progress(RESUMED, {}, queued=0, running=(), best=None, trend=(), known=False)
OPENED = replace(OPENING, counts={TrialState.SUCCEEDED: 2}, known=True)


def test_lines_say_how_far_a_resumed_run_is_once_its_trials_are_known(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = Lines()
    view.refresh(OPENING)
    assert capsys.readouterr().err == ""
    view.refresh(OPENED)
    assert capsys.readouterr().err == "2/4 trials (2 succeeded), 0 running, about 30s left\n"


def test_the_first_progress_line_of_a_resumed_run_has_no_wrong_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = Live(color=False)
    view.close(OPENING)
    shown = capsys.readouterr().err
    assert "looking up its trials" in shown
    assert "0/4" not in shown
    view.close(OPENED)
    assert "2/4  2 succeeded" in capsys.readouterr().err
