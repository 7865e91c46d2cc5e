"""What one attempt executes: template + parameters + identity -> a `Launch`, here or on a cluster. Pure but for reading
the environment mapping that it is given.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from controller.core.model import (
    FINAL,
    Attempt,
    Experiment,
    FailureClass,
    SecretRef,
    TrialOrFinal,
    attempt_name,
    trial_label,
    trial_name,
)
from controller.folders import AttemptFolders
from controller.phrases import command
from controller.runtime.protocol import CannotStart, ClusterPart, Launch
from controller.spec.substitute import fill_data, render
from suggest.space import Assignment
from suggest.trial import Trial

CLUSTER_OUTPUT = "/tuner/output"  # scratch that ends with the pod
CLUSTER_CHECKPOINTS = "/tuner/checkpoints"  # the experiment's folder of the declared claim; scratch without one
MOST_PROBLEMS, MOST_SAID = 3, 200  # of refused parameters, and characters of each, which somebody else has written


class ParametersRefused(CannotStart):
    """The study gave the trial values that the experiment's own file does not allow."""


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
        ParametersRefused: see `own_parameters`.
    """
    template = experiment.spec.template_of(attempt.trial)
    trial = replace(trial, parameters=own_parameters(experiment, trial, stage=attempt.trial))
    command, own_env = render(template, trial.parameters)
    env = {
        "PATH": os.pathsep.join([str(interpreter_directory), environ.get("PATH", os.defpath)]),
        **{name: _resolved(name, value, environ) for name, value in own_env.items()},
        **identity(experiment, trial, attempt, output=str(folders.output), checkpoint=str(folders.checkpoint)),
        "TUNER_PARAMETERS_FILE": str(folders.parameters(template.parameters_file)),
    }
    return Launch(
        name=attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number),
        command=command,
        env=env,
        working_directory=Path(experiment.directory, template.working_dir),
        directory=folders.root,
        timeout_s=template.timeout_s,
        grace_s=template.grace_s,
        gpu=template.resources.gpu,
        slots=None if template.resources.gpu else experiment.spec.parallelism,
        workers=template.workers,
    )


def cluster_launch(
    experiment: Experiment, trial: Trial, attempts: Sequence[Attempt], folders: AttemptFolders
) -> Launch:
    """The newest of the attempts as a cluster executes it; nodes on which the machine was to blame are avoided.

    Raises ParametersRefused: see `own_parameters`.
    """
    attempt = attempts[-1]
    template = experiment.spec.template_of(attempt.trial)
    trial = replace(trial, parameters=own_parameters(experiment, trial, stage=attempt.trial))
    command, own_env = render(template, trial.parameters)
    manifest = template.cluster.get("template")
    return Launch(
        name=attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number),
        command=command,
        env={
            **{name: value for name, value in own_env.items() if isinstance(value, str)},
            **identity(
                experiment,
                trial,
                attempt,
                output=CLUSTER_OUTPUT,
                checkpoint=f"{CLUSTER_CHECKPOINTS}/{trial_label(attempt.trial)}{kept_apart(experiment, attempt)}",
            ),
        },
        working_directory=Path(experiment.directory),
        directory=folders.root,
        timeout_s=template.timeout_s,
        grace_s=template.grace_s,
        gpu=template.resources.gpu,
        slots=experiment.spec.parallelism,
        cluster=ClusterPart(
            namespace=experiment.namespace,
            experiment=experiment.name,
            uid=experiment.uid,
            trial=attempt.trial,
            attempt=attempt.number,
            parameters=trial.parameters,
            template=template,
            secrets={name: value for name, value in own_env.items() if isinstance(value, SecretRef)},
            manifest=None if manifest is None else cast(dict[str, object], fill_data(manifest, trial.parameters)),
            avoid_nodes=_let_down_by(attempts),
        ),
    )


def own_parameters(experiment: Experiment, trial: Trial, *, stage: TrialOrFinal) -> Assignment:
    """The trial's parameters in the words of the experiment's newest file, whatever the study says: others may write
    to a study, and these values reach command lines.

    Raises:
        ParametersRefused: an unknown or inactive parameter, or a value outside of its range or choices.
    """
    space = experiment.spec.space
    problems = space.point_problems(trial.parameters, partial=True)
    if problems:
        told = "; ".join(f"{p.path}: {p.message[:MOST_SAID]}" for p in problems[:MOST_PROBLEMS])
        cure = "" if stage is FINAL else f"to go on without this trial: {command('resume', experiment.name)}; "
        raise ParametersRefused(
            f"the study has parameters for it that the file's spec.parameters do not allow ({told}); {cure}"
            f"to allow them: {command('extend', experiment.name, '--set', 'spec.parameters.NAME=…')}"
        )
    return space.canonical(trial.parameters)


def kept_apart(experiment: Experiment, attempt: Attempt) -> str:
    """What its checkpoints' folder is called beside others of the final stage; "" of a trial's."""
    return experiment.final.apart if attempt.trial is FINAL and experiment.final is not None else ""


def _let_down_by(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    failed = (each for each in attempts if each.failure_class is FailureClass.INFRASTRUCTURE)
    return tuple(dict.fromkeys(each.node for each in failed if each.node))


def identity(experiment: Experiment, trial: Trial, attempt: Attempt, *, output: str, checkpoint: str) -> dict[str, str]:
    """Who the trial is; the same names on every runtime. `trial`: whose parameters; the final stage is told which that
    was, and that it is the final stage."""
    name = trial_name(experiment.name, experiment.uid, attempt.trial)
    stage = {"TUNER_STAGE": "final"} if attempt.trial is FINAL else {}
    return {
        "TUNER_EXPERIMENT": experiment.name,
        "TUNER_TRIAL_NAME": name,
        "TUNER_TRIAL_NUMBER": str(trial.number),
        "TUNER_ATTEMPT": str(attempt.number),
        "TUNER_PARAMETERS": json.dumps(dict(trial.parameters)),
        "TUNER_OUTPUT_DIR": output,
        "TUNER_CHECKPOINT_DIR": checkpoint,
        "KATIB_TRIAL_NAME": name,
        **stage,
    }


def _resolved(name: str, value: str | SecretRef, environ: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return value
    if name not in environ:
        raise CannotStart(
            f"spec.trial.env.{name} is the secret {value.name}/{value.key}: locally it comes from your environment; "
            f"export {name}=… and resume"
        )
    return environ[name]
