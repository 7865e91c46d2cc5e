"""What one attempt executes: template + parameters + identity -> a `Launch`. Pure but for reading the environment
mapping that it is given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from controller.folders import AttemptFolders
from controller.model import Attempt, Experiment, SecretRef, attempt_name, trial_name
from controller.runtime.protocol import CannotStart, Launch
from controller.spec.substitute import render
from suggest.trial import Trial


def launch(
    experiment: Experiment,
    trial: Trial,
    attempt: Attempt,
    folders: AttemptFolders,
    *,
    environ: Mapping[str, str],
    interpreter_directory: Path,
) -> Launch:
    """`environ`: what the trial inherits; its PATH is led by `interpreter_directory`, so that `python` is ours.

    Raises:
        CannotStart: a secret of the template is not in `environ`.
    """
    template = experiment.spec.trial
    command, own_env = render(template, trial.parameters)
    env = {
        "PATH": os.pathsep.join([str(interpreter_directory), environ.get("PATH", os.defpath)]),
        **{name: _resolved(name, value, environ) for name, value in own_env.items()},
        **identity(experiment, trial, attempt, folders),
    }
    return Launch(
        name=attempt_name(experiment.name, experiment.uid, trial.number, attempt.number),
        command=command,
        env=env,
        working_directory=Path(experiment.directory),
        directory=folders.root,
        timeout_s=template.timeout_s,
        grace_s=template.grace_s,
        gpu=template.resources.gpu,
    )


def identity(experiment: Experiment, trial: Trial, attempt: Attempt, folders: AttemptFolders) -> dict[str, str]:
    """Who the trial is; the same names on every runtime."""
    name = trial_name(experiment.name, experiment.uid, trial.number)
    return {
        "TUNER_EXPERIMENT": experiment.name,
        "TUNER_TRIAL_NAME": name,
        "TUNER_TRIAL_NUMBER": str(trial.number),
        "TUNER_ATTEMPT": str(attempt.number),
        "TUNER_PARAMETERS": json.dumps(dict(trial.parameters)),
        "TUNER_OUTPUT_DIR": str(folders.output),
        "TUNER_CHECKPOINT_DIR": str(folders.checkpoint),
        "KATIB_TRIAL_NAME": name,
    }


def _resolved(name: str, value: str | SecretRef, environ: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return value
    if name not in environ:
        raise CannotStart(
            f"spec.trial.env.{name} is the secret {value.name}/{value.key}: locally it comes from your environment; "
            f"export {name}=… and tuner resume"
        )
    return environ[name]
