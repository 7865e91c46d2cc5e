"""Studies of `optuna:nsgaii` and `sobol` give the same points
if their server is killed in the middle.
"""

from __future__ import annotations

from pathlib import Path

from suggest.client import Client
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.study import Algorithm, Direction, Objective, StudyName, StudySpec
from suggest.trial import Outcome, TrialState
from tests.service.running import ServerProcess, a_process, score

SPACE = Space(
    (
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
        Parameter("layers", Int(1, 9)),
        Parameter("optimizer", Choice(("sgd", "adam"))),
        Parameter("momentum", Float(0, 0.9), (Condition("optimizer", ("sgd",)),)),
    )
)
ALGORITHMS = [
    Algorithm("sobol", seed=7),
    Algorithm("optuna:nsgaii", seed=7, settings={"populationSize": 6}),
]
STUDIES = {StudyName("default", a.name.replace(":", "-")): a for a in ALGORITHMS}


def searched(server: ServerProcess, *, kill_at: int | None) -> dict[StudyName, list[Assignment]]:
    """Return the points of 30 trials of each study, run two at a time; every fifth trial fails."""
    points: dict[StudyName, list[Assignment]] = {}
    with Client(server.address, timeout_s=30) as client:
        for name, algorithm in STUDIES.items():
            spec = StudySpec(SPACE, (Objective("score", Direction.MINIMIZE),), algorithm)
            client.create_study(name, spec, request_id="create")
        for turn in range(15):
            if turn == kill_at:
                server.kill()
            for name in STUDIES:
                trials = client.suggest(name, 2, client_id="c", request_id=f"r{turn}").trials
                for trial in trials:
                    points.setdefault(name, []).append(trial.parameters)
                    if trial.number % 5 == 4:
                        client.complete(
                            name, trial.number, Outcome(TrialState.FAILED, reason="why")
                        )
                        continue
                    lr, layers = trial.parameters["lr"], trial.parameters["layers"]
                    assert isinstance(lr, float)
                    assert isinstance(layers, int)
                    done = Outcome(TrialState.SUCCEEDED)
                    client.complete(
                        name, trial.number, done, measurements=[score(0, abs(lr - 0.1) + layers)]
                    )
    return points


def test_a_search_continues_identically_after_a_kill(folder: Path) -> None:
    with a_process(folder / "a.db", f"unix:{folder}/a.sock") as server:
        undisturbed = searched(server, kill_at=None)
    with a_process(folder / "b.db", f"unix:{folder}/b.sock", revive=True) as server:
        assert searched(server, kill_at=8) == undisturbed
        assert server.deaths == [-9]
    assert [len(points) for points in undisturbed.values()] == [30, 30]
    sobol, nsga = undisturbed.values()
    assert sobol != nsga
