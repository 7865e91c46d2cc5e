"""EstimateStudy over gRPC, for any study with one objective,
on any server and with any algorithm.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from suggest.client import Client, Float, maximize, minimize
from suggest.errors import FailedPrecondition, NotFound
from suggest.space import Parameter, Space
from suggest.study import Algorithm, StudyName, StudySpec
from tests.service.running import a_server

NAME = StudyName("default", "bowl")


def fill(client: Client, count: int, *, algorithm: str = "random") -> None:
    study = client.study("bowl", {"x": Float(0, 1)}, minimize("loss"), algorithm=algorithm, seed=1)
    for trial in study.trials(count):
        x = trial.parameters["x"]
        assert isinstance(x, float)
        trial.report(step=1, loss=(x - 0.3) ** 2)
        trial.complete()


@pytest.mark.parametrize("algorithm", ["random", "gp"])
def test_an_estimate_does_not_depend_on_the_algorithm(tmp_path: Path, algorithm: str) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        fill(client, 12, algorithm=algorithm)
        found = client.estimate(NAME)
        best = client.study(
            "bowl", {"x": Float(0, 1)}, minimize("loss"), algorithm=algorithm, seed=1
        ).best
        assert best is not None
        # After a search has converged, two trials may be equally good.
        chosen = client.get_trial(NAME, found.trial)
        assert (chosen.value, found.trials) == (pytest.approx(best.value, abs=1e-2), 12)
        assert found.value == pytest.approx(best.value, abs=1e-2)
        assert client.estimate(NAME) == found


def test_a_restarted_server_gives_the_same_estimate(tmp_path: Path) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        fill(client, 15)
        found = client.estimate(NAME)
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        assert client.estimate(NAME) == found


def test_a_study_without_enough_values_or_with_several_objectives_has_none(tmp_path: Path) -> None:
    with a_server(tmp_path / "s.db") as server, Client(server.address) as client:
        with pytest.raises(NotFound):
            client.estimate(NAME)
        fill(client, 9)
        with pytest.raises(
            FailedPrecondition, match="has 9 values, and an estimate needs at least 10"
        ):
            client.estimate(NAME)
        space = Space((Parameter("x", Float(0, 1)),))
        both = StudySpec(space, (minimize("loss"), maximize("score")), Algorithm("random"))
        client.create_study(StudyName("default", "two"), both, request_id="two")
        with pytest.raises(FailedPrecondition, match="several objectives or constraints"):
            client.estimate(StudyName("default", "two"))
