"""A controller that is killed repeatedly with SIGKILL, with real processes and databases."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests import called, forked

ROOT = Path(__file__).parents[2]
EXPERIMENT = """\
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {name: killed}
spec:
  objective: {metric: score, direction: maximize}
  parameters: {x: {type: float, min: 0, max: 1}}
  initial: [{x: 0.5}]
  algorithm: {name: random, seed: 3}
  pruning: {name: median, warmupSteps: 1, minTrials: 3}
  parallelism: 2
  budget: {trials: TRIALS}
  canary: 0s
  trial:
    command:
      - sh
      - -c
      - |
        echo "$TUNER_TRIAL_NAME $TUNER_ATTEMPT" >> ran.txt
        for step in 1 2 3 4; do echo "step=$step score=$1"; sleep PACE; done
      - sh
      - "${x}"
"""

# Writes of other commands. tests/service kills the server at writes
# that only a gRPC client can request.
BY_CLIENTS = ("store.requeue", "store.relabel_trial", "store.delete_trial")
BY_REVISION = ("controller.experiment_store.add_revision", "study.update", "store.update_study")
BY_DELETE = ("store.delete_study", "controller.experiment_store.delete_experiment")
BY_REOPENING = ("study.reopen", "store.reopen_trials")  # tests/e2e/test_retry.py
BY_STOP = ("controller.experiment_store.request_stop",)
BY_RESTORE = ("controller.backup.swap",)  # tests/service/test_backup.py
BY_PACK = (  # tests/e2e/test_pack.py
    "store.copy_study",
    "controller.experiment_store.copy_experiment",
    "controller.pack.named",
    "controller.pack.cleared",
)
# These happen once in the life of an experiment, so each gets its own experiment.
ONCE = (
    "store.make_schema",
    "controller.experiment_store.create_experiment",
    "study.create",
    "store.insert_study",
    "store.add_trials",
)
# tests/cluster/test_faults.py, tests/kube/test_controller_without_folders.py,
# tests/kube/test_parameters_on_a_cluster.py, tests/kube/test_budget_in_the_cluster.py
ON_A_CLUSTER = (
    "cluster.note",
    "cluster.delete",
    "cluster.answer",
    "controller.experiment_store.object_records",
    "controller.experiment_store.note_limits_that_stop",
)
AT_THE_END = ("cluster.conclude",)  # tests/kube/test_two_controllers.py
BY_PARENTS = ("checkpoint.copy",)  # tests/e2e/test_decide_returns_the_actions_of_generations.py
BY_REGRET = ("study.estimate",)
BY_NAMING = ("study.decide", "store.decide")  # tests/e2e/test_define_by_run.py
LATER = (
    BY_CLIENTS
    + BY_REOPENING
    + BY_REVISION
    + BY_DELETE
    + BY_STOP
    + ON_A_CLUSTER
    + AT_THE_END
    + BY_RESTORE
    + BY_PACK
    + BY_PARENTS
    + BY_REGRET
    + BY_NAMING
)


class Killed:
    """An experiment in its own folder, which is run repeatedly."""

    def __init__(self, folder: Path, *, pace: str, trials: int) -> None:
        self.folder = folder
        self.count = trials
        self.state_dir = folder / "state"
        self.log = folder / "tuner.log"
        (folder / "experiment.yaml").write_text(
            EXPERIMENT.replace("PACE", pace).replace("TRIALS", str(trials))
        )

    def tuner(self, *words: str, failpoint: str = "") -> subprocess.CompletedProcess[str]:
        env = {**os.environ, "TUNER_FAILPOINT": failpoint, "TUNER_STATE_DIR": str(self.state_dir)}
        return called.run_tuner(words, folder=self.folder, env=env, within_s=120)

    def start(self) -> subprocess.Popen[str]:
        """Start a run, which may be killed during its start."""
        env = {**os.environ, "TUNER_STATE_DIR": str(self.state_dir)}
        return forked.tuner(["run", "experiment.yaml"], folder=self.folder, env=env)

    def kill(self, process: subprocess.Popen[str]) -> None:
        process.kill()
        self._log(*process.communicate())

    def run(self, *, failpoint: str = "") -> int:
        done = self.tuner("run", "experiment.yaml", failpoint=failpoint)
        self._log(done.stdout, done.stderr)
        return done.returncode

    def _log(self, out: str, err: str) -> None:
        with self.log.open("a") as log:
            log.write(out + err)

    def said(self) -> str:
        return self.log.read_text()[-3000:]

    def trials(self) -> list[dict[str, object]]:
        done = self.tuner("get", "trials", "killed", "-o", "json")
        trials: list[dict[str, object]] = json.loads(done.stdout)
        return trials

    def check(self) -> None:
        """Check that exactly the requested trials finished,
        each attempt's process ran once, and none is left.
        """
        trials = self.trials()
        assert [trial["number"] for trial in trials] == list(range(self.count))
        assert {str(trial["state"]) for trial in trials} <= {"succeeded", "pruned"}
        ran = Counter((self.folder / "ran.txt").read_text().split("\n")[:-1])
        recorded = {
            f"killed-{uid}-{trial['number']} {attempt['number']}"
            for trial in trials
            for attempt in trial["attempts"]  # type: ignore[attr-defined]
            for uid in [str(trial["name"]).split("-")[1]]
        }
        assert set(ran) == recorded
        assert set(ran.values()) == {1}
        assert left_behind(self.folder) == []


def left_behind(folder: Path) -> list[str]:
    """Return the processes whose command line or environment contains the folder."""
    found = []
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        found = [str(pid) for pid in forked.running_with(f"TUNER_STATE_DIR={folder}/")]
        found += [
            pid.name
            for pid in Path("/proc").iterdir()
            if pid.name.isdigit() and _names(pid, folder)
        ]
        if not found:
            return []
        time.sleep(0.05)
    return found


def _names(process: Path, folder: Path) -> bool:
    if process.name == str(os.getpid()):
        return False
    try:
        told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    except OSError:
        return False
    return bytes(folder) in told


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    for pid in left_behind(tmp_path):
        os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize("kills", [6, pytest.param(20, marks=pytest.mark.soak)])
def test_a_run_killed_at_random_moments_loses_and_repeats_nothing(folder: Path, kills: int) -> None:
    # Slow enough that the trials take longer than all kills,
    # although many are pruned at their first step.
    killed = Killed(folder, pace="0.45", trials=2 * kills)
    moments = random.Random(20)
    for _ in range(kills):
        process = killed.start()
        time.sleep(moments.uniform(0.1, 1.2))
        assert process.poll() is None, killed.said()
        killed.kill(process)
    assert killed.run() == 0, killed.said()
    killed.check()


def test_a_run_killed_at_every_named_write_and_call_loses_and_repeats_nothing(folder: Path) -> None:
    # a slow controller finds three ended at each start
    killed = Killed(folder, pace="0.05", trials=60)
    points = [point for point in failpoints() if not point.startswith(LATER + ONCE)]
    assert len(points) >= 20
    for point in points:
        assert killed.run(failpoint=point) == -signal.SIGKILL, (
            f"{point} was not reached: {killed.said()}"
        )
    assert killed.run() == 0, killed.said()
    killed.check()


@pytest.mark.parametrize("call", ONCE)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_at_a_call_that_happens_once_is_recovered_from(
    folder: Path, call: str, moment: str
) -> None:
    assert f"{call}.{moment}" in failpoints()
    killed = Killed(folder, pace="0.01", trials=3)
    assert killed.run(failpoint=f"{call}.{moment}") == -signal.SIGKILL, killed.said()
    assert killed.run() == 0, killed.said()
    killed.check()


@pytest.mark.parametrize("call", BY_REGRET)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_kill_while_the_regret_is_bounded_is_recovered_from(
    folder: Path, call: str, moment: str
) -> None:
    killed = Killed(folder, pace="0.1", trials=12)
    file = folder / "experiment.yaml"
    text = file.read_text().replace("{trials: 12}", "{trials: 12, regretBelow: 1.0e-9}")
    file.write_text(text.replace("  pruning: {name: median, warmupSteps: 1, minTrials: 3}\n", ""))
    assert killed.run(failpoint=f"{call}.{moment}") == -signal.SIGKILL, killed.said()
    assert killed.run() == 0, killed.said()
    killed.check()


@pytest.mark.parametrize("call", BY_REVISION)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_revision_is_repeated(folder: Path, call: str, moment: str) -> None:
    killed = Killed(folder, pace="0.01", trials=3)
    assert killed.run(failpoint="runtime.start.after:2") == -signal.SIGKILL, killed.said()
    file = folder / "experiment.yaml"
    file.write_text(file.read_text().replace("minTrials: 3", "minTrials: 2"))
    done = killed.tuner("resume", "experiment.yaml", failpoint=f"{call}.{moment}")
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert killed.tuner("resume", "experiment.yaml").returncode == 0
    killed.check()
    assert "evision:   2" in killed.tuner("describe", "killed").stdout


@pytest.mark.parametrize("call", BY_DELETE)
@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_delete_is_finished_by_the_next(folder: Path, call: str, moment: str) -> None:
    killed = Killed(folder, pace="0.01", trials=2)
    assert killed.run() == 0, killed.said()
    assert (
        killed.tuner("delete", "killed", "--yes", failpoint=f"{call}.{moment}").returncode
        == -signal.SIGKILL
    )
    again = killed.tuner("delete", "killed", "--yes")
    gone = call == "controller.experiment_store.delete_experiment" and moment == "after"
    assert again.returncode == (5 if gone else 0), again.stderr
    assert json.loads(killed.tuner("get", "experiments", "-o", "json").stdout) == []
    assert list((killed.state_dir / "experiments").glob("*/trials/*/*/log.txt")) == []


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_killed_stop_is_finished_by_the_next(folder: Path, moment: str) -> None:
    killed = Killed(folder, pace="5", trials=3)
    assert killed.run(failpoint="runtime.start.after:2") == -signal.SIGKILL, killed.said()
    assert (
        killed.tuner("stop", "killed", failpoint=f"{BY_STOP[0]}.{moment}").returncode
        == -signal.SIGKILL
    )
    assert killed.tuner("stop", "killed").returncode == 0
    assert {trial["state"] for trial in killed.trials()} == {"cancelled"}
    assert left_behind(folder) == []


@cache
def failpoints() -> list[str]:
    command = [sys.executable, "-m", "controller", "debug", "failpoints"]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.split()
