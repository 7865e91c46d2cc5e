"""Build the `Launch` of an attempt, local or on a cluster, from its template, its parameters and
its identity.

Pure functions: the environment is passed in.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import cast

from controller.core.model import (
    FINAL,
    Attempt,
    Collection,
    Experiment,
    FailureClass,
    KatibReports,
    MetricsFile,
    MetricsSource,
    PrometheusEndpoint,
    SecretRef,
    TrialOrFinal,
    attempt_name,
    trial_label,
    trial_name,
)
from controller.folders import AttemptFolders
from controller.phrases import command
from controller.runtime.local.collectors import METRICS_FILE, METRICS_PORT, place_below
from controller.runtime.local.report_address import IN_POD, address_variables
from controller.runtime.protocol import CannotStart, ClusterPart, Launch
from controller.runtime.trial_files import TrialFiles
from controller.spec.substitute import TRIAL_NAME, fill_data, render
from suggest.space import Assignment
from suggest.trial import Trial

CLUSTER_OUTPUT = "/tuner/output"  # scratch space that is deleted with the pod
COLLECTOR_VARIABLE, COLLECTOR_IMAGE = "TUNER_COLLECTOR_IMAGE", "tuner/collector:1"
CLUSTER_METRICS_PORT = 8080  # of a trial's endpoint, unless the file has another
# the experiment's folder on the declared claim; scratch without a claim
CLUSTER_CHECKPOINTS = "/tuner/checkpoints"
# parameters in a message, and characters of each, which are foreign text
MOST_PROBLEMS, MESSAGE_LENGTH = 3, 200


class ParametersRefused(CannotStart):
    """The study gave the trial parameters that the experiment's file does not allow."""


def launch(
    experiment: Experiment,
    trial: Trial,
    attempt: Attempt,
    folders: AttemptFolders,
    *,
    environ: Mapping[str, str],
    interpreter_directory: Path,
) -> Launch:
    """Return the launch of a local attempt.

    The attempt inherits `environ`, with `interpreter_directory` first in PATH, so that `python` is
    the controller's.

    Raises:
        CannotStart: a secret of the template is not in `environ`.
        ParametersRefused: see `own_parameters`.
    """
    template = experiment.spec.template_of(attempt.trial)
    trial = _with_own_parameters(experiment, trial, attempt)
    command, own_env = render(template, _substituted(experiment, trial, attempt))
    source = experiment.spec.metrics.source
    if isinstance(source, MetricsFile) and source.path.startswith("/"):
        moved = partial(
            _moved, folder=source.folder, to=str(place_below(folders.output, source.folder))
        )
        command = tuple(map(moved, command))
        own_env = {
            name: moved(value) if isinstance(value, str) else value
            for name, value in own_env.items()
        }
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


def cluster_launch(
    experiment: Experiment,
    trial: Trial,
    attempts: Sequence[Attempt],
    folders: AttemptFolders,
    *,
    environ: Mapping[str, str],
    files: TrialFiles | None = None,
) -> Launch:
    """Return the launch of the newest attempt on a cluster. It avoids nodes with earlier
    infrastructure failures.

    `environ` has the image of the collector, unless the file names it. For `files` see
    `ClusterPart`.

    Raises ParametersRefused: see `own_parameters`.
    """
    attempt = attempts[-1]
    template = experiment.spec.template_of(attempt.trial)
    trial = _with_own_parameters(experiment, trial, attempt)
    substituted = _substituted(experiment, trial, attempt)
    command, own_env = render(template, substituted)
    manifest = template.cluster.get("template")
    goes_on = trial.parent is not None and attempt.trial is not FINAL
    return Launch(
        name=attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number),
        command=command,
        env={
            **{name: value for name, value in own_env.items() if isinstance(value, str)},
            **_metrics_place(experiment.spec.metrics.source),
            **identity(
                experiment,
                trial,
                attempt,
                output=CLUSTER_OUTPUT,
                checkpoint=f"{CLUSTER_CHECKPOINTS}/{trial_label(attempt.trial)}"
                + checkpoint_suffix(experiment, attempt),
            ),
        },
        working_directory=Path(experiment.directory),
        directory=folders.root,
        timeout_s=template.timeout_s,
        grace_s=template.grace_s,
        log_limit_bytes=template.log_limit_bytes,
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
            labels=experiment.spec.labels,
            secrets={
                name: value for name, value in own_env.items() if isinstance(value, SecretRef)
            },
            manifest=None
            if manifest is None
            else cast(dict[str, object], fill_data(manifest, substituted)),
            files=files,
            avoid_nodes=_failed_nodes(attempts),
            collection=_with_image(experiment.spec.collection, environ),
            parent_checkpoint=f"{CLUSTER_CHECKPOINTS}/{trial.parent}" if goes_on else "",
        ),
    )


def _with_own_parameters(experiment: Experiment, trial: Trial, attempt: Attempt) -> Trial:
    parameters = {
        **own_parameters(experiment, trial, stage=attempt.trial),
        **fidelity(experiment, attempt),
    }
    return replace(trial, parameters=parameters)


def _substituted(experiment: Experiment, trial: Trial, attempt: Attempt) -> Assignment:
    return {
        TRIAL_NAME: trial_name(experiment.name, experiment.uid, attempt.trial),
        **trial.parameters,
    }


def _moved(text: str, *, folder: str, to: str) -> str:
    """Return the text with each mention of a container's folder replaced by its place on this
    machine.
    """
    return re.sub(
        rf"(?<![^\s=:,;'\"(\[]){re.escape(folder)}(?![^\s/:,;'\")\]])", lambda _: to, text
    )


def _with_image(collection: Collection | None, environ: Mapping[str, str]) -> Collection | None:
    if collection is None or collection.image:
        return collection
    return replace(collection, image=environ.get(COLLECTOR_VARIABLE) or COLLECTOR_IMAGE)


def _metrics_place(source: MetricsSource | None) -> dict[str, str]:
    """Return the variable that tells a trial on a cluster where its metrics are read."""
    match source:
        case MetricsFile():
            return {METRICS_FILE: str(PurePosixPath(CLUSTER_OUTPUT, source.path))}
        case PrometheusEndpoint():
            return {METRICS_PORT: str(source.port or CLUSTER_METRICS_PORT)}
        case KatibReports():
            return address_variables(IN_POD)
        case None:
            return {}


def own_parameters(experiment: Experiment, trial: Trial, *, stage: TrialOrFinal) -> Assignment:
    """Return the trial's parameters, checked against the experiment's newest file and in its
    spelling.

    The study is not trusted, because others may write to it and these values end up on command
    lines.

    Raises:
        ParametersRefused: an unknown or inactive parameter, or a value outside of its range or
        choices.
    """
    space = experiment.spec.space
    problems = space.point_problems(trial.parameters, partial=True)
    if problems:
        problem_list = "; ".join(
            f"{p.path}: {p.message[:MESSAGE_LENGTH]}" for p in problems[:MOST_PROBLEMS]
        )
        cure = (
            ""
            if stage is FINAL
            else f"to continue without this trial: {command('resume', experiment.name)}; "
        )
        raise ParametersRefused(
            f"the study has parameters for it that the file's spec.parameters do not allow "
            f"({problem_list}); {cure}"
            f"to allow them: "
            f"{command('extend', experiment.name, '--set', 'spec.parameters.NAME=…')}"
        )
    return space.canonical(trial.parameters)


def fidelity(experiment: Experiment, attempt: Attempt) -> Assignment:
    """Return the fidelity up to which the attempt runs, under its name; empty in an experiment
    without one.
    """
    spec = experiment.spec.fidelity
    if spec is None:
        return {}
    level = (
        spec.levels[-1 if attempt.trial is FINAL else 0]
        if attempt.fidelity is None
        else attempt.fidelity
    )
    return {spec.parameter: int(level) if level.is_integer() else level}


def checkpoint_suffix(experiment: Experiment, attempt: Attempt) -> str:
    """Return the suffix of the checkpoint folder that separates runs of the final stage; "" for a
    trial.
    """
    return experiment.final.apart if attempt.trial is FINAL and experiment.final is not None else ""


def _failed_nodes(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    failed = (
        attempt for attempt in attempts if attempt.failure_class is FailureClass.INFRASTRUCTURE
    )
    return tuple(dict.fromkeys(attempt.node for attempt in failed if attempt.node))


def identity(
    experiment: Experiment, trial: Trial, attempt: Attempt, *, output: str, checkpoint: str
) -> dict[str, str]:
    """Return the environment variables that identify the attempt, which are the same on every
    runtime.

    `trial` is the trial whose parameters the attempt has. The final stage gets that trial's number
    and TUNER_STAGE.
    """
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
            f"spec.trial.env.{name} is the secret {value.name}/{value.key}: locally it comes from "
            f"your environment; "
            f"export {name}=… and resume"
        )
    return environ[name]
