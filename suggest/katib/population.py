"""Katib's pbt: the names and labels of its trials, and the checkpoints that they begin with.

Katib's service of pbt names its trials, because a trial's folder is a copy of its parent's before
the trial begins: `<folder>/<experiment>/<trial>`, which Katib mounts where the setting
suggestion_trial_dir says. Each trial of a search has the same name whenever it is asked for.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path

from suggest.engine import Engine
from suggest.errors import FailedPrecondition, InvalidArgument, Unavailable

GENERATION, PARENT = (
    f"pbt.suggestion.katib.kubeflow.org/{word}" for word in ("generation", "parent")
)
_LETTERS = "bcdfghjklmnpqrstvwxz2456789"  # of the names that Katib draws
_NAME = re.compile(
    r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?"
)  # of an object in a cluster; also a file's that stays in its folder


def trial_name(experiment: str, study_uid: str, number: int) -> str:
    """Return a trial's name.

    The uid keeps a search with a new store from an older one's checkpoints.
    """
    digest = hashlib.sha256(f"{study_uid}/{number}".encode()).digest()
    return f"{experiment}-{''.join(_LETTERS[byte % len(_LETTERS)] for byte in digest[:8])}"


def generation(engine: Engine, number: int) -> int:
    """Return how many trials the trial descends from."""
    count = 0
    while (parent := engine.trial(number).parent) is not None:
        number, count = parent, count + 1
    return count


class Checkpoints:
    """The folders of the trials. `folder`: of the volume whose folders Katib mounts."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def check(self, experiment: str) -> None:
        """Check that an experiment's folder is in this one. Raises InvalidArgument."""
        if not _NAME.fullmatch(experiment):
            problem = (
                f"{experiment[:80]!r} is not a valid Kubernetes name; use lower-case "
                f"letters, digits and -"
            )
            raise InvalidArgument.at("experiment.name", problem)

    def prepare(self, experiment: str, trial: str, parent: str) -> None:
        """Make a trial's folder, a copy of its parent's, unless it is there. parent: "" for none.

        Raises:
            InvalidArgument: see `check`.
            FailedPrecondition: the parent's name is not a valid Kubernetes name.
            Unavailable: the folder cannot be written.
        """
        self.check(experiment)
        if parent and not _NAME.fullmatch(parent):
            raise FailedPrecondition(
                f"trial {parent[:80]!r} has no valid Kubernetes name, so no checkpoint"
            )
        target, source = self._folder / experiment / trial, self._folder / experiment / parent
        if target.exists():
            return
        partial = target.with_name(f".{trial}.partial")
        try:
            target.parent.mkdir(exist_ok=True)
            shutil.rmtree(partial, ignore_errors=True)
            if parent and source.is_dir():
                shutil.copytree(source, partial, symlinks=True)
            else:
                partial.mkdir()
            partial.rename(target)  # the copy gets its name when it is complete
        except (OSError, shutil.Error) as error:
            raise Unavailable(
                f"the checkpoint of {trial} cannot be prepared in {self._folder}: {error}"
            ) from error
