"""The manifests of trial 0 and of the final stage of a file
that was not run, to show or check them.

Their parameters do not come from the suggestion service, and nothing is stored.
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from controller.core.model import (
    FINAL,
    Attempt,
    Experiment,
    ExperimentSpec,
    TrialOrFinal,
    attempt_name,
)
from controller.folders import ExperimentFolders
from controller.kube.client import KubernetesClient
from controller.runtime.kubernetes.job_builder import (
    build_files,
    build_objects,
    cannot_be_answered,
    cannot_be_collected,
    cannot_be_labeled,
    cannot_be_queued,
)
from controller.runtime.kubernetes.kinds import missing_conditions, not_served, served_pod_field
from controller.runtime.kubernetes.labels import name_problem
from controller.runtime.kubernetes.launch import ClusterLaunch, cluster_launch
from controller.runtime.kubernetes.resource_quota import demand_of
from controller.runtime.trial_files import TrialFiles
from suggest.errors import InvalidArgument, Problem
from suggest.space import Choice, Domain, Float, Int, Scale, Space, Value
from suggest.trial import Trial, TrialState

Raw = dict[str, Any]  # Any: an object in the form of the cluster's API

UID = "dryrunaaaaaaaaaa"  # constant, so that two dry runs print the same
TEMPLATE, FINAL_STAGE = "spec.trial.template", "spec.final"


def sample_launch(
    spec: ExperimentSpec, stage: TrialOrFinal = 0, *, files: TrialFiles | None = None
) -> ClusterLaunch:
    """Return the launch of trial 0, or of the stage FINAL with the same parameters."""
    experiment = Experiment(uid=UID, spec=spec, revision=1, directory="", study="")
    trial = Trial(0, TrialState.RUNNING, first_point(spec))
    folders = ExperimentFolders(Path(UID)).attempt(stage, 1)
    return cluster_launch(
        experiment, trial, [Attempt(stage, 1)], folders, environ=os.environ, files=files
    )


async def served_manifests_of(
    client: KubernetesClient, spec: ExperimentSpec, *, files: TrialFiles | None = None
) -> list[Raw]:
    """Return trial 0's objects in the form that the cluster's version of the template's kind needs.

    Raises InvalidArgument if it has none, and what the client raises.
    """

    template = cast("Raw | None", spec.trial.cluster.get("template"))
    pod_field = "" if template is None else await served_pod_field(client, template)
    return manifests_of(spec, files=files, pod_field=pod_field)


def manifests_of(
    spec: ExperimentSpec, *, files: TrialFiles | None = None, pod_field: str | None = ""
) -> list[Raw]:
    """Return the objects of trial 0. Raises InvalidArgument if they are invalid on any cluster.

    For `pod_field` see `build_objects`.
    """

    launch = sample_launch(spec, files=files)
    part = launch.cluster
    last = 0 if spec.budget.trials is None else spec.budget.trials - 1
    again = 1 + max(spec.trial.retries.values(), default=0)
    problems = {
        "metadata.name": name_problem(
            replace(launch, name=attempt_name(spec.name, UID, last, again))
        )
    }
    if part.manifest is not None:
        manifest = part.manifest
        problems[TEMPLATE] = (
            missing_conditions(manifest, spec.trial.cluster)
            or not_served(manifest, pod_field)
            or cannot_be_labeled(manifest)
            or (cannot_be_answered(manifest) if spec.define_by_run else "")
        )
        if "queue" in spec.trial.cluster:
            problems["spec.trial.queue"] = cannot_be_queued(manifest)
        if part.collection is not None:
            problems["spec.metrics"] = cannot_be_collected(manifest, spec.trial.cluster)
    if any(problems.values()):
        raise InvalidArgument(
            [Problem(path, message) for path, message in problems.items() if message]
        )
    objects = build_objects(launch, pod_field=pod_field)
    try:
        demand_of(objects)
    except ValueError as error:
        place = TEMPLATE if part.manifest is not None else "spec.trial.resources"
        raise InvalidArgument.at(place, str(error)) from error
    shared = build_files(launch)
    return objects if shared is None else [shared, *objects]


def final_manifests_of(spec: ExperimentSpec) -> list[Raw]:
    """Return the final stage's objects with trial 0's parameters; none without a final stage.

    Raises the errors of `manifests_of`.
    """

    if spec.final is None:
        return []
    objects = build_objects(sample_launch(spec, FINAL))
    try:
        demand_of(objects)
    except ValueError as error:
        raise InvalidArgument.at(f"{FINAL_STAGE}.resources", str(error)) from error
    return objects


def first_point(spec: ExperimentSpec) -> dict[str, Value]:
    """Return the first point of `spec.initial`, missing parameters in mid-range."""
    return _completed(spec.space, spec.initial[0] if spec.initial else {})


def _completed(space: Space, values: Mapping[str, Value]) -> dict[str, Value]:
    point: dict[str, Value] = {}
    for parameter in space.ordered:
        if parameter.active(point):
            point[parameter.name] = values.get(parameter.name, _middle(parameter.domain))
    return space.canonical(point)


def _middle(domain: Domain) -> Value:
    match domain:
        case Choice():
            return domain.at(0)
        case Int(min=low, max=high, scale=Scale.LOG):
            return round(math.sqrt(low * high))
        case Float(min=low, max=high, scale=scale) if domain.count is None:
            exact = math.sqrt(low) * math.sqrt(high) if scale is Scale.LOG else low / 2 + high / 2
            short = float(f"{exact:.3g}")
            return short if domain.contains(short) else exact
        case Float() | Int():
            count = domain.count
            assert count is not None
            return domain.at((count - 1) // 2)
