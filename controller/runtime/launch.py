"""Build the `Launch` of an attempt from its template,
its parameters and its identity, on any runtime.

Pure functions: the environment is passed in.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from controller.core.model import (
    FINAL,
    Attempt,
    Experiment,
    MetricsFile,
    SecretRef,
    TrialOrFinal,
    attempt_name,
    trial_name,
)
from controller.core.substitute import TRIAL_NAME, render
from controller.folders import AttemptFolders
from controller.phrases import command
from controller.runtime.protocol import CannotStart, Launch
from controller.runtime.trial_variables import PARAMETER_ANSWERS, PARAMETER_PLAN, place_below
from suggest.domain import compact_json
from suggest.space import Assignment
from suggest.trial import PLANNED, Trial

# Credentials for the study store and the service. Trials do not need them;
# one that does has them in its `env`.
CREDENTIALS = ("TUNER_TOKEN", "TUNER_TOKEN_FILE", "PGPASSWORD", "PGPASSFILE", "PGSERVICEFILE")
# parameters in a message, and characters of each, which are foreign text
MOST_PROBLEMS, MESSAGE_LENGTH = 3, 200


class ParametersRefused(CannotStart):
    """The study gave the trial parameters that the experiment's file does not allow."""


def host_launch(
    experiment: Experiment,
    trial: Trial,
    attempts: Sequence[Attempt],
    folders: AttemptFolders,
    *,
    environ: Mapping[str, str],
    interpreter_directory: Path,
) -> Launch:
    """Return the newest attempt's launch as a program on a host with the files of this machine.

    The attempt inherits `environ`, with `interpreter_directory` first in PATH,
    so that `python` is the controller's.

    Raises:
        CannotStart: a secret of the template is not in `environ`.
        ParametersRefused: see `own_parameters`.
    """
    attempt = attempts[-1]
    template = experiment.spec.template_of(attempt.trial)
    trial = with_own_parameters(experiment, trial, attempt)
    command, own_env = render(template, substituted(experiment, trial, attempt))
    source = experiment.spec.metrics.source
    if isinstance(source, MetricsFile) and source.path.startswith("/"):
        moved = partial(
            _moved, folder=source.folder, to=str(place_below(folders.output, source.folder))
        )
        command = tuple(map(moved, command))
        texts = {name: text for name, text in own_env.items() if isinstance(text, str)}
        own_env = {**own_env, **{name: moved(text) for name, text in texts.items()}}
    env = {
        "PATH": os.pathsep.join([str(interpreter_directory), environ.get("PATH", os.defpath)]),
        **{name: _resolved(name, value, environ) for name, value in own_env.items()},
        **identity(
            experiment,
            trial,
            attempt,
            output=str(folders.output),
            checkpoint=str(folders.checkpoint),
        ),
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
        log_limit_bytes=template.log_limit_bytes,
        gpu=template.resources.gpu,
        slots=None if template.resources.gpu else experiment.spec.parallelism,
        workers=template.workers,
    )


def with_own_parameters(experiment: Experiment, trial: Trial, attempt: Attempt) -> Trial:
    parameters = {
        **experiment.spec.of_program(own_parameters(experiment, trial, stage=attempt.trial)),
        **fidelity(experiment, attempt),
    }
    return replace(trial, parameters=parameters)


def substituted(experiment: Experiment, trial: Trial, attempt: Attempt) -> Assignment:
    return {
        TRIAL_NAME: trial_name(experiment.name, experiment.uid, attempt.trial),
        **trial.parameters,
    }


def _moved(text: str, *, folder: str, to: str) -> str:
    """Return the text with each container folder replaced by its place on this machine."""
    return re.sub(
        rf"(?<![^\s=:,;'\"(\[<>|&]){re.escape(folder)}(?![^\s/:,;'\")\]<>|&])", lambda _: to, text
    )


def own_parameters(experiment: Experiment, trial: Trial, *, stage: TrialOrFinal) -> Assignment:
    """Return the trial's parameters, checked against the experiment's newest file, in its spelling.

    The study is not trusted, because others may write
    to it and these values end up on command lines.

    Raises:
        ParametersRefused: an unknown or inactive parameter, or a value outside of its range or
        choices.
    """
    if experiment.spec.define_by_run:
        # The trial named them itself, and they are no part of a command.
        return trial.parameters
    space = experiment.spec.space
    problems = space.point_problems(trial.parameters, partial=True)
    if problems:
        problem_list = "; ".join(
            f"{p.path}: {p.message[:MESSAGE_LENGTH]}" for p in problems[:MOST_PROBLEMS]
        )
        cure = ""
        if stage is not FINAL:
            resume = command("resume", experiment.name)
            cure = f"to continue without this trial: {resume}; "
        raise ParametersRefused(
            "the study has parameters for it that the file's spec.parameters do not allow "
            f"({problem_list}); {cure}to allow them: "
            f"{command('extend', experiment.name, '--set', 'spec.parameters.NAME=…')}"
        )
    return space.canonical(trial.parameters)


def fidelity(experiment: Experiment, attempt: Attempt) -> Assignment:
    """Return the fidelity up to which the attempt runs, under its name; empty if there is none."""
    spec = experiment.spec.fidelity
    if spec is None:
        return {}
    level = attempt.fidelity
    if level is None:
        level = spec.levels[-1 if attempt.trial is FINAL else 0]
    return {spec.parameter: int(level) if level.is_integer() else level}


def checkpoint_suffix(experiment: Experiment, attempt: Attempt) -> str:
    """Return the suffix that separates checkpoints of final stage runs; "" for a trial."""
    return experiment.final.apart if attempt.trial is FINAL and experiment.final is not None else ""


def identity(
    experiment: Experiment, trial: Trial, attempt: Attempt, *, output: str, checkpoint: str
) -> dict[str, str]:
    """Return the environment variables that identify the attempt, the same on every runtime.

    `trial` is the trial whose parameters the attempt has. The final stage gets
    that trial's number and TUNER_STAGE.
    """
    name = trial_name(experiment.name, experiment.uid, attempt.trial)
    stage = {"TUNER_STAGE": "final"} if attempt.trial is FINAL else {}
    return {
        "TUNER_EXPERIMENT": experiment.name,
        "TUNER_TRIAL_NAME": name,
        "TUNER_TRIAL_NUMBER": str(trial.number),
        "TUNER_ATTEMPT": str(attempt.number),
        "TUNER_SEED": str(trial_seed(experiment, trial.number)),
        "TUNER_PARAMETERS": json.dumps(dict(trial.parameters)),
        "TUNER_OBJECTIVES": json.dumps(
            {each.metric: each.direction.value for each in experiment.spec.objectives}
        ),
        "TUNER_OUTPUT_DIR": output,
        "TUNER_CHECKPOINT_DIR": checkpoint,
        "KATIB_TRIAL_NAME": name,
        **stage,
    }


def parameters_place(experiment: Experiment, trial: Trial, answers: str) -> dict[str, str]:
    """Return the variables that tell a trial where it finds parameters that it meets.

    answers: the file in which its runtime shows the answers. Empty if its parameters are known.
    """
    if not experiment.spec.define_by_run:
        return {}
    plan = trial.labels.get(PLANNED, "{}")
    if (source := experiment.spec.rerun_of(trial.number)) is not None:
        # Any other parameter must be asked for, since a rerun does not have it.
        plan = compact_json({k: v for k, v in json.loads(plan).items() if k in source[1]})
    return {PARAMETER_ANSWERS: answers, PARAMETER_PLAN: plan}


def trial_seed(experiment: Experiment, number: int) -> int:
    """Return a trial's seed, the same for all its attempts: random, or that of its rerun."""
    rerun = experiment.spec.rerun
    source = None if rerun is None else rerun.of(number)
    return derived_seed(experiment.uid, number) if source is None else source[1]


def derived_seed(*words: str | int) -> int:
    """Return a number of 31 bits, which all libraries take as a seed."""
    text = "/".join(map(str, words))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


def _resolved(name: str, value: str | SecretRef, environ: Mapping[str, str]) -> str:
    if isinstance(value, str):
        return value
    if name not in environ:
        raise CannotStart(
            f"spec.trial.env.{name} is the secret {value.name}/{value.key}: locally it comes from "
            f"your environment; export {name}=… and resume"
        )
    return environ[name]
