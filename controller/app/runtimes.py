"""The runtime of an experiment: this machine or a cluster. The only place that knows both.

What a cluster needs is imported only for experiments that run there.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from controller.app.state_directory import StateDirectory
from controller.core.model import Experiment, ExperimentSpec, Uid, short_name
from controller.runtime.local import LocalRuntime
from controller.runtime.protocol import Runtime
from suggest.errors import FailedPrecondition

FUNCTION_WORKER = "tuner.worker"  # the program of trials whose objective is a Python function

if TYPE_CHECKING:
    from controller.runtime.kubernetes.client import KubernetesClient
    from controller.runtime.kubernetes.runtime import KubernetesRuntime

Raw: TypeAlias = dict[str, Any]  # an object as a cluster takes it
PATIENCE_S = {"local": 60.0, "kubernetes": 900.0}  # the control plane of a cluster may be upgraded meanwhile


async def connect(spec: ExperimentSpec, context: str | None) -> KubernetesClient | None:
    """A client of its cluster, if it has one. Sends nothing. Raises what `KubernetesClient.connect` does."""
    if spec.runtime == "local":
        return None
    from controller.runtime.kubernetes.client import KubernetesClient

    return await KubernetesClient.connect(context or None)


def make(state: StateDirectory, spec: ExperimentSpec, uid: Uid, client: KubernetesClient | None) -> Runtime:
    """client: of its cluster, if it has one; the runtime closes it."""
    if client is None:
        module = FUNCTION_WORKER if spec.trial.command[1:] == ("-m", FUNCTION_WORKER) else ""
        return LocalRuntime(state.folders(uid).root, devices=spec.trial.devices, module=module)
    return _on_cluster(state, spec, uid, client)


async def of(state: StateDirectory, experiment: Experiment) -> Runtime:
    return make(state, experiment.spec, experiment.uid, await connect(experiment.spec, experiment.context))


async def discard(experiment: Experiment) -> None:
    """Delete what its cluster still has of it; one object owns all the others. Locally there is nothing to delete."""
    if experiment.spec.runtime == "local":
        return
    from controller.runtime.kubernetes.client import CONFIG_MAPS, KubernetesClient

    client = await KubernetesClient.connect(experiment.context or None)
    try:
        await client.delete(CONFIG_MAPS, experiment.namespace, short_name(experiment.name, experiment.uid))
    finally:
        await client.close()


def context_of(runtime: Runtime) -> str:
    """The context that it uses, which is recorded with the experiment."""
    return "" if isinstance(runtime, LocalRuntime) else _context(runtime)


def _context(runtime: Any) -> str:
    return str(runtime.context)


def same_context(experiment: Experiment, asked: str | None) -> None:
    """Raises FailedPrecondition: another cluster was asked for than the one with its trials."""
    if asked and experiment.spec.runtime != "local" and asked != experiment.context:
        raise FailedPrecondition(
            f"the trials of {experiment.name} are on the cluster of context {experiment.context}, not of {asked}; "
            "omit --context, or choose another metadata.name for a new experiment"
        )


def _on_cluster(state: StateDirectory, spec: ExperimentSpec, uid: Uid, client: KubernetesClient) -> KubernetesRuntime:
    from controller.runtime.kubernetes.admission import AdmissionQueue, FairShares
    from controller.runtime.kubernetes.lease import identity
    from controller.runtime.kubernetes.runtime import ClusterTarget, KubernetesRuntime

    folders = state.folders(uid)
    target = ClusterTarget(
        client=client,
        namespace=spec.namespace,
        uid=uid,
        anchor=anchor(spec, uid),
        folder_of=lru_cache(4096)(lambda trial, attempt: folders.attempt(trial, attempt).root),
        template=cast("Raw | None", spec.trial.cluster.get("template")),
        holder=lambda: identity(folders.root),
    )
    shares = FairShares(state.root, server=client.server, namespace=spec.namespace, uid=uid)
    return KubernetesRuntime(target, queue=AdmissionQueue(own=spec.trial.cluster.get("queue") is None, shares=shares))


def anchor(spec: ExperimentSpec, uid: Uid) -> dict[str, Any]:
    """The object that owns all others of the experiment. Has its specification, for recovery without the database."""
    from controller.runtime.kubernetes.labels import experiment_labels

    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": short_name(spec.name, uid),
            "labels": experiment_labels(spec.name, uid),
        },
        "data": {"experiment": json.dumps(dict(spec.document))},
    }
