"""Kubernetes as a runtime: every attempt is a Job, or another object,
in the namespace of the experiment.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import cast

from controller.core.model import (
    KATIB_SUFFIX,
    UID_LABEL,
    Experiment,
    ExperimentSpec,
    short_name,
    uid_of_resource,
)
from controller.core.quota_use import QuotaReport, QuotaUse
from controller.core.runtime_traits import BUILT_IN
from controller.folders import ExperimentFolders
from controller.kube.client import CONFIG_MAPS, QUOTAS, KubernetesClient
from controller.kube.cluster import Cluster
from controller.kube.custom_resource import EXPERIMENTS, KATIB_EXPERIMENTS
from controller.kube.errors import AccessDenied, ApiError, BadKubeconfig, Unreachable
from controller.kube.kubeconfig import existing_files, namespace_of
from controller.kube.objects import Raw
from controller.kube.server_clock import ServerClock
from controller.phrases import command
from controller.runtime import trial_files
from controller.runtime.kubernetes import acceptance, job_builder, recovery
from controller.runtime.kubernetes.admission import AdmissionQueue
from controller.runtime.kubernetes.job_builder import anchor
from controller.runtime.kubernetes.launch import cluster_launch
from controller.runtime.kubernetes.lease import FencingLease, LeaseHolder, WriteGuard
from controller.runtime.kubernetes.preflight import check_cluster, check_needs
from controller.runtime.kubernetes.runtime import ClusterTarget, KubernetesRuntime
from controller.runtime.kubernetes.sample_manifests import (
    TEMPLATE,
    UID,
    final_manifests_of,
    manifests_of,
    served_manifests_of,
)
from controller.runtime.provider import (
    CheckupRequest,
    DryRun,
    Finding,
    LaunchBuilder,
    Level,
    ObjectRecords,
    RecoveredExperiment,
    RuntimeConnection,
    RuntimeProvider,
    ServerVerdicts,
    fail,
    ok,
)
from controller.runtime.requested import is_gpu
from suggest.errors import FailedPrecondition, InvalidArgument, Problem, TunerError

_IN_A_POD = "KUBERNETES_SERVICE_HOST"


def target_of(
    cluster: Cluster,
    experiment: Experiment,
    folders: ExperimentFolders,
    records: ObjectRecords,
    guard: WriteGuard | LeaseHolder,
) -> ClusterTarget:
    """Return where the experiment's objects are. For `guard` see `ClusterTarget`."""
    spec = experiment.spec
    return ClusterTarget(
        cluster=cluster,
        namespace=spec.namespace,
        uid=experiment.uid,
        anchor=anchor(spec, experiment.uid),
        records=records,
        folder_of=lru_cache(4096)(lambda trial, attempt: folders.attempt(trial, attempt).root),
        guard=guard,
        template=cast("Raw | None", spec.trial.cluster.get("template")),
        has_collector=spec.collection is not None,
        log_limit_bytes=spec.trial.log_limit_bytes,
    )


def runtime_of(spec: ExperimentSpec, target: ClusterTarget) -> KubernetesRuntime:
    queue = AdmissionQueue(
        is_own=spec.trial.cluster.get("queue") is None, created_after=target.cluster.created_after
    )
    return KubernetesRuntime(target, queue=queue)


class _ClusterConnection(RuntimeConnection):
    def __init__(
        self,
        client: KubernetesClient,
        experiment: Experiment,
        folders: ExperimentFolders,
        records: ObjectRecords,
    ) -> None:
        spec = experiment.spec
        self._cluster = Cluster(client, labels=f"{UID_LABEL}={experiment.uid}")
        holder = LeaseHolder(folders.root)
        target = target_of(self._cluster, experiment, folders, records, holder)
        super().__init__(runtime_of(spec, target), client.context)
        self._spec = spec
        self._folders = folders

    async def check(self) -> None:
        await acceptance.check_acceptance(self._cluster.client, self._spec, self._folders)

    async def close(self) -> None:
        await super().close()
        await self._cluster.close()


async def _refuse_hosted(client: KubernetesClient, experiment: Experiment) -> None:
    """Refuse an unpacked experiment that the cluster's controller still has: both would run it.

    A person without the permission to look is not refused.
    """
    namespace, name = experiment.namespace, experiment.name
    for kind in (EXPERIMENTS, KATIB_EXPERIMENTS):
        try:
            found = await client.get(kind, namespace, name)
        except ApiError:
            continue
        if uid_of_resource(found["metadata"]["uid"]) == experiment.uid:
            await client.close()
            listed = name if kind is EXPERIMENTS else f"{name}{KATIB_SUFFIX}"
            where = ("--namespace", namespace, "--context", client.context)
            raise FailedPrecondition(
                f"{name} was unpacked here, and the controller of the cluster {client.context} "
                f"still has it; first delete it there: {command('delete', listed, *where)}; or "
                f"delete what is here: {command('delete', name, '--local-only')}"
            )


class KubernetesProvider(RuntimeProvider):
    traits = BUILT_IN["kubernetes"]

    async def connect(
        self, experiment: Experiment, folders: ExperimentFolders, records: ObjectRecords
    ) -> RuntimeConnection:
        client = await KubernetesClient.connect(experiment.context or None)
        if folders.is_moved:
            await _refuse_hosted(client, experiment)
        return _ClusterConnection(client, experiment, folders, records)

    def launch_builder(self, experiment: Experiment, folders: ExperimentFolders) -> LaunchBuilder:
        directory = Path(experiment.directory)
        files = trial_files.read(directory, experiment.spec.trial.files, own_file=folders.function)
        return partial(cluster_launch, environ=os.environ, files=files)

    async def discard(self, experiment: Experiment, folders: ExperimentFolders) -> None:
        """Delete the object that owns all others."""
        async with await KubernetesClient.connect(experiment.context or None) as client:
            lease = FencingLease(
                client,
                experiment.namespace,
                anchor(experiment.spec, experiment.uid),
                LeaseHolder(folders.root),
                clock=ServerClock(client),
                changed=lambda: None,
            )
            await lease.verify()
            await client.delete(
                CONFIG_MAPS, experiment.namespace, short_name(experiment.name, experiment.uid)
            )

    def left_behind(self, experiment: Experiment) -> str:
        owner = short_name(experiment.name, experiment.uid)
        context = f"--context {experiment.context} " if experiment.context else ""
        cure = f"kubectl {context}-n {experiment.namespace} delete configmap {owner}"
        return f"what is on the cluster, if nobody else runs it ({cure})"

    def problems(self, spec: ExperimentSpec, directory: Path) -> Iterable[Problem]:
        if problems := trial_files.problems_of(directory, spec.trial.files, are_sent=True):
            return problems
        try:
            manifests_of(spec)
            final_manifests_of(spec)
        except InvalidArgument as error:
            return error.problems
        return ()

    def warnings(self, spec: ExperimentSpec) -> Iterable[Problem]:
        manifest = spec.trial.cluster.get("template")
        return job_builder.warnings(manifest, TEMPLATE) if isinstance(manifest, Mapping) else ()

    def namespace_of(self, context: str | None) -> str:
        return namespace_of(context or None)

    async def findings(self, request: CheckupRequest) -> AsyncIterator[Finding]:
        if not request.is_named and not request.context and not _is_configured():
            return
        try:
            client = await KubernetesClient.connect(request.context or None)
        except BadKubeconfig as error:
            yield fail("kubeconfig", str(error))
            return
        except AccessDenied as error:
            yield fail("credentials", str(error), rights=True)
            return
        async with client:
            yield ok("kubeconfig", f"context {client.context}")
            spec = request.spec
            namespace = (
                request.namespace or client.default_namespace if spec is None else spec.namespace
            )
            reached = True
            async for finding in check_cluster(client, namespace):
                yield finding
                reached &= finding.level is not Level.FAIL or finding.rights
            if spec is not None and reached:
                async for finding in _needs(client, spec):
                    yield finding

    async def quotas(self, experiment: Experiment) -> QuotaReport:
        try:
            async with await KubernetesClient.connect(experiment.context or None) as client:
                quotas, _ = await client.list(QUOTAS, experiment.namespace)
        except (ApiError, BadKubeconfig, AccessDenied, Unreachable) as error:
            return QuotaReport(None, str(error))
        return QuotaReport(list(chain.from_iterable(map(_uses, quotas))))

    def dry_run(self, spec: ExperimentSpec, directory: Path) -> DryRun:
        return acceptance.dry_run(spec, directory)

    async def dry_run_on_server(
        self, spec: ExperimentSpec, directory: Path, context: str | None
    ) -> ServerVerdicts:
        async with await KubernetesClient.connect(context or None) as client:
            return await acceptance.dry_run_on_server(client, spec, directory)

    async def recover(
        self,
        name: str,
        *,
        context: str | None,
        namespace: str | None,
        print_line: Callable[[str], None],
    ) -> RecoveredExperiment:
        return await recovery.recover(
            name, context=context, namespace=namespace, print_line=print_line
        )


PROVIDER = KubernetesProvider()


def _is_configured() -> bool:
    named = os.environ.get("KUBECONFIG") or os.environ.get(_IN_A_POD)
    return bool(named or existing_files())


async def _needs(client: KubernetesClient, spec: ExperimentSpec) -> AsyncIterator[Finding]:
    try:
        objects = await served_manifests_of(client, spec)
        async for finding in check_needs(client, spec.namespace, objects, anchor=anchor(spec, UID)):
            yield finding
    except (ApiError, AccessDenied, Unreachable) as error:
        yield fail("server", str(error))
    except TunerError as error:
        yield fail("file", str(error))


def _uses(quota: Raw) -> Iterator[QuotaUse]:
    status = quota.get("status") or {}
    used = status.get("used") or {}
    for key, allowed in (status.get("hard") or {}).items():
        resource = key.removeprefix("requests.")
        if is_gpu(resource) or resource.removeprefix("limits.") in ("cpu", "memory"):
            amounts = str(used.get(key, 0)), str(allowed)
            yield QuotaUse(resource, *amounts, quota["metadata"]["name"], is_gpu(resource))
