"""`tuner controller --katib`: what becomes of Katib's Experiment, on the small API server."""

from __future__ import annotations

import asyncio
import copy
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from controller.kube.client import Kind, KubernetesClient
from controller.kube.custom_resource import KATIB_SUGGESTIONS, KATIB_TRIALS
from controller.kube.errors import ApiError
from controller.operator import katib as katib_module
from controller.operator import managed as managed_module
from controller.operator import manager as manager_module
from controller.operator.experiment_kind import ExperimentKinds
from controller.operator.katib import KatibExperiments, KatibSelection
from controller.operator.manager import ExperimentResources, Manager
from controller.operator.policy import Policy
from controller.operator.resource import FINALIZER
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script
from tests.kube.fake_operator import PyTorchOperator
from tests.kube.operated import KIND, NAMESPACE, SCORED, Installation, experiment
from tests.kube.test_cluster_commands import Terminal
from tests.kube.test_controller_in_the_cluster import label_namespace

Raw = dict[str, Any]
FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
GENOTYPE = Script(lines=("Best-Genotype=Genotype(normal=[[('skip',0)]])",))
LOW = Script(lines=("score=0.1",))
FOREVER = Script(lines=("score=0.5",), forever=True)
CURVE = Script(lines=("score=0.2 loss=3", "score=0.9 loss=2", "score=0.5 loss=1"))


def katib(name: str = "tiny", **spec: object) -> Raw:
    """Return an Experiment as Katib's users write it, with these keys of spec besides."""
    words = ["train", "--x=${trialParameters.x}"]
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "score"},
            "algorithm": {"algorithmName": "random"},
            "parallelTrialCount": 3,
            "maxTrialCount": 3,
            "parameters": [
                {
                    "name": "x",
                    "parameterType": "double",
                    "feasibleSpace": {"min": "0", "max": "1"},
                }
            ],
            "trialTemplate": {
                "primaryContainerName": "main",
                "trialParameters": [{"name": "x", "reference": "x"}],
                "trialSpec": {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "spec": {
                        "template": {
                            "spec": {
                                "restartPolicy": "Never",
                                "containers": [
                                    {"name": "main", "image": "tiny:1", "command": words}
                                ],
                            }
                        }
                    },
                },
            },
            **spec,
        },
    }


def of_network(algorithm: str, *parameters: str, **spec: object) -> Raw:
    """Return a search for the layers of a network, whose trials get these parameters."""
    resource = katib(algorithm={"algorithmName": algorithm}, **spec)
    size = {"name": "size", "parameterType": "categorical", "feasibleSpace": {"list": ["3"]}}
    graph = {"numLayers": 2, "inputSizes": [8, 8, 1], "outputSizes": [10]}
    operations = [{"operationType": "max_pooling", "parameters": [size]}]
    del resource["spec"]["parameters"]
    resource["spec"]["nasConfig"] = {"graphConfig": graph, "operations": operations}
    template = resource["spec"]["trialTemplate"]
    names = [{"name": f"x{i}", "reference": each} for i, each in enumerate(parameters)]
    template["trialParameters"] = names
    pod = template["trialSpec"]["spec"]["template"]["spec"]
    pod["containers"][0]["command"] = [f"${{trialParameters.{each['name']}}}" for each in names]
    return resource


class KatibInstallation(Installation):
    """Experiments here are Katib's."""

    plural = "experiments.kubeflow.org"

    def whole(self, name: str = "tiny") -> Raw:
        found = self.api.find(self.plural, NAMESPACE, name) or {}
        return dict(found.get("status") or {})

    def status(self, name: str = "tiny") -> Raw:
        return dict(self.whole(name).get("tuner") or {})

    def spec(self, name: str = "tiny") -> Raw:
        return dict(self.api.get(self.plural, NAMESPACE, name)["spec"])

    def types(self, name: str = "tiny") -> list[tuple[str, str]]:
        """Return type and status of each condition, in their order."""
        return [(each["type"], each["status"]) for each in self.whole(name).get("conditions", ())]

    @property
    def trials(self) -> list[Raw]:
        return self.api.all("trials", NAMESPACE)

    async def until_last(self, kind: str, name: str = "tiny") -> None:
        """Wait until the last condition is of this type, and true."""
        try:
            await self.until(lambda: self.types(name)[-1:] == [(kind, "True")])
        except AssertionError:
            raise AssertionError(f"{name} is never {kind}: {self.whole(name)}") from None


Claim = Callable[[KatibInstallation], Coroutine[Any, Any, None]]


def on_katibs_cluster(script: Script = SCORED) -> Callable[[Claim], Callable[[Path], None]]:
    """Run a coroutine test with a new installation that serves Katib's resources."""

    def decorate(claim: Claim) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                async with FakeApi() as api:
                    for kind in (KATIB_TRIALS, KATIB_SUGGESTIONS):
                        api.define(kind.api_version, kind.plural, kind.kind)
                    api.define(KATIB_TRIALS.api_version, KatibInstallation.plural, "Experiment")
                    api.define(*KIND)
                    api.kubelet.play(lambda _job: script)
                    installed = KatibInstallation(api, tmp_path)
                    installed.katib = KatibSelection.ALL
                    with kubeconfig_of(api.kubeconfig()):
                        installed.start()
                        try:
                            await claim(installed)
                        finally:
                            await installed.stop()

            asyncio.run(main())

        run.__name__, run.__doc__ = claim.__name__, claim.__doc__
        return run

    return decorate


@on_katibs_cluster()
async def test_an_experiment_of_katibs_runs_and_shows_its_result(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib())
    await installed.until_last("Succeeded")
    status = installed.whole()
    assert installed.types() == [("Created", "True"), ("Running", "False"), ("Succeeded", "True")]
    assert status["conditions"][-1]["reason"] == "ExperimentMaxTrialsReached"
    assert (status["trials"], status["trialsSucceeded"], status["trialMetricsUnavailable"]) == (
        3,
        3,
        0,
    )
    best = status["currentOptimalTrial"]
    assert best["bestTrialName"] in status["succeededTrialList"]
    assert best["observation"]["metrics"] == [
        {"name": "score", "latest": "0.5", "min": "0.5", "max": "0.5"}
    ]


@on_katibs_cluster()
async def test_defaults_are_written_back_as_katibs_webhook_does(
    installed: KatibInstallation,
) -> None:
    resource = katib()
    del resource["spec"]["parallelTrialCount"]
    installed.apply(resource)
    await installed.until(lambda: "resumePolicy" in installed.spec())
    spec = installed.spec()
    assert (spec["parallelTrialCount"], spec["resumePolicy"]) == (3, "Never")
    assert spec["parameters"][0]["feasibleSpace"]["distribution"] == "uniform"
    assert spec["objective"]["metricStrategies"] == [{"name": "score", "value": "max"}]
    assert spec["metricsCollectorSpec"] == {"collector": {"kind": "StdOut"}}
    ends = [spec["trialTemplate"][f"{each}Condition"] for each in ("success", "failure")]
    assert ends == [
        f'status.conditions.#(type=="{each}")#|#(status=="True")#'
        for each in ("Complete", "Failed")
    ]


@on_katibs_cluster()
async def test_choices_that_katibs_sdk_sends_as_a_distribution_are_choices(
    installed: KatibInstallation,
) -> None:
    resource = katib()
    sent = {"distribution": ["adam", 3]}
    resource["spec"]["parameters"][0] |= {"parameterType": "categorical", "feasibleSpace": sent}
    installed.apply(resource)
    await installed.until_last("Succeeded")
    space = installed.spec()["parameters"][0]["feasibleSpace"]
    assert space == {"distribution": "uniform", "list": ["adam", "3"]}


@on_katibs_cluster(CURVE)
async def test_a_trial_shows_what_its_program_measured(installed: KatibInstallation) -> None:
    resource = katib(maxTrialCount=1, parallelTrialCount=1)
    resource["spec"]["objective"]["additionalMetricNames"] = ["loss"]
    installed.apply(resource)
    await installed.until_last("Succeeded")
    (trial,) = installed.trials
    assert trial["metadata"]["labels"]["katib.kubeflow.org/experiment"] == "tiny"
    (assigned,) = trial["spec"]["parameterAssignments"]
    assert assigned["name"] == "x"
    assert 0 <= float(assigned["value"]) <= 1
    assert trial["status"]["observation"]["metrics"] == [
        {"name": "score", "latest": "0.5", "min": "0.2", "max": "0.9"},
        {"name": "loss", "latest": "1", "min": "1", "max": "3"},
    ]
    assert trial["status"]["conditions"][-1]["type"] == "Succeeded"


@on_katibs_cluster()
async def test_the_parameters_of_a_network_are_the_two_that_its_program_gets(
    installed: KatibInstallation,
) -> None:
    installed.apply(of_network("enas", "architecture", "nn_config"))
    await installed.until_last("Succeeded")
    given = [trial["spec"]["parameterAssignments"] for trial in installed.trials]
    given.append(installed.whole()["currentOptimalTrial"]["parameterAssignments"])
    assert {tuple(each["name"] for each in one) for one in given} == {("architecture", "nn_config")}
    made = [change.after for change in installed.api.changes if change.plural == "jobs"]
    pods = [job["spec"]["template"]["spec"] for job in made if job is not None]
    commands = [pod["containers"][0]["command"] for pod in pods]
    assert all([each["value"] for each in one] in commands for one in given)


@on_katibs_cluster(GENOTYPE)
async def test_a_text_is_the_latest_value_of_its_metric(installed: KatibInstallation) -> None:
    filters = {"filter": {"metricsFormat": [r"([\w-]+)=(Genotype.*)"]}}
    collector = {"collector": {"kind": "StdOut"}, "source": filters}
    names = ("algorithm-settings", "search-space", "num-layers")
    resource = of_network("darts", *names, metricsCollectorSpec=collector)
    resource["spec"]["objective"]["objectiveMetricName"] = "Best-Genotype"
    resource["spec"] |= {"maxTrialCount": 1, "parallelTrialCount": 1}
    installed.apply(resource)
    await installed.until_last("Succeeded")
    best = installed.whole()["currentOptimalTrial"]
    assert best["observation"]["metrics"] == [
        {
            "name": "Best-Genotype",
            "latest": "Genotype(normal=[[('skip',0)]])",
            "min": "unavailable",
            "max": "unavailable",
        }
    ]
    assert [each["name"] for each in best["parameterAssignments"]] == list(names)
    assert installed.trials[0]["status"]["observation"] == best["observation"]


@on_katibs_cluster()
async def test_hyperbands_resource_is_a_parameter_of_its_trials(
    installed: KatibInstallation,
) -> None:
    settings = {"resource_name": "n", "eta": "3", "r_l": "3"}
    given = [{"name": name, "value": value} for name, value in settings.items()]
    resource = katib(algorithm={"algorithmName": "hyperband", "algorithmSettings": given})
    space = {"min": "1", "max": "3"}
    parameter = {"name": "n", "parameterType": "int", "feasibleSpace": space}
    resource["spec"]["parameters"].append(parameter)
    template = resource["spec"]["trialTemplate"]
    template["trialParameters"].append({"name": "n", "reference": "n"})
    pod = template["trialSpec"]["spec"]["template"]["spec"]
    pod["containers"][0]["command"].append("${trialParameters.n}")
    installed.apply(resource)
    await installed.until_last("Succeeded")
    reached: dict[str, str] = {}
    for trial in installed.trials:
        assigned = {each["name"]: each["value"] for each in trial["spec"]["parameterAssignments"]}
        reached[trial["metadata"]["name"]] = assigned["n"]
    best = installed.whole()["currentOptimalTrial"]
    assert best["parameterAssignments"][1] == {"name": "n", "value": "3"}
    assert reached[best["bestTrialName"]] == "3"
    assert set(reached.values()) == {"1", "3"}


CUSTOM = {"name": "reader", "image": "reader:1", "args": ["-path", "/katib"]}
SHARED = {"fileSystemPath": {"path": "/katib/metrics.log", "kind": "File"}}
ONE_MORE = ["main", "tuner-collector"]
# The collector as Katib's clients give it, and the containers of a trial's pod.
COLLECTORS: dict[str, tuple[Raw, list[str]]] = {
    "stdout": ({"collector": {"kind": "StdOut"}}, ["main"]),
    "file": ({"collector": {"kind": "File"}}, ONE_MORE),
    "events": ({"collector": {"kind": "TensorFlowEvent"}}, ONE_MORE),
    "endpoint": ({"collector": {"kind": "PrometheusMetric"}}, ONE_MORE),
    "push": ({"collector": {"kind": "Push"}}, ONE_MORE),
    "none": ({"collector": {"kind": "None"}}, ONE_MORE),
    "custom": (
        {"collector": {"kind": "Custom", "customCollector": CUSTOM}, "source": SHARED},
        ["main", "reader", "tuner-collector"],
    ),
}


@on_katibs_cluster(FOREVER)
async def test_each_collector_of_katibs_has_its_containers(installed: KatibInstallation) -> None:
    for name, (collector, _) in COLLECTORS.items():
        one = {"maxTrialCount": 1, "parallelTrialCount": 1, "metricsCollectorSpec": collector}
        installed.apply(katib(name, **one))
    await installed.until(lambda: len(installed.jobs) == len(COLLECTORS))
    found: dict[str, list[str]] = {}
    for job in installed.jobs:
        pod = job["spec"]["template"]["spec"]
        containers = [*pod["containers"], *pod.get("initContainers", ())]
        owner = job["metadata"]["ownerReferences"][0]["name"]
        found[owner] = sorted(each["name"] for each in containers)
    assert found == {name: names for name, (_, names) in COLLECTORS.items()}


WRONG_COLLECTORS: dict[str, Raw] = {
    "collector.customCollector: must be specified; write the container that reports": {
        "collector": {"kind": "Custom"}
    },
    "collector.customCollector.image: must be specified; write the container's image": {
        "collector": {"kind": "Custom", "customCollector": {"name": "reader"}}
    },
    "collector.customCollector.name: the template has a container main already": {
        "collector": {"kind": "Custom", "customCollector": {"name": "main", "image": "a:1"}}
    },
    "source.filter: cannot be combined with format: JSON; remove it": {
        "collector": {"kind": "File"},
        "source": {
            "fileSystemPath": {"format": "JSON"},
            "filter": {"metricsFormat": ["(a)(b)"]},
        },
    },
}


@on_katibs_cluster()
async def test_a_collector_that_cannot_work_fails_its_experiment_with_place_and_cure(
    installed: KatibInstallation,
) -> None:
    names = {f"wrong-{i}": says for i, says in enumerate(WRONG_COLLECTORS)}
    for name, says in names.items():
        installed.apply(katib(name, metricsCollectorSpec=WRONG_COLLECTORS[says]))
    for name, says in names.items():
        await installed.until_last("Failed", name)
        last = installed.whole(name)["conditions"][-1]
        assert last["reason"] == "ExperimentInvalid"
        assert f"spec.metricsCollectorSpec.{says}" in last["message"]


@on_katibs_cluster(FOREVER)
async def test_a_trial_has_the_name_of_its_job_and_its_pods_name_it(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(maxTrialCount=1, parallelTrialCount=1))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    (trial,), (job,) = installed.trials, installed.jobs
    assert trial["metadata"]["name"] == job["metadata"]["name"]
    assert installed.whole()["runningTrialList"] == [trial["metadata"]["name"]]
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels["katib.kubeflow.org/experiment"] == "tiny"
    assert labels["katib.kubeflow.org/trial"] == trial["metadata"]["name"]


@on_katibs_cluster()
async def test_no_trial_is_visible_before_its_job(installed: KatibInstallation) -> None:
    installed.apply(katib())
    await installed.until_last("Succeeded")
    made: list[tuple[str, str]] = []
    for change in installed.api.changes:
        if change.before is None and change.after is not None:
            made.append((change.plural, change.after["metadata"]["name"]))
    trials = [name for plural, name in made if plural == "trials"]
    assert len(trials) == 3
    assert all(made.index(("jobs", name)) < made.index(("trials", name)) for name in trials)


@on_katibs_cluster()
async def test_a_trial_without_the_metric_is_unavailable_and_counts_as_failed(
    installed: KatibInstallation,
) -> None:
    resource = katib(maxFailedTrialCount=1)
    resource["spec"]["objective"]["objectiveMetricName"] = "accuracy"
    installed.apply(resource)
    await installed.until_last("Failed")
    status = installed.whole()
    assert status["trialMetricsUnavailable"] > 0
    assert "currentOptimalTrial" not in status
    assert "max failed count" in status["conditions"][-1]["message"]


@on_katibs_cluster()
async def test_a_suggestion_has_the_name_of_its_experiment(installed: KatibInstallation) -> None:
    installed.apply(katib())
    await installed.until_last("Succeeded")
    (suggestion,) = installed.api.all("suggestions", NAMESPACE)
    assert suggestion["metadata"]["name"] == "tiny"
    assert suggestion["spec"]["requests"] == 3
    assert suggestion["status"]["suggestionCount"] == 3
    assert suggestion["status"]["conditions"][-1]["type"] == "Succeeded"


@on_katibs_cluster(FOREVER)
async def test_a_suggestion_counts_the_trials_so_far(installed: KatibInstallation) -> None:
    def count() -> int | None:
        found = installed.api.find("suggestions", NAMESPACE, "tiny") or {}
        given: int | None = found.get("status", {}).get("suggestionCount")
        return given

    installed.apply(katib(parallelTrialCount=2))
    await installed.until(lambda: count() == 2)
    assert installed.api.get("suggestions", NAMESPACE, "tiny")["spec"]["requests"] == 3
    installed.api.remove("suggestions", NAMESPACE, "tiny")
    installed.edit("tiny", parallelTrialCount=3)
    await installed.until(lambda: count() == 3)


@on_katibs_cluster()
async def test_the_suggestion_ends_with_its_experiment_unless_that_may_go_on(
    installed: KatibInstallation,
) -> None:
    for policy in ("Never", "FromVolume", "LongRunning"):
        installed.apply(katib(policy.lower(), resumePolicy=policy))
        await installed.until_last("Succeeded", policy.lower())
    said: dict[str, dict[str, str]] = {}
    for each in installed.api.all("suggestions", NAMESPACE):
        conditions = {on["type"]: on["status"] for on in each["status"]["conditions"]}
        said[each["metadata"]["name"]] = conditions
    assert said["longrunning"] == {"Created": "True", "DeploymentReady": "True", "Running": "True"}
    assert said["fromvolume"] == said["never"]
    assert (said["never"]["Running"], said["never"]["Succeeded"]) == ("False", "True")


@on_katibs_cluster()
async def test_from_volume_has_the_claim_of_katib_and_it_takes_up_no_storage(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(resumePolicy="FromVolume"))
    await installed.until_last("Succeeded")
    (claim,) = installed.api.all("persistentvolumeclaims", NAMESPACE)
    assert claim["metadata"]["name"] == "tiny-random"
    assert claim["metadata"]["ownerReferences"][0]["kind"] == "Experiment"
    assert (claim["spec"]["storageClassName"], claim["spec"]["volumeName"]) == (
        "",
        "nothing-is-stored",
    )


@on_katibs_cluster(FOREVER)
async def test_trials_of_pbt_get_a_claim_for_their_checkpoints(
    installed: KatibInstallation,
) -> None:
    settings = {"suggestion_trial_dir": "/data/", "n_population": "5", "truncation_threshold": ".2"}
    given = [{"name": name, "value": value} for name, value in settings.items()]
    installed.apply(katib(algorithm={"algorithmName": "pbt", "algorithmSettings": given}))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    (claim,) = installed.api.all("persistentvolumeclaims", NAMESPACE)
    assert claim["spec"] == {
        "accessModes": ["ReadWriteMany"],
        "resources": {"requests": {"storage": "5Gi"}},
    }
    for job in installed.jobs:
        volumes = job["spec"]["template"]["spec"]["volumes"]
        claims = {each["persistentVolumeClaim"]["claimName"] for each in volumes}
        assert claims == {claim["metadata"]["name"]} == {"tiny-pbt"}


@on_katibs_cluster(FOREVER)
async def test_a_late_status_is_not_that_of_a_later_experiment_of_its_name(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib())
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    await installed.stop()
    kind = KatibExperiments(KatibSelection.ALL)
    resource = kind.seen(installed.api.get(installed.plural, NAMESPACE, "tiny"))
    assert resource is not None
    installed.api.remove(installed.plural, NAMESPACE, "tiny")
    installed.apply(katib())
    async with await KubernetesClient.connect() as client:
        resources = ExperimentResources(client, [NAMESPACE], ExperimentKinds([kind]))
        with pytest.raises(ApiError, match="another object has this name now"):
            await resources.write_status(client, resource, resource["whole"])
    assert installed.whole() == {}


@on_katibs_cluster()
async def test_a_recreated_experiment_waits_for_its_own_suggestion(
    installed: KatibInstallation,
) -> None:
    owner = {"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "name": "tiny"}
    about = {"name": "tiny", "namespace": NAMESPACE}
    earlier = {**about, "ownerReferences": [{**owner, "uid": "of-the-deleted-one"}]}
    installed.api.put("suggestions", {"metadata": earlier})
    installed.apply(katib())

    def tried() -> bool:
        path = f"/apis/kubeflow.org/v1beta1/namespaces/{NAMESPACE}/suggestions/tiny"
        return any(each[:2] == ("GET", path) for each in installed.api.requests)

    await installed.until(tried)
    installed.api.remove("suggestions", NAMESPACE, "tiny")
    await installed.until_last("Succeeded")
    (suggestion,) = installed.api.all("suggestions", NAMESPACE)
    assert suggestion["status"]["suggestionCount"] == 3


OVER_QUOTA = "exceeded quota: q"


def exceed_quota(installed: KatibInstallation, plural: str) -> None:
    """Refuse new objects of a kind, until `refuse` of the API says otherwise."""
    installed.api.refuse = lambda each, _obj: OVER_QUOTA if each == plural else ""


def refusals(installed: KatibInstallation) -> list[tuple[str, str]]:
    events = installed.api.all("events", NAMESPACE)
    return [
        (each["reason"], each["message"]) for each in events if each["reason"].endswith("Refused")
    ]


@pytest.mark.parametrize(
    ("plural", "kind", "seen"),
    [
        ("trials", "Trial", 0),
        ("suggestions", "Suggestion", 3),
        ("persistentvolumeclaims", "PersistentVolumeClaim", 3),
    ],
)
def test_an_object_that_the_server_refuses_is_told_and_keeps_no_status_from_being_written(
    tmp_path: Path, plural: str, kind: str, seen: int
) -> None:
    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        exceed_quota(installed, plural)
        installed.apply(katib(resumePolicy="FromVolume"))
        await installed.until_last("Succeeded")
        assert installed.whole()["trialsSucceeded"] == seen
        assert installed.whole()["currentOptimalTrial"]["observation"]["metrics"]
        ((reason, message),) = {*refusals(installed)}
        assert (reason, OVER_QUOTA in message) == (f"{kind}Refused", True)

    claim(tmp_path)


@on_katibs_cluster()
async def test_one_that_ends_before_its_first_status_is_shown_as_ended(
    installed: KatibInstallation,
) -> None:
    installed.api.forbid("patch", f"{installed.plural}/status")
    installed.apply(katib())
    made = installed.api.changes
    await installed.until(
        lambda: sum(each.plural == "jobs" and not each.after for each in made) == 3
    )
    installed.api.permit()
    await installed.until_last("Succeeded")
    assert installed.whole()["trialsSucceeded"] == 3


@pytest.mark.parametrize(("kind", "seen"), [(KATIB_TRIALS, 0), (KATIB_SUGGESTIONS, 3)])
def test_a_definition_that_is_missing_is_told_and_hinders_no_experiment(
    tmp_path: Path, kind: Kind, seen: int
) -> None:
    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        installed.api.undefine(kind.api_version, kind.plural)
        installed.apply(katib())
        await installed.until_last("Succeeded")
        assert installed.whole()["trialsSucceeded"] == seen
        assert {reason for reason, _ in refusals(installed)} == {f"{kind.kind}Refused"}

    claim(tmp_path)


@on_katibs_cluster()
async def test_experiments_of_ours_run_while_katibs_definition_is_missing(
    installed: KatibInstallation,
) -> None:
    await installed.stop()
    of_katib = KATIB_TRIALS.api_version, KatibInstallation.plural
    installed.api.undefine(*of_katib)
    installed.start()
    installed.api.put("experiments", experiment("ours"))

    def has_succeeded() -> bool:
        found = installed.api.get("experiments", NAMESPACE, "ours")
        return bool(found.get("status", {}).get("state") == "succeeded")

    await installed.until(has_succeeded)
    installed.api.define(*of_katib, "Experiment")
    installed.apply(katib())
    await installed.until_last("Succeeded")


@on_katibs_cluster()
async def test_a_right_that_is_missing_for_the_statuses_of_trials_is_told(
    installed: KatibInstallation,
) -> None:
    installed.api.forbid("patch", "trials/status")
    installed.apply(katib())

    def told() -> list[str]:
        events = installed.api.all("events", NAMESPACE)
        return [each["message"] for each in events if each["reason"] == "StatusNotWritten"]

    await installed.until(told)
    assert "cannot patch resource" in told()[0]
    installed.api.permit()
    await installed.until_last("Succeeded")


@pytest.mark.parametrize("refused", ["trials", "suggestions", "persistentvolumeclaims"])
def test_an_object_that_was_refused_is_there_once_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr(katib_module, "_AGAIN_S", 0.1)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        installed.api.kubelet.play(lambda _job: FOREVER)
        exceed_quota(installed, refused)
        installed.apply(katib(resumePolicy="FromVolume"))
        await installed.until(lambda: refusals(installed))
        installed.api.refuse = lambda _plural, _obj: ""
        await installed.until(lambda: installed.api.all(refused, NAMESPACE))
        await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
        assert len(installed.trials) == 3

    claim(tmp_path)


@pytest.mark.parametrize("refused", ["trials", "suggestions", "persistentvolumeclaims"])
def test_an_object_that_was_refused_until_the_end_is_there_once_that_is_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr(katib_module, "_AGAIN_S", 1.0)
    monkeypatch.setattr(managed_module, "_RESYNC_S", 0.1)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        exceed_quota(installed, refused)
        installed.apply(katib(resumePolicy="FromVolume"))
        await installed.until_last("Succeeded")
        installed.api.refuse = lambda _plural, _obj: ""
        await installed.until(lambda: installed.api.all(refused, NAMESPACE))
        await installed.until(lambda: installed.whole()["trialsSucceeded"] == 3)
        assert len(installed.trials) == 3

    claim(tmp_path)


@pytest.mark.parametrize("refused", ["trials", "suggestions", "persistentvolumeclaims"])
def test_the_next_leader_tries_an_object_again_that_was_refused_until_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: str
) -> None:
    monkeypatch.setattr(katib_module, "_AGAIN_S", 0.5)
    monkeypatch.setattr(managed_module, "_RESYNC_S", 0.1)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        exceed_quota(installed, refused)
        installed.apply(katib(resumePolicy="FromVolume"))
        await installed.until_last("Succeeded")
        await installed.until(lambda: "lacksObjects" in installed.whole()["tuner"])
        await installed.stop()
        installed.api.refuse = lambda _plural, _obj: ""
        installed.start()
        await installed.until(lambda: installed.api.all(refused, NAMESPACE))
        await installed.until(lambda: "lacksObjects" not in installed.whole()["tuner"])
        assert len(installed.trials) == 3
        assert installed.whole()["trialsSucceeded"] == 3

    claim(tmp_path)


async def ended_with_refused_trials(installed: KatibInstallation) -> None:
    exceed_quota(installed, "trials")
    installed.apply(katib())
    await installed.until_last("Succeeded")


def test_an_object_that_was_refused_is_tried_again_after_a_try_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(katib_module, "_AGAIN_S", 1.0)
    monkeypatch.setattr(managed_module, "_RESYNC_S", 0.1)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        api = installed.api
        await ended_with_refused_trials(installed)

        def is_tried(request: tuple[str, str, dict[str, str]]) -> bool:
            return request[0] == "POST" and request[1].endswith("/trials")

        api.answer(500, method="POST", path="/trials")
        before = len(api.requests)
        await installed.until(lambda: any(map(is_tried, api.requests[before:])))
        api.refuse = lambda _plural, _obj: ""
        await installed.until(lambda: len(installed.trials) == 3)

    claim(tmp_path)


def test_an_object_that_was_refused_is_tried_again_though_deleted_trials_were_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(katib_module, "_AGAIN_S", 1.0)
    monkeypatch.setattr(managed_module, "_RESYNC_S", 0.1)
    kinds: list[KatibExperiments] = []
    init = KatibExperiments.__init__

    def kept(self: KatibExperiments, selection: KatibSelection) -> None:
        init(self, selection)
        kinds.append(self)

    monkeypatch.setattr(KatibExperiments, "__init__", kept)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        api = installed.api
        await ended_with_refused_trials(installed)
        kinds[0].trials_missed()  # as after an interruption of its watch
        api.refuse = lambda _plural, _obj: ""
        await installed.until(lambda: len(installed.trials) == 3)

    claim(tmp_path)


def test_no_more_trials_are_seen_to_run_than_the_experiment_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "STATUS_S", 0.1)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        api = installed.api
        api.kubelet.play(lambda _job: Script(lines=("score=0.5",), seconds=0.5))
        installed.apply(katib(parallelTrialCount=2, maxTrialCount=12))
        await installed.until(lambda: installed.whole().get("trialsSucceeded", 0) >= 4)
        api.hold("GET", "/log")  # the ends of trials are not known
        await installed.until(lambda: len(ended_pods(installed)) == 4)
        api.release()
        await installed.until_last("Succeeded")
        assert most_unfinished(installed) == 2

    claim(tmp_path)


def test_a_trial_that_ends_before_it_is_seen_is_shown_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manager_module, "STATUS_S", 0.1)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        api = installed.api
        api.kubelet.play(lambda _job: Script(lines=("score=0.5",), seconds=0.5))
        installed.apply(katib(parallelTrialCount=1, maxTrialCount=8))
        await installed.until(lambda: installed.whole().get("trialsSucceeded", 0) >= 4)
        api.hold("GET", "/log")
        await installed.until(lambda: len(ended_pods(installed)) == 2)
        first, _ = (pod["metadata"]["name"] for pod in ended_pods(installed))
        known = installed.status()["trials"]["succeeded"]
        api.hold("GET", f"/{first}/log")  # only the end of its successor is known
        await installed.until(lambda: installed.status()["trials"]["succeeded"] > known)
        api.release()
        await installed.until_last("Succeeded")
        assert (installed.whole()["trialsSucceeded"], most_unfinished(installed)) == (8, 1)

    claim(tmp_path)


def ended_pods(installed: KatibInstallation) -> list[Raw]:
    pods = installed.api.all("pods", NAMESPACE)
    return [pod for pod in pods if pod["status"].get("phase") == "Succeeded"]


def most_unfinished(installed: KatibInstallation) -> int:
    """Return how many Trials that had not ended there were at the same time."""
    unfinished: set[str] = set()
    most = 0
    for change in installed.api.changes:
        if change.plural == "trials" and change.after is not None:
            conditions = (change.after.get("status") or {}).get("conditions", [])
            ends = [each["type"] for each in conditions] and conditions[-1]["type"] == "Succeeded"
            name = change.after["metadata"]["name"]
            (unfinished.discard if ends else unfinished.add)(name)
            most = max(most, len(unfinished))
    return most


@on_katibs_cluster()
async def test_a_trial_that_somebody_has_made_becomes_that_of_the_trial_of_its_name(
    installed: KatibInstallation,
) -> None:
    installed.api.kubelet.play(lambda _job: FOREVER)
    installed.apply(katib(parallelTrialCount=1))
    await installed.until(lambda: installed.trials)
    (first,) = installed.trials
    name = f"{first['metadata']['name'].removesuffix('0')}1"
    made = [{"name": "x", "value": "7"}]
    about = {"name": name, "namespace": NAMESPACE}
    installed.api.put("trials", {"metadata": about, "spec": {"parameterAssignments": made}})
    installed.api.kubelet.play(lambda _job: SCORED)
    installed.api.remove("jobs", NAMESPACE, first["metadata"]["name"])
    await installed.until_last("Succeeded")
    found = installed.api.get("trials", NAMESPACE, name)
    assert found["spec"]["parameterAssignments"] != made
    assert found["metadata"]["ownerReferences"] == first["metadata"]["ownerReferences"]
    assert found["metadata"]["labels"] == first["metadata"]["labels"]


def test_a_suggestion_of_another_owner_is_named_and_hinders_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(katib_module, "_WAITS", 2)

    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "mine", "uid": "1"}
        about = {"name": "tiny", "namespace": NAMESPACE, "ownerReferences": [owner]}
        installed.api.put("suggestions", {"metadata": about})
        installed.apply(katib())
        await installed.until_last("Succeeded")
        ((reason, message),) = {*refusals(installed)}
        assert reason == "SuggestionRefused"
        assert message.startswith("Suggestion tiny belongs to ConfigMap mine; delete it, or")

    claim(tmp_path)


@on_katibs_cluster()
async def test_a_suggestion_that_somebody_deletes_is_there_again_at_the_end(
    installed: KatibInstallation,
) -> None:
    installed.api.kubelet.play(lambda _job: FOREVER)
    installed.apply(katib(parallelTrialCount=1, maxTrialCount=1))
    await installed.until(lambda: installed.api.find("suggestions", NAMESPACE, "tiny"))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    installed.api.remove("suggestions", NAMESPACE, "tiny")
    installed.api.kubelet.play(lambda _job: SCORED)
    installed.api.remove("jobs", NAMESPACE, installed.jobs[0]["metadata"]["name"])
    await installed.until_last("Succeeded")
    (suggestion,) = installed.api.all("suggestions", NAMESPACE)
    assert suggestion["status"]["conditions"][-1]["type"] == "Succeeded"


@on_katibs_cluster()
async def test_a_larger_budget_restarts_what_has_ended(installed: KatibInstallation) -> None:
    installed.apply(katib(maxTrialCount=2, parallelTrialCount=2))
    await installed.until_last("Succeeded")
    installed.edit("tiny", maxTrialCount=4)
    await installed.until(lambda: installed.whole().get("trialsSucceeded") == 4)
    await installed.until_last("Succeeded")
    (suggestion,) = installed.api.all("suggestions", NAMESPACE)
    assert (suggestion["spec"]["requests"], suggestion["status"]["suggestionCount"]) == (4, 4)
    assert installed.types() == [
        ("Created", "True"),
        ("Restarting", "True"),
        ("Running", "False"),
        ("Succeeded", "True"),
    ]


@on_katibs_cluster(FOREVER)
async def test_no_parallel_trials_suspend_it_and_more_resume_it(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(parallelTrialCount=1))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    installed.edit("tiny", parallelTrialCount=0)
    await installed.until(lambda: not installed.jobs)
    await installed.until(lambda: ("Running", "False") in installed.types())
    installed.edit("tiny", parallelTrialCount=2)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 2)
    await installed.until_last("Running")


@on_katibs_cluster()
async def test_one_that_is_suspended_from_the_start_says_so_and_begins_later(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(parallelTrialCount=0))
    await installed.until(lambda: installed.types()[-1:] == [("Running", "False")])
    assert installed.whole()["conditions"][-1]["reason"] == "ExperimentSuspended"
    installed.edit("tiny", parallelTrialCount=2)
    await installed.until_last("Succeeded")


@on_katibs_cluster()
async def test_a_wrong_spec_fails_in_the_words_of_the_file(installed: KatibInstallation) -> None:
    resource = katib(maxFailedTrialCount=7)
    resource["spec"]["parameters"][0]["feasibleSpace"] = {"min": "2", "max": "1"}
    installed.apply(resource)
    await installed.until_last("Failed")
    last = installed.whole()["conditions"][-1]
    assert last["reason"] == "ExperimentInvalid"
    assert "spec.parameters[0].feasibleSpace: min 2 is above max 1" in last["message"]
    assert "spec.maxFailedTrialCount" in last["message"]
    assert not installed.jobs


@on_katibs_cluster()
async def test_a_template_may_not_ask_for_more_than_an_ordinary_pod(
    installed: KatibInstallation,
) -> None:
    resource = katib()
    template = resource["spec"]["trialTemplate"]["trialSpec"]
    template["spec"]["template"]["spec"]["hostNetwork"] = True
    installed.apply(resource)
    await installed.until_last("Failed")
    message = installed.whole()["conditions"][-1]["message"]
    assert "spec.trialTemplate.trialSpec.spec.template.spec.hostNetwork" in message


@on_katibs_cluster(FOREVER)
async def test_experiments_of_both_kinds_may_have_one_name(installed: KatibInstallation) -> None:
    installed.apply(katib(parallelTrialCount=1))
    installed.api.put("experiments", experiment(parallelism=1))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)

    def native() -> Raw:
        return dict(installed.api.get("experiments", NAMESPACE, "tiny").get("status") or {})

    await installed.until(lambda: native().get("running") == 1)
    owners = {job["metadata"]["ownerReferences"][0]["apiVersion"] for job in installed.jobs}
    assert owners == {"kubeflow.org/v1beta1", "tuner.dev/v1"}
    assert len({job["metadata"]["name"] for job in installed.jobs}) == 2
    assert len(installed.trials) == 1


@on_katibs_cluster()
async def test_its_trials_run_again_as_an_experiment_of_ours(installed: KatibInstallation) -> None:
    installed.apply(katib())
    await installed.until_last("Succeeded")
    terminal = Terminal(installed)
    name = "tiny.kubeflow.org"
    confirmed = await terminal.tuner("confirm", name, "--top", "2", "--seeds", "2")
    assert confirmed.code == 0, confirmed.err
    assert f"Reruns of {name}, with 2 new seeds" in confirmed.out
    reproduced = await terminal.tuner("reproduce", f"{name}/1")
    assert reproduced.code == 0, reproduced.err


@on_katibs_cluster()
async def test_an_experiment_that_katib_has_begun_is_left_alone(
    installed: KatibInstallation,
) -> None:
    of_katib = katib("theirs")
    of_katib["metadata"]["finalizers"] = ["update-prometheus-metrics"]
    installed.apply(of_katib)
    kept = katib("kept")
    kept["metadata"]["annotations"] = {"tuner.dev/controlled": "false"}
    installed.apply(kept)
    installed.apply(katib("ours"))
    await installed.until_last("Succeeded", "ours")
    for each in (of_katib, kept):
        name = each["metadata"]["name"]
        assert installed.spec(name) == each["spec"]
        assert not installed.whole(name)


@on_katibs_cluster(FOREVER)
async def test_a_deleted_experiment_goes_with_all_that_it_owns(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib())
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    installed.delete()
    await installed.until(lambda: installed.api.find(installed.plural, NAMESPACE, "tiny") is None)
    gone = [change.plural for change in installed.api.changes if change.after is None]
    assert gone.index("trials") < gone.index("jobs")
    assert not installed.jobs
    assert not installed.trials
    assert not installed.api.all("suggestions", NAMESPACE)
    assert not list(installed.state.experiments.iterdir())


@on_katibs_cluster(FOREVER)
async def test_the_next_controller_writes_no_trial_again(installed: KatibInstallation) -> None:
    installed.apply(katib())
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    await installed.stop()
    before = {each["metadata"]["uid"] for each in installed.trials}
    written = len(installed.api.requests)
    installed.start()
    installed.edit("tiny", maxTrialCount=4, parallelTrialCount=4)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 4)
    assert before < {each["metadata"]["uid"] for each in installed.trials}
    created = [
        path
        for method, path, _ in installed.api.requests[written:]
        if method == "POST" and path.endswith("/trials")
    ]
    assert len(created) == 1


@on_katibs_cluster(FOREVER)
async def test_a_trial_whose_object_somebody_deletes_runs_again(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(maxTrialCount=2, parallelTrialCount=2))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 2)
    (deleted, kept), before = installed.trials, {each["metadata"]["uid"] for each in installed.jobs}
    name = deleted["metadata"]["name"]
    installed.api.remove("trials", NAMESPACE, name)

    def is_back() -> bool:
        found = installed.api.find("trials", NAMESPACE, name)
        return found is not None and found["metadata"]["uid"] != deleted["metadata"]["uid"]

    await installed.until(is_back)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 2)
    await installed.until(lambda: len(installed.jobs) == 2)
    assert len({each["metadata"]["uid"] for each in installed.jobs} & before) == 1
    assert kept in installed.trials


async def until_run_again(installed: KatibInstallation, job: Raw) -> None:
    """Wait until the only trial runs under its name in another Job."""

    def runs_again() -> bool:
        uids = {each["metadata"]["uid"] for each in installed.jobs}
        return len(uids) == 1 and uids != {job["metadata"]["uid"]}

    await installed.until(runs_again)
    await installed.until(lambda: len(installed.trials) == 1)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)


@on_katibs_cluster(FOREVER)
async def test_a_trial_whose_object_is_deleted_without_a_controller_runs_again(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(maxTrialCount=1, parallelTrialCount=1))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    (trial,), (job,) = installed.trials, installed.jobs
    await installed.stop()
    installed.api.remove("trials", NAMESPACE, trial["metadata"]["name"])
    installed.start()
    await until_run_again(installed, job)


@on_katibs_cluster(FOREVER)
async def test_a_trial_whose_object_is_deleted_while_the_watch_is_interrupted_runs_again(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(maxTrialCount=1, parallelTrialCount=1))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    (trial,), (job,) = installed.trials, installed.jobs
    installed.api.drop_connections()
    installed.api.remove("trials", NAMESPACE, trial["metadata"]["name"])
    await until_run_again(installed, job)


@on_katibs_cluster(FOREVER)
async def test_a_trial_whose_object_is_deleted_as_its_status_is_written_runs_again(
    installed: KatibInstallation,
) -> None:
    jobs: list[Raw] = []

    def delete_at_first(method: str, path: str) -> int:
        if method == "PATCH" and path.endswith("/status") and "/trials/" in path and not jobs:
            jobs.extend(installed.jobs)
            installed.api.remove("trials", NAMESPACE, path.split("/")[-2])
        return 0

    installed.api.fails = delete_at_first
    installed.apply(katib(maxTrialCount=1, parallelTrialCount=1))
    await installed.until(lambda: len(jobs) == 1)
    await until_run_again(installed, jobs[0])


async def begin_with_one_ended(installed: KatibInstallation) -> None:
    """Begin two trials, one after the other, and wait until the second runs, for ever."""
    installed.api.kubelet.play(
        lambda job: FOREVER if job["metadata"]["name"].endswith("-1") else SCORED
    )
    installed.apply(katib(maxTrialCount=2, parallelTrialCount=1))
    await installed.until(lambda: installed.whole().get("trialsSucceeded") == 1)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)


@on_katibs_cluster()
async def test_the_result_of_a_trial_whose_object_is_deleted_stays(
    installed: KatibInstallation,
) -> None:
    await begin_with_one_ended(installed)
    first = installed.trials[0]["metadata"]
    installed.api.remove("trials", NAMESPACE, first["name"])
    await installed.until(lambda: len(installed.trials) == 2)
    again = installed.trials[0]
    assert again["metadata"]["name"] == first["name"]
    await installed.until(
        lambda: (installed.trials[0].get("status") or {}).get("observation") is not None
    )
    assert all(first["name"] not in job["metadata"]["name"] for job in installed.jobs)


@on_katibs_cluster()
async def test_events_about_trials_and_the_experiment_have_a_first_time(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(maxTrialCount=1, parallelTrialCount=1))
    await installed.until_last("Succeeded")

    def told() -> set[tuple[str, str]]:
        return {
            (event["involvedObject"]["kind"], event["reason"])
            for event in installed.api.all("events", NAMESPACE)
            if event.get("firstTimestamp")
        }

    await installed.until(
        lambda: {("Trial", "TrialSucceeded"), ("Experiment", "Succeeded")} <= told()
    )


@on_katibs_cluster()
async def test_a_trial_costs_few_writes(installed: KatibInstallation) -> None:
    installed.apply(katib(maxTrialCount=10, parallelTrialCount=2))
    await installed.until_last("Succeeded")
    writes = Counter(
        (change.plural, "created" if change.before is None else "changed")
        for change in installed.api.changes
        if change.plural not in ("leases", "pods")
    )
    assert writes["trials", "created"] == 10
    # It runs, and it has ended; at most it waited before.
    assert writes["trials", "changed"] <= 30
    assert writes["events", "created"] <= 13


# What other programs and people do to the objects


@on_katibs_cluster(FOREVER)
async def test_defaults_and_finalizer_are_one_change(installed: KatibInstallation) -> None:
    installed.apply(katib())
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)

    def about(found: Raw) -> tuple[object, object]:
        return found["spec"], found["metadata"].get("finalizers")

    changes = [each for each in installed.api.changes if each.plural == installed.plural]
    versions = [about(each.after) for each in changes if each.after is not None]
    written = [after for before, after in pairwise(versions) if before != after]
    assert written == [(installed.spec(), [FINALIZER])]
    assert installed.spec()["resumePolicy"] == "Never"


def annotate(installed: KatibInstallation, value: str) -> None:
    def change(resource: Raw) -> None:
        resource["metadata"].setdefault("annotations", {})["tuner.dev/controlled"] = value

    installed.api.change(installed.plural, NAMESPACE, "tiny", change)


@on_katibs_cluster(FOREVER)
async def test_what_is_left_to_another_controller_stops_and_keeps_its_results(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib())
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    annotate(installed, "false")
    await installed.until(lambda: not installed.jobs)

    def finalizers() -> list[str]:
        found = installed.api.get(installed.plural, NAMESPACE, "tiny")
        return list(found["metadata"].get("finalizers") or ())

    await installed.until(lambda: not finalizers())
    installed.edit("tiny", parallelTrialCount=2)
    before = installed.whole()
    annotate(installed, "True")
    await installed.until(lambda: installed.whole().get("trialsRunning") == 2)
    assert before["trials"] == 3
    # The search went on where it was.
    assert len(installed.trials) == 3


BROKEN_STATUSES: dict[str, object] = {
    "removed": {},
    "without ours": {"conditions": [{"type": "Succeeded", "status": "True"}]},
    "of wrong types": {
        "conditions": ["Succeeded", {"type": 3}],
        "trials": "many",
        "tuner": {"observedGeneration": "x", "conditions": {}, "state": 7, "best": [], "trials": 3},
    },
    "ours a text": {"tuner": "gone"},
}


@pytest.mark.parametrize("what", BROKEN_STATUSES)
def test_a_status_that_somebody_edits_is_written_again(what: str, tmp_path: Path) -> None:
    @on_katibs_cluster(FOREVER)
    async def claim(installed: KatibInstallation) -> None:
        installed.apply(katib())
        await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
        jobs = {job["metadata"]["uid"] for job in installed.jobs}
        broken = copy.deepcopy(BROKEN_STATUSES[what])
        installed.api.change(
            installed.plural, NAMESPACE, "tiny", lambda each: each.update(status=broken)
        )
        await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
        await installed.until_last("Running")
        assert {job["metadata"]["uid"] for job in installed.jobs} == jobs

    claim(tmp_path)


@on_katibs_cluster()
async def test_the_status_of_a_trial_that_somebody_edits_is_written_again(
    installed: KatibInstallation,
) -> None:
    await begin_with_one_ended(installed)

    def last() -> list[object]:
        return [each["status"]["conditions"][-1:] for each in installed.trials]

    types = ["Succeeded", "Running"]
    await installed.until(lambda: [each[0]["type"] for each in last()] == types)
    for trial in installed.trials:
        for conditions in ([], [{"type": 5}], [{"type": "Failed", "status": "True"}]):
            installed.api.change(
                "trials",
                NAMESPACE,
                trial["metadata"]["name"],
                lambda each, broken=conditions: each["status"].update(conditions=broken),
            )
            await installed.until(
                lambda: all(last()) and [each[0]["type"] for each in last()] == types
            )
    assert all("observation" in each["status"] for each in installed.trials[:1])


# Katib's own definitions accept all of these.
PAST_THE_SCHEMA: dict[str, object] = {
    "no spec": None,
    "a text": "search",
    "an empty mapping": {},
    "a list of parameters that are none": {"parameters": [3, None, {"name": []}, "x"]},
    "texts where mappings belong": {
        "objective": "loss",
        "algorithm": "random",
        "trialTemplate": "job",
        "metricsCollectorSpec": "StdOut",
        "earlyStopping": 3,
        "nasConfig": [],
        "parallelTrialCount": "three",
        "maxTrialCount": {"is": 3},
    },
    "strategies that are none": {
        "objective": {
            "type": "minimize",
            "objectiveMetricName": ["loss"],
            "additionalMetricNames": [[], {}],
            "metricStrategies": [{"name": {}}, 3],
        }
    },
    "a collector that is none": {
        "metricsCollectorSpec": {"collector": {"kind": "File"}, "source": "here"},
        "trialTemplate": {"trialSpec": {"kind": "Job", "metadata": 3, "spec": []}},
    },
}


@pytest.mark.parametrize("what", PAST_THE_SCHEMA)
def test_an_object_past_the_schema_fails_and_hinders_no_other(what: str, tmp_path: Path) -> None:
    @on_katibs_cluster()
    async def claim(installed: KatibInstallation) -> None:
        odd = {**katib("odd"), "spec": copy.deepcopy(PAST_THE_SCHEMA[what])}
        installed.apply(odd)
        installed.apply(katib())
        await installed.until_last("Succeeded")
        await installed.until_last("Failed", "odd")
        assert installed.whole("odd")["conditions"][-1]["reason"] == "ExperimentInvalid"

    claim(tmp_path)


@on_katibs_cluster(FOREVER)
async def test_a_spec_broken_while_it_runs_keeps_what_runs(installed: KatibInstallation) -> None:
    installed.apply(katib(parallelTrialCount=1))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    installed.edit("tiny", objective="loss", trialTemplate=None, algorithm=[])

    def accepted() -> Raw:
        conditions = installed.status().get("conditions") or ()
        return next((each for each in conditions if each["type"] == "Accepted"), {})

    await installed.until(lambda: accepted().get("status") == "False")
    await installed.stop()
    installed.start()
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    assert len(installed.jobs) == len(installed.trials) == 1


# The command line


@asynccontextmanager
async def terminal_of(installed: KatibInstallation) -> AsyncIterator[Terminal]:
    await installed.until(lambda: installed.serves)
    yield Terminal(installed)


NAME = "tiny.kubeflow.org"


@on_katibs_cluster(FOREVER)
async def test_the_command_line_stops_resumes_changes_and_deletes_one_of_katibs(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib())
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    async with terminal_of(installed) as terminal:
        listed = await terminal.tuner("get", "experiments")
        assert NAME in listed.out
        assert "running" in (await terminal.tuner("describe", NAME)).out
        stopped = await terminal.tuner("stop", NAME)
        assert f"{NAME}: suspended" in stopped.err
        assert not installed.jobs
        assert ("Running", "False") in installed.types()
        resumed = await terminal.tuner("resume", NAME)
        assert f"{NAME}: running" in resumed.err
        extended = await terminal.tuner("extend", NAME, "--trials", "+2")
        assert "spec.maxTrialCount: 3 -> 5" in extended.err
        assert installed.spec()["maxTrialCount"] == 5
        changed = await terminal.tuner("set", NAME, "spec.parallelTrialCount=4")
        assert "spec.parallelTrialCount: 3 -> 4" in changed.err
        await installed.until(lambda: installed.whole().get("trialsRunning") == 4)
        refused = await terminal.tuner("set", NAME, "spec.algorithm.algorithmName=tpe")
        assert "would make" in refused.err
        assert installed.spec()["algorithm"] == {"algorithmName": "random"}
        deleted = await terminal.tuner("delete", NAME, "--yes")
        assert f"{NAME} is deleted" in deleted.err
    assert installed.api.find(installed.plural, NAMESPACE, "tiny") is None
    assert not installed.jobs


@on_katibs_cluster(FOREVER)
async def test_resume_ends_a_suspension_by_the_number_of_parallel_trials(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(parallelTrialCount=0))
    await installed.until(lambda: installed.status().get("state") == "suspended")
    async with terminal_of(installed) as terminal:
        assert "running" in (await terminal.tuner("resume", NAME)).err
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    assert installed.spec()["parallelTrialCount"] == 3


@on_katibs_cluster(FOREVER)
async def test_resume_goes_back_to_the_number_of_parallel_trials_before(
    installed: KatibInstallation,
) -> None:
    installed.apply(katib(parallelTrialCount=2))
    await installed.until(lambda: installed.whole().get("trialsRunning") == 2)
    installed.edit("tiny", parallelTrialCount=0)
    await installed.until(lambda: installed.status().get("state") == "suspended")
    await installed.stop()
    installed.start()
    async with terminal_of(installed) as terminal:
        assert "running" in (await terminal.tuner("resume", NAME)).err
    await installed.until(lambda: installed.whole().get("trialsRunning") == 2)
    assert installed.spec()["parallelTrialCount"] == 2


@on_katibs_cluster(FOREVER)
async def test_the_command_line_names_what_is_not_there(installed: KatibInstallation) -> None:
    async with terminal_of(installed) as terminal:
        missing = await terminal.tuner("stop", "none.kubeflow.org")
    assert "there is no experiment none.kubeflow.org" in missing.err


# Without a limit of trials, as `tune()` of Katib's SDK creates it by default


def without_limit(**spec: object) -> Raw:
    resource = katib(**spec)
    del resource["spec"]["maxTrialCount"]
    return resource


@on_katibs_cluster()
async def test_a_search_without_a_limit_ends_at_its_goal(installed: KatibInstallation) -> None:
    installed.api.kubelet.play(
        lambda job: SCORED if job["metadata"]["name"].endswith("-4") else LOW
    )
    resource = without_limit()
    resource["spec"]["objective"]["goal"] = 0.5
    installed.apply(resource)
    await installed.until_last("Succeeded")
    assert installed.whole()["conditions"][-1]["reason"] == "ExperimentGoalReached"
    assert installed.whole()["trials"] >= 5


@on_katibs_cluster(Script(exit_code=1))
async def test_a_search_without_a_limit_fails_at_its_limit_of_failures(
    installed: KatibInstallation,
) -> None:
    installed.apply(without_limit(maxFailedTrialCount=5))
    await installed.until_last("Failed")
    assert "max failed count" in last_message(installed)


@on_katibs_cluster()
async def test_a_grid_without_a_limit_ends_at_its_points(installed: KatibInstallation) -> None:
    resource = without_limit(algorithm={"algorithmName": "grid"})
    space = {"min": "1", "max": "5"}
    resource["spec"]["parameters"][0] |= {"parameterType": "int", "feasibleSpace": space}
    installed.apply(resource)
    await installed.until_last("Succeeded")
    assert installed.whole()["conditions"][-1]["reason"] == "ExperimentSuggestionEndReached"
    assert installed.whole()["trialsSucceeded"] == 5


@on_katibs_cluster()
async def test_a_search_without_a_limit_is_listed_stopped_resumed_and_given_one(
    installed: KatibInstallation,
) -> None:
    installed.apply(without_limit())
    await installed.until(lambda: installed.whole().get("trialsSucceeded", 0) > 3)
    async with terminal_of(installed) as terminal:
        assert "no limit" in (await terminal.tuner("describe", NAME)).out
        assert NAME in (await terminal.tuner("get", "experiments")).out
        more = await terminal.tuner("extend", NAME, "--trials", "+2")
        assert "no limit of trials to raise; write a total" in more.err
        assert f"{NAME}: suspended" in (await terminal.tuner("stop", NAME)).err
        ended = installed.whole()["trialsSucceeded"]
        assert f"{NAME}: running" in (await terminal.tuner("resume", NAME)).err
        await installed.until(lambda: installed.whole()["trialsSucceeded"] > ended)
        await terminal.tuner("set", NAME, f"spec.maxTrialCount={ended + 20}")
    await installed.until_last("Succeeded")
    assert installed.whole()["trialsSucceeded"] >= ended + 20


# Templates in ConfigMaps


def with_config_map(namespace: str = NAMESPACE, **spec: object) -> tuple[Raw, Raw]:
    """Return an Experiment whose template is in a ConfigMap, and the ConfigMap."""
    resource = katib(**spec)
    template = resource["spec"]["trialTemplate"]
    job = template.pop("trialSpec")
    template["configMap"] = {
        "configMapName": "templates",
        "configMapNamespace": namespace,
        "templatePath": "job.yaml",
    }
    template["successCondition"] = 'status.conditions.#(type=="Complete")#|#(status=="True")#'
    template["failureCondition"] = 'status.conditions.#(type=="Failed")#|#(status=="True")#'
    about = {"name": "templates", "namespace": namespace}
    return resource, {"metadata": about, "data": {"job.yaml": yaml.safe_dump(job)}}


@on_katibs_cluster()
async def test_a_template_of_a_config_map_runs(installed: KatibInstallation) -> None:
    resource, config_map = with_config_map()
    installed.api.put("configmaps", config_map)
    installed.apply(resource)
    await installed.until_last("Succeeded")
    assert installed.whole()["trialsSucceeded"] == 3


@on_katibs_cluster()
async def test_a_template_of_another_namespace_is_read_if_it_is_for_everybody(
    installed: KatibInstallation,
) -> None:
    resource, config_map = with_config_map("kubeflow")
    installed.api.put("configmaps", config_map)
    installed.apply(resource)
    await installed.until_last("Failed")
    assert "lacks the label katib.kubeflow.org/component" in last_message(installed)
    assert not installed.jobs
    config_map["metadata"]["labels"] = {"katib.kubeflow.org/component": "trial-templates"}
    installed.api.put("configmaps", config_map)
    installed.edit("tiny", maxTrialCount=2, parallelTrialCount=2)
    await installed.until_last("Succeeded")


@on_katibs_cluster()
async def test_a_template_that_is_missing_is_named(installed: KatibInstallation) -> None:
    resource, _ = with_config_map()
    installed.apply(resource)
    await installed.until_last("Failed")
    message = last_message(installed)
    assert "spec.trialTemplate.configMap: " in message
    assert '"templates" not found' in message


@on_katibs_cluster(FOREVER)
async def test_a_template_that_is_deleted_later_does_not_matter(
    installed: KatibInstallation,
) -> None:
    resource, config_map = with_config_map()
    installed.api.put("configmaps", config_map)
    installed.apply(resource)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 3)
    jobs = {job["metadata"]["uid"] for job in installed.jobs}
    installed.api.remove("configmaps", NAMESPACE, "templates")
    await installed.stop()
    installed.start()
    await installed.until(lambda: installed.status().get("state") == "running")
    installed.edit("tiny", maxFailedTrialCount=2)

    def refusal() -> str:
        return str(installed.condition("Accepted").get("message", ""))

    # The same happens to an edit in Katib, whose webhook refuses it.
    await installed.until(lambda: '"templates" not found' in refusal())
    assert {job["metadata"]["uid"] for job in installed.jobs} == jobs


def last_message(installed: KatibInstallation) -> str:
    return str(installed.whole()["conditions"][-1]["message"])


# Queues


@on_katibs_cluster(FOREVER)
async def test_the_queue_of_a_namespace_is_that_of_each_template(
    installed: KatibInstallation,
) -> None:
    label_namespace(installed, "team")
    installed.apply(katib())
    resource, config_map = with_config_map()
    installed.api.put("configmaps", config_map)
    resource["metadata"]["name"] = "mapped"
    installed.apply(resource)
    own = katib("own")
    about = {"labels": {"kueue.x-k8s.io/queue-name": "urgent"}}
    own["spec"]["trialTemplate"]["trialSpec"]["metadata"] = about
    installed.apply(own)

    def queues() -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for job in installed.jobs:
            labels = job["metadata"]["labels"]
            names = found.setdefault(job["metadata"]["ownerReferences"][0]["name"], set())
            names.add(labels.get("kueue.x-k8s.io/queue-name", ""))
        return found

    await installed.until(lambda: len(queues()) == 3)
    assert queues() == {"tiny": {"team"}, "mapped": {"team"}, "own": {"urgent"}}


# Kinds


TRAIN_JOB = {"apiVersion": "trainer.kubeflow.org/v1alpha1", "kind": "TrainJob"}


def of_kind(job: Raw, words: str = "--x=${trialParameters.x}") -> Raw:
    resource = katib()
    template = resource["spec"]["trialTemplate"]
    trainer = {"image": "tiny:1", "command": ["train", words]}
    spec = {"runtimeRef": {"name": "torch"}, "trainer": trainer}
    template["trialSpec"] = {**job, "spec": spec}
    return resource


@on_katibs_cluster()
async def test_a_kind_that_is_not_allowed_is_named_with_the_value_that_allows_it(
    installed: KatibInstallation,
) -> None:
    installed.apply(of_kind(TRAIN_JOB))
    await installed.until_last("Failed")
    assert "controller.kinds" in last_message(installed)


@on_katibs_cluster()
async def test_a_kind_that_is_not_installed_fails_the_experiment(
    installed: KatibInstallation,
) -> None:
    await installed.stop()
    installed.policy = Policy(kinds=frozenset({"trainer.kubeflow.org/TrainJob"}))
    installed.start()
    installed.apply(of_kind(TRAIN_JOB))
    installed.apply(katib("other"))
    await installed.until_last("Succeeded", "other")
    await installed.until_last("Failed")
    assert "TrainJob" in last_message(installed)
    assert not installed.trials or all(
        "tiny" not in t["metadata"]["name"] for t in installed.trials
    )


def with_retain(*, retain: bool) -> Raw:
    resource = katib()
    resource["spec"]["trialTemplate"]["retain"] = retain
    return resource


@on_katibs_cluster()
async def test_retained_jobs_stay_as_long_as_their_trials(installed: KatibInstallation) -> None:
    installed.apply(with_retain(retain=True))
    await installed.until_last("Succeeded")
    names = sorted(each["metadata"]["name"] for each in installed.trials)
    assert sorted(each["metadata"]["name"] for each in installed.jobs) == names
    await installed.stop()
    installed.start()
    installed.edit("tiny", maxTrialCount=4)
    await installed.until(lambda: installed.whole().get("trialsSucceeded") == 4)
    await installed.until_last("Succeeded")
    assert {*names} < {each["metadata"]["name"] for each in installed.jobs}
    assert len(installed.jobs) == 4


@on_katibs_cluster()
async def test_other_jobs_go_with_the_end_of_their_trials(installed: KatibInstallation) -> None:
    installed.apply(with_retain(retain=False))
    await installed.until_last("Succeeded")
    await installed.until(lambda: installed.jobs == [])


@on_katibs_cluster(FOREVER)
async def test_a_trial_has_the_name_of_its_retained_job_also_when_it_runs_again(
    installed: KatibInstallation,
) -> None:
    resource = with_retain(retain=True)
    resource["spec"] |= {"maxTrialCount": 1, "parallelTrialCount": 1}
    installed.apply(resource)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    (job,) = installed.jobs
    name = job["metadata"]["name"]
    installed.api.remove("jobs", NAMESPACE, name)

    def shown_as(again: str) -> bool:
        both = installed.trials, installed.jobs
        found = [[each["metadata"]["name"] for each in listed] for listed in both]
        return found == [[again], [again]] and installed.whole().get("runningTrialList") == [again]

    await installed.until(lambda: shown_as(f"{name}-r2"))
    label = "katib.kubeflow.org/trial"
    assert installed.api.labelled("pods", NAMESPACE, label, f"{name}-r2")
    # The next controller knows it by that name.
    await installed.stop()
    installed.api.remove("trials", NAMESPACE, f"{name}-r2")
    installed.start()
    await installed.until(lambda: shown_as(f"{name}-r3"))


@on_katibs_cluster(Script(lines=("score=0.5",), forever=True, ignores_sigterm=True))
async def test_a_retained_trial_is_not_visible_while_only_the_pods_of_its_job_are_left(
    installed: KatibInstallation,
) -> None:
    resource = with_retain(retain=True)
    resource["spec"] |= {"maxTrialCount": 1, "parallelTrialCount": 1}
    template = resource["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = 3600
    installed.apply(resource)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    name = installed.jobs[0]["metadata"]["name"]
    installed.api.kubelet.delete(("jobs", NAMESPACE, name), grace_s=None, policy="Background")
    await installed.until(lambda: installed.trials == [])
    (pod,) = installed.api.all("pods", NAMESPACE)
    assert installed.jobs == []
    installed.api.remove("pods", NAMESPACE, pod["metadata"]["name"])
    await installed.until(
        lambda: [each["metadata"]["name"] for each in installed.trials] == [f"{name}-r2"]
    )
    assert [each["metadata"]["name"] for each in installed.jobs] == [f"{name}-r2"]


@on_katibs_cluster(Script(lines=("score=0.5",), forever=True, ignores_sigterm=True))
async def test_a_trial_without_its_job_does_not_wait_for_the_next_look_at_all_experiments(
    installed: KatibInstallation,
) -> None:
    resource = with_retain(retain=True)
    resource["spec"] |= {"maxTrialCount": 1, "parallelTrialCount": 1}
    template = resource["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]
    template["spec"]["terminationGracePeriodSeconds"] = 3600
    installed.apply(resource)
    await installed.until(lambda: installed.whole().get("trialsRunning") == 1)
    looks, look = [0], Manager._write_statuses

    def counted(manager: Manager) -> None:
        looks[0] += 1
        look(manager)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(manager_module, "STATUS_S", 3600.0)
        patch.setattr(Manager, "_write_statuses", counted)
        await installed.until(lambda: looks == [1])
        (job,) = installed.jobs
        installed.api.kubelet.delete(
            ("jobs", NAMESPACE, job["metadata"]["name"]), grace_s=None, policy="Background"
        )
        await installed.until(lambda: installed.trials == [])
        assert looks == [1]


# PyTorchJobs, as `tune()` of Katib's SDK creates them

TUNED = json.loads((FIXTURES / "katib_sdk" / "tuned.json").read_text(encoding="utf-8"))


async def a_pytorch_job(installed: KatibInstallation, name: str) -> tuple[Raw, PyTorchOperator]:
    """Return the first PyTorchJob of an Experiment that the SDK has created."""
    await installed.stop()
    operator = PyTorchOperator(installed.api)
    installed.policy = Policy(kinds=frozenset({"kubeflow.org/PyTorchJob"}))
    installed.start()
    made = copy.deepcopy(TUNED[name])
    made["metadata"]["generation"] = 1
    installed.apply(made)
    await installed.until(lambda: installed.api.all(operator.plural, NAMESPACE))
    return installed.api.all(operator.plural, NAMESPACE)[0], operator


@on_katibs_cluster()
async def test_tune_with_a_model_of_hugging_face_reads_the_master(
    installed: KatibInstallation,
) -> None:
    job, operator = await a_pytorch_job(installed, "llm")
    pod = job["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    words = pod["containers"][0]["args"]
    # Katib's shell takes the quotation marks away, and the program reads JSON.
    lora, training = (json.loads(words[words.index(f"--{name}") + 1]) for name in ARGUMENTS)
    assert 8 <= int(lora["r"]) <= 32
    assert 1e-5 <= float(training["learning_rate"]) <= 5e-5
    assert pod["initContainers"][0]["name"] == "storage-initializer"
    master, worker = operator.make_pods(job["metadata"]["name"])
    installed.api.kubelet.print(worker, "{'train_loss': 7}")
    installed.api.kubelet.print(master, "{'train_loss': 0.846, 'epoch': 1.0}")
    for each in (master, worker):
        installed.api.kubelet.end(each)
    operator.succeed(job["metadata"]["name"])
    await installed.until_last("Succeeded", "llm")
    best = installed.whole("llm")["currentOptimalTrial"]
    assert best["observation"]["metrics"][0]["latest"] == "0.846"


ARGUMENTS = ("lora_config", "training_parameters")


@on_katibs_cluster()
async def test_a_failed_pytorch_job_of_tune_is_a_failed_trial(
    installed: KatibInstallation,
) -> None:
    job, operator = await a_pytorch_job(installed, "torch")
    master, worker = operator.make_pods(job["metadata"]["name"])
    for each in (master, worker):
        installed.api.kubelet.end(each, exit_code=1)
    operator.fail(job["metadata"]["name"])
    await installed.until(lambda: installed.whole("torch").get("trialsFailed") == 1)
    # Without a limit of trials or of failures it goes on.
    await installed.until_last("Running", "torch")


@on_katibs_cluster(Script(lines=("score=0.5",), seconds=1.2))
async def test_the_platforms_prices_hold_for_katibs_experiments(
    installed: KatibInstallation,
) -> None:
    await installed.stop()
    installed.policy = Policy(prices={"cpu": 1800})
    installed.start()
    resource = katib(parallelTrialCount=1, maxTrialCount=1)
    job = resource["spec"]["trialTemplate"]["trialSpec"]
    container = job["spec"]["template"]["spec"]["containers"][0]
    container["resources"] = {"requests": {"cpu": "2"}, "limits": {"cpu": "2"}}
    installed.apply(resource)
    await installed.until_last("Succeeded")
    assert installed.status()["cost"] >= 1
