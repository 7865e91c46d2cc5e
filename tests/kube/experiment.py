"""One experiment's runtime on the small API server, for tests of errors."""

from __future__ import annotations

import asyncio
import functools
import time
from collections.abc import Callable, Coroutine, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, TypeAlias

from controller.core.attempt import AttemptStatus, ObjectRecord, RuntimeLost
from controller.core.model import (
    UID_LABEL,
    AttemptKey,
    Collection,
    Resources,
    TrialTemplate,
    attempt_name,
)
from controller.kube.client import KubernetesClient
from controller.kube.cluster import Cluster
from controller.runtime.kubernetes.admission import AdmissionQueue
from controller.runtime.kubernetes.labels import experiment_labels
from controller.runtime.kubernetes.launch import ClusterLaunch, ClusterPart
from controller.runtime.kubernetes.lease import LeaseHolder, Superseded
from controller.runtime.kubernetes.runtime import ClusterTarget, KubernetesRuntime
from controller.runtime.protocol import Conclusion, Runtime
from suggest.errors import Unavailable
from tests.kube.fake_api import FakeApi, kubeconfig_of

Raw = dict[str, Any]

NAMESPACE, UID = "user1", "x7k2qaaaaaaaaaaa"
ANCHOR = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"name": "tiny-x7k2q", "labels": experiment_labels("tiny", UID)},
}
LONG_S = 10.0


class KeptRecords:
    """The records of all controllers of an experiment, as their store keeps them.

    trouble: why they cannot be written at present.
    """

    def __init__(self) -> None:
        self.rows: dict[AttemptKey, ObjectRecord] = {}
        self.trouble = ""

    def load(self) -> Mapping[AttemptKey, ObjectRecord]:
        return dict(self.rows)

    def save(self, key: AttemptKey, record: ObjectRecord) -> None:
        self._check()
        self.rows[key] = record

    def delete(self, key: AttemptKey) -> None:
        self._check()
        self.rows.pop(key, None)

    def _check(self) -> None:
        if self.trouble:
            raise Unavailable(self.trouble)


class Unfenced:
    """Implements `WriteGuard` where no other controller can exist."""

    lost: Superseded | None = None

    async def verify(self) -> None: ...

    async def check(self, owner: Raw | None = None) -> None: ...

    async def conclude(self, conclusion: Conclusion) -> None: ...

    async def close(self) -> None: ...


class Experiment:
    """The server runs as long as the test; `open` creates a runtime like a new controller. An
    attempt is named by the number of its trial.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.api = FakeApi()
        self.records = KeptRecords()
        self._alive = AsyncExitStack()

    async def __aenter__(self) -> Experiment:
        await self._alive.enter_async_context(self.api)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._alive.aclose()

    async def open(
        self,
        *,
        template: Raw | None = None,
        holder: str = "",
        own: bool = True,
        collects: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> KubernetesRuntime:
        """Open a runtime. `holder`: its state directory, "" without others.

        `own`: the queue is ours, not Kueue's.
        """
        with kubeconfig_of(self.api.kubeconfig()):
            cluster = Cluster(await KubernetesClient.connect(), labels=f"{UID_LABEL}={UID}")
        self._alive.push_async_callback(cluster.close)
        target = ClusterTarget(
            cluster,
            NAMESPACE,
            UID,
            ANCHOR,
            self.records,
            self.directory,
            self.holder(holder) if holder else Unfenced(),
            template,
            collects,
        )
        runtime = KubernetesRuntime(target, queue=AdmissionQueue(is_own=own), clock=clock)
        self._alive.push_async_callback(runtime.close)
        return runtime

    def holder(self, name: str) -> LeaseHolder:
        return LeaseHolder(self.folder / name)

    def name(self, trial: int, attempt: int = 1) -> str:
        return attempt_name("tiny", UID, trial, attempt)

    def directory(self, trial: int, attempt: int) -> Path:
        directory = self.folder / str(trial) / str(attempt)
        directory.mkdir(parents=True, exist_ok=True)
        return directory

    def launch(
        self,
        trial: int,
        *,
        timeout_s: float | None = None,
        lr: float = 0.1,
        manifest: Mapping[str, object] | None = None,
        attempt: int = 1,
        cluster: Mapping[str, object] | None = None,
        collection: Collection | None = None,
    ) -> ClusterLaunch:
        part = ClusterPart(
            NAMESPACE,
            "tiny",
            UID,
            trial,
            attempt,
            {"lr": lr},
            TrialTemplate(
                ("true",), image="tiny:1", resources=Resources(cpu=1.0), cluster=cluster or {}
            ),
            manifest=manifest,
            collection=collection,
        )
        env = {"TUNER_OUTPUT_DIR": "/tuner/output", "TUNER_CHECKPOINT_DIR": "/tuner/checkpoints"}
        return ClusterLaunch(
            self.name(trial, attempt),
            ("true",),
            env,
            self.folder,
            self.directory(trial, attempt),
            timeout_s=timeout_s,
            grace_s=1.0,
            cluster=part,
        )

    def asked(self, method: str, path: str) -> int:
        """Return the number of such requests."""
        return sum(method == m and path in p for m, p, _ in self.api.requests)

    def jobs(self) -> list[str]:
        return [job["metadata"]["name"] for job in self.api.all("jobs", NAMESPACE)]


Test: TypeAlias = Callable[..., Coroutine[Any, Any, None]]


def on_a_loop(test: Test) -> Callable[..., None]:
    """Run a coroutine test with the fixture `experiment` in a loop,
    because pytest calls plain functions.
    """

    @functools.wraps(test)
    def wrapped(experiment: Experiment, **more: Any) -> None:
        async def main() -> None:
            async with experiment:
                await test(experiment, **more)

        asyncio.run(main())

    return wrapped


async def look(runtime: Runtime) -> Mapping[str, AttemptStatus]:
    """Reconcile and observe, as the loop does in one turn."""
    await runtime.reconcile()
    return await runtime.observe()


async def look_until(
    runtime: KubernetesRuntime,
    condition: Callable[[Mapping[str, AttemptStatus]], bool],
    *,
    refusals: list[str] | None = None,
) -> Mapping[str, AttemptStatus]:
    """Return the statuses once they satisfy the condition.

    `refusals`: the errors that may occur meanwhile, if any.
    """
    give_up_at, seen = time.monotonic() + LONG_S, None
    while time.monotonic() < give_up_at:
        try:
            seen = await look(runtime)
        except RuntimeLost as error:
            if refusals is None:
                raise
            refusals.append(str(error))
            await asyncio.sleep(0.01)
            continue
        if condition(seen):
            return seen
        await runtime.wait(0.05, log_growth=False)
    raise AssertionError(f"never so; last seen: {seen}, refusals {refusals}")


async def refusal_of(call: Coroutine[Any, Any, object]) -> str:
    """Return the error about an unreachable cluster or store; "" if there is none."""
    try:
        await call
    except (RuntimeLost, Unavailable) as error:
        return str(error)
    return ""


def running(*names: str) -> Callable[[Mapping[str, AttemptStatus]], bool]:
    return lambda seen: all(name in seen and seen[name].start_time is not None for name in names)


def ended(*names: str) -> Callable[[Mapping[str, AttemptStatus]], bool]:
    return lambda seen: all(name in seen and seen[name].exit is not None for name in names)
