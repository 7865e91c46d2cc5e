"""What a notebook shows of a run."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from controller.core.model import AttemptState
from controller.core.progress import Progress, RunningTrial
from suggest.trial import Trial, TrialState
from tests.unit.builders import a_spec, an_experiment
from tuner.notebook import html

SEARCH = replace(an_experiment(a_spec(trials=4)), running_s=30.0)
NOW = datetime.now(UTC)


def test_counts_the_best_trial_and_running_trials_are_shown() -> None:
    best = Trial(0, TrialState.SUCCEEDED, {"x": 0.25}, 0.5)
    runs = RunningTrial(1, 1, AttemptState.RUNNING, NOW, 3, 0.75, {"x": 0.5})
    shown = html(
        Progress(
            SEARCH, {TrialState.SUCCEEDED: 1}, queued=0, running=(runs,), best=best, trend=(0.5,)
        )
    )
    assert "1/4 trials (1 succeeded), 1 running" in shown
    assert '<progress value="1" max="4"' in shown
    assert "0.5 in trial 0</b>, x=0.25" in shown
    assert "<td>3</td><td>0.75</td><td>x=0.5</td>" in shown


def test_names_that_look_like_markup_are_text() -> None:
    evil = "<img src=x onerror=alert(1)>"
    best = Trial(0, TrialState.SUCCEEDED, {"x": evil}, 0.5)
    runs = RunningTrial(1, 1, AttemptState.RUNNING, NOW, None, None, {"x": evil})
    shown = html(Progress(SEARCH, {}, queued=0, running=(runs,), best=best, trend=(), trouble=evil))
    assert "<img" not in shown
    assert shown.count("&lt;img") == 3


def test_a_resumed_run_has_no_counts_before_its_trials_are_known() -> None:
    shown = html(Progress(SEARCH, {}, queued=0, running=(), best=None, trend=(), known=False))
    assert "looking up its trials" in shown
    assert "0/4" not in shown
