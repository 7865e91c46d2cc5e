"""The folders of an experiment, and the files that are written into
an attempt's folder before it starts.

    <home>/experiments/<uid>/
        experiment.yaml, experiment.r2.yaml ...
        trouble.json                    of its controller: `TroubleFile`
        trials/<n>/checkpoint/          survives the attempts of a trial
        trials/<n>/checkpoint.partial/  a copy of its parent's that is being made
        trials/<n>/<attempt>/           log.txt parameters.json provenance.json output/
            metrics.txt                 what a collector read, if there is one
            parameters.yaml             if the experiment's file asks for it
        final/...                       the final stage, like a trial

The runtime writes the log. The controller never reads these files back; they are for people.
"""

from __future__ import annotations

import json
import shutil
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.core.model import FINAL, FUNCTION_ARCHIVE, FUNCTION_FILE, TrialOrFinal, trial_label
from suggest import failpoints
from suggest.space import Assignment

_NAMED = failpoints.register("checkpoint.copy")

MOVED = "unpacked.json"  # of an experiment that was unpacked here: what its pack says of itself


@dataclass(frozen=True, slots=True)
class AttemptFolders:
    root: Path
    output: Path
    checkpoint: Path

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    def parameters(self, form: str) -> Path:
        """Return the path of the file of parameters; `form` is json or yaml."""
        return self.root / f"parameters.{form}"

    @property
    def has_checkpoint(self) -> bool:
        return self.checkpoint.is_dir() and any(self.checkpoint.iterdir())

    def inherit(self, parent: Path) -> None:
        """Copy the parent trial's checkpoint, unless this trial has its folder already.

        May take long. The copy gets its name when it is complete, so a kill at any moment leaves
        all of it or nothing.
        """
        if self.checkpoint.exists() or not parent.is_dir():
            return
        partial = self.checkpoint.with_name(f"{self.checkpoint.name}.partial")
        if partial.exists():
            shutil.rmtree(partial)  # an earlier process was killed
        shutil.copytree(parent, partial, symlinks=True, ignore=_special_files)
        with _NAMED:
            partial.rename(self.checkpoint)

    def prepare(
        self, *, parameters: Assignment, provenance: Mapping[str, object], form: str
    ) -> None:
        """Create the folders and write the files of an attempt.

        `form` is the format of the file of parameters that the trial is given.
        The JSON file is always written.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)
        self.parameters("json").write_text(
            json.dumps(parameters, indent=1) + "\n", encoding="utf-8"
        )
        if form == "yaml":
            import yaml  # type: ignore[import-untyped]  # lazy: few experiments ask for it

            text = yaml.safe_dump(
                dict(parameters), sort_keys=False, allow_unicode=True, width=1 << 20
            )
            self.parameters("yaml").write_text(text, encoding="utf-8")
        (self.root / "provenance.json").write_text(
            json.dumps(provenance, indent=1) + "\n", encoding="utf-8"
        )


def _special_files(folder: str, names: list[str]) -> list[str]:
    """Return the sockets, pipes and devices among the files of a folder, which cannot be copied."""
    modes = {name: Path(folder, name).lstat().st_mode for name in names}
    return [
        n
        for n, mode in modes.items()
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode))
    ]


class ExperimentFolders:
    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def function(self) -> Path:
        """Return the path of `tuner.minimize`'s archived function, for trials on a cluster."""
        return self.root / FUNCTION_ARCHIVE

    @property
    def stored_function(self) -> Path | None:
        """Return the function that the trials call, in the form for their place; None: gone."""
        forms = (self.root / FUNCTION_FILE, self.function)
        return next((path for path in forms if path.exists()), None)

    @property
    def is_moved(self) -> bool:
        """Return whether the experiment was unpacked here, and may still be where it was packed."""
        return (self.root / MOVED).exists()

    def revision(self, number: int) -> Path:
        return self.root / ("experiment.yaml" if number == 1 else f"experiment.r{number}.yaml")

    def trial(self, trial: TrialOrFinal) -> Path:
        if trial is FINAL:
            return self.root / trial_label(trial)
        return self.root / "trials" / trial_label(trial)

    def checkpoint(self, trial: TrialOrFinal, *, apart: str = "") -> Path:
        """Return the folder of a trial's checkpoints. `apart` separates runs of the final stage."""
        return self.trial(trial) / f"checkpoint{apart}"

    def attempt(self, trial: TrialOrFinal, attempt: int, *, apart: str = "") -> AttemptFolders:
        """Return the folders of one attempt. For `apart` see `checkpoint`."""
        root = self.trial(trial) / str(attempt)
        return AttemptFolders(root, root / "output", self.checkpoint(trial, apart=apart))
