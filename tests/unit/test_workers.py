"""Proposals from worker processes: the same points as without them, even if a process fails."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from suggest import deadline, workers
from suggest.domain import Scale
from suggest.engine import Engine
from suggest.errors import LimitReached, TimedOut, Unavailable
from suggest.grpc_status import code_of
from suggest.proposal import PointRequest
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import ModelSetup, RemoteModel, Workers
from tests.conditions import eventually

ROOT = Path(__file__).parents[2]
SPACE = Space((Parameter("x", Float(0.0, 1.0)), Parameter("y", Float(1e-4, 1.0, scale=Scale.LOG))))
SPEC = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm("tpe", seed=7))
NEXT = (PointRequest(9, {}),)


@pytest.fixture
def pool() -> Iterator[Workers]:
    pool = Workers(size=1)
    yield pool
    pool.close()
    assert pool.running == 0


@pytest.fixture
def pair() -> Iterator[Workers]:
    pair = Workers(size=2)
    yield pair
    pair.close()
    assert pair.running == 0


def model(pool: Workers, name: str, settings: object = None, *, seed: int = 7) -> RemoteModel:
    return RemoteModel(pool, ModelSetup(f"tests.unit.slow_models:{name}", SPEC, seed, settings))


def trial(number: int, value: float = 0.5) -> Trial:
    return Trial(number, TrialState.SUCCEEDED, {"x": 0.5, "y": 0.1}, value=value)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def proposed(engine: Engine, trials: int) -> list[object]:
    """Return the successive proposals of an engine, each put as soon as it is proposed."""
    points: list[object] = []
    for number in range(trials):
        (one,) = engine.propose(1).trials
        points.append(one.parameters)
        x = one.parameters["x"]
        assert isinstance(x, float)
        engine.put(Trial(number, TrialState.SUCCEEDED, one.parameters, value=(x - 0.3) ** 2))
    return points


@pytest.mark.parametrize("algorithm", ["tpe", "optuna:tpe"])
def test_a_worker_proposes_what_this_process_would(
    pool: Workers, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("suggest.samplers.tpe.SHORT", 0)
    spec = StudySpec(SPACE, SPEC.objectives, Algorithm(algorithm, seed=7))
    study = Study(StudyName("default", "s"), "uid", spec, 7)
    here, there = Engine(study, (), ()), Engine(study, (), (), workers=pool)
    assert proposed(there, 14) == proposed(here, 14)
    assert pool.running == 1
    batch = [p.parameters for p in there.propose(5).trials]
    assert batch == [p.parameters for p in here.propose(5).trials]
    assert [
        p.parameters for p in Engine(study, there.trials(), (), workers=pool).propose(5).trials
    ] == batch


def test_optuna_is_imported_by_the_worker_and_not_by_the_server() -> None:
    program = (
        "import sys\n"
        "from tests.unit.test_workers import *\n"
        "pool = Workers(size=1)\n"
        "spec = StudySpec(SPACE, SPEC.objectives, Algorithm('optuna:tpe', seed=7))\n"
        "engine = Engine(Study(StudyName('default', 's'), 'uid', spec, 7), (), (), workers=pool)\n"
        "engine.warm_up()\n"
        "proposed(engine, 12)\n"
        "print(pool.running, 'optuna' in sys.modules, 'numpy' in sys.modules)\n"
        "pool.close()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "1 False False\n", done.stderr


def test_nothing_starts_before_a_model_asks() -> None:
    pool = Workers()
    model(pool, "EchoModel")
    assert pool.running == 0
    pool.close()


def test_a_request_sends_only_changed_trials_to_the_worker(pool: Workers) -> None:
    echo = model(pool, "EchoModel")
    first = echo.propose([trial(0), trial(1)], [trial(5)], NEXT)
    again = echo.propose([trial(1, 0.25), trial(2)], [], NEXT)
    assert [(p["shown"], p["running"]) for p in (*first, *again)] == [
        ("0=0.5,1=0.5", "5"),
        ("1=0.25,2=0.5", ""),
    ]
    assert first[0]["pid"] == again[0]["pid"]


def test_models_of_one_worker_do_not_mix(pool: Workers) -> None:
    one, other = model(pool, "EchoModel", seed=1), model(pool, "EchoModel", seed=2)
    one.propose([trial(0)], [], NEXT)
    other.propose([trial(3)], [], NEXT)
    points = [*one.propose([trial(0), trial(1)], [], NEXT), *other.propose([trial(3)], [], NEXT)]
    assert [(p["seed"], p["shown"]) for p in points] == [(1, "0=0.5,1=0.5"), (2, "3=0.5")]


def test_a_killed_worker_is_replaced_and_is_shown_everything_again(pool: Workers) -> None:
    echo = model(pool, "EchoModel")
    (before,) = echo.propose([trial(0)], [], NEXT)
    assert isinstance(before["pid"], int)
    os.kill(before["pid"], signal.SIGKILL)
    (after,) = echo.propose([trial(0), trial(1)], [], NEXT)
    assert (after["shown"], after["pid"] == before["pid"], pool.restarts) == (
        "0=0.5,1=0.5",
        False,
        1,
    )


def test_a_worker_killed_in_the_middle_of_a_proposal_costs_one_retry(
    pool: Workers, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    waits = model(pool, "Waits", file)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(waits.propose, [trial(0)], [], NEXT)
        eventually(lambda: file.exists() and file.read_text() != "")
        pid = int(file.read_text())
        file.with_suffix(".done").touch()  # the next one does not wait
        file.unlink()
        os.kill(pid, signal.SIGKILL)
        (point,) = asked.result(timeout=60)
    assert point["shown"] == "0=0.5"


def test_a_worker_that_hangs_is_killed_and_replaced(
    pool: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = model(pool, "EchoModel")
    (before,) = echo.propose([trial(0)], [], NEXT)
    assert isinstance(before["pid"], int)
    os.kill(before["pid"], signal.SIGSTOP)
    monkeypatch.setattr(workers, "HANG_S", 0.3)

    def patient() -> None:
        monkeypatch.setattr(workers, "HANG_S", 60.0)  # of the one that takes its place

    threading.Timer(
        0.0, lambda: eventually(lambda: not lives(int(str(before["pid"])))) or patient()
    ).start()
    (after,) = echo.propose([trial(0)], [], NEXT)
    assert (after["shown"], after["pid"] == before["pid"]) == ("0=0.5", False)
    assert not lives(before["pid"])


def test_a_worker_that_reads_no_request_is_killed_and_replaced(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = model(pool, "EchoModel")
    with monkeypatch.context() as patched:
        patched.setattr(workers, "HANG_S", 0.3)
        pool._workers[0].ensure_started()  # its socket has this limit, and the next one's has not
    (before,) = echo.propose([trial(0)], [], NEXT)
    assert isinstance(before["pid"], int)
    os.kill(before["pid"], signal.SIGSTOP)
    # more than the socket holds
    (after,) = echo.propose([trial(number) for number in range(20_000)], [], NEXT)
    assert (after["pid"] == before["pid"], pool.restarts) == (False, 1)


def test_a_worker_imports_nothing_from_the_current_directory(
    pool: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    (point,) = model(pool, "EchoModel").propose([trial(0)], [], NEXT)
    assert point["shown"] == "0=0.5"


def test_a_model_that_kills_its_worker_twice_fails_its_call_and_no_other(pool: Workers) -> None:
    with pytest.raises(
        Unavailable, match=r"a worker process has ended \(exit code 3\), twice in a row"
    ):
        model(pool, "Dies").propose([trial(0)], [], NEXT)
    (point,) = model(pool, "EchoModel").propose([trial(0)], [], NEXT)
    assert point["shown"] == "0=0.5"


def test_an_error_of_a_model_is_raised_here_with_its_traceback(pool: Workers) -> None:
    with pytest.raises(
        RuntimeError,
        match=r"(?s)in a worker process:.*slow_models\.py.*ZeroDivisionError: in the model",
    ):
        model(pool, "Raises").propose([trial(0)], [], NEXT)
    assert pool.restarts == 0


def test_a_call_that_runs_out_of_time_leaves_the_worker_to_the_next(
    pool: Workers, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    waits, told = model(pool, "Waits", file), model(pool, "EchoModel")

    def impatient() -> None:
        deadline.begin(0.2)
        waits.propose([trial(0)], [], NEXT)

    with ThreadPoolExecutor(1) as thread, pytest.raises(TimedOut):
        thread.submit(impatient).result(timeout=60)
    (point,) = told.propose([trial(1)], [], NEXT)
    assert (point["shown"], pool.restarts) == ("1=0.5", 0)


def pid_in(file: Path) -> int:
    """Return the process id of a worker whose model waits for the removal of the file."""
    eventually(lambda: file.exists() and file.read_text() != "")
    return int(file.read_text())


def test_a_call_that_was_given_up_keeps_its_worker_until_the_worker_has_answered(
    pool: Workers, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    deaf, told = model(pool, "IgnoresDeadline", file), model(pool, "EchoModel")

    def impatient() -> None:
        deadline.begin(0.2)
        deaf.propose([trial(0)], [], NEXT)

    with ThreadPoolExecutor(1) as thread, pytest.raises(TimedOut):
        thread.submit(impatient).result(timeout=60)
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(told.propose, [trial(1)], [], NEXT)
        eventually(lambda: pool.waiting == 1)
        pid = pid_in(file)
        file.unlink()
        (point,) = asked.result(timeout=60)
    assert (point["shown"], point["pid"], pool.waiting, pool.restarts) == ("1=0.5", pid, 0, 0)


def test_a_call_that_was_given_up_ends_its_worker_if_no_thread_can_wait_for_the_answer(
    pool: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "pid"
    deaf, told = model(pool, "IgnoresDeadline", file), model(pool, "EchoModel")

    class NoThread(threading.Thread):
        def start(self) -> None:
            raise RuntimeError("can't start new thread")

    stopped = threading.Event()

    def given_up() -> None:
        deadline.begin(60.0, stopped=stopped)
        deaf.propose([trial(0)], [], NEXT)

    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(given_up)
        pid = pid_in(file)
        with monkeypatch.context() as patched:
            patched.setattr(threading, "Thread", NoThread)
            stopped.set()
            with pytest.raises(Unavailable):
                asked.result(timeout=60)
    assert not lives(pid)
    (point,) = told.propose([trial(1)], [], NEXT)
    assert point["shown"] == "1=0.5"


def test_a_long_proposal_does_not_hold_up_a_study_of_the_same_worker_while_another_is_free(
    pair: Workers, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    echo, other, waits = (
        model(pair, "EchoModel"),
        model(pair, "EchoModel"),
        model(pair, "Waits", file),
    )
    (before,), (elsewhere,) = (
        echo.propose([trial(0)], [], NEXT),
        other.propose([trial(0)], [], NEXT),
    )
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(waits.propose, [trial(0)], [], NEXT)
        assert pid_in(file) == before["pid"]
        # the file is there: the long one continues
        (moved,) = echo.propose([trial(0), trial(1)], [], NEXT)
        assert (moved["shown"], moved["pid"], file.exists()) == (
            "0=0.5,1=0.5",
            elsewhere["pid"],
            True,
        )
        file.unlink()
        asked.result(timeout=60)
    assert (pair.waiting, pair.restarts) == (0, 0)


def test_a_study_that_returns_to_a_worker_gets_the_missed_changes(
    pair: Workers, tmp_path: Path
) -> None:
    file = tmp_path / "pid"
    echo, waits = model(pair, "EchoModel"), model(pair, "Waits", file)
    (first,) = echo.propose([trial(0), trial(1), trial(2)], [], NEXT)
    shown, pids = [], []
    for finished in ([trial(1), trial(2, 0.25), trial(3)], [trial(3), trial(4)]):
        with ThreadPoolExecutor(1) as thread:
            (last,) = echo.propose([trial(0)], [], NEXT)
            for each in pair._workers:  # the study's own one is taken by another request
                each.models.discard(waits)
                if echo in each.models:
                    each.models.add(waits)
            file.with_suffix(".done").unlink(missing_ok=True)
            asked = thread.submit(waits.propose, [trial(0)], [], NEXT)
            assert pid_in(file) == last["pid"]
            (point,) = echo.propose(finished, [], NEXT)
            shown.append(point["shown"])
            pids.append(point["pid"])
            file.unlink()
            asked.result(timeout=60)
    assert shown == ["1=0.5,2=0.25,3=0.5", "3=0.5,4=0.5"]
    assert pids[1] == first["pid"] != pids[0]


def test_a_request_waits_for_whichever_worker_is_free_first(pair: Workers, tmp_path: Path) -> None:
    files = [tmp_path / "one", tmp_path / "other"]
    waiting = [model(pair, "Waits", file) for file in files]
    echo = model(pair, "EchoModel")
    echo.propose([trial(0)], [], NEXT)
    with ThreadPoolExecutor(3) as thread:
        asked = [thread.submit(each.propose, [trial(0)], [], NEXT) for each in waiting]
        pids = [pid_in(file) for file in files]
        last = thread.submit(echo.propose, [trial(0)], [], NEXT)
        eventually(lambda: pair.waiting == 1)
        for file, pid in list(zip(files, pids, strict=True))[::-1]:
            file.unlink()
            if file is files[1]:
                (point,) = last.result(timeout=60)
                assert (point["pid"], point["shown"], files[0].exists()) == (pid, "0=0.5", True)
        for each in asked:
            each.result(timeout=60)


def test_a_new_model_goes_to_the_worker_that_serves_the_fewest(pair: Workers) -> None:
    def asked(one: RemoteModel) -> object:
        (point,) = one.propose([trial(0)], [], NEXT)
        return point["pid"]

    kept = [model(pair, "EchoModel") for _ in range(4)]
    pids = [asked(each) for each in kept]
    assert pids == [pids[0], pids[1], pids[0], pids[1]]
    assert pids[0] != pids[1]
    del kept[1]  # its study was closed
    assert asked(model(pair, "EchoModel")) == pids[1]


def test_requests_that_no_worker_takes_in_time_are_refused(pool: Workers, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    waits, told = model(pool, "Waits", file), model(pool, "EchoModel")

    def impatient() -> None:
        deadline.begin(0.1)
        told.propose([trial(0)], [], NEXT)

    with ThreadPoolExecutor(2) as thread:
        asked = thread.submit(waits.propose, [trial(0)], [], NEXT)
        pid_in(file)
        with pytest.raises(TimedOut):
            thread.submit(impatient).result(timeout=60)
        assert pool.waiting == 0
        file.unlink()
        asked.result(timeout=60)


def at_most(monkeypatch: pytest.MonkeyPatch, most_bytes: int) -> None:
    """Limit the memory of workers that are started from now on."""
    limited = f"import suggest.worker_process as w; w.MOST_BYTES = {most_bytes}; main(int"
    monkeypatch.setattr(workers, "_BOOT", workers._BOOT.replace("main(int", limited))


def test_a_worker_with_too_little_memory_evicts_the_model_that_was_not_used_for_longest(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most(monkeypatch, 400 << 20)
    one, other = (
        model(pool, "AllocatesMemory", 150 << 20),
        model(pool, "AllocatesMemory", 150 << 20),
    )
    third = model(pool, "AllocatesMemory", 150 << 20)
    asked = [
        (*each.propose([trial(0), trial(1)], [], NEXT),)[0]
        for each in (one, other, one, third, one, third, other)
    ]
    assert [point["asked"] for point in asked] == [1, 1, 2, 1, 3, 2, 1]
    assert {point["shown"] for point in asked} == {"0=0.5,1=0.5"}
    assert len({point["pid"] for point in asked}) == 1


def test_a_worker_whose_only_model_takes_too_much_memory_ends_and_is_replaced(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_most(monkeypatch, 150 << 20)
    large = model(pool, "AllocatesMemory", 200 << 20)
    points = [
        (*large.propose([trial(number) for number in range(n)], [], NEXT),)[0] for n in (1, 2, 3)
    ]
    assert [point["shown"] for point in points] == ["0=0.5", "0=0.5,1=0.5", "0=0.5,1=0.5,2=0.5"]
    assert len({point["pid"] for point in points}) == 3
    assert pool.restarts == 0


@pytest.mark.skipif(
    not Path("/proc/self/statm").exists(), reason="the limit is set above what /proc says is mapped"
)
def test_a_model_that_exceeds_its_memory_limit_fails_its_call_and_not_its_study(
    pool: Workers, tmp_path: Path
) -> None:
    file = tmp_path / "allocates"
    file.touch()
    overflows, told = model(pool, "Overflows", file), model(pool, "EchoModel")
    (before,) = told.propose([trial(0)], [], NEXT)
    with pytest.raises(
        LimitReached, match="needs more memory than a worker process of this server may have"
    ) as raised:
        overflows.propose([trial(0)], [], NEXT)
    assert code_of(raised.value) is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert pool.restarts == 1
    assert not lives(int(str(before["pid"])))
    file.unlink()
    (after,), (other,) = (
        overflows.propose([trial(0)], [], NEXT),
        told.propose([trial(0), trial(1)], [], NEXT),
    )
    assert (after["shown"], other["shown"], pool.restarts) == ("0=0.5", "0=0.5,1=0.5", 1)


def test_a_worker_that_cannot_be_started_makes_the_server_unavailable_until_it_can(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = model(pool, "EchoModel")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nowhere/python")
        with pytest.raises(
            Unavailable, match=r"a worker process cannot be started: .*/nowhere/python.*; try again"
        ):
            echo.propose([trial(0)], [], NEXT)
        assert pool.running == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(
            Unavailable, match=r"a worker process cannot be started: .*Too many open files"
        ):
            echo.propose([trial(0)], [], NEXT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    (point,) = echo.propose([trial(0)], [], NEXT)
    assert (point["shown"], pool.restarts) == ("0=0.5", 0)


def test_a_failed_start_leaves_no_descriptor_open(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    echo = model(pool, "EchoModel")
    monkeypatch.setattr(sys, "executable", "/nowhere/python")

    def lowest_free() -> int:
        descriptor = os.open(os.devnull, os.O_RDONLY)
        os.close(descriptor)
        return descriptor

    before = lowest_free()
    with pytest.raises(Unavailable):
        echo.propose([trial(0)], [], NEXT)
    assert lowest_free() == before


def test_a_model_that_exits_is_not_started_again_without_end(pool: Workers) -> None:
    with pytest.raises(
        Unavailable, match=r"a worker process has ended \(exit code 0\), twice in a row"
    ):
        model(pool, "Exits").propose([trial(0)], [], NEXT)


def test_the_time_that_workers_compute_is_counted(pool: Workers, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(model(pool, "Waits", file).propose, [trial(0)], [], NEXT)
        pid_in(file)
        assert pool.busy_s == 0.0
        began = time.monotonic()
        eventually(lambda: time.monotonic() - began > 0.01)
        file.unlink()
        asked.result(timeout=60)
    assert pool.busy_s > 0.01


def test_closing_ends_a_computation(tmp_path: Path) -> None:
    pool, file = Workers(size=1), tmp_path / "pid"
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(model(pool, "Waits", file).propose, [trial(0)], [], NEXT)
        eventually(lambda: file.exists() and file.read_text() != "")
        pid = int(file.read_text())
        pool.close()
        with pytest.raises(Unavailable):
            asked.result(timeout=60)
    assert not lives(pid)


def test_a_worker_ends_with_its_parent_also_in_the_middle_of_a_proposal(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    program = (
        "from pathlib import Path\n"
        "from tests.unit.test_workers import *\n"
        f"model(Workers(size=1), 'Waits', Path({str(file)!r})).propose([trial(0)], [], NEXT)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], cwd=ROOT)
    eventually(lambda: file.exists() and file.read_text() != "")
    pid = int(file.read_text())
    parent.kill()
    parent.wait()
    eventually(lambda: not lives(pid))


def test_an_idle_worker_ends_and_the_next_request_starts_another(
    pool: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        workers,
        "_BOOT",
        workers._BOOT.replace(
            "main(int", "import suggest.worker_process as w; w.IDLE_S = 0.05; main(int"
        ),
    )
    echo = model(pool, "EchoModel")
    (before,) = echo.propose([trial(0)], [], NEXT)
    eventually(lambda: not lives(int(str(before["pid"]))))
    (after,) = echo.propose([trial(0)], [], NEXT)
    assert (after["shown"], after["pid"] == before["pid"], pool.restarts) == ("0=0.5", False, 0)
