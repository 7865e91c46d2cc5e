"""`helm install`, `upgrade`, `rollback` and `uninstall`, on a real API server with fake nodes.

The pod of the Deployment is a fake one; a process beside the cluster has its rights.
"""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cluster.api import BATCH, CORE, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import (
    CHART,
    DEFINITION,
    EXPERIMENTS,
    KUBEFLOW,
    ROOT,
    SYSTEM,
    Installed,
    experiment,
    helm,
    rendered,
)
from tests.cluster.waiting import eventually

FOREVER = {"KWOK_RUN": "600s"}
KATIB = "experiments.kubeflow.org"


class Release(Installed):
    """The installation as helm makes it."""

    def install(self, *settings: str) -> None:
        # Other tests have created the same objects without helm.
        self.helm("install", "tuner", str(CHART), "--take-ownership", *_flags(settings))
        self.kubectl.established(DEFINITION)

    def helm(self, *words: str) -> str:
        return helm(self.cluster.kubeconfig(), *words)

    def has_field(self, name: str) -> bool:
        definition = json.loads(self.kubectl("get", "crd", DEFINITION, "-o", "json"))
        (version,) = definition["spec"]["versions"]
        return name in version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]

    def jobs(self, namespace: str) -> dict[str, str]:
        """Return the uids of the Jobs of a namespace by name."""
        found = self.cluster.api().items(f"{BATCH}/namespaces/{namespace}/jobs")
        return {job["metadata"]["name"]: job["metadata"]["uid"] for job in found}

    def pods(self, namespace: str) -> set[str]:
        found = self.cluster.api().items(f"{CORE}/namespaces/{namespace}/pods")
        return {pod["metadata"]["uid"] for pod in found}

    def replace(self, process: subprocess.Popen[str], *flags: str, name: str = "next") -> None:
        """End a controller as its pod would end, and start another one in its place."""
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
        self.start(*flags, name=name)

    def replica_flags(self, storage: str, number: int) -> tuple[str, ...]:
        """Return the flags of one of several replicas over a database."""
        return (f"--storage={storage}", f"--state-dir={self.state}-{number}")


def _flags(settings: tuple[str, ...]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture
def release(level_b: ControlPlane, tmp_path: Path) -> Iterator[Release]:
    made = Release(level_b, tmp_path)
    made.install()
    yield made
    made.close()
    made.helm("uninstall", "tuner", "--ignore-not-found")


def newer_chart(folder: Path) -> Path:
    """Return a copy of the chart whose definition has one more key of spec."""
    chart = folder / "chart"
    shutil.copytree(CHART, chart)
    file = chart / "files" / "experiments.tuner.dev.yaml"
    header, text = file.read_text(encoding="utf-8").split("\n", 1)
    definition = json.loads(text)
    root = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    root["properties"]["spec"]["properties"]["later"] = {"type": "string"}
    file.write_text(f"{header}\n{json.dumps(definition)}\n", encoding="utf-8")
    return chart


def test_an_upgrade_and_a_rollback_change_the_definition_and_interrupt_no_trial(
    release: Release, namespace: str, tmp_path: Path
) -> None:
    process = release.start()
    release.kubectl.apply([experiment(namespace, parallelism=3, env=FOREVER)])
    release.until(namespace, lambda status: status.get("running") == 3)
    before = release.jobs(namespace)
    assert not release.has_field("later")
    release.helm("upgrade", "tuner", str(newer_chart(tmp_path)))
    assert release.has_field("later")
    release.replace(process)
    release.helm("rollback", "tuner", "1")
    assert not release.has_field("later")
    release.kubectl(
        *("patch", "texp", "tiny", "-n", namespace, "--type=merge"),
        *("-p", '{"spec": {"parallelism": 4}}'),
    )
    release.until(namespace, lambda status: status.get("running") == 4)
    assert before.items() < release.jobs(namespace).items()


def test_a_definition_that_the_chart_no_longer_installs_stays(
    release: Release, namespace: str
) -> None:
    release.kubectl.apply([experiment(namespace, suspend=True)])
    release.helm("upgrade", "tuner", str(CHART), "--set", "crds.install=false")
    assert "tiny" in release.kubectl("get", "texp", "-n", namespace)
    release.helm("upgrade", "tuner", str(CHART), "--set", "crds.install=true", "--take-ownership")
    assert "tiny" in release.kubectl("get", "texp", "-n", namespace)


def fifty_run(release: Release, namespace: str) -> list[str]:
    """Return the names of 50 experiments, each of which has a trial that runs."""
    names = [f"e{n}" for n in range(50)]
    experiments = [experiment(namespace, name, env=FOREVER) for name in names]
    for each in experiments:
        each["spec"]["trial"]["resources"] = {"cpu": 0.1}
    release.kubectl.apply(experiments)
    eventually(lambda: running(release, namespace) == len(names), within_s=180)
    return names


def running(release: Release, namespace: str) -> int:
    """Return how many trials run by the statuses."""
    items = release.cluster.api().items(EXPERIMENTS.format(namespace=namespace))
    return sum((item.get("status") or {}).get("running", 0) for item in items)


def upgrade(
    release: Release, namespace: str, chart: Path, replace_all: Callable[[], object]
) -> None:
    """Upgrade while 50 experiments run, and check that no trial was interrupted."""
    names = fifty_run(release, namespace)
    jobs, pods = release.jobs(namespace), release.pods(namespace)
    release.helm("upgrade", "tuner", str(chart))
    replace_all()
    for name in names:
        release.kubectl(
            *("patch", "texp", name, "-n", namespace, "--type=merge"),
            *("-p", '{"spec": {"parallelism": 2}}'),
        )
    # The new controller has adopted every trial: it adds one to each.
    eventually(lambda: running(release, namespace) == 2 * len(names), within_s=240)
    assert jobs.items() < release.jobs(namespace).items()
    assert pods < release.pods(namespace)
    release.kubectl("delete", "texp", "--all", "-n", namespace, "--timeout=400s")
    assert release.jobs(namespace) == {}


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_upgrade_with_fifty_running_experiments_interrupts_no_trial(
    release: Release, namespace: str, tmp_path: Path
) -> None:
    process = release.start()
    upgrade(release, namespace, newer_chart(tmp_path), lambda: release.replace(process))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_an_upgrade_of_two_replicas_with_fifty_running_experiments_interrupts_no_trial(
    release: Release, namespace: str, tmp_path: Path, postgres_url: str
) -> None:
    flags = [release.replica_flags(postgres_url, number) for number in range(2)]
    before = [release.start(*flags[number], name=f"old-{number}") for number in range(2)]

    def replace_all() -> None:
        for number, process in enumerate(before):
            release.replace(process, *flags[number], name=f"new-{number}")

    upgrade(release, namespace, newer_chart(tmp_path), replace_all)


def test_uninstalling_after_the_experiments_leaves_nothing_but_what_is_kept(
    release: Release, namespace: str
) -> None:
    release.start()
    release.kubectl.apply([experiment(namespace, parallelism=2, env=FOREVER)])
    release.until(namespace, lambda status: status.get("running") == 2)
    release.kubectl("delete", "texp", "--all", "--all-namespaces", "--timeout=120s")
    assert release.jobs(namespace) == {}
    said = release.helm("uninstall", "tuner")
    kept = {each["metadata"]["name"] for each in rendered() if each["kind"].startswith("Custom")}
    assert all(f"[CustomResourceDefinition] {each}" in said for each in kept)
    page = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
    (last,) = (line.split() for line in page.splitlines() if line.startswith("kubectl delete crd"))
    assert set(last[3:]) == kept
    kinds = "deployments,services,networkpolicies,poddisruptionbudgets,roles,rolebindings"
    left = release.kubectl("get", f"{kinds},configmaps", "-n", SYSTEM, "-o", "name").split()
    assert left == ["configmap/kube-root-ca.crt"]
    # Those of other tests are left alone.
    roles = release.kubectl("get", "clusterroles,clusterrolebindings", "-o", "name").split()
    kinds_of_roles = ("ClusterRole", "ClusterRoleBinding")
    ours = {each["metadata"]["name"] for each in rendered() if each["kind"] in kinds_of_roles}
    assert ours.isdisjoint(role.partition("/")[2] for role in roles)
    assert "tuner-controller" in release.kubectl("get", "pvc", "-n", SYSTEM, "-o", "name")


def test_what_was_deleted_after_the_controller_can_be_let_go(
    release: Release, namespace: str
) -> None:
    process = release.start()
    release.kubectl.apply([experiment(namespace, parallelism=2, env=FOREVER)])
    release.until(namespace, lambda status: status.get("running") == 2)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    release.helm("uninstall", "tuner")
    release.kubectl("delete", "texp", "tiny", "-n", namespace, "--wait=false")
    assert _finalizers(release.object(namespace, "tiny")) == ["tuner.dev/stop"]
    release.kubectl(
        *("patch", "texp", "tiny", "-n", namespace, "--type=merge"),
        *("-p", '{"metadata":{"finalizers":null}}'),
    )
    release.kubectl("wait", "--for=delete", "texp/tiny", "-n", namespace, "--timeout=30s")
    eventually(lambda: release.jobs(namespace) == {}, within_s=60)


def _finalizers(resource: Object) -> list[str]:
    return list(resource["metadata"].get("finalizers") or [])


def katib_experiment(namespace: str, name: str, annotations: dict[str, str]) -> Object:
    document: Object = yaml.safe_load((ROOT / "examples/katib/random.yaml").read_text("utf-8"))
    document["metadata"] = {"name": name, "namespace": namespace, "annotations": annotations}
    job = document["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]
    life = {"KWOK_LOG": "accuracy=0.5 loss=1", "KWOK_RUN": "300ms"}
    job["containers"][0]["env"] = [{"name": key, "value": value} for key, value in life.items()]
    return document


def has_succeeded(katibs: Object) -> bool:
    conditions = katibs.get("status", {}).get("conditions") or [{}]
    return bool(conditions[-1].get("type") == "Succeeded")


def define_katibs_resources(release: Release) -> None:
    definitions = [
        each
        for each in rendered("katib.enabled=true")
        if each["kind"] == "CustomResourceDefinition" and "kubeflow" in each["metadata"]["name"]
    ]
    release.kubectl.apply(definitions)
    for each in definitions:
        release.kubectl.established(each["metadata"]["name"])


def test_beside_katib_its_definitions_stay_and_only_annotated_experiments_run(
    release: Release, namespace: str
) -> None:
    define_katibs_resources(release)
    upgrade = ("upgrade", "tuner", str(CHART), "--take-ownership", "--set", "katib.enabled=true")
    with pytest.raises(AssertionError, match=r"set katib\.definitions=false to use it as it is"):
        release.helm(*upgrade)
    release.helm(*upgrade, "--set", "katib.definitions=false")
    deployed = release.kubectl("get", "deployment", "tuner-controller", "-n", SYSTEM, "-o", "json")
    (container,) = json.loads(deployed)["spec"]["template"]["spec"]["containers"]
    assert "--katib=annotated" in container["args"]
    release.start("--katib=annotated")
    release.kubectl.apply(
        [
            katib_experiment(namespace, "ours", {"tuner.dev/controlled": "true"}),
            katib_experiment(namespace, "theirs", {}),
        ]
    )
    path = f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/experiments"
    api = release.cluster.api()
    api.until(f"{path}/ours", has_succeeded, within_s=60)
    assert "status" not in api.get(f"{path}/theirs")
    release.kubectl("delete", KATIB, "--all", "-n", namespace, "--timeout=60s")


WEBHOOKS = ("ValidatingWebhookConfiguration", "MutatingWebhookConfiguration")


def katibs_own_objects() -> list[Object]:
    """Return what keeps others from running Experiments where Katib's manifests are applied."""
    rule = {"apiGroups": ["kubeflow.org"], "apiVersions": ["v1beta1"], "resources": ["experiments"]}
    hook = {
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": {"name": "katib-controller", "namespace": KUBEFLOW}},
        "rules": [{**rule, "operations": ["CREATE", "UPDATE"]}],
    }
    hooks: list[Object] = [
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": kind,
            "metadata": {"name": "katib.kubeflow.org"},
            "webhooks": [{"name": "experiment.katib.kubeflow.org", **hook}],
        }
        for kind in WEBHOOKS
    ]
    pod = {"containers": [{"name": "katib-controller", "image": "katib:1"}]}
    labels = {"katib.kubeflow.org/component": "controller"}
    controller: Object = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "katib-controller", "namespace": KUBEFLOW},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "katib-db-manager", "namespace": KUBEFLOW},
        "spec": {"ports": [{"port": 6789}], "selector": labels},
    }
    return [controller, service, *hooks]


def test_the_two_lines_of_the_documentation_switch_from_katib(
    release: Release, namespace: str
) -> None:
    text = (ROOT / "docs" / "katib.md").read_text(encoding="utf-8")
    block = text.partition("**Switch from Katib.**")[2].split("```")[1]
    stop, switch = (line.split() for line in block.strip().splitlines())
    switch = [str(CHART) if word == "deploy/chart" else word for word in switch]
    assert (stop[0], switch[0]) == ("kubectl", "helm")
    release.kubectl("delete", "service", "katib-db-manager", "-n", KUBEFLOW, "--ignore-not-found")
    define_katibs_resources(release)
    ours = katib_experiment(namespace, "ours", {})
    try:
        release.kubectl.apply(katibs_own_objects())
        eventually(lambda: "failed calling webhook" in refusal(release, ours), within_s=30)
        with pytest.raises(AssertionError, match=r"Remove both: kubectl delete validatingwebhook"):
            release.helm(*switch[1:], "--take-ownership")
        release.kubectl(*stop[1:])
    finally:
        for kind in WEBHOOKS:
            release.kubectl("delete", kind, "katib.kubeflow.org", "--ignore-not-found")
    release.helm(*switch[1:], "--take-ownership")
    release.start("--katib=all")
    eventually(lambda: not refusal(release, ours), within_s=30)
    path = f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/experiments/ours"
    release.cluster.api().until(path, has_succeeded, within_s=60)
    release.kubectl("delete", KATIB, "--all", "-n", namespace, "--timeout=60s")


def refusal(release: Release, document: Object) -> str:
    """Return what the API server says against applying an object; "" if it takes it."""
    try:
        release.kubectl.apply([document])
    except AssertionError as error:
        return str(error)
    return ""
