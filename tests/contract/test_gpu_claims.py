"""GPUs of local attempts: one attempt at a time, across experiments, in turn,
whatever is killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.model import FailureClass
from controller.runtime import processes
from controller.runtime.local import gpu_claims
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.protocol import CannotStart, Launch
from controller.runtime.testing import alike, ended, on_a_loop, printed, seen
from tests.contract.local_testbed import LocalTestbed, eventually, linux_only, local_testbed

SHOW = 'echo "gpu=$CUDA_VISIBLE_DEVICES"; exec sleep 600'


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTestbed]:
    monkeypatch.setenv("TUNER_GPUS", "0,1")
    with local_testbed(tmp_path, monkeypatch) as testbed:
        yield testbed


def showing(testbed: LocalTestbed, name: str, gpu: float = 1, text: str = SHOW) -> Launch:
    return replace(testbed.shell(name, text), gpu=gpu)


async def runs(runtime: LocalRuntime, name: str) -> None:
    await seen(runtime, name, lambda status: status.start_time is not None)


async def waiting(runtime: LocalRuntime, name: str) -> str:
    """Return what the attempt waits for; empty if it runs."""
    status = (await runtime.observe())[name]
    assert (status.waiting == "") is (status.start_time is not None)
    return status.waiting


def claims() -> list[str]:
    """Return the attempts that hold GPUs, of all experiments."""
    return [name for name, _, _ in gpu_claims.holders(os.environ["TUNER_LOCK_DIR"])]


@on_a_loop
async def test_a_gpu_of_one_experiment_is_not_lent_to_another(testbed: LocalTestbed) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    for name in ("a-0", "a-1"):
        await one.start(showing(testbed, name))
    await other.start(showing(other_testbed, "b-0"))
    assert await waiting(other, "b-0") == "needs 1 GPU: GPU 0 is held by a-0, GPU 1 is held by a-1"
    await one.remove("a-1")
    await printed(other, "b-0", b"gpu=1\n")
    assert claims() == ["a-0", "b-0"]
    await asyncio.gather(one.remove("a-0"), other.remove("b-0"))
    assert claims() == []
    assert [path.name for path in Path(os.environ["TUNER_LOCK_DIR"]).iterdir()] == ["gpu.lock"]
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_shares_of_one_gpu_go_to_several_experiments_and_never_beyond_the_whole(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_GPUS", "0")
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    await one.start(showing(testbed, "half", 0.5))
    await other.start(showing(other_testbed, "most", 0.75))
    assert await waiting(other, "most") == "needs 0.75 GPU: GPU 0 is held by half (0.5)"
    await other.stop("most", grace_s=0)
    await other.start(showing(other_testbed, "other-half", 0.5))
    await printed(other, "other-half", b"gpu=0\n")
    await one.start(showing(testbed, "whole"))
    assert (
        await waiting(one, "whole")
        == "needs 1 GPU: GPU 0 is held by half (0.5) and other-half (0.5)"
    )
    await asyncio.gather(one.remove("half"), other.remove("other-half"))
    await printed(one, "whole", b"gpu=0\n")
    await one.remove("whole")
    await asyncio.gather(one.close(), other.close())


@pytest.mark.parametrize("killed", ["the controller", "the supervisor", "both"])
@on_a_loop
async def test_a_trial_keeps_its_gpu_whatever_else_is_killed(
    testbed: LocalTestbed, killed: str
) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(devices=["0"]), await other_testbed.open(devices=["0"])
    await one.start(showing(testbed, "a"))
    await printed(one, "a", b"gpu=0\n")
    trial = testbed.pid("a")
    await other.start(showing(other_testbed, "b"))
    if killed != "the supervisor":
        await testbed.crash(one)
    if killed != "the controller":
        os.kill(testbed.supervisor(), signal.SIGKILL)
    await other.wait(0.6, log_growth=False)  # it looks twice
    assert await waiting(other, "b") == "needs 1 GPU: GPU 0 is held by a"
    assert processes.birth(trial) is not None
    processes.kill(trial)
    await printed(other, "b", b"gpu=0\n")
    await other.remove("b")
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_a_trial_that_closes_all_its_files_keeps_its_gpu(testbed: LocalTestbed) -> None:
    text = "import os, time; os.closerange(3, 256); print('closed', flush=True); time.sleep(600)"
    other_testbed = testbed.another()
    one, other = await testbed.open(devices=["0"]), await other_testbed.open(devices=["0"])
    await one.start(replace(showing(testbed, "a"), command=(sys.executable, "-c", text)))
    await printed(one, "a", b"closed\n")
    await testbed.crash(one)
    os.kill(testbed.supervisor(), signal.SIGKILL)
    await eventually(lambda: processes.birth(testbed.supervisor()) is None)
    await other.start(showing(other_testbed, "b"))
    assert await waiting(other, "b") == "needs 1 GPU: GPU 0 is held by a"
    processes.kill(testbed.pid("a"))
    await printed(other, "b", b"gpu=0\n")
    await other.remove("b")
    await other.close()


@linux_only
@on_a_loop
async def test_child_processes_of_a_killed_trial_keep_its_gpu_until_they_end_or_are_killed(
    testbed: LocalTestbed,
) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(devices=["0"]), await other_testbed.open(devices=["0"])
    await one.start(showing(testbed, "a", text="sleep 600 & echo $!; wait"))
    await seen(
        one, "a", lambda _: (testbed.directory("a") / "log.txt").read_bytes().endswith(b"\n")
    )
    await testbed.crash(one)
    os.kill(testbed.supervisor(), signal.SIGKILL)
    await eventually(lambda: processes.birth(testbed.supervisor()) is None)
    processes.kill(testbed.pid("a"))
    await other.start(showing(other_testbed, "b"))
    assert await waiting(other, "b") == "needs 1 GPU: GPU 0 is held by a"
    one = await testbed.open(devices=["0"])
    assert alike(await ended(one, "a"), unknown=True)
    await printed(other, "b", b"gpu=0\n")
    await other.remove("b")
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_a_supervisor_that_takes_over_gives_the_gpu_back(testbed: LocalTestbed) -> None:
    runtime = await testbed.open(devices=["0"])
    await runtime.start(showing(testbed, "a"))
    await runs(runtime, "a")
    os.kill(testbed.supervisor(), signal.SIGKILL)
    await runtime.start(showing(testbed, "b"))
    assert await waiting(runtime, "b") == "needs 1 GPU: GPU 0 is held by a"
    await runtime.stop("a", grace_s=0)
    await printed(runtime, "b", b"gpu=0\n")
    await runtime.remove("b")
    assert claims() == []
    await runtime.close()


@linux_only
@on_a_loop
async def test_a_process_that_escapes_from_an_ended_trial_holds_no_gpu(
    testbed: LocalTestbed,
) -> None:
    escape = 'setsid env -i "TUNER_TEST_RUN=$TUNER_TEST_RUN" sleep 600 & echo away'
    runtime = await testbed.open(devices=["0"])
    await runtime.start(showing(testbed, "a", text=escape))
    await ended(runtime, "a")
    await runtime.start(showing(testbed, "b"))
    await printed(runtime, "b", b"gpu=0\n")
    await runtime.remove("b")
    await runtime.close()


@on_a_loop
async def test_a_trial_takes_all_of_its_gpus_or_none_and_none_overtakes_it(
    testbed: LocalTestbed,
) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    await one.start(showing(testbed, "first"))
    await other.start(showing(other_testbed, "pair", 2))
    await one.start(showing(testbed, "late"))
    assert await waiting(other, "pair") == "needs 2 GPUs: GPU 0 is held by first"
    assert await waiting(one, "late") == "needs 1 GPU: GPU 0 is held by first, first in line: pair"
    await one.remove("first")
    await printed(other, "pair", b"gpu=0,1\n")
    assert claims() == ["pair"]
    await other.remove("pair")
    await printed(one, "late", b"gpu=0\n")
    await one.remove("late")
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_two_experiments_that_need_all_gpus_take_turns(testbed: LocalTestbed) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    pairs = [(one, testbed, f"a-{n}") for n in range(4)] + [
        (other, other_testbed, f"b-{n}") for n in range(4)
    ]
    await asyncio.gather(
        *(runtime.start(showing(at, name, 2, "exit 5")) for runtime, at, name in pairs)
    )
    for runtime, _, name in pairs:
        assert alike(await ended(runtime, name), code=5)
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_a_frozen_waiting_supervisor_does_not_block_others(testbed: LocalTestbed) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    await one.start(showing(testbed, "a"))
    await other.start(showing(other_testbed, "pair", 2))
    os.kill(other_testbed.supervisor(), signal.SIGSTOP)
    long_ago = time.time() - 60
    oldest_first = sorted(Path(os.environ["TUNER_LOCK_DIR"]).glob("gpu-*"))
    os.utime(oldest_first[-1], (long_ago, long_ago))
    await one.start(showing(testbed, "late"))
    await printed(one, "late", b"gpu=1\n")
    os.kill(other_testbed.supervisor(), signal.SIGCONT)
    await other.stop("pair", grace_s=0)
    await asyncio.gather(*(one.remove(name) for name in ("a", "late")))
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_a_waiting_trial_that_is_withdrawn_lets_the_next_one_begin(
    testbed: LocalTestbed,
) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    await one.start(showing(testbed, "a"))
    await one.start(showing(testbed, "pair", 2))
    await other.start(showing(other_testbed, "late"))
    assert await waiting(other, "late")
    await one.stop("pair", grace_s=30)
    assert "pair" not in await one.observe()
    await printed(other, "late", b"gpu=1\n")
    await asyncio.gather(one.remove("a"), other.remove("late"))
    await asyncio.gather(one.close(), other.close())


@on_a_loop
async def test_a_waiting_trial_of_a_controller_that_is_gone_gives_up_its_place(
    testbed: LocalTestbed,
) -> None:
    other_testbed = testbed.another()
    one, other = await testbed.open(), await other_testbed.open()
    await one.start(showing(testbed, "a", 2))
    await other.start(showing(other_testbed, "b"))
    await other_testbed.crash(other)
    await eventually(lambda: processes.birth(other_testbed.supervisor()) is None)
    await one.start(showing(testbed, "late", 2))
    await one.remove("a")
    await printed(one, "late", b"gpu=0,1\n")
    await one.remove("late")
    await one.close()


@on_a_loop
async def test_a_trial_that_cannot_be_run_gives_its_gpu_back(testbed: LocalTestbed) -> None:
    runtime = await testbed.open(devices=["0"])
    with pytest.raises(CannotStart, match="command not found"):
        await runtime.start(replace(testbed.shell("a", "", program="pyton3"), gpu=1))
    await runtime.start(showing(testbed, "b"))
    await runtime.start(replace(testbed.shell("c", "", program="pyton3"), gpu=1))
    await runtime.remove("b")
    assert (await ended(runtime, "c")).failure_class is FailureClass.CONFIGURATION
    assert claims() == []
    await runtime.close()


@on_a_loop
async def test_an_experiment_uses_only_the_gpus_that_it_names(testbed: LocalTestbed) -> None:
    runtime = await testbed.open(devices=["1", "7"])
    assert runtime.slots(1, workers=1) == 1
    await runtime.start(showing(testbed, "a"))
    await printed(runtime, "a", b"gpu=1\n")
    with pytest.raises(CannotStart, match=r"asks for more GPUs \(2\) than this machine offers"):
        await runtime.start(showing(testbed, "b", 2))
    await runtime.remove("a")
    await runtime.close()


@on_a_loop
async def test_a_folder_for_claims_that_others_can_enter_is_refused_with_the_cure(
    testbed: LocalTestbed,
) -> None:
    folder = Path(os.environ["TUNER_LOCK_DIR"])
    folder.mkdir(mode=0o755)
    runtime = await testbed.open()
    with pytest.raises(
        CannotStart, match=f"{folder} must be a folder that only you can enter.*set TUNER_LOCK_DIR"
    ) as no:
        await runtime.start(showing(testbed, "a"))
    assert no.value.failure_class is FailureClass.CONFIGURATION
    await runtime.close()


@on_a_loop
async def test_a_claim_that_cannot_be_read_keeps_all_waiting_while_it_is_held_and_is_dropped_after(
    testbed: LocalTestbed,
) -> None:
    folder = Path(os.environ["TUNER_LOCK_DIR"])
    folder.mkdir(mode=0o700)
    (folder / "gpu-1").write_text("{}")
    (folder / "gpu-2").write_text('{"name": "cut sho')
    runtime = await testbed.open()
    with (folder / "gpu-3").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        await runtime.start(showing(testbed, "a"))
        assert (
            await waiting(runtime, "a") == f"needs 1 GPU: the claims in {folder} are being changed"
        )
    await printed(runtime, "a", b"gpu=0\n")
    await runtime.remove("a")
    assert [path.name for path in folder.iterdir()] == ["gpu.lock"]
    await runtime.close()


@on_a_loop
async def test_a_frozen_process_that_decides_about_gpus_stops_no_other_trial(
    testbed: LocalTestbed,
) -> None:
    folder = Path(os.environ["TUNER_LOCK_DIR"])
    folder.mkdir(mode=0o700)
    runtime = await testbed.open()
    with (folder / "gpu.lock").open("w") as deciding:
        fcntl.flock(deciding, fcntl.LOCK_EX)
        await runtime.start(showing(testbed, "a"))
        assert (
            await waiting(runtime, "a") == f"needs 1 GPU: the claims in {folder} are being changed"
        )
        await runtime.start(testbed.shell("without", "exit 4"))
        assert alike(await ended(runtime, "without"), code=4)
    await printed(runtime, "a", b"gpu=0\n")
    await runtime.remove("a")
    await runtime.close()


CLASHES = """
held=$(echo "$CUDA_VISIBLE_DEVICES" | tr , ' ')
for gpu in $held; do mkdir gpu-$gpu || echo "$TUNER_TRIAL_NAME $gpu" >> clashes; done
sleep 0.05
for gpu in $held; do rmdir gpu-$gpu; done
exit 3
"""


@on_a_loop
async def test_supervisors_killed_at_any_moment_never_lend_a_gpu_twice(
    testbed: LocalTestbed,
) -> None:
    moments = random.Random(11)
    testbeds = [testbed, testbed.another()]
    runtimes = [await each.open() for each in testbeds]
    names = [f"{letter}-{n}" for letter in "ab" for n in range(14)]

    def at(name: str) -> tuple[LocalRuntime, LocalTestbed]:
        which = "ab".index(name[0])
        return runtimes[which], testbeds[which]

    async def run(name: str) -> None:
        runtime, where = at(name)
        launch = replace(
            showing(where, name, 1 + int(name[2:]) % 2, CLASHES), working_directory=testbed.folder
        )
        while True:
            await runtime.start(launch)  # again, as the controller does with what nobody has seen
            status = (await runtime.observe()).get(name)
            if status is not None and status.start_time is not None:
                break
            await asyncio.sleep(0.05)
        exit = await ended(runtime, name)
        assert exit.code == 3 or exit.unknown

    async def kill_supervisors() -> None:
        for _ in range(10):
            await asyncio.sleep(moments.uniform(0.02, 0.3))
            with contextlib.suppress(ValueError, OSError, json.JSONDecodeError):
                os.kill(moments.choice(testbeds).supervisor(), signal.SIGKILL)

    await asyncio.gather(kill_supervisors(), *(run(name) for name in names))
    assert not (testbed.folder / "clashes").exists()
    await asyncio.gather(*(at(name)[0].remove(name) for name in names))
    await asyncio.gather(*(runtime.close() for runtime in runtimes))
    assert claims() == []
