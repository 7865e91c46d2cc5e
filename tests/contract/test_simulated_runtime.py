"""The simulated runtime fulfills the same contract as the real ones;
otherwise the simulation would prove nothing.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from controller.runtime.protocol import Launch, Runtime
from controller.runtime.testing import RuntimeContract, Script
from tests.sim import simulated_runtime
from tests.sim.simulated_runtime import SimulatedRuntime, VirtualClock


class SimulatedTestbed:
    """The runtime outlives its controllers; each gets the same one."""

    def __init__(self) -> None:
        self._scripts: dict[str, simulated_runtime.Script] = {}
        self._runtime = SimulatedRuntime(VirtualClock(), lambda launch: self._scripts[launch.name])

    async def open(self) -> Runtime:
        return self._runtime

    async def crash(self, runtime: Runtime) -> None:
        pass

    async def leave(self) -> None:
        pass

    async def vanish(self, name: str) -> None:
        self._runtime.vanish(name)

    def launch(self, name: str, script: Script) -> Launch:
        self._scripts[name] = simulated_runtime.Script(
            lines=tuple((0.0, line) for line in script.lines),
            ends_at=script.lasts_s,
            code=script.code,
            ignores_sigterm=script.ignores_sigterm,
            refused="" if script.command_exists else "command not found",
        )
        here = Path("/")
        return Launch(name, ("true",), {}, here, here)

    def runs(self, name: str) -> int:
        return self._runtime.starts.count(name)


class TestSimulatedRuntime(RuntimeContract):
    @pytest.fixture
    def testbed(self) -> SimulatedTestbed:
        return SimulatedTestbed()
