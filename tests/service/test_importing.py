"""Import of finished trials with a real server: each is imported once,
values outside give remarks, models learn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client, FinishedTrial, ImportResult
from suggest.errors import InvalidArgument, NotFound
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Space
from suggest.study import Algorithm, StudyName
from suggest.trial import IMPORTED_FROM, Measurement, Outcome, TrialState
from tests.service.running import NAME, SPEC, a_server, score

SPACE = Space(
    (
        Parameter("x", Float(0.0, 1.0)),
        Parameter("n", Int(1, 9, step=2)),
        Parameter("kind", Choice(("a", 1, True))),
        Parameter("part", Float(0.0, 1.0), (Condition("kind", ("a",)),)),
    )
)
POINT: Assignment = {"x": 0.5, "n": 3, "kind": 1}


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        client.create_study(NAME, replace(SPEC, space=SPACE), request_id="create")
        yield client


def done(
    value: float | None = 0.5, source_id: str = "", **parameters: float | str | bool
) -> FinishedTrial:
    return FinishedTrial(
        {**POINT, **parameters}, Outcome(TrialState.SUCCEEDED, value), source_id=source_id
    )


def take(client: Client, *trials: FinishedTrial, request_id: str = "notes") -> list[ImportResult]:
    return client.import_trials(NAME, trials, source="my notes", request_id=request_id)


def test_imported_trials_keep_outcomes_measurements_and_labels(client: Client) -> None:
    reports = [score(0, 0.25), score(1, 0.75)]
    trials = [
        FinishedTrial(
            {**POINT, "n": 3.0}, Outcome(TrialState.SUCCEEDED), reports, {"team": "vision"}
        ),
        FinishedTrial(POINT, Outcome(TrialState.PRUNED, reason="hopeless"), reports[:1]),
        FinishedTrial(POINT, Outcome(TrialState.FAILED, reason="why", failure_class="mine")),
        FinishedTrial(POINT, Outcome(TrialState.INFEASIBLE, reason="too big")),
    ]
    assert take(client, *trials) == [ImportResult(n) for n in range(4)]
    found = client.list_trials(NAME)
    assert [(t.state.value, t.value, t.reason, t.failure_class) for t in found] == [
        ("succeeded", 0.75, "", ""),
        ("pruned", 0.25, "hopeless", ""),
        ("failed", None, "why", "mine"),
        ("infeasible", None, "too big", ""),
    ]
    assert dict(found[0].labels) == {"team": "vision", IMPORTED_FROM: "my notes"}
    assert (dict(found[0].parameters), type(found[0].parameters["n"])) == (POINT, int)
    assert client.list_measurements(NAME, 0) == [(0, m) for m in reports]
    assert client.suggest(NAME, 1, client_id="c", request_id="r").trials[0].number == 4, (
        "none is handed out"
    )
    [best] = client.optimal_trials(NAME)
    assert best.number == 0


def test_each_trial_is_imported_once(client: Client) -> None:
    first = [done(0.1, "7"), done(0.2, "8")]
    assert [r.known for r in take(client, *first, done(0.1, "7"))] == [False, False, True]
    again = take(client, done(0.3, "9"), *first)
    assert [(r.number, r.known) for r in again] == [(2, False), (0, True), (1, True)]
    client.delete_trial(NAME, 1)
    assert take(client, *first)[1] == ImportResult(1, known=True), (
        "taken out by hand, it does not come back"
    )
    assert [r.number for r in take(client, *first, request_id="others")] == [3, 4]


def test_values_outside_the_space_are_imported_with_remarks_and_invalid_ones_refused(
    client: Client,
) -> None:
    results = take(
        client,
        done(x=7.0),
        done(n=4),
        done(kind="z"),
        done(y=1.0),
        done(part=0.5),
        done(kind="a"),
        done(x="wide"),
        done(x=math.nan),
        done(None),
        FinishedTrial({}, Outcome(TrialState.FAILED)),
    )
    assert [r.number for r in results] == [0, 1, 2, 3, 4, None, None, None, None, None]
    messages = [[f"{p.path}: {p.message}" for p in r.problems] for r in results]
    assert messages == [
        ["x: 7 is outside 0 to 1"],
        ["n: 4 is not on the steps of 2 from 1 to 9; the nearest are 3 or 5"],
        ["kind: 'z' is not one of the choices 'a', 1, true"],
        ["y: not a parameter of the space, and ignored"],
        [],
        ["part: no value; every active parameter needs one"],
        ["x: 'wide' is not a finite number; use one from 0 to 1"],
        ["x: nan is not a finite number; use one from 0 to 1"],
        [
            "outcome: has no finite value of 'score'; give one, or measurements, or import it as "
            "failed"
        ],
        [f"{name}: no value; every active parameter needs one" for name in ("x", "n", "kind")],
    ]
    assert [dict(t.parameters) for t in client.list_trials(NAME)] == [
        {**POINT, "x": 7.0},
        {**POINT, "n": 4},
        {**POINT, "kind": "z"},
        POINT,
        POINT,
    ]


@pytest.mark.parametrize(
    ("trials", "path"),
    [
        ([], "trials: 0 at once"),
        ([done()] * 1001, "trials: 1001 at once; send 1 to 1000"),
        (
            [replace(done(), measurements=[score(k, 0.0) for k in range(5001)])] * 2,
            "trials: 10002 measurements",
        ),
        ([done(), done(math.inf)], r"trials\[1\].outcome.succeeded.value"),
        (
            [replace(done(), measurements=[Measurement(0, "score", 0, 0.0)])],
            r"trials\[0\].measurements\[0\].attempt",
        ),
        ([done(source_id="x" * 129)], r"trials\[0\].source_id"),
    ],
)
def test_an_invalid_import_request_is_refused_as_a_whole(
    client: Client, trials: list[FinishedTrial], path: str
) -> None:
    with pytest.raises(InvalidArgument, match=path):
        take(client, *trials)
    assert client.list_trials(NAME) == []


def test_an_import_requires_a_source_and_a_request_id(client: Client) -> None:
    with pytest.raises(InvalidArgument, match=r"(?s)request_id: .*source: "):
        client.import_trials(NAME, [done()], source="", request_id="")
    with pytest.raises(NotFound):
        client.import_trials(StudyName("default", "nobody"), [done()], source="x", request_id="x")


@pytest.mark.parametrize("algorithm", ["random", "tpe", "optuna:tpe", "default"])
def test_a_search_learns_from_imported_trials_also_after_a_restart(
    tmp_path: Path, algorithm: str
) -> None:
    spec = replace(SPEC, space=SPACE, algorithm=Algorithm(algorithm, seed=3))
    trials = [
        done(k / 40, str(k), x=k / 20 - 0.25, n=1 + k % 12, kind="b" if k % 7 == 0 else 1)
        for k in range(40)
    ]
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, spec, request_id="create")
        assert all(result.number is not None for result in take(client, *trials))
        before = client.suggest(NAME, 3, client_id="c", request_id="r1").trials
    with a_server(tmp_path / "t.db") as server, Client(server.address) as client:
        client.create_study(NAME, spec, request_id="create")
        take(client, *trials)
    with a_server(tmp_path / "t.db") as server, Client(server.address) as client:
        after = client.suggest(NAME, 3, client_id="c", request_id="r1").trials
        wider = Space((Parameter("x", Float(-1.0, 2.0)), *SPACE.parameters[1:]))
        client.update_study(NAME, space=wider)
        last = client.suggest(NAME, 3, client_id="c", request_id="r2").trials
    assert [t.parameters for t in before] == [t.parameters for t in after]
    for trial in before:
        assert SPACE.point_problems(trial.parameters, partial=False) == ()
    if algorithm != "random":
        assert max(float(t.parameters["x"]) for t in last) > 1.0, (
            "what lay outside counts when the space has grown to it"
        )


def test_the_label_with_the_source_of_a_trial_cannot_be_changed(client: Client) -> None:
    take(client, done())
    assert dict(client.update_trial(NAME, 0, labels={"team": "vision"}).labels) == {
        "team": "vision",
        IMPORTED_FROM: "my notes",
    }


def test_better_imported_points_outside_the_space_do_not_mislead_the_model(tmp_path: Path) -> None:
    spec = replace(
        SPEC, space=Space((Parameter("x", Float(0.0, 1.0)),)), algorithm=Algorithm("tpe", seed=3)
    )
    inside = [
        FinishedTrial({"x": k / 40}, Outcome(TrialState.SUCCEEDED, -abs(k / 40 - 0.25)))
        for k in range(40)
    ]
    outside = [
        FinishedTrial({"x": 2.0 + k}, Outcome(TrialState.SUCCEEDED, 1.0 + k)) for k in range(40)
    ]
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, spec, request_id="create")
        take(client, *inside, *outside)
        found = client.suggest(NAME, 12, client_id="c", request_id="r").trials
    near = [t for t in found if abs(float(t.parameters["x"]) - 0.25) < 0.15]
    assert len(near) > 8


def test_a_grid_tries_no_point_that_was_imported(tmp_path: Path) -> None:
    grid = replace(SPEC, space=Space((Parameter("n", Int(1, 4)),)), algorithm=Algorithm("grid"))
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, grid, request_id="create")
        take(
            client,
            *(FinishedTrial({"n": n}, Outcome(TrialState.SUCCEEDED, 1.0)) for n in (2, 3, 9)),
        )
        found = client.suggest(NAME, 9, client_id="c", request_id="r")
    assert ([t.parameters for t in found.trials], found.exhausted) == ([{"n": 1}, {"n": 4}], True)


def test_imported_trials_count_for_pruning(client: Client) -> None:
    peers = [
        replace(done(1.0, str(k)), measurements=[score(s, 1.0 + s) for s in range(5)])
        for k in range(3)
    ]
    take(client, *peers)
    [trial] = client.suggest(NAME, 1, client_id="c", request_id="r").trials
    assert client.report(NAME, trial.number, [score(2, 0.5)]).should_stop


def test_a_point_can_be_queued_without_an_experiment_file(client: Client) -> None:
    queued = client.add_trial(NAME, {"kind": "a"}, request_id="first")
    [trial] = client.suggest(NAME, 1, client_id="c", request_id="r").trials
    assert (trial.number, trial.parameters["kind"]) == (queued.number, "a")
    assert list(trial.parameters) == ["kind", "n", "part", "x"]


def test_ids_that_only_look_alike_when_joined_are_different_trials(client: Client) -> None:
    for request_id, source_id in (("a/b", "c"), ("a", "b/c"), ("3/a", "b")):
        trial = replace(done(), source_id=source_id)
        [first] = client.import_trials(NAME, [trial], source="x", request_id=request_id)
        [again] = client.import_trials(NAME, [trial], source="x", request_id=request_id)
        assert (first.known, again.known, again.number) == (False, True, first.number)
    enqueued = client.add_trial(NAME, {}, request_id="import/a/b")
    [imported] = client.import_trials(
        NAME, [replace(done(), source_id="b")], source="x", request_id="a"
    )
    assert (imported.known, imported.number) == (False, enqueued.number + 1)
    assert client.add_trial(NAME, {}, request_id="import/a/b").number == enqueued.number
