"""Experiments of three tenants under faults, all drawn from a seed.

Eight experiments run on the small API server: with failures, retries, pruning, a target, an edit, a
suspension and a deletion. Meanwhile faults happen at random moments: after a while, or while the
server handles a write. Controllers that have ended start again, as pods do. At the end `audit`
compares the journal with what the cluster saw.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import time
import zlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from controller.runtime.kubernetes.labels import ATTEMPT, EXPERIMENT, TRIAL
from tests.kube.audit import audit
from tests.kube.fake_kubelet import Script
from tests.kube.operated import experiment
from tests.kube.replicas import REAL, Replica, Replicas, installed
from tests.kube.small_cluster import eventually
from tests.postgres import Postgres

Raw = dict[str, Any]
NAMESPACES = ("user1", "user2", "user3")
_STEPS = 4
_LONGEST_S = 3.0  # of a trial, and before a fault
_MOST_WRITES = 15  # before a fault
_RESTART_S = 3.0  # of a pod, at most
_WITHIN_S = 500.0
_LOOK_S = 0.05
_WRITES = ("POST", "PATCH", "DELETE")
# Experiments by name: what their specs have besides what all have.
EXPERIMENTS: Mapping[str, Mapping[str, Raw]] = {
    "plain": {},
    "retried": {"trial": {"retries": {"userError": 2}}},
    "failing": {"budget": {"failedTrials": 1000}},
    "pruned": {"pruning": {"name": "median", "warmupSteps": 1, "minTrials": 3}},
    "target": {"objective": {"target": 0.97}},
    "edited": {},
    "suspended": {},
    "deleted": {},
}
# What a controller may write as it ends.
_GAVE_WAY = "another controller holds it now"


def script_of(job: Raw) -> Script:
    """Return how a Job behaves. That depends on its experiment, trial and attempt only."""
    labels = job["metadata"]["labels"]
    name, trial, attempt = labels[EXPERIMENT], int(labels[TRIAL]), int(labels[ATTEMPT])
    value = score(name, trial, attempt)
    fails = (name == "retried" and attempt <= trial % 3) or (name == "failing" and trial % 4 == 3)
    return Script(
        lines=tuple(f"step={step} score={value}" for step in range(1, _STEPS + 1)),
        seconds=random.Random(f"{name} {trial} {attempt}").uniform(0.5, _LONGEST_S),
        exit_code=1 if fails else 0,
    )


def score(name: str, trial: int, attempt: int) -> float:
    """Return what an attempt prints: each has another value, so that none passes for another."""
    return zlib.crc32(f"{name} {trial} {attempt}".encode()) % 9973 / 9973


class Scenario:
    """The experiments, and controllers that start again when they have ended.

    postgres: the primary, and the standby to promote.
    """

    def __init__(
        self, installation: Replicas, seed: int, program: str, postgres: Sequence[Postgres]
    ) -> None:
        self.installation = installation
        self.api = installation.api
        self.draw = random.Random(seed)
        self.postgres = postgres
        self._program = program
        self._killed: set[int] = set()  # processes
        self._unforeseen = ""  # how a controller has ended
        self.namespaces = {
            name: NAMESPACES[n % len(NAMESPACES)] for n, name in enumerate(EXPERIMENTS)
        }

    def apply(self, trials: int) -> None:
        for namespace in NAMESPACES:
            self.api.put("namespaces", {"metadata": {"name": namespace}})
        for name, extra in EXPERIMENTS.items():
            resource = experiment(name, parallelism=3, canary="0s", budget={"trials": trials})
            resource["metadata"]["namespace"] = self.namespaces[name]
            for key, value in extra.items():
                resource["spec"][key] = resource["spec"].get(key, {}) | value
            self.api.put("experiments", resource)

    async def change(self) -> None:
        """Edit, suspend and delete three experiments, each at a moment of its own."""
        await asyncio.gather(self._edit(), self._suspend(), self._delete())

    async def _edit(self) -> None:
        await self._pause()
        self._revise("edited", parallelism=4)
        await self._pause()
        budget = self._resource("edited")["spec"]["budget"]
        self._revise("edited", budget=budget | {"trials": budget["trials"] + 3})

    async def _suspend(self) -> None:
        await self._pause()
        self._revise("suspended", suspend=True)
        await self._pause()
        self._revise("suspended", suspend=False)

    async def _delete(self) -> None:
        await self._pause()
        about = self._resource("deleted")["metadata"]
        where = "experiments", about["namespace"], "deleted"
        if not about.get("finalizers"):
            self.api.remove(*where)
            return
        now = "2026-01-01T00:00:00Z"
        self.api.change(*where, lambda each: each["metadata"].update(deletionTimestamp=now))

    async def _pause(self) -> None:
        await asyncio.sleep(self.draw.uniform(1, 2 * _LONGEST_S))

    def _revise(self, name: str, **spec: object) -> None:
        def revised(resource: Raw) -> None:
            resource["spec"].update(spec)
            resource["metadata"]["generation"] += 1

        self.api.change("experiments", self.namespaces[name], name, revised)

    def _resource(self, name: str) -> Raw:
        return self.api.get("experiments", self.namespaces[name], name)

    @property
    def states(self) -> dict[str, str]:
        """Return the states of the experiments that exist."""
        found = self.api.all("experiments")
        return {
            each["metadata"]["name"]: (each.get("status") or {}).get("state", "") for each in found
        }

    @property
    def has_ended(self) -> bool:
        states = self.states
        return "deleted" not in states and set(states.values()) == {"succeeded"}

    async def run(self, faults: Sequence[Fault]) -> None:
        """Return when all experiments have ended."""
        self.apply(trials=5 + 7 * len(faults))
        async with asyncio.TaskGroup() as tasks:
            supervising = tasks.create_task(self.supervise())
            changing = tasks.create_task(self.change())
            await self.until(lambda: self.installation.started.total() > len(EXPERIMENTS))
            for fault in faults:
                await fault(self)
                await self.until_it_goes_on()
            await changing
            await self.until(lambda: self.has_ended)
            supervising.cancel()

    # Controllers

    @property
    def leader(self) -> Replica:
        holder = self.installation.holder
        return next(each for each in self.installation.replicas if each.name == holder)

    @property
    def standbys(self) -> list[Replica]:
        leader = self.leader
        return [each for each in self.installation.replicas if each is not leader]

    async def supervise(self) -> None:
        """Start controllers again when they have ended, until this is cancelled."""
        await asyncio.gather(*map(self._supervise, self.installation.replicas))

    async def _supervise(self, replica: Replica) -> None:
        draw = random.Random(self.draw.random())
        while True:
            await replica.ended()
            is_known = replica.pid in self._killed or _GAVE_WAY in replica.log[-2000:]
            if not is_known and not self._unforeseen:
                self._unforeseen = f"{replica.name} has ended: {replica.log[-2000:]}"
            await asyncio.sleep(draw.uniform(0, _RESTART_S))
            await replica.start(self.api, self.installation.storage, self._program)

    def kill(self, *replicas: Replica) -> None:
        for replica in replicas:
            self._killed.add(replica.pid)
            # It may have ended by itself.
            with contextlib.suppress(ProcessLookupError):
                replica.signal(signal.SIGKILL)

    # Time

    async def at_a_moment(self, act: Callable[[], None]) -> None:
        """Act after a while, or while the API server handles one of the next writes."""
        if self.draw.random() < 0.5:
            await asyncio.sleep(self.draw.uniform(0, _LONGEST_S))
            act()
            return
        left = self.draw.randint(1, _MOST_WRITES)
        done = asyncio.Event()

        def heard(method: str, path: str) -> None:
            nonlocal left
            left -= method in _WRITES and "/leases/" not in path
            if left <= 0 and not done.is_set():
                act()
                done.set()

        self.api.listener = heard
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LONGEST_S):
                await done.wait()
        self.api.listener = lambda method, path: None
        if not done.is_set():
            act()

    async def until(self, condition: Callable[[], object]) -> None:
        give_up_s = time.monotonic() + _WITHIN_S
        while not condition():
            assert not self._unforeseen, self._unforeseen
            assert time.monotonic() < give_up_s, self.describe()
            await asyncio.sleep(_LOOK_S)

    async def until_another_leads(self, before: str) -> None:
        await self.until(lambda: self.installation.holder not in ("", before))

    async def until_it_goes_on(self) -> None:
        """Return once a Job was created, or nothing is left to do."""
        created = self.installation.started.total()
        await self.until(lambda: self.installation.started.total() > created or self.has_ended)

    def describe(self) -> str:
        replicas = self.installation.replicas
        logs = "\n".join(f"{each.name}:\n{each.log[-6000:]}" for each in replicas)
        return f"held by {self.installation.holder}; {self.states}\n{logs}"


# Faults

Fault: TypeAlias = Callable[[Scenario], Awaitable[None]]


async def any_killed(scenario: Scenario) -> None:
    """Kill the leader mostly; else the standby, or both."""
    chosen = scenario.draw.choices(("leader", "standby", "both"), (8, 1, 1))[0]

    def kill() -> None:
        match chosen:
            case "leader":
                scenario.kill(scenario.leader)
            case "standby":
                scenario.kill(*scenario.standbys)
            case "both":
                scenario.kill(*scenario.installation.replicas)

    await scenario.at_a_moment(kill)


async def leader_frozen(scenario: Scenario, *, for_s: float) -> None:
    leader = scenario.leader
    await scenario.at_a_moment(lambda: leader.signal(signal.SIGSTOP))
    await asyncio.sleep(for_s)
    if scenario.standbys:
        await scenario.until_another_leads(leader.name)
    leader.signal(signal.SIGCONT)


async def api_away(scenario: Scenario, *, for_s: float) -> None:
    """Let the API server refuse connections, accept them without an answer, or answer 503."""
    api = scenario.api
    await asyncio.sleep(scenario.draw.uniform(0, _LONGEST_S))
    match scenario.draw.choice(("refuses", "is silent", "fails")):
        case "refuses":
            await api.stop()
            await asyncio.sleep(for_s)
            await api.start()
        case "is silent":
            api.silent = True
            await asyncio.sleep(for_s)
            api.silent = False
        case "fails":
            api.answer(503, times=100_000)
            await asyncio.sleep(for_s)
            api.mend()


async def leader_cut_off(scenario: Scenario) -> None:
    """Let the leader's packets to the API server or to the database vanish, until another leads.

    Connections are accepted without an answer, or are not accepted.
    """
    leader = scenario.leader
    drops = scenario.draw.random() < 0.5
    wires = [leader.api] if scenario.draw.random() < 0.5 else leader.databases

    def cut() -> None:
        for wire in wires:
            wire.cut(drops=drops)

    await scenario.at_a_moment(cut)
    await scenario.until_another_leads(leader.name)
    await asyncio.sleep(scenario.draw.uniform(0, 2 * _LONGEST_S))
    for wire in wires:
        wire.mend()


async def database_failed_over(scenario: Scenario) -> None:
    primary, standby = scenario.postgres
    await asyncio.sleep(scenario.draw.uniform(0, _LONGEST_S))
    await asyncio.to_thread(primary.stop)
    await asyncio.sleep(scenario.draw.uniform(0, _LONGEST_S))
    await asyncio.to_thread(standby.promote)


async def commits_unanswered(scenario: Scenario, *, for_s: float) -> None:
    """Let connections to the database break after each third COMMIT, before its answer."""
    wires = [wire for each in scenario.installation.replicas for wire in each.databases]
    for wire in wires:
        wire.loses_commits = True
    await asyncio.sleep(for_s)
    await scenario.until(lambda: any(wire.commits_lost for wire in wires))
    for wire in wires:
        wire.loses_commits = False


# Running it


async def hold(
    storage: str,
    folder: Path,
    faults: Sequence[Fault],
    *,
    seed: int,
    replicas: int = 2,
    program: str = REAL,
    postgres: Sequence[Postgres] = (),
) -> None:
    """Run the scenario of a seed, with a fault after the other, and check what must hold.

    postgres: the primary, and the standby to promote.
    """
    try:
        async with installed(storage, folder, script_of) as installation:
            for number in range(replicas):
                await installation.start(f"replica-{number}", program)
            scenario = Scenario(installation, seed, program, postgres)
            await scenario.run(faults)
            with audit(installation, score) as audited:
                for name, namespace in scenario.namespaces.items():
                    if name == "deleted":
                        audited.check_deleted(namespace, name)
                    else:
                        audited.check_ended(namespace, name)
            for replica in installation.replicas:
                assert "this is a bug" not in replica.log, replica.log[-6000:]
        await eventually(lambda: not processes_of(folder))
    except BaseException as error:
        test, _, _ = os.environ.get("PYTEST_CURRENT_TEST", "").partition(" ")
        error.add_note(f"seed {seed}; run it again: pytest '{test}'")
        raise


def processes_of(folder: Path) -> list[str]:
    """Return the command lines of the processes that a controller of this folder has left."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if str(folder).encode() in environ.read_bytes():
                found.append(environ.with_name("cmdline").read_text().replace("\0", " "))
    return found
