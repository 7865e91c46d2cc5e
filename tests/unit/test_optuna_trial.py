"""What a trial knows of its study, for callbacks that were written for Optuna."""

from __future__ import annotations

import pytest
from optuna.study import StudyDirection

from tuner.optuna_kept import metrics_of
from tuner.optuna_trial import OptunaStudy, OptunaTrial
from tuner.trial import Trial


def trial_of(*directions: str) -> OptunaTrial:
    study = OptunaStudy(directions, {"data": "digits"})
    return OptunaTrial(Trial({}, metrics_of(len(directions))), study, {})


def test_a_trial_knows_the_direction_and_the_name_of_its_study(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TUNER_EXPERIMENT", "boosted")
    study = trial_of("maximize").study
    assert (study.direction, study.study_name) == (StudyDirection.MAXIMIZE, "boosted")


def test_a_study_of_several_objectives_has_no_single_direction() -> None:
    study = trial_of("minimize", "maximize").study
    assert study.directions == [StudyDirection.MINIMIZE, StudyDirection.MAXIMIZE]
    with pytest.raises(RuntimeError, match=r"several objectives has study\.directions"):
        _ = study.direction


def test_what_a_trial_cannot_know_of_its_study_is_named_with_the_cure() -> None:
    study = trial_of("minimize").study
    assert study.user_attrs == {"data": "digits"}
    with pytest.raises(AttributeError, match="no 'trials': a trial is a process that knows only"):
        _ = study.trials  # type: ignore[attr-defined]
