"""A file with every key and comments, once with an image and once with a template."""

import pytest

from controller.search import study_spec
from controller.spec import read
from suggest.engine import check_spec

TOP = r"""apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: cifar, namespace: user1, labels: {team: vision}}
spec:
  objective: {metric: accuracy, direction: maximize, target: 0.95, value: last}      # value: last | best
  metrics: {step: epoch, pattern: '(\w+)=(\S+)'}                                     # optional
  parameters:
    lr: {type: float, min: 0.001, max: 1.0, scale: log, points: 5}    # points or step make a float fit a grid; without either a grid is refused
    layers: {type: int, min: 2, max: 8, step: 2}
    optimizer: [sgd, adam]                                            # choices: strings, numbers, booleans
    momentum: {type: float, min: 0, max: 0.99, when: {optimizer: sgd}}          # when: {parameter: value or list}
  initial: [{lr: 0.1, optimizer: sgd}]              # tried first; partial allowed; counted in budget.trials
  algorithm: {name: tpe, seed: 7, settings: {startupTrials: 10}}
  pruning: {name: median, warmupSteps: 3, interval: 1, minTrials: 5}  # minTrials: succeeded trials with a value at or before that step
  parallelism: 8
  budget: {trials: 100, failedTrials: 10, wallClock: 6h}              # wallClock counts running time, not pauses or downtime
  canary: 10s               # the first trial runs alone until its first metric, or this long; 0s switches it off
  runtime: kubernetes
  trial:
"""

IMAGE = """    image: registry.example/cifar:3
    imagePullPolicy: IfNotPresent
    imagePullSecrets: [regcred]
    command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--optimizer=${optimizer}", "--momentum=${momentum}"]
    args: []
    env: {OMP_NUM_THREADS: 4, API_KEY: {secret: name/key}}
    resources: {cpu: 4, memory: 16Gi, gpu: 1, ephemeralStorage: 10Gi, "nvidia.com/mig-1g.10gb": 0}   # requests = limits; gpu is nvidia.com/gpu; locally gpu may be a fraction
    shm: 2Gi
    volumes:
      data: {mount: /data, claim: cifar10, readOnly: true}            # or nfs: {server, path} · emptyDir: {} · hostPath is refused
    checkpoints: {claim: checkpoints}                                 # TUNER_CHECKPOINT_DIR on Kubernetes
    nodeSelector: {pool: gpu}
    tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
    priorityClass: batch
    serviceAccount: trainer
    queue: team-a                                                     # Kueue LocalQueue
    timeout: 2h
    gracePeriod: 30s
    retries: {infrastructure: 3, timeout: 0, outOfMemory: 0, userError: 0}
    distributed: {workers: 2}
"""

TEMPLATE = """    # instead of image..distributed: a whole object of any kind
    template: {apiVersion: ..., kind: ..., metadata: {}, spec: {}}
    success: {type: Complete, status: "True"}                         # condition; Job's is built in
    failure: {type: Failed, status: "True"}
    primary: {labels: {role: master}, container: main}                # whose log is read
"""


@pytest.mark.parametrize("trial", [IMAGE, TEMPLATE])
def test_the_whole_file_has_no_problems(trial: str) -> None:
    spec = read(TOP + trial, source="experiment.yaml").spec
    assert check_spec(study_spec(spec)) == ()
    assert spec.initial == ({"lr": 0.1, "optimizer": "sgd"},)
