"""Where an experiment's trials run, as an object: this machine or a cluster. The only place that knows both.

What a cluster needs is imported when an experiment runs there, and not before.
"""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from controller.cli.home import Home
from controller.core.model import Experiment, ExperimentSpec, Uid, short_name
from controller.runtime.local import LocalRuntime
from controller.runtime.protocol import Runtime
from suggest.errors import FailedPrecondition

if TYPE_CHECKING:
    from controller.runtime.kubernetes.client import Client
    from controller.runtime.kubernetes.runtime import KubernetesRuntime

Raw: TypeAlias = dict[str, Any]  # an object as a cluster takes it
PATIENCE_S = {"local": 60.0, "kubernetes": 900.0}  # a cluster's control plane may be away for an upgrade


async def connect(spec: ExperimentSpec, context: str | None) -> Client | None:
    """To its cluster; None: it has none. Raises what `Client.connect` does; nothing is asked of the cluster."""
    if spec.runtime == "local":
        return None
    from controller.runtime.kubernetes.client import Client

    return await Client.connect(context or None)


def make(home: Home, spec: ExperimentSpec, uid: Uid, client: Client | None) -> Runtime:
    """client: to its cluster, if it has one; the runtime closes it."""
    if client is None:
        return LocalRuntime(home.folders(uid).root, devices=spec.trial.devices)
    return _on_cluster(home, spec, uid, client)


async def of(home: Home, experiment: Experiment) -> Runtime:
    return make(home, experiment.spec, experiment.uid, await connect(experiment.spec, experiment.context))


async def discard(experiment: Experiment) -> None:
    """Delete what a cluster still has of it: everything belongs to one object. Here there is nothing but its folder."""
    if experiment.spec.runtime == "local":
        return
    from controller.runtime.kubernetes.client import CONFIG_MAPS, Client

    client = await Client.connect(experiment.context or None)
    try:
        await client.delete(CONFIG_MAPS, experiment.namespace, short_name(experiment.name, experiment.uid))
    finally:
        await client.close()


def context_of(runtime: Runtime) -> str:
    """The context that it uses; it belongs to the experiment from now on."""
    return "" if isinstance(runtime, LocalRuntime) else _context(runtime)


def _context(runtime: Any) -> str:
    return str(runtime.context)


def same_context(experiment: Experiment, asked: str | None) -> None:
    """Raises FailedPrecondition: another cluster was asked for than the one that its trials are on."""
    if asked and experiment.spec.runtime != "local" and asked != experiment.context:
        raise FailedPrecondition(
            f"the trials of {experiment.name} are on the cluster of context {experiment.context}, not of {asked}; "
            "leave --context away, or choose another metadata.name for a new experiment"
        )


def _on_cluster(home: Home, spec: ExperimentSpec, uid: Uid, client: Client) -> KubernetesRuntime:
    from controller.runtime.kubernetes.fence import identity
    from controller.runtime.kubernetes.gate import Gate
    from controller.runtime.kubernetes.runtime import KubernetesRuntime, Place
    from controller.runtime.kubernetes.shares import Shares

    folders = home.folders(uid)
    place = Place(
        client=client,
        namespace=spec.namespace,
        uid=uid,
        anchor=anchor(spec, uid),
        folder_of=lru_cache(4096)(lambda trial, attempt: folders.attempt(trial, attempt).root),
        template=cast("Raw | None", spec.trial.cluster.get("template")),
        holder=lambda: identity(folders.root),
    )
    shares = Shares(home.root, server=client.server, namespace=spec.namespace, uid=uid)
    return KubernetesRuntime(place, gate=Gate(own=spec.trial.cluster.get("queue") is None, shares=shares))


def anchor(spec: ExperimentSpec, uid: Uid) -> dict[str, Any]:
    """The object that owns all others of the experiment; what it was is written on it, should the database be lost."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": short_name(spec.name, uid),
            "labels": {
                "app.kubernetes.io/managed-by": "tuner",
                "tuner.dev/experiment": spec.name,
                "tuner.dev/uid": uid,
            },
        },
        "data": {"experiment": json.dumps(dict(spec.document))},
    }
