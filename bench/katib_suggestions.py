"""Latency of Katib's GetSuggestions with long histories: tpe over gRPC,
compared to Optuna rebuilt from the request.

A caller sends its whole history each time. The first request of an experiment brings trials that
the server does not know; a later one brings one more; after a restart the server has them in its
store. Optuna is asked as Katib's own service would have to ask it after a restart: a study in
memory, filled from the request, and one ask(). Run it by `make bench`; `--quick` is a smoke test
that leaves the page alone.
"""

from __future__ import annotations

import argparse
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import grpc
import optuna
from mixed import Point, drawn
from processes import TUNER
from record import keep, quantile, table, verdict

from suggest.katib.v1beta1 import api_pb2 as pb

FIRST_AT_MOST_MS, NEXT_AT_MOST_MS = 150.0, 20.0
RANGES = {
    "lr": (pb.DOUBLE, "1e-05", "1.0", pb.LOG_UNIFORM),
    "momentum": (pb.DOUBLE, "0.0", "1.0", pb.UNIFORM),
    "dropout": (pb.DOUBLE, "0.0", "0.7", pb.UNIFORM),
    "layers": (pb.INT, "1", "12", pb.UNIFORM),
    "width": (pb.INT, "16", "1024", pb.LOG_UNIFORM),
}
ACTIVATIONS = ("relu", "tanh", "gelu")


def experiment(name: str) -> pb.Experiment:
    made = pb.Experiment(name=name)
    parameters = made.spec.parameter_specs.parameters
    for parameter, (kind, low, high, distribution) in RANGES.items():
        space = pb.FeasibleSpace(min=low, max=high, distribution=distribution)
        parameters.add(name=parameter, parameter_type=kind, feasible_space=space)
    choice = pb.FeasibleSpace(list=ACTIVATIONS, distribution=pb.UNIFORM)
    parameters.add(name="activation", parameter_type=pb.CATEGORICAL, feasible_space=choice)
    made.spec.objective.type = pb.MINIMIZE
    made.spec.objective.objective_metric_name = "loss"
    made.spec.algorithm.algorithm_name = "tpe"
    return made


def finished(name: str, point: Point, loss: float) -> pb.Trial:
    trial = pb.Trial(name=name)
    for key, value in point.items():
        trial.spec.parameter_assignments.assignments.add(name=key, value=str(value))
    trial.spec.objective.type = pb.MINIMIZE
    trial.spec.objective.objective_metric_name = "loss"
    trial.status.start_time, trial.status.completion_time = (
        "2026-01-02T03:04:05Z",
        "2026-01-02T03:14:05Z",
    )
    trial.status.condition = pb.TrialStatus.SUCCEEDED
    trial.status.observation.metrics.add(name="loss", value=str(loss))
    return trial


def request(name: str, trials: list[pb.Trial]) -> pb.GetSuggestionsRequest:
    return pb.GetSuggestionsRequest(
        experiment=experiment(name),
        trials=trials,
        current_request_number=1,
        total_request_number=len(trials) + 1,
    )


class KatibServer:
    """A `tuner serve --katib` of its own; `restart` begins it again on the same store."""

    def __init__(self, folder: Path) -> None:
        self._command = [TUNER, "serve", "--address", f"unix:{folder}/s", "--katib", "0"]
        self._command += ["--quiet", "--storage", f"sqlite:///{folder}/studies.db"]
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(self._command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if (found := re.search(r"Katib at (\S+)", line)) is not None:
                break
        else:
            sys.exit("tuner serve did not start")
        options = [("grpc.max_send_message_length", -1)]
        self._channel = grpc.insecure_channel(found[1], options=options)
        self._get_suggestions = self._channel.unary_unary(
            "/api.v1.beta1.Suggestion/GetSuggestions",
            request_serializer=pb.GetSuggestionsRequest.SerializeToString,
            response_deserializer=pb.GetSuggestionsReply.FromString,
        )
        grpc.channel_ready_future(self._channel).result(10)

    def restart(self) -> None:
        self.stop()
        self._start()

    def suggest(self, asked: pb.GetSuggestionsRequest) -> float:
        """Seconds, from the message to the reply."""
        start = time.perf_counter()
        reply = self._get_suggestions(asked, timeout=60)
        seconds = time.perf_counter() - start
        assert len(reply.parameter_assignments) == 1
        return seconds

    def stop(self) -> None:
        self._channel.close()
        self._process.kill()
        self._process.communicate()


def rebuilt(serialized: bytes) -> float:
    """Seconds to read the request, to fill a study of Optuna's in memory,
    and to ask for one trial.
    """
    start = time.perf_counter()
    asked = pb.GetSuggestionsRequest.FromString(serialized)
    distributions: dict[str, optuna.distributions.BaseDistribution] = {}
    for parameter in asked.experiment.spec.parameter_specs.parameters:
        space = parameter.feasible_space
        log = space.distribution == pb.LOG_UNIFORM
        if parameter.parameter_type == pb.DOUBLE:
            low, high = float(space.min), float(space.max)
            distributions[parameter.name] = optuna.distributions.FloatDistribution(
                low, high, log=log
            )
        elif parameter.parameter_type == pb.INT:
            ends = int(space.min), int(space.max)
            distributions[parameter.name] = optuna.distributions.IntDistribution(*ends, log=log)
        else:
            distributions[parameter.name] = optuna.distributions.CategoricalDistribution(
                tuple(space.list)
            )
    kinds = {
        name: type(d.to_external_repr(d.to_internal_repr(_some(d))))
        for name, d in distributions.items()
    }
    sampler = optuna.samplers.TPESampler(seed=1, multivariate=False, constant_liar=True)
    study = optuna.create_study(sampler=sampler, direction="minimize")
    study.add_trials(
        [
            optuna.trial.create_trial(
                params={
                    a.name: kinds[a.name](a.value)
                    for a in trial.spec.parameter_assignments.assignments
                },
                distributions=distributions,
                value=float(trial.status.observation.metrics[0].value),
            )
            for trial in asked.trials
        ]
    )
    study.ask(distributions)
    return time.perf_counter() - start


def _some(distribution: optuna.distributions.BaseDistribution) -> str | float:
    if isinstance(distribution, optuna.distributions.CategoricalDistribution):
        return str(distribution.choices[0])
    assert isinstance(
        distribution, optuna.distributions.FloatDistribution | optuna.distributions.IntDistribution
    )
    return distribution.low


def measure(
    served: KatibServer, rng: random.Random, count: int, times: int
) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {"first": [], "next": [], "restarted": [], "Optuna": []}
    asked: list[pb.GetSuggestionsRequest] = []
    for turn in range(times):
        name = f"bench-{count}-{turn}"
        history = [finished(f"{name}-{k}", drawn(rng), rng.random()) for k in range(count)]
        first = request(name, history)
        taken["first"].append(served.suggest(first))
        taken["Optuna"].append(rebuilt(first.SerializeToString()))
        for more in range(5):
            history.append(finished(f"{name}-more-{more}", drawn(rng), rng.random()))
            taken["next"].append(served.suggest(request(name, history)))
        asked.append(request(name, history))
    served.restart()
    served.suggest(
        request("warm", [finished(f"warm-{k}", drawn(rng), rng.random()) for k in range(30)])
    )
    taken["restarted"] += map(served.suggest, asked)
    return taken


WHO = {
    "first": "tuner: the first request, whose trials are all new",
    "next": "tuner: a request with one more trial",
    "restarted": "tuner: the first request after a restart",
    "Optuna": f"Optuna {optuna.__version__}: a study in memory, filled from the request, and ask()",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short histories; keeps nothing")
    quick = parser.parse_args().quick
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    counts, times = ((20, 50), 2) if quick else ((1_000, 5_000), 20)
    rng, rows, claims = random.Random(1), [], []
    with tempfile.TemporaryDirectory() as folder:
        served = KatibServer(Path(folder))
        try:
            measure(served, rng, 20, 1)  # what is loaded once is not the price of a request
            for count in counts:
                taken = measure(served, rng, count, times)
                p50 = {who: 1e3 * quantile(seconds, 0.5) for who, seconds in taken.items()}
                for who, seconds in taken.items():
                    p99, ratio = 1e3 * quantile(seconds, 0.99), p50["Optuna"] / p50[who]
                    rows.append(
                        [f"{count:,}", WHO[who], f"{p50[who]:.1f}", f"{p99:.1f}", f"{ratio:.1f}"]
                    )
                for who, most in (("first", FIRST_AT_MOST_MS), ("next", NEXT_AT_MOST_MS)):
                    claims.append(
                        f"{count:,} trials, {who}: p50 {p50[who]:.1f} ms, {verdict(p50[who], most)}"
                    )
        finally:
            served.stop()
    head = table(
        ["trials in the request", "what", "p50 in ms", "p99 in ms", "Optuna's p50 over it"], rows
    )
    claim = (
        f"Claim: p50 at most {FIRST_AT_MOST_MS:g} ms for the first request and "
        f"{NEXT_AT_MOST_MS:g} ms for a next one. " + "; ".join(claims)
    )
    keep("katib-suggestions", f"{head}\n\n{claim}.", quick=quick)


if __name__ == "__main__":
    main()
