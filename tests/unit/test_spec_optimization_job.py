"""Trainer's OptimizationJob: what `tuner convert` makes of it, and what is refused with which place."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from controller.core.substitute import fill_data
from controller.spec import Document, SpecErrors, file_text, read
from suggest.space import Choice, Float, Int, Scale
from suggest.study import Direction
from tests import called

FILE = Path(__file__).parents[2] / "examples" / "trainer" / "optimizationjob.yaml"
TEXT = FILE.read_text()


def converted(text: str = TEXT) -> Document:
    return read(text, source="job.yaml", converts=True)


def problems(old: str, new: str) -> list[str]:
    """Return the problems, without their lines, of the file with this change."""
    assert old in TEXT
    with pytest.raises(SpecErrors) as refused:
        converted(TEXT.replace(old, new))
    return [f"{each.path}: {each.message}" for each in refused.value.located]


def test_its_spec_has_a_native_file_that_reads_back() -> None:
    spec = converted().spec
    assert (spec.name, spec.namespace, spec.labels) == ("bert", "team-a", {"team": "nlp"})
    assert (spec.objective.metric, spec.objective.direction) == ("val_loss", Direction.MINIMIZE)
    assert [each.domain for each in spec.space.parameters] == [
        Float(0.0001, 0.1, Scale.LOG),
        Float(0.0, 0.5),
        Int(2, 8),
        Choice(("16", "32")),
    ]
    assert (spec.algorithm.name, spec.algorithm.seed) == ("random", 42)
    assert (spec.budget.trials, spec.parallelism, spec.runtime) == (20, 4, "kubernetes")
    assert read(file_text(spec.document), source="native.yaml").spec == spec


def test_the_program_gets_parameters_in_the_variables_of_trainer() -> None:
    spec = converted().spec
    point = {"learning_rate": 0.01, "dropout": 0.1, "layers": 3, "batch_size": "16"}
    job: Any = fill_data(spec.trial.cluster["template"], point)
    assert job["metadata"] == {"labels": {"app": "bert"}}
    assert job["spec"]["trainer"]["env"] == [
        {"name": "SEED", "value": "1"},
        {"name": "KUBEFLOW_TRAINER_OPT_LEARNING_RATE", "value": "0.01"},
        {"name": "KUBEFLOW_TRAINER_OPT_DROPOUT", "value": "0.1"},
        {"name": "KUBEFLOW_TRAINER_OPT_LAYERS", "value": "3"},
        {"name": "KUBEFLOW_TRAINER_OPT_BATCH_SIZE", "value": "16"},
    ]
    assert job["spec"]["trainer"]["command"] == ["sh", "-c", "echo ${HOME}; python train.py"]


def test_what_is_left_out_has_the_defaults_of_trainer() -> None:
    lines = TEXT.splitlines(keepends=True)
    left_out = ("searchAlgorithm", "numTrials", "parallelTrials")
    spec = converted(
        "".join(each for each in lines if each.split(":")[0].strip() not in left_out)
    ).spec
    assert (spec.algorithm.name, spec.budget.trials, spec.parallelism) == ("random", 1, 1)


def test_a_program_that_reports_to_trainer_has_to_print_its_metric() -> None:
    (warning,) = converted().warnings
    assert warning.startswith("spec.objectives[0].metric: ")
    assert "print val_loss=VALUE" in warning


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("metric: val_loss", "direction: Minimize", "spec.objectives[0].metric: must be specified"),
        (
            "{metric: val_loss}",
            "{metric: a}, {metric: b}",
            "spec.objectives: expected a list of one",
        ),
        (
            "{metric: val_loss}",
            "{metric: a, direction: minimize}",
            "spec.objectives[0].direction: ",
        ),
        (
            "{random: {seed: 42}}",
            "{}",
            "spec.searchAlgorithm: expected exactly one of random, grid",
        ),
        (
            "{random: {seed: 42}}",
            "{random: {}, tpe: {}}",
            "spec.searchAlgorithm.tpe: is not supported",
        ),
        ("{random: {seed: 42}}", "{random: {seed: x}}", "spec.searchAlgorithm.random.seed: "),
        (
            '{uniform: {min: "0"',
            "{uniform: {min: 0",
            "spec.parameters[1].searchSpace.uniform.min: ",
        ),
        ('min: "0"', 'min: "0x1"', "spec.parameters[1].searchSpace.uniform.min: expected a number"),
        ('min: "2"', 'min: "2.5"', "spec.parameters[2].searchSpace.uniform.min: expected a whole"),
        (
            'min: "2"',
            'min: "9"',
            "spec.parameters[2].searchSpace.uniform: min 9 is not below max 8",
        ),
        (
            'min: "0.0001"',
            'min: "0"',
            "spec.parameters[0].searchSpace.logUniform.min: must be above",
        ),
        (
            'choices: ["16", "32"]',
            "choices: []",
            "spec.parameters[3].searchSpace.categorical.choices",
        ),
        (
            '["16", "32"]',
            "[16, 32]",
            "spec.parameters[3].searchSpace.categorical.choices: expected",
        ),
        (
            "name: dropout",
            "name: LEARNING_RATE",
            "spec.parameters[1].name: LEARNING_RATE and learning",
        ),
        ("name: dropout", "name: drop-out", "spec.parameters[1]: must be a mapping"),
        ("numTrials: 20", "numTrials: 101", "spec.numTrials: expected 1 to 100, got 101"),
        ("parallelTrials: 4", "parallelTrials: 21", "spec.parallelTrials: cannot exceed numTrials"),
        ("{labels: {app: bert}}", "{name: x}", "spec.trainJobTemplate.metadata.name: "),
        (
            "runtimeRef: {name: torch-distributed}",
            "labels: {}",
            "spec.trainJobTemplate.spec.runtimeRef",
        ),
        (
            "name: SEED",
            "name: KUBEFLOW_TRAINER_OPT_LAYERS",
            "spec.trainJobTemplate.spec.trainer.env[0]",
        ),
        ("name: bert, ", "", "metadata.name: "),
        ("kind: OptimizationJob", "kind: OptimizationJob\nextra: 1", "extra: is not supported"),
    ],
)
def test_what_trainer_refuses_is_refused_at_the_same_place(old: str, new: str, said: str) -> None:
    (problem,) = problems(old, new)
    assert problem.startswith(said), problem


def test_a_grid_takes_only_choices() -> None:
    found = problems("{random: {seed: 42}}", "{grid: {}}")
    assert len(found) == 3
    assert all("grid needs choices" in each for each in found)


def test_only_convert_takes_it(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(TEXT)

    def tuner(*words: str) -> subprocess.CompletedProcess[str]:
        given = [*words, "--state-dir", str(tmp_path / "state")]
        return called.run_tuner(given, folder=tmp_path, env={"PATH": ""})

    refused = tuner("run", "job.yaml")
    assert refused.returncode != 0
    assert "kind: is not run; write a native file: " in refused.stderr
    assert "tuner convert job.yaml" in refused.stderr
    native = tuner("convert", "job.yaml")
    assert native.returncode == 0, native.stderr
    assert "warning: spec.objectives[0].metric" in native.stderr
    (tmp_path / "experiment.yaml").write_text(native.stdout)
    checked = tuner("validate", "experiment.yaml")
    assert "is valid: experiment bert, 4 parameters, random, 20 trials" in checked.stdout
