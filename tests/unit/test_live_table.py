"""What a page is sent: everything at first, then what changed since the position that it knows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from controller.report.record import StudyTrials, TrialRecord
from controller.ui.live_table import ROWS_AT_ONCE, LiveTable
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

SPEC = StudySpec(
    Space((Parameter("x", Float(0.0, 1.0)),)),
    (Objective("score", Direction.MAXIMIZE),),
    Algorithm("random"),
)
STUDY = Study(StudyName("default", "s"), "uid", SPEC, seed=1)


def succeeded(number: int, value: float = 0.5) -> TrialRecord:
    return TrialRecord(Trial(number, TrialState.SUCCEEDED, {"x": 0.25}, value), by_client=True)


def shown(
    table: LiveTable,
    trials: Mapping[int, TrialRecord | None],
    *,
    metrics: Any = None,
    done: int = 0,
) -> None:
    record = StudyTrials(
        STUDY, trials=[one for one in trials.values() if one], metrics=metrics or {}
    )
    table.apply(record, {"done": done}, trials)


def since(
    table: LiveTable, position: str, trials: frozenset[int] | None = None
) -> list[tuple[str, Any]]:
    """Return the events with their data; the position of an event is that in its data."""
    events = [
        (name, encoded, json.loads(encoded.text)) for name, encoded in table.since(position, trials)
    ]
    assert all(encoded.id == data.get("id", "") for _, encoded, data in events)
    return [(name, data) for name, _, data in events]


def numbers(events: Any) -> list[tuple[str, list[int]]]:
    return [(event, [row[0] for row in data["rows"]]) for event, data in events]


def test_a_page_that_knows_nothing_is_sent_everything() -> None:
    table = LiveTable()
    shown(table, {0: succeeded(0), 1: succeeded(1)}, done=2)
    ((event, data),) = since(table, "")
    assert (event, data["summary"], data["id"]) == ("reset", {"done": 2}, table.position)
    assert [column["key"] for column in data["columns"]][:5] == [
        "number",
        "state",
        "value",
        "step",
        "parameters.x",
    ]
    assert [row[:5] for row in data["rows"]] == [
        [0, "succeeded", 0.5, None, 0.25],
        [1, "succeeded", 0.5, None, 0.25],
    ]


def test_a_page_that_knows_a_position_is_sent_what_changed_since() -> None:
    table = LiveTable()
    shown(table, {0: succeeded(0), 1: succeeded(1)})
    before = table.position
    shown(table, {1: succeeded(1, 0.75), 0: succeeded(0)})
    ((event, data),) = since(table, before)
    assert (event, [row[0] for row in data["rows"]], data["removed"]) == ("update", [1], [])
    assert "summary" not in data, "it has not changed"
    assert list(since(table, table.position)) == []


def test_a_deleted_trial_is_named() -> None:
    table = LiveTable()
    shown(table, {0: succeeded(0), 1: succeeded(1)})
    before = table.position
    shown(table, {1: None})
    ((_, data),) = since(table, before)
    assert (data["rows"], data["removed"]) == ([], [1])
    assert numbers(since(table, "")) == [("reset", [0])]


def test_positions_of_other_servers_and_garbage_are_ignored() -> None:
    table = LiveTable()
    shown(table, {0: succeeded(0)})
    other = LiveTable()
    shown(other, {0: succeeded(0)})
    for position in (
        other.position,
        "x",
        ".",
        f"{table.position[:8]}.-1",
        f"{table.position[:8]}.{'9' * 30}",
        "\u0663.1",
    ):
        assert numbers(since(table, position)) == [("reset", [0])], position


def test_a_new_metric_makes_a_new_column_and_sends_everything() -> None:
    table = LiveTable()
    shown(table, {0: succeeded(0), 1: succeeded(1)})
    before = table.position
    record = StudyTrials(STUDY, trials=[succeeded(0), succeeded(1)], metrics={1: {"loss": 3.0}})
    table.apply(record, {"done": 0}, {1: succeeded(1)})
    ((event, data),) = since(table, before)
    at = [column["key"] for column in data["columns"]].index("metrics.loss")
    assert (event, [row[at] for row in data["rows"]]) == ("reset", [None, 3.0])


def test_many_rows_are_sent_in_parts_and_only_the_last_has_the_position() -> None:
    table = LiveTable()
    shown(table, {number: succeeded(number) for number in range(2 * ROWS_AT_ONCE + 1)})
    found = list(since(table, ""))
    assert [(event, len(data["rows"]), "id" in data) for event, data in found] == [
        ("reset", ROWS_AT_ONCE, False),
        ("update", ROWS_AT_ONCE, False),
        ("update", 1, True),
    ]


def test_a_page_of_some_trials_is_sent_only_these() -> None:
    table = LiveTable()
    shown(table, {number: succeeded(number) for number in range(5)})
    assert numbers(since(table, "", frozenset({1, 9}))) == [("reset", [1])]
    before = table.position
    shown(table, {3: succeeded(3, 0.75)}, done=1)
    ((_, data),) = since(table, before, frozenset({1}))
    assert (data["rows"], data["summary"]) == ([], {"done": 1})


def test_values_that_json_lacks_are_sent_as_strings() -> None:
    table = LiveTable()
    one = succeeded(0)
    shown(table, {0: replace(one, trial=replace(one.trial, value=float("nan")))})
    ((_, data),) = since(table, "")
    assert data["rows"][0][2] == "NaN"


def test_pages_that_know_the_same_are_sent_the_same_text() -> None:
    """Encoding 10,000 rows for each of many pages would keep the event loop busy for seconds."""
    table = LiveTable()
    shown(table, {number: succeeded(number) for number in range(5)})
    assert table.since("") is table.since("x")
    before = table.position
    shown(table, {3: succeeded(3, 0.75)})
    assert numbers(since(table, before)) == [("update", [3])]
    assert numbers(since(table, "")) == [("reset", [0, 1, 2, 4, 3])], (
        "not that of the version before"
    )
