"""Which experiment a file means is decided on what is read under the lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.app.experiment_service import Admitted, ExperimentService, NothingToRun
from controller.app.experiments import Changed, ControlledElsewhere
from controller.app.local_experiments import ControllerLock, LocalExperiments
from controller.app.state_directory import StateDirectory
from controller.cli.arguments import parse
from controller.cli.invocation import rendered
from controller.core.model import Experiment, ExperimentState
from controller.experiment_store import Changes
from controller.spec import Document, read_path
from suggest.errors import NotFound

FILE = """
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: tiny}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}}
  algorithm: {name: random, seed: 1}
  budget: {trials: 3}
  trial: {command: ["true", "${x}"]}
"""


class Eventful(LocalExperiments):
    """A store in which `meanwhile` happens right after an experiment was read."""

    meanwhile: Callable[[], object] | None = None

    def experiment(self, namespace: str, name: str) -> Experiment | None:
        found = super().experiment(namespace, name)
        happens, self.meanwhile = self.meanwhile, None
        if happens is not None:
            happens()
        return found


class ServiceSetup:
    """A state directory with one experiment and no controller."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = StateDirectory(folder / "state")
        self.state.make()
        self.store = Eventful(self.state)
        self.service = ExperimentService(self.store)
        created = self.service.create(
            self.file(), folder, self.service.reserve("tiny"), service="", context=""
        )
        created.lease.release()
        self.uid = created.experiment.uid

    def file(self, **changes: int) -> Document:
        path = self.folder / "experiment.yaml"
        path.write_text(FILE)
        return read_path(
            str(path), overrides=[f"spec.{key}={value}" for key, value in changes.items()]
        )

    @property
    def lock(self) -> ControllerLock:
        return ControllerLock(self.state.folders(self.uid).root)

    def revise(self) -> None:
        admitted = self.service.resume_file(self.file(parallelism=2), self.folder)
        assert isinstance(admitted, Admitted)
        admitted.lease.release()

    def delete(self) -> None:
        folder = self.state.folders(self.uid).root
        for path in [*folder.iterdir()]:
            path.unlink() if path.is_file() else path.rmdir()
        folder.rmdir()
        self.store.delete_experiment(self.uid)


@pytest.fixture
def setup(tmp_path: Path) -> Iterator[ServiceSetup]:
    setup = ServiceSetup(tmp_path)
    yield setup
    setup.store.close()


def test_an_earlier_revision_continues_with_the_newest_one_and_prints_the_difference(
    setup: ServiceSetup,
) -> None:
    document = setup.file()
    setup.store.meanwhile = setup.revise
    admitted = setup.service.run(document, setup.folder)
    assert isinstance(admitted, Admitted)
    assert (admitted.experiment.revision, admitted.experiment.spec.parallelism) == (2, 2)
    newest = setup.state.folders(setup.uid).revision(2)
    assert (admitted.source, admitted.text) == (str(newest), newest.read_text())
    note = (
        f"{document.source} is revision 1 of tiny; continuing with revision 2, {newest}:\n  "
        f"spec.parallelism: 1 -> 2"
    )
    assert note in admitted.notes
    admitted.lease.release()


def test_resuming_an_edited_file_restores_an_earlier_revision(setup: ServiceSetup) -> None:
    document = setup.file()
    setup.revise()
    admitted = setup.service.resume_file(document, setup.folder)
    assert isinstance(admitted, Admitted)
    assert (admitted.experiment.revision, admitted.experiment.spec.parallelism) == (3, 1)
    admitted.lease.release()
    same = setup.service.resume_file(document, setup.folder)
    assert isinstance(same, Admitted)
    assert (same.experiment.revision, [note for note in same.notes if "revision" in note]) == (
        3,
        [],
    )
    same.lease.release()


def test_a_file_that_was_never_in_force_is_another_experiment(setup: ServiceSetup) -> None:
    setup.revise()
    with pytest.raises(Changed, match=r"spec\.parallelism: 2 -> 3"):
        setup.service.run(setup.file(parallelism=3), setup.folder)
    assert setup.lock.holder() is None


def test_changed_labels_are_taken_as_a_revision(setup: ServiceSetup) -> None:
    path = setup.folder / "experiment.yaml"
    path.write_text(FILE.replace("{name: tiny}", "{name: tiny, labels: {team: vision}}"))
    admitted = setup.service.run(read_path(str(path)), setup.folder)
    assert isinstance(admitted, Admitted)
    assert (admitted.experiment.revision, admitted.experiment.spec.labels) == (
        2,
        {"team": "vision"},
    )
    assert 'revision 2:\n  metadata.labels.team: nothing -> "vision"' in admitted.notes
    admitted.lease.release()


def test_changed_labels_start_nothing_that_has_ended(setup: ServiceSetup) -> None:
    path = setup.folder / "experiment.yaml"
    path.write_text(FILE.replace("{name: tiny}", "{name: tiny, labels: {team: vision}}"))
    known = setup.store.experiment("default", "tiny")
    assert known is not None
    setup.store.save(setup.uid, Changes(experiment=replace(known, state=ExperimentState.SUCCEEDED)))
    for answer in (setup.service.run, setup.service.resume_file):
        assert isinstance(answer(read_path(str(path)), setup.folder), NothingToRun)


def test_a_change_that_is_in_force_already_makes_no_second_revision(setup: ServiceSetup) -> None:
    document = setup.file(parallelism=2)
    setup.store.meanwhile = setup.revise
    admitted = setup.service.resume_file(document, setup.folder)
    assert isinstance(admitted, Admitted)
    assert admitted.experiment.revision == 2
    assert setup.lock.holder() is not None
    admitted.lease.release()


def test_the_running_controller_is_reported_before_changes_of_the_file(setup: ServiceSetup) -> None:
    running = setup.service.run(setup.file(), setup.folder)
    assert isinstance(running, Admitted)
    with pytest.raises(ControlledElsewhere, match="is being run by process"):
        setup.service.run(setup.file(parallelism=2), setup.folder)
    running.lease.release()


def test_an_experiment_deleted_meanwhile_leaves_no_folder(setup: ServiceSetup) -> None:
    setup.store.meanwhile = setup.delete
    with pytest.raises(NotFound, match="deleted just now"):
        setup.service.run(setup.file(), setup.folder)
    assert not list(setup.state.experiments.iterdir())


def test_the_command_that_takes_a_change_repeats_the_flags_that_made_it(
    setup: ServiceSetup,
) -> None:
    file = str(setup.folder / "experiment.yaml")
    with pytest.raises(Changed) as caught:
        setup.service.run(setup.file(parallelism=2), setup.folder)
    said = rendered(str(caught.value), parse(["run", file, "--set", "spec.parallelism=2"]))
    assert f" resume {file} --set spec.parallelism=2, or continue with the stored file: " in said
    path = setup.folder / "experiment.yaml"
    path.write_text(FILE.replace("trials: 3", "trials: 4"))
    with pytest.raises(Changed, match=r"tuner resume \S+/experiment\.yaml`, or continue with"):
        setup.service.run(read_path(str(path)), setup.folder)


def test_a_search_whose_file_reads_differently_is_continued_as_it_was_stored(
    setup: ServiceSetup,
) -> None:
    path = setup.folder / "experiment.yaml"
    path.write_text(FILE.replace("name: random", "name: cmaes"))
    with pytest.raises(
        Changed, match="continue with the stored file: `tuner resume tiny`, or choose another name"
    ):
        setup.service.run(read_path(str(path)), setup.folder)
    admitted = setup.service.resume_name("tiny", None)
    assert isinstance(admitted, Admitted)
    assert (admitted.experiment.spec.algorithm.name, admitted.text) == ("random", FILE)
    over = replace(admitted.experiment, state=ExperimentState.SUCCEEDED)
    setup.store.save(setup.uid, Changes(experiment=over))
    admitted.lease.release()
    with pytest.raises(Changed) as caught:
        setup.service.run(read_path(str(path)), setup.folder)
    assert "tuner resume" not in str(caught.value)


def test_a_refused_change_leaves_the_lock_free(setup: ServiceSetup) -> None:
    other = setup.file()
    setup.folder.joinpath("experiment.yaml").write_text(FILE.replace("max: 1}", "max: 2}"))
    changed = read_path(str(setup.folder / "experiment.yaml"))
    with pytest.raises(Changed, match="can no longer change"):
        setup.service.resume_file(changed, setup.folder)
    assert setup.lock.holder() is None
    admitted = setup.service.run(other, setup.folder)
    assert isinstance(admitted, Admitted)
    admitted.lease.release()


def test_an_import_leaves_an_experiment_alone_that_ran_meanwhile(setup: ServiceSetup) -> None:
    created = setup.store.experiment("default", "tiny")
    assert created is not None
    done = replace(created, state=ExperimentState.SUCCEEDED)

    def run() -> None:
        lock = setup.lock
        lock.take("tiny", within_s=0)
        setup.store.save(setup.uid, Changes(done))
        lock.release()

    def run_refused() -> None:
        with pytest.raises(ControlledElsewhere):
            run()

    setup.store.meanwhile = run_refused  # the import has the lease when it reads the experiment
    assert setup.service.not_run(created).state is ExperimentState.STOPPED
    setup.store.save(setup.uid, Changes(created))
    run()
    assert setup.service.not_run(created).state is ExperimentState.SUCCEEDED
    assert setup.store.experiment("default", "tiny") == done


def test_an_import_leaves_an_experiment_alone_that_a_controller_has(setup: ServiceSetup) -> None:
    created = setup.store.experiment("default", "tiny")
    assert created is not None
    lock = setup.lock
    lock.take("tiny")
    with pytest.raises(ControlledElsewhere):
        setup.service.not_run(created)
    assert setup.store.experiment("default", "tiny") == created
    lock.release()
