"""TrainJobs under the definitions of Trainer 2.0 to 2.3,
which differ in the field that changes pod templates.

The API server, its checks and its OpenAPI document are real; the tenant has no right to read
definitions. Nodes, pods and the operator are fake.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.cluster.api import Api, Object
from tests.cluster.binaries import program
from tests.cluster.controlplane import ControlPlane
from tests.cluster.jobset import DEFINITIONS, Operator, define
from tests.cluster.searcher import Searcher
from tests.cluster.tenant import role_without, tenant
from tests.cluster.waiting import eventually

GROUP, VERSION = "trainer.kubeflow.org", "v1alpha1"
SPEC = {
    "runtimeRef": {"name": "torch"},
    "trainer": {"numNodes": 1, "env": [{"name": "LR", "value": "${x}"}]},
}
TRAIN_JOB = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "TrainJob", "spec": SPEC}


def trainjobs(namespace: str) -> str:
    return f"/apis/{GROUP}/{VERSION}/namespaces/{namespace}/trainjobs"


@pytest.fixture
def trainer(level_b: ControlPlane, request: pytest.FixtureRequest) -> Iterator[str]:
    """Install the definition of a version; return when the server publishes its fields."""
    api = level_b.api()
    definition = yaml.load(
        program(f"trainjobs-{request.param}.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader
    )
    define(api, definition)
    (version,) = definition["spec"]["versions"]
    fields = set(version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])
    eventually(lambda: published(api) == fields)
    yield request.param
    name = definition["metadata"]["name"]
    api.delete(f"{DEFINITIONS}/{name}")
    eventually(lambda: api.find(f"{DEFINITIONS}/{name}") is None)


def published(api: Api) -> set[str]:
    document = api.find(f"/openapi/v3/apis/{GROUP}/{VERSION}") or {}
    schemas = document.get("components", {}).get("schemas", {})
    kinds = [schema for name, schema in schemas.items() if name.endswith(".TrainJob")]
    return {field for kind in kinds for field in kind["properties"]["spec"]["properties"]}


@pytest.fixture
def me(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    documents = role_without(namespace, "")
    rule = {
        "apiGroups": [GROUP],
        "resources": ["trainjobs"],
        "verbs": ["create", "get", "list", "watch", "delete"],
    }
    next(document for document in documents if document["kind"] == "Role")["rules"].append(rule)
    person = Searcher(tmp_path, tenant(level_b, namespace, documents), namespace)
    yield person
    person.close()


def node_pod(train_job: Object) -> list[Object]:
    """Return the pod of the job `node` as Trainer derives it from the field that this object has."""
    spec = train_job["spec"]
    if "podTemplateOverrides" in spec:
        (change,) = spec["podTemplateOverrides"]
    else:
        (patch,) = spec["runtimePatches"]
        (job,) = patch["trainingRuntimeSpec"]["template"]["spec"]["replicatedJobs"]
        change = job["template"]["spec"]["template"]
    ours = {
        "jobset.sigs.k8s.io/replicatedjob-name": "node",
        "batch.kubernetes.io/job-completion-index": "0",
    }
    played = {"KWOK_LOG": "score=0.5", "KWOK_RUN": "300ms"}
    env = [
        *spec["trainer"]["env"],
        *({"name": name, "value": value} for name, value in played.items()),
    ]
    container = {"name": "node", "image": "tiny:1", "env": env}
    labels = change["metadata"]["labels"] | ours
    return [
        {
            "metadata": {"labels": labels},
            "spec": {"restartPolicy": "Never", "containers": [container]},
        }
    ]


@pytest.mark.parametrize("trainer", ["2.1", "2.2", "2.3"], indirect=True)
def test_a_tenant_runs_train_jobs_whatever_field_the_cluster_has(
    level_b: ControlPlane, me: Searcher, trainer: str
) -> None:
    operator = Operator(
        level_b.api(),
        me.namespace,
        path=trainjobs(me.namespace),
        templates=node_pod,
        ways=("Complete", "Failed"),
    )
    try:
        path = me.file_of_objects(TRAIN_JOB, trials=2, parallelism=2)
        code, out, err = me.tuner("run", path, "--dry-run=server")
        assert (code, "TrainJob tiny-dryru-0: accepted" in out) == (0, True), (out, err)
        code, _, err = me.tuner("run", path)
        assert code == 0, err
        assert [trial["value"] for trial in me.trials()] == [0.5, 0.5]
    finally:
        operator.close()


@pytest.mark.parametrize("trainer", ["2.0"], indirect=True)
def test_a_trainer_without_labels_of_pods_is_refused_before_anything_is_created(
    level_b: ControlPlane, me: Searcher, trainer: str
) -> None:
    path = me.file_of_objects(TRAIN_JOB, trials=2, parallelism=2)
    code, _, err = me.tuner("run", path)
    assert code == 2, err
    assert err.startswith(str(path)), err
    assert "upgrade to Trainer 2.1 to 2.3, or write a JobSet" in err
    assert "podTemplateOverrides" not in json.dumps(level_b.api().items(trainjobs(me.namespace)))
    code, out, _ = me.tuner("doctor", path)
    assert code != 0
    assert "or write a JobSet" in out


@pytest.mark.parametrize("trainer", ["2.2"], indirect=True)
def test_a_field_of_an_older_trainer_in_the_file_is_refused_with_the_newer_one(
    me: Searcher, trainer: str
) -> None:
    overrides = [{"targetJobs": [{"name": "node"}]}]
    template = TRAIN_JOB | {"spec": SPEC | {"podTemplateOverrides": overrides}}
    code, _, err = me.tuner("run", me.file_of_objects(template, trials=2, parallelism=2))
    assert code == 2, err
    assert "has no podTemplateOverrides; it has runtimePatches in its place, so write that" in err
