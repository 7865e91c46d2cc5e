"""Katib's Suggestion service: any history of an experiment gets a correct
answer, also after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import grpc
import pytest

from suggest.client import Client
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.names import parse_study
from suggest.server import Server, call_pool
from suggest.trial import TrialState
from tests.katib_stubs import DBManagerStub, EarlyStoppingStub, SuggestionStub
from tests.service.katib_caller import (
    DONE,
    MIXED,
    NUMBERS,
    KatibController,
    a_request,
    a_trial,
    an_experiment,
    choice,
    double,
    points_of,
    suggesting,
    whole,
)
from tests.service.running import a_server

POINT = {"lr": "0.02", "layers": "2", "kind": "sgd"}
RUNNING, FAILED, KILLED = pb.TrialStatus.RUNNING, pb.TrialStatus.FAILED, pb.TrialStatus.KILLED
FINITE = an_experiment("grid", (whole("n", "1", "4"), choice("kind", "a", "b")))


@contextmanager
def a_stub(server: Server) -> Iterator[SuggestionStub]:
    with grpc.insecure_channel(server.address) as channel:
        yield SuggestionStub(channel)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Server, SuggestionStub]]:
    with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
        yield server, stub


@pytest.fixture
def stub(served: tuple[Server, SuggestionStub]) -> SuggestionStub:
    return served[1]


def ask(stub: SuggestionStub, request: pb.GetSuggestionsRequest) -> list[dict[str, str]]:
    return points_of(stub.GetSuggestions(request, timeout=60))


def studies(server: Server) -> list[str]:
    with Client(server.address) as client:
        return [str(study.name) for study in client.list_studies("katib")]


def states(server: Server) -> dict[str, tuple[TrialState, float | None]]:
    """Return the trials of all of Katib's studies by Katib's names."""
    with Client(server.address) as client:
        return {
            trial.labels["katib.kubeflow.org/trial"]: (trial.state, trial.value)
            for study in client.list_studies("katib")
            for trial in client.list_trials(study.name)
            if "katib.kubeflow.org/trial" in trial.labels
        }


def refused(stub: SuggestionStub, request: pb.GetSuggestionsRequest) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        stub.GetSuggestions(request, timeout=60)
    return caught.value.code(), caught.value.details()


# The number of suggestions, and repeated requests


def test_a_request_gets_exactly_as_many_suggestions_as_it_asks_for(stub: SuggestionStub) -> None:
    for count in (1, 3, 100):
        experiment = an_experiment(name=f"of-{count}")
        points = ask(stub, a_request(experiment, count=count))
        assert len(points) == count
        assert all(list(point) == ["lr", "layers", "kind"] for point in points)


@pytest.mark.parametrize("algorithm", ["random", "grid", "tpe", "sobol"])
def test_a_repeated_request_gets_the_same_answer(stub: SuggestionStub, algorithm: str) -> None:
    request = a_request(an_experiment(algorithm), count=3)
    assert ask(stub, request) == ask(stub, request)


def test_a_larger_repeated_request_begins_with_the_lost_suggestions(stub: SuggestionStub) -> None:
    first = ask(stub, a_request(FINITE, count=2))
    assert ask(stub, a_request(FINITE, count=4))[:2] == first


def test_delivered_suggestions_are_not_repeated_before_their_trials_appear(
    stub: SuggestionStub,
) -> None:
    first = ask(stub, a_request(FINITE, count=3))
    begun = [a_trial("search-a", first[0], RUNNING)]
    more = ask(stub, a_request(FINITE, begun, count=1, total=4))
    assert more[0] not in first


def test_a_restarted_server_gives_the_same_answer_and_continues(tmp_path: Path) -> None:
    experiment = an_experiment("tpe", settings={"random_state": "3"})
    history: list[pb.Trial] = []
    for turn in range(5):
        request = a_request(experiment, history, count=3)
        with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
            before = ask(stub, request)
        with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
            assert ask(stub, request) == before
        history += [
            a_trial(f"search-{turn}-{k}", point, DONE, f"0.{turn}{k}")
            for k, point in enumerate(before)
        ]


def test_a_server_with_an_empty_store_answers_a_long_history(
    tmp_path: Path, stub: SuggestionStub
) -> None:
    experiment = an_experiment("tpe")
    history = [a_trial(f"search-{k}", POINT, DONE, f"0.{k}") for k in range(20)]
    with a_server(tmp_path / "another.db") as server, a_stub(server) as another:
        for each in (stub, another):
            assert len(ask(each, a_request(experiment, history, count=2))) == 2


def test_numbers_in_any_spelling_are_the_same_trials_after_a_restart(tmp_path: Path) -> None:
    experiment = an_experiment("tpe", (double("x", "0", "2"), whole("n", "0", "9")))
    spellings = [
        ("0.50", "1"),
        ("5E-1", "2"),
        ("1e-05", "3"),
        ("1", "4"),
        (".25", "5.0"),
        ("+0.75", "-0"),
        ("1.5", "7"),
    ]
    history = [
        a_trial(f"search-{k}", {"x": x, "n": n}, DONE, "0.5") for k, (x, n) in enumerate(spellings)
    ]
    points = [(float(x), int(float(n))) for x, n in spellings]
    for first in ([*history], history[:1], history[-1:]):  # spellings are also read alone
        folder = tmp_path / str(len(list(tmp_path.iterdir())))
        folder.mkdir()
        for _ in range(2):
            with a_server(folder / "studies.db") as server, a_stub(server) as stub:
                ask(stub, a_request(experiment, first))
                ask(stub, a_request(experiment, history))
                with Client(server.address) as client:
                    [study] = client.list_studies("katib")
                    succeeded = [
                        t for t in client.list_trials(study.name) if t.state is TrialState.SUCCEEDED
                    ]
        assert sorted((t.parameters["x"], t.parameters["n"]) for t in succeeded) == sorted(points)


def test_the_last_two_points_of_a_space_are_suggested(stub: SuggestionStub) -> None:
    points = [{"n": str(n), "kind": kind} for n in range(1, 5) for kind in "ab"]
    history = [
        a_trial(f"search-{k}", point, DONE, "0.5")
        for k, point in enumerate(points[:3] + points[5:])
    ]
    assert ask(stub, a_request(FINITE, history, count=2)) == points[3:5]


NAMES_IN_USE = (
    double("--lr", "0", "0.5", "0.2"),
    whole("learning rate", "1", "9", "4"),
    choice("lr/decay", "a", "b"),
)


@pytest.mark.parametrize("algorithm", ["random", "tpe", "multivariate-tpe", "grid", "sobol"])
def test_parameters_have_the_names_that_katib_takes(stub: SuggestionStub, algorithm: str) -> None:
    experiment = an_experiment(algorithm, NAMES_IN_USE)
    stub.ValidateAlgorithmSettings(
        pb.ValidateAlgorithmSettingsRequest(experiment=experiment), timeout=60
    )
    first = ask(stub, a_request(experiment, count=2))
    history = [a_trial(f"search-{place}", point, DONE, "0.5") for place, point in enumerate(first)]
    points = first + ask(stub, a_request(experiment, history, count=2))
    assert {tuple(point) for point in points} == {("--lr", "learning rate", "lr/decay")}
    assert {point["--lr"] for point in points} <= {"0.0", "0.2", "0.4"}, (
        "the last step is below max"
    )


# The ends of trials


def test_trials_are_recorded_with_their_outcomes(served: tuple[Server, SuggestionStub]) -> None:
    server, stub = served
    outcomes = {
        "succeeded": (DONE, "0.5"),
        "early-stopped": (pb.TrialStatus.EARLYSTOPPED, "0.25"),
        "nan": (DONE, "nan"),
        "inf": (DONE, "inf"),
        "-inf": (DONE, "-inf"),
        "too-large": (DONE, "1e999"),
        "unavailable": (DONE, "unavailable"),
        "no-value": (DONE, ""),
        "failed": (FAILED, ""),
        "killed": (KILLED, ""),
        "metrics-unavailable": (pb.TrialStatus.METRICSUNAVAILABLE, "0.9"),
        "created": (pb.TrialStatus.CREATED, ""),
        "running": (RUNNING, ""),
        "unknown": (pb.TrialStatus.UNKNOWN, ""),
        "newer": (99, "0.9"),  # a condition of a newer client
    }
    history = [a_trial(name, POINT, *each) for name, each in outcomes.items()]
    ask(stub, a_request(an_experiment(), history))
    without_a_value = ("nan", "inf", "-inf", "too-large", "unavailable", "no-value")
    failed = dict.fromkeys(
        (*without_a_value, "failed", "killed", "metrics-unavailable"), (TrialState.FAILED, None)
    )
    running = dict.fromkeys(("created", "running", "unknown", "newer"), (TrialState.RUNNING, None))
    assert states(server) == {
        "succeeded": (TrialState.SUCCEEDED, 0.5),
        "early-stopped": (TrialState.PRUNED, 0.25),
        **failed,
        **running,
    }


def test_a_suggestion_stays_one_trial_from_creation_to_completion(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    experiment = an_experiment()
    [point] = ask(stub, a_request(experiment))
    for condition, accuracy in (
        (pb.TrialStatus.CREATED, ""),
        (RUNNING, ""),
        (DONE, "0.5"),
        (DONE, "0.5"),
    ):
        ask(stub, a_request(experiment, [a_trial("search-a", point, condition, accuracy)]))
    with Client(server.address) as client:
        [study] = client.list_studies("katib")
        ended = [t for t in client.list_trials(study.name) if t.finished]
    assert [(t.number, t.state, t.value) for t in ended] == [(0, TrialState.SUCCEEDED, 0.5)]


def test_a_running_trial_missing_from_a_request_counts_as_failed_until_it_reappears(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    experiment = an_experiment()
    a, b = (a_trial(f"search-{name}", POINT, RUNNING) for name in "ab")
    ask(stub, a_request(experiment, [a, b]))
    ask(stub, a_request(experiment, [b], total=3))
    assert states(server)["search-a"] == (TrialState.FAILED, None)
    ask(stub, a_request(experiment, [a_trial("search-a", POINT, DONE, "0.75"), b], total=3))
    assert states(server)["search-a"] == (TrialState.SUCCEEDED, 0.75)


def test_a_trial_that_a_sidecar_has_stopped_is_still_running_until_its_observation_is_sent(
    tmp_path: Path,
) -> None:
    experiment = an_experiment()
    a, b = (a_trial(f"search-{name}", POINT, RUNNING) for name in "ab")
    with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
        ask(stub, a_request(experiment, [a, b]))
        with grpc.insecure_channel(server.address) as channel:
            EarlyStoppingStub(channel).SetTrialStatus(
                pb.SetTrialStatusRequest(trial_name="search-a"), timeout=60
            )
        ask(stub, a_request(experiment, [b], total=3))
        assert states(server)["search-a"] == (TrialState.RUNNING, None)
    with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
        ask(stub, a_request(experiment, [b], total=3))
        assert states(server)["search-a"] == (TrialState.RUNNING, None)
        # the server cannot set the condition to EARLYSTOPPED
        ended = a_trial("search-a", POINT, DONE, "0.25")
        ask(stub, a_request(experiment, [ended, b], total=3))
        assert states(server)["search-a"] == (TrialState.PRUNED, 0.25)
        with grpc.insecure_channel(server.address) as channel:
            DBManagerStub(channel).DeleteObservationLog(
                pb.DeleteObservationLogRequest(trial_name="search-a")
            )
    with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
        ask(stub, a_request(experiment, [ended, b], total=3))
        assert states(server)["search-a"] == (TrialState.PRUNED, 0.25)


def test_a_trial_that_is_stopped_before_any_request_has_it_has_not_succeeded(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    with grpc.insecure_channel(server.address) as channel:
        EarlyStoppingStub(channel).SetTrialStatus(
            pb.SetTrialStatusRequest(trial_name="search-a"), timeout=60
        )
    ask(
        stub,
        a_request(
            an_experiment(), [a_trial(f"search-{name}", POINT, DONE, "0.25") for name in "ab"]
        ),
    )
    assert states(server) == {
        "search-a": (TrialState.PRUNED, 0.25),
        "search-b": (TrialState.SUCCEEDED, 0.25),
    }


def test_a_value_that_changes_later_replaces_the_earlier_one(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    for accuracy in ("0.5", "0.75"):
        ask(stub, a_request(an_experiment(), [a_trial("search-a", POINT, DONE, accuracy)]))
    assert states(server) == {"search-a": (TrialState.SUCCEEDED, 0.75)}


def test_the_sampler_learns_from_points_it_never_suggested(stub: SuggestionStub) -> None:
    """The sampler is tpe, which proposes points near ten good trials."""
    experiment = an_experiment("tpe", (double("x", "0", "1"),), settings={"n_startup_trials": "5"})
    history = [
        a_trial(f"search-{k}", {"x": str(k / 100)}, DONE, str(-abs(0.2 - k / 100)))
        for k in range(0, 100, 2)
    ]
    points = ask(stub, a_request(experiment, history, count=10))
    assert sum(abs(float(point["x"]) - 0.2) < 0.1 for point in points) >= 5


def test_a_point_outside_the_space_is_stored_and_ignored_by_the_sampler(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    outside = a_trial("search-a", {"lr": "7", "layers": "9", "kind": "other"}, DONE, "0.5")
    assert len(ask(stub, a_request(an_experiment("tpe"), [outside], count=2))) == 2
    assert states(server) == {"search-a": (TrialState.SUCCEEDED, 0.5)}


# Finite searches


def test_a_grid_suggests_each_point_once_and_then_reports_that_it_is_exhausted(
    stub: SuggestionStub,
) -> None:
    history: list[pb.Trial] = []
    given: list[dict[str, str]] = []
    for turn in range(4):
        points = ask(stub, a_request(FINITE, history, count=2))
        history += [a_trial(f"search-{turn}-{k}", point, FAILED) for k, point in enumerate(points)]
        given += points
    assert sorted(map(str, given)) == sorted(
        str({"n": str(n), "kind": kind}) for n in range(1, 5) for kind in "ab"
    )
    code, message = refused(stub, a_request(FINITE, history))
    assert code is grpc.StatusCode.FAILED_PRECONDITION
    assert (
        message
        == "experiment search: every point of its space has been suggested; the search is finished"
    )


def test_a_request_for_more_points_than_are_left_gets_the_rest(stub: SuggestionStub) -> None:
    assert len(ask(stub, a_request(FINITE, count=9))) == 8


def test_grid_points_are_computed_in_decimals(stub: SuggestionStub) -> None:
    experiment = an_experiment("grid", (double("lr", "0.1", "0.55", "0.1"),))
    assert [point["lr"] for point in ask(stub, a_request(experiment, count=5))] == [
        "0.1",
        "0.2",
        "0.3",
        "0.4",
        "0.5",
    ]


def test_a_choice_that_is_an_empty_text_is_suggested_and_comes_back(
    served: tuple[Server, SuggestionStub],
) -> None:
    """Encoders leave an empty text out, so its assignment has a name only."""
    server, stub = served
    experiment = an_experiment("grid", (choice("flag", "", "--nesterov"), choice("kind", "a", "b")))
    history: list[pb.Trial] = []
    for turn in range(4):
        [point] = ask(stub, a_request(experiment, history))
        history.append(a_trial(f"search-{turn}", point, DONE, "0.5"))
    ask(stub, a_request(experiment, history, count=0))
    with Client(server.address) as client:
        [study] = client.list_studies("katib")
        stored = [
            (trial.parameters["flag"], trial.state) for trial in client.list_trials(study.name)
        ]
    assert (
        sorted(stored, key=str)
        == [("", TrialState.SUCCEEDED)] * 2 + [("--nesterov", TrialState.SUCCEEDED)] * 2
    )


# Telling experiments apart


def test_experiments_with_the_same_name_and_different_spaces_are_separate(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    for parameters in (MIXED, NUMBERS):
        [point] = ask(stub, a_request(an_experiment("tpe", parameters)))
        assert list(point) == [p.name for p in parameters]
    assert len(studies(server)) == 2


def test_experiments_with_the_same_name_and_space_and_different_trials_are_separate(
    stub: SuggestionStub,
) -> None:
    """The experiments are like those of two namespaces: each gets the whole grid."""
    callers = [KatibController(FINITE, suggesting(stub), seed=seed) for seed in (1, 2)]
    for _ in range(4):
        for caller in callers:
            caller.turn(2)
    for caller in callers:
        assert len({str(point) for point in caller.suggested}) == 8


def test_a_deleted_and_recreated_experiment_starts_over(stub: SuggestionStub) -> None:
    first, second = (KatibController(FINITE, suggesting(stub), seed=seed) for seed in (1, 2))
    for caller in (first, second):
        for _ in range(4):
            caller.turn(2)
        assert len({str(point) for point in caller.suggested}) == 8


def test_changed_settings_apply_to_the_known_trials(served: tuple[Server, SuggestionStub]) -> None:
    server, stub = served
    history = [a_trial(f"search-{k}", POINT, DONE, "0.5") for k in range(3)]
    for seed in "12":
        ask(stub, a_request(an_experiment("tpe", settings={"random_state": seed}), history))
    assert len(studies(server)) == 2
    with Client(server.address) as client:
        assert [len(client.list_trials(s.name)) for s in client.list_studies("katib")] == [4, 4]


def test_a_change_of_trial_counts_keeps_the_experiment(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    for most in (10, 20):
        ask(stub, a_request(an_experiment("tpe", trials=most)))
    assert len(studies(server)) == 1


def test_a_stateless_client_need_not_count_its_suggestions(stub: SuggestionStub) -> None:
    history: list[pb.Trial] = []
    given: list[dict[str, str]] = []
    for turn in range(4):
        points = ask(stub, a_request(FINITE, history, count=2, total=0))
        given += points
        history += [
            a_trial(f"search-{turn}-{k}", point, DONE, "0.5") for k, point in enumerate(points)
        ]
    assert len({str(point) for point in given}) == 8


@pytest.mark.parametrize("algorithm", ["random", "grid"])
def test_trainers_controller_sends_no_counts_and_trials_that_were_never_suggested(
    served: tuple[Server, SuggestionStub], algorithm: str
) -> None:
    """What the controller of an OptimizationJob sends: no limits, no counts, and as trials what it
    reads from TrainJobs, also of a job that began before this server.
    """
    server, stub = served
    job = an_experiment(
        algorithm, [choice("batch_size", "16", "32", "64"), choice("kind", "a", "b")]
    )
    job.spec.parallel_trial_count = job.spec.max_trial_count = 0
    history = [
        a_trial("bert-trial-a", {"batch_size": "16", "kind": "a"}, DONE, "0.5"),
        a_trial("bert-trial-b", {"batch_size": "16", "kind": "b"}, FAILED),
        a_trial("bert-trial-c", {"batch_size": "32", "kind": "a"}, pb.TrialStatus.CREATED),
    ]
    request = pb.GetSuggestionsRequest(experiment=job, trials=history, current_request_number=2)
    points = ask(stub, request)
    assert len(points) == 2
    assert states(server) == {
        "bert-trial-a": (TrialState.SUCCEEDED, 0.5),
        "bert-trial-b": (TrialState.FAILED, None),
        "bert-trial-c": (TrialState.RUNNING, None),
    }
    if algorithm == "grid":
        known = [trial.spec.parameter_assignments.assignments for trial in history]
        tried = [{each.name: each.value for each in assigned} for assigned in known]
        assert not any(point in tried for point in points)


def test_points_of_suggestions_that_the_client_replaced_are_available_again(
    stub: SuggestionStub,
) -> None:
    """It never runs the second of two suggestions, which is suggested again
    until all eight points have run.
    """
    history: list[pb.Trial] = []
    ran: set[str] = set()
    for turn in range(8):
        points = ask(stub, a_request(FINITE, history, count=2))
        history.append(a_trial(f"search-{turn}", points[0], DONE, "0.5"))
        history.append(a_trial(f"invented-{turn}", {"n": "1", "kind": "a"}, DONE, "0.5"))
        ran.add(str(points[0]))
    assert len(ran) == 8


# Refused requests


BAD = {
    "no name": (
        a_request(an_experiment(name="")),
        "experiment.name: give a name of 1 to 253 characters",
    ),
    "a negative number": (
        a_request(an_experiment(), count=-1, total=0),
        "current_request_number: -1 suggestions; ask for 0 to 1000",
    ),
    "too many": (
        a_request(an_experiment(), count=1001),
        "current_request_number: 1001 suggestions; ask for 0 to 1000",
    ),
    "a negative total": (
        a_request(an_experiment(), total=-1),
        "total_request_number: -1 is negative; send how many were wanted in all",
    ),
    "a trial without a name": (
        a_request(an_experiment(), [a_trial("", POINT)]),
        "trials[0].name: give each trial its name, of 1 to 253 characters",
    ),
    "a name twice": (
        a_request(an_experiment(), [a_trial("a", POINT), a_trial("a", POINT, RUNNING)]),
        "trials: a is there twice; each trial has a name of its own",
    ),
    "the same trial twice": (
        a_request(an_experiment(), [a_trial("a", POINT), a_trial("a", POINT)]),
        "trials: a is there twice; each trial has a name of its own",
    ),
    "another parameter": (
        a_request(an_experiment(), [a_trial("a", {**POINT, "depth": "3"})]),
        "trials[0].depth: is not a parameter of the experiment",
    ),
    "a parameter without a name": (
        a_request(an_experiment(), [a_trial("a", {**POINT, "": "3"})]),
        "trials[0].: is not a parameter of the experiment",
    ),
    "a missing one": (
        a_request(an_experiment(), [a_trial("a", {"lr": "0.02", "kind": "sgd"})]),
        "trials[0].layers: has no value; each trial has one for each parameter",
    ),
    "no number": (
        a_request(an_experiment(), [a_trial("a", {**POINT, "lr": "high"})]),
        "trials[0].lr: 'high' is not a value of this parameter",
    ),
    "half a layer": (
        a_request(an_experiment(), [a_trial("a", {**POINT, "layers": "2.5"})]),
        "trials[0].layers: '2.5' is not a value of this parameter",
    ),
    "an infinite number": (
        a_request(an_experiment(), [a_trial("a", {**POINT, "lr": "inf"})]),
        "trials[0].lr: 'inf' is not a value of this parameter",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_requests_are_refused_with_a_reason(stub: SuggestionStub, name: str) -> None:
    request, message = BAD[name]
    assert refused(stub, request) == (grpc.StatusCode.INVALID_ARGUMENT, message)


def test_malformed_trials_are_refused(served: tuple[Server, SuggestionStub]) -> None:
    server, _ = served
    frame = a_request(an_experiment()).SerializeToString() + b"\x12\x03abc"
    with grpc.insecure_channel(server.address) as channel, pytest.raises(grpc.RpcError) as caught:
        channel.unary_unary("/api.v1.beta1.Suggestion/GetSuggestions")(frame, timeout=10)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == "trials[0]: is not a trial: its bytes cannot be read"


def test_a_refused_request_stores_nothing(served: tuple[Server, SuggestionStub]) -> None:
    server, stub = served
    good, bad = a_trial("a", POINT, DONE, "0.5"), a_trial("b", {**POINT, "lr": "high"})
    for trials in ([good, bad], [good, good]):
        refused(stub, a_request(an_experiment(), trials))
    assert studies(server) == []
    ask(stub, a_request(an_experiment(), [good]))
    refused(stub, a_request(an_experiment(), [good, bad]))
    assert states(server) == {"a": (TrialState.SUCCEEDED, 0.5)}


def test_two_servers_used_in_turn_give_one_sequence(tmp_path: Path) -> None:
    """The second server takes the study over from the first, which has ended."""
    given: list[dict[str, str]] = []
    history: list[pb.Trial] = []
    for turn in range(4):
        with ExitStack() as stack:
            server = stack.enter_context(a_server(tmp_path / "studies.db"))
            stub = stack.enter_context(a_stub(server))
            points = ask(stub, a_request(FINITE, history, count=2))
        given += points
        history += [a_trial(f"search-{turn}-{k}", point, RUNNING) for k, point in enumerate(points)]
    assert len({str(point) for point in given}) == 8


def test_a_slow_experiment_does_not_delay_others(
    served: tuple[Server, SuggestionStub], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both requests come from one controller, and the slow one's calls are heavy."""
    monkeypatch.setattr(call_pool, "HEAVY_S", 0.0)
    server, stub = served
    slow, other = (an_experiment(name=name) for name in ("slow", "other"))
    history = [a_trial(f"slow-{k}", POINT, DONE, "0.5") for k in range(200)]
    ask(stub, a_request(slow, history))
    [study] = [name for name in studies(server) if "slow" in name]
    assert server._started is not None
    with server._started._studies.sessions.writing(parse_study(study, "study")):
        waiting = stub.GetSuggestions.future(
            a_request(slow, [*history, a_trial("slow-x", POINT)]), timeout=60
        )
        others = [a_trial(f"other-{k}", POINT, DONE, "0.5") for k in range(200)]
        assert len(ask(stub, a_request(other, others))) == 1
        assert not waiting.done()
    assert len(waiting.result().parameter_assignments) == 1


def test_a_study_changed_by_another_client_is_read_again(
    served: tuple[Server, SuggestionStub],
) -> None:
    """A request id of another client may look like one of ours."""
    server, stub = served
    [point] = ask(stub, a_request(FINITE))
    with Client(server.address) as client:
        [study] = client.list_studies("katib")
        for request_id in ("katib/", "katib/0-0/x", "katib/9-0/1", "katib/0-0/0"):
            client.suggest(study.name, 1, client_id="another", request_id=request_id)
    more = ask(stub, a_request(FINITE, [a_trial("search-a", point, RUNNING)], count=3, total=4))
    assert len({str(each) for each in [point, *more]}) == 4


def test_histories_of_a_thousand_trials_are_learned_in_increments(
    served: tuple[Server, SuggestionStub],
) -> None:
    server, stub = served
    experiment = an_experiment("tpe", NUMBERS)
    controller = KatibController(experiment, suggesting(stub), seed=5)
    for _ in range(10):
        controller.turn(100)
    finished = [state for state, _ in states(server).values() if state.finished]
    assert len(finished) == 800, (
        "of the last two hundred, the server knows only that they run or were suggested"
    )
    assert len(studies(server)) == 1


# Hyperband


HYPERBAND = {"r_l": "9", "resource_name": "epochs", "eta": "3"}
WITH_EPOCHS = (double("lr", "0.01", "0.1"), whole("epochs", "1", "100"))


def test_hyperband_trains_the_best_configurations_with_more_of_the_resource(tmp_path: Path) -> None:
    """Restarts, parallel trials and failures do not change the result,
    and the search never blocks.
    """
    experiment = an_experiment("hyperband", WITH_EPOCHS, settings=HYPERBAND)

    def ask_a_new_server(request: pb.GetSuggestionsRequest) -> pb.GetSuggestionsReply:
        with a_server(tmp_path / "studies.db") as server, a_stub(server) as stub:
            return stub.GetSuggestions(request, timeout=60)

    controller = KatibController(experiment, ask_a_new_server, seed=3)
    for count in (4, 1, 7, 2, 9, 9, 9, 9):
        controller.turn(count)
    trained: dict[str, list[int]] = {}
    for point in controller.suggested:
        trained.setdefault(point["lr"], []).append(int(point["epochs"]))
    assert {epochs for each in trained.values() for epochs in each} == {1, 3, 9}
    steps = [each for each in trained.values() if len(each) > 1]
    assert steps
    assert all(each in ([1, 3], [3, 9], [1, 3, 9]) for each in steps)


def test_a_hyperband_history_of_katib_is_continued(stub: SuggestionStub) -> None:
    experiment = an_experiment(
        "hyperband", WITH_EPOCHS, settings={**HYPERBAND, "current_s": "2", "n": "9", "r": "1"}
    )
    history = [
        a_trial(
            f"search-{k}", {"lr": f"0.0{k}", "epochs": "1"}, DONE if k < 4 else FAILED, f"0.{k}"
        )
        for k in range(1, 6)
    ]
    assert ask(stub, a_request(experiment, history)) == [{"lr": "0.03", "epochs": "3"}]
