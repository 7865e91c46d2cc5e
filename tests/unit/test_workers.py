"""Proposals from worker processes: the same points as without, whatever becomes of a worker."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from suggest import deadline, workers
from suggest.domain import Scale
from suggest.engine import Engine
from suggest.errors import TimedOut, Unavailable
from suggest.samplers.sampler import PointRequest
from suggest.space import Float, Parameter, Space
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import ModelSetup, RemoteModel, Workers

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


def model(pool: Workers, name: str, settings: object = None, *, seed: int = 7) -> RemoteModel:
    return RemoteModel(pool, ModelSetup(f"tests.unit.slow_models:{name}", SPEC, seed, settings))


def trial(number: int, value: float = 0.5) -> Trial:
    return Trial(number, TrialState.SUCCEEDED, {"x": 0.5, "y": 0.1}, value=value)


def eventually(condition: Callable[[], bool], within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < end, "it never became true"
        time.sleep(0.005)


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def proposed(engine: Engine, trials: int) -> list[object]:
    """What an engine proposes one after the other, each trial told as soon as it is proposed."""
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
    assert [p.parameters for p in Engine(study, there.trials(), (), workers=pool).propose(5).trials] == batch


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
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)  # fmt: skip # noqa: E501
    assert done.stdout == "1 False False\n", done.stderr


def test_nothing_starts_before_a_model_asks() -> None:
    pool = Workers()
    model(pool, "Told")
    assert pool.running == 0
    pool.close()


def test_a_request_brings_what_has_changed_and_the_worker_knows_the_rest(pool: Workers) -> None:
    told = model(pool, "Told")
    first = told.propose([trial(0), trial(1)], [trial(5)], NEXT)
    again = told.propose([trial(1, 0.25), trial(2)], [], NEXT)
    assert [(p["shown"], p["running"]) for p in (*first, *again)] == [("0=0.5,1=0.5", "5"), ("1=0.25,2=0.5", "")]
    assert first[0]["pid"] == again[0]["pid"]


def test_models_of_one_worker_do_not_mix(pool: Workers) -> None:
    one, other = model(pool, "Told", seed=1), model(pool, "Told", seed=2)
    one.propose([trial(0)], [], NEXT)
    other.propose([trial(3)], [], NEXT)
    points = [*one.propose([trial(0), trial(1)], [], NEXT), *other.propose([trial(3)], [], NEXT)]
    assert [(p["seed"], p["shown"]) for p in points] == [(1, "0=0.5,1=0.5"), (2, "3=0.5")]


def test_a_killed_worker_is_replaced_and_is_shown_everything_again(pool: Workers) -> None:
    told = model(pool, "Told")
    (before,) = told.propose([trial(0)], [], NEXT)
    assert isinstance(before["pid"], int)
    os.kill(before["pid"], signal.SIGKILL)
    (after,) = told.propose([trial(0), trial(1)], [], NEXT)
    assert (after["shown"], after["pid"] == before["pid"], pool.restarts) == ("0=0.5,1=0.5", False, 1)


def test_a_worker_killed_in_the_middle_of_a_proposal_costs_one_retry(pool: Workers, tmp_path: Path) -> None:
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
    told = model(pool, "Told")
    (before,) = told.propose([trial(0)], [], NEXT)
    assert isinstance(before["pid"], int)
    os.kill(before["pid"], signal.SIGSTOP)
    monkeypatch.setattr(workers, "HANG_S", 0.3)

    def patient() -> None:
        monkeypatch.setattr(workers, "HANG_S", 60.0)  # of the one that takes its place

    threading.Timer(0.0, lambda: eventually(lambda: not lives(int(str(before["pid"])))) or patient()).start()
    (after,) = told.propose([trial(0)], [], NEXT)
    assert (after["shown"], after["pid"] == before["pid"]) == ("0=0.5", False)
    assert not lives(before["pid"])


def test_a_worker_that_reads_no_request_is_killed_and_replaced(pool: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    told = model(pool, "Told")
    monkeypatch.setattr(workers, "HANG_S", 2.0)
    (before,) = told.propose([trial(0)], [], NEXT)
    assert isinstance(before["pid"], int)
    os.kill(before["pid"], signal.SIGSTOP)
    (after,) = told.propose([trial(number) for number in range(20_000)], [], NEXT)  # more than the socket holds
    assert (after["pid"] == before["pid"], pool.restarts) == (False, 1)


def test_a_worker_imports_nothing_from_the_current_directory(
    pool: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "queue.py").write_text("raise SystemExit(1)\n")
    monkeypatch.chdir(tmp_path)
    (point,) = model(pool, "Told").propose([trial(0)], [], NEXT)
    assert point["shown"] == "0=0.5"


def test_a_model_that_kills_its_worker_twice_fails_its_call_and_no_other(pool: Workers) -> None:
    with pytest.raises(Unavailable, match=r"a worker process has ended \(exit code 3\), twice in a row"):
        model(pool, "Dies").propose([trial(0)], [], NEXT)
    (point,) = model(pool, "Told").propose([trial(0)], [], NEXT)
    assert point["shown"] == "0=0.5"


def test_an_error_of_a_model_is_raised_here_with_its_traceback(pool: Workers) -> None:
    with pytest.raises(
        RuntimeError, match=r"(?s)in a worker process:.*slow_models\.py.*ZeroDivisionError: in the model"
    ):
        model(pool, "Raises").propose([trial(0)], [], NEXT)
    assert pool.restarts == 0


def test_a_call_that_runs_out_of_time_leaves_the_worker_to_the_next(pool: Workers, tmp_path: Path) -> None:
    file = tmp_path / "pid"
    waits, told = model(pool, "Waits", file), model(pool, "Told")

    def impatient() -> None:
        deadline.begin(0.2)
        waits.propose([trial(0)], [], NEXT)

    with ThreadPoolExecutor(1) as thread, pytest.raises(TimedOut):
        thread.submit(impatient).result(timeout=60)
    (point,) = told.propose([trial(1)], [], NEXT)
    assert (point["shown"], pool.restarts) == ("1=0.5", 0)


def test_a_model_that_was_evicted_is_made_again(pool: Workers, tmp_path: Path) -> None:
    told, other = model(pool, "Told", seed=1), model(pool, "Told", seed=2)
    many = [trial(number) for number in range(300_000)]
    told.propose(many, [], NEXT)
    other.propose(many, [], NEXT)  # together more values than a worker keeps
    (point,) = told.propose([*many[:2], trial(2, 0.25)], [], NEXT)
    assert (point["shown"], pool.restarts) == ("0=0.5,1=0.5,2=0.25", 0)


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
    monkeypatch.setattr(workers, "_BOOT", workers._BOOT.replace("main(int", "import suggest.workers as w; w.IDLE_S = 0.05; main(int"))  # noqa: E501  # fmt: skip
    told = model(pool, "Told")
    (before,) = told.propose([trial(0)], [], NEXT)
    eventually(lambda: not lives(int(str(before["pid"]))))
    (after,) = told.propose([trial(0)], [], NEXT)
    assert (after["shown"], after["pid"] == before["pid"], pool.restarts) == ("0=0.5", False, 0)
