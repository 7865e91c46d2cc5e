"""The workspace that all requests of a person or process share:
the state directory and the suggestion service.

This module is fast to import: the client and the stores are imported when they are used.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from controller import app
from controller.app.service_names import (
    FROM_ENVIRONMENT,
    ServiceCredentials,
    described,
    is_address,
    shares_an_address,
)
from controller.app.state_directory import StateDirectory
from controller.runtime.registry import provider_of
from suggest.errors import FailedPrecondition

if TYPE_CHECKING:
    from controller.app.experiments import ReadableExperiments
    from controller.app.local_experiments import LocalExperiments
    from controller.app.stored_studies import StoredStudies
    from controller.app.suggestion_service import SessionClient
    from controller.app.surroundings import GitState
    from controller.core.model import Experiment
    from controller.runtime.provider import LaunchBuilder, RuntimeConnection
    from suggest.client import AsyncClient

# Reads studies: over gRPC, or from a store in this process.
StudyReads: TypeAlias = "AsyncClient | StoredStudies"


class ReadableWorkspace(Protocol):
    """Where verbs that change nothing read: this machine, or a cluster's controller."""

    @property
    def service(self) -> str: ...

    @property
    def place(self) -> str:
        """Return where the experiments are, for messages."""

    @property
    def place_of_studies(self) -> str:
        """Return where the studies are, for messages."""

    @property
    def has_studies(self) -> bool:
        """Return whether there may be studies: anything was run, or a service is named."""

    def opened(self) -> AbstractContextManager[ReadableExperiments]:
        """Open the experiments. Raises NotFound if nothing was ever run there."""

    def service_of(self, experiment: Experiment) -> str: ...

    def reading(self, service: str) -> AbstractAsyncContextManager[StudyReads]: ...


@dataclass(frozen=True, slots=True)
class Workspace:
    """The state directory and the requested service.

    `service` is "" for the experiment's own service, which for a new experiment
    is the state directory's store.
    """

    state: StateDirectory
    service: str = ""
    credentials: ServiceCredentials = FROM_ENVIRONMENT

    @property
    def place(self) -> str:
        return str(self.state.root)

    @property
    def place_of_studies(self) -> str:
        return described(self.service)

    @property
    def has_studies(self) -> bool:
        return bool(self.service) or self.state.has_studies

    def opened(self, *, make: bool = False) -> AbstractContextManager[LocalExperiments]:
        """Open the experiments of the state directory with `local_experiments.opened`."""
        return app.local_experiments.opened(self.state, make=make)

    def service_of(self, experiment: Experiment) -> str:
        """Return the experiment's service. Raises FailedPrecondition if another was requested."""
        recorded, requested = experiment.server, self.service
        if not requested or requested == recorded:
            return recorded
        if not shares_an_address(recorded, requested):
            raise FailedPrecondition(
                f"the trials of {experiment.name} are in the {described(recorded)}, not in the "
                f"{described(requested)}; omit the flag, or choose another name for a new "
                "experiment"
            )
        return requested

    async def runtime_of(
        self, experiment: Experiment, experiments: LocalExperiments
    ) -> RuntimeConnection:
        """Connect to the runtime of an experiment, which may not be stored yet.

        Raises what its provider raises.
        """
        return await provider_of(experiment.spec.runtime).connect(
            experiment,
            self.state.folders(experiment.uid),
            experiments.object_records(experiment.uid),
        )

    async def git_state(self, folder: Path) -> GitState:
        """Return the commit of the folder of an experiment's file; empty outside a checkout."""
        return await app.surroundings.git_state(folder, apart=self.state.root)

    def launch_builder(self, experiment: Experiment) -> LaunchBuilder:
        """Return what builds the launch of each attempt. Raises what its provider raises."""
        folders = self.state.folders(experiment.uid)
        return provider_of(experiment.spec.runtime).launch_builder(experiment, folders)

    async def discard(self, experiment: Experiment) -> None:
        """Delete what the runtime still has of an experiment whose attempts were removed.

        Raises what its provider raises.
        """
        folders = self.state.folders(experiment.uid)
        await provider_of(experiment.spec.runtime).discard(experiment, folders)

    def connected(self, service: str) -> AbstractAsyncContextManager[SessionClient]:
        """Return a client of the service.

        An embedded service is started, and stopped at the end.
        """
        return app.suggestion_service.connected(service, self.state, self.credentials)

    def reading(self, service: str) -> AbstractAsyncContextManager[StudyReads]:
        """Return the studies of the service for reading.

        Those of a store are read without a server.
        """
        if is_address(service):
            return self.connected(service)
        return app.stored_studies.stored_studies(self.state.url_of(service))
