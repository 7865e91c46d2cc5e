"""Admission on a store of experiments that is neither a folder nor a database,
as a controller in a cluster has one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from controller.app.experiment_service import Admitted, ExperimentService, NothingToRun
from controller.app.experiments import ControlledElsewhere, ControllerLease, Experiments, Holder
from controller.core.model import Attempt, Event, Experiment, ExperimentState, Revision, Uid
from controller.experiment_store import Changes
from controller.spec import Document, read
from suggest.errors import AlreadyExists, FailedPrecondition

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


@dataclass
class MemoryLease:
    held: set[Uid]
    uid: Uid

    def release(self) -> None:
        self.held.discard(self.uid)

    discard = release


@dataclass
class MemoryExperiments:
    """`Experiments` in dictionaries."""

    found: dict[Uid, Experiment] = field(default_factory=dict)
    kept: dict[Uid, list[Revision]] = field(default_factory=dict)
    run: dict[Uid, list[Attempt]] = field(default_factory=dict)
    held: set[Uid] = field(default_factory=set)

    def lease(self, uid: Uid, name: str) -> ControllerLease:
        if uid in self.held:
            raise ControlledElsewhere(f"{name} is being run by {self.holder(uid)}")
        self.held.add(uid)
        return MemoryLease(self.held, uid)

    def holder(self, uid: Uid) -> Holder | None:
        return Holder(1, "elsewhere", "now") if uid in self.held else None

    def revision_source(self, uid: Uid, number: int) -> str:
        return f"revision {number} of {uid}"

    def named(self, name: str) -> Sequence[Experiment]:
        return [each for each in self.found.values() if each.name == name]

    def names(self, namespace: str | None) -> Sequence[str]:
        return [each.name for each in self.found.values() if namespace in (None, each.namespace)]

    def experiment(self, namespace: str, name: str) -> Experiment | None:
        return next(
            (
                each
                for each in self.found.values()
                if (each.namespace, each.name) == (namespace, name)
            ),
            None,
        )

    def create_experiment(self, experiment: Experiment, revision: Revision) -> None:
        if self.experiment(experiment.namespace, experiment.name) is not None:
            raise AlreadyExists(experiment.name)
        self.found[experiment.uid] = experiment
        self.kept[experiment.uid] = [revision]

    def add_revision(self, experiment: Experiment, revision: Revision, event: Event) -> Experiment:
        self.kept[experiment.uid].append(revision)
        self.found[experiment.uid] = replace(
            experiment, revision=revision.number, spec=revision.spec
        )
        return self.found[experiment.uid]

    def revisions(self, uid: Uid) -> Sequence[Revision]:
        return self.kept[uid]

    def attempts(self, uid: Uid, trial: int | None = None) -> Sequence[Attempt]:
        return [each for each in self.run.get(uid, []) if trial in (None, each.trial)]

    def save(self, uid: Uid, changes: Changes) -> None:
        if changes.experiment is not None:
            self.found[uid] = changes.experiment

    def request_stop(self, uid: Uid, *, wanted: bool = True) -> None:
        self.found[uid] = replace(self.found[uid], stop_requested=wanted)


def document(parallelism: int = 1) -> Document:
    return read(FILE, source="tiny.yaml", overrides=[f"spec.parallelism={parallelism}"])


def created(experiments: Experiments) -> Admitted:
    service = ExperimentService(experiments)
    return service.create(document(), ANYWHERE, service.reserve("tiny"), service="", context="")


def test_an_experiment_is_created_revised_and_resumed() -> None:
    experiments = MemoryExperiments()
    service = ExperimentService(experiments)
    created(experiments).lease.release()
    revised = service.resume_file(document(parallelism=2), ANYWHERE)
    assert isinstance(revised, Admitted)
    assert (revised.experiment.revision, revised.experiment.spec.parallelism) == (2, 2)
    revised.lease.release()
    resumed = service.resume_name("tiny", None)
    assert isinstance(resumed, Admitted)
    assert resumed.source == f"revision 2 of {resumed.experiment.uid}"


def test_an_experiment_with_a_controller_is_not_admitted_again() -> None:
    experiments = MemoryExperiments()
    service = ExperimentService(experiments)
    admitted = created(experiments)
    with pytest.raises(ControlledElsewhere, match="process 1 on elsewhere"):
        service.run(document(), ANYWHERE)
    refused = pytest.raises(FailedPrecondition, match=r"^tiny cannot be extended while it runs: ")
    with (
        refused,
        service.known_and_leased("tiny", None, refused="{name} cannot be extended while it runs"),
    ):
        raise AssertionError("it is held")
    admitted.lease.release()
    assert isinstance(service.run(document(), ANYWHERE), Admitted)


def test_a_finished_experiment_needs_no_lease() -> None:
    experiments = MemoryExperiments()
    admitted = created(experiments)
    uid = admitted.experiment.uid
    experiments.found[uid] = replace(admitted.experiment, state=ExperimentState.SUCCEEDED)
    assert isinstance(ExperimentService(experiments).run(document(), ANYWHERE), NothingToRun)


def test_an_error_under_the_lease_releases_it() -> None:
    experiments = MemoryExperiments()
    created(experiments).lease.release()
    taken = ExperimentService(experiments).known_and_leased("tiny", None, refused="{name}")
    with pytest.raises(ZeroDivisionError), taken:
        raise ZeroDivisionError
    assert experiments.held == set()
