"""Build the `ClusterLaunch` of an attempt from its template, its parameters and its identity.

Pure: the environment is passed in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import cast

from controller.core.model import (
    FINAL,
    KATIB_EXPERIMENT_LABEL,
    KATIB_SUFFIX,
    KATIB_TRIAL_LABEL,
    RETAIN,
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
    TrialTemplate,
    attempt_name,
    trial_label,
)
from controller.core.substitute import fill_data, render
from controller.folders import AttemptFolders
from controller.runtime.launch import (
    checkpoint_suffix,
    identity,
    parameters_place,
    substituted,
    with_own_parameters,
)
from controller.runtime.protocol import Launch
from controller.runtime.trial_files import TrialFiles
from controller.runtime.trial_variables import (
    METRICS_FILE,
    METRICS_PORT,
)
from suggest.space import Assignment
from suggest.trial import Trial

CLUSTER_OUTPUT = "/tuner/output"  # scratch space that is deleted with the pod
COLLECTOR_VARIABLE, COLLECTOR_IMAGE = "TUNER_COLLECTOR_IMAGE", "tuner/collector:1"
CLUSTER_ANSWERS = "/tuner/parameters/answers.json"  # an annotation of the pod
CLUSTER_METRICS_PORT = 8080  # of a trial's endpoint, unless the file has another
# the experiment's folder on the declared claim; scratch without a claim
CLUSTER_CHECKPOINTS = "/tuner/checkpoints"
REPORTS_ADDRESS = "127.0.0.1:6789"  # the sidecar in a trial's pod, at Katib's port


@dataclass(frozen=True, slots=True)
class ClusterPart:
    """What a cluster needs to know about an attempt besides its command.

    namespace to attempt: the identity of the attempt; labels on its objects, by which they are
    found again.
    template: the trial's template, for its image, resources and cluster keys.
    labels: the labels of the experiment's file, for the attempt's objects and pods.
    secrets: environment variables that come from secrets.
    manifest: `trial.template` with its placeholders filled in, if the file has one.
    files: the files of this machine that the trial gets.
    avoid_nodes: names of nodes on which an earlier attempt had an infrastructure failure.
    collection: what a sidecar reads, if the measurements are not in the log.
    parent_checkpoint: the folder whose copy TUNER_CHECKPOINT_DIR is at first; "" for an empty one.
    """

    namespace: str
    experiment: str
    uid: str
    trial: TrialOrFinal
    attempt: int
    parameters: Assignment
    template: TrialTemplate
    labels: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, SecretRef] = field(default_factory=dict)
    manifest: Mapping[str, object] | None = None
    files: TrialFiles | None = None
    avoid_nodes: tuple[str, ...] = ()
    collection: Collection | None = None
    parent_checkpoint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLaunch(Launch):
    """The launch of an attempt on a cluster."""

    cluster: ClusterPart


def part_of(launch: Launch) -> ClusterPart:
    assert isinstance(launch, ClusterLaunch), "this runtime gets the launches of its own provider"
    return launch.cluster


def cluster_launch(
    experiment: Experiment,
    trial: Trial,
    attempts: Sequence[Attempt],
    folders: AttemptFolders,
    *,
    environ: Mapping[str, str],
    files: TrialFiles | None = None,
) -> ClusterLaunch:
    """Return the launch of the newest attempt on a cluster.

    It avoids nodes with earlier infrastructure failures.

    `environ` has the image of the collector, unless the file names it.
    For `files` see `ClusterPart`.

    Raises ParametersRefused: see `controller.runtime.launch.own_parameters`.
    """
    attempt = attempts[-1]
    template = experiment.spec.template_of(attempt.trial)
    trial = with_own_parameters(experiment, trial, attempt)
    values = substituted(experiment, trial, attempt)
    command, own_env = render(template, values)
    manifest = template.cluster.get("template")
    goes_on = trial.parent is not None and attempt.trial is not FINAL
    return ClusterLaunch(
        name=attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number),
        command=command,
        env={
            **{name: value for name, value in own_env.items() if isinstance(value, str)},
            **_metrics_place(experiment.spec.metrics.source),
            **parameters_place(experiment, trial, CLUSTER_ANSWERS),
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
            labels={**experiment.spec.labels, **_katib_labels(experiment, attempt)},
            secrets={
                name: value for name, value in own_env.items() if isinstance(value, SecretRef)
            },
            manifest=None
            if manifest is None
            else cast(dict[str, object], fill_data(manifest, values)),
            files=files,
            avoid_nodes=_failed_nodes(attempts),
            collection=_with_image(experiment.spec.collection, environ),
            parent_checkpoint=f"{CLUSTER_CHECKPOINTS}/{trial.parent}" if goes_on else "",
        ),
    )


def _katib_labels(experiment: Experiment, attempt: Attempt) -> dict[str, str]:
    """Return the labels by which Katib's clients find the pods of a trial of a Katib file."""
    if not experiment.spec.is_katib:
        return {}
    return {
        KATIB_EXPERIMENT_LABEL: experiment.name.removesuffix(KATIB_SUFFIX),
        KATIB_TRIAL_LABEL: katib_trial_name(experiment, attempt.trial, attempt.number),
    }


def katib_trial_name(experiment: Experiment, trial: TrialOrFinal, attempt: int) -> str:
    """Return the name of a trial's Trial, whose newest attempt is this one.

    Where objects are retained, Katib's clients look for the one of the Trial's name. That of an
    earlier attempt may be gone, and is not the one that runs.
    """
    shown = attempt if retains(experiment) else 1
    return attempt_name(experiment.name, experiment.uid, trial, shown)


def retains(experiment: Experiment) -> bool:
    """Return whether the objects of ended attempts stay until the experiment is deleted."""
    match experiment.spec.trial.cluster.get("template"):
        case {"metadata": {"annotations": Mapping() as annotations}}:
            return annotations.get(RETAIN) == "true"
    return False


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
            return _address_variables(REPORTS_ADDRESS)
        case None:
            return {}


def _address_variables(address: str) -> dict[str, str]:
    """Return the address as Katib's controller names it, for programs that take it as a flag."""
    host, _, port = address.rpartition(":")
    return {"KATIB_DB_MANAGER_SERVICE_IP": host, "KATIB_DB_MANAGER_SERVICE_PORT": port}


def _failed_nodes(attempts: Sequence[Attempt]) -> tuple[str, ...]:
    failed = (
        attempt for attempt in attempts if attempt.failure_class is FailureClass.INFRASTRUCTURE
    )
    return tuple(dict.fromkeys(attempt.node for attempt in failed if attempt.node))
