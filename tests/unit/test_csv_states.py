"""Which column of a CSV file says how a trial ended."""

import pytest

from controller.app.csv_states import state_columns
from suggest.trial import TrialState


@pytest.mark.parametrize("name", ["exit_code", "exitcode", "returncode", "Exit Status"])
def test_an_exit_code_says_how_a_trial_ended(name: str) -> None:
    rows = [{name: "0"}, {name: "1"}, {name: "-9"}, {name: "0.0"}]
    columns = state_columns([name], rows)
    ends = [columns.end(row)[0] for row in rows]
    assert ends == [
        TrialState.SUCCEEDED,
        TrialState.FAILED,
        TrialState.FAILED,
        TrialState.SUCCEEDED,
    ]
