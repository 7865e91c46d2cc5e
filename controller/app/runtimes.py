"""Create the runtime of an experiment: this machine or a cluster. Only this module knows both.

The modules for a cluster are imported only for experiments that run there.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from controller.app.state_directory import StateDirectory
from controller.core.model import FUNCTION_WORKER, Experiment, ExperimentSpec, Uid, short_name
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.protocol import Runtime
from suggest.errors import FailedPrecondition

if TYPE_CHECKING:
    from controller.kube.client import KubernetesClient
    from controller.runtime.kubernetes.runtime import KubernetesRuntime

Raw: TypeAlias = dict[str, Any]  # an object in the form of the cluster's API


async def connect(spec: ExperimentSpec, context: str | None) -> KubernetesClient | None:
    """Return a client of the experiment's cluster, or None for local trials.

    Sends nothing. Raises the errors of `KubernetesClient.connect`.
    """
    if not spec.traits.on_cluster:
        return None
    from controller.kube.client import KubernetesClient

    return await KubernetesClient.connect(context or None)


def make(
    state: StateDirectory, spec: ExperimentSpec, uid: Uid, client: KubernetesClient | None
) -> Runtime:
    """Return the runtime. `client` belongs to the experiment's cluster, if it has one; the runtime
    closes it.
    """
    if client is None:
        module = FUNCTION_WORKER if spec.trial.calls_function else ""
        folder = state.folders(uid).root
        return LocalRuntime(
            folder, devices=spec.trial.devices, collection=spec.collection, module=module
        )
    return _on_cluster(state, spec, uid, client)


async def of(state: StateDirectory, experiment: Experiment) -> Runtime:
    return make(
        state, experiment.spec, experiment.uid, await connect(experiment.spec, experiment.context)
    )


async def discard(state: StateDirectory, experiment: Experiment) -> None:
    """Delete what the cluster still has of an experiment, by the object that owns all others.

    For local trials there is nothing to delete. Raises FailedPrecondition if another state
    directory runs it now.
    """
    if not experiment.spec.traits.on_cluster:
        return
    from controller.kube.client import CONFIG_MAPS, KubernetesClient
    from controller.kube.server_clock import ServerClock
    from controller.runtime.kubernetes.lease import FencingLease, LeaseHolder

    async with await KubernetesClient.connect(experiment.context or None) as client:
        owner = anchor(experiment.spec, experiment.uid)
        holder = LeaseHolder(state.folders(experiment.uid).root)
        lease = FencingLease(
            client,
            experiment.namespace,
            owner,
            holder,
            clock=ServerClock(client),
            changed=lambda: None,
        )
        await lease.verify()
        await client.delete(
            CONFIG_MAPS, experiment.namespace, short_name(experiment.name, experiment.uid)
        )


def same_context(experiment: Experiment, requested: str | None) -> None:
    """Raise FailedPrecondition if a cluster was requested that is not the one with the experiment's
    trials.
    """
    if requested and experiment.spec.traits.on_cluster and requested != experiment.context:
        raise FailedPrecondition(
            f"the trials of {experiment.name} are on the cluster of context {experiment.context}, "
            f"not of {requested}; "
            "omit --context, or choose another metadata.name for a new experiment"
        )


def _on_cluster(
    state: StateDirectory, spec: ExperimentSpec, uid: Uid, client: KubernetesClient
) -> KubernetesRuntime:
    from controller.kube.cluster import Cluster
    from controller.runtime.kubernetes.admission import AdmissionQueue
    from controller.runtime.kubernetes.labels import UID
    from controller.runtime.kubernetes.lease import LeaseHolder
    from controller.runtime.kubernetes.runtime import ClusterTarget, KubernetesRuntime

    class OwningRuntime(KubernetesRuntime):
        async def close(self) -> None:
            await super().close()
            await cluster.close()

    folders = state.folders(uid)
    cluster = Cluster(client, labels=f"{UID}={uid}")
    target = ClusterTarget(
        cluster=cluster,
        namespace=spec.namespace,
        uid=uid,
        anchor=anchor(spec, uid),
        folder_of=lru_cache(4096)(lambda trial, attempt: folders.attempt(trial, attempt).root),
        template=cast("Raw | None", spec.trial.cluster.get("template")),
        holder=LeaseHolder(folders.root),
        has_collector=spec.collection is not None,
        log_limit_bytes=spec.trial.log_limit_bytes,
    )
    return OwningRuntime(
        target, queue=AdmissionQueue(is_own=spec.trial.cluster.get("queue") is None)
    )


def anchor(spec: ExperimentSpec, uid: Uid) -> dict[str, Any]:
    """Return the object that owns all others of the experiment.

    It contains the experiment's specification, for recovery without the database.
    """
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
