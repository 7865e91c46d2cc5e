"""Delete experiments: their running attempts, their studies,
the folders of their trials and their rows.

The rows are deleted last, so that a delete that was killed halfway can be repeated.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass

from controller.app.experiment_service import ExperimentService
from controller.app.experiments import ControlledElsewhere, find
from controller.app.local_experiments import LocalExperiments
from controller.app.reproduce import remove_worktree
from controller.app.service_names import described
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import Workspace
from controller.core.attempt import RuntimeLost
from controller.core.model import Attempt, Experiment, attempt_name
from controller.phrases import command, quantity
from controller.runtime.registry import provider_of
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


class _Clients:
    """The clients of the services of a workspace, each connected when it is first needed."""

    def __init__(self, workspace: Workspace, stack: AsyncExitStack) -> None:
        self._workspace = workspace
        self._stack = stack
        self._connected: dict[str, SessionClient] = {}

    async def of(self, service: str) -> SessionClient:
        if service not in self._connected:
            connecting = self._workspace.connected(service)
            self._connected[service] = await self._stack.enter_async_context(connecting)
        return self._connected[service]


async def delete(
    workspace: Workspace,
    names: Sequence[str],
    namespace: str | None,
    *,
    confirm: Callable[[str], bool],
    on_deleted: Callable[[Deleted], None] = lambda _deleted: None,
    force: bool = False,
    local_only: bool = False,
    keep_studies: bool = False,
) -> bool:
    """Delete experiments, or none of them if one is unknown or running.

    Returns False if `confirm` refused.

    Args:
        confirm: Called once, with a description of what would be deleted.
        on_deleted: Called for each deleted experiment. An error ends the deletion before the next
            one.
        force: Delete what is on this machine even if the suggestion service does not answer.
        local_only: Send nothing to the cluster, because it no longer exists.
        keep_studies: Leave the studies, with their trials, in the suggestion service.
    """
    async with AsyncExitStack() as stack:
        clients = _Clients(workspace, stack)
        experiments = stack.enter_context(workspace.opened())
        found = _find(experiments, names, namespace)
        services = [workspace.service_of(experiment) for experiment in found]
        for experiment in found:
            if local_only and not _left_behind(experiment):
                raise InvalidArgument.at(
                    "--local-only", f"{experiment.name} ran on this machine, not on a cluster"
                )
        if not confirm(_what(experiments, found)):
            return False
        for experiment in found:
            try:
                admitted = ExperimentService(experiments).take_over(experiment)
            except ControlledElsewhere as error:
                raise FailedPrecondition(
                    f"{experiment.name} cannot be deleted now: {error}"
                ) from error
            stack.callback(admitted.lease.release)
        for experiment, service in zip(found, services, strict=True):
            if not local_only:
                await _end_leftovers(workspace, experiments, experiment)
            left_behind = ""
            if not keep_studies:
                left_behind = await _delete_study(clients, experiment, service, force=force)
            if local_only:
                left_behind = "; ".join(filter(None, (_left_behind(experiment), left_behind)))
            root = experiments.folders(experiment.uid).root
            await remove_worktree(root)
            shutil.rmtree(root, ignore_errors=True)
            experiments.delete_experiment(experiment.uid)
            on_deleted(Deleted(experiment.name, left_behind))
    return True


def _find(
    experiments: LocalExperiments, names: Sequence[str], namespace: str | None
) -> list[Experiment]:
    """Find the experiments, each once.

    Raises NotFound, which names all that are not there, and FailedPrecondition.
    """
    found: list[Experiment] = []
    missing: list[str] = []
    for name in dict.fromkeys(names):
        try:
            found.append(find(experiments, name, namespace))
        except NotFound as error:
            missing.append(str(error))
    if missing:
        raise NotFound("\n".join(missing))
    return found


def _what(experiments: LocalExperiments, found: Sequence[Experiment]) -> str:
    uids = [experiment.uid for experiment in found]
    attempts = quantity(sum(len(experiments.attempts(uid)) for uid in uids), "attempt")
    folders = [experiments.folders(uid).root for uid in uids]
    if len(found) == 1:
        return f"{found[0].name}, the logs and outputs of its {attempts} in {folders[0]}"
    names = ", ".join(experiment.name for experiment in found)
    return (
        f"{len(found)} experiments ({names}), the logs and outputs of their {attempts} in "
        f"{folders[0].parent}"
    )


async def _delete_study(
    clients: _Clients, experiment: Experiment, service: str, *, force: bool
) -> str:
    """Delete the study, and return what is left of it.

    Raises Unavailable and similar errors. Without `force`, nothing else may be deleted then.
    """
    name = study_name(experiment)
    try:
        client = await clients.of(service)
        # the run was killed before it created the study, or this is a repeated delete
        with suppress(NotFound):
            async with asyncio.timeout(FORCED_PATIENCE_S if force else None):
                await client.delete_study(name)
    except (Unavailable, Unauthenticated, PermissionDenied, StoreBroken, TimeoutError) as error:
        if not force:
            cure = (
                f"its records are kept; {command('delete', experiment.name, '--force')} "
                f"removes what is here"
            )
            kind = Unavailable if isinstance(error, Unavailable | TimeoutError) else type(error)
            raise kind(f"{error}\n{cure}") from error
        why = str(error)
        if isinstance(error, TimeoutError):
            why = f"no answer within {FORCED_PATIENCE_S:g} s"
        return f"the study {name} with its trials, in the {described(service)} ({why})"
    return ""


async def _end_leftovers(
    workspace: Workspace, experiments: LocalExperiments, experiment: Experiment
) -> None:
    """Kill attempts that a killed controller left running. Raises Unavailable."""
    unended = [attempt for attempt in experiments.attempts(experiment.uid) if not attempt.ended]
    try:
        if unended:
            await _remove_attempts(workspace, experiments, experiment, unended)
        await workspace.discard(experiment)
    except (InvalidArgument, RuntimeLost) as error:
        if not _left_behind(experiment):
            raise
        cure = command("delete", experiment.name, "--local-only")
        raise Unavailable(
            f"{error}\n{experiment.name} was not deleted; if the cluster is gone: {cure}"
        ) from error


async def _remove_attempts(
    workspace: Workspace,
    experiments: LocalExperiments,
    experiment: Experiment,
    attempts: Sequence[Attempt],
) -> None:
    connection = await workspace.runtime_of(experiment, experiments)
    try:
        for attempt in attempts:
            name = attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number)
            await connection.runtime.remove(name)
    finally:
        await connection.close()


def _left_behind(experiment: Experiment) -> str:
    return provider_of(experiment.spec.runtime).left_behind(experiment)
