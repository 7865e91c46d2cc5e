"""The arguments of `tuner extend`: the resulting file, and what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from controller.app.experiment_service import ExperimentService
from controller.app.experiments import Changed
from controller.app.extend import Extension, allowed_extension, refuse_an_end
from controller.app.extend import edited as edited_by
from controller.app.local_experiments import LocalExperiments
from controller.app.state_directory import StateDirectory
from controller.core.model import Experiment
from controller.spec import Document, diff, read
from suggest.errors import FailedPrecondition, InvalidArgument
from suggest.trial import Trial, TrialState
from tests.unit.builders import an_experiment

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize, target: 5}
  parameters:
    x: {type: float, min: 0, max: 1}
    kind: [a, b]
    part: {type: choice, values: [1, 2], when: {kind: b}}
  initial: [{x: 0.5}]
  algorithm: {name: tpe, seed: 1}
  budget: {trials: 20, failedTrials: 5}
  trial: {command: ["true", "${x}", "--kind=${kind}", "--part=${part}"]}
"""
TINY = an_experiment(read(FILE, source="tiny.yaml").spec)


def edited(*sets: str, trials: str = "", of: Experiment = TINY) -> Document:
    return edited_by(of.spec, Extension(trials, sets))


def changes(*sets: str, trials: str = "") -> dict[str, object]:
    return {
        change.path: change.new for change in allowed_extension(TINY, edited(*sets, trials=trials))
    }


@pytest.mark.parametrize(
    ("trials", "sets", "expected"),
    [
        ("+20", (), {"spec.budget.trials": 40}),
        ("120", (), {"spec.budget.trials": 120}),
        (
            "",
            ("spec.parameters.x.max=2.5", "spec.parallelism=4"),
            {"spec.parameters.x.max": 2.5, "spec.parallelism": 4},
        ),
        ("", ("spec.objective.target=9",), {"spec.objective.target": 9}),
        ("", ("spec.initial[1]={x: 0.1}",), {"spec.initial": [{"x": 0.5}, {"x": 0.1}]}),
        (
            "",
            ("spec.parameters.kind=[c, a, b]",),
            {
                "spec.parameters.kind.values": ["c", "a", "b"],
                "spec.initial": [{"x": 0.5}, {"kind": "c"}],
            },
        ),
        (
            "",
            ("spec.parameters.part.values=[1, 2, 3]",),
            {
                "spec.parameters.part.values": [1, 2, 3],
                "spec.initial": [{"x": 0.5}, {"kind": "b", "part": 3}],
            },
        ),
    ],
)
def test_the_flags_become_changes_of_the_file(
    trials: str, sets: Sequence[str], expected: dict[str, object]
) -> None:
    assert changes(*sets, trials=trials) == expected


def test_the_written_file_means_the_recorded_revision() -> None:
    made = edited("spec.parameters.kind[2]=c", trials="+1")
    assert read(made.text, source="experiment.r2.yaml").spec == made.spec


def test_an_algorithm_that_tries_new_choices_needs_no_initial_points() -> None:
    random = an_experiment(read(FILE.replace("tpe", "random"), source="tiny.yaml").spec)
    assert edited("spec.parameters.kind=[a, b, c]", of=random).spec.initial == random.spec.initial


@pytest.mark.parametrize(
    "sets", ["spec.algorithm.name=random", "spec.objective.direction=minimize", "spec.initial=[]"]
)
def test_another_search_is_refused_with_the_difference_and_the_way_on(sets: str) -> None:
    with pytest.raises(
        Changed,
        match=r"(?s)make tiny another search:\n  spec\..* -> .*tuner import FILE --from tiny",
    ):
        changes(sets)


@pytest.mark.parametrize(
    ("trials", "message"),
    [
        ("+x", "write \\+20, or 120 for the total"),
        ("-3", "not a number of trials"),
        ("+", "not a number of trials"),
    ],
)
def test_an_invalid_number_of_trials_is_reported(trials: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        edited(trials=trials)


def test_a_grid_has_no_trials_to_add_to() -> None:
    text = (
        FILE.replace("{name: tpe, seed: 1}", "{name: grid}")
        .replace("trials: 20, ", "")
        .replace("max: 1", "max: 1, points: 3")
    )
    grid = an_experiment(read(text, source="tiny.yaml").spec)
    with pytest.raises(InvalidArgument, match="no limit of trials to raise; write a total"):
        edited(trials="+20", of=grid)


@pytest.mark.parametrize(
    ("done", "best", "message"),
    [
        ({TrialState.SUCCEEDED: 40}, 1.0, "all 40 trials are done"),
        ({TrialState.SUCCEEDED: 15, TrialState.FAILED: 5}, 1.0, "budget.failedTrials: 5"),
        ({TrialState.SUCCEEDED: 20}, 7.0, "the target was reached"),
    ],
)
def test_an_extension_that_would_end_at_once_is_refused(
    done: dict[TrialState, int], best: float, message: str
) -> None:
    trials = [
        Trial(0, state, {}, value=best) for state, count in done.items() for _ in range(count)
    ]
    with pytest.raises(
        FailedPrecondition,
        match=f"its budget is already used up: .*{message}.*; raise that as well, .*is the total",
    ):
        refuse_an_end(TINY, edited(trials="+20").spec, trials, [])
    refuse_an_end(
        TINY,
        edited("spec.objective.target=9", "spec.budget.failedTrials=9", trials="+21").spec,
        trials,
        [],
    )


def test_an_extension_is_a_new_revision_of_the_finished_experiment(tmp_path: Path) -> None:
    state = StateDirectory(tmp_path)
    state.make()
    with closing(LocalExperiments(state)) as experiments:
        to = ExperimentService(experiments)
        document = read(FILE, source="tiny.yaml")
        created = to.create(document, tmp_path, to.reserve("tiny"), service="", context="")
        made = edited(trials="+20", of=created.experiment)
        changes = diff(document.spec.document, made.spec.document)
        admitted = to.extend_or_retry(
            created.experiment, created.lease, made, changes, directory=None
        )
        assert (admitted.experiment.revision, admitted.experiment.spec.budget.trials) == (2, 40)
        kept = state.folders(created.experiment.uid).revision(2)
        assert (
            read(kept.read_text(), source="kept").spec
            == experiments.revisions(created.experiment.uid)[-1].spec
        )
        created.lease.release()
