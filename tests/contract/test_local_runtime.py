"""The local runtime with real processes: the contract, and behavior that only processes have."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from controller.core.attempt import RuntimeLost
from controller.core.model import FailureClass
from controller.runtime import processes
from controller.runtime.local.launching import launch as launch_process
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.protocol import CannotStart
from controller.runtime.testing import (
    FOREVER,
    STUBBORN,
    RuntimeContract,
    Script,
    alike,
    ended,
    on_a_loop,
    printed,
)
from tests.contract.local_testbed import LocalTestbed, eventually, linux_only, local_testbed


@pytest.fixture
def testbed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalTestbed]:
    with local_testbed(tmp_path, monkeypatch) as testbed:
        yield testbed


class TestLocalRuntime(RuntimeContract):
    @pytest.fixture
    def testbed(self, testbed: LocalTestbed) -> LocalTestbed:
        return testbed


@on_a_loop
async def test_after_close_with_nothing_running_no_process_and_no_socket_is_left(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", Script()))
    await ended(runtime, "a")
    socket = Path(json.loads((testbed.folder / "supervisor.lock").read_bytes())["socket"])
    assert socket.exists()
    await runtime.close()
    await eventually(lambda: not testbed.alive())
    assert not socket.exists()


@on_a_loop
async def test_the_supervisor_exits_when_its_last_trial_ends_without_a_controller(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", Script(lasts_s=0.3, code=4)))
    await runtime.close()
    assert testbed.alive()
    await eventually(lambda: not testbed.alive())
    runtime = await testbed.open()
    assert alike(await ended(runtime, "a"), code=4)
    await runtime.close()


@on_a_loop
async def test_the_supervisor_exits_soon_after_its_controller_died_with_nothing_running(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.observe()
    await testbed.crash(runtime)
    await eventually(lambda: not testbed.alive())


@on_a_loop
async def test_a_killed_supervisors_trial_is_seen_running_and_ends_as_unknown(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    launch = testbed.launch("a", Script(lines=("on",), lasts_s=0.5))
    await runtime.start(launch)
    await printed(runtime, "a", b"on")
    await runtime.observe()
    os.kill(testbed.supervisor(), signal.SIGKILL)
    await runtime.wait(600, log_growth=False)  # told at once
    assert (await runtime.observe())["a"].exit is None
    await runtime.start(launch)
    assert alike(await ended(runtime, "a"), unknown=True)
    assert testbed.runs("a") == 1
    await runtime.close()


@on_a_loop
async def test_a_supervisor_killed_at_any_moment_never_runs_a_trial_twice_and_loses_none(
    testbed: LocalTestbed,
) -> None:
    moments = random.Random(5)
    runtime = await testbed.open()
    await runtime.observe()
    names = [f"a-{number}" for number in range(40)]

    async def kill_supervisors() -> None:
        for _ in range(12):
            await asyncio.sleep(moments.uniform(0.001, 0.08))
            # one is just on its way up, or dead already
            with contextlib.suppress(ValueError, ProcessLookupError):
                os.kill(testbed.supervisor(), signal.SIGKILL)

    async def start_all() -> None:
        for name in names:
            await runtime.start(testbed.launch(name, Script(lasts_s=0.02, code=3)))

    await asyncio.gather(kill_supervisors(), start_all())
    for name in names:
        exit = await ended(runtime, name)
        assert exit.code == 3 or exit.unknown
        assert testbed.runs(name) == 1 or (exit.unknown and testbed.runs(name) == 0)
    assert sorted(await runtime.observe()) == sorted(names)
    await runtime.close()
    await eventually(lambda: not testbed.alive())


@on_a_loop
async def test_a_trial_that_ended_while_no_supervisor_lived_is_unknown(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", FOREVER))
    await testbed.crash(runtime)
    os.kill(testbed.supervisor(), signal.SIGKILL)
    os.kill(testbed.pid("a"), signal.SIGKILL)
    await eventually(lambda: not testbed.alive())
    for _ in range(2):  # written down by the first, read by the second
        runtime = await testbed.open()
        assert alike(await ended(runtime, "a"), unknown=True)
        await runtime.close()
        await eventually(lambda: not testbed.alive())


@linux_only
@on_a_loop
async def test_an_attempt_that_ended_with_its_machine_ended_when_it_was_last_seen(
    testbed: LocalTestbed,
) -> None:
    launch = testbed.launch("a", FOREVER)
    runtime = await testbed.open()
    await runtime.start(launch)
    record, log = launch.directory / "process.json", launch.directory / "log.txt"
    started = record.stat().st_mtime
    await eventually(lambda: record.stat().st_mtime > started)
    await testbed.crash(runtime)
    os.kill(testbed.supervisor(), signal.SIGKILL)
    os.kill(testbed.pid("a"), signal.SIGKILL)
    await eventually(lambda: not testbed.alive())
    # As if all this had happened days ago.
    before = time.time() - 3 * 86400
    record.write_text(json.dumps({**json.loads(record.read_text()), "time": before}))
    for path, after_s in ((record, 60.0), (log, 30.0)):
        os.utime(path, (before + after_s, before + after_s))
    runtime = await testbed.open()
    end = await ended(runtime, "a")
    assert (end.unknown, end.time.timestamp()) == (True, pytest.approx(before + 60.0, abs=1e-3))
    await runtime.close()
    await eventually(lambda: not testbed.alive())


@linux_only
@on_a_loop
async def test_a_wall_clock_that_was_set_while_an_attempt_ran_adds_no_time_to_it(
    testbed: LocalTestbed,
) -> None:
    launch = testbed.launch("a", FOREVER)
    runtime = await testbed.open()
    await runtime.start(launch)
    await testbed.crash(runtime)
    os.kill(testbed.supervisor(), signal.SIGKILL)
    # As if the clock had been set forward by a day.
    record = launch.directory / "process.json"
    before = json.loads(record.read_text())
    record.write_text(json.dumps({**before, "time": before["time"] - 86400}))
    runtime = await testbed.open()
    await runtime.start(testbed.launch("b", FOREVER))
    running = await runtime.observe()
    for name in ("a", "b"):
        started = running[name].start_time
        assert started is not None
        assert abs(runtime.now() - started) < timedelta(hours=1)
        await runtime.stop(name, grace_s=0)
        assert abs((await ended(runtime, name)).time - started) < timedelta(hours=1)
    await runtime.close()
    await eventually(lambda: not testbed.alive())


@linux_only
@on_a_loop
async def test_clearing_up_after_a_lost_attempt_spares_another_experiments_of_the_same_name(
    testbed: LocalTestbed,
) -> None:
    (testbed.folder / "other").mkdir()
    other = LocalTestbed(testbed.folder / "other", "")
    spared, runtime = await other.open(), await testbed.open()
    await spared.start(other.launch("a", FOREVER))
    await runtime.start(testbed.launch("a", FOREVER))
    await testbed.crash(runtime)
    for pid in (testbed.supervisor(), testbed.pid("a")):
        os.kill(pid, signal.SIGKILL)
    runtime = await testbed.open()
    assert alike(await ended(runtime, "a"), unknown=True)
    assert (await spared.observe())["a"].exit is None
    await spared.remove("a")
    await asyncio.gather(runtime.close(), spared.close())


@on_a_loop
async def test_a_stop_is_kept_when_the_supervisor_dies_in_its_grace(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", STUBBORN))
    await printed(runtime, "a", b"deaf")
    await runtime.stop("a", grace_s=0.5)
    os.kill(testbed.supervisor(), signal.SIGKILL)
    assert alike(await ended(runtime, "a"), unknown=True, stopped=True)
    await runtime.close()


@on_a_loop
async def test_a_timeout_is_kept_when_the_supervisor_dies(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(replace(testbed.launch("a", FOREVER), timeout_s=0.5))
    os.kill(testbed.supervisor(), signal.SIGKILL)
    assert alike(await ended(runtime, "a"), unknown=True, timed_out=True)
    await runtime.close()


@on_a_loop
async def test_a_start_that_was_never_recorded_can_be_made(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    launch = testbed.launch("a", Script())
    (testbed.folder / "live").mkdir()
    (testbed.folder / "live" / "a").symlink_to(launch.directory)
    assert await runtime.observe() == {}
    await runtime.start(launch)
    assert alike(await ended(runtime, "a"), code=0)
    await runtime.close()


def test_a_supervisor_killed_before_the_gate_opens_never_runs_the_command(tmp_path: Path) -> None:
    killed = os.fork()
    if killed == 0:
        command = ["/bin/sh", "-c", f"echo > {tmp_path / 'ran'}"]

        def die(pid: int) -> None:
            (tmp_path / "pid").write_text(str(pid))
            os.kill(os.getpid(), signal.SIGKILL)

        launch_process(command, {}, folder="/", log=str(tmp_path / "log.txt"), write_down=die)
    os.waitpid(killed, 0)
    waiting = int((tmp_path / "pid").read_text())
    asyncio.run(eventually(lambda: processes.birth(waiting) is None))
    assert not (tmp_path / "ran").exists()


@on_a_loop
async def test_forked_children_die_with_their_leader(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.shell("a", "sleep 600 & sleep 600 & exit 3"))
    assert alike(await ended(runtime, "a"), code=3)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@on_a_loop
async def test_stop_reaches_forked_children(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.shell("a", "(trap '' TERM; sleep 600; sleep 600) & echo on; wait"))
    await printed(runtime, "a", b"on")
    await runtime.stop("a", grace_s=60)
    assert alike(await ended(runtime, "a"), signal=15, stopped=True)
    assert testbed.alive() == [testbed.supervisor()]
    await runtime.close()


@linux_only
@on_a_loop
async def test_children_that_escaped_into_their_own_session_die_too(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    escape = (
        f"{sys.executable} -S -c 'import os,time; os.setsid(); print(1, flush=True); "
        f"time.sleep(600)' &"
    )
    await runtime.start(
        testbed.shell(
            "a", f"{escape} while [ ! -s {testbed.directory('a')}/log.txt ]; do sleep .01; done"
        )
    )
    await runtime.start(testbed.launch("other", FOREVER))
    assert alike(await ended(runtime, "a"), code=0)
    assert sorted(testbed.alive()) == sorted([testbed.supervisor(), testbed.pid("other")])
    await runtime.remove("other")
    await runtime.close()


@pytest.mark.parametrize(
    ("command", "folder", "message"),
    [
        (("pyton3", "train.py"), ".", 'command not found: "pyton3"'),
        (("./nothing.sh",), ".", 'command not found: "./nothing.sh" (in {folder})'),
        (("./plain.txt",), ".", 'permission denied: "./plain.txt" is not executable; chmod +x it'),
        (
            ("./headless",),
            ".",
            '"./headless" is not a program: its first line must be one such as #!/bin/sh',
        ),
        (
            ("./lost.sh",),
            ".",
            'the interpreter that the first line of "./lost.sh" names does not exist',
        ),
        (("./folder",), ".", '"./folder" is a folder, not a program'),
        (("true",), "missing", "no such folder: {folder}/missing"),
        (("true",), "plain.txt", "not a folder: {folder}/plain.txt"),
        (("true", "\0"), ".", 'cannot run "true": Invalid argument'),
    ],
)
@on_a_loop
async def test_a_command_that_cannot_start_has_the_reason(
    testbed: LocalTestbed, command: tuple[str, ...], folder: str, message: str
) -> None:
    (testbed.folder / "plain.txt").write_text("echo")
    (testbed.folder / "folder").mkdir()
    for name, text in (("headless", "\1\2\3"), ("lost.sh", "#!/no/such/shell\n")):
        (testbed.folder / name).write_text(text)
        (testbed.folder / name).chmod(0o755)
    runtime = await testbed.open()
    launch = testbed.shell("a", "")
    env = {**launch.env, "PATH": "/bin"}
    with pytest.raises(CannotStart) as refusal:
        await runtime.start(
            replace(launch, command=command, env=env, working_directory=testbed.folder / folder)
        )
    assert str(refusal.value).startswith(message.format(folder=testbed.folder))
    assert refusal.value.failure_class is FailureClass.CONFIGURATION
    assert list(launch.directory.iterdir()) == []
    assert list((testbed.folder / "live").iterdir()) == []
    assert await runtime.observe() == {}
    await runtime.close()


@on_a_loop
async def test_a_missing_attempt_folder_is_an_infrastructure_failure(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    launch = testbed.launch("a", Script())
    launch.directory.rmdir()
    with pytest.raises(
        CannotStart, match=r"cannot write .*log\.txt: No such file or directory"
    ) as refusal:
        await runtime.start(launch)
    assert refusal.value.failure_class is FailureClass.INFRASTRUCTURE
    await runtime.close()


@linux_only
@on_a_loop
async def test_a_supervisor_without_a_free_descriptor_refuses_a_start_and_keeps_its_exit_codes(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.shell("first", "while ! test -e go; do sleep 0.01; done; exit 3"))
    supervisor = testbed.supervisor()
    descriptors = Path(f"/proc/{supervisor}/fd")
    used = len(list(descriptors.iterdir()))
    no_limit = resource.prlimit(supervisor, resource.RLIMIT_NOFILE)
    messages = []
    for free in range(5):
        resource.prlimit(supervisor, resource.RLIMIT_NOFILE, (used + free, no_limit[1]))
        with pytest.raises(CannotStart) as refusal:
            await runtime.start(testbed.launch(f"a-{free}", Script()))
        assert refusal.value.failure_class is FailureClass.INFRASTRUCTURE
        messages.append(str(refusal.value))
    assert messages[1:] == ["cannot create a process: Too many open files"] * 4
    resource.prlimit(supervisor, resource.RLIMIT_NOFILE, no_limit)
    await runtime.start(testbed.launch("a-4", Script(code=7)))
    assert alike(await ended(runtime, "a-4"), code=7)
    (testbed.folder / "go").touch()
    assert alike(await ended(runtime, "first"), code=3)
    assert len(list(descriptors.iterdir())) == used
    await runtime.close()


@on_a_loop
async def test_a_trial_reads_nothing_and_its_output_and_errors_are_in_order(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.shell("a", "cat; echo one; echo two >&2; echo three; pwd"))
    await ended(runtime, "a")
    assert await runtime.read_log("a", 0) == f"one\ntwo\nthree\n{testbed.folder}\n".encode()
    await runtime.close()


@on_a_loop
async def test_a_trial_gets_the_controllers_environment_of_now_and_its_own(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = await testbed.open()
    await runtime.observe()
    monkeypatch.setenv("SET_LATER", "by the \N{GREEK SMALL LETTER LAMDA} shell")
    launch = testbed.shell("a", 'echo "$SET_LATER|$TUNER_TRIAL_NAME|$OWN"')
    await runtime.start(replace(launch, env={**launch.env, "OWN": "x=y"}))
    await ended(runtime, "a")
    assert (
        await runtime.read_log("a", 0)
    ).decode() == "by the \N{GREEK SMALL LETTER LAMDA} shell|a|x=y\n"
    await runtime.close()


@on_a_loop
async def test_a_trial_has_default_signals_and_no_files_of_ours(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    look = (
        "import os,signal; print(signal.getsignal(2) is signal.default_int_handler, "
        "len(os.listdir('/dev/fd')))"
    )
    await runtime.start(replace(testbed.shell("a", ""), command=(sys.executable, "-c", look)))
    await ended(runtime, "a")
    assert await runtime.read_log("a", 0) == b"True 4\n"
    await runtime.close()


@on_a_loop
async def test_a_log_of_100_mb_is_read_in_pieces(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.shell("a", "head -c 100000000 /dev/zero; echo end"))
    await ended(runtime, "a")
    assert len(await runtime.read_log("a", 0)) == 1 << 20
    assert await runtime.read_log("a", 100_000_000) == b"end\n"
    await runtime.close()


@on_a_loop
async def test_gpus_are_shared_out_returned_and_remembered(
    testbed: LocalTestbed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5")
    show = 'echo "gpu=$CUDA_VISIBLE_DEVICES"; exec sleep 600'
    runtime = await testbed.open()
    assert runtime.slots(1, workers=1) == 2
    await runtime.start(replace(testbed.shell("a", show), gpu=1))
    await testbed.crash(runtime)
    runtime = await testbed.open()
    await runtime.start(replace(testbed.shell("b", show), gpu=1))
    await runtime.start(replace(testbed.shell("c", show), gpu=1))
    waits = "needs 1 GPU: GPU 4 is held by a, GPU 5 is held by b"
    assert (await runtime.observe())["c"].waiting == waits
    await runtime.stop("c", grace_s=0)
    await runtime.start(testbed.shell("none", show))
    for name, ids in (("a", b"gpu=4\n"), ("b", b"gpu=5\n"), ("none", b"gpu=4,5\n")):
        await printed(runtime, name, ids)
    await runtime.remove("a")
    await asyncio.gather(
        *(runtime.start(replace(testbed.shell(name, show), gpu=0.5)) for name in ("d", "e"))
    )
    for name in ("d", "e"):
        await printed(runtime, name, b"gpu=4\n")
    await asyncio.gather(*(runtime.remove(name) for name in ("b", "d", "e", "none")))
    await runtime.close()


@on_a_loop
async def test_a_supervisor_whose_socket_was_deleted_is_found_again(testbed: LocalTestbed) -> None:
    runtime = await testbed.open()
    await runtime.start(testbed.launch("a", Script(lasts_s=2, code=6)))
    supervisor = testbed.supervisor()
    await testbed.crash(runtime)
    Path(json.loads((testbed.folder / "supervisor.lock").read_bytes())["socket"]).unlink()
    runtime = await testbed.open()
    assert alike(await ended(runtime, "a"), code=6)
    assert testbed.supervisor() == supervisor
    await runtime.close()


@on_a_loop
async def test_a_supervisor_that_cannot_start_is_reported_at_once_with_its_log(
    testbed: LocalTestbed,
) -> None:
    (testbed.folder / "live").write_text("in the way")
    runtime = await testbed.open()
    log = testbed.folder / "supervisor.log"
    with pytest.raises(RuntimeLost, match=re.escape(f"does not start; see {log}")):
        await runtime.observe()
    assert "FileExistsError" in log.read_text()
    log.unlink()
    (testbed.folder / "live").unlink()
    assert await runtime.observe() == {}  # looked again
    await runtime.close()


@on_a_loop
async def test_a_suspended_supervisor_is_reported_and_loses_nothing(testbed: LocalTestbed) -> None:
    starting, connecting = await testbed.open(answer_s=2.0), await testbed.open(answer_s=2.0)
    await starting.observe()
    launch = testbed.launch("a", Script(code=5))
    supervisor = testbed.supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    for error in await asyncio.gather(
        starting.start(launch), connecting.observe(), return_exceptions=True
    ):
        assert isinstance(error, RuntimeLost), error
        cure = f"if it is suspended, continue it with: kill -CONT {supervisor}"
        assert (
            str(error)
            == f"the supervisor of the trials (process {supervisor}) has not answered for 2 s; "
            f"{cure}"
        )
    os.kill(supervisor, signal.SIGCONT)
    assert list(await connecting.observe()) == ["a"]  # the start that nobody waited for any more
    await starting.start(launch)
    for runtime in (starting, connecting):
        assert alike(await ended(runtime, "a"), code=5)
        await runtime.close()
    assert testbed.runs("a") == 1


@on_a_loop
async def test_a_hurried_controller_waits_only_briefly_for_a_suspended_supervisor(
    testbed: LocalTestbed,
) -> None:
    runtime = await testbed.open(answer_s=3600.0)
    await runtime.observe()
    supervisor = testbed.supervisor()
    os.kill(supervisor, signal.SIGSTOP)
    removal = asyncio.create_task(runtime.remove("a"))
    await asyncio.sleep(0)  # it sends its request
    runtime.hurry()
    async with asyncio.timeout(60.0):
        with pytest.raises(RuntimeLost, match="has not answered"):
            await removal
    os.kill(supervisor, signal.SIGCONT)
    await runtime.close()


@on_a_loop
async def test_a_missing_experiment_folder_is_reported(testbed: LocalTestbed) -> None:
    with pytest.raises(RuntimeLost, match="No such file or directory"):
        await LocalRuntime(testbed.folder / "missing").observe()


@on_a_loop
async def test_two_controllers_at_once_get_one_supervisor(testbed: LocalTestbed) -> None:
    one, other = await testbed.open(), await testbed.open()
    await asyncio.gather(one.observe(), other.observe())
    await one.start(testbed.launch("a", Script(code=2)))
    assert alike(await ended(other, "a"), code=2)
    await one.close()
    assert alike(await ended(other, "a"), code=2)
    await other.close()
    await eventually(lambda: not testbed.alive())


@on_a_loop
async def test_a_controller_killed_with_its_whole_group_leaves_trials_and_supervisor_alone(
    testbed: LocalTestbed,
) -> None:
    launch = testbed.launch("a", Script(lasts_s=0.6, code=8))
    text = f"""
import asyncio, os, signal
from pathlib import Path
from controller.runtime.local.runtime import LocalRuntime
from controller.runtime.protocol import Launch

async def main():
    await LocalRuntime(Path({str(testbed.folder)!r})).start(Launch("a", {launch.command!r}, {dict(launch.env)!r},
        working_directory=Path("/"), directory=Path({str(launch.directory)!r})))
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGKILL):
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_IGN)
        os.killpg(0, number)

asyncio.run(main())
"""
    root = Path(__file__).parents[2]
    killed = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", text], cwd=root, start_new_session=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    runtime = await testbed.open()
    assert alike(await ended(runtime, "a"), code=8)
    assert testbed.runs("a") == 1
    await runtime.close()


def test_the_supervisor_imports_little_and_nothing_of_the_project_but_its_siblings_and_a_clock() -> (
    None
):
    look = (
        "import sys; sys.path.append('.'); import controller.runtime.local.supervisor;"
        "print(*sorted(m for m in sys.modules if m.startswith(('controller', 'suggest', 'typing', "
        "'dataclasses',"
        "'pathlib', 'subprocess', 'threading', 'asyncio'))))"
    )
    root = Path(__file__).parents[2]
    shown = subprocess.run(
        [sys.executable, "-I", "-S", "-c", look],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown.stdout.split() == [
        "controller",
        "controller.boot_time",
        "controller.runtime",
        "controller.runtime.local",
        "controller.runtime.local.attempt_files",
        "controller.runtime.local.launching",
        "controller.runtime.local.listening",
        "controller.runtime.local.supervised",
        "controller.runtime.local.supervisor",
        "controller.runtime.local.trials",
        "controller.runtime.log_limit",
        "controller.runtime.processes",
    ]
