"""Delete an experiment: its running attempts, its study, the folders of its trials and its rows.

The rows are deleted last, so that a delete that was killed halfway can be repeated.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from controller.app import runtimes
from controller.app.experiment_service import ExperimentService
from controller.app.experiments import ControlledElsewhere, find
from controller.app.local_experiments import LocalExperiments
from controller.app.workspace import Workspace, described
from controller.core.model import Attempt, Experiment, attempt_name, short_name
from controller.phrases import command, quantity
from controller.search import study_name
from suggest.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    StoreBroken,
    Unauthenticated,
    Unavailable,
)

FORCED_PATIENCE_S = 5.0  # with a server that is probably gone


@dataclass(frozen=True, slots=True)
class Deleted:
    """The result of a delete.

    left_behind: what could not be deleted elsewhere, and how to delete it; "" if nothing is left.
    """

    name: str
    left_behind: str = ""


async def delete(
    workspace: Workspace,
    name: str,
    namespace: str | None,
    *,
    confirm: Callable[[str], bool],
    force: bool = False,
    local_only: bool = False,
) -> Deleted | None:
    """Delete an experiment. Returns None if `confirm` refused.

    Args:
        confirm: Called with a description of what would be deleted.
        force: Delete what is on this machine even if the suggestion service does not answer.
        local_only: Send nothing to the cluster, because it no longer exists.
    """
    with workspace.opened() as experiments:
        experiment = find(experiments, name, namespace)
        service = workspace.service_of(experiment)
        if local_only and not experiment.spec.traits.on_cluster:
            raise InvalidArgument.at("--local-only", f"{experiment.name} ran on this machine, not on a cluster")
        if not confirm(_what(experiments, experiment)):
            return None
        try:
            admitted = ExperimentService(experiments).take_over(experiment)
        except ControlledElsewhere as error:
            raise FailedPrecondition(f"{experiment.name} cannot be deleted now: {error}") from error
        try:
            if not local_only:
                await _end_leftovers(workspace, experiments, experiment)
            left_behind = await _delete_study(workspace, experiment, service, force=force)
            if local_only:
                left_behind = "; ".join(filter(None, (_left_on_cluster(experiment), left_behind)))
            shutil.rmtree(experiments.folders(experiment.uid).root, ignore_errors=True)
            experiments.delete_experiment(experiment.uid)
        finally:
            admitted.lease.release()
    return Deleted(experiment.name, left_behind)


def _what(experiments: LocalExperiments, experiment: Experiment) -> str:
    attempts = quantity(len(experiments.attempts(experiment.uid)), "attempt")
    return f"{experiment.name}, the logs and outputs of its {attempts} in {experiments.folders(experiment.uid).root}"


async def _delete_study(workspace: Workspace, experiment: Experiment, service: str, *, force: bool) -> str:
    """Delete the study, and return what is left of it.

    Raises Unavailable and similar errors. Without `force`, nothing else may be deleted then.
    """
    name = study_name(experiment)
    try:
        async with workspace.connected(service) as client:
            with suppress(NotFound):  # the run was killed before it created the study, or this is a repeated delete
                async with asyncio.timeout(FORCED_PATIENCE_S if force else None):
                    await client.delete_study(name)
    except (Unavailable, Unauthenticated, PermissionDenied, StoreBroken, TimeoutError) as error:
        if not force:
            cure = f"its records are kept; {command('delete', experiment.name, '--force')} removes what is here"
            kind = Unavailable if isinstance(error, Unavailable | TimeoutError) else type(error)
            raise kind(f"{error}\n{cure}") from error
        why = f"no answer within {FORCED_PATIENCE_S:g} s" if isinstance(error, TimeoutError) else str(error)
        return f"the study {name} with its trials, in the {described(service)} ({why})"
    return ""


async def _end_leftovers(workspace: Workspace, experiments: LocalExperiments, experiment: Experiment) -> None:
    """Kill attempts that a killed controller left running. Raises Unavailable if the cluster does not answer."""
    from controller.runtime.kubernetes.errors import BadKubeconfig, Unreachable

    unended = [attempt for attempt in experiments.attempts(experiment.uid) if not attempt.ended]
    try:
        if unended:
            await _remove_attempts(workspace, experiment, unended)
        await runtimes.discard(experiment)
    except (BadKubeconfig, Unreachable) as error:
        cure = f"nothing was deleted; if the cluster is gone: {command('delete', experiment.name, '--local-only')}"
        raise Unavailable(f"{error}\n{cure}") from error


async def _remove_attempts(workspace: Workspace, experiment: Experiment, attempts: Sequence[Attempt]) -> None:
    runtime = await runtimes.of(workspace.state, experiment)
    try:
        for attempt in attempts:
            await runtime.remove(attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number))
    finally:
        await runtime.close()


def _left_on_cluster(experiment: Experiment) -> str:
    """Describe what may be left on the cluster, with the command that deletes the object that owns the rest."""
    owner = short_name(experiment.name, experiment.uid)
    context = f"--context {experiment.context} " if experiment.context else ""
    cure = f"kubectl {context}-n {experiment.namespace} delete configmap {owner}"
    return f"what runs on the cluster, if it is there ({cure})"
