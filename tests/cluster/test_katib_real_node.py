"""Katib's files on a real kubelet: the unchanged examples,
except for the image's name and the path of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster import images
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "katib"
ENDS = {  # how many trials end in each state; None where the pruning rule decides
    "random": {"succeeded": 4},
    "distributions": {"succeeded": 6},
    "resume-and-metadata": {"succeeded": 5},
    "configmap-template": {"succeeded": 4},
    "hyperband": None,
    "early-stopping": None,
}


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    level_c.load(images.DIGITS)
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


def on_this_node(data: Any) -> Any:
    """Return the file with the image that the node has,
    and the path of the program in that image.
    """
    if isinstance(data, list):
        return [on_this_node(each) for each in data]
    if not isinstance(data, dict):
        return data
    found = {key: on_this_node(value) for key, value in data.items()}
    if found.get("image") == "tuner-digits":
        found |= {
            "image": images.DIGITS,
            "imagePullPolicy": "Never",
            "command": ["python", "train.py"],
        }
    return found


@pytest.mark.parametrize("name", ENDS)
def test_an_example_of_katib_runs_on_a_cluster(level_c: RealNode, me: Searcher, name: str) -> None:
    experiment, *others = yaml.safe_load_all((EXAMPLES / f"{name}.yaml").read_text())
    for config_map in others:  # it is on the cluster, not in the file
        config_map["metadata"]["namespace"] = me.namespace
        templates = {
            key: yaml.safe_dump(on_this_node(yaml.safe_load(text)))
            for key, text in config_map["data"].items()
        }
        level_c.api().post(
            f"/api/v1/namespaces/{me.namespace}/configmaps", config_map | {"data": templates}
        )
        experiment["spec"]["trialTemplate"]["configMap"]["configMapNamespace"] = me.namespace
    (me.folder / "katib.yaml").write_text(yaml.safe_dump(on_this_node(experiment)))
    code, _, err = me.tuner(
        "run", me.folder / "katib.yaml", "--runtime", "kubernetes", within_s=500
    )
    assert code == 0, err
    states = Counter(each["state"] for each in me.trials(f"katib-{name}"))
    if (certain := ENDS[name]) is not None:
        assert states == certain
    else:
        assert set(states) <= {"succeeded", "pruned"}
        assert states["succeeded"]


# Collectors whose values a container reports to Katib's DBManager.

REPORTS = """\
import os, sys, time, grpc
from suggest.katib.v1beta1 import api_pb2 as api
def report(value):
    line = api.MetricLog(time_stamp='2026-01-02T03:04:05Z', metric=api.Metric(name='accuracy', value=value))
    log = api.ObservationLog(metric_logs=[line])
    request = api.ReportObservationLogRequest(trial_name=os.environ['KATIB_TRIAL_NAME'], observation_log=log)
    with grpc.insecure_channel('katib-db-manager.kubeflow:6789') as channel:
        call = channel.unary_unary(
            '/api.v1.beta1.DBManager/ReportObservationLog',
            request_serializer=api.ReportObservationLogRequest.SerializeToString,
            response_deserializer=api.ReportObservationLogReply.FromString,
        )
        call(request, timeout=30, wait_for_ready=True)
"""
PUSHES = f"{REPORTS}report(sys.argv[1])"
WRITES = "import sys; open('/katib/value', 'w').write(sys.argv[1] + '\\n')"
WATCHES = f"""{REPORTS}
text = ''
while not text.endswith('\\n'):
    time.sleep(0.1)
    text = open('/katib/value').read() if os.path.exists('/katib/value') else ''
report(text.strip())
"""


def an_experiment(name: str, collector: dict[str, Any], program: str) -> dict[str, Any]:
    pod = {
        "containers": [a_container("training", program, "${trialParameters.x}")],
        "restartPolicy": "Never",
    }
    return {
        "apiVersion": "kubeflow.org/v1beta1",
        "kind": "Experiment",
        "metadata": {"name": name},
        "spec": {
            "objective": {"type": "maximize", "objectiveMetricName": "accuracy"},
            "algorithm": {
                "algorithmName": "random",
                "algorithmSettings": [{"name": "random_state", "value": "3"}],
            },
            "parallelTrialCount": 2,
            "maxTrialCount": 2,
            "parameters": [
                {
                    "name": "x",
                    "parameterType": "double",
                    "feasibleSpace": {"min": "0.1", "max": "0.9"},
                }
            ],
            "metricsCollectorSpec": collector,
            "trialTemplate": {
                "primaryContainerName": "training",
                "trialParameters": [{"name": "x", "reference": "x"}],
                "trialSpec": {
                    "apiVersion": "batch/v1",
                    "kind": "Job",
                    "spec": {"template": {"spec": pod}},
                },
            },
        },
    }


def a_container(name: str, program: str, *words: str) -> dict[str, Any]:
    command = ["python", "-c", program, *words]
    return {"name": name, "image": images.SERVER, "imagePullPolicy": "Never", "command": command}


@pytest.fixture
def reporter(level_c: RealNode, me: Searcher) -> Searcher:
    for build, tag in ((images.server, images.SERVER), (images.collector, images.COLLECTOR)):
        build()
        level_c.load(tag)
    me.env["TUNER_COLLECTOR_IMAGE"] = images.COLLECTOR
    return me


def assert_reported(me: Searcher, experiment: dict[str, Any]) -> None:
    """Run the experiment, and check that the value of each trial is the parameter
    that its container reported.
    """
    path = me.folder / "katib.yaml"
    path.write_text(yaml.safe_dump(experiment))
    code, _, err = me.tuner("run", path, "--runtime", "kubernetes", within_s=500)
    assert code == 0, err
    trials = me.trials(experiment["metadata"]["name"])
    assert [(trial["state"], trial["value"]) for trial in trials] == [
        ("succeeded", trial["parameters"]["x"]) for trial in trials
    ]
    assert len(trials) == 2


def test_a_trial_pushes_to_the_db_manager_of_its_pod(reporter: Searcher) -> None:
    assert_reported(reporter, an_experiment("pushes", {"collector": {"kind": "Push"}}, PUSHES))


def test_a_custom_collector_reports_what_it_finds_in_the_trials_folder(reporter: Searcher) -> None:
    collector = {"kind": "Custom", "customCollector": a_container("watcher", WATCHES)}
    source = {"fileSystemPath": {"path": "/katib/value", "kind": "File"}}
    assert_reported(
        reporter, an_experiment("watched", {"collector": collector, "source": source}, WRITES)
    )
