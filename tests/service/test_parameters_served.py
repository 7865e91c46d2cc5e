"""Parameters that running trials name, with a real server: decided, stored, and learned from."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import AsyncClient, Client, FinishedTrial
from suggest.errors import FailedPrecondition, InvalidArgument
from suggest.space import Choice, Condition, Domain, Float, Int, Parameter, Scale, Space, Value
from suggest.study import Algorithm, Direction, Objective, StudySpec
from suggest.trial import PLANNED, Outcome, Trial, TrialState
from tests.service.running import NAME, a_server

SPEC = StudySpec(
    Space(()),
    (Objective("loss", Direction.MINIMIZE),),
    Algorithm("default", seed=7),
    define_by_run=True,
)
Ask = Callable[[str, Domain], Value]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    store = tmp_path_factory.mktemp("served") / "studies.db"
    with a_server(store) as server, Client(server.address) as client:
        yield client


@pytest.fixture
def client(served: Client) -> Iterator[Client]:
    served.create_study(NAME, SPEC, request_id="create")
    yield served
    served.delete_study(NAME)


def begun(client: Client, request_id: str) -> Trial:
    return client.suggest(NAME, 1, client_id="c", request_id=request_id).trials[0]


def ask(client: Client, trial: Trial, name: str, domain: Domain) -> Value:
    return client.decide_parameter(NAME, trial.number, Parameter(name, domain), tries=trial.tries)


def test_a_client_may_choose_the_value(client: Client) -> None:
    trial = begun(client, "chosen")

    def chosen(name: str, domain: Domain, value: Value) -> Value:
        parameter = Parameter(name, domain)
        return client.decide_parameter(
            NAME, trial.number, parameter, value=value, tries=trial.tries
        )

    assert chosen("lr", Float(0, 1), 0.375) == 0.375
    assert chosen("lr", Float(0, 1), 0.5) == 0.375, "a repeated call returns the same"
    assert chosen("layers", Int(1, 3), 9) == 3
    assert chosen("kind", Choice(("a", None)), None) is None
    with pytest.raises(
        InvalidArgument, match=r"a value was chosen .* 'c' is not one of the choices"
    ):
        chosen("other", Choice(("a", "b")), "c")
    other = client.add_trial(NAME, {"lr": 0.25}, request_id="enqueued")
    trial = begun(client, "again")
    assert trial.number == other.number
    assert chosen("lr", Float(0, 1), 0.375) == 0.25, "an enqueued value takes precedence"


def ended(client: Client, trial: Trial, value: float) -> Trial:
    return client.complete(NAME, trial.number, Outcome(TrialState.SUCCEEDED, value))


def branches(client: Client, number: int) -> Trial:
    """Run a trial whose parameters depend on its choice."""
    trial = begun(client, f"r{number}")
    kind = ask(client, trial, "kind", Choice(("linear", "tree")))
    if kind == "linear":
        loss = abs(float(str(ask(client, trial, "c", Float(1e-3, 1e3, Scale.LOG)))) - 1)
    else:
        loss = abs(int(str(ask(client, trial, "depth", Int(1, 9)))) - 4)
    return ended(client, trial, loss)


def test_a_parameter_is_stored_before_it_is_answered_and_survives_a_restart(
    tmp_path: Path,
) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, SPEC, request_id="create")
        trial = begun(client, "r")
        assert trial.parameters == {}
        lr = ask(client, trial, "lr", Float(0.0, 1.0))
        assert client.get_trial(NAME, 0).parameters == {"lr": lr}
        assert ask(client, trial, "lr", Float(0.0, 1.0)) == lr
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        assert ask(client, trial, "lr", Float(0.0, 1.0)) == lr
        assert client.get_study(NAME).spec.space == Space((Parameter("lr", Float(0.0, 1.0)),))


def test_parameters_join_the_space_with_the_conditions_under_which_trials_met_them(
    client: Client,
) -> None:
    trials = [branches(client, number) for number in range(12)]
    assert {len(trial.parameters) for trial in trials} == {2}
    space = client.get_study(NAME).spec.space
    assert {p.name: p.when for p in space.parameters} == {
        "kind": (),
        "c": (Condition("kind", ("linear",)),),
        "depth": (Condition("kind", ("tree",)),),
    }


def test_parameters_of_a_loop_depend_on_its_length(client: Client) -> None:
    for number in range(20):
        trial = begun(client, f"r{number}")
        layers = ask(client, trial, "layers", Int(1, 3))
        assert isinstance(layers, int)
        for layer in range(layers):
            ask(client, trial, f"units{layer}", Int(4, 128, Scale.LOG))
        ended(client, trial, float(layers))
    when = {p.name: p.when for p in client.get_study(NAME).spec.space.parameters}
    assert when == {
        "layers": (),
        "units0": (),
        "units1": (Condition("layers", (2, 3)),),
        "units2": (Condition("layers", (3,)),),
    }


def test_a_range_may_differ_from_an_earlier_one_and_values_stay_within_it(
    client: Client,
) -> None:
    for number in range(15):
        trial = begun(client, f"r{number}")
        low = number % 3
        value = ask(client, trial, "x", Float(float(low), low + 1.0))
        assert isinstance(value, float)
        assert low <= value <= low + 1
        ended(client, trial, value)
    assert client.get_study(NAME).spec.space == Space((Parameter("x", Float(0.0, 3.0)),))


@pytest.mark.parametrize(
    ("first", "then", "problem"),
    [
        (Float(0.0, 1.0), Int(0, 1), "it was a float earlier and is an int"),
        (Float(1.0, 2.0), Float(1.0, 2.0, Scale.LOG), "its scale was linear"),
        (Choice(("a", "b")), Choice(("a", "c")), "choices cannot change"),
        (Choice(("a", "b")), Choice(("b", "a")), "choices cannot change"),
    ],
)
def test_another_kind_scale_or_other_choices_are_refused(
    client: Client, first: Domain, then: Domain, problem: str
) -> None:
    ask(client, begun(client, "r0"), "x", first)
    with pytest.raises(InvalidArgument, match=problem):
        ask(client, begun(client, "r1"), "x", then)


def test_another_kind_is_refused_to_the_trial_that_has_the_parameter(client: Client) -> None:
    trial = begun(client, "r1")
    value = ask(client, trial, "x", Float(0.0, 1.0))
    for other in (Int(0, 1), Float(0.5, 1.0, Scale.LOG), Choice(("a", "b"))):
        with pytest.raises(InvalidArgument, match=r"parameter\.x: it"):
            ask(client, trial, "x", other)
    with pytest.raises(InvalidArgument, match=r"parameter\.x\.min: .* is above max"):
        ask(client, trial, "x", Float(1.0, 0.0))
    assert ask(client, trial, "x", Float(0.0, 2.0)) == value


def test_an_enqueued_point_decides_parameters_that_no_trial_has_met_yet(client: Client) -> None:
    client.add_trial(NAME, {"x": 0.25, "kind": "b", "y": 9.0}, request_id="a")
    trial = begun(client, "r")
    assert ask(client, trial, "kind", Choice(("a", "b"))) == "b"
    assert ask(client, trial, "x", Float(0.0, 1.0)) == 0.25
    assert ask(client, trial, "y", Float(0.0, 1.0)) == 1.0, "the nearest one of the range"


@pytest.mark.parametrize("algorithm", ["tpe", "default"])
@pytest.mark.parametrize("restarts", [False, True])
def test_imported_trials_count_once_a_trial_has_named_their_parameters(
    tmp_path: Path, algorithm: str, restarts: bool
) -> None:
    """Also those of a branch that imported trials lack; the value of a choice that is none does not."""

    def imported(number: int) -> FinishedTrial:
        depth = 1 + number % 9
        found: dict[str, Value] = {"kind": "tree", "depth": depth, "never": "named"}
        if number % 3 == 0:
            found = {"kind": "linear", "c": 10.0 ** (number / 20 - 1)}
        if number == 2:
            found = {"kind": "forest"}
        loss = 9.0 + number / 9 if number % 3 == 0 else abs(depth - 8)
        outcome = Outcome(TrialState.SUCCEEDED, -1.0 if number == 2 else loss)
        return FinishedTrial(found, outcome, source_id=str(number))

    kinds = Choice(("linear", "tree"))
    spec = replace(SPEC, algorithm=Algorithm(algorithm, seed=3))
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, spec, request_id="create")
        trials = [imported(number) for number in range(40)]
        results = client.import_trials(NAME, trials, source="old", request_id="old")
        assert [result.number for result in results] == [*range(40)]
        assert client.get_trial(NAME, 1).parameters == trials[1].parameters
        client.add_trial(NAME, {"kind": "tree"}, request_id="tree")
        first = begun(client, "first")
        assert ask(client, first, "kind", kinds) == "tree"
        ask(client, first, "depth", Int(1, 9))
        ended(client, first, 20.0)
        if not restarts:
            check_that_the_branch_is_known(client, kinds)
    if restarts:
        with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
            check_that_the_branch_is_known(client, kinds)


def check_that_the_branch_is_known(client: Client, kinds: Choice) -> None:
    space = client.get_study(NAME).spec.space
    assert space.by_name["depth"].when == (Condition("kind", ("tree",)),)
    assert "never" not in space.by_name
    depths = []
    for number in range(10):
        trial = begun(client, f"next{number}")
        is_tree = ask(client, trial, "kind", kinds) == "tree"
        depth = int(str(ask(client, trial, "depth", Int(1, 9)))) if is_tree else 0
        depths.append(depth)
        ended(client, trial, abs(depth - 8))
    near = [depth for depth in depths if depth in (7, 8, 9)]
    assert len(near) >= 7, f"by chance one of six is: {depths}"


def test_names_that_depend_on_chance_are_refused_in_the_end(client: Client) -> None:
    named = Space(tuple(Parameter(f"x{index}", Int(0, 1)) for index in range(1000)))
    other = replace(NAME, study="many")
    client.create_study(other, replace(SPEC, space=named), request_id="many")
    trial = client.suggest(other, 1, client_id="c", request_id="r").trials[0]
    assert client.decide_parameter(other, trial.number, Parameter("x7", Int(0, 1))) in (0, 1)
    with pytest.raises(InvalidArgument, match="must not depend on chance"):
        client.decide_parameter(other, trial.number, Parameter("x1000", Int(0, 1)))


def test_a_trial_is_told_with_its_start_what_it_will_get(tmp_path: Path) -> None:
    domains = {"x": Float(0.0, 1.0), "n": Int(1, 9), "kind": Choice(("a", True, 1))}
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, SPEC, request_id="create")
        first = begun(client, "r0")
        assert json.loads(first.labels[PLANNED]) == {}
        for name, domain in domains.items():
            ask(client, first, name, domain)
        ended(client, first, 1.0)
        client.add_trial(NAME, {"x": 0.25}, request_id="a")
        trials = [begun(client, f"r{number}") for number in (1, 2)]
        assert json.loads(trials[0].labels[PLANNED])["x"][0] == 0.25
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        for trial in trials:
            planned = json.loads(trial.labels[PLANNED])
            for name, domain in domains.items():
                value = ask(client, trial, name, domain)
                assert json.dumps(value) == json.dumps(planned[name][0])


def test_a_first_trial_may_meet_hundreds_which_a_restart_keeps(tmp_path: Path) -> None:
    domains = {f"x{index}": (Int(0, 9), Float(0.0, 1.0))[index % 2] for index in range(300)}
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, SPEC, request_id="create")
        trial = begun(client, "r")
        values = {name: ask(client, trial, name, domain) for name, domain in domains.items()}
        ended(client, trial, 1.0)
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        assert client.get_trial(NAME, 0).parameters == values
        space = client.get_study(NAME).spec.space
        assert space == Space(tuple(Parameter(name, domains[name]) for name in domains))


def test_a_study_that_would_not_fit_into_a_reply_gets_no_further_parameter(
    client: Client,
) -> None:
    trial = begun(client, "r")

    def ask_for_long_choices() -> None:
        for index in range(40):
            values = [f"{place}" * 10_000 for place in range(10)]
            ask(client, trial, f"x{index}", Choice(tuple(values)))

    with pytest.raises(InvalidArgument, match="the study with all parameters that its trials"):
        ask_for_long_choices()
    assert 10 < len(client.get_study(NAME).spec.space.parameters) < 40


def test_a_trial_that_has_ended_meets_nothing_more(client: Client) -> None:
    trial = begun(client, "r")
    ended(client, trial, 1.0)
    with pytest.raises(FailedPrecondition, match="only while it runs"):
        ask(client, trial, "x", Int(0, 1))


@pytest.mark.parametrize("algorithm", ["grid", "cmaes", "pbt", "sobol"])
def test_an_algorithm_that_needs_all_parameters_from_the_start_is_refused(
    client: Client, algorithm: str
) -> None:
    spec = replace(SPEC, algorithm=Algorithm(algorithm))
    with pytest.raises(InvalidArgument, match="needs all parameters from the start"):
        client.validate(spec)


@pytest.mark.parametrize("algorithm", ["default", "tpe", "gp", "random"])
def test_points_repeat_for_a_seed(client: Client, algorithm: str) -> None:
    def points() -> list[object]:
        client.delete_study(NAME)
        spec = replace(SPEC, algorithm=Algorithm(algorithm, seed=3))
        client.create_study(NAME, spec, request_id="create")
        return [branches(client, number).parameters for number in range(14)]

    assert points() == points()


def test_an_asynchronous_client_asks_the_same(tmp_path: Path) -> None:
    async def asked(address: str) -> Value:
        client = AsyncClient(address)
        await client.create_study(NAME, SPEC, request_id="create")
        await client.suggest(NAME, 1, client_id="c", request_id="r")
        value = await client.decide_parameter(NAME, 0, Parameter("x", Int(3, 3)))
        await client.close()
        return value

    with a_server(tmp_path / "s.db") as server:
        assert asyncio.run(asked(server.address)) == 3
