"""Katib's file: what it becomes, and what is refused with which place."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from controller.app.validate import warnings
from controller.core.line_pattern import LinePattern
from controller.core.model import ExperimentSpec
from controller.core.substitute import fill
from controller.runtime.local import machine
from controller.search import study_spec
from controller.spec import SpecErrors, file_text, read, read_path
from controller.spec.katib import KatibReader
from controller.spec.katib_template import native_condition
from controller.spec.problems import ProblemCollector
from controller.spec.yaml_text import parse
from suggest.domain import Domain, Float, Int, Normal, Scale
from suggest.errors import InvalidArgument
from suggest.studies.study_service import check
from suggest.study import Fidelity, Pruning
from tests.unit.changes import changes

EXAMPLES = Path(__file__).parents[2] / "examples" / "katib"
EXAMPLE = EXAMPLES / "random.yaml"
TEXT = EXAMPLE.read_text()
HYPERBAND = (EXAMPLES / "hyperband.yaml").read_text()


def test_a_katib_experiment_equals_its_native_file() -> None:
    spec = read_path(EXAMPLE).spec
    native = read(file_text(spec.document), source="native.yaml").spec
    assert native.document == spec.document
    assert (spec.budget.trials, spec.budget.failed_trials, spec.parallelism) == (4, 2, 2)
    assert (spec.objective.target, spec.objective.value.value, spec.algorithm.seed) == (
        0.99,
        "best",
        7,
    )
    assert spec.trial.args[0] == "--lr=${lr}"


NAMES = [
    "--lr",
    "learning rate",
    "lr/decay",
    "model.optimizer[0].lr",
    "größe",
    "a=b",
    "1",
    "\"'<b>&",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_parameter_may_have_any_name_that_a_placeholder_can_say(name: str) -> None:
    quoted = json.dumps(name)
    text = TEXT.replace("name: lr,", f"name: {quoted},").replace(
        "reference: lr}", f"reference: {quoted}}}"
    )
    spec = read(text, source="katib.yaml").spec
    assert spec.space.parameters[0].name == name
    assert fill(spec.trial.args[0], {name: 0.1}) == "--lr=0.1"
    assert read(file_text(spec.document), source="native.yaml").spec == spec


@pytest.mark.parametrize(
    ("old", "new", "domain"),
    [
        (
            'min: "16", max: "64", step: "16"',
            'min: "16", max: "128", step: "50"',
            Int(16, 116, step=50),
        ),
        ('min: "16", max: "64", step: "16"', 'min: "16", max: "64", step: "99"', Int(16, 16)),
        (
            'min: "0.001", max: "0.5", distribution: logUniform',
            'min: "0", max: "0.35", step: "0.1"',
            Float(0, 0.3, step=0.1),
        ),
    ],
)
def test_a_range_ends_at_its_last_step(old: str, new: str, domain: Domain) -> None:
    spec = read(TEXT.replace(old, new), source="katib.yaml").spec
    assert domain in [p.domain for p in spec.space.parameters]


def test_the_distribution_is_that_of_the_range_as_it_is_written() -> None:
    new = 'min: "0", max: "1", step: "0.3", distribution: normal'
    text = TEXT.replace('min: "0.001", max: "0.5", distribution: logUniform', new)
    [lr, *_] = read(text, source="katib.yaml").spec.space.parameters
    assert lr.domain == Float(0, 0.9, step=0.3, normal=Normal.within(0, 1, Scale.LINEAR))


@pytest.mark.parametrize(
    ("count", "limit"), [("maxFailedTrialCount: 2", 2), ("maxFailedTrialCount: 0", 1), ("", None)]
)
def test_the_limit_of_failures_is_katibs(count: str, limit: int | None) -> None:
    spec = read(TEXT.replace("  maxFailedTrialCount: 2", f"  {count}"), source="katib.yaml").spec
    assert (spec.budget.failed_trials, spec.breaker) == (limit, False)
    assert read(file_text(spec.document), source="native.yaml").spec == spec


def test_limits_of_the_container_are_those_of_a_trial() -> None:
    limits = (
        "resources: {limits: {cpu: 500m, memory: 1Gi, nvidia.com/gpu: 1}, requests: {cpu: 100m}}"
    )
    spec = read(TEXT.replace("image: tuner-digits", limits), source="katib.yaml").spec
    given = spec.trial.resources
    assert (given.cpu, given.memory_bytes, given.gpu) == (0.5, 2**30, 1)
    assert read(TEXT, source="katib.yaml").spec.trial.image == "tuner-digits"


PBT = (
    '{name: suggestion_trial_dir, value: /data/}, {name: n_population, value: "5"}, '
    '{name: truncation_threshold, value: "0.4"}'
)


def algorithm(name: str, settings: str = "") -> str:
    """Return the example with another algorithm."""
    text = TEXT.replace("algorithmName: random", f"algorithmName: {name}")
    return text.replace('{name: random_state, value: "7"}', settings)


@pytest.mark.parametrize("file", sorted(EXAMPLES.glob("*.yaml")), ids=lambda file: file.stem)
@pytest.mark.parametrize("runtime", ["local", "kubernetes"])
def test_a_converted_file_is_the_same_experiment(file: Path, runtime: str) -> None:
    if (file.stem, runtime) == ("pbt", "kubernetes"):
        pytest.skip("refused: an object from a template mounts no checkpoint")
    document = read(file.read_text(), source="katib.yaml", overrides=[f"spec.runtime={runtime}"])
    native = read(file_text(document.spec.document), source="native.yaml")
    assert document.is_katib
    assert not native.is_katib
    assert native.spec == document.spec  # so that the two propose the same points


@pytest.mark.parametrize(
    ("text", "name", "settings", "seed"),
    [
        (algorithm("tpe"), "tpe", {"multivariate": False}, None),
        (algorithm("multivariate-tpe"), "tpe", {"multivariate": True}, None),
        (
            algorithm(
                "tpe", '{name: n_startup_trials, value: "3"}, {name: n_EI_candidates, value: "9"}'
            ),
            "tpe",
            {"multivariate": False, "startupTrials": 3, "candidates": 9},
            None,
        ),
        (
            algorithm("bayesianoptimization", '{name: n_initial_points, value: "4"}'),
            "gp",
            {"startupTrials": 4},
            None,
        ),
        (algorithm("cmaes", '{name: random_state, value: "0"}'), "cmaes", {}, 0),
        (algorithm("cmaes", "{name: restart_strategy, value: ipop}"), "cmaes", {}, None),
        (
            algorithm("cmaes", "{name: restart_strategy, value: none}"),
            "cmaes",
            {"populationGrowth": 1},
            None,
        ),
        (
            algorithm("pbt", PBT),
            "pbt",
            {"resampleProbability": 0.0, "population": 5, "truncation": 0.4},
            None,
        ),
        (
            algorithm("pbt", f'{PBT}, {{name: resample_probability, value: "1"}}'),
            "pbt",
            {"resampleProbability": 1.0, "population": 5, "truncation": 0.4},
            None,
        ),
        (algorithm("grid", '{name: random_state, value: "1"}'), "grid", {}, None),
    ],
)
def test_the_settings_of_all_engines_are_read(
    text: str, name: str, settings: dict[str, object], seed: int
) -> None:
    text = text.replace(
        'min: "0.001", max: "0.5", distribution: logUniform', 'min: "0.1", max: "0.5", step: "0.1"'
    )
    spec = read(text, source="katib.yaml").spec
    assert (spec.algorithm.name, dict(spec.algorithm.settings), spec.algorithm.seed) == (
        name,
        settings,
        seed,
    )


def test_settings_without_effect_are_reported() -> None:
    warnings = read(
        algorithm("bayesianoptimization", "{name: acq_func, value: EI}"), source="katib.yaml"
    ).warnings
    why = "acq_func has no effect here: bayesianoptimization has its own rule for it"
    assert warnings == (f"spec.algorithm.algorithmSettings[0]: {why}",)


def test_a_warning_names_the_place_in_katibs_file() -> None:
    text = TEXT.replace(
        "[python, ../digits/train.py]", "[sh, -c, 'train ${trialParameters.function}']"
    ).replace("list: [relu, tanh]", "list: [relu, $tanh]")
    (warning,) = read(text, source="katib.yaml").warnings
    assert warning == (
        "spec.trialTemplate.trialSpec.spec.template.spec.containers[0].command[2]: the shell "
        "reads the text of "
        '${trialParameters.function} as code; write "$1" in the script and append the words sh, '
        '"${trialParameters.function}" to the command, or set a variable in env'
    )


def test_a_rate_without_a_log_scale_is_warned_of_with_katibs_cure() -> None:
    text = TEXT.replace('"0.001", max: "0.5", distribution: logUniform', '"0.0001", max: "0.5"')
    (warning,) = read(text, source="katib.yaml").warnings
    assert warning == (
        "spec.parameters[0]: nine of ten random values from 0.0001 to 0.5 are above 0.05; if "
        "smaller ones are as likely to be good, as for a learning rate, write "
        "distribution: logUniform"
    )


def test_the_resource_of_hyperband_becomes_the_fidelity() -> None:
    spec = read(HYPERBAND, source="katib.yaml").spec
    assert spec.fidelity == Fidelity("epochs", 1, 9, 3)
    assert [p.name for p in spec.space.parameters] == ["lr"]
    assert spec.trial.args == ("--lr=${lr}", "--epochs=${epochs}")


def test_medianstop_is_the_median_rule() -> None:
    spec = read_path(EXAMPLES / "early-stopping.yaml").spec
    assert spec.pruning == Pruning("median", {"minTrials": 1, "warmupSteps": 2})
    text = TEXT.replace(
        "  parallelTrialCount", "  earlyStopping: {algorithmName: medianstop}\n  parallelTrialCount"
    )
    assert read(text, source="katib.yaml").spec.pruning == Pruning(
        "median", {"minTrials": 3, "warmupSteps": 4}
    )


@pytest.mark.parametrize(
    ("strategy", "value"), [("latest", "last"), ("min", "worst"), ("max", "best")]
)
def test_a_metric_strategy_chooses_the_measurement_that_is_the_value(
    strategy: str, value: str
) -> None:
    more = f"metricStrategies: [{{name: loss, value: min}}, {{name: accuracy, value: {strategy}}}]"
    text = TEXT.replace(
        "additionalMetricNames: [loss]", f"additionalMetricNames: [loss]\n    {more}"
    )
    assert read(text, source="katib.yaml").spec.objective.value.value == value


def test_a_filter_keeps_its_name_and_value_groups() -> None:
    (pattern,) = read_path(EXAMPLES / "metric-strategies.yaml").spec.metrics.patterns
    assert list(LinePattern(pattern).pairs("step 3: loss = -7.5e-05;")) == [("loss", "-7.5e-05")]


def test_on_a_cluster_the_object_is_created_unchanged() -> None:
    text = TEXT.replace("kind: Job", "kind: PyTorchJob").replace(
        "apiVersion: batch/v1", "apiVersion: kubeflow.org/v1"
    )
    more = (
        "primaryPodLabels: {role: master}\n    successCondition: "
        "status.conditions.#(type==Done)#|#(status==True)#"
    )
    text = text.replace(
        "primaryContainerName: training", f"primaryContainerName: training\n    {more}"
    )
    spec = read(text, source="katib.yaml", overrides=["spec.runtime=kubernetes"]).spec
    cluster = spec.trial.cluster
    assert cluster["primary"] == {"labels": {"role": "master"}, "container": "training"}
    assert cluster["success"] == {"type": "Done", "status": "True"}
    template = cluster["template"]
    assert isinstance(template, dict)
    container = template["spec"]["template"]["spec"]["containers"][0]
    assert container["args"][0] == "--lr=${lr}"


def test_no_labels_of_the_primary_pod_are_those_of_its_kind() -> None:
    name = "primaryContainerName: training"
    text = TEXT.replace(name, f"{name}\n    primaryPodLabels: {{}}")
    overrides = ["spec.runtime=kubernetes"]
    with_none = read(TEXT, source="katib.yaml", overrides=overrides).spec
    assert read(text, source="katib.yaml", overrides=overrides).spec == with_none


def test_problems_after_the_translation_have_the_places_of_katibs_file() -> None:
    for text, place in (
        (TEXT.replace('step: "16"', 'step: "0"'), "spec.parameters[1].feasibleSpace.step: "),
        (TEXT.replace("name: katib-random", "name: Katib_Random"), "metadata.name: "),
        (
            TEXT.replace(
                'min: "0.001", max: "0.5", distribution: logUniform',
                'min: "0.5", max: "0.5", distribution: normal',
            ),
            "spec.parameters[0].feasibleSpace.distribution: min equals max",
        ),
        (
            HYPERBAND.replace('value: "9"', 'value: "2"'),
            "spec.algorithm.algorithmSettings[2]: 2 is below",
        ),
        (
            algorithm(
                "tpe",
                '{name: n_startup_trials, value: "3"}, {name: n_ei_candidates, value: "9999"}',
            ),
            "spec.algorithm.algorithmSettings[1]: 9999",
        ),
    ):
        with pytest.raises(SpecErrors) as caught:
            checked(text)
        assert place in str(caught.value), str(caught.value)
        assert all(located.mark.line > 1 for located in caught.value.located)


def checked(text: str) -> None:
    """What a command does with a file: the service checks its study."""
    document = read(text, source="katib.yaml", service=check)
    try:
        check(study_spec(document.spec))
    except InvalidArgument as error:
        raise document.locate(error.problems) from None


BAD = r"""
- algorithmName: random
+ algorithmName: Bayesian-Optimization
  spec.algorithm.algorithmName: unknown algorithm name 'Bayesian-Optimization'; did you mean bayesianoptimization?
- restartPolicy: Never
+ restartPolicy: Always
  spec.template.spec.restartPolicy: a Job's pods have Never or OnFailure; write restartPolicy: Never
- --activation=${trialParameters.function}
+ --activation=${function}
  spec.trialTemplate.trialParameters: function is not used in the template; write ${trialParameters.function} there
- min: "0.001"
+ min: "0.9"
  spec.parameters[0].feasibleSpace: min 0.9 is above max 0.5
- min: "0.001"
+ min: "0"
  spec.parameters[0].feasibleSpace.min: must be above 0
- min: "0.001"
+ min: "few"
  spec.parameters[0].feasibleSpace.min: expected a number in quotes
- min: "16"
+ min: "1.5"
  spec.parameters[1].feasibleSpace.min: expected a whole number in quotes
- logUniform
+ gauss
  spec.parameters[0].feasibleSpace.distribution: 'gauss' is not supported
- name: width
+ name: lr
  spec.parameters[1].name: lr occurs twice
- list: [relu, tanh]
+ list: [relu, tanh], min: '1'
  spec.parameters[2].feasibleSpace.min: a categorical
- type: maximize
+ type: highest
  spec.objective.type: must be minimize or maximize
- [loss]
+ [accuracy]
  spec.objective.additionalMetricNames: should not contain
- algorithmName: random
+ algorithmName: enas
  spec.parameters: only one of spec.parameters and spec.nasConfig can be specified
- random_state
+ seed
  spec.algorithm.algorithmSettings[0]: unknown setting 'seed' for algorithm random
- parallelTrialCount: 2
+ parallelTrialCount: 5
  spec.parallelTrialCount: should be less than or equal
- maxTrialCount: 4
+ maxTrialCount: 0
  spec.maxTrialCount: expected a whole number from 1, got 0
- maxFailedTrialCount: 2
+ maxFailedTrialCount: -1
  spec.maxFailedTrialCount: expected a whole number from 0
- reference: lr
+ reference: rate
  spec.trialTemplate.trialParameters[0].reference: rate is not a parameter
- kind: Job
+ kind: TFJob
  spec.trialTemplate.trialSpec.kind: TFJob needs a cluster
-     primaryContainerName
+     retain: kept
+     primaryContainerName
  retain: expected true or false, got 'kept'
- primaryContainerName: training
+ primaryContainerName: main
  spec.trialTemplate.primaryContainerName: 'main'
- [loss]
+ 3
  spec.objective.additionalMetricNames: expected a list
- algorithmName: random
+ algorithmName: [random]
  spec.algorithm.algorithmName: unknown algorithm name ["random"]
- image: tuner-digits
+ volumeMounts: []
  containers[0].volumeMounts: volumes are not mounted on this machine
- image: tuner-digits
+ image: 7
  containers[0].image: expected the name of an image, got the number 7; put quotes around it: "7"
- image: tuner-digits
+ envFrom: []
  containers[0].envFrom: is not read on this machine
- image: tuner-digits
+ lifecycle: {postStart: {}}
  containers[0].lifecycle: its commands do not run on this
- image: tuner-digits
+ workingDir: /app
  containers[0].workingDir: trials start in the file's folder
- image: tuner-digits
+ resources: {limits: {example.com/fpga: 1}}
  cannot give example.com/fpga; remove it, or
-             restartPolicy: Never
+             initContainers: [{name: data, image: data}]
+             restartPolicy: Never
  spec.initContainers: they do not run on this machine; do their work in the container's command, or run with
-             restartPolicy: Never
+             hostAliases: [{ip: 10.1.1.1, hostnames: [db]}]
+             restartPolicy: Never
  spec.hostAliases: names of hosts are those of this machine; remove it, or run with --runtime kubernetes
-       spec:
-         template:
+       spec:
+         completions: 3
+         template:
  trialSpec.spec.completions: a trial is one process on this machine; write completions: 1, or run with
-       spec:
-         template:
+       spec:
+         suspend: true
+         template:
  trialSpec.spec.suspend: a trial that waits for someone to start it never ends; remove it, or run with
- name: katib-random
+ generateName: random-
  metadata.generateName: tuner run continues an experiment by its name; write metadata.name, or add --set
- image: tuner-digits
+ resources: {limits: {cpu: many}}
  resources.limits.cpu: expected a number, got 'many'
- - name: training
+ - {name: sidecar}
+               - name: training
  containers[0]: only the primary container
-       spec:
-         template:
+       spec:
+         backofLimit: 3
+         template:
  trialSpec.spec.backofLimit: is not a field of a Job
- algorithmName: random
+ algorithmName: grid
  spec.parameters[0].feasibleSpace.step: must be specified for grid
- ${trialParameters.function}
+ tanh
  spec.trialTemplate.trialParameters: function is not used
- value: "7"
+ value: "-7"
  algorithmSettings[0].value: expected a whole number from 0 in quotes, got '-7'
- value: "7"
+ value: 7
  algorithmSettings[0].value: expected text, got 7; write it in quotes
- algorithmName: random
+ algorithmName: hyperband
  algorithmSettings[0]: unknown setting 'random_state'
- algorithmName: random
+ algorithmName: pbt
  spec.algorithm.algorithmSettings: Required params missing: suggestion_trial_dir, n_population, truncation
- algorithmName: random
-     algorithmSettings: [
+ algorithmName: pbt
+     algorithmSettings: [{name: [n_population]}, 
  algorithmSettings: Required params missing: suggestion_trial_dir
- reference: lr
+ reference: "${trialSpec.Uid}"
  reference: ${trialSpec.Uid} is not one of Name, Namespace
- reference: lr
+ reference: "${trialSpec.Labels[x]}"
  reference: the template's metadata.labels has no 'x'
-   maxTrialCount
+   resumePolicy: Always
+   maxTrialCount
  spec.resumePolicy: expected one of Never
-   maxTrialCount
+   earlyStopping: {algorithmName: hope}
+   maxTrialCount
  unknown algorithm name 'hope'
-   maxTrialCount
+   metricsCollectorSpec: {source: {filter: {metricsFormat: ['(x)']}}}
+   maxTrialCount
  metricsFormat[0]: '(x)' has 1 groups where two are needed
-     primaryContainerName
+     successCondition: 'status.phase'
+     primaryContainerName
  successCondition: expected a condition such as status.conditions.#(type==
-     primaryContainerName
+     configMap: {}
+     primaryContainerName
  spec.trialTemplate: has trialSpec or configMap, exactly one of them
"""


# What Katib's webhook refuses, by the field in its message; further cases are in BAD.
WEBHOOK = r"""
- name: katib-random
+ name: 1-katib
  metadata.name:
- name: katib-random
+ name: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa
  metadata.name:
- maxFailedTrialCount: 2
+ maxFailedTrialCount: 5
  spec.maxFailedTrialCount: should be less than or equal to
- parallelTrialCount: 2
+ parallelTrialCount: 0
  spec.parallelTrialCount: expected a whole number from 1
- objectiveMetricName: accuracy
+ objectiveMetricName: ''
  spec.objective.objectiveMetricName: must be specified
- algorithmName: random
+ algorithmName: ''
  spec.algorithm.algorithmName: must be specified
- parameterType: double
+ parameterType: unknown
  spec.parameters[0].parameterType: 'unknown' is not supported
- distribution: logUniform
+ distribution: unknown
  feasibleSpace.distribution: 'unknown' is not supported
- min: "16", max: "64", step: "16"
+ list: ['1']
  spec.parameters[1].feasibleSpace.min: must be specified
- list: [relu, tanh]
+ list: []
  spec.parameters[2]
- list: [relu, tanh]
+ max: '1'
  spec.parameters[2].feasibleSpace.max: a categorical parameter has a list only
-     primaryContainerName: training
-
+
  spec.trialTemplate.primaryContainerName: must be specified
- kind: Job
+ kind: Workflow
  spec.trialTemplate.successCondition: must be specified for this template
- apiVersion: batch/v1
-       
+
  spec.trialTemplate.trialSpec.apiVersion: must be specified
- kind: Job
-
+ metadata: {name: mine}
+       kind: Job
+
  trialSpec.metadata.name: each trial gets its own
- kind: Job
-
+ metadata: {namespace: n}
+       kind: Job
+
  trialSpec.metadata.namespace: each trial gets its
- name: function, reference
+ name: learningRate, reference
  trialParameters[2]: its name or reference occurs
- reference: activation
+ reference: lr
  trialParameters[2]: its name or reference occurs twice
- name: function, reference
+ name: '{f}', reference
  trialParameters[2]: '{f}' is not a name
- reference: activation
+ reference: ''
  trialParameters[2]: must have a name and a reference
- ${trialParameters.function}
+ ${trialParameters.missing}
  is not one of trialParameters; declare it there
"""


WHOLE, REAL = "expected a whole number from 0 in quotes", "expected a number in quotes"
# Settings of algorithms, and what is said about a value; "" if it is accepted.
SETTINGS = [
    ("random", "random_state", "0", ""),
    ("random", "random_state", "-1", WHOLE),
    ("random", "random_state", "1.5", WHOLE),
    ("random", "random_state", "one", WHOLE),
    ("random", "seed", "1", "unknown setting 'seed' for algorithm random; write random_state"),
    ("grid", "random_state", "7", ""),
    ("grid", "n_startup_trials", "7", "unknown setting 'n_startup_trials' for algorithm grid"),
    ("tpe", "n_startup_trials", "0", ""),
    ("tpe", "n_startup_trials", "-1", WHOLE),
    ("tpe", "n_ei_candidates", "0", ""),
    ("tpe", "n_EI_candidates", "0", "expected a whole number from 1 in quotes"),
    ("tpe", "n_EI_candidates", "24", ""),
    ("tpe", "gamma", "0.25", ""),
    ("tpe", "gamma", "1", "expected a number between 0 and 1 in quotes"),
    ("tpe", "gamma", "nan", REAL),
    ("tpe", "prior_weight", "1e-3", ""),
    ("tpe", "prior_weight", "0", "expected a number above 0 in quotes"),
    ("tpe", "constant_liar", "True", "unknown setting 'constant_liar' for algorithm tpe"),
    ("multivariate-tpe", "n_startup_trials", "3", ""),
    (
        "multivariate-tpe",
        "n_EI_candidates",
        "3",
        "unknown setting 'n_EI_candidates' for algorithm multivariate-tpe",
    ),
    ("multivariate-tpe", "gamma", "0.5", "unknown setting 'gamma' for algorithm multivariate-tpe"),
    ("cmaes", "sigma", "0", ""),
    ("cmaes", "sigma", "-0.1", "expected a number from 0 in quotes"),
    ("cmaes", "restart_strategy", "ipop", ""),
    ("cmaes", "restart_strategy", "bipop", ""),
    ("cmaes", "restart_strategy", "None", ""),
    ("cmaes", "restart_strategy", "often", "expected one of ipop, bipop, none, None in quotes"),
    ("cmaes", "sigma0", "1", "unknown setting 'sigma0' for algorithm cmaes"),
    ("sobol", "random_state", "1", "unknown setting 'random_state' for algorithm sobol; remove it"),
    ("bayesianoptimization", "base_estimator", "GBRT", ""),
    ("bayesianoptimization", "base_estimator", "SVM", "expected one of GP, RF, ET, GBRT in quotes"),
    ("bayesianoptimization", "n_initial_points", "0", ""),
    ("bayesianoptimization", "n_initial_points", "-1", WHOLE),
    ("bayesianoptimization", "acq_func", "gp_hedge", ""),
    (
        "bayesianoptimization",
        "acq_func",
        "UCB",
        "expected one of gp_hedge, LCB, EI, PI, EIps, PIps in quotes",
    ),
    ("bayesianoptimization", "acq_optimizer", "lbfgs", ""),
    (
        "bayesianoptimization",
        "acq_optimizer",
        "adam",
        "expected one of auto, sampling, lbfgs in quotes",
    ),
    ("hyperband", "random_state", "1", "unknown setting 'random_state' for algorithm hyperband"),
    ("hyperband", "r_l", "0", "expected a number above 0 in quotes"),
    ("hyperband", "r_l", "many", REAL),
    ("hyperband", "eta", "1", "expected a whole number from 2 in quotes"),
    ("hyperband", "r_l", "9", "r_l and resource_name must be set"),
    ("hyperband", "resource_name", "epochs", "r_l and resource_name must be set"),
]


@pytest.mark.parametrize(("name", "setting", "value", "message"), SETTINGS)
def test_settings_are_checked_as_katib_does(
    name: str, setting: str, value: str, message: str
) -> None:
    text = algorithm(name, f'{{name: {setting}, value: "{value}"}}')
    text = text.replace(
        'min: "0.001", max: "0.5", distribution: logUniform', 'min: "0.1", max: "0.5", step: "0.1"'
    )
    if not message:
        read(text, source="katib.yaml")
        return
    with pytest.raises(SpecErrors) as caught:
        read(text, source="katib.yaml")
    assert "spec.algorithm.algorithmSettings" in str(caught.value)
    assert message in str(caught.value)


def test_hyperband_needs_an_int_as_its_resource() -> None:
    for resource, message in (
        ("rate", "value of resource_name setting must be in parameters; 'rate' is not"),
        ("lr", "lr, of resource_name, must have parameterType: int"),
    ):
        with pytest.raises(SpecErrors) as caught:
            read(HYPERBAND.replace("value: epochs", f"value: {resource}"), source="katib.yaml")
        assert message in str(caught.value)


EARLY = (
    "  earlyStopping: {{algorithmName: medianstop, algorithmSettings: [{{name: {}, value: "
    "'{}'}}]}}\n  maxTrialCount"
)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("min_trials_required", "1", ""),
        ("min_trials_required", "0", "expected a whole number from 1"),
        ("start_step", "1", ""),
        ("start_step", "0", "expected a whole number from 1"),
        ("start_step", "two", "expected a whole number from 1"),
        ("patience", "1", "unknown setting 'patience' for algorithm medianstop"),
    ],
)
def test_settings_of_early_stopping_are_checked_as_katib_does(
    setting: str, value: str, message: str
) -> None:
    text = TEXT.replace("  maxTrialCount", EARLY.format(setting, value), 1)
    if not message:
        read(text, source="katib.yaml")
        return
    with pytest.raises(SpecErrors, match=message):
        read(text, source="katib.yaml")


@pytest.mark.parametrize(("good", "bad", "message"), changes(WEBHOOK))
def test_what_katibs_webhook_refuses_is_refused_at_the_same_field(
    good: str, bad: str, message: str
) -> None:
    test_what_katib_refuses_or_hangs_on_is_refused_with_its_place(good, bad, message)


CONFIG_MAP = (EXAMPLES / "configmap-template.yaml").read_text()
CONFIG_MAPS = [
    (
        "name: training-templates,",
        "name: others,",
        "the ConfigMap default/training-templates is not in this file; add it",
    ),
    (
        "namespace: default}",
        "namespace: others}",
        "the ConfigMap default/training-templates is not in this file",
    ),
    ("  digits.yaml: |", "  other.yaml: |", "has no text under 'digits.yaml'; it has other.yaml"),
    (
        "templatePath: digits.yaml",
        "templatePath: ''",
        "spec.trialTemplate.configMap.templatePath: must be specified",
    ),
    (
        "    kind: Job\n",
        "    kind: [Job\n",
        "the template 'digits.yaml' of the ConfigMap default/training-templates is not",
    ),
    (
        "    successCondition",
        "    retain: true # successCondition",
        "successCondition: must be specified for this template",
    ),
    (
        "kind: ConfigMap",
        "kind: Secret",
        "the ConfigMap default/training-templates is not in this file; add it",
    ),
]


@pytest.mark.parametrize(("good", "bad", "message"), CONFIG_MAPS)
def test_a_config_map_without_a_usable_template_is_refused(
    good: str, bad: str, message: str
) -> None:
    assert good in CONFIG_MAP
    with pytest.raises(SpecErrors) as caught:
        read(CONFIG_MAP.replace(good, bad, 1), source="katib.yaml")
    assert message in str(caught.value)


def test_deadline_and_grace_period_of_the_pod_are_those_of_a_trial() -> None:
    pod = "            activeDeadlineSeconds: 90\n            terminationGracePeriodSeconds: 5\n"
    text = TEXT.replace("            restartPolicy", f"{pod}            restartPolicy")
    text = text.replace(
        "      spec:\n        template:",
        "      spec:\n        activeDeadlineSeconds: 60\n        template:",
    )
    trial = read(text, source="katib.yaml").spec.trial
    assert (trial.timeout_s, trial.grace_s) == (60.0, 5.0)


def test_fields_of_the_container_without_effect_on_its_program_are_accepted() -> None:
    more = (
        "ports: [{containerPort: 80}]\n                securityContext: {runAsUser: 0}\n       "
        "         "
    )
    limits = "resources: {limits: {ephemeral-storage: 5Gi}}"
    text = TEXT.replace("image: tuner-digits", f"{more}{limits}")
    assert (
        read(text, source="katib.yaml").spec.trial.command
        == read(TEXT, source="katib.yaml").spec.trial.command
    )


CLAIM = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: data}\n"


def listed(*texts: str) -> str:
    items = [parse(text, "")[0] for text in texts]
    return json.dumps({"apiVersion": "v1", "kind": "List", "items": items})


def test_the_experiment_of_a_list_is_read_as_if_it_were_alone() -> None:
    [experiment, config_map] = CONFIG_MAP.split("---\n")
    for text, alone in ((listed(TEXT), TEXT), (listed(config_map, experiment), CONFIG_MAP)):
        assert read(text, source="list.json").spec == read(alone, source="katib.yaml").spec
    overridden = read(
        listed(TEXT), source="list.json", overrides=["metadata.name=other", "spec.maxTrialCount=7"]
    )
    assert (overridden.spec.name, overridden.spec.budget.trials) == ("other", 7)


def test_problems_in_a_list_have_their_place_in_the_file() -> None:
    listing = "apiVersion: v1\nkind: List\nitems:\n- " + TEXT[TEXT.index("apiVersion") :].replace(
        "\n", "\n  "
    )
    with pytest.raises(SpecErrors) as alone:
        read(TEXT.replace('min: "0.001"', 'min: "0.9"'), source="katib.yaml")
    with pytest.raises(SpecErrors) as in_list:
        read(listing.replace('min: "0.001"', 'min: "0.9"'), source="katib.yaml")
    [one], [other] = alone.value.located, in_list.value.located
    assert (other.path, other.message) == (one.path, one.message)
    assert (other.mark.line, other.mark.column) == (one.mark.line + 2, one.mark.column + 2)


@pytest.mark.parametrize(
    "text", [f"{CLAIM}---\n{TEXT}", f"{TEXT}---\n{CLAIM}", listed(CLAIM, TEXT)]
)
def test_an_object_beside_the_experiment_is_left_to_kubectl_with_a_warning(text: str) -> None:
    document = read(text, source="katib.yaml")
    assert document.spec == read(TEXT, source="katib.yaml").spec
    assert document.warnings == (
        "PersistentVolumeClaim data: only the experiment of this file is read; if its trials need "
        "this, create it with "
        "kubectl",
    )


@pytest.mark.parametrize(
    "several", [lambda one, two: f"{one}---\n{two}", listed], ids=["documents", "list"]
)
def test_several_experiments_in_a_file_are_refused_with_the_cure(
    several: Callable[[str, str], str],
) -> None:
    with pytest.raises(SpecErrors) as refused:
        read(several(TEXT, TEXT.replace("katib-random", "second")), source="katib.yaml")
    [problem] = refused.value.located
    assert problem.message == (
        "the second of 2 experiments, katib-random, second; write each into its own file, "
        "and run each file"
    )


def test_a_name_given_on_the_command_line_takes_the_place_of_a_generated_one() -> None:
    text = TEXT.replace("name: katib-random", "generateName: random-")
    assert (
        read(text, source="katib.yaml", overrides=["metadata.name=random-1"]).spec.name
        == "random-1"
    )


def test_a_template_is_read_from_the_clusters_config_map() -> None:
    experiment, _, config_map = CONFIG_MAP.partition("---\n")
    data, _ = parse(config_map, "config map")
    assert isinstance(data, dict)
    asked: list[tuple[str, str]] = []

    def of_cluster(namespace: str, name: str) -> Mapping[str, str]:
        asked.append((namespace, name))
        found = data["data"]
        assert isinstance(found, dict)
        return {key: str(value) for key, value in found.items()}

    overrides = ["spec.runtime=kubernetes"]
    there = read(experiment, source="katib.yaml", overrides=overrides, config_map_of=of_cluster)
    assert there.spec == read(CONFIG_MAP, source="katib.yaml", overrides=overrides).spec
    assert asked == [("default", "training-templates")]


def test_the_trials_name_is_substituted() -> None:
    spec = read(CONFIG_MAP, source="katib.yaml").spec
    assert spec.trial.env["RUN_NAME"] == "run of ${TUNER_TRIAL_NAME}"


# With this collector, Katib runs the command as it is.
WITHOUT_SHELL = "  metricsCollectorSpec: {collector: {kind: Push}}\n  trialTemplate:"


def test_variables_of_the_container_are_expanded_as_kubernetes_does() -> None:
    words = "[python, train.py, --to=$(OUT)/model, --user=$(USER), --text=$$(OUT), '--odd=$${OUT}'"
    words += ", '${OUT}', $$$(OUT), $$$$(OUT), '{print $$1}', '$$$${OUT}', $(, '$(${OUT})', $]"
    env = "[{name: ROOT, value: /data}, {name: OUT, value: $(ROOT)/$(KATIB_TRIAL_NAME)}]"
    text = TEXT.replace("[python, ../digits/train.py]", f"{words}\n                env: {env}")
    text = text.replace("  trialTemplate:", WITHOUT_SHELL, 1)
    trial = read(text, source="katib.yaml").spec.trial
    assert trial.env["OUT"] == "/data/${TUNER_TRIAL_NAME}"
    assert trial.command[2:6] == (
        "--to=/data/${TUNER_TRIAL_NAME}/model",
        "--user=$(USER)",
        "--text=$(OUT)",
        "--odd=$${OUT}",
    )
    assert trial.command[7] == "$/data/${TUNER_TRIAL_NAME}"
    assert [fill(word, {}) for word in trial.command[8:]] == [
        "$$(OUT)",
        "{print $1}",
        "$${OUT}",
        "$(",
        "$(${OUT})",
        "$",
    ]
    assert fill(trial.command[6], {}) == "${OUT}"


def test_a_warning_about_many_trials_names_katibs_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "cores", lambda: 2)
    parallel = read(
        TEXT.replace("parallelTrialCount: 2", "parallelTrialCount: 50").replace(
            "maxTrialCount: 4", "maxTrialCount: 50"
        ),
        source="katib.yaml",
    )
    (warning,) = (each for each in warnings(parallel) if "at a time" in each)
    assert warning.startswith("spec.parallelTrialCount: 50 trials at a time on 2 cores")
    assert warning.endswith("lower it: --set spec.parallelTrialCount=2")


@pytest.mark.parametrize(
    ("program", "warned"), [("no-such-program", 1), ("sh", 0), ("./train.sh", 0)]
)
def test_a_program_that_is_only_in_the_image_is_warned_of(program: str, warned: int) -> None:
    document = read(
        TEXT.replace("[python, ../digits", f"[{program}, ../digits"), source="katib.yaml"
    )
    found = [
        each
        for each in warnings(document)
        if f"{program} of the command is not on this machine" in each
    ]
    assert len(found) == warned


GJSON = {
    'status.conditions.#(type=="Complete")#|#(status=="True")#': {
        "type": "Complete",
        "status": "True",
    },
    'status.conditions.#(type=="Succeeded")#|#(status=="False")#': {
        "type": "Succeeded",
        "status": "False",
    },
    "status.conditions.#(type==Complete)#|#(status==True)": {"type": "Complete", "status": "True"},
    'status.conditions.#(status=="True")#|#(type=="Complete")#': {
        "type": "Complete",
        "status": "True",
    },
    'status.[@this].#(phase=="Succeeded")#': {"path": "status.phase", "equals": "Succeeded"},
    "status.[@this].#(succeeded==1)#": {"path": "status.succeeded", "equals": 1},
    "status.[@this].#(terminal.done==true)": {"path": "status.terminal.done", "equals": True},
    "status.phase": None,
    'status.conditions.#(type=="Complete")#': None,
    'status.conditions.#(type!="Complete")#|#(status=="True")#': None,
    "": None,
}


@pytest.mark.parametrize("expression", GJSON)
def test_a_condition_in_gjson_has_a_native_form(expression: str) -> None:
    assert native_condition(expression) == GJSON[expression]


def test_one_mistake_is_one_problem() -> None:
    """A wrong value is not said to be missing, nor what depends on it to be wrong."""
    for good, bad, place in [
        (
            "command: [python, ../digits/train.py]",
            "command: python ../digits/train.py",
            "command: expected a list",
        ),
        (
            "reference: lr",
            "reference: rate",
            "trialParameters[0].reference: rate is not a parameter",
        ),
        ("    primaryContainerName: training\n", "", "primaryContainerName: must be specified"),
    ]:
        assert good in TEXT, good
        with pytest.raises(SpecErrors) as refused:
            read(TEXT.replace(good, bad, 1), source="katib.yaml")
        assert place in str(refused.value)
        assert len(refused.value.located) == 1, str(refused.value)


@pytest.mark.parametrize(("good", "bad", "message"), changes(BAD))
def test_what_katib_refuses_or_hangs_on_is_refused_with_its_place(
    good: str, bad: str, message: str
) -> None:
    assert good in TEXT
    with pytest.raises(SpecErrors) as caught:
        read(TEXT.replace(good, bad, 1), source="katib.yaml")
    assert message in str(caught.value)
    assert all(located.mark.line > 1 for located in caught.value.located)


def test_a_file_with_anything_in_place_of_any_value_is_read_or_refused() -> None:
    def replaced(data: object) -> list[object]:
        found: list[object] = [3, "", None, [None], {"x": 1}]
        if isinstance(data, dict):
            found += [{**data, key: new} for key in data for new in replaced(data[key])]
        if isinstance(data, list):
            found += [
                [*data[:i], new, *data[i + 1 :]]
                for i in range(len(data))
                for new in replaced(data[i])
            ]
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


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            '"5"',
            '"4"',
            "algorithmSettings[1].value: expected a whole number from 5 in quotes, got '4'",
        ),
        (
            '"0.4"',
            '"1.1"',
            "algorithmSettings[2].value: expected a number from 0 to 1 in quotes, got '1.1'",
        ),
        (
            "/data/",
            "data",
            "algorithmSettings[0].value: expected the absolute path of a folder in quotes, got "
            "'data'",
        ),
    ],
)
def test_bad_settings_of_pbt_are_refused_with_their_place(old: str, new: str, message: str) -> None:
    text = algorithm("pbt", PBT.replace(old, new))
    with pytest.raises(SpecErrors) as refused:
        read(text, source="katib.yaml")
    assert message in str(refused.value)
    assert "Required params missing" not in str(refused.value), "it is there, and wrong"


@pytest.mark.parametrize("runtime", ["local", "kubernetes"])
def test_a_primary_container_that_the_job_lacks_is_refused(runtime: str) -> None:
    data: Any
    data, _ = parse(TEXT, "katib.yaml")
    data["spec"]["trialTemplate"]["primaryContainerName"] = "mian"
    said = r"trialTemplate.primaryContainerName: 'mian' is not a container of the Job; write the"
    with pytest.raises(SpecErrors, match=said):
        read(json.dumps(data), source="katib.yaml", overrides=[f"spec.runtime={runtime}"])


def test_pbt_needs_a_claim_for_its_checkpoints_on_a_cluster() -> None:
    with pytest.raises(
        SpecErrors, match=r"trialTemplate.trialSpec: has no volume for the checkpoints at"
    ):
        read(algorithm("pbt", PBT), source="katib.yaml", overrides=["spec.runtime=kubernetes"])


def test_the_claim_that_a_trial_of_pbt_mounts_keeps_the_checkpoints() -> None:
    data: Any
    data, _ = parse((EXAMPLES / "pbt.yaml").read_text(), "pbt.yaml")
    pod = data["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]
    pod["volumes"] = [{"name": "kept", "persistentVolumeClaim": {"claimName": "checkpoints"}}]
    pod["containers"][0]["volumeMounts"] = [
        {"name": "kept", "mountPath": "/var/log/katib/checkpoints"}
    ]
    trial = read(
        json.dumps(data), source="katib.yaml", overrides=["spec.runtime=kubernetes"]
    ).spec.trial
    assert trial.cluster["checkpoints"] == {"claim": "checkpoints"}
    [container] = trial.cluster["template"]["spec"]["template"]["spec"]["containers"]
    assert container["volumeMounts"] == []
    assert container["args"] == ["--lr=${lr}", "--checkpoint=$(TUNER_CHECKPOINT_DIR)/"]


def test_the_checkpoint_folder_takes_the_place_of_katibs_in_a_command() -> None:
    odd = """--note=$HOME "$(x)" `y`"""
    text = (
        (EXAMPLES / "pbt.yaml")
        .read_text()
        .replace("- --lr", f"- '{odd}'\n                  - --lr")
        .replace("  trialTemplate:", WITHOUT_SHELL, 1)
    )
    command = read(text, source="katib.yaml").spec.trial.command
    shown = [word.replace("$${", "${").replace("${lr}", "0.1") for word in command]
    shown[shown.index("python")], shown[shown.index("../digits/train_generations.py")] = (
        "printf",
        "%s|",
    )
    env = {"PATH": os.environ["PATH"], "TUNER_CHECKPOINT_DIR": "/kept/3"}
    output = subprocess.run(
        shown, env=env, capture_output=True, text=True, check=True, timeout=30
    ).stdout
    assert output == f"{odd}|--lr=0.1|--checkpoint=/kept/3/|"


ABSENT = [
    ("metadata: {name: katib-random}", "metadata: {name: katib-random, namespace: %s}"),
    ("distribution: logUniform", "distribution: logUniform, step: %s"),
    ('step: "16"', 'step: "16", distribution: %s'),
    ('step: "16"', 'step: "16", list: %s'),
    ("list: [relu, tanh]", "list: [relu, tanh], min: %s, step: %s"),
    ("  maxFailedTrialCount: 2", "  maxFailedTrialCount: 2\n  resumePolicy: %s"),
    ("  trialTemplate:", "  trialTemplate:\n    configMap: %s\n    successCondition: %s"),
    ("  trialTemplate:", "  earlyStopping: %s\n  nasConfig: %s\n  trialTemplate:"),
]


@pytest.mark.parametrize("absent", ["null", "''"])
@pytest.mark.parametrize(("old", "new"), ABSENT)
def test_what_go_reads_as_absent_is_absent(old: str, new: str, absent: str) -> None:
    assert old in TEXT
    text = TEXT.replace(old, new.replace("%s", absent), 1)
    assert read(text, source="katib.yaml").spec == read_path(EXAMPLE).spec


def test_an_empty_list_of_a_number_is_none() -> None:
    text = TEXT.replace('step: "16"', 'step: "16", list: []')
    assert read(text, source="katib.yaml").spec == read_path(EXAMPLE).spec


IGNORED = "is not a key of Katib's, which ignores it, too"


def test_a_key_that_katib_ignores_is_a_warning() -> None:
    text = TEXT.replace("  maxTrialCount: 4", "  maxTrialCount: 4\n  maxFailedTrials: 1")
    text = text.replace("{name: lr,", "{name: lr, default: 1,")
    document = read(text.replace("  maxFailedTrialCount: 2\n", ""), source="katib.yaml")
    assert document.spec.budget.failed_trials is None
    assert document.warnings == (
        f"spec.maxFailedTrials: {IGNORED}; did you mean maxFailedTrialCount?",
        f"spec.parameters[0].default: {IGNORED}; remove it",
    )


def test_a_native_key_in_a_katib_file_has_a_cure_and_is_refused_on_the_command_line() -> None:
    said = f"spec.budget: {IGNORED}; to use it, make a native file: `tuner convert FILE`"
    text = TEXT.replace("  maxTrialCount: 4", "  maxTrialCount: 4\n  budget: {cost: 5}")
    assert read(text, source="katib.yaml").warnings == (said,)
    for written in (TEXT, text):
        with pytest.raises(SpecErrors) as caught:
            read(written, source="katib.yaml", overrides=["spec.budget.cost=9"])
        assert str(caught.value).splitlines()[1:] == [f"  --set spec.budget.cost=9: {said}"]


def test_a_misspelled_key_is_named_beside_the_one_that_is_missing() -> None:
    text = TEXT.replace("primaryContainerName: training", "primaryContainer: training")
    with pytest.raises(SpecErrors) as caught:
        read(text, source="katib.yaml")
    assert str(caught.value).splitlines()[1:] == [
        "  21:3 spec.trialTemplate.primaryContainerName: must be specified; write the name of a "
        "container",
        f"  22:5 spec.trialTemplate.primaryContainer: {IGNORED}; did you mean "
        "primaryContainerName?",
    ]


def test_a_file_of_an_older_katib_says_what_has_changed() -> None:
    start = TEXT.index("    primaryContainerName")
    text = TEXT[:start].replace("v1beta1", "v1alpha3")
    text += "    goTemplate:\n      rawTemplate: 'kind: Job'\n"
    with pytest.raises(SpecErrors) as caught:
        read(text, source="katib.yaml")
    assert str(caught.value).splitlines()[1:] == [
        "  2:13 apiVersion: kubeflow.org/v1alpha3 is not supported; write kubeflow.org/v1beta1",
        "  22:5 spec.trialTemplate.goTemplate: Katib has not read it since 0.10.1; write "
        "primaryContainerName, trialParameters and, in place of this, trialSpec, as in "
        "examples/katib/random.yaml",
    ]


@pytest.mark.parametrize(
    ("version", "problem"),
    [
        ("v1beta1", "4:7 spec: is empty; write it as in examples/katib/random.yaml"),
        (
            "v1alpha3",
            "1:13 apiVersion: kubeflow.org/v1alpha3 is not supported; write kubeflow.org/v1beta1",
        ),
    ],
)
def test_an_empty_spec_is_one_problem_at_most(version: str, problem: str) -> None:
    text = (
        f"apiVersion: kubeflow.org/{version}\nkind: Experiment\nmetadata: {{name: a}}\nspec: {{}}\n"
    )
    with pytest.raises(SpecErrors) as caught:
        read(text, source="katib.yaml")
    assert str(caught.value).splitlines()[1:] == [f"  {problem}"]


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (
            "apiVersion: kubeflow.org/v1alpha1\nkind: StudyJob",
            "'StudyJob' is not an Experiment of Katib's; write an Experiment, as in "
            "examples/katib/random.yaml",
        ),
        (
            "apiVersion: argoproj.io/v1alpha1\nkind: Workflow",
            "Workflow of argoproj.io/v1alpha1 is not an experiment; write apiVersion: "
            "tuner.dev/v1 and kind: Experiment",
        ),
    ],
)
def test_an_object_of_another_kind_has_one_problem(head: str, message: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        read(f"{head}\nmetadata: {{name: a}}\nspec: {{owner: b}}", source="katib.yaml")
    assert str(caught.value).splitlines()[1:] == [f"  2:7 kind: {message}"]


# A command of Katib's, and what it is here; null if that is the same.
COMMANDS = """
- [[printf, "%s,", a, b=c], null]
- [[printf, "%s,", '--a="${trialParameters.function}"', "'{\\"lr\\": 1}'"],
   [printf, "%s,", "--a=${activation}", '{"lr": 1}']]
- [["printf '%s,' a ${trialParameters.function}"], [sh, -c, "printf '%s,' a ${activation}"]]
- [[printf, "'%s,'", "--a ${trialParameters.function}"],
   [sh, -c, "printf '%s,' --a ${activation}"]]
- [[printf, "'%s,'", a, "&&", echo, b], [sh, -c, "printf '%s,' a && echo b"]]
- [[printf, "'%s,'", $WHO, "${WHO}"], [sh, -c, "printf '%s,' $WHO $${WHO}"]]
- [[printf, "'%s,'", "${trialParameters.flags}"], [sh, -c, "printf '%s,' ${flags}"]]
- [[sh, -c, "printf '%s,' a b"], null]
- [[bash, -c, "printf '%s,'", a, b], [bash, -c, "printf '%s,' a b"]]
- [[sh, -c, "printf '%s,' $1 \\"$@\\"", sh, "${trialParameters.function}"],
   [sh, -c, "printf '%s,' $1 \\"$@\\"", sh, "${activation}"]]
- [[python, -c, "print('a b', end='')"], null]
"""
COMMANDS_OF_KATIB = yaml.safe_load(COMMANDS)


def of_command(words: list[str], *overrides: str) -> ExperimentSpec:
    data: Any = yaml.safe_load(TEXT)
    flags = {
        "name": "flags",
        "parameterType": "categorical",
        "feasibleSpace": {"list": ["--a --b", ""]},
    }
    data["spec"]["parameters"].append(flags)
    template = data["spec"]["trialTemplate"]
    template["trialParameters"].append({"name": "flags", "reference": "flags"})
    container = template["trialSpec"]["spec"]["template"]["spec"]["containers"][0]
    container["command"], container["args"] = words[:-1], words[-1:]
    if len(words) == 1:
        container["command"], container["args"] = words, None
    used = [f"${{trialParameters.{each['name']}}}" for each in template["trialParameters"]]
    container["env"] = [{"name": "ALL", "value": " ".join(used)}]
    return read(json.dumps(data), source="katib.yaml", overrides=overrides).spec


@pytest.mark.parametrize(("words", "here"), COMMANDS_OF_KATIB)
def test_a_command_that_needs_katibs_shell_has_it(words: list[str], here: list[str] | None) -> None:
    trial = of_command(words).trial
    assert [*trial.command, *trial.args] == (words if here is None else here)
    template: Any = of_command(words, "spec.runtime=kubernetes").trial.cluster["template"]
    container = template["spec"]["template"]["spec"]["containers"][0]
    found = container["command"] + (container.get("args") or [])
    assert found == (words if here is None else here)


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS_OF_KATIB[:-2]])
def test_a_command_does_what_it_does_in_katib(words: list[str]) -> None:
    point = {"lr": 0.1, "width": 16, "activation": "relu", "flags": "--a --b"}
    trial = of_command(words).trial
    here = [fill(word, point) for word in (*trial.command, *trial.args)]
    joined = " ".join(words[2:] if words[1:2] == ["-c"] else words)
    for name, parameter in (("function", "activation"), ("flags", "flags")):
        joined = joined.replace(f"${{trialParameters.{name}}}", point[parameter])
    env = {"PATH": os.environ["PATH"], "WHO": "me and you"}
    in_katib = subprocess.check_output(["sh", "-c", joined], env=env)
    assert subprocess.check_output(here, env=env) == in_katib


def test_a_prefix_of_the_name_in_a_template_is_not_read() -> None:
    text = TEXT.replace(
        "kind: Job", "kind: Job\n      metadata: {generateName: train-, labels: {a: b}}"
    )
    template: Any = read(
        text, source="katib.yaml", overrides=["spec.runtime=kubernetes"]
    ).spec.trial.cluster["template"]
    assert template["metadata"] == {"labels": {"a": "b"}}


@pytest.mark.parametrize("runtime", ["local", "kubernetes"])
def test_metadata_of_a_template_that_is_no_mapping_is_refused(runtime: str) -> None:
    text = TEXT.replace("kind: Job", "kind: Job\n      metadata: true").replace(
        "    primaryContainerName", "    retain: true\n    primaryContainerName", 1
    )
    with pytest.raises(SpecErrors, match=r"trialSpec\.metadata: expected a mapping, got true"):
        read(text, source="katib.yaml", overrides=[f"spec.runtime={runtime}"])


CONTAINER = "spec.trialTemplate.trialSpec.spec.template.spec.containers[0]"
OF_CONTAINER = [
    (
        'image: i\n                env: [{name: "a b", value: c}]',
        f"{CONTAINER}.env: 'a b' is not a name here",
    ),
    (
        "image: i\n                resources: {limits: {cpu: nan}}",
        f"{CONTAINER}.resources.limits.cpu: nan is not a number of CPUs",
    ),
    (
        "image: i\n                resources: {requests: {cpu: [1]}}",
        f"{CONTAINER}.resources.requests.cpu: expected a number, got [1]",
    ),
    (
        "image: i\n                resources: {limits: {memory: 5}}",
        f"{CONTAINER}.resources.limits.memory: 5 is 5 bytes; write 5Mi or 5Gi",
    ),
    (
        "image: i\n                resources: {limits: [a]}",
        f'{CONTAINER}.resources.limits: expected a mapping, got ["a"]',
    ),
    (
        "image: i\n                resources: {requests: b}",
        f"{CONTAINER}.resources.requests: expected a mapping, got 'b'",
    ),
]


@pytest.mark.parametrize(("image", "message"), OF_CONTAINER)
def test_a_problem_of_the_container_has_its_place(image: str, message: str) -> None:
    with pytest.raises(SpecErrors) as caught:
        read(TEXT.replace("image: tuner-digits", image), source="katib.yaml")
    assert message in str(caught.value)
    (located,) = caught.value.located
    begin = 1 + TEXT[: TEXT.index("image: tuner-digits")].count("\n")
    assert located.mark.line == begin + image.count("\n")


@pytest.mark.parametrize(
    ("place", "key", "value", "least"),
    [
        ("spec", "activeDeadlineSeconds", "true", 1),
        ("spec", "activeDeadlineSeconds", "-5", 1),
        ("spec.template.spec", "activeDeadlineSeconds", "2.5", 1),
        ("spec.template.spec", "terminationGracePeriodSeconds", "[1]", 0),
    ],
)
def test_seconds_of_a_job_are_whole_numbers(place: str, key: str, value: str, least: int) -> None:
    text = TEXT.replace("restartPolicy: Never", f"restartPolicy: Never\n            {key}: {value}")
    if place == "spec":
        text = TEXT.replace(
            "      spec:\n        template",
            f"      spec:\n        {key}: {value}\n        template",
        )
    message = f"expected a whole number of seconds from {least}, got {value}"
    with pytest.raises(SpecErrors) as caught:
        read(text, source="katib.yaml")
    assert f"spec.trialTemplate.trialSpec.{place}.{key}: {message}" in str(caught.value)


NINES = "9" * 5000


def test_numbers_of_thousands_of_digits_are_refused() -> None:
    for text, message in (
        (
            algorithm("tpe", f'{{name: random_state, value: "{NINES}"}}'),
            "expected a number of at most 300 digits in quotes, got '999",
        ),
        (
            TEXT.replace('min: "16"', f'min: "{NINES}"'),
            'expected a whole number of at most 300 digits in quotes, such as "1", got \'999',
        ),
        (
            TEXT.replace(
                "  parallelTrialCount",
                "  metricsCollectorSpec: {collector: {kind: PrometheusMetric}, source: "
                f'{{httpGet: {{port: "{NINES}"}}}}}}\n  parallelTrialCount',
            ),
            "expected a port from 1 to 65535, got '999",
        ),
    ):
        with pytest.raises(SpecErrors) as caught:
            read(text, source="katib.yaml")
        assert message in str(caught.value)
        assert len(str(caught.value)) < 1000


def test_a_double_is_a_number_as_go_reads_it() -> None:
    with pytest.raises(SpecErrors, match="expected a number in quotes, such as \"1\", got '1_0'"):
        read(TEXT.replace('max: "0.5"', 'max: "1_0"'), source="katib.yaml")


NO_TEXT = [
    ("- --epochs=2", "- --epochs\n                  - 2", "args[4]: expected text, got 2"),
    ("[python, ../digits/train.py]", "python train.py", "command: expected a list"),
    (
        "image: tuner-digits",
        "image: tuner-digits\n                env: [{name: N, value: 1}]",
        "env[0].value: expected text, got 1; write it in quotes",
    ),
]


@pytest.mark.parametrize(("old", "new", "message"), NO_TEXT)
def test_what_the_api_server_takes_as_text_only_is_refused_before(
    old: str, new: str, message: str
) -> None:
    assert old in TEXT
    with pytest.raises(SpecErrors) as caught:
        read(TEXT.replace(old, new), source="a.yaml", overrides=["spec.runtime=kubernetes"])
    assert f"spec.template.spec.containers[0].{message}" in str(caught.value)
