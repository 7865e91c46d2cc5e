"""The folders of an experiment, and the files that are written into an attempt's folder before it starts.

    <home>/experiments/<uid>/experiment.yaml, experiment.r2.yaml ...
                            /trials/<n>/checkpoint/            survives the attempts of a trial
                            /trials/<n>/<attempt>/log.txt parameters.json provenance.json output/
                                                  metrics.txt: what a collector read, if there is one
                                                  parameters.yaml: if the experiment's file asks for it
                            /final/...                         the final stage, like a trial

The runtime writes the log. The controller never reads these files back; they are for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.core.model import FINAL, TrialOrFinal, trial_label
from suggest.space import Assignment

FUNCTION_ARCHIVE = "objective.pyz"


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

    def prepare(self, *, parameters: Assignment, provenance: Mapping[str, object], form: str = "json") -> None:
        """Create the folders and write the files of an attempt.

        `form` is the format of the file of parameters that the trial is given. The JSON file is always written.
        """
        self.output.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)
        self.parameters("json").write_text(json.dumps(parameters, indent=1) + "\n", encoding="utf-8")
        if form == "yaml":
            import yaml  # type: ignore[import-untyped]  # lazy: few experiments ask for it

            text = yaml.safe_dump(dict(parameters), sort_keys=False, allow_unicode=True, width=1 << 20)
            self.parameters("yaml").write_text(text, encoding="utf-8")
        (self.root / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


class ExperimentFolders:
    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def function(self) -> Path:
        """Return the path of the archive with the function of `tuner.minimize`, for trials on a cluster."""
        return self.root / FUNCTION_ARCHIVE

    def revision(self, number: int) -> Path:
        return self.root / ("experiment.yaml" if number == 1 else f"experiment.r{number}.yaml")

    def trial(self, trial: TrialOrFinal) -> Path:
        return self.root / trial_label(trial) if trial is FINAL else self.root / "trials" / trial_label(trial)

    def attempt(self, trial: TrialOrFinal, attempt: int, *, apart: str = "") -> AttemptFolders:
        """Return the folders of one attempt. `apart` separates its checkpoints from others of the same trial."""
        root = self.trial(trial) / str(attempt)
        return AttemptFolders(root, root / "output", self.trial(trial) / f"checkpoint{apart}")
