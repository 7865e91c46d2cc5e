"""Growing search spaces with a real server: what UpdateStudy accepts
and refuses, also after a restart.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.model import Experiment
from controller.search import ExperimentStudy, study_name
from suggest.client import AsyncClient, Client
from suggest.errors import InvalidArgument
from suggest.space import Choice, Condition, Float, Parameter, Space
from suggest.study import Algorithm, Belief, Constraint, Study, ValueRule
from suggest.trial import Measurement, Outcome, TrialState
from tests.service.running import NAME, SPEC, a_server
from tests.unit.builders import an_experiment

WIDER = Space((Parameter("x", Float(-20.0, 10.0)), Parameter("kind", Choice(("a", "c", "b")))))


def test_a_grown_study_is_the_same_for_all_clients_and_after_a_restart(tmp_path: Path) -> None:
    spec = replace(SPEC, algorithm=Algorithm("tpe", seed=7, settings={"startupTrials": 2}))
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        client.create_study(NAME, spec, request_id="create")
        for trial in client.suggest(NAME, 4, client_id="c", request_id="r1").trials:
            client.complete(
                NAME, trial.number, Outcome(TrialState.SUCCEEDED, float(trial.parameters["x"]))
            )
        grown = client.update_study(NAME, space=WIDER)
        assert grown == client.update_study(NAME, space=WIDER), "again changes nothing"
        assert (grown.spec.space, [(p.space, p.trials) for p in grown.past]) == (
            WIDER,
            [(SPEC.space, 4)],
        )
        assert client.create_study(NAME, spec, request_id="create").uid == grown.uid
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        assert replace(client.get_study(NAME), owner_address="", owner_epoch=0) == replace(
            grown, owner_address="", owner_epoch=0
        )
        after = client.suggest(NAME, 3, client_id="c", request_id="r2").trials
    with a_server(tmp_path / "t.db") as server, Client(server.address) as client:
        client.create_study(NAME, spec, request_id="create")
        for trial in client.suggest(NAME, 4, client_id="c", request_id="r1").trials:
            client.complete(
                NAME, trial.number, Outcome(TrialState.SUCCEEDED, float(trial.parameters["x"]))
            )
        client.update_study(NAME, space=WIDER)
        undisturbed = client.suggest(NAME, 3, client_id="c", request_id="r2").trials
    assert [(t.number, t.parameters) for t in after] == [
        (t.number, t.parameters) for t in undisturbed
    ]


def test_a_change_that_is_not_growth_is_refused_with_every_path_and_the_cure(
    client: Client,
) -> None:
    client.create_study(NAME, SPEC, request_id="create")
    narrow = Space((Parameter("x", Float(-10.0, 5.0)), Parameter("kind", Choice(("a", "c")))))
    with pytest.raises(InvalidArgument) as refused:
        client.update_study(NAME, space=narrow)
    assert [problem.path for problem in refused.value.problems] == [
        "spec.parameters.x.max",
        "spec.parameters.kind.values",
    ]
    assert "create a new study and import the trials of this one" in str(refused.value)
    for wrong, path in (
        (Space(()), "spec.parameters"),
        (Space((Parameter("x", Float(-10.0, float("inf"))),)), r"spec.parameters.x.max"),
        (
            Space((*WIDER.parameters, Parameter("y", Float(0, 1), (Condition("kind", ("z",)),)))),
            "y.when.kind",
        ),
    ):
        with pytest.raises(InvalidArgument, match=path):
            client.update_study(NAME, space=wrong)
    assert client.get_study(NAME).spec == SPEC


def test_a_study_grows_even_if_its_belief_says_less_of_the_wider_range(client: Client) -> None:
    at_the_end = Belief("x", -10.0, 0.11)
    spec = replace(SPEC, algorithm=Algorithm("gp"), prior=(at_the_end,))
    client.create_study(NAME, spec, request_id="create")
    grown = client.update_study(NAME, space=WIDER).spec
    assert (grown.space, grown.prior) == (WIDER, (at_the_end,))
    with pytest.raises(InvalidArgument, match="no more than an even guess"):
        client.validate(replace(spec, space=WIDER))


def test_metrics_can_be_renamed_and_nothing_else_of_objectives(client: Client) -> None:
    client.create_study(NAME, SPEC, request_id="create")
    (first, second) = client.suggest(NAME, 2, client_id="c", request_id="r").trials
    client.report(NAME, first.number, [Measurement(1, SPEC.objective.metric, 1, 0.5)])
    client.complete(NAME, first.number, Outcome(TrialState.SUCCEEDED, 0.5))
    new = replace(SPEC.objective, metric="renamed")
    assert client.update_study(NAME, objectives=[new]).spec.objective == new
    assert [m.metric for _, m in client.list_measurements(NAME)] == ["renamed"]
    client.report(NAME, second.number, [Measurement(1, "renamed", 3, 0.7)])
    assert client.complete(NAME, second.number, Outcome(TrialState.SUCCEEDED)).value == 0.7
    assert [trial.value for trial in client.list_trials(NAME)] == [0.5, 0.7]
    with pytest.raises(InvalidArgument, match=r"spec\.objectives\[0\]: only its metric can change"):
        client.update_study(NAME, objectives=[replace(new, value=ValueRule.BEST)])
    with pytest.raises(InvalidArgument, match=r"spec\.constraints: has 0 elements"):
        client.update_study(NAME, constraints=[Constraint("renamed", min=0.0)])


def test_a_growth_can_be_validated_without_storing_it(client: Client) -> None:
    client.create_study(NAME, SPEC, request_id="create")
    assert client.update_study(NAME, space=WIDER, validate_only=True).spec.space == WIDER
    with pytest.raises(InvalidArgument):
        client.update_study(NAME, space=Space(WIDER.parameters[:1]), validate_only=True)
    assert client.get_study(NAME).spec == SPEC


@pytest.mark.parametrize(
    "algorithm", [Algorithm("grid"), Algorithm("default", settings={"trials": 3})]
)
def test_a_grown_space_must_meet_the_algorithms_requirements(
    client: Client, algorithm: Algorithm
) -> None:
    grid = Space((Parameter("x", Float(0.0, 1.0, step=0.5)),))
    client.create_study(NAME, replace(SPEC, algorithm=algorithm, space=grid), request_id="create")
    with pytest.raises(InvalidArgument, match=r"spec.parameters.x: a grid needs points or step"):
        client.update_study(NAME, space=Space((Parameter("x", Float(0.0, 2.0)),)))


def an_extended(experiment: Experiment, space: Space) -> Experiment:
    return replace(experiment, spec=replace(experiment.spec, space=space))


async def made(address: str, experiment: Experiment) -> Study:
    """Return the experiment's study as its controller creates or updates it at a start."""
    async with AsyncClient(address) as client:
        await ExperimentStudy(experiment, client).make(begun=False)
        return await client.get_study(study_name(experiment))


def test_a_controller_grows_its_study_to_the_newest_revision_and_never_back(tmp_path: Path) -> None:
    first = an_experiment()
    wider = Space((Parameter("lr", Float(1e-4, 2.0)), *first.spec.space.parameters[1:]))
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        assert asyncio.run(made(server.address, first)).spec.space == first.spec.space
        assert asyncio.run(made(server.address, an_extended(first, wider))).spec.space == wider
        widest = Space((Parameter("lr", Float(1e-4, 4.0)), *first.spec.space.parameters[1:]))
        client.update_study(study_name(first), space=widest)
        for experiment in (first, an_extended(first, wider)):
            assert asyncio.run(made(server.address, experiment)).spec.space == widest, (
                "grown by somebody else's hand"
            )
