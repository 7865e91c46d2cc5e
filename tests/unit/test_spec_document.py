"""The canonical document: defaults are filled in, equal meanings
have one spelling, and it can be read back.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest

from controller.core.model import (
    Budget,
    ExperimentObjective,
    FailureClass,
    MetricsRule,
    Resources,
    SecretRef,
)
from controller.spec import (
    Change,
    allowed_in_extension,
    allowed_in_revision,
    diff,
    from_document,
    read,
    redacted,
    redacted_document,
    starter,
)
from suggest.errors import Problem
from suggest.space import Choice, Condition, Float, Int, Parameter, Scale, Space
from suggest.study import Algorithm, Direction, Pruning, ValueRule

SMALL = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: small}
spec:
  objective: {metric: loss, direction: minimize}
  parameters:
    lr: {type: float, min: 0.001, max: 1, scale: log}
    opt: [sgd, adam]
  trial: {command: [train, "${lr}", "${opt}"]}
"""

WHOLE = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: cifar, namespace: user1, labels: {team: vision}}
spec:
  objective: {metric: accuracy, direction: maximize, target: 0.95, value: best}
  metrics: {step: epoch, pattern: '(\\w+)=(\\S+)'}
  parameters:
    lr: {type: float, min: 0.001, max: 1.0, scale: log, points: 4}
    layers: {type: int, min: 2, max: 8, step: 2}
    optimizer: [sgd, adam]
    momentum: {type: float, min: 0, max: 0.99, when: {optimizer: sgd}}
  initial: [{lr: 0.1, optimizer: sgd, layers: 4.0}]
  algorithm: {name: tpe, seed: 7, settings: {startupTrials: 10}}
  pruning: {name: median, warmupSteps: 3, interval: 1, minTrials: 5}
  parallelism: 8
  budget: {trials: 100, failedTrials: 10, wallClock: 6h}
  canary: 10s
  runtime: kubernetes
  trial:
    image: registry.example/cifar:3
    imagePullPolicy: IfNotPresent
    imagePullSecrets: [regcred]
    command: [python, train.py, "--lr=${lr}", "--layers=${layers}", "--opt=${optimizer}", "--momentum=${momentum}"]
    args: []
    env: {OMP_NUM_THREADS: 4, API_KEY: {secret: name/key}}
    resources: {cpu: 4, memory: 16Gi, gpu: 1, ephemeralStorage: 10Gi, "nvidia.com/mig-1g.10gb": 0}
    shm: 2Gi
    volumes:
      data: {mount: /data, claim: cifar10, readOnly: true}
    checkpoints: {claim: checkpoints}
    nodeSelector: {pool: gpu}
    tolerations: [{key: gpu, operator: Exists, effect: NoSchedule}]
    priorityClass: batch
    serviceAccount: trainer
    queue: team-a
    timeout: 2h
    gracePeriod: 30s
    retries: {infrastructure: 3, timeout: 0, outOfMemory: 0, userError: 0}
    distributed: {workers: 2}
"""

TEMPLATE = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: any-kind}
spec:
  objective: {metric: loss, direction: minimize}
  parameters: {lr: [0.1, 0.2]}
  runtime: kubernetes
  trial:
    template: {apiVersion: kubeflow.org/v1, kind: PyTorchJob, metadata: {}, spec: {args: ["--lr=${lr}"]}}
    success: {type: Complete, status: "True"}
    failure: {type: Failed}
    primary: {labels: {role: master}, container: main}
"""


def document(text: str, *overrides: str) -> dict[str, object]:
    return dict(read(text, source="experiment.yaml", overrides=overrides).spec.document)


def test_a_whole_file_becomes_the_experiment_it_describes() -> None:
    spec = read(WHOLE, source="experiment.yaml").spec
    assert (spec.name, spec.namespace, spec.labels) == ("cifar", "user1", {"team": "vision"})
    assert spec.objective == ExperimentObjective(
        "accuracy", Direction.MAXIMIZE, ValueRule.BEST, 0.95
    )
    assert spec.metrics == MetricsRule("epoch", (r"(\w+)=(\S+)",))
    assert spec.space == Space(
        (
            Parameter("lr", Float(0.001, 1.0, Scale.LOG, points=4)),
            Parameter("layers", Int(2, 8, step=2)),
            Parameter("optimizer", Choice(("sgd", "adam"))),
            Parameter("momentum", Float(0.0, 0.99), (Condition("optimizer", ("sgd",)),)),
        )
    )
    assert spec.initial == ({"lr": 0.1, "layers": 4, "optimizer": "sgd"},)
    assert spec.algorithm == Algorithm("tpe", 7, {"startupTrials": 10})
    assert spec.pruning == Pruning("median", {"warmupSteps": 3, "interval": 1, "minTrials": 5})
    assert (spec.parallelism, spec.budget, spec.canary_s) == (8, Budget(100, 10, 21_600.0), 10.0)
    assert spec.runtime == "kubernetes"
    trial = spec.trial
    assert trial.env == {"OMP_NUM_THREADS": "4", "API_KEY": SecretRef("name", "key")}
    assert trial.resources == Resources(
        4.0, 16 * 2**30, 1.0, 10 * 2**30, {"nvidia.com/mig-1g.10gb": 0}
    )
    assert (trial.timeout_s, trial.grace_s, trial.image) == (
        7_200.0,
        30.0,
        "registry.example/cifar:3",
    )
    assert trial.retries[FailureClass.INFRASTRUCTURE] == 3
    assert trial.cluster == {
        "imagePullPolicy": "IfNotPresent",
        "imagePullSecrets": ["regcred"],
        "shm": "2Gi",
        "volumes": {"data": {"mount": "/data", "claim": "cifar10", "readOnly": True}},
        "checkpoints": {"claim": "checkpoints"},
        "nodeSelector": {"pool": "gpu"},
        "tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClass": "batch",
        "serviceAccount": "trainer",
        "queue": "team-a",
        "distributed": {"workers": 2},
    }


def test_a_template_takes_the_place_of_a_command() -> None:
    trial = read(TEMPLATE, source="experiment.yaml").spec.trial
    assert trial.command == ()
    assert trial.cluster["failure"] == {"type": "Failed", "status": "True"}


@pytest.mark.parametrize("text", [SMALL, WHOLE, TEMPLATE, starter()])
def test_a_stored_document_reads_back_to_the_same_spec(text: str) -> None:
    spec = read(text, source="experiment.yaml").spec
    stored = json.loads(json.dumps(spec.document))
    assert from_document(stored) == spec
    # a canonical document is a file, and its own canonical form
    again = read(json.dumps(stored), source="stored").spec
    assert again.document == spec.document


def test_a_document_from_before_files_had_limits_reads_back() -> None:
    document = json.loads(json.dumps(read(TEMPLATE, source="experiment.yaml").spec.document))
    spec = document["spec"]
    spec |= {"parallelism": 2**60, "budget": {"trials": 2**60, "failedTrials": 2**60}}
    spec["algorithm"] = {"name": "tpe", "seed": 2**70, "settings": {"startupTrials": math.inf}}
    spec["parameters"]["lr"] = {
        "type": "float",
        "min": 0.0,
        "max": 1.0,
        "scale": "linear",
        "points": 2**40,
    }
    spec["fidelity"] = {"parameter": "epochs", "min": 1, "max": 9, "eta": 2**40}
    spec["trial"]["template"]["spec"]["backoffLimit"] = math.inf
    spec["trial"]["resources"] = {
        "memory": "8789062500000Mi",
        "ephemeralStorage": "9Ei",
        "example.com/fpga": 2**60,
    }
    spec["trial"]["retries"]["infrastructure"] = 2**60
    trial = from_document(json.loads(json.dumps(document))).trial
    assert trial.resources.memory_bytes == 8_789_062_500_000 * 2**20
    assert trial.resources.ephemeral_storage_bytes == 9 * 2**60


def test_the_environment_of_a_local_trial_may_change_on_resume() -> None:
    mig = "MIG-cba663e8-9bed-5b25-b243-5985ef7c9beb"
    old = read(SMALL, source="experiment.yaml")
    assert (old.spec.trial.working_dir, old.spec.trial.parameters_file, old.spec.trial.devices) == (
        "",
        "json",
        (),
    )
    changes = (
        f"spec.trial.devices=[0, '1', {mig}]",
        "spec.trial.workingDir=src",
        "spec.trial.parametersFile=yaml",
    )
    new = read(SMALL, source="experiment.yaml", overrides=changes)
    assert new.spec.trial.devices == ("0", "1", mig)
    assert (new.spec.trial.working_dir, new.spec.trial.parameters_file) == ("src", "yaml")
    assert from_document(json.loads(json.dumps(new.spec.document))) == new.spec
    assert all(allowed_in_revision(change) for change in diff(old.spec.document, new.spec.document))


def test_defaults_are_filled_in() -> None:
    spec = read(SMALL, source="experiment.yaml").spec
    assert (spec.namespace, spec.parallelism, spec.canary_s, spec.runtime) == (
        "default",
        1,
        10.0,
        "local",
    )
    assert (spec.budget, spec.algorithm, spec.pruning) == (
        Budget(100, 10),
        Algorithm("default"),
        None,
    )
    assert (spec.trial.grace_s, spec.trial.timeout_s) == (30.0, None)
    assert {c.value: n for c, n in spec.trial.retries.items() if n} == {"infrastructure": 3}


@pytest.mark.parametrize(
    ("override", "budget"),
    [
        ("spec.algorithm.name=grid", Budget(None, 5)),
        ("spec.budget.trials=none", Budget(None, 5)),
        ("spec.budget.trials=10", Budget(10, 5)),
        ("spec.budget.trials=51", Budget(51, 6)),
        ("spec.budget.failedTrials=1", Budget(100, 1)),
        ("spec.budget.wallClock=1h30m", Budget(100, 10, 5_400.0)),
    ],
)
def test_the_budget_s_defaults_follow_from_the_rest(override: str, budget: Budget) -> None:
    assert read(SMALL, source="x", overrides=[override]).spec.budget == budget


def test_defaults_of_one_file_are_not_those_of_another() -> None:
    first = document(SMALL)
    first["spec"]["algorithm"]["settings"]["a"] = 1  # type: ignore[index]  # plain data
    assert document(SMALL)["spec"]["algorithm"]["settings"] == {}  # type: ignore[index]


SAME = [
    ("max: 1,", "max: 1.0,"),
    ("min: 0.001", "min: 1e-3"),
    ("[sgd, adam]", "{type: choice, values: ['sgd', adam]}"),
    (
        "  trial:",
        "  parallelism: 1\n  budget: {trials: 100}\n  canary: 0.1666666666666666667m\n  trial:",
    ),
    ("{name: small}", "{labels: {}, name: small}  # small"),
    ("{command:", "{gracePeriod: 0.5m, command:"),
]


@pytest.mark.parametrize(("old", "new"), SAME)
def test_another_spelling_of_the_same_meaning_is_no_difference(old: str, new: str) -> None:
    assert SMALL.count(old) == 1
    assert diff(document(SMALL.replace(old, new)), document(SMALL)) == []


def test_another_meaning_is_a_difference() -> None:
    assert diff(document(SMALL, "spec.parallelism=2"), document(SMALL))
    one, other = SMALL.replace("[sgd, adam]", "[1, true]"), SMALL.replace("[sgd, adam]", "[1, 0]")
    assert diff(document(one), document(other))


def test_a_default_that_a_stored_document_lacks_is_no_difference() -> None:
    stored = document(SMALL)
    spec = stored["spec"]
    assert isinstance(spec, dict)
    spec["trial"] = {key: value for key, value in spec["trial"].items() if key != "logLimit"}
    assert diff(stored, document(SMALL)) == []
    limited = document(SMALL.replace("trial: {", "trial: {logLimit: 2Gi, "))
    assert [str(change) for change in diff(stored, limited)] == [
        'spec.trial.logLimit: nothing -> "2Gi"'
    ]


def test_a_difference_names_its_path_and_both_values() -> None:
    new = document(SMALL, "spec.parallelism=4", "spec.trial.timeout=5m", "spec.parameters.lr.max=2")
    changes = diff(document(SMALL), new)
    assert changes == [
        Change("spec.parameters.lr.max", 1, 2),
        Change("spec.parallelism", 1, 4),
        Change("spec.trial.timeout", None, "5m"),
    ]
    assert [str(c) for c in changes][1:] == [
        "spec.parallelism: 1 -> 4",
        'spec.trial.timeout: nothing -> "5m"',
    ]
    assert [allowed_in_revision(c) for c in changes] == [False, True, True]


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        ("spec.trial.command", True),
        ("spec.pruning", True),
        ("spec.budget.trials", True),
        ("spec.metrics.collectorImage", True),
        ("spec.metrics.file", True),
        ("spec.metrics", True),
        ("spec.objective.metric", True),
        ("spec.objective.direction", False),
        ("spec.objective.target", False),
        ("spec.algorithm.seed", False),
        ("spec.runtime", False),
        ("metadata.namespace", False),
    ],
)
def test_a_revision_changes_how_trials_run_and_never_what_is_searched(
    path: str, allowed: bool
) -> None:
    assert allowed_in_revision(Change(path, 1, 2)) is allowed


@pytest.mark.parametrize("key", ["objectives", "constraints"])
@pytest.mark.parametrize(
    ("changed", "allowed"), [({"metric": "b"}, True), ({"min": 2}, False), (None, False)]
)
def test_metrics_in_lists_may_have_other_names(
    key: str, changed: dict[str, object] | None, allowed: bool
) -> None:
    goal: dict[str, object] = {"metric": "a", "min": 1}
    new = [goal, goal] if changed is None else [goal | changed]
    assert allowed_in_revision(Change(f"spec.{key}", [goal], new)) is allowed


def test_a_target_of_several_objectives_may_change_in_an_extension() -> None:
    goals: list[dict[str, object]] = [{"metric": "a", "target": 1}, {"metric": "b"}]
    change = Change("spec.objectives", goals, [{"metric": "a", "target": 2}, {"metric": "b"}])
    assert (allowed_in_extension(change), allowed_in_revision(change)) == (True, False)


def test_the_service_s_problems_are_placed_in_the_file() -> None:
    read_file = read(WHOLE, source="cifar.yaml")
    error = read_file.locate(
        [
            Problem("algorithm.settings.startupTrials", "too many"),
            Problem("pruning.settings.interval", "too few"),
            Problem("space.lr.min", "too low"),
            Problem("study.spec.space.optimizer.values[1]", "unknown"),
            Problem("algorithm.seed.what", "unknown"),
        ]
    )
    assert str(error) == (
        "cifar.yaml: 5 problems\n"
        "  8:28 spec.parameters.lr.min: too low\n"
        "  10:22 spec.parameters.optimizer[1]: unknown\n"
        "  13:26 spec.algorithm.seed.what: unknown\n"
        "  13:61 spec.algorithm.settings.startupTrials: too many\n"
        "  14:53 spec.pruning.interval: too few"
    )


def test_values_that_look_like_secrets_are_stored_and_redacted() -> None:
    env = {
        "API_KEY": "k",
        "HF_TOKEN": "t",
        "DBPASSWORD": "p",
        "TOKENIZERS_PARALLELISM": "false",
        "LR": "1",
    }
    hidden = dict.fromkeys(["API_KEY", "HF_TOKEN", "DBPASSWORD"], "[redacted]")
    assert redacted(env) == env | hidden
    whole = document(SMALL, "spec.trial.env={API_KEY: k, OTHER_KEY: {secret: a/b}}")
    assert whole["spec"]["trial"]["env"]["API_KEY"] == "k"  # type: ignore[index]
    shown = redacted_document(whole)
    assert shown["spec"]["trial"]["env"] == {
        "API_KEY": "[redacted]",
        "OTHER_KEY": {"secret": "a/b"},
    }  # type: ignore[index]


@pytest.mark.parametrize("suspend", [True, False])
def test_suspend_is_for_the_controller_in_a_cluster_and_no_part_of_the_search(
    suspend: bool,
) -> None:
    suspended = read(SMALL, source="e.yaml", overrides=[f"spec.suspend={suspend}".lower()])
    assert suspended.spec == read(SMALL, source="e.yaml").spec
    heard = "spec.suspend: only the controller in a cluster heeds it; here the trials run"
    assert suspended.warnings == ((heard,) if suspend else ())


def test_the_examples_have_no_problems() -> None:
    files = sorted(Path("examples").glob("*/*.yaml"))
    # Its program asks for its parameters by tuner.current_trial().
    arrive = "lr, leaves: not mentioned in command, args or env; they arrive in TUNER_PARAMETERS"
    warnings = {"lightgbm.yaml": (arrive,)}
    for path in files:
        text = path.read_text(encoding="utf-8")
        if re.search(r"^apiVersion: tuner\.dev/", text, re.M):
            assert read(text, source=str(path)).warnings == warnings.get(path.name, ()), path
