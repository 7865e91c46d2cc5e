"""Lists of the command line on a cluster's controller: `get experiments` of many ended experiments,
and `get trials` of a long one. On the tests' small API server, whose processor counts as the
controller's.

Prints Markdown. `--experiments` and `--trials` set sizes, `--rounds` how often each list is read.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from controller.app.experiments import uid_of_resource
from controller.app.local_experiments import LocalExperiments
from controller.app.workspace import Workspace
from controller.core.model import Attempt, AttemptState, Experiment, ExperimentState, Revision
from controller.experiment_store import Changes
from controller.operator.resource import document_of
from controller.search import study_name, study_spec
from suggest.client import AsyncClient
from suggest.trial import Measurement, Outcome, Trial, TrialState
from tests.kube.fake_api import FakeApi, Raw, kubeconfig_of
from tests.kube.operated import KIND, NAMESPACE, Installation, experiment
from tests.kube.test_cluster_commands import Terminal

LONG = "long"
NOW = datetime.now(UTC)
AT_ONCE = 100
IDLE = 0.05  # of a core


@dataclass(frozen=True)
class Reading:
    seconds: float
    of_command_s: float
    of_controller_s: float
    requests: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--experiments", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5)
    asked = parser.parse_args()
    asyncio.run(measure(asked.experiments, asked.trials, asked.rounds))


async def measure(experiments: int, trials: int, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with FakeApi() as api:
            api.define(*KIND)
            installed = Installation(api, Path(folder))
            with kubeconfig_of(api.kubeconfig()):
                await fill(installed, experiments, trials)
                installed.start()
                await installed.until(lambda: installed.serves, within_s=60)
                Terminal(installed)  # writes the person's kubeconfig
                await settled()
                print("| list | requests | wall | CPU of the command | CPU of the controller |")
                print("| --- | --- | --- | --- | --- |")
                await show(api, f"`get experiments`, {experiments:,}", ["experiments"], rounds)
                await show(api, f"`get trials`, {trials:,}", ["trials", LONG], rounds)
                await installed.stop()


async def settled() -> None:
    """Return when the controller has looked at each experiment once."""
    used = 1.0
    while used > IDLE:
        before = time.process_time()
        await asyncio.sleep(1)
        used = time.process_time() - before


async def show(api: FakeApi, what: str, words: Sequence[str], rounds: int) -> None:
    readings = [await reading(api, words) for _ in range(rounds)]

    def median(field: str) -> str:
        return f"{statistics.median(getattr(each, field) for each in readings):.2f} s"

    cells = (what, str(readings[-1].requests), median("seconds"))
    print(f"| {' | '.join(cells)} | {median('of_command_s')} | {median('of_controller_s')} |")


async def reading(api: FakeApi, words: Sequence[str]) -> Reading:
    """Run the command once, in a process of its own."""
    api.requests.clear()
    began, before, ours = time.monotonic(), of_children(), time.process_time()
    command = (sys.executable, "-m", "controller", "get", *words, "--context", "lab")
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    await process.communicate()
    assert process.returncode == 0
    return Reading(
        time.monotonic() - began,
        of_children() - before,
        time.process_time() - ours,
        sum("/services/" in path for _, path, _ in api.requests),
    )


def of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


# What the controller finds


async def fill(installed: Installation, experiments: int, trials: int) -> None:
    """Store ended experiments with their resources, and the trials of one of them."""
    installed.state.make()
    with closing(LocalExperiments(installed.state)) as store:
        for number in range(experiments - 1):
            stored(installed, store, f"e{number:05d}", trials=20)
        long = stored(installed, store, LONG, trials=trials)
        async with Workspace(installed.state).connected("") as client:
            attempts = await run(client, long, trials)
        store.save(long.uid, Changes(attempts=attempts))


def stored(
    installed: Installation, store: LocalExperiments, name: str, *, trials: int
) -> Experiment:
    installed.apply(experiment(name, budget={"trials": trials}))
    created = installed.api.get("experiments", NAMESPACE, name)
    document = document_of(created)  # type: ignore[arg-type]
    ended = Experiment(
        uid_of_resource(created["metadata"]["uid"]),
        document.spec,
        revision=1,
        directory="",
        study="",
        state=ExperimentState.SUCCEEDED,
        reason="all trials are done",
        start_time=NOW,
        end_time=NOW,
    )
    ended = replace(ended, study=str(study_name(ended)))
    store.folders(ended.uid).root.mkdir(parents=True)
    store.create_experiment(ended, Revision(1, document.spec, document.text, NOW))
    tell = partial(dict.update, status=status(trials))
    installed.api.change("experiments", NAMESPACE, name, tell)
    return ended


def status(trials: int) -> Raw:
    accepted = {
        "type": "Accepted",
        "status": "True",
        "reason": "Valid",
        "message": "revision 1 is in force",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "observedGeneration": 1,
    }
    return {
        "state": "succeeded",
        "reason": "all trials are done",
        "observedGeneration": 1,
        "revision": 1,
        "done": f"{trials}/{trials}",
        "trials": {"succeeded": trials},
        "running": 0,
        "queued": 0,
        "best": {"number": 1, "value": 0.5, "parameters": {"x": 0.1}},
        "conditions": [accepted],
    }


async def run(client: AsyncClient, long: Experiment, trials: int) -> list[Attempt]:
    """Complete the trials of the study, and return their attempts."""
    name = study_name(long)
    await client.create_study(name, study_spec(long.spec), request_id=long.uid)

    async def complete(trial: Trial) -> Attempt:
        value = trial.parameters["x"]
        assert isinstance(value, float)
        outcome = Outcome(TrialState.SUCCEEDED, value=value)
        reported = [Measurement(1, "score", 0, value)]
        await client.complete(name, trial.number, outcome, measurements=reported)
        return Attempt(
            trial.number,
            1,
            state=AttemptState.SUCCEEDED,
            start_time=NOW,
            end_time=NOW,
            exit_code=0,
            value=value,
            step=0,
            node="node-1",
        )

    attempts: list[Attempt] = []
    for first in range(0, trials, AT_ONCE):
        suggested = await client.suggest(
            name, AT_ONCE, client_id=long.uid, request_id=f"from-{first}"
        )
        attempts += await asyncio.gather(*map(complete, suggested.trials))
    return attempts


if __name__ == "__main__":
    main()
