"""Calls of Katib's SDK in orders that nobody planned: prints a JSON object, with the answers of each
story under its name.

    python katib_orders.py NAMESPACE [STORY ...]

It runs in an environment of its own, with the unmodified kubeflow-katib 0.19.0, and asks the
cluster of KUBECONFIG. Stories run side by side, each with its own experiments. Pods are fake: see
kwok.py for the variables of their life.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from kubeflow.katib import (
    KatibClient,
    V1beta1AlgorithmSpec,
    V1beta1Experiment,
    V1beta1ExperimentSpec,
    V1beta1ExperimentStatus,
    V1beta1FeasibleSpace,
    V1beta1ObjectiveSpec,
    V1beta1ParameterSpec,
    V1beta1TrialParameterSpec,
    V1beta1TrialTemplate,
    search,
)
from kubernetes.client import CoreV1Api, V1ObjectMeta

namespace = sys.argv[1]
client = KatibClient(config_file=os.environ["KUBECONFIG"], namespace=namespace)
# By default the calls of all threads wait for each other.
client.custom_api.api_client.pool_threads = 16
SCORE = {"KWOK_LOG": "score=${trialParameters.x}", "KWOK_RUN": "300ms"}
FOREVER = {**SCORE, "KWOK_RUN": "1h"}
FAILS = {**SCORE, "KWOK_EXIT": "1"}
LONG_AGO = "2001-01-01T00:00:00Z"


def experiment(name: str, env: dict[str, str] = SCORE, **spec: Any) -> dict[str, Any]:
    """Return an Experiment as in a file, without what Katib's webhook fills in."""
    container = {
        "name": "main",
        "image": "tiny:1",
        "command": ["train", "--x=${trialParameters.x}"],
        "env": [{"name": key, "value": value} for key, value in env.items()],
    }
    pod = {"spec": {"restartPolicy": "Never", "containers": [container]}}
    job = {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": pod}}
    space = {"min": "0", "max": "1"}
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": name},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "score"},
            "algorithm": {"algorithmName": "random"},
            "parallelTrialCount": 2,
            "maxTrialCount": 3,
            "resumePolicy": "LongRunning",
            "parameters": [{"name": "x", "parameterType": "double", "feasibleSpace": space}],
            "trialTemplate": {
                "primaryContainerName": "main",
                "trialParameters": [{"name": "x", "reference": "x"}],
                "trialSpec": job,
            },
            **spec,
        },
    }


def until(condition: Callable[[], Any], within_s: float = 90) -> Any:
    ends = time.monotonic() + within_s
    while time.monotonic() < ends:
        if found := condition():
            return found
        time.sleep(0.3)
    raise TimeoutError(condition.__code__.co_names)


def wait(name: str, condition: str = "Succeeded") -> Any:
    return client.wait_for_experiment_condition(
        name, expected_condition=condition, timeout=120, polling_interval=1
    )


def all_succeeded(name: str) -> Any:
    """Wait for the end, and until each Trial says that it has succeeded.

    It is told if that is not so at once.
    """
    whole = wait(name)
    most = whole.spec.max_trial_count
    if (whole.status.trials_succeeded, len(client.get_success_trial_details(name))) != (most, most):
        trials = [(each.metadata.name, each.status) for each in client.list_trials(name)]
        print(f"{name} has ended with {whole.status} and {trials}", file=sys.stderr)
        until(lambda: len(client.get_success_trial_details(name)) == most)
        until(lambda: status(name).trials_succeeded == most)
    return client.get_experiment(name)


def status(name: str) -> Any:
    return client.get_experiment(name).status or V1beta1ExperimentStatus()


def told(call: Callable[..., Any], *given: Any, **named: Any) -> str:
    """Return the class and the words of what a call raises."""
    try:
        call(*given, **named)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def is_in(name: str) -> list[str]:
    calls = ("created", "running", "restarting", "succeeded", "failed")
    return [each for each in calls if getattr(client, f"is_experiment_{each}")(name)]


def conditions(name: str) -> list[str]:
    listed = client.get_experiment_conditions(name)
    return [f"{each.type} {each.status} {each.reason}" for each in listed]


def names() -> Any:
    """A name that the API server makes, and one that is taken."""
    made = experiment("")
    # The SDK looks for a name as its models write it, in a dictionary as well.
    made["metadata"] = {"generateName": "made-", "generate_name": "made-"}
    client.create_experiment(made)
    listed = [each.metadata.name for each in client.list_experiments()]
    (generated,) = (each for each in listed if each.startswith("made-"))
    wait(generated)
    client.create_experiment(experiment("taken", FOREVER))
    again = told(client.create_experiment, experiment("taken", FOREVER))
    client.delete_experiment("taken")
    missing = told(client.get_experiment, "never-made")
    return {
        "again": "already exists" in again,
        "missing": "Failed to get" in missing,
        "delete": "Failed to delete" in told(client.delete_experiment, "never-made"),
        "trial": "Failed to get" in told(client.get_trial, "never-made"),
        "none": client.list_trials("never-made"),
        "suggestions": generated in [each.metadata.name for each in client.list_suggestions()],
    }


def notebook() -> Any:
    """The SDK's models, from the space to the best point, and the defaults read back."""
    plain = experiment("notebook", {**SCORE, "KWOK_LOG": "score=${trialParameters.x} loss=2"})
    template = plain["spec"]["trialTemplate"]
    made = V1beta1Experiment(
        api_version=plain["apiVersion"],
        kind=plain["kind"],
        metadata=V1ObjectMeta(name="notebook", namespace=namespace),
        spec=V1beta1ExperimentSpec(
            max_trial_count=3,
            objective=V1beta1ObjectiveSpec(
                type="maximize", objective_metric_name="score", additional_metric_names=["loss"]
            ),
            algorithm=V1beta1AlgorithmSpec(algorithm_name="random"),
            parameters=[
                V1beta1ParameterSpec(
                    name="x",
                    parameter_type="double",
                    feasible_space=V1beta1FeasibleSpace(min="0", max="1"),
                )
            ],
            trial_template=V1beta1TrialTemplate(
                primary_container_name="main",
                trial_parameters=[V1beta1TrialParameterSpec(name="x", reference="x")],
                trial_spec=template["trialSpec"],
            ),
        ),
    )
    client.create_experiment(made)
    spec = all_succeeded("notebook").spec
    best = client.get_optimal_hyperparameters("notebook")
    values = {each.name: each.latest for each in best.observation.metrics}
    return {
        "defaults": [
            spec.parallel_trial_count,
            spec.resume_policy,
            spec.parameters[0].feasible_space.distribution,
            spec.metrics_collector_spec.collector.kind,
            [each.value for each in spec.objective.metric_strategies],
            spec.trial_template.success_condition,
        ],
        "loss": values["loss"],
        "is_value": float(values["score"]) == float(best.parameter_assignments[0].value),
        "trial": client.get_trial(best.best_trial_name).status.conditions[-1].type,
        "details": [sorted(each) for each in client.get_success_trial_details("notebook")],
        "suggestion": client.get_suggestion("notebook").status.conditions[-1].type,
    }


def states() -> Any:
    """Each question in each state, and the best before there is one."""
    found: dict[str, Any] = {}
    client.create_experiment(experiment("states", {**SCORE, "KWOK_RUN": "6s"}))
    found["before"] = client.get_optimal_hyperparameters("states")
    wait("states", "Created")
    wait("states", "Running")
    found["running"] = is_in("states")
    until(lambda: status("states").trials_running)
    now = status("states")
    counts = (now.trials_pending, now.trials_running, now.trials_succeeded)
    found["counts"] = sum(count or 0 for count in counts) == now.trials
    wait("states")
    found["succeeded"], found["conditions"] = is_in("states"), conditions("states")
    best = client.get_optimal_hyperparameters("states")
    found["best"] = best.best_trial_name in status("states").succeeded_trial_list
    client.edit_experiment_budget("states", max_trial_count=4)
    wait("states", "Restarting")
    found["restarting"] = set(is_in("states")) >= {"created", "restarting"}
    until(lambda: status("states").trials_succeeded == 4)
    wait("states")
    found["again"] = conditions("states")
    return found


def budgets() -> Any:
    """More, fewer and other numbers of trials while they run, as fast as one can ask."""
    client.create_experiment(experiment("budgets", {**SCORE, "KWOK_RUN": "2s"}))
    wait("budgets", "Running")
    for most in range(4, 64, 3):
        client.edit_experiment_budget("budgets", max_trial_count=most)
        time.sleep(0.1)
    client.edit_experiment_budget("budgets", parallel_trial_count=6, max_failed_trial_count=2)
    until(lambda: (status("budgets").trials_running or 0) > 2)
    fewer = (status("budgets").trials or 0) + 1
    client.edit_experiment_budget("budgets", parallel_trial_count=1, max_trial_count=fewer)
    wait("budgets")
    ended = status("budgets").trials
    client.edit_experiment_budget("budgets", max_trial_count=ended + 2)
    until(lambda: status("budgets").trials_succeeded == ended + 2)
    wait("budgets")
    nothing = told(client.edit_experiment_budget, "budgets")
    return {
        "ended_before_all": fewer <= ended < 61,
        "nothing": nothing.partition(":")[0],
        "spec": client.get_experiment("budgets").spec.max_failed_trial_count,
    }


def suspended() -> Any:
    client.create_experiment(experiment("suspended", {**SCORE, "KWOK_RUN": "6s"}))
    until(lambda: status("suspended").trials_running)
    client.edit_experiment_budget("suspended", parallel_trial_count=0)
    until(lambda: not client.is_experiment_running("suspended"))
    before = is_in("suspended"), conditions("suspended")[-1]
    until(lambda: not status("suspended").trials_running)
    client.edit_experiment_budget("suspended", parallel_trial_count=3)
    until(lambda: client.is_experiment_running("suspended"))
    wait("suspended")
    return {"suspended": before, "trials": status("suspended").trials_succeeded}


def recreated() -> Any:
    """One of the same name, as soon as the deleted one is gone."""
    client.create_experiment(experiment("recreated", FOREVER))
    until(lambda: client.list_trials("recreated"))
    earlier = {each.metadata.name for each in client.list_trials("recreated")}
    client.delete_experiment("recreated")
    until(lambda: told(client.create_experiment, experiment("recreated")) == "nothing")
    wait("recreated")
    until(lambda: len(client.list_trials("recreated")) == 3)
    later = {each.metadata.name for each in client.list_trials("recreated")}
    own = client.get_experiment("recreated").metadata.uid

    def is_own() -> bool:
        try:
            owners = client.get_suggestion("recreated").metadata.owner_references
        except RuntimeError:
            return False
        return bool(owners[0].uid == own)

    # That of the earlier one is there until the garbage collector has removed it.
    until(is_own)
    time.sleep(3)  # it would have removed what belongs to the earlier one
    return {"none_of_earlier": not earlier & later, "suggestion": is_own()}


def policies() -> Any:
    found: dict[str, Any] = {}
    for policy in ("Never", "LongRunning", "FromVolume"):
        client.create_experiment(experiment(policy.lower(), resumePolicy=policy, maxTrialCount=2))
    for policy in ("Never", "LongRunning", "FromVolume"):
        found[policy] = continued(policy.lower())
    claims = CoreV1Api().list_namespaced_persistent_volume_claim(namespace).items
    found["claims"] = [each.metadata.name for each in claims if "pbt" not in each.metadata.name]
    return found


def continued(name: str) -> list[str]:
    """Let it end, and go on with a larger budget; return the conditions of the Suggestion between."""
    wait(name)
    suggestion = until(lambda: client.get_suggestion(name))
    before = {each.type for each in suggestion.status.conditions if each.status == "True"}
    client.edit_experiment_budget(name, max_trial_count=4)
    wait(name, "Restarting")
    until(lambda: status(name).trials_succeeded == 4)
    wait(name)
    return sorted(before - {"Created", "DeploymentReady"})


def failing() -> Any:
    client.create_experiment(experiment("failing", FAILS, maxTrialCount=9, maxFailedTrialCount=3))
    raised = told(lambda: wait("failing"))
    last = client.get_experiment_conditions("failing")[-1]
    client.create_experiment(experiment("at-once", FAILS, maxFailedTrialCount=0))
    until(lambda: client.is_experiment_failed("at-once"))
    trial = client.list_trials("failing")[0].status.conditions[-1]
    return {
        "raised": raised.partition(":")[0],
        "in": is_in("failing"),
        "last": [last.reason, last.message],
        "running": [each for each in conditions("failing") if each.startswith("Running")],
        "trials": status("failing").trials_failed >= 3,
        "trial": [trial.type, trial.reason, trial.message.startswith("Trial has failed")],
        "details": client.get_success_trial_details("failing"),
        "best": client.get_optimal_hyperparameters("failing"),
        "at_once": status("at-once").trials_failed >= 1,
    }


def unavailable() -> Any:
    """Trials that end well and never print the objective."""
    env = {"KWOK_LOG": "loss=1", "KWOK_RUN": "200ms"}
    client.create_experiment(experiment("unavailable", env, maxFailedTrialCount=2))
    until(lambda: client.is_experiment_failed("unavailable"))
    last = client.list_trials("unavailable")[0].status.conditions[-1]
    count = status("unavailable").trial_metrics_unavailable
    return {"trial": [last.type, last.reason], "count": count >= 2}


def stopped_early() -> Any:
    """Trials of 9, 8 and 1: the last is below the others when it is judged."""
    line = "score=${trialParameters.x}"
    env = {"KWOK_LOG": f"{line}\n+200ms {line}\n+400ms {line}", "KWOK_RUN": "12s"}
    settings = [{"name": "min_trials_required", "value": "1"}, {"name": "start_step", "value": "2"}]
    listed = {"name": "x", "parameterType": "discrete", "feasibleSpace": {"list": ["9", "8", "1"]}}
    client.create_experiment(
        experiment(
            "stopped",
            env,
            algorithm={"algorithmName": "grid"},
            earlyStopping={"algorithmName": "medianstop", "algorithmSettings": settings},
            parameters=[listed],
            parallelTrialCount=1,
        )
    )
    wait("stopped")
    stopped = [
        each
        for each in client.list_trials("stopped")
        if each.status.conditions[-1].type == "EarlyStopped"
    ]
    return {
        "listed": sorted(each.metadata.name for each in stopped)
        == sorted(status("stopped").early_stopped_trial_list),
        "reasons": sorted({each.status.conditions[-1].reason for each in stopped}),
        "observed": all(each.status.observation.metrics for each in stopped),
    }


SPACE = {
    "double": {"name": "x", "parameterType": "double", "feasibleSpace": {"min": "0.1", "max": "1"}},
    "int": {"name": "n", "parameterType": "int", "feasibleSpace": {"min": "1", "max": "9"}},
    "stepped": {
        "name": "x",
        "parameterType": "double",
        "feasibleSpace": {"min": "0.1", "max": "0.9", "step": "0.2"},
    },
}
ALGORITHMS: dict[str, dict[str, str]] = {
    "random": {"random_state": "1"},
    "tpe": {"n_startup_trials": "2", "gamma": "0.25"},
    "multivariate-tpe": {"n_ei_candidates": "8"},
    "bayesianoptimization": {"random_state": "10", "base_estimator": "GP", "n_initial_points": "2"},
    "cmaes": {"sigma": "0.1", "restart_strategy": "ipop"},
    "sobol": {},
    "grid": {},
    "hyperband": {"resource_name": "n", "eta": "3", "r_l": "9"},
    "pbt": {
        "suggestion_trial_dir": "/opt/katib/data",
        "n_population": "5",
        "truncation_threshold": "0.2",
    },
}


def of_algorithm(name: str) -> dict[str, Any]:
    given = [{"name": key, "value": value} for key, value in ALGORITHMS[name].items()]
    spaces = [SPACE["stepped" if name in ("grid", "pbt") else "double"]]
    made = experiment(f"by-{name}", algorithm={"algorithmName": name, "algorithmSettings": given})
    if name in ("cmaes", "hyperband"):
        spaces.append(SPACE["int"])
        template = made["spec"]["trialTemplate"]
        template["trialParameters"].append({"name": "n", "reference": "n"})
        pod = template["trialSpec"]["spec"]["template"]["spec"]
        pod["containers"][0]["command"].append("--n=${trialParameters.n}")
    made["spec"] |= {"parameters": spaces, "maxTrialCount": 4}
    return made


def algorithms() -> Any:
    """All algorithms but those of networks, each read back with its settings as they were sent."""
    volume = {
        "metadata": {"name": f"pbt-{namespace}"},
        "spec": {
            "capacity": {"storage": "5Gi"},
            "accessModes": ["ReadWriteMany"],
            "hostPath": {"path": "/nowhere"},
            "claimRef": {"namespace": namespace, "name": "by-pbt-pbt"},
        },
    }
    CoreV1Api().create_persistent_volume(volume)
    for name in ALGORITHMS:
        client.create_experiment(of_algorithm(name))
    found: dict[str, Any] = {}
    for name in ALGORITHMS:
        whole = wait(f"by-{name}")
        sent = [{"name": key, "value": value} for key, value in ALGORITHMS[name].items()]
        settings = whole.spec.algorithm.algorithm_settings or []
        kept = [each.to_dict() for each in settings] == sent
        best = client.get_optimal_hyperparameters(f"by-{name}")
        assigned = [each.name for each in best.parameter_assignments]
        found[name] = [kept and whole.status.trials == 4, assigned]
    return found


OPERATIONS = [
    {
        "operationType": kind,
        "parameters": [
            {
                "name": "filter_size",
                "parameterType": "categorical",
                "feasibleSpace": {"list": ["3", "5"]},
            }
        ],
    }
    for kind in ("separable_convolution", "max_pooling")
]


def of_network(name: str, metric: str, line: str, parameters: list[str], **spec: Any) -> Any:
    made = experiment(name, {"KWOK_LOG": line, "KWOK_RUN": "300ms"}, **spec)
    del made["spec"]["parameters"]
    made["spec"]["objective"]["objectiveMetricName"] = metric
    graph = {"numLayers": 2, "inputSizes": [8, 8, 1], "outputSizes": [10]}
    made["spec"]["nasConfig"] = {"graphConfig": graph, "operations": OPERATIONS}
    template = made["spec"]["trialTemplate"]
    given = [f"x{number}" for number, _ in enumerate(parameters)]
    template["trialParameters"] = [
        {"name": name, "reference": reference}
        for name, reference in zip(given, parameters, strict=True)
    ]
    pod = template["trialSpec"]["spec"]["template"]["spec"]
    pod["containers"][0]["command"] = [
        "train",
        *(f'"${{trialParameters.{each}}}"' for each in given),
    ]
    return made


def networks() -> Any:
    genotype = "Best-Genotype=Genotype(normal=[[('max_pooling_3x3',0)]],reduce=[])"
    filters = {"filter": {"metricsFormat": [r"([\w-]+)=(Genotype.*)"]}}
    darts = of_network(
        "darts",
        "Best-Genotype",
        genotype,
        ["algorithm-settings", "search-space", "num-layers"],
        algorithm={"algorithmName": "darts"},
        metricsCollectorSpec={"collector": {"kind": "StdOut"}, "source": filters},
        maxTrialCount=1,
        parallelTrialCount=1,
    )
    enas = of_network(
        "enas",
        "Validation-Accuracy",
        "Validation-Accuracy=0.5",
        ["architecture", "nn_config"],
        algorithm={"algorithmName": "enas"},
    )
    for each in (darts, enas):
        client.create_experiment(each)
    found = {}
    for name in ("darts", "enas"):
        whole = all_succeeded(name)
        best = whole.status.current_optimal_trial
        latest = best.observation.metrics[0].latest
        assigned = sorted(each.name for each in best.parameter_assignments)
        found[name] = [whole.status.trials_succeeded, latest[:16], assigned]
    return found


def tuned() -> Any:
    """tune() with every kind of parameter, as the SDK makes its Job; in pods of IMAGE if set."""

    def objective(parameters: dict[str, str]) -> None:
        import os

        assert parameters["kind"] in ("adam", "sgd")
        assert str(parameters["fixed"]) == "3"
        assert int(parameters["layers"]) in (2, 4, 6, 8)
        assert os.environ["KWOK_RUN"] == "300ms"
        print(f"score={parameters['lr']} loss=1")

    image = os.environ.get("IMAGE")
    client.tune(
        name="tuned",
        objective=objective,
        parameters={
            "lr": search.double(min=0.1, max=0.9, step=0.1),
            "layers": search.int(min=2, max=8, step=2),
            "kind": search.categorical(["adam", "sgd"]),
            "fixed": 3,
        },
        objective_metric_name="score",
        additional_metric_names=["loss"],
        objective_type="minimize",
        objective_goal=0.05,
        algorithm_name="tpe",
        algorithm_settings={"n_startup_trials": 2},
        max_trial_count=4,
        parallel_trial_count=2,
        max_failed_trial_count=1,
        retain_trials=True,
        packages_to_install=None if image else ["numpy"],
        pip_index_urls=["https://example.invalid/simple"],
        base_image=image or "tiny:1",
        env_per_trial={"KWOK_LOG": "score=0.5 loss=1", "KWOK_RUN": "300ms"},
        resources_per_trial={"cpu": "100m", "memory": "64Mi"},
        trial_active_deadline_seconds=600,
    )
    whole = wait("tuned")
    spaces = {each.name: each.feasible_space for each in whole.spec.parameters}
    best = client.get_optimal_hyperparameters("tuned")
    return {
        "trials": whole.status.trials_succeeded,
        "spaces": sorted(spaces),
        "distributions": sorted({each.distribution for each in spaces.values()}),
        "strategies": [each.value for each in whole.spec.objective.metric_strategies],
        "best": sorted(each.name for each in best.parameter_assignments),
        "value": image is None
        or best.observation.metrics[0].latest
        in [each.value for each in best.parameter_assignments],
        "again": "already exists" in told(client.create_experiment, experiment("tuned", FOREVER)),
    }


def unlimited() -> Any:
    """tune() with the SDK's defaults: no limit of trials, until one is set."""

    def objective(parameters: dict[str, str]) -> None:
        print(f"score={parameters['x']}")

    client.tune(
        name="unlimited",
        objective=objective,
        parameters={"x": search.double(min=0, max=1)},
        objective_metric_name="score",
        base_image="tiny:1",
        env_per_trial={"KWOK_LOG": "score=0.5", "KWOK_RUN": "1s"},
    )
    until(lambda: (status("unlimited").trials_succeeded or 0) > 3)
    before = client.get_experiment("unlimited").spec.max_trial_count
    goes_on = client.is_experiment_running("unlimited")
    client.edit_experiment_budget("unlimited", max_trial_count=status("unlimited").trials + 3)
    wait("unlimited")
    return {"before": before, "goes_on": goes_on, "ends": conditions("unlimited")[-1]}


def waiting() -> Any:
    """What a wait says when nothing comes, and when the experiment is deleted meanwhile."""
    client.create_experiment(experiment("waiting", FOREVER))
    late = told(
        lambda: client.wait_for_experiment_condition("waiting", timeout=2, polling_interval=1)
    )
    client.delete_experiment("waiting")
    until(lambda: "Failed to get" in told(client.get_experiment, "waiting"))
    gone = told(lambda: wait("waiting"))
    until(lambda: not client.list_trials("waiting"))
    return {"late": late.partition(":")[0], "gone": gone.partition(":")[0]}


def invalid() -> Any:
    """What the definition refuses, and what only the controller can."""
    refused = told(client.create_experiment, experiment("refused", maxFailedTrialCount=9))
    wrong = experiment("invalid")
    wrong["spec"]["parameters"][0]["feasibleSpace"] = {"min": "2", "max": "1"}
    client.create_experiment(wrong)
    until(lambda: client.is_experiment_failed("invalid"))
    last = client.get_experiment_conditions("invalid")[-1].reason
    return {"refused": "Failed to create" in refused, "failed": last}


def edited() -> Any:
    """Statuses that somebody edits, and a Suggestion that somebody deletes, while it runs."""
    client.create_experiment(experiment("edited", {**SCORE, "KWOK_RUN": "10s"}))
    until(lambda: status("edited").trials_running)
    custom, group = client.custom_api, ("kubeflow.org", "v1beta1", namespace)
    trial = client.list_trials("edited")[0].metadata.name
    for plural, name, wrong in (
        ("experiments", "edited", {"conditions": [], "trials": -5, "startTime": LONG_AGO}),
        ("experiments", "edited", {"tuner": {"conditions": "none", "state": 7}}),
        ("experiments", "edited", {"currentOptimalTrial": {"bestTrialName": "none"}}),
        ("trials", trial, {"conditions": [{"type": 5}], "observation": "none"}),
        ("suggestions", "edited", {"conditions": 7}),
    ):
        body = {"status": wrong}
        custom.patch_namespaced_custom_object_status(*group, plural, name, body)
    custom.delete_namespaced_custom_object(*group, "suggestions", "edited")
    wait("edited")
    whole = status("edited")
    return {
        "conditions": conditions("edited"),
        "counts": [whole.trials, whole.trials_succeeded, whole.start_time.year > 2001],
        "suggestion": bool(client.get_suggestion("edited").status.conditions),
        "trial": client.get_trial(trial).status.conditions[-1].type,
        "best": client.get_optimal_hyperparameters("edited").best_trial_name
        in whole.succeeded_trial_list,
    }


SERVES = """
import http.server, threading, time
scraped = threading.Event()
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"score 0.5\\n")
        scraped.set()
server = http.server.ThreadingHTTPServer(("", 8080), Metrics)
threading.Thread(target=server.serve_forever, daemon=True).start()
scraped.wait(20)
time.sleep(0.2)
"""


def file_at(path: str, kind: str = "File", **more: str) -> dict[str, Any]:
    return {"fileSystemPath": {"path": path, "kind": kind, **more}}


def collected() -> Any:
    """Metrics from files, event files and an endpoint, of real containers of IMAGE.

    EVENTS: an event file in base64, whose last accuracy is 1.
    """
    events = f"import base64; open('/runs/x.tfevents', 'wb').write(base64.b64decode('{os.environ['EVENTS']}'))"
    ways: dict[str, tuple[str, Any, list[str]]] = {
        "StdOut": ("score", {}, ["sh", "-c", "echo score=0.5"]),
        "File": (
            "score",
            file_at("/katib/metrics.log", format="TEXT"),
            ["sh", "-c", "echo score=0.5 > /katib/metrics.log"],
        ),
        "JSON": (
            "score",
            file_at("/katib/metrics.json", format="JSON"),
            ["sh", "-c", """echo '{"score": "0.5", "step": "1"}' > /katib/metrics.json"""],
        ),
        "TensorFlowEvent": ("accuracy", file_at("/runs", "Directory"), ["python", "-c", events]),
        "PrometheusMetric": ("score", {}, ["python", "-c", SERVES]),
    }
    for way, (metric, source, command) in ways.items():
        collector: dict[str, Any] = {"collector": {"kind": "File" if way == "JSON" else way}}
        if source:
            collector["source"] = source
        made = experiment(way.lower(), metricsCollectorSpec=collector, maxTrialCount=2)
        made["spec"]["objective"]["objectiveMetricName"] = metric
        pod = made["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]
        given = {"name": "X", "value": "${trialParameters.x}"}
        pod["containers"][0] |= {"image": os.environ["IMAGE"], "command": command, "env": [given]}
        client.create_experiment(made)
    found = {}
    for way in ways:
        whole = wait(way.lower())
        metric = whole.status.current_optimal_trial.observation.metrics[0]
        found[way] = [whole.status.trials_succeeded, metric.latest]
    return found


READS = """
import os, sys, time
from kubeflow.katib import KatibClient, report_metrics
def read_back(count, **where):
    while True:
        try:
            found = KatibClient().get_trial_metrics(os.environ["KATIB_TRIAL_NAME"], **where)
        except RuntimeError as error:
            print(error, flush=True)
            found = ()
        if len(found) == count:
            return
        time.sleep(0.5)
"""
# Without its domain, the name leads to the sidecar of this pod.
PUSHES = f"""{READS}
x = float(sys.argv[1])
print("begins", flush=True)
for value in (x, x + 1):
    report_metrics({{"score": value, "loss": 1}})
read_back(4, db_manager_address="katib-db-manager.kubeflow.svc.cluster.local:6789")
print("ends", flush=True)
"""
PRINTS = f"""{READS}
for score in (1, 2, 3):
    print(f"score={{score}}", flush=True)
    time.sleep(1)
read_back(3)
print("read", flush=True)
"""


def logged() -> Any:
    """Logs while a trial runs and after its end, and values that a pod reports and reads.

    SDK: a claim with this SDK's packages. DB_MANAGER: the address of this machine that leads to it.
    """
    found = {}
    for kind, program in (("Push", PUSHES), ("StdOut", PRINTS)):
        name = f"logged-{kind.lower()}"
        collector = {"collector": {"kind": kind}}
        made = experiment(
            name, metricsCollectorSpec=collector, maxTrialCount=1, parallelTrialCount=1
        )
        made["spec"]["objective"]["additionalMetricNames"] = ["loss"]
        made["spec"]["trialTemplate"]["retain"] = True
        pod = made["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]
        pod["volumes"] = [{"name": "sdk", "persistentVolumeClaim": {"claimName": "sdk"}}]
        pod["containers"][0] |= {
            "image": os.environ["IMAGE"],
            "command": ["python3", "-c", program, "${trialParameters.x}"],
            "env": [{"name": "PYTHONPATH", "value": "/sdk"}],
            "volumeMounts": [{"name": "sdk", "mountPath": "/sdk", "readOnly": True}],
        }
        client.create_experiment(made)
        until(lambda name=name: status(name).trials_running)
        (trial,) = (each.metadata.name for each in client.list_trials(name))
        followed = list(client.get_job_logs(name, trial, follow=True))
        wait(name)
        values = client.get_trial_metrics(trial, db_manager_address=os.environ["DB_MANAGER"])
        found[kind] = {
            "followed": followed,
            "is_same": list(client.get_job_logs(name, trial)) == followed,
            "metrics": [each.metric.name for each in values],
            "value": client.get_optimal_hyperparameters(name).observation.metrics[0].latest
            == [each.metric.value for each in values if each.metric.name == "score"][-1],
        }
    return found


STORIES = {
    each.__name__: each
    for each in (
        names,
        notebook,
        states,
        budgets,
        suspended,
        recreated,
        policies,
        failing,
        unavailable,
        stopped_early,
        algorithms,
        networks,
        tuned,
        unlimited,
        waiting,
        edited,
        invalid,
    )
}
REAL_STORIES = {"collected": collected, "logged": logged}


def main() -> None:
    chosen = sys.argv[2:] or list(STORIES)
    found: dict[str, Any] = {}

    def tell(name: str) -> None:
        began = time.monotonic()
        try:
            found[name] = (STORIES | REAL_STORIES)[name]()
        except Exception:
            found[name] = {"raised": traceback.format_exc()[-3000:]}
            traceback.print_exc()
        print(f"{name}: {time.monotonic() - began:.1f} s", file=sys.stderr)

    with ThreadPoolExecutor(len(chosen)) as threads:
        list(threads.map(tell, chosen))
    print(json.dumps({name: found[name] for name in chosen}))


if __name__ == "__main__":
    main()
