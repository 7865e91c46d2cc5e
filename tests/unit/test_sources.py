"""What another study needs to be imported into an experiment, and what is adapted."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from controller.app.import_sources import SourceChoice, _fill, _fitting, _most, read_source
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.spec import read
from suggest.client import FinishedTrial, Measurement, Outcome, TrialState
from suggest.errors import FailedPrecondition, InvalidArgument
from suggest.imports import Source
from suggest.study import Direction, Objective
from suggest.url_redaction import redacted_url

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}, k: [a, 2]}
  trial: {command: ["true"]}
"""
SPEC = read(FILE, source="tiny.yaml").spec
TRIAL = FinishedTrial(
    {"x": 0.5}, Outcome(TrialState.SUCCEEDED, 1.0), [Measurement(1, "acc", 0, 1.0)]
)


def a_source(direction: Direction | None = Direction.MAXIMIZE, metric: str = "score") -> Source:
    objectives = [] if direction is None else [Objective(metric, direction)]
    return Source("theirs", "id", [("trial 0", TRIAL)], objectives)


def test_a_database_is_named_by_its_url(tmp_path: Path) -> None:
    path = tmp_path / "optuna.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE studies (study_id INTEGER)")
    with pytest.raises(
        InvalidArgument, match=f"is an SQLite database; write its URL: sqlite:///{path}"
    ):
        asyncio.run(read_source(SourceChoice(str(path)), Workspace(StateDirectory(tmp_path)), SPEC))


MEASUREMENT = {"attempt": 1, "metric": "score", "step": 0, "value": 1.0}
GOOD = {
    "number": 1,
    "state": "succeeded",
    "parameters": {"x": 0.5},
    "value": 1.0,
    "measurements": [MEASUREMENT],
}
SEARCH = {"uid": "u", "objectives": [{"metric": "score", "direction": "maximize"}]}


@pytest.mark.parametrize(
    "change",
    [
        {"parameters": [1]},
        {"value": "many"},
        {"measurements": [MEASUREMENT | {"attempt": 1.5}]},
        {"measurements": [MEASUREMENT | {"step": "a"}]},
        {"state": "gone"},
    ],
)
def test_an_export_with_a_value_of_another_type_is_refused(
    change: dict[str, object], tmp_path: Path
) -> None:
    path, workspace = tmp_path / "export.json", Workspace(StateDirectory(tmp_path))
    path.write_text(json.dumps({"study": SEARCH, "trials": [GOOD]}))
    source = asyncio.run(read_source(SourceChoice(str(path)), workspace, SPEC))
    assert [trial.parameters for _, trial in source.trials] == [{"x": 0.5}]
    path.write_text(json.dumps({"study": SEARCH, "trials": [GOOD | change]}))
    with pytest.raises(InvalidArgument, match="is not what tuner export --format json writes"):
        asyncio.run(read_source(SourceChoice(str(path)), workspace, SPEC))


def test_another_direction_is_refused() -> None:
    with pytest.raises(
        FailedPrecondition, match=r"theirs minimizes score, but tiny maximizes score: good"
    ):
        _fitting(a_source(Direction.MINIMIZE), SPEC, "", {})
    assert _fitting(a_source(None), SPEC, "", {}) == a_source(None), "a file says nothing of it"


def test_another_metric_is_imported_as_the_objective_if_named() -> None:
    with pytest.raises(
        FailedPrecondition,
        match=r"the objective of .* is acc, and that of tiny is score; .* add --value acc",
    ):
        _fitting(a_source(metric="acc"), SPEC, "", {})
    [(_, trial)] = _fitting(a_source(metric="acc"), SPEC, "acc", {}).trials
    assert trial.measurements == [Measurement(1, "score", 0, 1.0)]


def test_missing_parameters_are_filled_in_by_type() -> None:
    [(_, trial)] = _fitting(a_source(), SPEC, "", _fill(["k=2", "x=0.1"], SPEC)).trials
    assert trial.parameters == {"k": 2, "x": 0.5}
    for word, said in (
        ("k", "write NAME=VALUE"),
        ("k=", "write NAME=VALUE"),
        ("kk=1", "unknown parameter kk; did you mean k?"),
    ):
        with pytest.raises(InvalidArgument) as refused:
            _fill([word], SPEC)
        assert said in str(refused.value)


def test_the_last_measurements_of_the_objective_are_imported_if_there_are_too_many() -> None:
    many = [
        Measurement(1, metric, step, 0.0) for step in range(7_000) for metric in ("score", "loss")
    ]
    assert _most(many, "score") == [one for one in many if one.metric == "score"]
    assert _most(many[:9], "score") == many[:9]


def test_no_password_is_shown_or_kept() -> None:
    url = "postgresql+psycopg://me:secret@db/tuner?password=secret&x=1"
    assert redacted_url(url) == "postgresql+psycopg://me:***@db/tuner?password=***&x=1"
