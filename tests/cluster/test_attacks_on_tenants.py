"""What one tenant tries against another, against the controller and against the platform.

The attacker and the victim have the built-in role `edit`, each in a namespace of their own; the
controller has the rights of the chart. One installation serves all tests, and the victim's
experiment runs throughout: after each test the victim's objects are the same, and the controller
lives. docs/cluster.md says what remains. tests/kube/test_attacks_in_the_cluster.py and
tests/unit/test_operator_policy.py have the attacks that are not about rights.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from suggest.v1 import suggest_pb2
from suggest.v1.suggest_pb2_grpc import SuggestServiceStub
from tests.cluster.api import BATCH, CORE, Api, Object, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import EXPERIMENTS, SYSTEM, Installed, experiment
from tests.cluster.objects import quota
from tests.cluster.waiting import eventually
from tests.ports import free_port
from tests.unit.tenant_templates import MAIN, POD, changed, job

RBAC = "/apis/rbac.authorization.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1"
# Seven minutes, because most of them wait until the victim's change is in force.
pytestmark = pytest.mark.soak
A, B = "attacker", "victim"
OF_A, OF_B = EXPERIMENTS.format(namespace=A), EXPERIMENTS.format(namespace=B)
IN_A, IN_B, IN_SYSTEM = (f"{CORE}/namespaces/{each}" for each in (A, B, SYSTEM))
UID, TRIAL, ATTEMPT = "tuner.dev/uid", "tuner.dev/trial", "tuner.dev/attempt"


@dataclass
class Arena:
    """The installation, and the API server as both tenants see it."""

    installed: Installed
    controller: subprocess.Popen[str]
    a: Api
    b: Api
    tokens: Mapping[str, str]
    http_port: int
    grpc_port: int

    def state_of_b(self) -> Object:
        """Return everything in the victim's namespace that an attack could have changed."""
        api = self.installed.cluster.api()
        paths = [f"{BATCH}/namespaces/{B}/jobs", OF_B]
        paths += [f"{IN_B}/{kind}" for kind in ("pods", "services", "configmaps", "secrets")]
        status = self.installed.status(B, "search")
        kept = {key: status[key] for key in ("state", "running", "trials")}
        return kept | {path: uids(api.items(path)) for path in paths}

    def serves_b(self) -> None:
        """Change the victim's experiment, and wait until the change is in force."""
        before = self.b.get(f"{OF_B}/search")["spec"].get("budget", {})["trials"]
        self.b.patch(f"{OF_B}/search", {"spec": {"budget": {"trials": before + 1}}})
        revised = self.installed.status(B, "search")["revision"] + 1
        done = f"/{before + 1}"
        self.installed.until(
            B, lambda now: now["revision"] >= revised and done in now["done"], name="search"
        )

    def apply(self, name: str, *, labels: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Create an experiment as the attacker; spec may have `env`, see `experiment`."""
        resource = experiment(A, name, **spec)
        resource["metadata"]["labels"] = dict(labels or {})
        self.a.post(OF_A, resource)

    def until(self, name: str, condition: Callable[[Object], object]) -> Object:
        return self.installed.until(A, condition, name=name)


def uids(objects: list[Object]) -> dict[str, str]:
    return {each["metadata"]["name"]: each["metadata"]["uid"] for each in objects}


def tenant(cluster: ControlPlane, namespace: str) -> str:
    """Create a namespace whose service account `person` has the role edit, and return its token."""
    api = cluster.api()
    api.post(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
    accounts = f"{CORE}/namespaces/{namespace}/serviceaccounts"
    api.until(f"{accounts}/default", bool)
    api.post(accounts, {"metadata": {"name": "person"}})
    subject = {"kind": "ServiceAccount", "name": "person", "namespace": namespace}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    binding = {"metadata": {"name": "person"}, "roleRef": role, "subjects": [subject]}
    api.post(f"{RBAC}/namespaces/{namespace}/rolebindings", binding)
    return cluster.service_account_token(namespace, "person")


def is_served(api: Api, path: str) -> bool:
    """Return whether the definition is in force, and the tenant's rights to it."""
    try:
        api.items(path)
    except RequestRefused:
        return False
    return True


@pytest.fixture(scope="module")
def arena(level_b: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Arena]:
    installed = Installed(level_b, tmp_path_factory.mktemp("attacked"))
    tokens = {each: tenant(level_b, each) for each in (A, B)}
    ports = free_port(), free_port()
    controller = installed.start(f"--http-port={ports[0]}", f"--grpc-port={ports[1]}")
    a, b = (level_b.api(token=tokens[each]) for each in (A, B))
    for api, path in ((a, OF_A), (b, OF_B)):
        eventually(lambda api=api, path=path: is_served(api, path))  # type: ignore[misc]
    b.post(OF_B, experiment(B, "search", parallelism=2, env={"KWOK_RUN": "3600s"}))
    installed.until(B, lambda status: status.get("running") == 2, name="search")
    yield Arena(installed, controller, a, b, tokens, *ports)
    for namespace in (A, B):
        path = EXPERIMENTS.format(namespace=namespace)
        for name in uids(level_b.api().items(path)):
            level_b.api().delete(f"{path}/{name}")
        eventually(lambda path=path: not level_b.api().items(path))  # type: ignore[misc]
        level_b.api().delete(f"{CORE}/namespaces/{namespace}")
    installed.close()


@pytest.fixture(autouse=True)
def b_is_untouched(arena: Arena) -> Iterator[None]:
    before = arena.state_of_b()
    yield
    assert arena.controller.poll() is None, arena.controller.stderr
    eventually(lambda: arena.state_of_b() == before, within_s=30, shows=arena.state_of_b)


# What the API server refuses the attacker


def event(namespace: str, of: str, **about: object) -> Object:
    involved = {"kind": "Experiment", "namespace": of, "name": "search", **about}
    return {
        "metadata": {"name": "forged", "namespace": namespace},
        "involvedObject": involved,
        "reason": "FailedCreate",
        "message": "forged by the attacker",
        "type": "Warning",
    }


def grant(role: str) -> Object:
    about = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
    subject = {"kind": "ServiceAccount", "name": "person", "namespace": A}
    return {"metadata": {"name": "more"}, "roleRef": about, "subjects": [subject]}


WHOLE: Object = {"spec": {}}
TOKEN = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/experiments.tuner.dev"
Request = Callable[[Api], object]
FORBIDDEN: dict[str, Request] = {
    "reads another tenant's experiment": lambda a: a.get(f"{OF_B}/search"),
    "reads the status of another tenant's experiment": lambda a: a.get(f"{OF_B}/search/status"),
    "lists another tenant's experiments": lambda a: a.items(OF_B),
    "watches another tenant's experiments": lambda a: list(a.watch(OF_B, seconds=1)),
    "lists the experiments of all namespaces": lambda a: a.items("/apis/tuner.dev/v1/experiments"),
    "creates an experiment for another tenant": lambda a: a.post(OF_B, experiment(B, "theirs")),
    "edits another tenant's experiment": lambda a: a.patch(f"{OF_B}/search", WHOLE),
    "suspends another tenant's experiment": lambda a: a.patch(
        f"{OF_B}/search", {"spec": {"suspend": True}}
    ),
    "removes the finalizer of another tenant's experiment": lambda a: a.patch(
        f"{OF_B}/search", {"metadata": {"finalizers": None}}
    ),
    "writes the status of another tenant's experiment": lambda a: a.patch(
        f"{OF_B}/search/status", {"status": {"state": "succeeded"}}
    ),
    "writes the status of their own experiment": lambda a: a.patch(
        f"{OF_A}/any/status", {"status": {"state": "succeeded"}}
    ),
    "creates a Job for another tenant": lambda a: a.post(f"{BATCH}/namespaces/{B}/jobs", job()),
    "lists another tenant's Jobs": lambda a: a.items(f"{BATCH}/namespaces/{B}/jobs"),
    "lists another tenant's pods": lambda a: a.items(f"{IN_B}/pods"),
    "reads the log of another tenant's pod": lambda a: a.text(f"{IN_B}/pods/any/log"),
    "runs a program in another tenant's pod": lambda a: a.post(f"{IN_B}/pods/any/exec", {}),
    "reads another tenant's Secrets": lambda a: a.items(f"{IN_B}/secrets"),
    "writes another tenant's ConfigMap": lambda a: a.post(
        f"{IN_B}/configmaps", {"metadata": {"name": "x"}}
    ),
    "writes an Event for another tenant": lambda a: a.post(f"{IN_B}/events", event(B, B)),
    "reads the controller's lease": lambda a: a.get(
        f"{LEASES}/namespaces/{SYSTEM}/leases/tuner-controller"
    ),
    "takes the controller's lease": lambda a: a.patch(
        f"{LEASES}/namespaces/{SYSTEM}/leases/tuner-controller",
        {"spec": {"holderIdentity": "attacker", "leaseTransitions": 99}},
    ),
    "reads the controller's log": lambda a: a.text(f"{IN_SYSTEM}/pods/any/log"),
    "reads the controller's Secrets": lambda a: a.items(f"{IN_SYSTEM}/secrets"),
    "makes a token of the controller": lambda a: a.post(
        f"{IN_SYSTEM}/serviceaccounts/tuner-controller/token", TOKEN
    ),
    "runs a pod as the controller": lambda a: a.post(
        f"{IN_SYSTEM}/pods", {"metadata": {"name": "x"}, "spec": {"containers": []}}
    ),
    "reaches the controller through the proxy of Services": lambda a: a.get(
        f"{IN_SYSTEM}/services/https:tuner:8080/proxy/api/v1/whoami"
    ),
    "reaches the controller through the proxy of pods": lambda a: a.get(
        f"{IN_SYSTEM}/pods/https:tuner-controller:8080/proxy/api/v1/whoami"
    ),
    "moves the controller's Service to their own pods": lambda a: a.patch(
        f"{IN_SYSTEM}/services/tuner", {"spec": {"selector": {"app": "mine"}}}
    ),
    "labels another pod as the leader": lambda a: a.patch(
        f"{IN_SYSTEM}/pods/any", {"metadata": {"labels": {"tuner.dev/role": "leader"}}}
    ),
    "removes the definition": lambda a: a.delete(CRD),
    "weakens the definition": lambda a: a.patch(CRD, WHOLE),
    "gives themselves the controller's role": lambda a: a.post(
        f"{RBAC}/namespaces/{A}/rolebindings", grant("tuner-controller")
    ),
    "gives themselves the controller's role in all namespaces": lambda a: a.post(
        f"{RBAC}/clusterrolebindings", grant("tuner-controller")
    ),
    "adds to the roles of everybody": lambda a: a.patch(
        f"{RBAC}/clusterroles/tuner-experiments-view", {"rules": []}
    ),
    "raises their own quota": lambda a: a.post(
        f"{IN_A}/resourcequotas", quota("more", **{"requests.cpu": "1000"})
    ),
    "asks what another person may do": lambda a: a.post(
        "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": {"user": "admin"}}
    ),
    "asks whose a token is": lambda a: a.post(
        "/apis/authentication.k8s.io/v1/tokenreviews", {"spec": {"token": "x"}}
    ),
    "makes a priority above everybody's": lambda a: a.post(
        "/apis/scheduling.k8s.io/v1/priorityclasses", {"metadata": {"name": "x"}, "value": 10**9}
    ),
}


@pytest.mark.parametrize("attack", FORBIDDEN.values(), ids=FORBIDDEN)
def test_the_api_server_refuses_a_tenant_who(arena: Arena, attack: Request) -> None:
    with pytest.raises(RequestRefused) as refused:
        attack(arena.a)
    assert refused.value.code == 403, refused.value


@pytest.mark.parametrize("user", [f"system:serviceaccount:{SYSTEM}:tuner-controller", "admin"])
def test_a_tenant_cannot_act_as_another_user(arena: Arena, user: str) -> None:
    request = urllib.request.Request(
        f"{arena.a.server}{OF_B}",
        headers={"Authorization": f"Bearer {arena.a.token}", "Impersonate-User": user},
    )
    trusted = ssl.create_default_context(cadata=arena.a.authority)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, context=trusted)
    with refused.value as reply:
        assert (reply.code, b"cannot impersonate" in reply.read()) == (403, True)


def test_an_event_of_a_tenant_cannot_be_about_an_object_of_another(arena: Arena) -> None:
    with pytest.raises(RequestRefused) as refused:
        arena.a.post(f"{IN_A}/events", event(A, B))
    assert refused.value.code == 422


# What the controller refuses to create for the attacker


def template(path: str, value: object) -> Object:
    return {"trial": {"template": changed(path, value)}}


def of_kind(version: str, kind: str, **rest: object) -> Object:
    condition = {"type": "Done"}
    manifest = {"apiVersion": version, "kind": kind, **rest}
    return {"trial": {"template": manifest, "success": condition, "failure": condition}}


def trial(**keys: object) -> Object:
    return {"trial": {"image": "x", "command": ["run", "${x}"], **keys}}


POD_OF = {"template": {"metadata": {}, "spec": {"containers": [{"name": "main", "image": "x"}]}}}
PLACES = {"x": [B, "admin", "Pod", "true", "kube-system", "/"]}
REFUSED: dict[str, Object] = {
    "a Job in another tenant's namespace": template("metadata.namespace", B),
    "pods in another tenant's namespace": template("spec.template.metadata.namespace", B),
    "a namespace by a parameter": template("metadata.namespace", "${x}") | {"parameters": PLACES},
    "a kind by a parameter": of_kind("batch/v1", "${x}", spec=POD_OF) | {"parameters": PLACES},
    "an apiVersion that is a path": of_kind(f"batch/v1/namespaces/{B}", "Job", spec=POD_OF),
    "an apiVersion that leads upwards": of_kind("../api/v1", "Pod", spec=POD_OF),
    "a CronJob": of_kind("batch/v1", "CronJob", spec={"jobTemplate": {"spec": POD_OF}}),
    "a Deployment": of_kind("apps/v1", "Deployment", spec=POD_OF),
    "a role binding": of_kind("rbac.authorization.k8s.io/v1", "RoleBinding", **grant("admin")),
    "a Secret that is a token": of_kind("v1", "Secret", type="kubernetes.io/service-account-token"),
    "a ResourceQuota": of_kind("v1", "ResourceQuota", spec={"hard": {"pods": "0"}}),
    "a List": of_kind("v1", "List", items=[changed("metadata.namespace", B)]),
    "an experiment": of_kind("tuner.dev/v1", "Experiment", spec=POD_OF),
    "a Workflow": of_kind("argoproj.io/v1alpha1", "Workflow", spec=POD_OF),
    "a RayJob": of_kind("ray.io/v1", "RayJob", spec=POD_OF),
    "two spellings of a kind": of_kind("batch/v1", "CronJob", Kind="Job", spec=POD_OF),
    "the disk of a node": template(f"{POD}.volumes", [{"name": "x", "hostPath": {"path": "/"}}]),
    "the network of a node": template(f"{POD}.hostNetwork", True),
    "the network of a node by a parameter": template(f"{POD}.hostNetwork", "${x}")
    | {"parameters": PLACES},
    "the processes of a node": template(f"{POD}.hostPID", True),
    "the memory of a node": template(f"{POD}.hostIPC", True),
    "all rights on a node": template(f"{MAIN}.securityContext", {"privileged": True}),
    "rights beyond the usual": template(
        f"{MAIN}.securityContext", {"capabilities": {"add": ["SYS_ADMIN"]}}
    ),
    "the ports of a node": template(f"{MAIN}.ports", [{"containerPort": 1, "hostPort": 1}]),
    "unfiltered system calls": template(
        f"{POD}.securityContext", {"seccompProfile": {"type": "Unconfined"}}
    ),
    "an unmasked /proc": template(f"{MAIN}.securityContext", {"procMount": "Unmasked"}),
    "kernel settings": template(
        f"{POD}.securityContext", {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}
    ),
    "a node by name": template(f"{POD}.nodeName", "fake-0"),
    "another service account": template(f"{POD}.serviceAccountName", "person"),
    "another service account by a parameter": template(f"{POD}.serviceAccountName", "${x}")
    | {"parameters": PLACES},
    "another service account by its key": trial(serviceAccount="person"),
    "the token of a service account": template(f"{POD}.automountServiceAccountToken", True),
    "a token for another audience": template(
        f"{POD}.volumes",
        [{"name": "x", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}],
    ),
    "pods beside another tenant's": template(
        f"{POD}.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        [{"topologyKey": "kubernetes.io/hostname", "namespaces": [B]}],
    ),
    "nodes without anybody else's pods": template(
        f"{POD}.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution",
        [{"topologyKey": "kubernetes.io/hostname", "namespaceSelector": {}}],
    ),
    "the labels of another experiment": template("metadata.labels", {UID: "theirs"}),
    "the labels of another trial on its pods": template(
        "spec.template.metadata.labels", {TRIAL: "7"}
    ),
    "the label by which objects are found": template(
        "metadata.labels", {"app.kubernetes.io/managed-by": "tuner"}
    ),
    "the parameters of another trial": template(
        "metadata.annotations", {"tuner.dev/parameters": "{}"}
    ),
    "an owner of another tenant": template(
        "metadata.ownerReferences",
        [{"apiVersion": "tuner.dev/v1", "kind": "Experiment", "name": "search", "uid": "x"}],
    ),
    "a Job that nobody can delete": template("metadata.finalizers", ["example.org/never"]),
    "a Job that adopts pods": template("spec.manualSelector", True),
    "files of the controller's disk": trial(files=["/var/lib/tuner/controller.db"]),
    "files above the state directory": trial(files=["../../../etc/passwd"]),
    "a stored Python function": trial(command=["python", "/tuner/files/objective.pyz"]),
    "a disk of a node by its key": trial(volumes={"a": {"mount": "/a", "hostPath": "/"}}),
    "a disk of a node within another volume": trial(
        volumes={"a": {"mount": "/a", "emptyDir": {"hostPath": "/"}}}
    ),
    "labels of the controller by their key": trial(labels={UID: "theirs"}),
    "a parallelism beyond all numbers": {"parallelism": 10**18},
    "a budget beyond all numbers": {"budget": {"trials": 10**18}},
    "no time at all": trial(timeout="0s"),
    "a parameter that is a path": {"parameters": {"../../x": {"type": "int", "min": 0, "max": 1}}}
    | trial(command=["run", "${../../y}"]),
    "30,000 points to try first": {"initial": [{"x": n / 30_000} for n in range(30_000)]},
}


@pytest.fixture(scope="module")
def refused(arena: Arena) -> dict[str, str]:
    """Apply all of REFUSED at once, and return why the API server has refused some."""
    told: dict[str, str] = {}
    for number, (name, spec) in enumerate(REFUSED.items()):
        try:
            arena.a.post(OF_A, experiment(A, f"refused-{number}", **spec))
        except RequestRefused as error:
            told[name] = str(error)
    return told


@pytest.mark.parametrize("attack", REFUSED)
def test_an_experiment_may_not_have(arena: Arena, refused: dict[str, str], attack: str) -> None:
    if attack in refused:
        return
    name = f"refused-{list(REFUSED).index(attack)}"
    status = arena.until(name, lambda status: status.get("conditions"))
    (accepted,) = status["conditions"]
    assert (accepted["type"], accepted["status"], accepted["reason"]) == (
        "Accepted",
        "False",
        "Invalid",
    )
    assert status["state"] == "invalid"
    assert B not in accepted["message"].replace(f"'{B}", "").replace(f"/{B}", "")
    uid = arena.a.get(f"{OF_A}/{name}")["metadata"]["uid"]
    jobs = arena.installed.cluster.api().items(f"{BATCH}/jobs")
    owners = [each["metadata"].get("ownerReferences") or [{}] for each in jobs]
    assert uid not in [owner[0].get("uid") for owner in owners]


@pytest.mark.parametrize("key", ["server", "storage", "stateDir", "context", "uid", "experiment"])
def test_no_key_leads_the_controller_elsewhere(arena: Arena, key: str) -> None:
    resource = experiment(A, f"key-{key.lower()}")
    resource["spec"][key] = "//attacker.example/"
    made = arena.a.post(OF_A, resource)
    assert key not in made["spec"]


# What the attacker may write, and what comes of it


def of_search(arena: Arena) -> dict[str, str]:
    """Return the labels of the victim's first Job, as the attacker may have guessed them."""
    jobs = arena.installed.cluster.api().items(f"{BATCH}/namespaces/{B}/jobs")
    labels: dict[str, str] = jobs[0]["metadata"]["labels"]
    return labels


def imitation(name: str, labels: Mapping[str, str], **metadata: object) -> Object:
    pod = {"containers": [{"name": "trial", "image": "x"}], "restartPolicy": "Never"}
    about = {"name": name, "labels": dict(labels), **metadata}
    return {
        "metadata": about,
        "spec": {"template": {"metadata": {"labels": dict(labels)}, "spec": pod}},
    }


def test_a_job_with_the_labels_of_anothers_trial_does_not_count_there(arena: Arena) -> None:
    labels = of_search(arena) | {TRIAL: "1"}
    arena.a.post(f"{BATCH}/namespaces/{A}/jobs", imitation("imitates", labels))
    arena.serves_b()
    assert arena.a.get(f"{BATCH}/namespaces/{A}/jobs/imitates")


def test_a_job_with_the_name_of_anothers_trial_does_not_count_there(arena: Arena) -> None:
    jobs = arena.installed.cluster.api().items(f"{BATCH}/namespaces/{B}/jobs")
    name = jobs[0]["metadata"]["name"]
    arena.a.post(f"{BATCH}/namespaces/{A}/jobs", imitation(name, of_search(arena)))
    arena.serves_b()


def test_a_job_that_names_anothers_experiment_as_its_owner_stays_out_of_it(arena: Arena) -> None:
    uid = arena.installed.object(B, "search")["metadata"]["uid"]
    owner = {"apiVersion": "tuner.dev/v1", "kind": "Experiment", "name": "search", "uid": uid}
    arena.a.post(f"{BATCH}/namespaces/{A}/jobs", imitation("owned", {}, ownerReferences=[owner]))
    arena.serves_b()


STRANGE = ["9" * 60, "1.5", "final", "x", "1_0", "0x1"]


@pytest.mark.parametrize("number", STRANGE)
def test_a_pod_with_a_strange_number_of_its_trial_harms_only_its_own_experiment(
    arena: Arena, number: str
) -> None:
    name = f"strange-{STRANGE.index(number)}"
    arena.apply(name, env={"KWOK_RUN": "600s"})
    arena.until(name, lambda status: status.get("running") == 1)
    found = arena.a.items(
        f"{BATCH}/namespaces/{A}/jobs", labelSelector=f"tuner.dev/experiment={name}"
    )
    labels = found[0]["metadata"]["labels"] | {TRIAL: number, ATTEMPT: "1"}
    arena.a.post(f"{BATCH}/namespaces/{A}/jobs", imitation(f"{name}-extra", labels))
    arena.serves_b()
    assert list((arena.installed.state / "experiments").iterdir())
    inside = arena.installed.state.parent.resolve()
    assert all(inside in path.resolve().parents for path in arena.installed.state.rglob("*"))
    arena.a.delete(f"{OF_A}/{name}")


@pytest.mark.parametrize(
    "about",
    [
        {"apiVersion": "v1", "kind": "Secret"},
        {"apiVersion": f"v1/namespaces/{B}", "kind": "Pod"},
        {"apiVersion": "../../api/v1", "kind": "Pod"},
        {"apiVersion": "tuner.dev/v1?watch=true", "kind": "Experiment"},
        {"apiVersion": "\u0000", "kind": "\u001b[2J"},
    ],
    ids=["a Secret", "another namespace", "a path upwards", "a query", "control characters"],
)
def test_an_event_about_a_strange_object_leads_the_controller_nowhere(
    arena: Arena, about: Object
) -> None:
    arena.apply(
        "events", trial={"image": "x", "command": ["x", "${x}"], "env": {"KWOK_START": "1h"}}
    )
    found = arena.until("events", lambda status: status.get("conditions"))
    assert found
    jobs = f"{BATCH}/namespaces/{A}/jobs"
    selected = {"labelSelector": "tuner.dev/experiment=events"}
    eventually(lambda: arena.a.items(jobs, **selected))
    name = arena.a.items(jobs, **selected)[0]["metadata"]["name"]
    forged = event(A, A, name=f"{name}-child", uid="5", **about)
    forged["metadata"]["name"] = f"{name}.forged"
    arena.a.post(f"{IN_A}/events", forged)
    arena.serves_b()
    arena.a.delete(f"{OF_A}/events")
    eventually(lambda: "events" not in uids(arena.a.items(OF_A)))


def test_an_experiment_of_the_same_name_is_another_one(arena: Arena) -> None:
    arena.apply("search")
    arena.until("search", lambda status: status.get("state") == "succeeded")
    arena.a.delete(f"{OF_A}/search")
    eventually(lambda: "search" not in uids(arena.a.items(OF_A)))
    arena.serves_b()


def test_a_resource_that_brings_a_status_and_a_uid_has_its_own(arena: Arena) -> None:
    stolen = arena.installed.object(B, "search")
    resource = experiment(A, "restored")
    about = stolen["metadata"]
    resource["metadata"] |= {"uid": about["uid"], "finalizers": about["finalizers"]}
    resource["metadata"]["annotations"] = {"tuner.dev/keep-study": "false"}
    resource["status"] = stolen["status"] | {"revision": 7}
    made = arena.a.post(OF_A, resource)
    assert made["metadata"]["uid"] != about["uid"]
    assert "status" not in made
    status = arena.until("restored", lambda status: status.get("state") == "succeeded")
    assert status["revision"] == 1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tuner.dev/resume", "../../victim/search"),
        ("tuner.dev/retry", "0-99999999999999"),
        ("tuner.dev/retry", "\u0661,\u0662,-1,1e9,failed;DROP TABLE attempts"),
        ("tuner.dev/keep-study", "namespaces/victim/studies/search"),
        ("tuner.dev/resume", "x" * 200_000),
    ],
    ids=["resume", "retry all", "retry no numbers", "keep", "200 kB"],
)
def test_an_annotation_with_a_strange_value_harms_nobody_else(
    arena: Arena, key: str, value: str
) -> None:
    name = f"annotated-{key.rpartition('/')[2]}-{len(value)}"
    arena.apply(name)
    arena.until(name, lambda status: status.get("state") == "succeeded")
    arena.a.patch(f"{OF_A}/{name}", {"metadata": {"annotations": {key: value}}})
    arena.serves_b()
    arena.a.patch(f"{OF_A}/{name}", {"metadata": {"annotations": {key: None}}})


def test_objects_named_as_the_controllers_own_are_not_read(arena: Arena) -> None:
    name = {"metadata": {"name": "tuner-controller"}}
    arena.a.post(f"{IN_A}/configmaps", name | {"data": {"server": "attacker.example"}})
    lease = {"spec": {"holderIdentity": "attacker", "leaseTransitions": 10**9}}
    arena.a.post(f"{LEASES}/namespaces/{A}/leases", name | lease)
    arena.apply("tuner-controller")
    arena.until("tuner-controller", lambda status: status.get("state") == "succeeded")
    arena.serves_b()


def test_a_finalizer_that_nobody_removes_holds_only_its_own_experiment(arena: Arena) -> None:
    resource = experiment(A, "forever", env={"KWOK_RUN": "600s"})
    resource["metadata"]["finalizers"] = ["example.org/never"]
    arena.a.post(OF_A, resource)
    arena.until("forever", lambda status: status.get("running") == 1)
    arena.a.delete(f"{OF_A}/forever")
    arena.serves_b()
    eventually(
        lambda: (
            not arena.a.items(
                f"{BATCH}/namespaces/{A}/jobs", labelSelector="tuner.dev/experiment=forever"
            )
        )
    )
    arena.a.patch(f"{OF_A}/forever", {"metadata": {"finalizers": None}})


# What the attacker's trials print


PRINTS = {
    "escape sequences": "score=1\n\x1b[2J\x1b]0;mine\x07\x9b31m\u202egnp",
    "numbers that are none": "score=nan\nscore=inf\nscore=-inf\nscore=1e999\nscore=1",
    "the metrics of another trial": "trial=7 attempt=9 score=99\nsearch score=1e300",
    "2,000 names of metrics": "\n".join(f"m{n}=1" for n in range(2000)) + "\nscore=1",
    "steps beyond all numbers": "step=1000000000000000000 score=1\nstep=1e400 score=2",
    "a line of 500 kB": "score=1 " + "x" * 500_000,
    "names that are paths": "../../x=1 score=1\n/etc/passwd=1",
    "HTML": "<script>alert(1)</script>=1 score=1",
    "what collectors print": '{"score": 1, "trial": "search", "namespace": "victim"}\nscore=1',
}


@pytest.mark.parametrize("text", PRINTS.values(), ids=PRINTS)
def test_a_trial_may_print(arena: Arena, text: str) -> None:
    name = f"prints-{list(PRINTS.values()).index(text)}"
    arena.apply(name, budget={"trials": 1}, env={"KWOK_LOG": text})
    status = arena.until(name, lambda status: status.get("state") in ("succeeded", "failed"))
    shown = json.dumps(status, ensure_ascii=False)
    assert shown.isprintable(), shown
    assert len(shown) < 10_000
    arena.serves_b()


VARIABLES = ["${KUBECONFIG}", "$${KUBECONFIG}", "$(KUBECONFIG)", "${HOME}"]


@pytest.mark.parametrize("text", VARIABLES)
def test_no_placeholder_is_a_variable_of_the_controller(arena: Arena, text: str) -> None:
    name = f"leaks-{VARIABLES.index(text)}"
    command = ["run", "${x}", text]
    arena.apply(name, trial={"image": "x", "command": command}, budget={"trials": 1})
    arena.until(name, lambda status: status.get("state") != "pending")
    pods = arena.a.items(f"{IN_A}/pods", labelSelector=f"tuner.dev/experiment={name}")
    jobs = arena.a.items(f"{BATCH}/namespaces/{A}/jobs")
    written = json.dumps([pods, jobs, arena.a.get(f"{OF_A}/{name}")])
    for secret in (str(arena.installed.kubeconfig), str(arena.installed.state)):
        assert secret not in written
    arena.a.delete(f"{OF_A}/{name}")


# What the attacker wastes


def test_a_parallelism_of_a_billion_keeps_nobody_else_waiting(arena: Arena) -> None:
    arena.apply("greedy", parallelism=10**9, budget={"trials": 10**9}, env={"KWOK_RUN": "600s"})
    arena.until("greedy", lambda status: status.get("running", 0) + status.get("queued", 0) >= 100)
    arena.serves_b()
    jobs = arena.a.items(f"{BATCH}/namespaces/{A}/jobs")
    assert len(jobs) < 600
    arena.a.delete(f"{OF_A}/greedy")


def test_forty_experiments_at_once_keep_nobody_else_waiting(arena: Arena) -> None:
    for number in range(40):
        arena.apply(f"many-{number}", suspend=number % 2 == 0, budget={"trials": 1})
    arena.serves_b()
    for number in range(40):
        arena.a.delete(f"{OF_A}/many-{number}")


def test_forty_edits_at_once_keep_nobody_else_waiting(arena: Arena) -> None:
    arena.apply("flaps", parallelism=1, env={"KWOK_RUN": "600s"})
    for number in range(40):
        change = {"spec": {"parallelism": 1 + number % 3, "suspend": number % 5 == 0}}
        arena.a.patch(f"{OF_A}/flaps", change)
    arena.serves_b()
    arena.a.delete(f"{OF_A}/flaps")


def test_a_large_space_keeps_nobody_else_waiting(arena: Arena) -> None:
    wide = {f"p{n}": {"type": "float", "min": 0, "max": 1} for n in range(300)}
    many = {f"p{n}": [*range(5000)] for n in range(5)}
    grid = {f"p{n}": {"type": "int", "min": 0, "max": 10**6} for n in range(9)}
    env = {"KWOK_LOG": "score=1", "KWOK_RUN": "100ms"}
    for name, space, algorithm in (
        ("wide", wide, "gp"),
        ("many", many, "tpe"),
        ("all", grid, "grid"),
    ):
        arena.apply(
            name,
            parameters=space,
            algorithm={"name": algorithm},
            parallelism=10,
            budget={"trials": 20},
            trial={"image": "x", "command": ["x", "${p0}"], "env": env},
        )
    arena.serves_b()
    for name in ("wide", "many", "all"):
        arena.until(name, lambda status: status.get("trials"))
        arena.a.delete(f"{OF_A}/{name}")


def test_a_spec_of_a_megabyte_keeps_nobody_else_waiting(arena: Arena) -> None:
    arena.apply("huge", trial={"image": "x", "command": ["x", "${x}", "y" * 1_000_000]})
    arena.until("huge", lambda status: status.get("state"))
    arena.serves_b()
    arena.a.delete(f"{OF_A}/huge")


def test_a_thousand_failing_trials_keep_nobody_else_waiting(arena: Arena) -> None:
    retries = {"infrastructure": 1000, "userError": 1000}
    env = {"KWOK_EXIT": "1", "KWOK_RUN": "10ms"}
    arena.apply(
        "fails",
        trial={"image": "x", "command": ["x", "${x}"], "retries": retries, "env": env},
        breaker="off",
        parallelism=20,
        budget={"trials": 1000, "failedTrials": 1000},
    )
    arena.serves_b()
    arena.a.delete(f"{OF_A}/fails")


def test_a_name_in_many_events_keeps_nobody_else_waiting(arena: Arena) -> None:
    forged = event(A, A, uid="5")
    forged["message"] = "x" * 1000
    for number in range(100):
        forged["metadata"]["name"] = f"forged-{number}"
        arena.a.post(f"{IN_A}/events", forged)
    arena.serves_b()


# The controller's own ports


def asked(arena: Arena, path: str, *headers: tuple[str, str]) -> tuple[int, str]:
    """Send these headers as they are, and return the answer."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    connection = http.client.HTTPSConnection("127.0.0.1", arena.http_port, context=context)
    connection.putrequest("GET", path)
    for name, value in headers:
        connection.putheader(name, value)
    connection.endheaders()
    reply = connection.getresponse()
    text = reply.read(100_000).decode(errors="replace")
    connection.close()
    return reply.status, text


def unsigned(arena: Arena, **changes: object) -> str:
    """Return the attacker's token with other claims and no signature."""
    _, claims, _ = arena.tokens[A].split(".")
    changed_claims = json.loads(base64.urlsafe_b64decode(claims + "==")) | changes
    parts = ({"alg": "none", "typ": "JWT"}, changed_claims)
    encoded = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    ]
    return ".".join((*encoded, ""))


def credentials(arena: Arena) -> dict[str, list[tuple[str, str]]]:
    name, token = "X-Tuner-Authorization", arena.tokens
    forged = unsigned(arena, sub=f"system:serviceaccount:{B}:person")
    statement = unsigned(arena, aud="tuner", iat=0, exp=2**40)
    return {
        "nothing": [],
        "a cookie": [("Cookie", f"tuner={token[B]}")],
        "two tokens": [(name, f"Bearer {token[A]}"), (name, f"Bearer {token[B]}")],
        "an unsigned token": [(name, f"Bearer {forged}")],
        "a statement without a certificate": [(name, f"Certificate {statement}")],
        "a name without a proxy": [("X-Forwarded-User", "admin")],
        "a name of another proxy": [
            ("X-Forwarded-User", "admin"),
            ("X-Auth-Request-User", "admin"),
            ("X-Remote-User", "admin"),
            ("X-Remote-Group", "system:masters"),
        ],
        "an impersonation": [("Impersonate-User", "admin")],
        "basic authentication": [("Authorization", "Basic YWRtaW46YWRtaW4=")],
        "an empty token": [(name, "Bearer ")],
        "a token of 1 MB": [(name, f"Bearer {'x' * 15_000}")],
    }


CREDENTIALS = (
    "nothing",
    "a cookie",
    "two tokens",
    "an unsigned token",
    "a statement without a certificate",
    "a name without a proxy",
    "a name of another proxy",
    "an impersonation",
    "basic authentication",
    "an empty token",
    "a token of 1 MB",
)


@pytest.mark.parametrize("how", CREDENTIALS)
def test_the_api_takes_nobody_in_who_sends(arena: Arena, how: str) -> None:
    status, text = asked(arena, "/api/v1/whoami", *credentials(arena)[how])
    assert status == 401, text
    assert "admin" not in text


@pytest.mark.parametrize(
    "path",
    [
        "/api/v1/../../etc/passwd",
        "/static/../../../controller.db",
        "/static/%2e%2e/%2e%2e/controller.db",
        "/static/..%2f..%2fcontroller.db",
        "//etc/passwd",
        f"/api/v1/namespaces/{B}/experiments/search",
        f"/api/v1/namespaces/{B}/experiments/search/attempts",
        f"/api/v1/namespaces/{B}/experiments/search/trials/0/attempts/1/log",
        f"/api/v1/namespaces/{A}%2f..%2f{B}/experiments/search",
        "/api/v1/namespaces/-/experiments/search",
    ],
)
def test_no_path_of_the_api_shows_what_is_anothers(arena: Arena, path: str) -> None:
    status, text = asked(arena, path, ("X-Tuner-Authorization", f"Bearer {arena.tokens[A]}"))
    assert status in (400, 401, 403, 404), text
    assert "SQLite" not in text
    assert "root:" not in text


Call = Callable[[SuggestServiceStub, str], object]
STUDY = f"namespaces/{B}/studies/"
CALLS: dict[str, Call] = {
    "reads a study": lambda s, n: s.GetStudy(suggest_pb2.GetStudyRequest(name=n)),
    "lists the studies": lambda s, n: s.ListStudies(
        suggest_pb2.ListStudiesRequest(parent=f"namespaces/{B}")
    ),
    "lists the trials": lambda s, n: s.ListTrials(suggest_pb2.ListTrialsRequest(parent=n)),
    "reads a trial": lambda s, n: s.GetTrial(suggest_pb2.GetTrialRequest(name=f"{n}/trials/0")),
    "deletes a study": lambda s, n: s.DeleteStudy(suggest_pb2.DeleteStudyRequest(name=n)),
    "deletes a trial": lambda s, n: s.DeleteTrial(
        suggest_pb2.DeleteTrialRequest(name=f"{n}/trials/0")
    ),
    "takes trials": lambda s, n: s.SuggestTrials(suggest_pb2.SuggestTrialsRequest(parent=n)),
    "ends a trial": lambda s, n: s.CompleteTrial(
        suggest_pb2.CompleteTrialRequest(name=f"{n}/trials/0")
    ),
    "creates a study": lambda s, n: s.CreateStudy(
        suggest_pb2.CreateStudyRequest(parent=f"namespaces/{B}")
    ),
    "reads measurements": lambda s, n: s.ListMeasurements(
        suggest_pb2.ListMeasurementsRequest(parent=f"{n}/trials/-")
    ),
    "lists the best": lambda s, n: s.ListOptimalTrials(
        suggest_pb2.ListOptimalTrialsRequest(parent=n)
    ),
}
DENIED = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)


def stub_of(arena: Arena, token: str) -> SuggestServiceStub:
    trusted = (arena.installed.state / "tls" / "tls.crt").read_bytes()
    secured = grpc.composite_channel_credentials(
        grpc.ssl_channel_credentials(trusted), grpc.access_token_call_credentials(token)
    )
    channel = grpc.secure_channel(f"localhost:{arena.grpc_port}", secured)
    return SuggestServiceStub(channel)


def for_tuner(arena: Arena, namespace: str) -> str:
    words = ("create", "token", "person", "-n", namespace, "--audience", "tuner")
    return arena.installed.kubectl(*words).strip()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_the_service_denies_a_tenant_of_another_namespace_who(arena: Arena, call: Call) -> None:
    own = stub_of(arena, for_tuner(arena, B))
    (study,) = own.ListStudies(suggest_pb2.ListStudiesRequest(parent=f"namespaces/{B}")).studies
    with pytest.raises(grpc.RpcError) as error:
        call(stub_of(arena, for_tuner(arena, A)), study.name)
    assert error.value.code() in DENIED, error.value
    assert study.name.rpartition("/")[2] not in str(error.value.details())


def test_all_studies_are_those_that_a_tenant_may_see(arena: Arena) -> None:
    stub = stub_of(arena, for_tuner(arena, A))
    listed = stub.ListStudies(suggest_pb2.ListStudiesRequest(parent="namespaces/-")).studies
    assert {study.name.split("/")[1] for study in listed} <= {A}


@pytest.mark.parametrize("kind", ["for the API server", "unsigned", "none"])
def test_the_service_takes_no_token(arena: Arena, kind: str) -> None:
    forged = unsigned(arena, sub=f"system:serviceaccount:{B}:person", aud=["tuner"])
    token = {"for the API server": arena.tokens[B], "unsigned": forged, "none": "none"}[kind]
    with pytest.raises(grpc.RpcError) as error:
        stub_of(arena, token).ListStudies(suggest_pb2.ListStudiesRequest(parent=f"namespaces/{B}"))
    assert error.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_at_last_the_victim_is_still_served(arena: Arena) -> None:
    arena.serves_b()
