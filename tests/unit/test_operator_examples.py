"""examples/operators has one complete file for each known kind, which needs only its template."""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.app.experiment_file import check_rules
from controller.app.validate import warnings
from controller.runtime.kubernetes.kinds import PRESETS, preset_of
from controller.runtime.kubernetes.resource_quota import demand_of
from controller.runtime.kubernetes.sample_manifests import manifests_of
from controller.spec import Document, SpecErrors, read

EXAMPLES = sorted((Path(__file__).parents[2] / "examples" / "operators").glob("*.yaml"))


def document(path: Path) -> Document:
    return read(path.read_text(), source=path.name)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_valid_and_gives_no_warning(path: Path) -> None:
    found = document(path)
    assert list(warnings(found)) == []
    needs_primary = path.stem in ("workflow", "pipelinerun")  # with several pods
    assert set(found.spec.trial.cluster) == {"template", *(["primary"] if needs_primary else [])}
    (made,) = manifests_of(found.spec)
    assert demand_of([made]).pods > 0
    assert f"tuner run {path.name}" in path.read_text()


def test_every_known_kind_has_an_example() -> None:
    kinds = [preset_of(manifests_of(document(path).spec)[0]) for path in EXAMPLES]
    assert sorted(str(kind) for kind in kinds) == sorted(str(preset) for preset in PRESETS)


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        (
            "rayjob",
            "entrypoint:",
            "submissionMode: HTTPMode\n        entrypoint:",
            "spec.trial.template: with submissionMode: HTTPMode no pod prints the output of the "
            "entrypoint; write "
            "K8sJobMode",
        ),
        (
            "pytorchjob",
            "containers:",
            "container:",
            "spec.trial.template: no pod template is found in this PyTorchJob",
        ),
        (
            "volcano",
            "    timeout: 1h",
            "    queue: team-a",
            "spec.trial.queue: Kueue does not queue the kind Job of batch.volcano.sh/v1alpha1; "
            "omit queue",
        ),
        (
            "trainjob",
            "kind: TrainJob",
            "kind: TrainJobs",
            "spec.trial.template: tuner does not know how a TrainJobs ends; add success: {type: …} "
            "and failure: {type: …}",
        ),
        (
            "trainjob",
            "template:\n      apiVersion: trainer.kubeflow.org/v1alpha1\n      kind: TrainJob",
            "success: {type: Done}\n    template:\n      apiVersion: example.org/v1\n      kind: Widget",
            "spec.trial.template: tuner does not know how a Widget ends; add failure: {type: …}",
        ),
        (
            "job",
            "apiVersion: batch/v1\n      kind: Job",
            "apiVersion: v1\n      kind: Pod",
            "spec.trial.template: a Pod has no condition that says how it ended; write a Job with that pod",
        ),
        (
            "job",
            "restartPolicy: Never\n            initContainers",
            "restartPolicy: Never\n            nodeSelector: {'${lr}': '1'}\n            initContainers",
            "spec.trial.template.spec.template.spec.nodeSelector: the key '${lr}' is not "
            "substituted; ${lr} is allowed in values only",
        ),
        (
            "job",
            "nvidia.com/gpu: 1",
            "nvidia.com/gpu: 1, cpu: many",
            "spec.trial.template: 'many' is not a quantity",
        ),
    ],
)
def test_an_invalid_template_is_refused_with_its_line_before_anything_runs(
    name: str, old: str, new: str, message: str
) -> None:
    text = next(path for path in EXAMPLES if path.stem == name).read_text()
    assert old in text
    with pytest.raises(SpecErrors) as caught:
        check_rules(read(text.replace(old, new), source="x.yaml"), Path())
    (problem,) = str(caught.value).split("\n")[1:]
    line, _, rest = problem.strip().partition(":")
    assert rest.partition(" ")[2].startswith(message)
    assert int(line) > 1
