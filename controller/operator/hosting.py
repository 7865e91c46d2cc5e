"""What all experiments of the controller in the cluster share: a `Workspace` of `controller.app`.

They share a state directory, one suggestion service in this process, one client with its
reflectors, and one lease. Custom resources own their objects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, replace

from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import Workspace
from controller.core.model import Event, Experiment
from controller.folders import ExperimentFolders
from controller.kube.cluster import Cluster
from controller.kube.objects import Raw
from controller.operator.default_queue import DefaultQueues
from controller.operator.experiments import HostedExperiments
from controller.operator.leadership import Leadership
from controller.operator.policy import Policy
from controller.operator.resource import EXPERIMENTS, ExperimentResource, uid_of
from controller.runtime.kubernetes import acceptance
from controller.runtime.kubernetes.provider import runtime_of, target_of
from controller.runtime.provider import ObjectRecords, RuntimeConnection
from controller.search import StudyReads
from suggest.errors import NotFound
from suggest.server import Server

# Returns the resource of a namespace and a name; None: it does not exist.
FindResource = Callable[[str, str], ExperimentResource | None]


class _HostedConnection(RuntimeConnection):
    """One experiment's runtime over the shared cluster, which outlives it."""

    def __init__(
        self,
        cluster: Cluster,
        experiment: Experiment,
        folders: ExperimentFolders,
        *,
        records: ObjectRecords,
        owner: Raw,
        guard: Leadership,
        log_limit_bytes: int,
    ) -> None:
        spec = experiment.spec
        target = target_of(cluster, experiment, folders, records)
        limit_bytes = min(target.log_limit_bytes, log_limit_bytes)
        target = replace(target, owner=owner, guard=guard, log_limit_bytes=limit_bytes)
        super().__init__(runtime_of(spec, target))
        self._cluster = cluster
        self._spec = spec

    async def check(self) -> None:
        """Raise what keeps the cluster from accepting the objects of a trial."""
        await acceptance.check_objects(self._cluster.client, self._spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class HostedWorkspace(Workspace):
    """The workspace of the experiments of one controller.

    policy: what experiments may not make the controller create.
    find: finds the custom resource of an experiment, which owns its objects.
    queues: the LocalQueues of trials that name none.
    put: shows what a change of a resource returned, at once.
    on_event: called with each event of an experiment's history, once it is recorded.
    """

    server: Server
    experiments: HostedExperiments
    cluster: Cluster
    guard: Leadership
    policy: Policy
    queues: DefaultQueues
    find: FindResource
    put: Callable[[Raw], None]
    on_event: Callable[[Event], None] = lambda _event: None

    async def runtime_of(
        self, experiment: Experiment, experiments: LocalExperiments
    ) -> RuntimeConnection:
        """Connect to the shared cluster. Raises NotFound if the experiment's resource is gone."""
        resource = self.find(experiment.namespace, experiment.name)
        if resource is None or uid_of(resource) != experiment.uid:
            raise NotFound(f"the resource of experiment {experiment.name} is gone")
        owner = {
            "apiVersion": EXPERIMENTS.api_version,
            "kind": EXPERIMENTS.kind,
            "metadata": {"name": experiment.name, "uid": resource["metadata"]["uid"]},
        }
        folders = self.state.folders(experiment.uid)
        records = experiments.object_records(experiment.uid)
        return _HostedConnection(
            self.cluster,
            experiment,
            folders,
            records=records,
            owner=owner,
            guard=self.guard,
            log_limit_bytes=self.policy.log_limit_bytes,
        )

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
        client = SessionClient(self.server.address, inside=self.server.inside(trusted=True))
        try:
            yield client
        finally:
            await client.close()
