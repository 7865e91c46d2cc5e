"""Random histories of Katib's experiments: lost replies, restarts, missing trials,
two clients with one name.

A client always gets as many suggestions as it requests, the same ones for a repeated request, and
each point of a grid once.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from suggest.errors import FailedPrecondition
from suggest.katib.suggestions import KatibSuggestions
from suggest.katib.v1beta1 import api_pb2 as pb
from suggest.katib.v1beta1.frames_pb2 import SuggestionsFrame
from suggest.server.admin import open_store
from suggest.studies import StudyService
from tests.service.katib_caller import (
    LETTERS,
    a_request,
    a_trial,
    an_experiment,
    choice,
    points_of,
    whole,
)

POINTS = 24
GRID = (whole("n", "1", "12"), choice("kind", "a", "b"))
STATUS = pb.TrialStatus


class Service:
    """The service in this process, which can be closed and opened again on its store."""

    def __init__(self, folder: Path) -> None:
        self._url = f"sqlite:///{folder}/studies.db"
        self._open()

    def _open(self) -> None:
        self._store = open_store(self._url)
        self._studies = StudyService(self._store, address="here")
        self._suggestions = KatibSuggestions(self._studies, self._store.observations)

    def close(self) -> None:
        self._studies.close()
        self._store.close()

    def restart(self) -> None:
        self.close()
        self._open()

    def ask(self, request: pb.GetSuggestionsRequest) -> list[dict[str, str]]:
        return points_of(
            self._suggestions.suggest(SuggestionsFrame.FromString(request.SerializeToString()))
        )


class Caller:
    """A controller like Katib's: it creates trials some time after it has accepted suggestions.

    keeps_first: one of its first trials is created at once and stays,
    so that every later request has a trial.
    """

    def __init__(
        self, experiment: pb.Experiment, rng: random.Random, *, keeps_first: bool = False
    ) -> None:
        self.experiment = experiment
        self.accepted: list[dict[str, str]] = []
        self._uncreated: list[dict[str, str]] = []
        self._trials: list[pb.Trial] = []
        self._rng = rng
        self._keeps_first = keeps_first

    def turn(self, service: Service, count: int) -> None:
        """Ask, perhaps several times because replies are lost; then create and end some trials."""
        sent = [t for t in self._trials if t.status.condition != STATUS.METRICSUNAVAILABLE]
        self._rng.shuffle(sent)
        request = a_request(self.experiment, sent, count=count, total=len(self.accepted) + count)
        points = service.ask(request)
        while self._rng.random() < 0.3:
            if self._rng.random() < 0.3:
                service.restart()
            assert service.ask(request) == points
        assert len(points) == count
        self.accepted += points
        self._uncreated += points
        self.live()

    def live(self) -> None:
        rng = self._rng
        for trial in self._trials:
            if trial.status.condition == STATUS.CREATED and rng.random() < 0.7:
                trial.status.condition = STATUS.RUNNING
            elif trial.status.condition == STATUS.RUNNING and rng.random() < 0.5:
                ends = [STATUS.SUCCEEDED, STATUS.SUCCEEDED, STATUS.FAILED, STATUS.KILLED]
                vanishes = not (self._keeps_first and trial is self._trials[0])
                trial.status.condition = rng.choice(
                    [*ends, STATUS.METRICSUNAVAILABLE] if vanishes else ends
                )
                if trial.status.condition == STATUS.SUCCEEDED:
                    trial.status.observation.metrics.add(
                        name="accuracy", value=rng.choice(["0.5", "0.25", "nan", ""])
                    )
        while self._uncreated and (rng.random() < 0.8 or (self._keeps_first and not self._trials)):
            name = f"{self.experiment.name}-{''.join(rng.choices(LETTERS, k=8))}"
            point = self._uncreated.pop(rng.randrange(len(self._uncreated)))
            self._trials.append(a_trial(name, point, STATUS.CREATED))


@contextmanager
def a_service(folder: Path) -> Iterator[Service]:
    service = Service(folder)
    try:
        yield service
    finally:
        service.close()


@pytest.mark.parametrize("seed", range(12))
def test_each_client_gets_each_point_of_its_grid_once(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    experiment = an_experiment("grid", GRID, trials=POINTS)
    with a_service(tmp_path) as service:
        callers = [Caller(experiment, rng) for _ in range(1 + seed % 2)]
        while waiting := [caller for caller in callers if len(caller.accepted) < POINTS]:
            caller = rng.choice(waiting)
            caller.turn(service, min(rng.randint(1, 5), POINTS - len(caller.accepted)))
        for caller in callers:
            assert len({str(point) for point in caller.accepted}) == POINTS
        done = a_request(experiment, callers[0]._trials, total=POINTS + 1)
        with pytest.raises(FailedPrecondition, match="the search is finished"):
            service.ask(done)


@pytest.mark.parametrize("algorithm", ["random", "tpe", "sobol"])
def test_unbounded_searches_suggest_as_many_points_as_requested(
    tmp_path: Path, algorithm: str
) -> None:
    rng = random.Random(algorithm)
    with a_service(tmp_path) as service:
        callers = [Caller(an_experiment(algorithm), rng) for _ in range(3)]
        for _ in range(40):
            rng.choice(callers).turn(service, rng.randint(1, 4))
