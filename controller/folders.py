"""Where an experiment's files are, and what is written into an attempt's folder before it starts.

    <home>/experiments/<uid>/experiment.yaml, experiment.r2.yaml ...
                            /trials/<n>/checkpoint/            survives the attempts of a trial
                            /trials/<n>/<attempt>/log.txt parameters.json provenance.json output/
                                                  parameters.yaml: where the file asks for it
                            /final/...                         the final stage, as a trial

The runtime writes the log; nothing here is read back by the controller: these files are for people.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from controller.core.model import FINAL, TrialOrFinal, trial_label
from suggest.space import Assignment


@dataclass(frozen=True, slots=True)
class AttemptFolders:
    root: Path
    output: Path
    checkpoint: Path

    @property
    def log(self) -> Path:
        return self.root / "log.txt"

    def parameters(self, form: str) -> Path:
        """form: json or yaml."""
        return self.root / f"parameters.{form}"

    def prepare(self, *, parameters: Assignment, provenance: Mapping[str, object], form: str = "json") -> None:
        """form: of the file of parameters that the trial is told of; the one in JSON is always there."""
        self.output.mkdir(parents=True, exist_ok=True)
        self.checkpoint.mkdir(exist_ok=True)
        self.parameters("json").write_text(json.dumps(parameters, indent=1) + "\n", encoding="utf-8")
        if form == "yaml":
            import yaml  # type: ignore[import-untyped]  # here: hardly any experiment asks for it

            text = yaml.safe_dump(dict(parameters), sort_keys=False, allow_unicode=True, width=1 << 20)
            self.parameters("yaml").write_text(text, encoding="utf-8")
        (self.root / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n", encoding="utf-8")


class ExperimentFolders:
    def __init__(self, root: Path) -> None:
        self.root = root

    def revision(self, number: int) -> Path:
        return self.root / ("experiment.yaml" if number == 1 else f"experiment.r{number}.yaml")

    def trial(self, trial: TrialOrFinal) -> Path:
        return self.root / trial_label(trial) if trial is FINAL else self.root / "trials" / trial_label(trial)

    def attempt(self, trial: TrialOrFinal, attempt: int, *, apart: str = "") -> AttemptFolders:
        """apart: what tells its checkpoints from others of the same trial."""
        root = self.trial(trial) / str(attempt)
        return AttemptFolders(root, root / "output", self.trial(trial) / f"checkpoint{apart}")
