"""Katib's clients as the server sees them: an experiment, a history of named trials, and requests
that contain both.

It uses Katib's messages only. Like Katib's controller, the one here counts the suggestions that it
has accepted, gives trials random names, and lists them in any order.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from suggest.katib.v1beta1 import api_pb2 as pb
from tests.katib_stubs import SuggestionStub

LETTERS = "bcdfghjklmnpqrstvwxz2456789"
DONE = pb.TrialStatus.SUCCEEDED


def double(
    name: str, low: str, high: str, step: str = "", distribution: pb.Distribution = pb.UNIFORM
) -> pb.ParameterSpec:
    space = pb.FeasibleSpace(min=low, max=high, step=step, distribution=distribution)
    return pb.ParameterSpec(name=name, parameter_type=pb.DOUBLE, feasible_space=space)


def whole(
    name: str, low: str, high: str, step: str = "", distribution: pb.Distribution = pb.UNIFORM
) -> pb.ParameterSpec:
    space = pb.FeasibleSpace(min=low, max=high, step=step, distribution=distribution)
    return pb.ParameterSpec(name=name, parameter_type=pb.INT, feasible_space=space)


def choice(name: str, *values: str, kind: pb.ParameterType = pb.CATEGORICAL) -> pb.ParameterSpec:
    return pb.ParameterSpec(
        name=name, parameter_type=kind, feasible_space=pb.FeasibleSpace(list=values)
    )


def of_layers(
    algorithm: str, *, layers: int = 3, settings: dict[str, str] | None = None
) -> pb.Experiment:
    """Return a search for a network's layers, with seven numbered operations."""
    made = an_experiment(algorithm, (), settings=settings)
    config = made.spec.nas_config
    config.graph_config.CopyFrom(
        pb.GraphConfig(num_layers=layers, input_sizes=[8, 8, 1], output_sizes=[10])
    )
    for kind, parameters in (
        ("convolution", [choice("filter_size", "3", "5"), whole("num_filter", "32", "96", "32")]),
        ("skip_connection", [choice("unused", "1")]),
    ):
        operation = config.operations.operation.add(operation_type=kind)
        operation.parameter_specs.parameters.extend(parameters)
    return made


MIXED = (
    double("lr", "0.01", "0.05", "0.01"),
    whole("layers", "1", "4"),
    choice("kind", "sgd", "adam"),
)
NUMBERS = (double("x", "-1", "1"), double("y", "-1", "1"), whole("n", "1", "100"))


def an_experiment(
    algorithm: str = "random",
    parameters: Sequence[pb.ParameterSpec] = MIXED,
    *,
    name: str = "search",
    settings: dict[str, str] | None = None,
    trials: int = 0,
) -> pb.Experiment:
    made = pb.Experiment(name=name)
    made.spec.parameter_specs.parameters.extend(parameters)
    made.spec.objective.type = pb.MAXIMIZE
    made.spec.objective.objective_metric_name = "accuracy"
    made.spec.algorithm.algorithm_name = algorithm
    for key, value in (settings or {}).items():
        made.spec.algorithm.algorithm_settings.add(name=key, value=value)
    made.spec.parallel_trial_count, made.spec.max_trial_count = 2, trials
    return made


def a_trial(
    name: str,
    point: dict[str, str],
    condition: int = DONE,
    accuracy: str = "",
    *,
    moment: str = "2026-01-02T03:04:05Z",
) -> pb.Trial:
    trial = pb.Trial(name=name)
    for key, value in point.items():
        trial.spec.parameter_assignments.assignments.add(name=key, value=value)
    trial.status.condition, trial.status.start_time = condition, moment
    if accuracy:
        trial.status.observation.metrics.add(name="accuracy", value=accuracy)
    return trial


def a_request(
    experiment: pb.Experiment,
    trials: Sequence[pb.Trial] = (),
    *,
    count: int = 1,
    total: int | None = None,
) -> pb.GetSuggestionsRequest:
    """total: by default the number of trials, as if each had been suggested."""
    wanted = len(trials) + count if total is None else total
    return pb.GetSuggestionsRequest(
        experiment=experiment,
        trials=trials,
        current_request_number=count,
        total_request_number=wanted,
    )


def points_of(reply: pb.GetSuggestionsReply) -> list[dict[str, str]]:
    return [{a.name: a.value for a in each.assignments} for each in reply.parameter_assignments]


def accuracy_of(point: dict[str, str]) -> float:
    numbers = [
        float(text) for text in point.values() if text.lstrip("-").replace(".", "").isdigit()
    ]
    return -sum(abs(number) for number in numbers)


class KatibController:
    """Run one experiment until it has all its trials. ask: sends a request, with retries.

    invent: run every second suggestion at another point, drawn here, up to this number.
    """

    def __init__(
        self,
        experiment: pb.Experiment,
        ask: Callable[[pb.GetSuggestionsRequest], pb.GetSuggestionsReply],
        *,
        seed: int,
    ) -> None:
        self.experiment = experiment
        self.trials: dict[str, pb.Trial] = {}
        self.suggested: list[dict[str, str]] = []
        self._ask = ask
        self._rng = random.Random(seed)

    def turn(
        self, count: int, *, invent: Callable[[random.Random], dict[str, str]] | None = None
    ) -> None:
        """Request this many, repeat the request as after a lost reply, run them,
        and end the last turn's trials.
        """
        request = a_request(
            self.experiment, self.listed(), count=count, total=len(self.suggested) + count
        )
        reply = self._ask(request)
        assert points_of(self._ask(request)) == points_of(reply), (
            "a repeated request gets the same answer"
        )
        for trial in self.trials.values():
            if trial.status.condition == pb.TrialStatus.RUNNING:
                self.end(trial)
        for place, point in enumerate(points_of(reply)):
            self.suggested.append(point)
            taken = invent(self._rng) if invent is not None and place % 2 else point
            name = f"{self.experiment.name}-{''.join(self._rng.choices(LETTERS, k=8))}"
            self.trials[name] = a_trial(name, taken, pb.TrialStatus.RUNNING)

    def end(self, trial: pb.Trial) -> None:
        """Return an outcome; one in five is a failure."""
        if self._rng.random() < 0.2:
            trial.status.condition = pb.TrialStatus.FAILED
            return
        point = {a.name: a.value for a in trial.spec.parameter_assignments.assignments}
        trial.status.condition = pb.TrialStatus.SUCCEEDED
        trial.status.observation.metrics.add(name="accuracy", value=str(accuracy_of(point)))

    def listed(self) -> list[pb.Trial]:
        trials = list(self.trials.values())
        self._rng.shuffle(trials)
        return trials


def suggesting(
    stub: SuggestionStub,
) -> Callable[[pb.GetSuggestionsRequest], pb.GetSuggestionsReply]:
    def ask(request: pb.GetSuggestionsRequest) -> pb.GetSuggestionsReply:
        return stub.GetSuggestions(request, timeout=60)

    return ask
