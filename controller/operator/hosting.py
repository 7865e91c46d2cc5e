"""What all experiments of the controller in the cluster share: a `Workspace` of `controller.app`.

They share a state directory, one suggestion service in this process, one client with its
reflectors, and one lease. Custom resources own their objects.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from controller.app.cluster_changes import search_with_files
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.app.surroundings import GitState
from controller.app.workspace import StudyReads, Workspace
from controller.core.attempt import RuntimeLost
from controller.core.model import Event, Experiment, ExperimentSpec
from controller.kube.client import Kind, KubernetesClient
from controller.kube.cluster import Cluster
from controller.kube.loop_turns import LoopTurns
from controller.kube.objects import Raw
from controller.kube.request_limit import Sender
from controller.operator.default_queue import DefaultQueues
from controller.operator.experiments import HostedExperiments
from controller.operator.leadership import Leadership
from controller.operator.policy import Policy
from controller.operator.resource import ExperimentResource, owner_of, uid_of
from controller.runtime import trial_files
from controller.runtime.kubernetes import acceptance
from controller.runtime.kubernetes.launch import cluster_launch
from controller.runtime.kubernetes.provider import runtime_of, target_of
from controller.runtime.kubernetes.runtime import KubernetesRuntime
from controller.runtime.provider import LaunchBuilder, RuntimeConnection
from suggest.fair_share import FairShare
from suggest.server import Server

# Sessions; those of a single namespace may be half of them.
_BEGIN_AT_ONCE = 32
RUNNING_EXPERIMENTS = 1000

# Returns the resource of a namespace and a name; None: it does not exist.
FindResource = Callable[[str, str], ExperimentResource | None]


class _HostedConnection(RuntimeConnection):
    """One experiment's runtime over the shared cluster, which outlives it."""

    def __init__(
        self, runtime: KubernetesRuntime, client: KubernetesClient, spec: ExperimentSpec
    ) -> None:
        super().__init__(runtime)
        self._client = client
        self._spec = spec

    async def check(self) -> None:
        """Raise what keeps the cluster from accepting the objects of a trial."""
        await acceptance.check_objects(self._client, self._spec)


class _HostedClient(SessionClient):
    """A client whose callers take turns of the event loop for what they do with an answer."""

    turns: LoopTurns
    sender: Sender

    # the overridden method is generic
    async def _send(self, method: str, *rest: Any, **options: Any) -> Any:
        answer = await super()._send(method, *rest, **options)
        await self.turns.next(self.sender)
        return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedWorkspace(Workspace):
    """The workspace of the experiments of one controller.

    policy: what experiments may not make the controller create.
    find: finds the custom resource of an experiment, which owns its objects.
    is_left: whether the object exists, and another controller is to run it.
    queues: the LocalQueues of trials that name none.
    put: shows what a change of a resource returned, at once.
    running, beginnings: the places of sessions, and of those that begin, which namespaces share.
    on_event: called with each event of an experiment's history, once it is recorded.
    tenant: the namespace in whose share of the suggestion service its calls are; "": the page's.
    """

    server: Server
    experiments: HostedExperiments
    cluster: Cluster
    guard: Leadership
    policy: Policy
    queues: DefaultQueues
    find: FindResource
    is_left: Callable[[str, str], bool]
    put: Callable[[Kind, Raw], None]
    running: FairShare
    beginnings: FairShare = field(default_factory=lambda: FairShare(_BEGIN_AT_ONCE))
    on_event: Callable[[Event], None] = lambda _event: None
    tenant: str = ""

    async def runtime_of(
        self, experiment: Experiment, experiments: LocalExperiments
    ) -> RuntimeConnection:
        """Connect to the shared cluster.

        If the resource of the experiment is gone, objects can be removed and none can be created.
        """

        def owner() -> Raw:
            if (resource := self._owner_of(experiment)) is None:
                raise RuntimeLost("the resource of the experiment is gone")
            return owner_of(resource)

        folders, records = self.state.folders(experiment.uid), experiments.object_records
        target = target_of(self.cluster, experiment, folders, records(experiment.uid), self.guard)
        target = replace(
            target,
            owner_of=owner,
            log_limit_bytes=min(target.log_limit_bytes, self.policy.log_limit_bytes),
            waits_for_quota=True,
        )
        sender = Sender(experiment.namespace, experiment.uid)
        client = self.cluster.client.on_behalf_of(sender)
        return _HostedConnection(runtime_of(experiment.spec, target), client, experiment.spec)

    def _owner_of(self, experiment: Experiment) -> ExperimentResource | None:
        resource = self.find(experiment.namespace, experiment.name)
        return None if resource is None or uid_of(resource) != experiment.uid else resource

    async def git_state(self, folder: Path) -> GitState:
        """Return nothing: the file was applied from somebody's machine."""
        return GitState()

    def launch_builder(self, experiment: Experiment) -> LaunchBuilder:
        """Build launches with the files that the person's program has sent to the cluster."""
        trial, resource = experiment.spec.trial, self._owner_of(experiment)
        search = None if resource is None else search_with_files(resource)
        files = trial_files.sent(trial.files, trial.files_digest, search)
        return partial(cluster_launch, environ=os.environ, files=files)

    async def discard(self, experiment: Experiment) -> None:
        """Do nothing: what is left on the cluster is deleted with the resource, its owner."""

    def opened(self, *, make: bool = False) -> AbstractContextManager[LocalExperiments]:
        """Yield the experiments of this process, which outlive the context."""
        return nullcontext(self.experiments)

    def connected(self, service: str) -> AbstractAsyncContextManager[SessionClient]:
        return self._client()

    def reading(self, service: str) -> AbstractAsyncContextManager[StudyReads]:
        return self._client()

    @asynccontextmanager
    async def _client(self) -> AsyncIterator[SessionClient]:
        """Yield a client of the service in this process. Each has a seed of its own."""
        channel = self.server.inside(trusted=True, caller=f"namespace {self.tenant}")
        client = _HostedClient(self.server.address, inside=channel)
        client.turns, client.sender = self.cluster.client.turns, Sender(self.tenant, "")
        try:
            yield client
        finally:
            await client.close()
