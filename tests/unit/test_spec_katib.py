"""Katib's file: what it becomes, and what is refused with which place."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.spec import SpecErrors, file_text, read, read_path
from controller.spec.katib import KatibReader
from controller.spec.problems import ProblemCollector
from controller.spec.yaml_text import parse

EXAMPLE = Path(__file__).parents[2] / "examples" / "katib" / "random.yaml"
TEXT = EXAMPLE.read_text()


def test_an_experiment_of_katib_means_the_same_as_its_native_file() -> None:
    spec = read_path(EXAMPLE).spec
    native = read(file_text(spec.document), source="native.yaml").spec
    assert native.document == spec.document
    assert (spec.budget.trials, spec.budget.failed_trials, spec.parallelism) == (4, 2, 2)
    assert (spec.objective.target, spec.objective.value.value, spec.algorithm.seed) == (0.99, "best", 7)
    assert spec.trial.args[0] == "--lr=${lr}"


def test_limits_of_the_container_are_those_of_a_trial() -> None:
    limits = "resources: {limits: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 1}, requests: {cpu: 100m}}"
    spec = read(TEXT.replace("image: tuner-digits", limits), source="katib.yaml").spec
    given = spec.trial.resources
    assert (given.cpu, given.memory_bytes, given.gpu) == (0.5, 2**30, 1)
    assert read(TEXT, source="katib.yaml").spec.trial.image == "tuner-digits"


BAD = [
    ('min: "0.001"', 'min: "0.9"', "spec.parameters[0].feasibleSpace: min 0.9 is above max 0.5"),
    ('min: "0.001"', 'min: "0"', "spec.parameters[0].feasibleSpace.min: must be above 0"),
    ('min: "0.001"', 'min: "few"', "spec.parameters[0].feasibleSpace.min: expected a number in quotes"),
    ('min: "16"', 'min: "1.5"', "spec.parameters[1].feasibleSpace.min: expected a whole number in quotes"),
    ("logUniform", "normal", "spec.parameters[0].feasibleSpace.distribution: 'normal' is not read"),
    ("name: width", "name: lr", "spec.parameters[1].name: lr is there twice"),
    ("list: [relu, tanh]", "list: [relu, tanh], min: '1'", "spec.parameters[2].feasibleSpace.min: a categorical"),
    ("type: maximize", "type: highest", "spec.objective.type: must be minimize or maximize"),
    ("[loss]", "[accuracy]", "spec.objective.additionalMetricNames: should not contain"),
    ("algorithmName: random", "algorithmName: enas", "spec.algorithm.algorithmName: enas is not read"),
    ("random_state", "seed", "spec.algorithm.algorithmSettings[0]: unknown setting 'seed' for algorithm random"),
    ("parallelTrialCount: 2", "parallelTrialCount: 5", "spec.parallelTrialCount: should be less than or equal"),
    ("maxTrialCount: 4", "maxTrialCount: 0", "spec.maxTrialCount: expected a whole number from 1, got 0"),
    ("maxFailedTrialCount: 2", "maxFailedTrialCount: -1", "spec.maxFailedTrialCount: expected a whole number from 0"),
    ("reference: lr", "reference: rate", "spec.trialTemplate.trialParameters[0].reference: rate is not a parameter"),
    ("kind: Job", "kind: TFJob", "spec.trialTemplate.trialSpec.kind: TFJob needs a cluster"),
    ("primaryContainerName: training", "primaryContainerName: main", "spec.trialTemplate.primaryContainerName: 'main'"),
    ("[loss]", "3", "spec.objective.additionalMetricNames: expected a list"),
    (
        "algorithmName: random",
        "algorithmName: [random]",
        "spec.algorithm.algorithmName: unknown algorithm name ['random']",
    ),
    ("image: tuner-digits", "volumeMounts: []", "containers[0].volumeMounts: volumes are not mounted on this machine"),
    ("image: tuner-digits", "envFrom: []", "containers[0].envFrom: is not read"),
    ("image: tuner-digits", "resources: {limits: {example.com/fpga: 1}}", "resources.example.com/fpga: "),
    ("image: tuner-digits", "resources: {limits: {cpu: many}}", "resources.cpu: expected a number, got 'many'"),
    (
        "- name: training",
        "- {name: sidecar}\n              - name: training",
        "containers[0]: only the primary container",
    ),
    ("${trialParameters.function}", "tanh", "spec.trialTemplate.trialParameters: function is not used"),
]


@pytest.mark.parametrize(("good", "bad", "message"), BAD)
def test_what_katib_refuses_or_hangs_on_is_refused_with_its_place(good: str, bad: str, message: str) -> None:
    assert good in TEXT
    with pytest.raises(SpecErrors) as caught:
        read(TEXT.replace(good, bad, 1), source="katib.yaml")
    assert message in str(caught.value)
    assert all(placed.mark.line > 1 for placed in caught.value.placed)


def test_a_file_with_anything_in_place_of_any_value_is_read_or_refused() -> None:
    def replaced(data: object) -> list[object]:
        found: list[object] = [3, "", None, [None], {"x": 1}]
        if isinstance(data, dict):
            found += [{**data, key: new} for key in data for new in replaced(data[key])]
        if isinstance(data, list):
            found += [[*data[:i], new, *data[i + 1 :]] for i in range(len(data)) for new in replaced(data[i])]
        return found

    good, _ = parse(TEXT, "katib.yaml")
    assert isinstance(good, dict)
    refused = 0
    for data in replaced(good["spec"]):
        problems = ProblemCollector()
        native = KatibReader({**good, "spec": data}, problems).native()
        assert (native is None) == bool(problems.found)
        refused += native is None
    assert refused > 100
