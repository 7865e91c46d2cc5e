"""Builds the launch of an attempt on a cluster in one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from controller.core.model import AttemptState, FailureClass, MetricsRule, Resources, TrialTemplate
from controller.folders import ExperimentFolders
from controller.runtime.kubernetes.launch import ClusterLaunch, cluster_launch
from tests.unit.builders import a_spec, a_trial, an_experiment, attempt

NONE = Resources()


def a_launch(
    *command: str,
    env: Mapping[str, object] | None = None,
    resources: Resources = NONE,
    nodes: tuple[str, ...] = (),
    name: str = "digits",
    namespace: str = "default",
    metrics: MetricsRule = MetricsRule(),  # noqa: B008  an immutable value
    environ: dict[str, str] | None = None,
    experiment_labels: Mapping[str, str] = {},
    **cluster: object,
) -> ClusterLaunch:
    """Of trial 12. nodes: those that have let down an earlier attempt of it.
    cluster: the keys that only clusters read."""
    template = TrialTemplate(
        command or ("python", "train.py", "--lr=${lr}"),
        env=env or {},  # type: ignore[arg-type]  # strings and secrets
        resources=resources,
        timeout_s=7200.0,
        grace_s=30.0,
        image="registry.example/digits:3",
        cluster=cluster,
    )
    spec = replace(
        a_spec(trial=template, name=name),
        namespace=namespace,
        metrics=metrics,
        labels=experiment_labels,
    )
    experiment = an_experiment(spec)
    lost = attempt(1, AttemptState.FAILED, trial=12, failed=FailureClass.INFRASTRUCTURE)
    let_down = [replace(lost, number=n + 1, node=node) for n, node in enumerate(nodes)]
    attempts = [*let_down, attempt(len(nodes) + 1, trial=12)]
    folders = ExperimentFolders(Path("/state/experiments/x")).attempt(12, 1)
    return cluster_launch(
        experiment, a_trial(12, lr=0.1, activation="tanh"), attempts, folders, environ=environ or {}
    )
