"""`tuner.current_trial()` in scripts that `tuner run` starts, in scripts run by hand,
and in objective functions.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.e2e.cli import Cli
from tests.e2e.test_python_api import Scripts, scripts

__all__ = ["scripts"]  # a fixture

SCRIPT = """
import tuner
trial = tuner.current_trial({"x": 7.0, "rounds": 2})
assert trial is tuner.current_trial()
for step in range(trial["rounds"]):
    trial.report(step, score=trial["x"], other=1)
"""


def test_a_script_of_tuner_run_gets_its_parameters_and_its_reports_are_metrics(cli: Cli) -> None:
    (cli.folder / "script.py").write_text(SCRIPT + "(trial.checkpoint_dir / 'kept').touch()\n")
    assert cli.tuner("run", cli.write(command="[python, script.py]"))[0] == 0
    trials = cli.json("get", "trials", "tiny", "-o", "json")
    assert [trial["value"] for trial in trials] == [trial["parameters"]["x"] for trial in trials]
    assert [trial["step"] for trial in trials] == [1, 1, 1]
    assert [trial["metrics"] for trial in trials] == [{"other": 1}] * 3


def test_outside_of_a_trial_a_script_runs_with_its_defaults_and_has_no_folders(
    tmp_path: Path,
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT + "trial.checkpoint_dir\n")
    done = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == [
        "step=0",
        "score=7.0",
        "other=1.0",
        "step=1",
        "score=7.0",
        "other=1.0",
    ]
    assert done.stderr.endswith(
        "RuntimeError: TUNER_CHECKPOINT_DIR is not set; only a trial that tuner started has this "
        "folder\n"
    )


def test_within_an_objective_current_trial_is_its_trial(scripts: Scripts) -> None:
    out = scripts.output("""
def report(value):
    tuner.current_trial().report(0, loss=value)

def objective(trial):
    assert tuner.current_trial() is trial
    report(trial["x"])

study = tuner.minimize(objective, {"x": [4]}, trials=1, progress=False)
print(study.best.value)
""")
    assert out == "4.0\n"


def test_a_metric_name_that_cannot_be_parsed_is_refused(scripts: Scripts) -> None:
    out = scripts.output("""
try:
    tuner.minimize(lambda trial: trial.report(0, **{"map@3": 1}), X, trials=1, progress=False)
except tuner.SearchFailed as error:
    print(error)
""")
    assert (
        "metric 'map@3': expected letters, digits and _ . / -, beginning with a letter or _" in out
    )
