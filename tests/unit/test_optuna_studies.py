"""An Optuna database or journal as a source of finished trials:
written by Optuna, read, and not changed.
"""

from __future__ import annotations

import hashlib
import warnings
from pathlib import Path

import optuna
import pytest
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.exceptions import ExperimentalWarning
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend
from optuna.study import StudyDirection
from optuna.trial import TrialState as OptunaState
from optuna.trial import create_trial

from suggest.errors import InvalidArgument, NotFound, Unavailable
from suggest.imports import FinishedTrial
from suggest.optuna_storage.optuna_studies import is_optunas
from suggest.optuna_storage.optuna_studies import read as optuna_source
from suggest.storage.opening import open_store
from suggest.study import Direction, Objective
from suggest.trial import Measurement, Outcome, TrialState

X, N = FloatDistribution(0.0, 1.0), IntDistribution(1, 9)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> str:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    url = f"sqlite:///{tmp_path_factory.mktemp('optuna')}/mine.db"
    study = optuna.create_study(storage=url, study_name="mine", direction="maximize")
    point = {"params": {"x": 0.5, "n": 3}, "distributions": {"x": X, "n": N}}
    curve = {0: 0.25, 5: 0.75}
    odd = {"params": {"k": None}, "distributions": {"k": CategoricalDistribution((None, "a"))}}
    strange = {
        "params": {"big": 2**60},
        "distributions": {"big": CategoricalDistribution((2**60, "a"))},
    }
    study.add_trials(
        [
            create_trial(value=0.5, intermediate_values=curve, user_attrs={"note": "x"}, **point),  # type: ignore[arg-type]
            create_trial(state=OptunaState.PRUNED, intermediate_values=curve, **point),  # type: ignore[arg-type]
            create_trial(state=OptunaState.PRUNED, **point),  # type: ignore[arg-type]
            create_trial(state=OptunaState.FAIL, **point),  # type: ignore[arg-type]
            create_trial(value=float("inf"), **point),  # type: ignore[arg-type]
            create_trial(value=1.0, **odd),  # type: ignore[arg-type]
            create_trial(value=1.0, **strange),  # type: ignore[arg-type]
        ]
    )
    study.ask()
    study.enqueue_trial({"x": 0.1})
    both = optuna.create_study(storage=url, study_name="both", directions=["maximize", "minimize"])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        both.set_metric_names(["accuracy", "loss"])
    point = {"params": {"x": 0.5}, "distributions": {"x": X}}
    both.add_trial(create_trial(values=[0.9, 0.1], user_attrs={"ms": 12}, **point))  # type: ignore[arg-type]
    unnamed = optuna.create_study(
        storage=url, study_name="unnamed", directions=["minimize", "maximize"]
    )
    unnamed.add_trial(create_trial(values=[1.0, 2.0], **point))  # type: ignore[arg-type]
    return url


def test_finished_trials_are_imported_and_the_others_are_reported(url: str) -> None:
    source = optuna_source(url, "mine", "")
    point, curve = {"x": 0.5, "n": 3}, [Measurement(1, "", 0, 0.25), Measurement(1, "", 5, 0.75)]
    assert [trial for _, trial in source.trials] == [
        FinishedTrial(point, Outcome(TrialState.SUCCEEDED, 0.5), curve, source_id="0"),
        FinishedTrial(
            point, Outcome(TrialState.PRUNED, 0.75, "pruned by Optuna"), curve, source_id="1"
        ),
        FinishedTrial(
            point, Outcome(TrialState.PRUNED, None, "pruned by Optuna"), [], source_id="2"
        ),
        FinishedTrial(
            point, Outcome(TrialState.FAILED, None, "failed, as Optuna says"), [], source_id="3"
        ),
        FinishedTrial({"k": None}, Outcome(TrialState.SUCCEEDED, 1.0), [], source_id="5"),
    ]
    assert [(p.path, p.message) for p in source.refused] == [
        ("trial 4", "its value is inf, and only a finite one can be compared"),
        ("trial 6", "big: 1152921504606846976 is beyond ±2^53, where doubles skip whole numbers"),
    ]
    assert source.left_out == {"still running": 1, "never run": 1}
    assert source.objectives == [Objective("", Direction.MAXIMIZE)]
    assert source.identity == optuna_source(url, "mine", "score").identity


def test_a_study_without_a_direction_is_minimized(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/bare.db"
    RDBStorage(url).create_new_study([StudyDirection.NOT_SET], "bare")
    assert optuna_source(url, "bare", "").objectives == [Objective("", Direction.MINIMIZE)]


def test_one_of_several_objectives_must_be_named(url: str) -> None:
    with pytest.raises(
        InvalidArgument, match=r"--value: both has 2 objectives; .* accuracy, loss, or 0 to 1"
    ):
        optuna_source(url, "both", "")
    for value in ("loss", "1"):
        source = optuna_source(url, "both", value)
        assert source.objectives == [Objective("loss", Direction.MINIMIZE)]
        assert [trial.outcome.value for _, trial in source.trials] == [0.1]


def test_several_objectives_are_identified_by_name(url: str) -> None:
    source = optuna_source(url, "both", "", ["loss", "accuracy"])
    assert source.objectives == [
        Objective("loss", Direction.MINIMIZE),
        Objective("accuracy", Direction.MAXIMIZE),
    ]
    ((_, trial),) = source.trials
    assert (trial.outcome.value, trial.measurements) == (0.1, [Measurement(1, "accuracy", 0, 0.9)])
    assert optuna_source(url, "both", "", ["loss"]).objectives == [
        Objective("loss", Direction.MINIMIZE)
    ]
    with pytest.raises(
        InvalidArgument,
        match=r"no objective size; its objectives are accuracy, loss; .*set_metric_na",
    ):
        optuna_source(url, "both", "", ["loss", "size"])


def test_objectives_without_names_are_identified_by_order(url: str) -> None:
    source = optuna_source(url, "unnamed", "", ["a", "b"])
    assert source.objectives == [
        Objective("", Direction.MINIMIZE),
        Objective("b", Direction.MAXIMIZE),
    ]
    ((_, trial),) = source.trials
    assert (trial.outcome.value, trial.measurements) == (1.0, [Measurement(1, "b", 0, 2.0)])
    assert optuna_source(url, "unnamed", "1", ["a", "b"]).trials[0][1].outcome.value == 2.0
    with pytest.raises(InvalidArgument, match="has no objective a, b, c; it has 2 without names"):
        optuna_source(url, "unnamed", "", ["a", "b", "c"])
    with pytest.raises(
        InvalidArgument, match="unnamed has 2 objectives; say whose values count: 0 to 1"
    ):
        optuna_source(url, "unnamed", "", ["a"])
    with pytest.raises(InvalidArgument, match="has no objective b, c; it has 2 without names"):
        optuna_source(url, "unnamed", "0", ["a", "b", "c"])


def test_a_constraint_is_an_objective_or_a_user_attribute(url: str) -> None:
    ((_, trial),) = optuna_source(
        url, "both", "accuracy", ["score"], ["loss", "ms", "score"]
    ).trials
    assert {m.metric: m.value for m in trial.measurements} == {
        "loss": 0.1,
        "ms": 12.0,
        "score": 0.9,
    }
    source = optuna_source(url, "both", "accuracy", ["score"], ["memory"])
    assert [p.message for p in source.refused] == [
        "memory: an objective or a user attribute of this name is None, and only a finite number "
        "can be compared"
    ]


def test_a_journal_file_is_read_like_a_database(tmp_path: Path) -> None:
    path = tmp_path / "journal.log"
    study = optuna.create_study(
        storage=JournalStorage(JournalFileBackend(str(path))), study_name="mine"
    )
    study.add_trial(create_trial(value=0.5, params={"x": 0.5}, distributions={"x": X}))
    before = path.read_bytes()
    source = optuna_source(str(path), "", "")
    assert source.title == f"mine in {path}"
    assert [trial for _, trial in source.trials] == [
        FinishedTrial({"x": 0.5}, Outcome(TrialState.SUCCEEDED, 0.5), [], source_id="0")
    ]
    assert path.read_bytes() == before
    path.write_bytes(before + b'{"op_code":0\n{}\n')
    with pytest.raises(Unavailable, match=r"journal\.log: cannot be read as a journal of Optuna"):
        optuna_source(str(path), "", "")


def test_one_of_several_studies_must_be_named(url: str) -> None:
    with pytest.raises(
        InvalidArgument,
        match=r"--study: name one of the studies in .*; there are mine, both, unnamed",
    ):
        optuna_source(url, "", "")
    with pytest.raises(NotFound, match=r"has no study 'min'; did you mean mine"):
        optuna_source(url, "min", "")


def test_reading_changes_nothing(url: str) -> None:
    path = Path(url.removeprefix("sqlite:///"))
    before = hashlib.sha256(path.read_bytes()).digest()
    assert is_optunas(url)
    optuna_source(url, "mine", "")
    assert hashlib.sha256(path.read_bytes()).digest() == before


def test_a_file_that_is_not_an_optuna_database_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no such database"):
        is_optunas(f"sqlite:///{tmp_path}/none.db")
    assert not list(tmp_path.iterdir()), "and none is made"
    open_store(f"sqlite:///{tmp_path}/ours.db").close()
    assert not is_optunas(f"sqlite:///{tmp_path}/ours.db")
    (tmp_path / "empty.db").touch()
    with pytest.raises(NotFound, match="contains neither tuner's nor Optuna's studies"):
        is_optunas(f"sqlite:///{tmp_path}/empty.db")
    (tmp_path / "text.db").write_text("hello " * 99)
    with pytest.raises(Unavailable, match="file is not a database"):
        is_optunas(f"sqlite:///{tmp_path}/text.db")
    with pytest.raises(InvalidArgument, match="is not a URL of a database"):
        is_optunas("what://ever")
