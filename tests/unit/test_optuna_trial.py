"""What a trial knows of its study, for callbacks that were written for Optuna."""

from __future__ import annotations

import copy
import json
import pickle
import threading
from pathlib import Path

import optuna
import pytest
from optuna.study import StudyDirection

from tuner.optuna_kept import FILE, metrics_of
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


def test_a_trial_may_be_copied_and_pickled() -> None:
    trial = trial_of("minimize")
    trial.study.trial = trial
    assert isinstance(trial, optuna.Trial)
    for copied in copy.copy(trial), copy.deepcopy([trial])[0], pickle.loads(pickle.dumps(trial)):
        assert type(copied) is OptunaTrial
        assert (copied.number, copied.params) == (trial.number, {})


def test_threads_of_an_objective_may_set_attributes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNER_OUTPUT_DIR", str(tmp_path))
    trial = trial_of("minimize")
    at_once = threading.Barrier(8)
    kept: list[int] = []

    def keep(thread: int) -> None:
        at_once.wait()
        for number in range(20):
            trial.set_user_attr(f"{thread}-{number}", number)
        kept.append(thread)

    threads = [threading.Thread(target=keep, args=(thread,)) for thread in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(kept) == [*range(8)]
    assert len(json.loads((tmp_path / FILE).read_text())["user_attrs"]) == 160


def test_what_changes_the_attributes_that_are_read_changes_not_those_of_the_trial(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TUNER_OUTPUT_DIR", str(tmp_path))
    trial = trial_of("minimize")
    trial.set_user_attr("steps", [1])
    trial.user_attrs["steps"].append(2)
    assert trial.user_attrs == {"steps": [1]}
