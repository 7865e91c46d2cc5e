"""Trials of a function are forked from the supervisor,
but look and behave like separate processes.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.e2e.cli import eventually
from tests.e2e.test_python_api import Scripts, scripts

__all__ = ["scripts"]  # a fixture

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="what it looks at is in /proc"
)


def test_a_trial_is_forked_and_looks_like_a_process_that_was_executed(scripts: Scripts) -> None:
    out = scripts.output("""
import signal

def objective(trial):
    import __main__, stat
    print("alone", os.getsid(0) == os.getpid() == os.getpgid(0))
    print("forked", b"controller.runtime.local.supervisor" in pathlib.Path("/proc/self/cmdline").read_bytes())
    extra = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2 and os.path.exists(f"/proc/self/fd/{fd}")]
    print("files", [os.readlink(f"/proc/self/fd/{fd}") for fd in extra])
    print("signals", signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGCHLD))
    print("main", __main__.__name__, sys.argv)
    print("flags", sys.flags.isolated, sys.flags.no_site, sys.flags.utf8_mode == int(os.environ.get("PYTHONUTF8", 0)))
    return 1

print(tuner.minimize(objective, X, trials=1, progress=False).log(0))
print("script", sys.argv)
""")
    said = dict(line.split(" ", 1) for line in out.splitlines() if " " in line)
    assert said["alone"] == said["forked"] == "True"
    assert said["files"] == "[]"
    assert said["signals"] == f"True {signal.SIG_DFL}"
    assert said["main"] == f"__main__ {said['script']}"
    assert said["flags"] == "0 0 True"


def test_a_trial_with_another_interpreters_environment_is_executed(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    print("forked", b"controller.runtime.local.supervisor" in pathlib.Path("/proc/self/cmdline").read_bytes())
    return hash("a") % 1000

spec = {"trial": {"env": {"PYTHONHASHSEED": "7", "MINE": "8"}}}
study = tuner.minimize(objective, X, trials=2, spec=spec, progress=False)
print("forked False" in study.log(0), len({result.value for result in study.results()}))
""")
    assert out == "True 1\n"


def test_changes_of_a_trial_to_its_process_affect_no_other(scripts: Scripts) -> None:
    out = scripts.output("""
import random

def objective(trial):
    print("state", random.random(), getattr(random, "changed", 0), os.environ.get("CHANGED"), os.getcwd())
    random.seed(1)
    random.changed = 1
    os.environ["CHANGED"] = "1"
    sys.stdout = None
    os.chdir("/")
    sys.path.clear()
    return trial["x"]

study = tuner.minimize(objective, X, trials=3, progress=False)
said = [study.log(number).split() for number in range(3)]
print(study.state, len({each[1] for each in said}), {tuple(each[2:5]) for each in said} == {("0", "None", str(HERE))})
""")
    assert out == "succeeded 3 True\n"


@pytest.mark.parametrize(
    ("objective", "state", "said"),
    [
        ("sys.exit(3)", "failed", "exit code 3"),
        ("sys.exit('no data')", "failed", "no data"),
        ("os._exit(4)", "failed", "exit code 4"),
        ("os.abort()", "failed", "SIGABRT"),
        ("time.sleep(1000)", "failed", "timeout"),
    ],
)
def test_the_way_a_trials_process_ends_is_reported(
    scripts: Scripts, objective: str, state: str, said: str
) -> None:
    out = scripts.output(f"""
def objective(trial):
    if trial.number == 1:
        {objective}
    return 1.0

spec = {{"trial": {{"gracePeriod": "1s"}}}}
try:
    study = tuner.minimize(objective, X, trials=3, trial_timeout=3, spec=spec, progress=False)
except tuner.SearchFailed as error:
    study = error.study
print([r.state for r in study.results()], study.results()[1].reason)
""")
    assert state in out
    assert out.count("succeeded") == 2
    assert said in out


def test_a_child_that_leaves_the_trials_session_ends_with_the_search(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            (HERE / "escaped").write_text(str(os.getpid()))
            time.sleep(1000)
        os._exit(0)
    while not (HERE / "escaped").exists() or not (HERE / "escaped").read_text():
        time.sleep(0.01)
    return 1.0

print(tuner.minimize(objective, X, trials=1, progress=False).state)
""")
    assert out == "succeeded\n"
    pid = int((scripts.folder / "escaped").read_text())
    eventually(lambda: not Path(f"/proc/{pid}").exists())


def _supervisor(folder: Path) -> int:
    for lock in folder.glob("state/experiments/*/supervisor.lock"):
        try:
            return int(json.loads(lock.read_bytes())["pid"])
        except (ValueError, KeyError):
            pass
    return 0


@pytest.mark.parametrize("kills", [4, pytest.param(20, marks=pytest.mark.soak)])
@pytest.mark.parametrize("killed", ["script", "supervisor", "both"])
def test_kills_at_random_moments_lose_nothing_and_run_nothing_twice(
    scripts: Scripts, killed: str, kills: int
) -> None:
    trials = 12 * kills  # more than run until the last kill; each kill may hit the same two
    spec = {"trial": {"retries": {"infrastructure": kills}}}
    body = f"""
def objective(trial):
    started(trial)
    time.sleep(0.2)
    return trial["x"]

study = tuner.minimize(
    objective, X, trials={trials}, parallelism=2, name="killed", algorithm="random", spec={spec}, progress=False
)
found = sorted((r.number, r.state) for r in study.results())
print(study.state, found == [(n, "succeeded") for n in range({trials})])
"""
    moments = random.Random(int(os.environ.get("TUNER_TEST_SEED", "0")))
    process = scripts.start(body)
    for _ in range(kills):
        time.sleep(moments.uniform(0.2, 1.5))
        assert process.poll() is None, process.communicate()[1]
        if killed != "script" and (pid := _supervisor(scripts.folder)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if killed != "supervisor":
            process.kill()
            process.communicate()
            process = scripts.start(body)
    out, err = process.communicate(timeout=200)
    assert out == "succeeded True\n", err
    starts = scripts.starts()
    assert len(starts) == len(set(starts)), "an attempt ran twice"
    assert {line.split()[0] for line in starts} == {str(number) for number in range(trials)}
    if killed == "script":
        assert len(starts) == trials, "a trial was repeated although nothing had ended it"


def test_a_killed_trial_runs_again_and_affects_no_other(scripts: Scripts) -> None:
    process = scripts.start("""
def objective(trial):
    with (HERE / "pids").open("a") as file:
        file.write(f"{trial.number} {trial.attempt} {os.getpid()}\\n")
    while trial.number == 1 and trial.attempt == 1:
        time.sleep(0.01)
    return 1.0

print(tuner.minimize(objective, X, trials=4, parallelism=2, progress=False).state)
""")

    def victim() -> int:
        file = scripts.folder / "pids"
        lines = file.read_text().splitlines() if file.exists() else []
        return next((int(line.split()[2]) for line in lines if line.startswith("1 1 ")), 0)

    eventually(lambda: victim() > 0)
    time.sleep(0.1)
    os.kill(victim(), signal.SIGKILL)
    out, err = process.communicate(timeout=100)
    assert out == "succeeded\n", err


def test_forked_trials_have_gpus_of_their_own(scripts: Scripts) -> None:
    scripts.env |= {"TUNER_GPUS": "0,1", "TUNER_LOCK_DIR": str(scripts.folder / "locks")}
    out = scripts.output("""
def objective(trial):
    gpu = os.environ["CUDA_VISIBLE_DEVICES"]
    (HERE / f"held-{gpu}").mkdir()
    time.sleep(0.05)
    (HERE / f"held-{gpu}").rmdir()
    return int(gpu)

study = tuner.minimize(objective, X, trials=8, parallelism=2, gpu=1, progress=False)
print(study.state, {result.value for result in study.results()} == {0, 1})
""")
    assert out == "succeeded True\n"
