"""Edits of Katib's Experiments by clients that send back what they read, as its SDK does: which of
them conflict, by the policy of the chart on a real API server.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator

import pytest

from controller.operator.resource import FINALIZER
from tests.cluster.api import Api, Object, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import SYSTEM, WITH_POLICIES, Kubectl, rendered
from tests.cluster.test_katib_crd import DEFINITION, katib
from tests.cluster.waiting import eventually

# The controller's own writes are those of its ServiceAccount.
OF_THE_CONTROLLER = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")
Write = Callable[[Api, str, Object], Object]


@pytest.fixture(scope="module")
def api(level_b: ControlPlane) -> Api:
    kubectl = Kubectl(level_b.kubeconfig())
    objects = rendered("katib.enabled=true", WITH_POLICIES)
    kubectl.apply([each for each in objects if each["kind"] == "CustomResourceDefinition"])
    kubectl.established(DEFINITION)
    kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SYSTEM}}])
    kubectl.apply([each for each in objects if each["kind"] in OF_THE_CONTROLLER])
    kubectl.apply([each for each in objects if each["metadata"]["name"] == "tuner-katib-edits"])
    return level_b.api()


@pytest.fixture
def path(api: Api, namespace: str) -> Iterator[str]:
    """Return the path of an Experiment that Tuner runs."""
    where = f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/experiments"
    document = katib(namespace, maxTrialCount=5)
    notes = {"labels": {"team": "audio"}, "annotations": {"note": "first"}}
    document["metadata"] |= {"finalizers": [FINALIZER], **notes}
    api.post(where, document)
    write_status(api, f"{where}/tiny", trials=1)
    yield f"{where}/tiny"
    api.patch(f"{where}/tiny", {"metadata": {"finalizers": None}})


OWN = {"tuner": {"state": "running"}}


def write_status(api: Api, path: str, **numbers: int) -> None:
    """Write the status as the controller does."""
    patch = [{"op": "add", "path": "/status", "value": {**OWN, **numbers}}]
    api.patch(f"{path}/status", patch, kind="application/json-patch+json")


def edited(found: Object, most: int) -> Object:
    changed = copy.deepcopy(found)
    changed["spec"]["maxTrialCount"] = most
    return changed


def merged(api: Api, path: str, document: Object) -> Object:
    return api.patch(path, document)


def replaced(api: Api, path: str, document: Object) -> Object:
    return api.put(path, document)


WRITES = pytest.mark.parametrize("write", [merged, replaced])


def refused(write: Callable[[], object], *codes: int) -> bool:
    try:
        write()
    except RequestRefused as error:
        if error.code not in (409, *codes):
            raise
        return True
    return False


@pytest.fixture
def in_force(api: Api, path: str) -> None:
    """Wait until the API server has read the policy, and the schema of a new definition (503)."""

    def is_taken() -> bool:
        found = api.get(path)
        write_status(api, path, trials=found["status"]["trials"] + 1)
        return not refused(lambda: merged(api, path, edited(found, 6)), 503)

    eventually(is_taken, within_s=60)


@WRITES
def test_a_status_written_since_the_read_is_no_conflict(
    api: Api, path: str, in_force: None, write: Write
) -> None:
    found = api.get(path)
    write_status(api, path, trials=100, trialsFailed=1)
    write(api, path, edited(found, 20))
    now = api.get(path)
    assert now["spec"]["maxTrialCount"] == 20
    assert now["status"] == {**OWN, "trials": 100, "trialsFailed": 1}
    # The controller still owns the keys that it wrote in between.
    write_status(api, path, trials=100)
    assert api.get(path)["status"] == {**OWN, "trials": 100}


@WRITES
@pytest.mark.parametrize(("before", "since"), [([], [FINALIZER]), ([FINALIZER], [])])
def test_a_finalizer_of_tuners_is_no_conflict_and_stays_as_it_is(
    api: Api, path: str, in_force: None, write: Write, before: list[str], since: list[str]
) -> None:
    api.patch(path, {"metadata": {"finalizers": ["example.org/kept", *before]}})
    found = api.get(path)
    now = [*since, "example.org/kept"]
    api.patch(path, {"metadata": {"finalizers": now}})
    write(api, path, edited(found, 20))
    assert api.get(path)["spec"]["maxTrialCount"] == 20
    assert api.get(path)["metadata"]["finalizers"] == now


def test_the_controller_adds_its_finalizer_to_the_version_that_it_knows(
    api: Api, level_b: ControlPlane, path: str, in_force: None
) -> None:
    api.patch(path, {"metadata": {"finalizers": None}})
    version = api.get(path)["metadata"]["resourceVersion"]
    write_status(api, path, trials=100)
    patch = {"metadata": {"resourceVersion": version, "finalizers": [FINALIZER]}}
    token = level_b.service_account_token(SYSTEM, "tuner-controller")
    assert refused(lambda: level_b.api(token=token).patch(path, patch))


@WRITES
@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"maxTrialCount": 7}},
        {"metadata": {"labels": {"team": "vision"}}},
        {"metadata": {"annotations": {"note": "second"}}},
        {"metadata": {"finalizers": [FINALIZER, "example.org/kept"]}},
    ],
)
def test_anything_else_changed_since_the_read_is_a_conflict(
    api: Api, path: str, in_force: None, write: Write, change: Object
) -> None:
    found = api.get(path)
    changed = api.patch(path, change)
    write_status(api, path, trials=100)
    assert refused(lambda: write(api, path, edited(found, 20)))
    assert api.get(path)["spec"] == changed["spec"]


def test_a_version_without_the_object_read_is_a_conflict(
    api: Api, path: str, in_force: None
) -> None:
    version = {"metadata": {"resourceVersion": api.get(path)["metadata"]["resourceVersion"]}}
    write_status(api, path, trials=100)
    assert refused(lambda: api.patch(path, {**version, "spec": {"maxTrialCount": 20}}))


def test_a_label_that_an_edit_leaves_as_it_is_is_no_conflict(
    api: Api, path: str, in_force: None
) -> None:
    found = api.get(path)
    api.patch(path, {"metadata": {"labels": {"owner": "me"}}})
    write_status(api, path, trials=100)
    now = merged(api, path, edited(found, 20))
    assert now["metadata"]["labels"] == {"team": "audio", "owner": "me"}


def test_an_experiment_that_katib_runs_is_left_to_katib(
    api: Api, path: str, in_force: None
) -> None:
    api.patch(f"{path}/status", {"status": {"tuner": None}})
    found = api.get(path)
    api.patch(f"{path}/status", {"status": {"trials": 100}})
    assert refused(lambda: merged(api, path, edited(found, 20)))
