"""Katib's files run on this machine by Katib's rules, as a user sees them."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
from pathlib import Path

import pytest

from tests import called

FILE = """apiVersion: kubeflow.org/v1beta1
kind: Experiment
metadata: {name: rules}
spec:
  objective: {type: maximize, goal: 0.99, objectiveMetricName: accuracy}
  algorithm: {algorithmName: grid}
  parallelTrialCount: 1
  maxTrialCount: 5
  parameters:
    - {name: --depth, parameterType: int, feasibleSpace: {min: "1", max: "5"}}
  trialTemplate:
    primaryContainerName: main
    trialParameters: [{name: depth, reference: --depth}]
    trialSpec:
      apiVersion: batch/v1
      kind: Job
      spec:
        template:
          spec:
            restartPolicy: Never
            containers:
              - {name: main, image: any, command: [sh, -c, 'SCRIPT', sh, "${trialParameters.depth}"]}
"""
WORKS = "echo accuracy=0.$1"


def tuner(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return called.run_tuner(
        [*words, "--state-dir", folder / "state"], folder=folder, env=os.environ
    )


def run(folder: Path, script: str, more: str = "") -> subprocess.CompletedProcess[str]:
    text = FILE.replace("SCRIPT", script).replace(
        "  maxTrialCount: 5\n", f"  maxTrialCount: 5\n{more}"
    )
    (folder / "katib.yaml").write_text(text)
    return tuner("run", "katib.yaml", folder=folder)


def states(folder: Path) -> list[str]:
    listed = tuner("get", "trials", "rules", "-o", "json", folder=folder)
    return [trial["state"] for trial in json.loads(listed.stdout)]


def test_a_parameter_named_after_its_flag_reaches_the_trial(tmp_path: Path) -> None:
    assert run(tmp_path, f"{WORKS}; echo $TUNER_PARAMETERS").returncode == 0
    best = json.loads(tuner("best", "rules", "-o", "json", folder=tmp_path).stdout)
    assert (best["value"], best["parameters"]) == (0.5, {"--depth": 5})
    logs = tuner("logs", "rules/0", folder=tmp_path).stdout
    assert '{"--depth": 1}' in logs or '{"--depth":1}' in logs


@pytest.mark.parametrize("script", ["exit 3", "no-such-program", "echo loss=1"])
def test_as_many_failures_as_max_failed_trial_count_fail_the_experiment(
    tmp_path: Path, script: str
) -> None:
    done = run(tmp_path, script, "  maxFailedTrialCount: 4\n")
    assert (done.returncode, states(tmp_path)) == (1, ["failed"] * 4)


def test_without_max_failed_trial_count_failures_do_not_end_the_search(tmp_path: Path) -> None:
    done = run(tmp_path, f"if [ $1 -lt 5 ]; then exit 3; fi; {WORKS}")
    assert (done.returncode, states(tmp_path)) == (0, [*["failed"] * 4, "succeeded"])


def test_a_trial_that_reports_nan_is_no_failure(tmp_path: Path) -> None:
    done = run(
        tmp_path,
        f"if [ $1 -lt 5 ]; then echo accuracy=nan; else {WORKS}; fi",
        "  maxFailedTrialCount: 1\n",
    )
    assert (done.returncode, states(tmp_path)) == (0, [*["infeasible"] * 4, "succeeded"])


NATIVE = (
    "spec.budget",
    "budget.failed",
    "objective.target",
    "spec.objective.metric:",
    "spec.parallelism",
)


def test_messages_name_katibs_keys_while_it_runs_and_afterwards(tmp_path: Path) -> None:
    done = run(tmp_path, "echo loss=1", "  maxFailedTrialCount: 2\n")
    assert "2 trials failed (maxFailedTrialCount: 2)" in done.stderr
    assert "Or continue without them: raise spec.maxFailedTrialCount, then: " in done.stderr
    assert "set spec.objective.objectiveMetricName to the name that is printed" in done.stderr
    described = [
        tuner("describe", *what, folder=tmp_path).stdout for what in (["rules"], ["rules/1"])
    ]
    text = (tmp_path / "katib.yaml").read_text()
    (tmp_path / "katib.yaml").write_text(text.replace("maxTrialCount: 5", "maxTrialCount: 4"))
    changed = tuner("run", "katib.yaml", folder=tmp_path)
    assert "spec.maxTrialCount: 5 -> 4" in changed.stderr
    for said in (done.stderr, *described, changed.stderr):
        assert [key for key in NATIVE if key in said] == [], said


def test_the_end_by_the_goal_names_the_goal(tmp_path: Path) -> None:
    done = run(tmp_path, "echo accuracy=1.0")
    assert "accuracy 1 (objective.goal: 0.99)" in done.stderr


def test_problems_of_the_service_are_told_in_katibs_keys(tmp_path: Path) -> None:
    text = FILE.replace("{algorithmName: grid}", "{algorithmName: random}").replace(
        "maxTrialCount: 5", "maxTrialCount: x"
    )
    (tmp_path / "katib.yaml").write_text(text)
    said = tuner("validate", "katib.yaml", folder=tmp_path).stderr
    assert "spec.maxTrialCount: expected a whole number" in said
    assert [key for key in NATIVE if key in said] == []


def test_a_file_is_checked_and_converted_without_the_packages_of_its_algorithm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "cmaes" else there(name)
    )
    more = (
        '    - {name: lr, parameterType: double, feasibleSpace: {min: "0", max: "1"}}\n  '
        "trialTemplate:"
    )
    text = FILE.replace("algorithmName: grid", "algorithmName: cmaes").replace(
        "  trialTemplate:", more
    )
    (tmp_path / "katib.yaml").write_text(
        text.replace("[{name: depth,", "[{name: lr, reference: lr}, {name: depth,").replace(
            "SCRIPT", "echo accuracy=1 ${trialParameters.lr}"
        )
    )
    checked = tuner("validate", "katib.yaml", folder=tmp_path)
    assert checked.returncode == 0, checked.stderr
    assert (
        "warning: spec.algorithm.algorithmName: cmaes needs the package cmaes, which is not "
        "installed" in checked.stderr
    )
    converted = tuner("convert", "katib.yaml", folder=tmp_path)
    assert (converted.returncode, "name: cmaes" in converted.stdout) == (0, True)
    refused = tuner("run", "katib.yaml", folder=tmp_path)
    assert (refused.returncode, "which is not installed" in refused.stderr) == (2, True)
