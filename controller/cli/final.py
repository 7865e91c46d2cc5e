"""What is known of the final stage, from controller.db and the folders: for those who tell of it, and for `resume`."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from controller.cli.home import Home
from controller.core.model import FINAL, Attempt, AttemptState, Experiment, trial_name
from controller.report.final import FinalRecord, OutputFile
from controller.report.record import ExperimentRecord
from controller.store import SqlStore


def attempts_of(store: SqlStore, experiment: Experiment) -> list[Attempt]:
    """Those since the search last ended, oldest first."""
    if experiment.final is None:
        return []
    return [each for each in store.attempts(experiment.uid, FINAL) if each.number >= experiment.final.first]


def has_failed(store: SqlStore, experiment: Experiment) -> bool:
    """For good: the experiment has ended."""
    attempts = attempts_of(store, experiment)
    return experiment.state.finished and bool(attempts) and attempts[-1].state is AttemptState.FAILED


def find_final(home: Home, store: SqlStore, experiment: Experiment) -> FinalRecord | None:
    """None: it has not begun since the search last went on, or there is none."""
    attempts = attempts_of(store, experiment)
    if experiment.final is None or not attempts:
        return None
    directory = home.folders(experiment.uid).attempt(FINAL, attempts[-1].number).output
    here = experiment.spec.runtime == "local"
    return FinalRecord(
        run=experiment.final,
        attempts=attempts,
        name=trial_name(experiment.name, experiment.uid, FINAL),
        over=experiment.state.finished,
        directory=str(directory) if here else "",
    )


def with_outputs(record: ExperimentRecord) -> ExperimentRecord:
    """There may be many: only what lists them looks."""
    final = record.final
    if final is None or not final.directory:
        return record
    found = sorted(_files(Path(final.directory)), key=lambda file: file.path)
    return replace(record, final=replace(final, outputs=found))


def _files(directory: Path) -> Iterator[OutputFile]:
    """A link is listed by what is behind it; folders behind links are not entered. What goes meanwhile is not there."""
    for folder, _, names in os.walk(directory):
        for name in names:
            path = Path(folder, name)
            if path.is_file():
                yield OutputFile(path.relative_to(directory).as_posix(), path.stat().st_size)
