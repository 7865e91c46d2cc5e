"""One attempt as several processes on this machine: their environment,
and that they live and die together.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.model import FailureClass
from controller.runtime import processes
from controller.runtime.local import ranks
from controller.runtime.protocol import CannotStart, Launch, Runtime
from controller.runtime.testing import alike, ended, on_a_loop, printed, seen
from tests.contract.local_testbed import LocalTestbed, eventually, linux_only, local_testbed

SAME = {
    "MASTER_ADDR": "127.0.0.1",
    "PET_MASTER_ADDR": "127.0.0.1",
    "WORLD_SIZE": "3",
    "PET_NNODES": "3",
    "PET_NPROC_PER_NODE": "1",
    "LOCAL_RANK": "0",
    "LOCAL_WORLD_SIZE": "1",
    "CUDA_VISIBLE_DEVICES": "",
}
OWN = ("RANK", "PET_NODE_RANK")
PORT = ("MASTER_PORT", "PET_MASTER_PORT")


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTestbed]:
    with local_testbed(tmp_path, monkeypatch) as testbed:
        yield testbed


def several(testbed: LocalTestbed, text: str, *, name: str = "a", workers: int = 2) -> Launch:
    """Start workers that each run this shell script."""
    return replace(testbed.shell(name, text), workers=workers)


def each(*texts: str) -> str:
    """Return a script with a branch for each rank."""
    return (
        "case $RANK in "
        + " ".join(f"{rank}) {text};;" for rank, text in enumerate(texts))
        + " esac"
    )


def of_rank(testbed: LocalTestbed, rank: int, name: str = "a") -> bytes:
    return (testbed.directory(name) / (f"log.{rank}.txt" if rank else "log.txt")).read_bytes()


async def all_on(
    testbed: LocalTestbed, runtime: Runtime, workers: int = 2, *, name: str = "a"
) -> list[int]:
    """Return the process ids, once each worker has printed its own."""
    await printed(runtime, name, b"\n")
    await eventually(
        lambda: all(of_rank(testbed, rank, name).endswith(b"\n") for rank in range(workers))
    )
    return [int(of_rank(testbed, rank, name).split()[0]) for rank in range(workers)]


ON = "echo $$; exec sleep 600"
DEAF = "trap '' TERM; echo $$; sleep 600; sleep 600"


@on_a_loop
async def test_each_worker_gets_its_rank_and_the_master_address_like_a_pod(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MASTER_PORT", "1")  # of whatever started us
    runtime = await testbed.open()
    text = "".join(f'echo "{name}=${name}";' for name in (*SAME, *OWN, *PORT))
    await runtime.start(several(testbed, text, workers=3))
    assert alike(await ended(runtime, "a"), code=0)
    environments = [
        dict(line.split("=") for line in of_rank(testbed, rank).decode().split())
        for rank in range(3)
    ]
    ports = {each.pop(name) for each in environments for name in PORT}
    assert len(ports) == 1
    assert int(ports.pop()) > 1023
    assert environments == [SAME | dict.fromkeys(OWN, str(rank)) for rank in range(3)]
    await runtime.close()


@on_a_loop
async def test_the_master_port_of_the_file_is_used(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    launch = several(testbed, 'echo "$MASTER_ADDR $MASTER_PORT $PET_MASTER_PORT"')
    await runtime.start(
        replace(launch, env={**launch.env, "MASTER_ADDR": "::1", "MASTER_PORT": "4000"})
    )
    await ended(runtime, "a")
    assert [of_rank(testbed, rank) for rank in range(2)] == [b"::1 4000 4000\n"] * 2
    await runtime.close()


def test_workers_share_the_cores_unless_omp_num_threads_is_set(testbed: LocalTestbed) -> None:
    launch = several(testbed, "", workers=3)
    shares = [
        ranks.world(launch, {}, cores=cores).get("OMP_NUM_THREADS") for cores in (1, 2, 8, 64)
    ]
    assert shares == ["1", "1", "2", "21"]
    assert "OMP_NUM_THREADS" not in ranks.world(launch, {"OMP_NUM_THREADS": "7"}, cores=8)


@on_a_loop
async def test_the_log_is_that_of_rank_0_and_the_others_have_their_own(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, "echo accuracy=0.$RANK; echo error >&2"))
    await ended(runtime, "a")
    assert await runtime.read_log("a", 0) == b"accuracy=0.0\nerror\n"
    assert of_rank(testbed, 1) == b"accuracy=0.1\nerror\n"
    await runtime.close()


@linux_only
@on_a_loop
async def test_only_rank_0_can_listen_on_the_master_port(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, "echo $MASTER_PORT; exec sleep 600"))
    _, port = await all_on(testbed, runtime)
    for address in ("127.0.0.1", ""):
        socket.create_server((address, port)).close()  # allows the address to be used again
        with contextlib.closing(socket.socket()) as other, pytest.raises(OSError, match="in use"):
            other.bind((address, port))
    await runtime.remove("a")
    await runtime.close()


@on_a_loop
async def test_the_attempt_lasts_as_long_as_its_last_worker(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, each("exit 0", ON)))
    await eventually(
        lambda: (
            (testbed.directory("a") / "log.1.txt").exists() and of_rank(testbed, 1).endswith(b"\n")
        )
    )
    worker = int(of_rank(testbed, 1))
    assert (await runtime.observe())["a"].exit is None
    os.kill(worker, signal.SIGTERM)
    assert alike(await ended(runtime, "a"), signal=15)
    await runtime.close()


@on_a_loop
async def test_the_first_that_fails_ends_the_others_and_the_attempt_ends_as_it_did(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, each("echo why; exit 3", ON, ON), workers=3))
    assert alike(await ended(runtime, "a"), code=3)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@pytest.mark.parametrize(
    ("message", "code", "failure_class"),
    [
        ("ValueError: no", 1, FailureClass.USER_ERROR),
        ("torch.OutOfMemoryError: CUDA out of memory.", 1, FailureClass.OUT_OF_MEMORY),
        ("rank 0 was lost", 75, FailureClass.INFRASTRUCTURE),
    ],
)
@on_a_loop
async def test_the_last_line_of_the_failed_worker_is_the_reason(
    testbed: LocalTestbed, message: str, code: int, failure_class: FailureClass
) -> None:
    runtime = await testbed.open()
    await runtime.start(
        several(
            testbed, each(ON, f"echo Traceback; echo '{message}' >&2; echo; echo ==; exit {code}")
        )
    )
    reason = f"worker 1 of 2: exit code {code}: {message}"
    assert alike(await ended(runtime, "a"), failure_class=failure_class, reason=reason)
    await runtime.close()


def test_a_crash_of_another_worker_is_recognized_by_its_exit_code() -> None:
    lost = {"rank": 1, "workers": 2, "said": "Segmentation fault"}
    end = {"code": 139, "lost": lost, "stopped": False, "timed_out": False, "out_of_memory": False}
    reason = "worker 1 of 2: exit code 139 (its program crashed: SIGSEGV): Segmentation fault"
    assert ranks.cause_of(end) == (FailureClass.INFRASTRUCTURE, reason)


@on_a_loop
async def test_infeasible_is_infeasible_from_any_worker(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, each(ON, "echo epoch=2; echo too wide; exit 42")))
    assert alike(await ended(runtime, "a"), code=42, reason="too wide")
    await runtime.close()


@pytest.mark.parametrize("victim", [0, 1])
@on_a_loop
async def test_a_killed_worker_is_the_cause_even_if_another_fails_at_the_same_time(
    testbed: LocalTestbed, victim: int
) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, "echo $$; until [ -e go ]; do sleep .01; done; exit 75"))
    pids = await all_on(testbed, runtime)
    os.kill(testbed.pid("a"), signal.SIGSTOP)  # the leader sees nothing before both have ended
    os.kill(pids[victim], signal.SIGKILL)
    (testbed.folder / "go").touch()
    await eventually(lambda: not any(processes.birth(pid) for pid in pids))
    os.kill(testbed.pid("a"), signal.SIGCONT)
    assert alike(await ended(runtime, "a"), signal=9)
    await runtime.close()


@on_a_loop
async def test_workers_end_with_a_killed_leader(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, ON))
    await all_on(testbed, runtime)
    os.kill(testbed.pid("a"), signal.SIGKILL)
    assert alike(await ended(runtime, "a"), signal=9)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@on_a_loop
async def test_stop_terminates_all_workers_and_kills_those_that_ignore_it(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, ON, name="polite"))
    await runtime.start(several(testbed, DEAF, name="deaf"))
    for name in ("polite", "deaf"):
        await all_on(testbed, runtime, name=name)
    await runtime.stop("polite", grace_s=60)
    assert alike(await ended(runtime, "polite"), signal=15, stopped=True)
    await runtime.stop("deaf", grace_s=0.1)
    assert alike(await ended(runtime, "deaf"), signal=9, stopped=True)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@on_a_loop
async def test_a_worker_that_does_not_end_with_the_others_is_killed_after_the_grace_period(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    # Rank 0 waits for the deaf one to be deaf.
    quitter = (
        f"echo $$; until [ -s {testbed.directory('a')}/log.1.txt ]; do sleep .01; done; exit 5"
    )
    await runtime.start(replace(several(testbed, each(quitter, DEAF)), grace_s=0.2))
    assert alike(await ended(runtime, "a"), code=5)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@on_a_loop
async def test_a_timeout_is_for_all(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(replace(several(testbed, ON), timeout_s=0.3))
    assert alike(await ended(runtime, "a"), signal=15, timed_out=True)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@on_a_loop
async def test_workers_are_taken_over_when_controller_and_supervisor_are_killed(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, ON))
    pids = await all_on(testbed, runtime)
    first = testbed.supervisor()
    await testbed.crash(runtime)
    os.kill(first, signal.SIGKILL)
    runtime = await testbed.open()
    assert (await runtime.observe())["a"].exit is None
    assert all(processes.birth(pid) for pid in pids)
    # the leader holds nothing of it: not its lock, not its socket
    assert testbed.supervisor() != first
    await runtime.stop("a", grace_s=60)
    assert alike(await ended(runtime, "a"), unknown=True, stopped=True)
    await eventually(lambda: testbed.alive() == [testbed.supervisor()])
    await runtime.close()


@linux_only
@on_a_loop
async def test_workers_whose_leader_and_supervisor_were_killed_are_cleared_away(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(several(testbed, ON))
    pids = await all_on(testbed, runtime)
    await testbed.crash(runtime)
    for pid in (testbed.supervisor(), testbed.pid("a")):
        os.kill(pid, signal.SIGKILL)
    runtime = await testbed.open()
    assert alike(await ended(runtime, "a"), unknown=True)
    await eventually(lambda: not any(processes.birth(pid) for pid in pids))
    await runtime.close()


@on_a_loop
async def test_workers_that_cannot_be_started_leave_nothing_and_say_why(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    launch = replace(several(testbed, "true"), command=("pyton3", "train.py"))
    with pytest.raises(CannotStart, match='command not found: "pyton3"') as refusal:
        await runtime.start(launch)
    assert refusal.value.failure_class is FailureClass.CONFIGURATION
    assert list(launch.directory.iterdir()) == []
    await eventually(lambda: testbed.alive() == [testbed.supervisor()])
    await runtime.start(several(testbed, each("exit 4", ON)))
    assert alike(await ended(runtime, "a"), code=4)
    await runtime.close()


@on_a_loop
async def test_a_worker_has_default_signals_and_no_files_of_ours(testbed: LocalTestbed) -> None:
    look = (
        "import os,signal; print(signal.getsignal(15) is signal.SIG_DFL, "
        "len(os.listdir('/dev/fd')))"
    )
    runtime = await testbed.open()
    await runtime.start(replace(several(testbed, ""), command=(sys.executable, "-c", look)))
    await ended(runtime, "a")
    assert [of_rank(testbed, rank) for rank in range(2)] == [b"True 4\n"] * 2
    await runtime.close()


@on_a_loop
async def test_attempts_of_several_workers_take_one_slot_each(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(replace(several(testbed, ON), slots=1))
    await runtime.start(replace(several(testbed, "exit 0", name="b"), slots=1))
    assert (await runtime.observe())["b"].start_time is None
    await runtime.stop("a", grace_s=60)
    assert alike(await ended(runtime, "b"), code=0)
    await runtime.close()


@on_a_loop
async def test_every_worker_gets_gpus_of_its_own(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    runtime = await testbed.open()
    assert [runtime.slots(gpu, workers=2) for gpu in (1, 2, 3, 0.5, 0.25)] == [2, 1, 0, 4, 8]
    show = 'echo "gpu=$CUDA_VISIBLE_DEVICES"; exec sleep 600'
    for name, gpu in (("a", 1.0), ("b", 0.5)):
        await runtime.start(replace(several(testbed, show, name=name), gpu=gpu))
        await seen(runtime, name, lambda status: status.start_time is not None)
    await runtime.start(replace(several(testbed, show, name="c"), gpu=1))
    assert (await runtime.observe())["c"].waiting == (
        "needs 1 GPU for each of 2 workers: GPU 4 is held by a, GPU 5 is held by a, "
        "GPU 6 is held by b (0.5), GPU 7 is held by b (0.5)"
    )
    await runtime.stop("c", grace_s=0)
    await testbed.crash(runtime)
    runtime = await testbed.open()
    await runtime.start(replace(several(testbed, show, name="d"), gpu=0.5))
    given = {
        name: json.loads((testbed.directory(name) / "process.json").read_bytes())["gpus"]
        for name in ("a", "b", "d")
    }
    assert given == {"a": ["4", "5"], "b": ["6", "7"], "d": ["6", "7"]}
    await eventually(lambda: of_rank(testbed, 1, "d") == b"gpu=7\n")
    await printed(runtime, "d", b"gpu=6\n")
    await asyncio.gather(*(runtime.remove(name) for name in "abd"))
    await runtime.close()
