"""Admission takes and releases the lease of an experiment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.app.experiment_service import Admitted, ExperimentService, NothingToRun
from controller.app.experiments import ControlledElsewhere
from controller.app.local_experiments import LocalExperiments, opened
from controller.app.state_directory import StateDirectory
from controller.core.model import ExperimentState
from controller.experiment_store import Changes
from controller.spec import Document, read
from suggest.errors import FailedPrecondition

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}}
  budget: {trials: 3}
  trial: {command: ["true", "${x}"]}
"""
ANYWHERE = Path("/nowhere")


@pytest.fixture
def experiments(tmp_path: Path) -> Iterator[LocalExperiments]:
    with opened(StateDirectory(tmp_path / "state"), make=True) as found:
        yield found


def document(parallelism: int = 1) -> Document:
    return read(FILE, source="tiny.yaml", overrides=[f"spec.parallelism={parallelism}"])


def created(experiments: LocalExperiments) -> Admitted:
    service = ExperimentService(experiments)
    return service.create(document(), ANYWHERE, service.reserve("tiny"), service="", context="")


def test_an_experiment_is_created_revised_and_resumed(experiments: LocalExperiments) -> None:
    service = ExperimentService(experiments)
    created(experiments).lease.release()
    revised = service.resume_file(document(parallelism=2), ANYWHERE)
    assert isinstance(revised, Admitted)
    assert (revised.experiment.revision, revised.experiment.spec.parallelism) == (2, 2)
    revised.lease.release()
    resumed = service.resume_name("tiny", None)
    assert isinstance(resumed, Admitted)
    assert resumed.source.endswith(f"{resumed.experiment.uid}/experiment.r2.yaml")


def test_an_experiment_with_a_controller_is_not_admitted_again(
    experiments: LocalExperiments,
) -> None:
    service = ExperimentService(experiments)
    admitted = created(experiments)
    with pytest.raises(ControlledElsewhere, match="is being run by process"):
        service.run(document(), ANYWHERE)
    refused = pytest.raises(FailedPrecondition, match=r"^tiny cannot be extended while it runs: ")
    with (
        refused,
        service.known_and_leased("tiny", None, refused="{name} cannot be extended while it runs"),
    ):
        raise AssertionError("it is held")
    admitted.lease.release()
    assert isinstance(service.run(document(), ANYWHERE), Admitted)


def test_a_finished_experiment_needs_no_lease(experiments: LocalExperiments) -> None:
    admitted = created(experiments)
    ended = replace(admitted.experiment, state=ExperimentState.SUCCEEDED)
    experiments.save(ended.uid, Changes(ended))
    assert isinstance(ExperimentService(experiments).run(document(), ANYWHERE), NothingToRun)


def test_an_error_under_the_lease_releases_it(experiments: LocalExperiments) -> None:
    admitted = created(experiments)
    admitted.lease.release()
    taken = ExperimentService(experiments).known_and_leased("tiny", None, refused="{name}")
    with pytest.raises(ZeroDivisionError), taken:
        raise ZeroDivisionError
    assert experiments.holder(admitted.experiment.uid) is None


def test_the_next_command_removes_the_folder_of_one_that_was_killed_before_its_experiment_began(
    experiments: LocalExperiments,
) -> None:
    service, folders = ExperimentService(experiments), experiments.directory.experiments
    recorded, begins = created(experiments), service.reserve("begins")
    kept = {recorded.experiment.uid, begins.uid}
    recorded.lease.release()
    for uid, content in (("killed", "experiment.yaml"), ("lost", "trials"), ("new", "")):
        Path(folders, uid).mkdir()
        Path(folders, uid, content or "controller.lock").touch()
    for uid in (*kept, "killed", "lost"):
        os.utime(folders / uid, (0, 0))
    with opened(experiments.directory, make=True):
        assert {path.name for path in folders.iterdir()} == {*kept, "lost", "new"}
    begins.lease.discard()
