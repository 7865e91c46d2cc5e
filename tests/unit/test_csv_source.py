"""Finished trials in a CSV file: the meaning of columns and cells,
and the remarks about invalid ones.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from controller.app import csv_source
from controller.app.csv_source import read_csv
from controller.core.model import ExperimentSpec
from controller.spec import read
from suggest.client import Measurement, Outcome, TrialState
from suggest.errors import InvalidArgument, NotFound
from suggest.imports import Source
from suggest.study import Constraint

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters:
    x: {type: float, min: 0, max: 1}
    n: {type: int, min: 1, max: 9}
    kind: [a, 1, true, "2"]
    part: {type: float, min: 0, max: 1, when: {kind: a}}
  trial: {command: ["true"]}
"""
SPEC = read(FILE, source="tiny.yaml").spec


SEVERAL = read(
    FILE.replace(
        "objective: {metric: score, direction: maximize}",
        "objectives: [{metric: score, direction: maximize}, {metric: size, direction: minimize}]\n"
        "  constraints: [{metric: ms, max: 20}]",
    ),
    source="several.yaml",
).spec


def source(
    folder: Path, text: str, *, value: str = "", spec: ExperimentSpec = SPEC, **fill: str
) -> Source:
    (folder / "r.csv").write_text(text, encoding="utf-8-sig")
    return read_csv(str(folder / "r.csv"), spec, value=value, fill=fill)


def rows(found: Source) -> list[tuple[object, ...]]:
    return [
        (place, *trial.parameters.values(), trial.outcome.value) for place, trial in found.trials
    ]


def test_cells_become_values_by_the_domains_of_their_parameters(tmp_path: Path) -> None:
    found = source(
        tmp_path,
        "score,x,n,kind,part,note\n0.5,1e-1,3,a,.5,\n1,0.2,3.0,1,,hi\n2,7,99,TRUE,,\n\n3,1,1,2,,\n4,1,1.5,z,,\n",
    )
    assert found.refused == []
    assert rows(found) == [
        ("line 2", 0.1, 3, "a", 0.5, 0.5),
        ("line 3", 0.2, 3, 1, 1.0),
        ("line 4", 7.0, 99, True, 2.0),
        ("line 6", 1.0, 1, "2", 3.0),
        ("line 7", 1.0, 1.5, "z", 4.0),
    ]
    assert [type(trial.parameters["kind"]) for _, trial in found.trials] == [
        str,
        int,
        bool,
        str,
        str,
    ]


def test_the_columns_of_our_export_and_of_optunas_frames_are_known(tmp_path: Path) -> None:
    ours = "number,name,state,value,step,reason,failureClass,parameters.x,parameters.n,parameters.kind,parameters.part\n"
    found = source(
        tmp_path,
        ours + "0,t-0,succeeded,0.5,1,,,0.5,2,1,\n1,t-1,failed,,,exit code 1,userError,0.5,2,1,\n"
        "2,t-2,running,0.1,1,,,0.5,2,1,\n3,t-3,pruned,,,hopeless,,0.5,2,1,\n",
    )
    assert [trial.outcome for _, trial in found.trials] == [
        Outcome(TrialState.SUCCEEDED, 0.5),
        Outcome(TrialState.FAILED, None, "exit code 1", "userError"),
        Outcome(TrialState.PRUNED, None, "hopeless"),
    ]
    assert found.left_out == {"not finished": 1}
    frame = ",number,value,params_x,params_n,params_kind,state\n0,0,0.5,0.25,2,1,COMPLETE\n1,1,,0.25,2,1,FAIL\n"
    assert [trial.outcome.state.value for _, trial in source(tmp_path, frame).trials] == [
        "succeeded",
        "failed",
    ]


HEADER = "number,name,state,value,step,reason,failureClass,attempts,startTime,endTime,seconds"


@pytest.mark.parametrize("metric", ["step", "number", "state", "seconds", "x"])
def test_a_metric_named_like_another_column_of_our_export_has_its_own_value(
    tmp_path: Path, metric: str
) -> None:
    named = replace(
        SPEC,
        objective=replace(SPEC.objective, metric=metric),
        constraints=(Constraint("reason", max=9),),
    )
    header = f"{HEADER},parameters.x,parameters.n,parameters.kind,metrics.reason"
    ((_, trial),) = source(
        tmp_path, f"{header}\n7,t-7,succeeded,0.5,3,,,1,,,2.0,0.25,2,1,8\n", spec=named
    ).trials
    assert trial.outcome == Outcome(TrialState.SUCCEEDED, 0.5)
    assert trial.measurements == [Measurement(1, "reason", 0, 8.0)]


def test_a_metric_named_like_another_column_of_optunas_frame_has_its_own_value(
    tmp_path: Path,
) -> None:
    named = replace(SPEC, objective=replace(SPEC.objective, metric="number"))
    frame = ",number,value,datetime_start,datetime_complete,duration,params_x,params_n,params_kind,state"
    ((_, trial),) = source(tmp_path, f"{frame}\n7,7,0.5,,,,0.25,2,1,COMPLETE\n", spec=named).trials
    assert trial.outcome == Outcome(TrialState.SUCCEEDED, 0.5)


@pytest.mark.parametrize("header", ["number,name,score,value", "number,value,score,name"])
def test_in_a_file_of_other_columns_the_metric_comes_first(tmp_path: Path, header: str) -> None:
    numbers = {"number": 7, "name": "t", "score": 0.5, "value": 3}
    cells = ",".join(str(numbers[name]) for name in header.split(","))
    ((_, trial),) = source(tmp_path, f"{header},x,n,kind\n{cells},0.25,2,1\n").trials
    assert trial.outcome == Outcome(TrialState.SUCCEEDED, 0.5)


def test_a_column_of_a_parameter_is_not_named_as_a_missing_one(tmp_path: Path) -> None:
    named = read(
        FILE.replace("metric: score", "metric: value").replace("    x:", "    value:"),
        source="named.yaml",
    ).spec
    with pytest.raises(
        InvalidArgument, match=r"has no column 'values_0' or 'metrics\.value' for the value; it has"
    ):
        source(tmp_path, "value,n,kind\n0.5,2,1\n", spec=named)


def test_spaces_and_line_ends_of_choices_are_kept(tmp_path: Path) -> None:
    choices = FILE.replace(
        'kind: [a, 1, true, "2"]', r'kind: [a, "", " ", " a", "a ", "\r\n", "one\rtwo"]'
    )
    spec = read(choices, source="spaces.yaml").spec
    cells = ["a", "", " ", " a", '"\r\n"', '"one\rtwo"', "  a  "]
    text = "score,x,n,kind\n" + "".join(f"1,0,1,{cell}\n" for cell in cells)
    (tmp_path / "r.csv").write_bytes(text.encode())
    found = read_csv(str(tmp_path / "r.csv"), spec, value="", fill={})
    assert [trial.parameters["kind"] for _, trial in found.trials] == [
        "a",
        "",
        " ",
        " a",
        "\r\n",
        "one\rtwo",
        "a",
    ]


def test_an_empty_cell_of_an_inactive_choice_is_no_value(tmp_path: Path) -> None:
    parameters = 'part: {type: choice, values: ["", b], when: {kind: a}}'
    spec = read(
        FILE.replace("part: {type: float, min: 0, max: 1, when: {kind: a}}", parameters),
        source="when.yaml",
    ).spec
    found = source(tmp_path, "score,x,n,kind,part\n1,0,1,a,\n2,0,1,1,\n", spec=spec)
    assert [trial.parameters.get("part") for _, trial in found.trials] == ["", None]


@pytest.mark.parametrize(
    "header", ["score,size,ms", "value,metrics.size,metrics.ms", "values_0,values_1,ms"]
)
def test_each_objective_and_constraint_has_a_column(tmp_path: Path, header: str) -> None:
    found = source(tmp_path, f"{header},x,n,kind\n0.5,3,10,0.5,2,1\n", spec=SEVERAL)
    ((_, trial),) = found.trials
    assert trial.outcome == Outcome(TrialState.SUCCEEDED, 0.5)
    assert trial.measurements == [Measurement(1, "size", 0, 3.0), Measurement(1, "ms", 0, 10.0)]


def test_a_row_without_a_value_of_a_further_objective_is_refused(tmp_path: Path) -> None:
    text = "score,size,ms,x,n,kind,state\n0.5,,10,0.5,2,1,\n0.5,,10,0.5,2,1,pruned\n,,,0.5,2,1,failed\n"
    found = source(tmp_path, text, spec=SEVERAL)
    assert [str(p.path) for p in found.refused] == ["line 2"]
    assert found.refused[0].message.startswith("size: is empty, so there is nothing to compare")
    assert [trial.outcome.state.value for _, trial in found.trials] == ["pruned", "failed"]


def test_a_constraint_of_an_objective_takes_its_column(tmp_path: Path) -> None:
    bounded = replace(SPEC, constraints=(Constraint("score", min=0.1),))
    ((_, trial),) = source(tmp_path, "score,x,n,kind\n0.5,0.5,2,1\n", spec=bounded).trials
    assert trial.measurements == [Measurement(1, "score", 0, 0.5)]


def test_missing_columns_of_objectives_and_constraints_are_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        source(tmp_path, "score,x,n,kind\n0.5,0.5,2,1\n", spec=SEVERAL)
    assert [p.message.partition(": ")[2].partition(",")[0] for p in refused.value.problems] == [
        "has no column 'size'",
        "has no column 'ms'",
    ]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("nan,0.5,3,1", "score: 'nan' is not a finite number, so there is nothing to compare"),
        ("inf,0.5,3,1", "score: 'inf' is not a finite number"),
        (
            ",0.5,3,1",
            "score: is empty, so there is nothing to compare; remove the row, or set its state to "
            "failed",
        ),
        ("1,wide,3,1", "x: 'wide' is not a number"),
        ("1,nan,3,1", "x: 'nan' is not a number"),
        ("1,0.5,some,1", "n: 'some' is not a whole number"),
        ("1,0.5,3", "has 3 cells, and the header 4"),
        ("__import__('os'),0.5,3,1", "is not a finite number"),
    ],
)
def test_an_invalid_row_is_reported_by_line_and_the_others_are_imported(
    tmp_path: Path, row: str, message: str
) -> None:
    found = source(tmp_path, f"score,x,n,kind\n1,0.5,3,1\n{row}\n2,0.5,3,1\n")
    assert [place for place, _ in found.trials] == ["line 2", "line 4"]
    [problem] = found.refused
    assert (problem.path, message in problem.message) == ("line 3", True), problem


def test_all_missing_columns_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as refused:
        source(tmp_path, "accuracy,X,kind,kind\n1,2,3,4\n")
    message = str(refused.value)
    assert "has two columns 'kind'" in message
    assert "has no column for x; it has accuracy, X, kind, kind; or add --fill x=VALUE" in message
    assert "has no column for n" in message
    assert "has no column 'score' or 'value' for the value; " in message
    assert "part" not in message, "it is not always there"
    with pytest.raises(InvalidArgument, match="has no column 'loss'"):
        source(tmp_path, "score,x,n,kind\n", value="loss")
    for text in ("", "\n\n"):
        with pytest.raises(InvalidArgument, match="is empty; expected a line with the names"):
            source(tmp_path, text)


def test_a_parameter_that_is_missing_may_be_filled_in(tmp_path: Path) -> None:
    found = source(
        tmp_path, "acc,x,kind,part\n1,0.5,a,\n2,,1,\n", value="acc", n="4", part="0.1", x="0.9"
    )
    assert rows(found) == [("line 2", 0.5, 4, "a", 0.1, 1.0), ("line 3", 0.9, 4, 1, 0.1, 2.0)]


def test_a_row_is_known_by_what_it_says(tmp_path: Path) -> None:
    text = "score,x,n,kind\n1,0.5,3,1\n1,0.5,3,1\n2,0.5,3,1\n"
    first = [trial.source_id for _, trial in source(tmp_path, text).trials]
    longer = [
        trial.source_id for _, trial in source(tmp_path, text + "1,0.5,3,1\n9,0.5,3,1\n").trials
    ]
    assert (len(set(longer)), longer[:3]) == (5, first)


def test_a_missing_or_too_long_file_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(NotFound, match="there is no such file"):
        read_csv(str(tmp_path / "none.csv"), SPEC, value="", fill={})
    (tmp_path / "b.csv").write_bytes(b"score,x\n\xff\xfe\x00")
    with pytest.raises(InvalidArgument, match="is not UTF-8 text"):
        read_csv(str(tmp_path / "b.csv"), SPEC, value="", fill={})
    with pytest.raises(InvalidArgument, match="line 2 is not CSV"):
        source(tmp_path, 'score,x,n,kind\n1,"' + "x" * 200_000 + '",3,1\n')
    monkeypatch.setattr(csv_source, "MAX_ROWS", 3)
    with pytest.raises(
        InvalidArgument, match="has more than 3 rows; import the most important part"
    ):
        source(tmp_path, "score,x,n,kind\n" + "1,0.5,3,1\n" * 4)


def test_a_parameter_called_state_is_a_parameter(tmp_path: Path) -> None:
    spec = replace(SPEC, space=read(FILE.replace("    x:", "    state:"), source="f").spec.space)
    (tmp_path / "r.csv").write_text("score,state,n,kind\n1,0.5,3,1\n")
    [(_, trial)] = read_csv(str(tmp_path / "r.csv"), spec, value="", fill={}).trials
    assert (trial.parameters["state"], trial.outcome.value) == (0.5, 1.0)


@pytest.mark.parametrize("text", ['{"name": "tiny"}', '[\n {"number": 0}]'])
def test_an_export_as_json_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidArgument, match="is JSON; expected CSV"):
        source(tmp_path, text)


def ends(found: Source) -> list[tuple[str, str]]:
    return [(trial.outcome.state.value, trial.outcome.reason) for _, trial in found.trials]


@pytest.mark.parametrize(
    "column", ["State", "STATUS", "status", "Run State", "run.status", "tags.runStatus", "Verdict"]
)
@pytest.mark.parametrize(
    "word", ["crashed", "killed", "FAILED", "ERROR", "TrialState.FAIL", "STATE_ERRORED"]
)
def test_a_crashed_run_of_another_program_is_a_failure(
    tmp_path: Path, column: str, word: str
) -> None:
    found = source(
        tmp_path, f"Name,{column},x,n,kind,score\na,finished,0.5,3,1,0.9\nb,{word},0.5,3,1,0.99\n"
    )
    assert ends(found) == [("succeeded", ""), ("failed", f"{column}: {word}")]
    assert found.remark == f"how trials ended is taken from {column} (1 succeeded, 1 failed)"


@pytest.mark.parametrize(
    ("word", "left_out"),
    [("running", "not finished"), ("SCHEDULED", "not finished"), ("aborted", "cancelled")],
)
def test_a_run_without_a_result_is_left_out_with_a_word(
    tmp_path: Path, word: str, left_out: str
) -> None:
    found = source(tmp_path, f"State,x,n,kind,score\n{word},0.5,3,1,0.9\nfinished,0.5,3,1,0.8\n")
    assert (ends(found), found.left_out) == ([("succeeded", "")], {left_out: 1})


def test_the_columns_of_mlflow_and_ray_tune_are_known(tmp_path: Path) -> None:
    mlflow = "run_id,status,params.x,params.n,params.kind,metrics.score\na,FINISHED,0.5,3,1,0.9\nb,KILLED,0.5,3,1,1.0\n"
    assert [state for state, _ in ends(source(tmp_path, mlflow))] == ["succeeded", "failed"]
    ray = "score,done,config/x,config/n,config/kind\n0.9,True,0.5,3,1\n0.95,False,0.5,3,1\n"
    found = source(tmp_path, ray)
    assert (rows(found), found.left_out) == ([("line 2", 0.5, 3, 1, 0.9)], {"not finished": 1})


def test_of_several_columns_each_may_say_that_a_trial_failed(tmp_path: Path) -> None:
    found = source(
        tmp_path, "status,failed,x,n,kind,score\ndone,false,0.5,3,1,0.9\ndone,true,0.5,3,1,0.9\n"
    )
    assert ends(found) == [("succeeded", ""), ("failed", "failed: true")]


def test_an_unknown_word_is_refused_and_another_column_is_named(tmp_path: Path) -> None:
    found = source(
        tmp_path,
        "State,http_status,x,n,kind,score\nfinishd,200,0.5,3,1,0.9\ndone,500,0.5,3,1,0.9\n",
    )
    assert [p.message for p in found.refused] == [
        "State: 'finishd' is not a state such as succeeded, finished, failed, crashed, pruned, "
        "infeasible, running; "
        "did you mean finished?"
    ]
    assert found.remark == (
        "how trials ended is taken from State (1 succeeded); http_status may also say it, but not "
        "in words such as "
        "failed, and is not used"
    )


@pytest.mark.parametrize(
    "header",
    [
        "error,x,n,kind,score",
        "parameters.mode,x,n,kind,score",
        "mode,x,n,kind,score",
        "tag,x,n,kind,score",
    ],
)
def test_a_column_that_says_something_else_is_not_a_state(tmp_path: Path, header: str) -> None:
    words = {"error": "1", "parameters.mode": "running", "mode": "fast", "tag": "new"}[
        header.partition(",")[0]
    ]
    found = source(tmp_path, f"{header}\n{words},0.5,3,1,0.9\n")
    assert (ends(found), found.remark) == ([("succeeded", "")], "")


def test_a_pipe_is_read_and_not_waited_for(tmp_path: Path) -> None:
    pipe = tmp_path / "results.csv"
    os.mkfifo(pipe)
    with pytest.raises(InvalidArgument, match="is empty; expected a line with the names"):
        read_csv(str(pipe), SPEC, value="", fill={})
    reading, writing = os.pipe()  # as the shell's <(command) makes one
    with os.fdopen(reading, "rb"):
        with os.fdopen(writing, "w") as file:
            file.write("score,x,n,kind\n1,0.5,3,1\n")
        assert rows(read_csv(f"/dev/fd/{reading}", SPEC, value="", fill={})) == [
            ("line 2", 0.5, 3, 1, 1.0)
        ]


@pytest.mark.parametrize(
    ("path", "message"), [("/dev/zero", "has a line of more than"), ("/", "is a directory")]
)
def test_what_is_not_a_file_of_lines_is_named(path: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read_csv(path, SPEC, value="", fill={})


def test_lines_without_end_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_source, "MAX_ROWS", 3)
    with pytest.raises(InvalidArgument, match="has more than 3 rows"):
        source(tmp_path, "score,x,n,kind\n" + "\n" * 4)
