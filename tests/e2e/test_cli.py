"""`tuner` as a person types it: tiny experiments, real processes, a state of their own. What it says and returns."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

TUNER = Path(sys.executable).parent / "tuner"
PROGRAM = """
import os, pathlib, sys, time
here = pathlib.Path("starts.txt")
with here.open("a") as file:
    file.write(f"{os.environ['TUNER_TRIAL_NUMBER']} {os.environ['TUNER_ATTEMPT']}\\n")
print("step=1 score=%s" % sys.argv[1], flush=True)
deadline = time.monotonic() + float(sys.argv[2])
while time.monotonic() < deadline and not pathlib.Path("go").exists():
    time.sleep(0.01)
"""


class Person:
    """Somebody at a shell, in a folder with one experiment."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.file = folder / "experiment.yaml"
        (folder / "trial.py").write_text(PROGRAM)
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("TUNER_", "NO_COLOR"))},
            "TUNER_STATE_DIR": str(folder / "state"),
            "PATH": f"{TUNER.parent}{os.pathsep}{os.environ['PATH']}",  # so that hints say `tuner`
            "PYTHONFAULTHANDLER": "1",  # where a process stands that does not end, said to whoever aborts it
        }
        self.started: list[subprocess.Popen[str]] = []

    def write(self, *, name: str = "tiny", trials: int = 3, parallelism: int = 1, seconds: float = 0, more: str = "",
              command: str = "") -> Path:  # fmt: skip
        command = command or f'[python, trial.py, "${{x}}", "{seconds}"]'
        self.file.write_text(
            f"""
apiVersion: tuner.dev/v1
kind: Experiment
metadata: {{name: {name}}}
spec:
  objective: {{metric: score, direction: maximize}}
  parameters: {{x: {{type: float, min: 0, max: 1}}}}
  algorithm: {{name: random, seed: 1}}
  budget: {{trials: {trials}, failedTrials: 2}}
  parallelism: {parallelism}
  canary: 0s
  trial: {{command: {command}, gracePeriod: 60s}}
{more}"""
        )
        return self.file

    def start(self, *arguments: str | Path) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [TUNER, *arguments], cwd=self.folder, env=self.env, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.started.append(process)
        return process

    def tuner(self, *arguments: str | Path) -> tuple[int, str, str]:
        process = self.start(*arguments)
        out, err = process.communicate(timeout=60)
        return process.returncode, out, err

    def json(self, *arguments: str) -> Any:
        code, out, err = self.tuner(*arguments)
        assert code == 0, err
        return json.loads(out)

    def trials(self) -> list[Any]:
        found: list[Any] = self.json("get", "trials", "tiny", "-o", "json")
        return found

    def starts(self) -> list[str]:
        path = self.folder / "starts.txt"
        return path.read_text().splitlines() if path.exists() else []

    def let_go(self) -> None:
        """Trials that wait may end."""
        (self.folder / "go").touch()


@pytest.fixture
def me(tmp_path: Path) -> Iterator[Person]:
    person = Person(tmp_path)
    yield person
    person.let_go()
    for process in person.started:
        if process.poll() is None:
            process.terminate()
        process.communicate(timeout=30)
    eventually(lambda: not processes_of(tmp_path), within_s=15)


def eventually(condition: Callable[[], bool], *, within_s: float = 20) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.02)


def processes_of(folder: Path) -> list[str]:
    """Everything that was started on this state directory and still lives; nothing where there is no /proc."""
    mark = f"TUNER_STATE_DIR={folder}/".encode()
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if mark in environ.read_bytes():
                found.append(environ.parent.name)
    return found


def states(trials: list[Any]) -> list[str]:
    return [trial["state"] for trial in trials]


def test_one_file_and_one_command_give_the_best_trial(me: Person) -> None:
    code, out, err = me.tuner("run", me.write())
    assert code == 0, err
    best = max(me.trials(), key=lambda trial: trial["value"])
    assert out.startswith(f"tiny: best score {best['value']:.6g} (trial {best['number']})\n")
    assert "tuner get trials tiny" in err
    assert me.starts() == ["0 1", "1 1", "2 1"]


def test_what_is_shown_of_a_finished_experiment(me: Person) -> None:
    me.tuner("run", me.write())
    trials = me.trials()
    assert [sorted(trial) for trial in trials] == [
        ["attempts", "endTime", "labels", "name", "number", "parameters", "startTime", "state", "step", "value"]
    ] * 3
    assert states(trials) == ["succeeded"] * 3
    assert trials[0]["attempts"][0]["exitCode"] == 0
    assert trials[0]["parameters"]["x"] == trials[0]["value"]
    (experiment,) = me.json("get", "experiments", "-o", "json")
    best = me.json("best", "tiny", "-o", "json")
    assert experiment["trials"] == {"succeeded": 3}
    assert experiment["best"] == {key: best[key] for key in ("number", "value", "parameters")}
    assert {"name", "namespace", "uid", "state", "reason", "startTime", "endTime"} < set(experiment)

    rows = list(csv.DictReader(io.StringIO(me.tuner("export", "tiny", "--format", "csv")[1])))
    assert [float(row["parameters.x"]) for row in rows] == [trial["parameters"]["x"] for trial in trials]
    whole = me.json("export", "tiny", "--format", "json")
    assert whole["trials"][1]["measurements"] == [
        {"attempt": 1, "metric": "score", "step": 1, "value": trials[1]["value"]}
    ]
    assert me.tuner("describe", "tiny")[1].splitlines()[-1].startswith("Why: all 3 trials are done")
    assert me.tuner("describe", "tiny/1")[1].splitlines()[-1].startswith("Why: it ended with score")
    assert me.tuner("logs", "tiny/1")[1] == f"step=1 score={trials[1]['value']}\n"
    assert me.tuner("get", "trials", "tiny", "-o", "name")[1] == "tiny/0\ntiny/1\ntiny/2\n"
    assert me.tuner("get", "trials", "tiny", "--no-headers")[1].splitlines()[0].startswith("0 ")


def test_each_attempt_says_where_it_came_from(me: Person) -> None:
    me.write(command="[python, trial.py, '${x}', '0']", more="")
    me.file.write_text(me.file.read_text().replace("gracePeriod: 60s", "env: {API_KEY: hush, MODE: fast}"))
    me.tuner("run", me.file)
    (folder,) = (me.folder / "state" / "experiments").iterdir()
    provenance = json.loads((folder / "trials" / "0" / "1" / "provenance.json").read_text())
    assert provenance["environment"] == {"API_KEY": "[redacted]", "MODE": "fast"}
    assert (provenance["seed"], provenance["revision"], provenance["file"]) == (1, 1, str(me.file))
    assert (folder / "experiment.yaml").read_text() == me.file.read_text()
    assert (folder / "experiment.yaml").stat().st_mode & 0o777 == 0o600


def test_the_file_of_a_finished_experiment_prints_its_result_again(me: Person) -> None:
    first = me.tuner("run", me.write())
    again = me.tuner("run", me.file)
    assert (again[0], again[1]) == (0, first[1])
    assert len(me.starts()) == 3


def test_a_changed_file_is_refused_with_what_changed_and_the_way_on(me: Person) -> None:
    me.tuner("run", me.write())
    code, _, err = me.tuner("run", me.write(parallelism=2))
    assert code == 6
    assert "spec.parallelism: 1 -> 2" in err
    assert "tuner resume" in err
    me.file.write_text(me.file.read_text().replace("max: 1}", "max: 2}"))
    code, _, err = me.tuner("resume", me.file)
    assert code == 6
    assert "spec.parameters.x.max: 1 -> 2" in err
    assert "spec.parallelism" not in err.split("\ntuner resume accepts")[0]


def test_an_invalid_file_starts_nothing(me: Person) -> None:
    me.write()
    me.file.write_text(me.file.read_text().replace("min: 0", "min: 3").replace("parallelism: 1", "paralelism: 1"))
    for verb in ("validate", "run"):
        code, out, err = me.tuner(verb, me.file)
        assert (code, out) == (2, "")
        assert "2 problems" in err
        assert "did you mean parallelism" in err
    assert me.tuner("get", "experiments", "-o", "json")[:2] == (0, "[]\n")


def test_what_only_the_service_knows_is_found_in_the_file_too(me: Person) -> None:
    me.write()
    me.file.write_text(me.file.read_text().replace("name: random", "name: randon"))
    for verb in ("validate", "run"):
        code, _, err = me.tuner(verb, me.file)
        assert code == 2
        assert "8:21 spec.algorithm.name" in err
        assert "did you mean random?" in err
    assert not list((me.folder / "state" / "experiments").glob("*"))


def test_a_command_that_is_not_there_pauses_at_once_and_the_corrected_file_goes_on(me: Person) -> None:
    code, _, err = me.tuner("run", me.write(command="[no-such-program]"))
    assert code == 8
    assert "no-such-program" in err
    assert "tuner resume" in err
    assert states(me.trials()) == ["queued"]
    assert "no-such-program" in me.tuner("describe", "tiny")[1].splitlines()[-1]

    code, _, err = me.tuner("run", me.file)
    assert code == 8, "running it again does not lift a pause"
    code, _, err = me.tuner("resume", me.write())
    assert code == 0, err
    assert "revision 2" in err
    assert me.starts() == ["0 2", "1 1", "2 1"]
    (folder,) = (me.folder / "state" / "experiments").iterdir()
    assert (folder / "experiment.r2.yaml").exists()


def test_a_finished_experiment_goes_on_with_a_larger_budget(me: Person) -> None:
    me.tuner("run", me.write(trials=1))
    code, _, err = me.tuner("resume", me.write(trials=2, parallelism=2))
    assert code == 0, err
    assert "spec.budget.trials: 1 -> 2" in err
    assert me.starts() == ["0 1", "1 1"]


def test_an_experiment_remembers_where_its_study_is(me: Person) -> None:
    me.tuner("run", me.write(trials=1), "--storage", "sqlite:///elsewhere.db")
    assert (me.folder / "elsewhere.db").exists()
    assert states(me.trials()) == ["succeeded"]
    code, _, err = me.tuner("best", "tiny", "--storage", "sqlite:///another.db")
    assert code == 6
    assert "elsewhere.db" in err


def test_of_two_started_at_once_one_runs_it(me: Person) -> None:
    me.write(trials=1)
    me.let_go()
    both = [me.start("run", me.file) for _ in range(2)]
    for process in both:
        process.communicate(timeout=30)
    # The slower one finds it running, or finished.
    assert sorted(process.returncode for process in both) in ([0, 0], [0, 6])
    assert me.starts() == ["0 1"]
    assert len(list((me.folder / "state" / "experiments").iterdir())) == 1


def test_quiet_still_says_what_a_person_must_do(me: Person) -> None:
    code, _, err = me.tuner("-q", "run", me.write(command="[no-such-program]"))
    assert code == 8
    assert "tuner resume" in err


def test_failures_end_it_at_the_limit(me: Person) -> None:
    # Each for a reason of its own: what fails alike pauses it (test_retry.py).
    program = "import os, sys; sys.exit(3 + int(os.environ['TUNER_TRIAL_NUMBER']))".replace("'", "''")
    code, out, _ = me.tuner("run", me.write(command=f"[python, -c, '{program}']", trials=5))
    assert (code, out) == (1, "")
    assert states(me.trials()) == ["failed", "failed"]
    assert me.tuner("best", "tiny")[0] == 3
    assert "exit code 3" in me.tuner("describe", "tiny/0")[1].splitlines()[-1]


def test_ctrl_c_costs_nothing(me: Person) -> None:
    run = me.start("run", me.write(parallelism=2, seconds=60))
    eventually(lambda: len(me.starts()) == 2)
    run.send_signal(signal.SIGINT)
    _, err = run.communicate(timeout=30)
    assert run.returncode == 130
    assert "tuner resume tiny" in err
    assert states(me.trials()) == ["queued", "queued"]
    me.let_go()
    code, _, err = me.tuner("run", me.file)
    assert code == 0, err
    assert states(me.trials()) == ["succeeded"] * 3
    assert sorted(me.starts()) == ["0 1", "0 2", "1 1", "1 2", "2 1"]


def test_a_second_ctrl_c_kills_what_ignores_the_first(me: Person) -> None:
    stubborn = (
        "import signal, time; signal.signal(15, signal.SIG_IGN); open('starts.txt', 'w').write('0'); time.sleep(60)"
    )
    run = me.start("run", me.write(command=f'[python, -c, "{stubborn}"]', trials=1))
    eventually(lambda: len(me.starts()) == 1)
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    while "Ctrl-C" not in run.stderr.readline():
        pass
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30)  # the trial would have a minute
    assert run.returncode == 130


def test_sigterm_stops_cleanly_too(me: Person) -> None:
    run = me.start("run", me.write(seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    run.terminate()
    run.communicate(timeout=30)
    assert run.returncode == 143
    assert states(me.trials()) == ["queued"]


def test_a_killed_run_goes_on_with_what_is_running(me: Person) -> None:
    run = me.start("run", me.write(seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    run.kill()
    run.communicate(timeout=30)
    assert me.tuner("describe", "tiny")[1].splitlines()[-1].endswith("tuner resume tiny")
    me.let_go()
    code, _, err = me.tuner("resume", "tiny")
    assert code == 0, err
    assert me.starts() == ["0 1", "1 1", "2 1"], "no trial was started twice"


def test_the_second_who_runs_it_is_told_who_has_it(me: Person) -> None:
    run = me.start("run", me.write(seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    code, _, err = me.tuner("run", me.file)
    assert code == 6
    assert f"process {run.pid} on" in err
    code, _, err = me.tuner("best", "tiny")
    assert (code, err) == (3, "tuner: no trial of tiny has succeeded; see tuner get trials tiny\n")
    assert me.tuner("delete", "tiny", "--yes")[0] == 6
    assert me.json("get", "experiments", "-o", "json")[0]["trials"] == {"running": 1}
    me.let_go()
    run.communicate(timeout=30)
    assert run.returncode == 0


def test_a_running_trial_shows_what_it_reported_last(me: Person) -> None:
    run = me.start("run", me.write(seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    eventually(lambda: [trial.get("step") for trial in me.trials()] == [1])
    [trial] = me.trials()
    assert trial["state"] == "running"
    assert trial["value"] == pytest.approx(trial["parameters"]["x"])
    table = me.tuner("describe", "tiny")[1].split("Running\n")[1].splitlines()
    assert table[0].split() == ["TRIAL", "FOR", "STEP", "VALUE", "PARAMETERS"]
    assert table[1].split()[2:4] == ["1", f"{trial['value']:.6g}"]
    me.let_go()
    assert run.wait(timeout=30) == 0


def test_stop_from_another_terminal_cancels_for_good(me: Person) -> None:
    run = me.start("run", me.write(seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    code, _, err = me.tuner("stop", "tiny")
    assert code == 0, err
    assert err.count("is stopping; its controller is") == 1
    run.communicate(timeout=30)
    assert run.returncode == 143
    assert states(me.trials()) == ["cancelled"]
    me.let_go()
    assert me.tuner("resume", "tiny")[0] == 0
    assert states(me.trials()) == ["cancelled", "succeeded", "succeeded", "succeeded"]


def test_stop_ends_what_a_killed_run_left_behind(me: Person) -> None:
    run = me.start("run", me.write(seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    run.kill()
    run.communicate(timeout=30)
    assert me.tuner("stop", "tiny")[0] == 0
    assert states(me.trials()) == ["cancelled"]
    assert me.tuner("stop", "tiny")[0] == 0


def test_nothing_to_list_is_said_beside_the_empty_list(me: Person) -> None:
    said = f"no experiments in {me.folder}/state\n"
    assert me.tuner("get", "experiments") == (0, "", said)
    assert me.tuner("get", "experiments", "-o", "json") == (0, "[]\n", said)
    assert me.tuner("get", "experiments", "-q") == (0, "", "")


def test_delete_removes_everything(me: Person) -> None:
    me.tuner("run", me.write())
    code, _, err = me.tuner("delete", "tiny")
    assert code == 2
    assert "its 3 attempts in" in err
    assert "--yes" in err
    assert me.tuner("delete", "tiny", "--yes")[0] == 0
    assert not list((me.folder / "state" / "experiments").iterdir())
    assert me.tuner("best", "tiny")[0] == 5
    assert me.tuner("run", me.file)[0] == 0, "the name is free again"


def test_logs_follow_a_trial_to_its_end(me: Person) -> None:
    run = me.start("run", me.write(trials=1, seconds=60))
    eventually(lambda: len(me.starts()) == 1)
    logs = me.start("logs", "-f", "tiny/0")
    assert logs.stdout is not None
    assert logs.stdout.readline().startswith("step=1 score=")
    me.let_go()
    run.communicate(timeout=30)
    logs.communicate(timeout=30)
    assert logs.returncode == 0


def test_a_file_comes_from_standard_input_and_flags_stand_anywhere(me: Person) -> None:
    text = me.write().read_text()
    done = subprocess.run(
        [TUNER, "-q", "--set", "spec.budget.trials=1", "run", "-"],
        cwd=me.folder, env=me.env, input=text, text=True, capture_output=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert len(me.trials()) == 1


def test_a_state_directory_that_cannot_be_made_is_one_sentence(me: Person) -> None:
    code, _, err = me.tuner("run", me.write(), "--state-dir", "/proc/nothing")
    assert code == 7
    assert err.count("\n") == 1
    assert "--state-dir" in err


def test_init_writes_a_file_that_is_valid_and_never_over_another(me: Person) -> None:
    assert me.tuner("init", "mine.yaml")[0] == 0
    assert me.tuner("validate", "mine.yaml")[0] == 0
    assert me.tuner("init", "mine.yaml")[0] == 6
    assert me.json("schema")["type"] == "object"
