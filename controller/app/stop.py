"""Stop an experiment: through its controller if one is running,
otherwise by controlling it until it has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager

from controller.app.experiment_service import Admitted, ExperimentService
from controller.app.experiments import ControlledElsewhere, find
from controller.app.local_experiments import LocalExperiments
from controller.app.run import Controls, control
from controller.app.suggestion_service import SessionClient
from controller.app.workspace import Workspace
from controller.core.model import Experiment, ExperimentState, ReasonCode
from controller.report.lines import View

POLL_S = 0.05


async def stop(
    workspace: Workspace,
    name: str,
    namespace: str | None,
    *,
    controls: Callable[[], AbstractContextManager[Controls]],
    print_line: Callable[[str], None],
) -> Experiment:
    """Stop an experiment and return it as stopped, or as it finished before.

    `controls` interrupts this process while it ends the trials itself. Raises NotFound, Unavailable
    and similar errors.
    """
    with workspace.opened() as experiments:
        experiment = find(experiments, name, namespace)
        if experiment.state.finished:
            return experiment
        service = workspace.service_of(experiment)
        experiments.request_stop(experiment.uid)
        while True:
            await _wait_for_controller(experiments, experiment, print_line)
            experiment = find(experiments, name, experiment.namespace)
            if experiment.state.finished or _idle(experiments, experiment):
                return experiment
            try:
                admitted = ExperimentService(experiments).take_over(experiment)
            except ControlledElsewhere:
                continue  # another process has resumed it, or another stop was faster
            if admitted.experiment.state.finished:
                admitted.lease.release()
                return find(experiments, name, experiment.namespace)
            async with workspace.connected(service) as client:
                await _end(workspace, experiments, admitted, client, controls)


def _idle(experiments: LocalExperiments, experiment: Experiment) -> bool:
    """Return whether a request and not Ctrl-C stopped it, so that no trial waits to run again."""
    is_stopped = experiment.state is ExperimentState.STOPPED
    if not is_stopped or experiment.reason_code is not ReasonCode.STOP_REQUESTED:
        return False
    return all(attempt.ended for attempt in experiments.attempts(experiment.uid))


async def _wait_for_controller(
    experiments: LocalExperiments, experiment: Experiment, print_line: Callable[[str], None]
) -> None:
    """Wait until no controller is running. A controller sees the request and ends its trials."""
    announced = False
    while True:
        holder = experiments.holder(experiment.uid)
        if holder is None:
            return
        if not announced:
            print_line(f"{experiment.name} is stopping; its controller is {holder}")
            announced = True
        await asyncio.sleep(POLL_S)


async def _end(
    workspace: Workspace,
    experiments: LocalExperiments,
    admitted: Admitted,
    client: SessionClient,
    controls: Callable[[], AbstractContextManager[Controls]],
) -> None:
    """Control the experiment until it has stopped. The loop reads the request from the store."""
    connection = await workspace.runtime_of(admitted.experiment, experiments)
    try:
        with controls() as installed:
            await control(
                admitted,
                experiments=experiments,
                client=client,
                controls=installed,
                view=View(),
                runtime=connection.runtime,
                build=workspace.launch_builder(admitted.experiment),
            )
    finally:
        await connection.close()
        admitted.lease.release()
