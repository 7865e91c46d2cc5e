"""The controller in the cluster on the small API server: one process, in the test's own loop."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

from controller.app.state_directory import StateDirectory
from controller.operator.hosting import RUNNING_EXPERIMENTS
from controller.operator.katib import KatibSelection
from controller.operator.page import PageProxy
from controller.operator.policy import NO_EXCEPTIONS
from controller.operator.process import ControllerOptions, run_controller
from controller.operator.tenant_budgets import BudgetClock
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script
from tests.kube.small_cluster import eventually
from tests.ports import free_port

Raw = dict[str, Any]
NAMESPACE = "user1"
KIND = ("tuner.dev/v1", "experiments", "Experiment")
# On a busy machine, a few trials of a second take more than a minute.
WITHIN_S = 150.0


def experiment(name: str = "tiny", **spec: object) -> Raw:
    """Return a custom resource with these keys of spec besides the necessary ones."""
    return {
        "metadata": {"name": name, "namespace": NAMESPACE, "generation": 1},
        "spec": {
            "objective": {"metric": "score", "direction": "maximize"},
            "parameters": {"x": {"type": "float", "min": 0, "max": 1}},
            "algorithm": {"name": "random"},
            "budget": {"trials": 3},
            "trial": {"image": "tiny:1", "command": ["train", "--x=${x}"]},
            **spec,
        },
    }


class Installation:
    """An API server with the definition, and at most one controller; its state outlives it.

    plural: of its experiments, as the server knows it.
    """

    plural = "experiments"

    def __init__(self, api: FakeApi, folder: Path) -> None:
        self.api = api
        self.state = StateDirectory(folder / "state")
        self.page_proxy: PageProxy | None = None
        self.policy = NO_EXCEPTIONS
        self.running_experiments = RUNNING_EXPERIMENTS
        self.clock: BudgetClock | None = None
        self.archive = ""
        self.katib: KatibSelection | None = None
        self.metrics_port = self.http_port = self.grpc_port = self.db_manager_port = 0
        self._running: asyncio.Task[None] | None = None

    def start(self, *namespaces: str) -> None:
        self.metrics_port = free_port()
        self.http_port, self.grpc_port = free_port(), free_port()
        self.db_manager_port = free_port()
        options = ControllerOptions(
            self.state,
            namespaces=namespaces,
            metrics_port=self.metrics_port,
            http_port=self.http_port,
            grpc_port=self.grpc_port,
            page_proxy=self.page_proxy,
            policy=self.policy,
            archive=self.archive,
            katib=self.katib,
            running_experiments=self.running_experiments,
            clock=self.clock,
            db_manager_port=None if self.katib is None else self.db_manager_port,
        )
        self._running = asyncio.create_task(run_controller(options))

    @property
    def serves(self) -> bool:
        """Return whether the controller listens."""
        with socket.socket() as probe:
            return probe.connect_ex(("localhost", self.http_port)) == 0

    async def stop(self) -> None:
        """End the controller as SIGTERM does, through its task."""
        running, self._running = self._running, None
        if running is not None:
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running

    async def until_ended(self) -> BaseException | None:
        """Return why the controller has ended by itself."""
        running, self._running = self._running, None
        assert running is not None
        await asyncio.wait([running])
        return running.exception()

    def apply(self, resource: Raw) -> None:
        self.api.put(self.plural, resource)

    def delete(self, name: str = "tiny") -> None:
        """Delete the resource as kubectl does: at once, or when its finalizers are gone."""
        found = self.api.get(self.plural, NAMESPACE, name)
        if not found["metadata"].get("finalizers"):
            self.api.remove(self.plural, NAMESPACE, name)
            return
        time = "2026-01-01T00:00:00Z"
        self.api.change(
            self.plural,
            NAMESPACE,
            name,
            lambda each: each["metadata"].update(deletionTimestamp=time),
        )

    @property
    def jobs(self) -> list[Raw]:
        return self.api.all("jobs", NAMESPACE)

    def edit(self, name: str, **spec: object) -> None:
        def change(resource: Raw) -> None:
            resource["spec"].update(spec)
            resource["metadata"]["generation"] += 1

        self.api.change(self.plural, NAMESPACE, name, change)

    def status(self, name: str = "tiny") -> Raw:
        found = self.api.find(self.plural, NAMESPACE, name) or {}
        return dict(found.get("status") or {})

    def condition(self, kind: str, name: str = "tiny") -> Raw:
        conditions = self.status(name).get("conditions", ())
        return next((each for each in conditions if each["type"] == kind), {})

    async def until(self, condition: Callable[[], object], *, within_s: float = WITHIN_S) -> None:
        def checked() -> bool:
            if self._running is not None and self._running.done():
                self._running.result()
            return bool(condition())

        await eventually(checked, within_s=within_s)

    async def until_state(
        self, state: str, name: str = "tiny", *, within_s: float = WITHIN_S
    ) -> None:
        try:
            await self.until(lambda: self.status(name).get("state") == state, within_s=within_s)
        except AssertionError:
            raise AssertionError(f"{name} is never {state}: {self.status(name)}") from None


@contextlib.asynccontextmanager
async def installation(folder: Path, script: Script) -> AsyncIterator[Installation]:
    """Yield an installation whose controller runs, on a server whose pods follow the script."""
    async with FakeApi() as api:
        api.define(*KIND)
        api.kubelet.play(lambda _job: script)
        installed = Installation(api, folder)
        with kubeconfig_of(api.kubeconfig()):
            installed.start()
            try:
                yield installed
            finally:
                await installed.stop()


Claim = Callable[[Installation], Coroutine[Any, Any, None]]


SCORED = Script(lines=("score=0.5",))


def created_jobs(installed: Installation) -> int:
    """Return how many Jobs the controller has asked for, without those of dry runs."""
    return sum(
        method == "POST" and path.endswith("/jobs") and "dryRun" not in query
        for method, path, query in installed.api.requests
    )


def on_a_cluster(script: Script = SCORED) -> Callable[[Claim], Callable[[Path], None]]:
    """Run a coroutine test with a new installation, on its own loop."""

    def decorate(claim: Claim) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                async with installation(tmp_path, script) as installed:
                    await claim(installed)

            asyncio.run(main())

        run.__name__, run.__doc__ = claim.__name__, claim.__doc__
        return run

    return decorate
