"""Check whether an experiment could run, by the rules of tuner, of the service, of this machine and
of its cluster.

Creates nothing. An obstacle is raised as an error.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from controller.app.experiment_file import ExperimentFile, FileOptions, directory_of, read_document
from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from controller.core.model import FINAL, ExperimentSpec, short_name, trial_name
from controller.phrases import command
from controller.runtime import trial_files
from controller.spec import END_BY_THEMSELVES, Document
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Problem, Unavailable

if TYPE_CHECKING:
    from controller.kube.client import KubernetesClient
    from controller.runtime.kubernetes.preflight import Right, Verdict

MOST_AT_ONCE = 10_000  # trials at a time, without a warning
Raw = dict[str, Any]  # Any: an object in the form of the cluster's API


async def validate(path: str, options: FileOptions, workspace: Workspace) -> Document:
    """Read the file and check it, also by the rules of the service.

    Raises SpecErrors with all of its problems.
    """
    from controller.search import study_spec
    from suggest.server.admin import check

    document = read_document(path, options, workspace.state)
    check_files(document, directory_of(path))
    check_manifests(document)
    try:
        if options.checked_by_server:
            async with workspace.connected(workspace.service) as client:
                await client.validate(study_spec(document.spec))
        else:
            check(study_spec(document.spec), runs_here=False)
    except InvalidArgument as error:
        raise document.locate(error.problems) from error
    return document


def check_runnable(file: ExperimentFile) -> None:
    """Raise SpecErrors if the trials could never run in the place that the file names."""
    check_files(file.document, file.directory)
    if file.document.spec.traits.on_cluster:
        check_manifests(file.document)
    else:
        from controller.app import machine

        machine.check(file.document, file.directory)


def check_files(document: Document, directory: Path) -> None:
    """Raise SpecErrors if `spec.trial.files` names files that cannot be sent."""
    spec = document.spec
    if problems := trial_files.problems_of(
        directory, spec.trial.files, are_sent=spec.traits.on_cluster
    ):
        raise document.locate(problems)


def check_manifests(document: Document) -> None:
    """Raise SpecErrors if the manifests of the trials are invalid on any cluster."""
    if not document.spec.traits.on_cluster:
        return
    from controller.app.sample_manifests import final_manifests_of, manifests_of

    try:
        manifests_of(document.spec)
        final_manifests_of(document.spec)
    except InvalidArgument as error:
        raise document.locate(error.problems) from error


def warnings(document: Document) -> Iterator[str]:
    """Yield warnings about values that are seldom intended, for the file, this machine or the
    template's kind.
    """
    from controller.app import machine

    yield from document.warnings
    yield from _far_too_many(document)
    yield from machine.warnings(document)
    manifest = document.spec.trial.cluster.get("template")
    if isinstance(manifest, Mapping):
        from controller.app.sample_manifests import TEMPLATE
        from controller.runtime.kubernetes.job_builder import warnings as warnings_of_template

        yield from map(document.marks.told, warnings_of_template(manifest, TEMPLATE))


def _far_too_many(document: Document) -> Iterator[str]:
    """Warn of more trials at a time than can run, and of a grid that is never finished."""
    from suggest.imports import MAX_ROWS
    from suggest.server.admin import grid_points

    spec = document.spec
    if spec.parallelism > MOST_AT_ONCE:
        trials = spec.budget.trials
        limit = (
            f" (the budget is {trials:,})"
            if trials is not None and trials < spec.parallelism
            else ""
        )
        yield document.marks.told(
            f"spec.parallelism: {spec.parallelism:,} trials at a time{limit} are chosen without "
            f"the "
            "results of each other, and need room to run at once; write as many as there is room "
            "for"
        )
    if spec.algorithm.name not in END_BY_THEMSELVES or spec.budget.trials is not None:
        return
    points = grid_points(spec.space)
    if points is not None and points > MAX_ROWS:
        shown = f"{points:,}" if points < 10**15 else f"{points:.0e}"
        yield document.marks.told(
            f"spec.algorithm.name: the grid has {shown} points, and all of them would be tried; "
            f"set "
            "spec.budget.trials, give the parameters fewer points, or use another algorithm"
        )


def not_installed(document: Document) -> Iterator[str]:
    """Yield a warning if this machine could not run the search, because it lacks a package of the
    algorithm.
    """
    from suggest.server.admin import not_installed as lacking

    if message := lacking(document.spec.algorithm):
        yield document.marks.told(f"spec.algorithm.name: {message}")


def notices(document: Document) -> Iterator[str]:
    """Yield notices for the start of the experiment: warnings, and limits that its runtime does not
    enforce.
    """
    for warning in warnings(document):
        yield f"warning: {warning}"
    if document.spec.traits.on_cluster:
        return
    trial = document.spec.trial
    ignored = [
        name
        for name, is_set in (("image", trial.image), ("memory", trial.resources.memory_bytes))
        if is_set
    ]
    if ignored:
        yield f"note: {' and '.join(ignored)}: not enforced when trials run on this machine"


# Its cluster


async def check_cluster(
    client: KubernetesClient, document: Document, state: StateDirectory
) -> None:
    """Check the experiment with its cluster, by four concurrent requests.

    Raises SpecErrors, NotFound, AccessDenied, FailedPrecondition, Unavailable, and ApiError for
    errors of the server.
    """
    from controller.app.runtimes import anchor
    from controller.app.sample_manifests import UID, final_manifests_of, served_manifests_of
    from controller.kube.errors import Unreachable
    from controller.runtime.kubernetes.preflight import dry_run_of, no_queue

    spec = document.spec
    try:
        objects = await served_manifests_of(client, spec)
    except InvalidArgument as error:
        raise document.locate(error.problems) from error
    except Unreachable as error:
        raise Unavailable(f"{error}; nothing was started") from error
    answers = await asyncio.gather(
        dry_run_of(
            client, spec.namespace, [anchor(spec, UID), *objects, *final_manifests_of(spec)]
        ),
        _missing(client, spec, objects),
        _others(client, spec, objects[-1], state),
        no_queue(client, spec.namespace, objects),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, Unreachable):
            raise Unavailable(f"{answer}; nothing was started") from answer
        if isinstance(answer, BaseException):
            raise answer
    verdicts, missing_rights, other_uids, queue = answers
    assert isinstance(verdicts, list)
    assert isinstance(missing_rights, list)
    _judge(client, document, verdicts=verdicts, missing_rights=missing_rights)
    if queue:
        raise document.locate([Problem("spec.trial.queue", f"{queue}; nothing was started")])
    if other_uids:
        raise FailedPrecondition(
            f"an experiment {spec.name} of another state directory runs in {spec.namespace} (see "
            f"kubectl -n "
            f"{spec.namespace} get configmap {other_uids}); choose another metadata.name, or "
            f"continue that one: "
            f"{command('resume', spec.name, '--from-cluster')}"
        )


def _judge(
    client: KubernetesClient,
    document: Document,
    *,
    verdicts: Sequence[Verdict],
    missing_rights: Sequence[tuple[Right, tuple[str, ...]]],
) -> None:
    from controller.app.sample_manifests import FINAL_STAGE, TEMPLATE, UID
    from controller.kube.errors import AccessDenied
    from controller.runtime.kubernetes.preflight import Answer

    namespace = document.spec.namespace
    missing_namespace = next(
        (verdict.why for verdict in verdicts if verdict.namespace_is_missing), ""
    )
    if missing_namespace:
        raise NotFound(
            f"the cluster of context {client.context} cannot run the trials: {missing_namespace}"
        )
    if missing_rights:
        rules = "".join(f"\n  {right.rule(verbs)}" for right, verbs in missing_rights)
        raise AccessDenied(
            f"context {client.context} may not run trials in namespace {namespace}; if that is "
            f"the right one, these "
            f"rules are missing in its Role (deploy/rbac.yaml has them all):{rules}"
        )
    for verdict in verdicts:
        if verdict.answer is Answer.NOT_ALLOWED:
            raise AccessDenied(verdict.why)
        if verdict.answer is Answer.REFUSED:
            path = TEMPLATE if "template" in document.spec.trial.cluster else "spec.trial"
            path = (
                FINAL_STAGE if verdict.name == trial_name(document.spec.name, UID, FINAL) else path
            )
            raise document.locate(
                [Problem(path, f"the cluster refuses {verdict.kind} {verdict.name}: {verdict.why}")]
            )


async def _missing(
    client: KubernetesClient, spec: ExperimentSpec, objects: Sequence[Raw]
) -> list[tuple[Right, tuple[str, ...]]]:
    from controller.runtime.kubernetes.preflight import RIGHTS, missing_rights, rights_to

    rights = [*RIGHTS, *await rights_to(client, objects)]
    return await missing_rights(
        client, spec.namespace, [right for right in rights if not right.without]
    )


async def _others(
    client: KubernetesClient, spec: ExperimentSpec, manifest: Raw, state: StateDirectory
) -> str:
    """Return the anchor of an experiment of that name in another state directory, if it has
    unfinished trials.

    "" if there is none.
    """
    from controller.kube.errors import ApiError
    from controller.runtime.kubernetes.kinds import kind_of, over
    from controller.runtime.kubernetes.labels import EXPERIMENT, MANAGED_BY, UID

    labels = f"{EXPERIMENT}={spec.name},{MANAGED_BY}=tuner"
    try:
        objects, _ = await client.list(
            await kind_of(client, manifest), spec.namespace, labels=labels
        )
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return ""  # the other requests report the error
    uids = (obj["metadata"]["labels"].get(UID, "") for obj in objects if not over(obj))
    strange = next((uid for uid in uids if not state.folders(uid).root.exists()), "")
    return short_name(spec.name, strange) if strange else ""


# Dry run


@dataclass(frozen=True, slots=True)
class DryRun:
    """The objects that a cluster would get: those of trial 0, and of the final stage if there is
    one.

    files: the files of this machine that trials get.
    """

    spec: ExperimentSpec
    files: trial_files.TrialFiles | None
    trial: Sequence[Raw]
    final: Sequence[Raw]


@dataclass(frozen=True, slots=True)
class ServerVerdicts:
    """The verdicts of the cluster's server.

    They cover each object, and each stage that can never run although its objects may be created.
    """

    verdicts: Sequence[Verdict]
    never_runs: Mapping[str, str]


def dry_run(spec: ExperimentSpec, directory: Path) -> DryRun:
    """Return the objects of a dry run of a file in `directory`.

    Raises InvalidArgument if the trials do not run on a cluster.
    """
    if not spec.traits.on_cluster:
        raise InvalidArgument.at(
            "--dry-run",
            "shows the objects for a cluster, and trials run on this machine; check the file with "
            "validate",
        )
    from controller.app.sample_manifests import final_manifests_of, manifests_of

    files = trial_files.read(directory, spec.trial.files)
    return DryRun(spec, files, manifests_of(spec, files=files), final_manifests_of(spec))


async def ask_server(run: DryRun, *, context: str | None) -> ServerVerdicts:
    """Have the cluster check the objects without creating them."""
    from controller.app.runtimes import anchor
    from controller.app.sample_manifests import UID, served_manifests_of
    from controller.kube.client import NODES, KubernetesClient, list_allowed
    from controller.runtime.kubernetes.preflight import (
        Answer,
        dry_run_of,
        no_queue,
        pods_of,
        why_unschedulable,
    )

    namespace = run.spec.namespace
    async with await KubernetesClient.connect(context or None) as client:
        trial = await served_manifests_of(client, run.spec, files=run.files)
        stages = {"A trial": trial, "The final stage": run.final}
        everything = [obj for objects in stages.values() for obj in (*objects, *pods_of(objects))]
        verdicts = await dry_run_of(client, namespace, [anchor(run.spec, UID), *everything])
        if any(verdict.answer in (Answer.NOT_ALLOWED, Answer.REFUSED) for verdict in verdicts):
            return ServerVerdicts(verdicts, {})
        nodes = await list_allowed(client, NODES, None) or []
        never = {
            stage: await no_queue(client, namespace, objects)
            or await why_unschedulable(client, namespace, objects, nodes=nodes)
            for stage, objects in stages.items()
            if objects
        }
        return ServerVerdicts(
            verdicts, {stage: reason for stage, reason in never.items() if reason}
        )
