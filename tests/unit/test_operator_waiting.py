"""The statuses of resources while the store of their experiments is away."""

from __future__ import annotations

from typing import Any

import pytest

from controller.operator.status import condition_of, waiting_status
from tests.unit.builders import at

TROUBLE = "postgresql+psycopg://tuner@db/tuner: no connection"
RUNS = {"type": "Running", "status": "True", "reason": "TrialsRunning", "message": "2 trials run"}


def running(**others: Any) -> dict[str, Any]:
    before = {"lastTransitionTime": "2025-01-01T00:00:00Z"}
    accepted = {"type": "Accepted", "status": "True", "reason": "Valid"} | before
    conditions = [accepted, RUNS | before]
    return {"state": "running", "trials": {"succeeded": 3}, "conditions": conditions, **others}


def test_what_runs_waits_and_keeps_its_counts() -> None:
    status = waiting_status(running(), 1, TROUBLE, at(0))
    condition = condition_of(status, "Running")
    assert (condition["status"], condition["reason"]) == ("False", "Waiting")
    assert (condition["message"], status["reason"]) == (TROUBLE, TROUBLE)
    assert condition["lastTransitionTime"] == "2026-01-02T03:04:05Z"
    assert (status["trials"], status["state"]) == ({"succeeded": 3}, "running")


def test_it_is_written_once() -> None:
    status = waiting_status(running(), 1, TROUBLE, at(0))
    assert waiting_status(status, 1, TROUBLE, at(60)) == status


def test_a_new_resource_is_not_looked_at_yet() -> None:
    status = waiting_status({}, 1, TROUBLE, at(0))
    assert (status["state"], status["reason"]) == ("pending", TROUBLE)
    assert condition_of(status, "Accepted")["reason"] == "NotChecked"


@pytest.mark.parametrize("state", ["succeeded", "failed", "paused", "stopped", "suspended"])
def test_what_does_not_run_is_as_it_was(state: str) -> None:
    before = {"state": state, "conditions": []}
    assert waiting_status(before, 1, TROUBLE, at(0)) == before


def test_a_status_that_somebody_has_emptied_waits_too() -> None:
    status = waiting_status({"state": "running"}, 1, TROUBLE, at(0))
    assert condition_of(status, "Running")["message"] == TROUBLE
