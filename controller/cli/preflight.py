"""Before an experiment exists: would its cluster take its trials? Makes nothing; what stands in the way is an error.

The file is judged by itself first, then by the server: who we are, the namespace, our rights, the objects of a trial.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from controller.cli.home import Home
from controller.core.model import FINAL, ExperimentSpec, attempt_name, short_name, trial_name
from controller.phrases import command
from controller.spec import Document
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound, Problem, Unavailable

if TYPE_CHECKING:
    from controller.runtime.kubernetes.client import Client
    from controller.runtime.kubernetes.rehearsal import Verdict
    from controller.runtime.kubernetes.rights import Right

Raw = dict[str, Any]

TEMPLATE, FINAL_STAGE = "spec.trial.template", "spec.final"


def check_file(document: Document) -> None:
    """Raises SpecErrors: no cluster could be sent what the file says."""
    if document.spec.runtime == "local":
        return
    try:
        manifests_of(document.spec)
        final_manifests_of(document.spec)
    except InvalidArgument as error:
        raise document.locate(error.problems) from error


def warnings(document: Document) -> Iterator[str]:
    """What the file says, or asks of this machine or of its template's kind, that is seldom meant."""
    from controller.cli import machine

    yield from document.warnings
    yield from machine.warnings(document.spec)
    manifest = document.spec.trial.cluster.get("template")
    if isinstance(manifest, Mapping):
        from controller.runtime.kubernetes.template import warnings as warnings_of_template

        yield from warnings_of_template(manifest, TEMPLATE)


def manifests_of(spec: ExperimentSpec) -> list[Raw]:
    """What trial 0 would be. Raises InvalidArgument: no cluster could be sent that."""
    from controller.cli.specimen import UID, specimen
    from controller.runtime.kubernetes.demand import demand_of
    from controller.runtime.kubernetes.kinds import missing_conditions
    from controller.runtime.kubernetes.manifests import job_for, name_problem
    from controller.runtime.kubernetes.template import cannot_be_labelled, cannot_be_queued

    launch = specimen(spec)
    part = launch.cluster
    assert part is not None
    last = 0 if spec.budget.trials is None else spec.budget.trials - 1
    again = 1 + max(spec.trial.retries.values(), default=0)
    problems = {"metadata.name": name_problem(replace(launch, name=attempt_name(spec.name, UID, last, again)))}
    if part.manifest is not None:
        manifest = part.manifest
        problems[TEMPLATE] = missing_conditions(manifest, spec.trial.cluster) or cannot_be_labelled(manifest)
        if "queue" in spec.trial.cluster:
            problems["spec.trial.queue"] = cannot_be_queued(manifest)
    objects = job_for(launch, owner=None)
    try:
        demand_of(objects)
    except ValueError as error:
        problems[TEMPLATE if part.manifest is not None else "spec.trial.resources"] = str(error)
    if any(problems.values()):
        raise InvalidArgument([Problem(path, said) for path, said in problems.items() if said])
    return objects


def final_manifests_of(spec: ExperimentSpec) -> list[Raw]:
    """What its final stage would be with the parameters of trial 0; none without one. Raises like manifests_of."""
    from controller.cli.specimen import specimen
    from controller.runtime.kubernetes.demand import demand_of
    from controller.runtime.kubernetes.manifests import job_for

    if spec.final is None:
        return []
    objects = job_for(specimen(spec, FINAL), owner=None)
    try:
        demand_of(objects)
    except ValueError as error:
        raise InvalidArgument([Problem(f"{FINAL_STAGE}.resources", str(error))]) from error
    return objects


async def check_cluster(client: Client, document: Document, home: Home) -> None:
    """Raises SpecErrors, NotFound, NotAllowed, FailedPrecondition, Unavailable; ApiError where the server has trouble.

    Four questions at once, so that it costs what the slowest takes.
    """
    from controller.cli.runtimes import anchor
    from controller.cli.specimen import UID
    from controller.runtime.kubernetes.errors import Unreachable
    from controller.runtime.kubernetes.prerequisites import no_queue
    from controller.runtime.kubernetes.rehearsal import rehearse

    spec = document.spec
    objects = manifests_of(spec)
    answers = await asyncio.gather(
        rehearse(client, spec.namespace, [anchor(spec, UID), *objects, *final_manifests_of(spec)]),
        _missing(client, spec, objects),
        _others(client, spec, objects[-1], home),
        no_queue(client, spec.namespace, objects),
        return_exceptions=True,
    )
    for answer in answers:
        if isinstance(answer, Unreachable):
            raise Unavailable(f"{answer}; nothing was started") from answer
        if isinstance(answer, BaseException):
            raise answer
    verdicts, missing, others, queue = answers
    assert isinstance(verdicts, list)
    assert isinstance(missing, list)
    _judge(client, document, verdicts=verdicts, missing=missing)
    if queue:
        raise document.locate([Problem("spec.trial.queue", f"{queue}; nothing was started")])
    if others:
        raise FailedPrecondition(
            f"somebody runs an experiment {spec.name} in {spec.namespace} at this moment (see kubectl -n "
            f"{spec.namespace} get configmap {others}), and it is not of this state directory; choose another "
            f"metadata.name, or go on with that one: {command('resume', spec.name, '--from-cluster')}"
        )


def _judge(
    client: Client, document: Document, *, verdicts: Sequence[Verdict], missing: Sequence[tuple[Right, tuple[str, ...]]]
) -> None:
    from controller.cli.specimen import UID
    from controller.runtime.kubernetes.errors import NotAllowed
    from controller.runtime.kubernetes.rehearsal import Answer

    namespace = document.spec.namespace
    why = next((each.why for each in verdicts if each.namespace_is_away), "")
    if why:
        raise NotFound(f"the cluster of context {client.context} has no place for trials: {why}")
    if missing:
        rules = "".join(f"\n  {right.rule(verbs)}" for right, verbs in missing)
        raise NotAllowed(
            f"context {client.context} may not run trials in namespace {namespace}; if that is the right one, these "
            f"rules are missing in its Role (deploy/rbac.yaml has them all):{rules}"
        )
    for each in verdicts:
        if each.answer is Answer.NOT_ALLOWED:
            raise NotAllowed(each.why)
        if each.answer is Answer.REFUSED:
            path = TEMPLATE if "template" in document.spec.trial.cluster else "spec.trial"
            path = FINAL_STAGE if each.name == trial_name(document.spec.name, UID, FINAL) else path
            raise document.locate([Problem(path, f"the cluster does not take {each.kind} {each.name}: {each.why}")])


async def _missing(client: Client, spec: ExperimentSpec, objects: Sequence[Raw]) -> list[tuple[Right, tuple[str, ...]]]:
    from controller.runtime.kubernetes.rights import RIGHTS, missing_rights, rights_to

    rights = [*RIGHTS, *await rights_to(client, objects)]
    return await missing_rights(client, spec.namespace, [right for right in rights if not right.without])


async def _others(client: Client, spec: ExperimentSpec, manifest: Raw, home: Home) -> str:
    """The anchor of another experiment of that name with trials that have not ended; "" if there is none."""
    from controller.runtime.kubernetes.errors import ApiError
    from controller.runtime.kubernetes.kinds import kind_of, over
    from controller.runtime.kubernetes.naming import EXPERIMENT, MANAGED_BY, UID

    labels = f"{EXPERIMENT}={spec.name},{MANAGED_BY}=tuner"
    try:
        found, _ = await client.list(await kind_of(client, manifest), spec.namespace, labels=labels)
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        return ""  # the other answers say why
    uids = (each["metadata"]["labels"].get(UID, "") for each in found if not over(each))
    strange = next((uid for uid in uids if not home.folders(uid).root.exists()), "")
    return short_name(spec.name, strange) if strange else ""
