"""Whether a cluster would accept an experiment: asked before `tuner run` creates it, and by
`tuner run --dry-run`.

Creates nothing. An obstacle is raised as an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

from controller.core.model import FINAL, ExperimentSpec, short_name, trial_name
from controller.folders import ExperimentFolders
from controller.kube.client import NODES, KubernetesClient, list_allowed
from controller.kube.errors import AccessDenied, ApiForbidden, ApiNotFound, Unreachable
from controller.kube.objects import Node, Raw
from controller.phrases import command
from controller.runtime import trial_files
from controller.runtime.kubernetes import labels
from controller.runtime.kubernetes.job_builder import anchor
from controller.runtime.kubernetes.kinds import kind_of, over
from controller.runtime.kubernetes.preflight import (
    ANSWERING,
    RIGHTS,
    Answer,
    Right,
    Verdict,
    dry_run_of,
    missing_rights,
    no_queue,
    pods_of,
    rights_to,
    why_unschedulable,
)
from controller.runtime.kubernetes.sample_manifests import (
    FINAL_STAGE,
    TEMPLATE,
    UID,
    final_manifests_of,
    first_point,
    manifests_of,
    served_manifests_of,
)
from controller.runtime.provider import DryRun, ServerVerdicts
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Unavailable


async def check_acceptance(
    client: KubernetesClient, spec: ExperimentSpec, folders: ExperimentFolders
) -> None:
    """Check the experiment with its cluster, by concurrent requests.

    Raises InvalidArgument, NotFound, AccessDenied, FailedPrecondition, Unavailable, and ApiError
    for errors of the server.
    """
    try:
        objects = await served_manifests_of(client, spec)
    except Unreachable as error:
        raise Unavailable(f"{error}; nothing was started") from error
    answers = await asyncio.gather(
        dry_run_of(
            client, spec.namespace, [anchor(spec, UID), *objects, *final_manifests_of(spec)]
        ),
        _missing_rights(client, spec, objects),
        _other_anchor(client, spec, objects[-1], folders),
        no_queue(client, spec.namespace, objects),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, Unreachable):
            raise Unavailable(f"{answer}; nothing was started") from answer
        if isinstance(answer, BaseException):
            raise answer
    verdicts, missing, other_anchor, queue = answers
    assert isinstance(verdicts, list)
    assert isinstance(missing, list)
    _judge(client, spec, verdicts=verdicts, missing=missing)
    if queue:
        raise InvalidArgument.at("spec.trial.queue", f"{queue}; nothing was started")
    if other_anchor:
        raise FailedPrecondition(
            f"an experiment {spec.name} of another state directory runs in {spec.namespace} (see "
            f"kubectl -n "
            f"{spec.namespace} get configmap {other_anchor}); choose another metadata.name, or "
            f"continue that one: "
            f"{command('resume', spec.name, '--from-cluster')}"
        )


async def check_objects(client: KubernetesClient, spec: ExperimentSpec) -> None:
    """Check only whether the cluster would accept the objects; raises as `check_acceptance`."""
    try:
        objects = [*await served_manifests_of(client, spec), *final_manifests_of(spec)]
        verdicts = await dry_run_of(client, spec.namespace, objects)
        queue = await no_queue(client, spec.namespace, objects)
    except Unreachable as error:
        raise Unavailable(str(error)) from error
    _judge(client, spec, verdicts=verdicts, missing=())
    if queue:
        raise InvalidArgument.at("spec.trial.queue", queue)


def _judge(
    client: KubernetesClient,
    spec: ExperimentSpec,
    *,
    verdicts: Sequence[Verdict],
    missing: Sequence[tuple[Right, tuple[str, ...]]],
) -> None:
    namespace = spec.namespace
    missing_namespace = next(
        (verdict.why for verdict in verdicts if verdict.namespace_is_missing), ""
    )
    if missing_namespace:
        raise NotFound(
            f"the cluster of context {client.context} cannot run the trials: {missing_namespace}"
        )
    if missing:
        rules = "".join(f"\n  {right.rule(verbs)}" for right, verbs in missing)
        raise AccessDenied(
            f"context {client.context} may not run trials in namespace {namespace}; if that is "
            f"the right one, these "
            f"rules are missing in its Role (deploy/rbac.yaml has them all):{rules}"
        )
    for verdict in verdicts:
        if verdict.answer is Answer.NOT_ALLOWED:
            raise AccessDenied(verdict.why)
        if verdict.answer is Answer.REFUSED:
            path = TEMPLATE if "template" in spec.trial.cluster else "spec.trial"
            path = FINAL_STAGE if verdict.name == trial_name(spec.name, UID, FINAL) else path
            raise InvalidArgument.at(
                path, f"the cluster refuses {verdict.kind} {verdict.name}: {verdict.why}"
            )


async def _missing_rights(
    client: KubernetesClient, spec: ExperimentSpec, objects: Sequence[Raw]
) -> list[tuple[Right, tuple[str, ...]]]:
    rights = [*RIGHTS, *await rights_to(client, objects)]
    needed = [right for right in rights if not right.without]
    needed += [ANSWERING] if spec.define_by_run else []
    return await missing_rights(client, spec.namespace, needed)


async def _other_anchor(
    client: KubernetesClient, spec: ExperimentSpec, manifest: Raw, folders: ExperimentFolders
) -> str:
    """Return another state directory's anchor of that name with unfinished trials; "": none."""
    selector = f"{labels.EXPERIMENT}={spec.name},{labels.MANAGED_BY}=tuner"
    try:
        objects, _ = await client.list(
            await kind_of(client, manifest), spec.namespace, labels=selector
        )
    except (ApiForbidden, ApiNotFound):
        return ""  # the other requests report the error
    uids = (obj["metadata"]["labels"].get(labels.UID, "") for obj in objects if not over(obj))
    foreign_uid = next((uid for uid in uids if not folders.root.with_name(uid).exists()), "")
    return short_name(spec.name, foreign_uid) if foreign_uid else ""


# Dry run


def dry_run(spec: ExperimentSpec, directory: Path) -> DryRun:
    trial = manifests_of(spec, files=trial_files.read(directory, spec.trial.files))
    final = final_manifests_of(spec)
    return DryRun(first_point(spec), [*trial, *pods_of(trial)], [*final, *pods_of(final)])


async def dry_run_on_server(
    client: KubernetesClient, spec: ExperimentSpec, directory: Path
) -> ServerVerdicts:
    """Have the cluster check the objects of a dry run without creating them."""
    trial = await served_manifests_of(
        client, spec, files=trial_files.read(directory, spec.trial.files)
    )
    stages = {"A trial": trial, "The final stage": final_manifests_of(spec)}
    everything = [anchor(spec, UID)]
    for objects in stages.values():
        everything += [*objects, *pods_of(objects)]
    verdicts = await dry_run_of(client, spec.namespace, everything)
    lines = [str(verdict) for verdict in verdicts]
    answers = {verdict.answer for verdict in verdicts}
    if not answers.isdisjoint((Answer.NOT_ALLOWED, Answer.REFUSED)):
        return ServerVerdicts(lines, refused=True, not_allowed=Answer.NOT_ALLOWED in answers)
    nodes = await list_allowed(client, NODES, None) or []
    never_runs = []
    for stage, objects in stages.items():
        if objects and (reason := await _why_it_never_runs(client, spec.namespace, objects, nodes)):
            never_runs.append(f"{stage} as a whole: refused: {reason}")
    return ServerVerdicts([*lines, *never_runs], refused=bool(never_runs))


async def _why_it_never_runs(
    client: KubernetesClient, namespace: str, objects: Sequence[Raw], nodes: Sequence[Node]
) -> str:
    without_queue = await no_queue(client, namespace, objects)
    return without_queue or await why_unschedulable(client, namespace, objects, nodes=nodes)
