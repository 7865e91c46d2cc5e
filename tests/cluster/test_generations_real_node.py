"""Population based training with real containers: a claim,
init containers that copy, and a killed controller.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import images
from tests.cluster.api import CORE
from tests.cluster.objects import pods
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually

# Prints the trials in the checkpoint that it found, and adds its own.
PROGRAM = (
    "import json,os,pathlib\\n"
    "kept=pathlib.Path(os.environ['TUNER_CHECKPOINT_DIR'],'trials.json')\\n"
    "past=json.loads(kept.read_text()) if kept.exists() else []\\n"
    "print('found',json.dumps(past))\\n"
    "kept.write_text(json.dumps([*past,int(os.environ['TUNER_TRIAL_NUMBER'])]))\\n"
    "print('epoch=%d score=%d' % (len(past)+1,len(past)))"
)
EXPERIMENT = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: breed, namespace: {namespace}}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters: {{x: {{type: float, min: 0, max: 1}}}}
  algorithm: {{name: pbt, seed: 1, settings: {{population: 3}}}}
  budget: {{trials: 9}}
  parallelism: 2
  canary: 0s
  runtime: kubernetes
  trial:
    image: {image}
    imagePullPolicy: Never
    command: [python, -c, "{program}", "${{x}}"]
    resources: {{cpu: 400m, memory: 64Mi}}
    checkpoints: {{claim: kept}}
    gracePeriod: 1s
"""


@pytest.fixture
def me(level_c: RealNode, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    images.digits()
    level_c.load(images.DIGITS)
    folder = level_c.folder / f"disk-{namespace}"
    folder.mkdir()
    folder.chmod(0o777)  # a hostPath volume does not follow fsGroup
    api, size = level_c.api(), {"storage": "1Gi"}
    modes = ["ReadWriteMany"]
    claim = {
        "accessModes": modes,
        "resources": {"requests": size},
        "storageClassName": "",
        "volumeName": namespace,
    }
    disk = {"capacity": size, "accessModes": modes, "hostPath": {"path": str(folder)}}
    api.post(f"{CORE}/persistentvolumes", {"metadata": {"name": namespace}, "spec": disk})
    api.post(
        f"{CORE}/namespaces/{namespace}/persistentvolumeclaims",
        {"metadata": {"name": "kept"}, "spec": claim},
    )
    person = Searcher(tmp_path, level_c.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()
    api.delete(f"{CORE}/persistentvolumes/{namespace}")


KATIB = """\
apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {{name: breed}}
spec:
  objective: {{type: maximize, objectiveMetricName: score}}
  algorithm:
    algorithmName: pbt
    algorithmSettings:
      - {{name: suggestion_trial_dir, value: /opt/katib/data}}
      - {{name: n_population, value: "5"}}
      - {{name: truncation_threshold, value: "0.4"}}
  parallelTrialCount: 3
  maxTrialCount: 10
  parameters: [{{name: x, parameterType: double, feasibleSpace: {{min: "0", max: "1", step: "0.1"}}}}]
  trialTemplate:
    primaryContainerName: training
    trialParameters: [{{name: x, reference: x}}]
    trialSpec:
      apiVersion: batch/v1
      kind: Job
      spec:
        template:
          spec:
            restartPolicy: Never
            containers:
              - name: training
                image: {image}
                imagePullPolicy: Never
                command: [python, -c, "{program}", "${{trialParameters.x}}", /opt/katib/data]
                volumeMounts: [{{name: disk, mountPath: /opt/katib/data}}]
            volumes: [{{name: disk, persistentVolumeClaim: {{claimName: kept}}}}]
"""


def line(trials: dict[int, Any], number: int) -> list[int]:
    parent = trials[number].get("parent")
    return [] if parent is None else [*line(trials, parent), parent]


def test_after_a_kill_each_container_finds_the_checkpoint_of_its_parent(
    level_c: RealNode, me: Searcher
) -> None:
    path = me.folder / "breed.yaml"
    path.write_text(EXPERIMENT.format(namespace=me.namespace, image=images.DIGITS, program=PROGRAM))
    running = me.start("run", path)
    eventually(
        lambda: any(
            "initContainers" in pod["spec"] for pod in level_c.api().items(pods(me.namespace))
        )
    )
    running.send_signal(signal.SIGKILL)
    running.communicate()
    code, _, err = me.tuner("run", path, within_s=500)
    assert code == 0, err
    trials = {trial["number"]: trial for trial in me.trials("breed")}
    assert [trial["state"] for trial in trials.values()] == ["succeeded"] * 9
    assert [len(trial["attempts"]) for trial in trials.values()] == [1] * 9
    for number in trials:
        _, log, _ = me.tuner("logs", f"breed/{number}")
        assert f"found {json.dumps(line(trials, number))}" in log
    assert len(line(trials, 8)) == 2


def test_the_claim_in_a_katib_file_keeps_the_checkpoints(me: Searcher) -> None:
    program = PROGRAM.replace("import ", "import sys,").replace(
        "os.environ['TUNER_CHECKPOINT_DIR']", "sys.argv[2]"
    )
    path = me.folder / "breed.yaml"
    path.write_text(KATIB.format(image=images.DIGITS, program=program))
    code, _, err = me.tuner("run", path, "--runtime", "kubernetes", within_s=500)
    assert code == 0, err
    trials = {trial["number"]: trial for trial in me.trials("breed")}
    assert [trial["state"] for trial in trials.values()] == ["succeeded"] * 10
    for number in trials:
        _, log, _ = me.tuner("logs", f"breed/{number}")
        assert f"found {json.dumps(line(trials, number))}" in log
    assert sum("parent" in trial for trial in trials.values()) == 5
