"""Objectives that name their parameters while they run, in the pods of a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

import tuner
from controller.runtime.kubernetes.labels import ANSWERS
from tests.kube.console import CommandResult, ended, start
from tests.kube.containers import Containers, containers
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.operated import NAMESPACE
from tests.kube.test_cluster_commands import Terminal, at_a_terminal
from tests.kube.test_trial_files import typed

IMAGE = "python:3.11-slim"


def branches(trial: tuner.Trial) -> float:
    if trial.choice("kind", ["linear", "tree"]) == "tree":
        return float(trial.int("depth", 1, 9))
    return float(trial.float("c", 0.1, 10, log=True))


def of_another_kind(trial: tuner.Trial) -> float:
    return float(trial.int("x", 0, 1) if trial.number else trial.float("x", 0, 1))


# As in a script: sent by value, because no pod has this module.
branches.__module__ = of_another_kind.__module__ = "__main__"


def minimized(
    folder: Path,
    function: Callable[[Any], float],
    search: Callable[..., Any] = tuner.minimize,
    *,
    forbidden: Sequence[str] = (),
    **options: Any,
) -> tuple[Any, FakeApi]:
    """Return the study that a search in pods returns.

    forbidden: verbs on pods.
    """

    async def go() -> tuple[Any, FakeApi]:
        given = {"trials": 4, "parallelism": 2, "progress": False, "seed": 1, **options}
        async with FakeApi() as api, containers(api, folder):
            for verb in forbidden:
                api.forbid(verb, "pods")
            with kubeconfig_of(api.kubeconfig()):
                study = await asyncio.to_thread(
                    search,
                    function,
                    name="named",
                    runtime="kubernetes",
                    image=IMAGE,
                    namespace="user1",
                    state_dir=folder / "state",
                    **given,
                )
            return study, api

    return asyncio.run(go())


def test_pods_ask_in_their_logs_and_are_answered_without_a_network(tmp_path: Path) -> None:
    study, api = minimized(tmp_path, branches)
    results = study.results()
    assert [result.state for result in results] == ["succeeded"] * 4
    for result in results:
        assert set(result.parameters) in ({"kind", "c"}, {"kind", "depth"})
        assert result.value == result.parameters.get("c", result.parameters.get("depth"))
    shown = [
        json.loads(change.after["metadata"]["annotations"][ANSWERS])
        for change in api.changes
        if change.plural == "pods"
        and change.after is not None
        and ANSWERS in change.after["metadata"].get("annotations", {})
    ]
    assert {"kind": {"value": results[0].parameters["kind"]}} in shown


def plane(trial: tuner.Trial) -> float:
    x, n = trial.float("x", -1, 1), trial.int("n", 2, 8, step=2)
    more = trial.choice("kind", ["a", "b"]) if trial.number == 3 else ""
    return float(x + n) + len(more)


plane.__module__ = "__main__"


def test_only_new_parameters_cost_an_answer(tmp_path: Path) -> None:
    study, api = minimized(tmp_path, plane, trials=5, parallelism=1)
    answered: dict[int, set[str]] = {}
    for change in api.changes:
        about = {} if change.after is None else change.after["metadata"]
        if change.plural == "pods" and ANSWERS in about.get("annotations", {}):
            names = answered.setdefault(int(about["labels"]["tuner.dev/trial"]), set())
            names.update(json.loads(about["annotations"][ANSWERS]))
    assert answered.keys() == {0, 3}
    assert answered[0] == {"x", "n"}
    assert "kind" in answered[3]
    results = study.results()
    assert [sorted(result.parameters) for result in results] == [
        ["kind", "n", "x"] if number == 3 else ["n", "x"] for number in range(5)
    ]
    for result in results:
        point = result.parameters
        assert result.value == point["x"] + point["n"] + len(point.get("kind", ""))


def test_trials_run_again_with_the_parameters_that_they_named(tmp_path: Path) -> None:
    again = {"confirm": {"top": 2, "seeds": 2}}
    study, _ = minimized(tmp_path, branches, trials=6, parallelism=1, spec=again)
    best = sorted(study.results(), key=lambda result: result.value)
    reruns = tuner.open("named-confirm", state_dir=tmp_path / "state", namespace="user1").results()
    assert [result.parameters for result in reruns] == 2 * [best[0].parameters, best[1].parameters]
    assert [result.value for result in reruns] == 2 * [best[0].value, best[1].value]


def luckily(trial: tuner.Trial) -> float:
    value = trial.float("x", 0, 1)
    # Both are known to the study of the reruns after the first of these, so they could be planned.
    if trial.number < 2 and os.environ["TUNER_EXPERIMENT"] == "named":
        return value - 10
    return value + trial.float("y", 0, 1)


luckily.__module__ = "__main__"


def test_a_rerun_with_another_parameter_than_its_trial_fails_with_the_reason(
    tmp_path: Path,
) -> None:
    again = {"confirm": {"top": 3, "seeds": 2}, "canary": "0s", "breaker": "off"}
    minimized(tmp_path, luckily, trials=3, parallelism=1, spec=again)
    reruns = tuner.open("named-confirm", state_dir=tmp_path / "state", namespace="user1").results()
    failed = [result.reason for result in reruns if result.state == "failed"]
    assert len(failed) == 4
    assert all("did not name y: a rerun has the parameters of its trial" in x for x in failed)
    assert [result.number for result in reruns if result.state == "succeeded"] == [2, 5]


def test_without_the_right_to_answer_a_search_is_refused_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(tuner.TunerError) as refused:
        minimized(tmp_path, branches, forbidden=["patch"])
    assert "may not run trials in namespace user1" in str(refused.value)
    assert "resources: [pods], verbs: [patch]" in str(refused.value)


def test_a_wrong_parameter_fails_its_trial_with_the_rule(tmp_path: Path) -> None:
    spec = {"budget": {"failedTrials": 1}, "canary": "0s"}
    with pytest.raises(tuner.SearchFailed):
        minimized(tmp_path, of_another_kind, spec=spec, parallelism=1)
    logs = (tmp_path / "state").glob("experiments/*/trials/1/1/log.txt")
    assert any("it was a float earlier and is an int" in x.read_text() for x in logs)


def of_optuna(trial: Any) -> float:
    trial.set_user_attr("seen", [trial.number])
    if trial.number == 1:
        raise ValueError("a mistake in the second trial")
    return float(trial.suggest_float("x", -1, 1)) ** 2


of_optuna.__module__ = "__main__"


def test_an_objective_of_optuna_returns_what_it_returns_on_one_machine(tmp_path: Path) -> None:
    spec = {"canary": "0s", "budget": {"failedTrials": 5}}
    study, _ = minimized(tmp_path, of_optuna, tuner.optimize_optuna, trials=3, spec=spec)
    trials = study.trials
    assert [trial.user_attrs for trial in trials] == [{"seen": [number]} for number in range(3)]
    assert [trial.state.name for trial in trials] == ["COMPLETE", "FAIL", "COMPLETE"]
    assert study.best_value == study.best_params["x"] ** 2


def one(trial: Any) -> float:
    return float(trial.suggest_float("x", -1, 1))


one.__module__ = "__main__"


@pytest.mark.filterwarnings("ignore:PartialFixedSampler is experimental")
def test_a_pod_gets_the_value_of_a_partial_fixed_sampler(tmp_path: Path) -> None:
    """Also one that was planned for it, and whose value it would have with its start."""
    varied, _ = minimized(tmp_path, one, tuner.optimize_optuna, trials=1)
    sampler = optuna.samplers.PartialFixedSampler({"x": 0.5}, varied.sampler)
    fixed = optuna.create_study(sampler=sampler)
    study, _ = minimized(tmp_path, one, tuner.optimize_optuna, study=fixed, trials=3)
    assert [trial.params["x"] for trial in study.trials] == [varied.best_params["x"], 0.5, 0.5]


class Rising(optuna.pruners.BasePruner):
    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        rises = trial.intermediate_values[0] < trial.intermediate_values[trial.last_step or 0]
        return rises and study.direction.name == "MINIMIZE"


def rises_once(trial: Any) -> float:
    for step in range(2):
        trial.report(step * trial.number, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return float(trial.suggest_float("x", -1, 1))


Rising.__module__ = Rising.prune.__module__ = rises_once.__module__ = "__main__"


def test_a_pruner_of_another_class_that_reads_only_its_trial_is_asked_in_a_pod(
    tmp_path: Path,
) -> None:
    own = optuna.create_study(pruner=Rising())
    image_with_optuna = {"trial": {"env": {"PYTHONPATH": sysconfig.get_path("purelib")}}}
    study, _ = minimized(
        tmp_path, rises_once, tuner.optimize_optuna, study=own, trials=2, spec=image_with_optuna
    )
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "PRUNED"]
    stored = tuner.open("named", state_dir=tmp_path / "state", namespace="user1")
    assert stored.results()[1].reason.endswith("Rising.prune() returned true")


def stops(trial: Any) -> float:
    if trial.number == 1:
        trial.study.stop()
    return float(trial.suggest_float("x", -1, 1))


stops.__module__ = "__main__"


def test_an_objective_of_optuna_in_a_pod_ends_the_search(tmp_path: Path) -> None:
    study, _ = minimized(tmp_path, stops, tuner.optimize_optuna, trials=9, parallelism=1)
    assert [trial.state.name for trial in study.trials] == ["COMPLETE", "COMPLETE"]
    stored = tuner.open("named", state_dir=tmp_path / "state", namespace="user1")
    assert (stored.state, stored.reason) == ("succeeded", "trial 1 called study.stop()")


SCRIPT = """
import tuner

def objective(trial):
    return sum(trial.float(f"x{i}", 0, 1) for i in range(3))

study = tuner.minimize(
    objective, trials=1, name="named", runtime="kubernetes", image="python:3.11-slim",
    namespace="user1", progress=False, spec={"trial": {"retries": {"infrastructure": 0}}},
)
(result,) = study.results()
print(result.value == sum(result.parameters.values()), len(result.parameters))
"""


@pytest.mark.parametrize(
    "moment",
    [
        "study.decide.after:2",
        "cluster.answer.before:2",
        "cluster.answer.after",
    ],
)
def test_a_controller_killed_while_a_pod_asks_loses_and_repeats_nothing(
    tmp_path: Path, moment: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)

    async def run(api: FakeApi, failpoint: str) -> tuple[int | None, bytes]:
        with kubeconfig_of(api.kubeconfig()) as config:
            env = {
                **os.environ,
                "KUBECONFIG": str(config),
                "TUNER_STATE_DIR": str(tmp_path / "state"),
                "TUNER_FAILPOINT": failpoint,
            }
            process = await asyncio.create_subprocess_exec(
                sys.executable, str(tmp_path / "script.py"), env=env, stdout=asyncio.subprocess.PIPE
            )
            out, _ = await process.communicate()
            return process.returncode, out

    async def go() -> tuple[list[str], list[tuple[int | None, bytes]]]:
        async with FakeApi() as api, containers(api, tmp_path) as pods:
            runs = [await run(api, moment), await run(api, "")]
            return pods.started, runs

    started, runs = asyncio.run(go())
    assert runs == [(-signal.SIGKILL, b""), (0, b"True 3\n")]
    assert len(started) == 1, "the pod has gone on"


ASKS = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import tuner
trial = tuner.current_trial()
kind = trial.choice("kind", ["a", "b"])
print("met=" + kind, flush=True)
print("loss=" + str(trial.float("x", 0, 1) + trial.int("n" + kind, 1, 4)), flush=True)
"""
OWN = {"image": IMAGE, "command": ["python", "-c", ASKS]}
CONTAINER = {"name": "main", **OWN}
TEMPLATE = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "spec": {"template": {"spec": {"containers": [CONTAINER]}}},
}


@pytest.mark.parametrize(
    ("section", "workers"),
    [({"template": TEMPLATE}, 1), ({**OWN, "distributed": {"workers": 2}}, 2)],
    ids=["template", "distributed"],
)
def test_containers_of_a_template_and_all_workers_are_answered(
    tmp_path: Path, section: dict[str, Any], workers: int
) -> None:
    spec = {
        "objective": {"metric": "loss", "direction": "minimize"},
        "defineByRun": True,
        "budget": {"trials": 3},
        "runtime": "kubernetes",
        "trial": section,
    }
    about = {"name": "named", "namespace": "user1"}
    file = {"apiVersion": "tuner.dev/v1", "kind": "Experiment", "metadata": about, "spec": spec}
    (tmp_path / "experiment.yaml").write_text(json.dumps(file))

    async def go() -> dict[str, bytes]:
        async with FakeApi() as api, containers(api, tmp_path) as pods:
            await typed(api, tmp_path, "run", "experiment.yaml")
            return pods.printed

    printed = asyncio.run(go())
    results = tuner.open("named", state_dir=tmp_path / "state", namespace="user1").results()
    for result in results:
        point = result.parameters
        assert set(point) == {"kind", "x", f"n{point['kind']}"}
        assert result.value == point["x"] + point[f"n{point['kind']}"]
        met = f"met={point['kind']}".encode()
        logs = [text for pod, text in printed.items() if pod.split("-")[2] == str(result.number)]
        assert [met in text for text in logs] == [True] * workers


def test_a_kind_without_a_pod_template_is_refused_before_it_begins(tmp_path: Path) -> None:
    spec = {
        "objective": {"metric": "loss", "direction": "minimize"},
        "defineByRun": True,
        "budget": {"trials": 3},
        "runtime": "kubernetes",
        "trial": {
            "template": {
                "apiVersion": "trainer.kubeflow.org/v1alpha1",
                "kind": "TrainJob",
                "spec": {"runtimeRef": {"name": "torch-distributed"}},
            }
        },
    }
    file = {"apiVersion": "tuner.dev/v1", "kind": "Experiment", "metadata": {"name": "named"}}
    (tmp_path / "experiment.yaml").write_text(json.dumps({**file, "spec": spec}))

    async def go() -> CommandResult:
        async with FakeApi() as api:
            return await ended(start(tmp_path, api.kubeconfig(), "run", "experiment.yaml"))

    done = asyncio.run(go())
    assert done.code == 2
    assert "spec.trial.template: no pod template is found in this TrainJob" in done.err


def of_optuna_there(trial: Any) -> float:
    x = float(trial.suggest_float("x", -1, 1))
    trial.set_user_attr("doubled", 2 * x)
    return x


of_optuna_there.__module__ = "__main__"


@at_a_terminal()
async def test_the_controller_in_the_cluster_answers_too(terminal: Terminal) -> None:
    folder = terminal.installed.state.root.parent
    running = Containers(terminal.installed.api, folder)
    try:
        study = await asyncio.to_thread(
            tuner.optimize_optuna,
            of_optuna_there,
            runtime="cluster",
            context="lab",
            trials=3,
            name="named",
            image=IMAGE,
            progress=False,
            spec={"canary": "0s", "confirm": {"top": 1, "seeds": 2}},
        )
        # Of the controller, with the function that was sent with the search.
        await terminal.installed.until_state("succeeded", "named-confirm")
        confirmed = await terminal.tuner("confirm", "named", "--top", "1", "--seeds", "2")
    finally:
        await running.close()
    assert confirmed.code == 0, confirmed.err
    again = await terminal.tuner("get", "trials", "named-confirm", "-o", "json")
    assert [trial["parameters"] for trial in json.loads(again.out)] == [study.best_params] * 2
    assert [trial.user_attrs["doubled"] for trial in study.trials] == [
        2 * trial.params["x"] for trial in study.trials
    ]
    assert len(study.trials) == 3
    assert len(terminal.installed.api.all("experiments", NAMESPACE)) == 2
