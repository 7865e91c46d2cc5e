"""Katib's `enas` and `darts` over gRPC: architectures for any history, and texts as outcomes."""

from __future__ import annotations

import json
from pathlib import Path

import grpc
import pytest

from suggest.client import Client
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.trial import TrialState
from tests.katib_stubs import SuggestionStub
from tests.service.katib_caller import (
    KatibController,
    a_request,
    a_trial,
    of_layers,
    points_of,
    suggesting,
)
from tests.service.running import a_server

ENAS, DARTS = of_layers("enas"), of_layers("darts", settings={"num_epochs": "2"})


def test_a_suggestion_is_an_architecture_and_what_its_numbers_mean(tmp_path: Path) -> None:
    with a_server(tmp_path / "studies.db") as server:
        [point] = points_of(asked(server.address, a_request(ENAS)))
    assert list(point) == ["architecture", "nn_config"]
    architecture = json.loads(point["architecture"])
    assert [len(entry) for entry in architecture] == [1, 2, 3]
    config = json.loads(point["nn_config"].replace("'", '"'))
    assert (config["num_layers"], config["input_sizes"]) == (3, [8, 8, 1])
    assert config["embedding"].keys() == {str(entry[0]) for entry in architecture}


def asked(address: str, request: pb.GetSuggestionsRequest) -> pb.GetSuggestionsReply:
    with grpc.insecure_channel(address) as channel:
        return SuggestionStub(channel).GetSuggestions(request, timeout=60)


class Layers(KatibController):
    """Katib's controller with an accuracy that is the share of convolutions."""

    def end(self, trial: pb.Trial) -> None:
        [architecture, _] = trial.spec.parameter_assignments.assignments
        share = sum(entry[0] < 6 for entry in json.loads(architecture.value)) / 3
        trial.status.condition = pb.TrialStatus.SUCCEEDED
        trial.status.observation.metrics.add(name="accuracy", value=str(share))


def test_a_restarted_server_goes_on_with_the_same_history(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    controller: Layers | None = None
    for _ in range(2):
        with a_server(path) as server, grpc.insecure_channel(server.address) as channel:
            ask = suggesting(SuggestionStub(channel))
            if controller is None:
                controller = Layers(ENAS, ask, seed=1)
            controller._ask = ask
            for _ in range(4):
                controller.turn(3)
            with Client(server.address) as client:
                [study] = client.list_studies("katib")
                known = {trial.state for trial in client.list_trials(study.name)}
    assert known == {TrialState.SUCCEEDED, TrialState.RUNNING}


def test_a_server_that_has_never_seen_the_search_learns_its_history(tmp_path: Path) -> None:
    with a_server(tmp_path / "first.db") as server:
        points = points_of(asked(server.address, a_request(ENAS, count=12)))
    trials = [
        a_trial(f"search-{number}", point, accuracy=str(number / 12))
        for number, point in enumerate(points)
    ]
    with a_server(tmp_path / "second.db") as server:
        assert len(points_of(asked(server.address, a_request(ENAS, trials, count=2)))) == 2
        with Client(server.address) as client:
            [study] = client.list_studies("katib")
            learned = client.list_trials(study.name, states=[TrialState.SUCCEEDED])
    assert sorted(trial.value or 0.0 for trial in learned) == [n / 12 for n in range(12)]
    assert all("layer1" in trial.parameters for trial in learned)


def test_an_architecture_of_another_network_is_refused(tmp_path: Path) -> None:
    trial = a_trial("search-a", {"architecture": "[[9], [0, 0], [0, 0, 0]]", "nn_config": "{}"})
    with a_server(tmp_path / "studies.db") as server, pytest.raises(grpc.RpcError) as caught:
        asked(server.address, a_request(ENAS, [trial]))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "is not a value of this parameter" in caught.value.details()


def test_every_trial_of_darts_gets_the_same_texts_and_succeeds_with_a_text(tmp_path: Path) -> None:
    with a_server(tmp_path / "studies.db") as server:
        one, two = points_of(asked(server.address, a_request(DARTS, count=2)))
        assert one == two
        assert list(one) == ["algorithm-settings", "search-space", "num-layers"]
        ended = [
            a_trial("search-a", one, accuracy="Genotype(normal=[[]])"),
            a_trial("search-b", two, pb.TrialStatus.FAILED),
        ]
        assert points_of(asked(server.address, a_request(DARTS, ended))) == [one]
        with Client(server.address) as client:
            [study] = client.list_studies("katib")
            known = [trial.state for trial in client.list_trials(study.name)]
    assert known[:2] == [TrialState.SUCCEEDED, TrialState.FAILED]
