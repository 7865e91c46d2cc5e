"""The contract of every runtime: subclass `RuntimeContract` and provide a `testbed` fixture.

Nothing here depends on processes: a `Script` describes an attempt, and the testbed runs it. Time
passes only in `Runtime.wait`, so that a runtime in virtual time can fulfill the same contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import pytest

from controller.core.attempt import AttemptStatus, Exit
from controller.core.model import FailureClass
from controller.runtime.protocol import CannotStart, Launch, Runtime


@dataclass(frozen=True, slots=True)
class Script:
    """The behavior of an attempt: its lines, its duration (None: forever), and its exit code."""

    lines: tuple[str, ...] = ()
    lasts_s: float | None = 0.0
    code: int = 0
    ignores_sigterm: bool = False
    command_exists: bool = True


FOREVER = Script(lasts_s=None)
STUBBORN = Script(lines=("deaf",), lasts_s=None, ignores_sigterm=True)


class Testbed(Protocol):
    """The environment of one experiment's runtime, with operations from outside of the runtime."""

    async def open(self) -> Runtime:
        """Open a runtime like a new controller."""

    async def crash(self, runtime: Runtime) -> None:
        """Simulate the death of the controller that has this runtime."""

    async def leave(self) -> None:
        """Clean up at the end of a test, so that nothing is left on its loop."""

    async def vanish(self, name: str) -> None:
        """Delete all traces of an ended attempt while no runtime is open."""

    def launch(self, name: str, script: Script) -> Launch: ...

    def runs(self, name: str) -> int:
        """Return how often the attempt's command was actually run."""


Claim = Callable[..., Awaitable[None]]


def on_a_loop(claim: Claim) -> Callable[..., None]:
    """Run a coroutine test in a loop, because pytest calls plain functions."""

    @functools.wraps(claim)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(_in(kwargs["testbed"], claim, args, kwargs))

    return run


async def _in(testbed: Testbed, claim: Claim, args: Any, kwargs: Any) -> None:
    try:
        await claim(*args, **kwargs)
    finally:
        await testbed.leave()


async def look(runtime: Runtime) -> Mapping[str, AttemptStatus]:
    """Reconcile and observe, as the loop does in one turn."""
    await runtime.reconcile()
    return await runtime.observe()


async def seen(
    runtime: Runtime, name: str, condition: Callable[[AttemptStatus], bool]
) -> AttemptStatus:
    """Return the attempt's status once it satisfies the condition. Fails after 400 waits."""
    status = None
    for _ in range(400):
        status = (await look(runtime)).get(name)
        if status is not None and condition(status):
            return status
        await runtime.wait(0.05, log_growth=False)
    raise AssertionError(f"{name} never looked so; last seen: {status}")


async def ended(runtime: Runtime, name: str) -> Exit:
    """Return how the attempt ended, without the time, for comparison."""
    exit = (await seen(runtime, name, lambda status: status.exit is not None)).exit
    assert exit is not None
    assert exit.time.tzinfo is not None
    return exit


def alike(exit: Exit, **fields: Any) -> bool:
    return exit == Exit(time=exit.time, **fields)


def killed(exit: Exit, number: int, **fields: Any) -> bool:
    """Return whether the signal killed it. A container's exit code is 128 plus the signal."""
    return alike(exit, signal=number, **fields) or alike(exit, code=128 + number, **fields)


async def started(runtime: Runtime, name: str) -> None:
    await seen(runtime, name, lambda status: status.start_time is not None)


async def printed(runtime: Runtime, name: str, text: bytes) -> None:
    for _ in range(400):
        if text in await runtime.read_log(name, 0):
            return
        await look(runtime)
        await runtime.wait(0.05, log_growth=True)
    raise AssertionError(f"{name} never printed {text!r}")


async def _refusal(runtime: Runtime, launch: Launch) -> FailureClass | None:
    """Return the refusal, raised by `start` or shown in the status."""
    try:
        await runtime.start(launch)
    except CannotStart as error:
        return error.failure_class
    return (await ended(runtime, launch.name)).failure_class


class RuntimeContract:
    @pytest.fixture
    def testbed(self) -> Testbed:
        raise NotImplementedError

    @on_a_loop
    async def test_an_attempt_runs_and_its_exit_code_is_learned(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        assert await look(runtime) == {}
        await runtime.start(testbed.launch("a", Script(lasts_s=0.05, code=42)))
        assert alike(await ended(runtime, "a"), code=42)
        assert testbed.runs("a") == 1
        await runtime.close()

    @on_a_loop
    async def test_a_running_attempt_is_shown_with_its_start_and_no_exit(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", FOREVER))
        status = await seen(runtime, "a", lambda status: status.start_time is not None)
        assert status.start_time is not None
        assert (status.name, status.exit, status.start_time.tzinfo is None) == ("a", None, False)
        assert status.start_time <= runtime.now()
        await runtime.remove("a")
        await runtime.close()

    @on_a_loop
    async def test_starting_twice_runs_once(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        launch = testbed.launch("a", Script(lasts_s=0.05))
        await asyncio.gather(runtime.start(launch), runtime.start(launch))
        await ended(runtime, "a")
        await runtime.start(launch)
        assert alike(await ended(runtime, "a"), code=0)
        assert testbed.runs("a") == 1
        await runtime.close()

    @on_a_loop
    async def test_starting_again_after_a_crash_runs_once(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        launch = testbed.launch("a", Script(lasts_s=0.3, code=3))
        await runtime.start(launch)
        await testbed.crash(runtime)
        runtime = await testbed.open()
        await runtime.start(launch)
        assert alike(await ended(runtime, "a"), code=3)
        assert testbed.runs("a") == 1
        await runtime.close()

    @on_a_loop
    async def test_a_removed_attempt_is_forgotten_for_good_and_never_starts_again(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        launch = testbed.launch("a", Script())
        await runtime.start(launch)
        await ended(runtime, "a")
        await runtime.remove("a")
        await runtime.remove("a")
        assert await look(runtime) == {}
        await runtime.close()
        runtime = await testbed.open()
        with contextlib.suppress(CannotStart):  # where its place knows that it is gone
            await runtime.start(launch)
        assert await look(runtime) == {}
        assert testbed.runs("a") == 1
        await runtime.close()

    @on_a_loop
    async def test_an_attempt_beyond_the_slots_waits_until_another_has_ended(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(replace(testbed.launch("a", Script(lasts_s=0.3)), slots=1))
        await runtime.start(replace(testbed.launch("b", Script(code=3)), slots=1))
        await runtime.start(replace(testbed.launch("c", Script(code=4)), slots=1))
        waiting = (await look(runtime))["b"]
        assert (waiting.start_time, waiting.exit, waiting.waiting) == (None, None, "")
        assert [
            alike(await ended(runtime, name), code=code)
            for name, code in (("a", 0), ("b", 3), ("c", 4))
        ]
        assert [testbed.runs(name) for name in "abc"] == [1, 1, 1]
        await runtime.close()

    @on_a_loop
    async def test_an_attempt_that_waits_for_a_slot_can_be_withdrawn(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(replace(testbed.launch("a", FOREVER), slots=1))
        await started(runtime, "a")
        for name in "bc":
            await runtime.start(replace(testbed.launch(name, Script()), slots=1))
        await runtime.stop("b", grace_s=60)
        await runtime.remove("c")
        await runtime.stop("a", grace_s=0)
        await ended(runtime, "a")
        assert list(await look(runtime)) == ["a"]
        await runtime.start(replace(testbed.launch("b", Script(code=5)), slots=1))
        assert alike(await ended(runtime, "b"), code=5)
        await runtime.remove("a")
        await runtime.close()

    @on_a_loop
    async def test_an_attempt_that_waits_for_a_slot_keeps_waiting_for_the_next_controller(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(replace(testbed.launch("a", Script(lasts_s=0.5)), slots=1))
        launch = replace(testbed.launch("b", Script(code=3)), slots=1)
        await runtime.start(launch)
        await testbed.crash(runtime)
        runtime = await testbed.open()
        await runtime.start(launch)
        assert alike(await ended(runtime, "b"), code=3)
        assert testbed.runs("b") == 1
        await runtime.close()

    @on_a_loop
    async def test_removing_a_running_attempt_kills_it_first(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", STUBBORN))
        await runtime.remove("a")
        assert await look(runtime) == {}
        await runtime.close()

    @on_a_loop
    async def test_a_running_attempt_is_adopted_and_its_exit_code_learned(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", Script(lasts_s=0.5, code=7)))
        await testbed.crash(runtime)
        runtime = await testbed.open()
        assert (await look(runtime))["a"].exit is None
        assert alike(await ended(runtime, "a"), code=7)
        await runtime.close()

    @on_a_loop
    async def test_an_end_without_a_controller_is_learned_later(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", Script(lasts_s=0.2, code=7)))
        await runtime.start(testbed.launch("clock", Script(lasts_s=0.5)))
        await testbed.crash(runtime)
        runtime = await testbed.open()
        await ended(runtime, "clock")
        await runtime.close()
        runtime = await testbed.open()
        assert alike(await ended(runtime, "a"), code=7)
        await runtime.close()

    @on_a_loop
    async def test_closing_does_not_end_running_attempts(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", Script(lasts_s=0.3, code=5)))
        await runtime.close()
        runtime = await testbed.open()
        assert alike(await ended(runtime, "a"), code=5)
        await runtime.close()

    @on_a_loop
    async def test_stop_asks_with_sigterm(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", FOREVER))
        await started(runtime, "a")
        await runtime.stop("a", grace_s=60)
        assert killed(await ended(runtime, "a"), 15, stopped=True)
        await runtime.close()

    @on_a_loop
    async def test_an_attempt_that_ignores_sigterm_is_killed_after_its_grace_period(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", STUBBORN))
        await printed(runtime, "a", b"deaf")
        await runtime.stop("a", grace_s=1)
        assert (await look(runtime))["a"].exit is None
        assert killed(await ended(runtime, "a"), 9, stopped=True)
        await runtime.close()

    @on_a_loop
    async def test_a_second_stop_shortens_the_grace_and_never_lengthens_it(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        for name in ("shortened", "kept"):
            await runtime.start(testbed.launch(name, STUBBORN))
            await printed(runtime, name, b"deaf")
        await runtime.stop("shortened", grace_s=600)
        await runtime.stop("shortened", grace_s=0)
        await runtime.stop("kept", grace_s=0.1)
        await runtime.stop("kept", grace_s=600)
        for name in ("shortened", "kept"):
            assert killed(await ended(runtime, name), 9, stopped=True)
        await runtime.close()

    @on_a_loop
    async def test_an_attempt_that_ended_before_it_was_stopped_was_not_stopped(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", Script(code=1)))
        await ended(runtime, "a")
        await runtime.stop("a", grace_s=0)
        assert alike(await ended(runtime, "a"), code=1)
        await runtime.close()

    @on_a_loop
    async def test_an_attempt_that_takes_too_long_is_ended_and_says_so(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        await runtime.start(replace(testbed.launch("a", FOREVER), timeout_s=0.2))
        await runtime.start(replace(testbed.launch("deaf", STUBBORN), timeout_s=0.5, grace_s=0.1))
        assert killed(await ended(runtime, "a"), 15, timed_out=True)
        assert killed(await ended(runtime, "deaf"), 9, timed_out=True)
        await runtime.close()

    @on_a_loop
    async def test_a_timeout_holds_without_a_controller(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(replace(testbed.launch("a", FOREVER), timeout_s=0.3))
        await testbed.crash(runtime)
        runtime = await testbed.open()
        assert killed(await ended(runtime, "a"), 15, timed_out=True)
        await runtime.close()

    @on_a_loop
    async def test_a_command_that_cannot_start_leaves_nothing_and_can_start_once_fixed(
        self, testbed: Testbed
    ) -> None:
        runtime = await testbed.open()
        assert (
            await _refusal(runtime, testbed.launch("a", Script(command_exists=False)))
            is FailureClass.CONFIGURATION
        )
        await testbed.crash(runtime)
        runtime = await testbed.open()
        assert await look(runtime) == {}
        await runtime.start(testbed.launch("a", Script()))
        assert alike(await ended(runtime, "a"), code=0)
        await runtime.close()

    @on_a_loop
    async def test_a_vanished_attempt_is_missing(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        for name in ("a", "b"):
            await runtime.start(testbed.launch(name, Script()))
            await ended(runtime, name)
        await runtime.close()
        await testbed.vanish("a")
        runtime = await testbed.open()
        assert list(await look(runtime)) == ["b"]
        await runtime.close()

    @on_a_loop
    async def test_unknown_names_are_not_errors(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.stop("nobody", grace_s=1)
        await runtime.remove("nobody")
        assert await runtime.read_log("nobody", 0) == b""
        await runtime.close()

    @on_a_loop
    async def test_a_log_is_read_in_pieces_also_after_the_end(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", Script(lines=("first", "second"))))
        await ended(runtime, "a")
        assert await runtime.read_log("a", 0) == b"first\nsecond\n"
        assert await runtime.read_log("a", 6, limit=3) == b"sec"
        assert await runtime.read_log("a", 13) == b""
        assert await runtime.read_log("a", 1000) == b""
        await runtime.close()

    @on_a_loop
    async def test_log_growth_ends_a_wait(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await runtime.start(testbed.launch("a", Script(lines=("hello",), lasts_s=None)))
        log = b""
        for _ in range(10):  # each may return early; none may last
            await look(runtime)
            if log := await runtime.read_log("a", 0):
                break
            await runtime.wait(600, log_growth=True)
        assert log == b"hello\n"
        await runtime.remove("a")
        await runtime.close()

    @on_a_loop
    async def test_an_end_ends_a_wait_that_began_later(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        for name, lasts_s in (("before", 0.0), ("during", 0.5)):
            await look(runtime)
            await runtime.start(testbed.launch(name, Script(lasts_s=lasts_s)))
            for _ in range(10):
                await runtime.wait(600, log_growth=False)
                if (await look(runtime))[name].exit is not None:
                    break
            assert (await look(runtime))[name].exit is not None
        await runtime.close()

    @on_a_loop
    async def test_a_wait_ends_at_its_timeout(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        await look(runtime)
        await runtime.wait(0.05, log_growth=False)
        await runtime.wait(0.05, log_growth=True)
        await runtime.wait(0, log_growth=True)
        await runtime.close()

    @on_a_loop
    async def test_64_attempts_start_at_once(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        names = [f"a-{number}" for number in range(64)]
        await asyncio.gather(
            *(runtime.start(testbed.launch(name, Script(code=1))) for name in names)
        )
        assert [alike(await ended(runtime, name), code=1) for name in names] == [True] * 64
        assert [testbed.runs(name) for name in names] == [1] * 64
        await asyncio.gather(*(runtime.remove(name) for name in names))
        assert await look(runtime) == {}
        await runtime.close()

    @on_a_loop
    async def test_without_gpus_the_runtime_has_no_limit(self, testbed: Testbed) -> None:
        runtime = await testbed.open()
        assert runtime.slots(0, workers=2) is None
        await runtime.close()
