"""The examples as users run them: with the installed `tuner`, real files,
real training and a state directory.
"""

from __future__ import annotations

import collections
import json
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests import called
from tests.torch_here import needs_torch

DIGITS = Path(__file__).resolve().parents[2] / "examples" / "digits"
FINISHED = {"succeeded", "pruned", "infeasible", "failed"}
UNTRAINED = (
    '[sh, -c, "echo epoch=1 accuracy=$1; : $2 $3", sh, "${lr}", "${batch}", "${activation}"]'
)


def tuner(*arguments: str | Path, state: Path) -> subprocess.CompletedProcess[str]:
    return called.run_tuner(
        [*arguments, "--state-dir", state], folder=DIGITS, env=os.environ, within_s=240
    )


def run(file: str, *settings: str, state: Path) -> None:
    overrides = [word for setting in settings for word in ("--set", setting)]
    done = tuner("run", file, *overrides, state=state)
    assert done.returncode == 0, done.stderr


def trials_of(name: str, *, state: Path) -> list[dict[str, Any]]:
    done = tuner("get", "trials", name, "-o", "json", state=state)
    assert done.returncode == 0, done.stderr
    trials: list[dict[str, Any]] = json.loads(done.stdout)
    return trials


def best_of(name: str, *, state: Path) -> dict[str, Any]:
    done = tuner("best", name, "-o", "json", state=state)
    assert done.returncode == 0, done.stderr
    best: dict[str, Any] = json.loads(done.stdout)
    return best


@pytest.mark.parametrize("file", sorted(DIGITS.glob("*.yaml")), ids=lambda file: file.name)
def test_every_file_of_the_example_is_valid(file: Path, tmp_path: Path) -> None:
    done = tuner("validate", file, state=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_search_with_a_budget_of_money_ends_when_it_is_used_up(tmp_path: Path) -> None:
    run("budget.yaml", "spec.budget.cost=3", state=tmp_path)
    done = tuner("get", "experiments", "-o", "json", state=tmp_path)
    (told,) = json.loads(done.stdout)
    assert (told["reasonCode"], told["cost"] >= 3) == ("CostSpent", True)
    assert set(told["trials"]) <= FINISHED | {"cancelled"}


def test_the_search_finds_a_network_that_reads_the_digits(tmp_path: Path) -> None:
    run("experiment.yaml", "spec.budget.trials=20", state=tmp_path)  # `make demo` runs all 40
    trials = trials_of("digits", state=tmp_path)
    best = best_of("digits", state=tmp_path)
    states = collections.Counter(trial["state"] for trial in trials)
    # shown by pytest -rP
    print(f"best accuracy {best['value']} with {best['parameters']}; {dict(states)}")

    # Fewer if one reached the target, which hardly any network of this size does.
    assert [trial["number"] for trial in trials] == list(
        range(20 if best["value"] < 0.99 else len(trials))
    )
    assert set(states) <= FINISHED
    assert states["failed"] == 0
    assert best["value"] == max(trial["value"] for trial in trials if trial["state"] == "succeeded")
    assert best["value"] >= 0.95
    assert all(
        ("dropout" in trial["parameters"]) == (trial["parameters"]["activation"] == "relu")
        for trial in trials
    )


def test_the_grid_tries_every_combination_once(tmp_path: Path) -> None:
    run("grid.yaml", f"spec.trial.command={UNTRAINED}", state=tmp_path)
    trials = trials_of("digits-grid", state=tmp_path)
    points = [tuple(sorted(trial["parameters"].items())) for trial in trials]
    assert {trial["state"] for trial in trials} == {"succeeded"}
    assert (len(points), len(set(points))) == (24, 24)
    told = tuner("report", "digits-grid", "-o", "json", state=tmp_path)
    assert told.returncode == 0, told.stderr
    report = json.loads(told.stdout)
    values = [trial["value"] for trial in report["trials"] if trial["state"] == "succeeded"]
    assert values == sorted(values, reverse=True)
    assert {effect["parameter"] for effect in report["effects"]} == set(trials[0]["parameters"])
    shown = tuner("report", "digits-grid", state=tmp_path)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "and 4 more: --all" in shown.stdout


def test_a_random_search_can_be_made_shorter_on_the_command_line(tmp_path: Path) -> None:
    run("random.yaml", "spec.budget.trials=1", state=tmp_path)
    assert len(trials_of("digits-random", state=tmp_path)) == 1


def test_generations_go_on_from_the_checkpoints_of_the_best(tmp_path: Path) -> None:
    run(
        "generations.yaml",
        "spec.budget.trials=10",
        "spec.algorithm.settings.population=4",
        state=tmp_path,
    )
    trials = {trial["number"]: trial for trial in trials_of("digits-generations", state=tmp_path)}
    ended = [trial for trial in trials.values() if trial["state"] == "succeeded"]
    assert len(trials) == 10
    assert len(ended) >= 7
    for trial in ended:  # each has the epochs of its parent and two more
        parent = trials.get(trial.get("parent"))
        assert trial["step"] == (2 if parent is None else parent["step"] + 2)
    moved = [
        t for t in ended if "parent" in t and t["parameters"] != trials[t["parent"]]["parameters"]
    ]
    assert moved
    best = best_of("digits-generations", state=tmp_path)
    assert best["step"] >= 4
    assert best["value"] > 0.9


def test_two_processes_train_each_network_together(tmp_path: Path) -> None:
    run("distributed.yaml", "spec.budget.trials=1", state=tmp_path)
    assert [trial["state"] for trial in trials_of("digits-distributed", state=tmp_path)] == [
        "succeeded"
    ]
    logs = sorted(tmp_path.glob("experiments/*/trials/*/1/log.*"))
    assert [(log.name, bool(log.read_text())) for log in logs] == [
        ("log.1.txt", False),
        ("log.txt", True),
    ]


@needs_torch
def test_the_search_runs_with_torch_too(tmp_path: Path) -> None:
    run("torch.yaml", "spec.budget.trials=2", state=tmp_path)  # the first one diverges
    assert {trial["state"] for trial in trials_of("digits-torch", state=tmp_path)} == {
        "succeeded",
        "infeasible",
    }
    assert best_of("digits-torch", state=tmp_path)["value"] > 0


def train(
    *arguments: str, program: str = "train.py", without: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the training program alone, as if the package `without` were not installed."""
    start = f"import runpy, sys; sys.modules[{without!r}] = None; sys.path.insert(0, '.')"
    command = [
        sys.executable,
        "-c",
        f"{start}; runpy.run_path({program!r}, run_name='__main__')",
        *arguments,
    ]
    return subprocess.run(
        command, cwd=DIGITS, capture_output=True, text=True, timeout=60, check=False
    )


def test_training_prints_only_one_line_per_epoch() -> None:
    done = train("--epochs=3", "--lr=0.1")
    assert [line.split()[0] for line in done.stdout.splitlines()] == [
        "epoch=1",
        "epoch=2",
        "epoch=3",
    ]
    assert (done.returncode, done.stderr) == (0, "")


def test_training_is_deterministic() -> None:
    assert (
        train("--epochs=2", "--dropout=0.3").stdout == train("--epochs=2", "--dropout=0.3").stdout
    )


def test_diverging_parameters_are_reported_as_infeasible() -> None:
    done = train("--lr=1000")
    assert done.returncode == 42
    assert (
        done.stdout.splitlines()[-1]
        == "the loss is no longer finite in epoch 1: lr=1000 is too large here"
    )


@pytest.mark.parametrize(
    ("program", "package"), [("train.py", "scikit-learn"), ("train_torch.py", "torch")]
)
def test_a_missing_package_is_named_with_the_cure(program: str, package: str) -> None:
    done = train(program=program, without={"scikit-learn": "sklearn"}.get(package, package))
    assert done.returncode == 1
    assert done.stderr.splitlines() == [done.stderr.strip()]
    assert done.stderr.strip().endswith(f"not installed: pip install {package}")


def test_training_ends_on_sigterm() -> None:
    command = [sys.executable, "train.py", "--epochs=100000"]
    with subprocess.Popen(command, cwd=DIGITS, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 143


def test_a_search_for_layers_tries_networks_of_several_depths(tmp_path: Path) -> None:
    file = DIGITS.parent / "layers" / "experiment.yaml"
    done = tuner("run", file, "--set", "spec.budget.trials=6", state=tmp_path)
    assert done.returncode == 0, done.stderr
    trials = trials_of("layers", state=tmp_path)
    assert {trial["state"] for trial in trials} == {"succeeded"}
    depths = {sum(name.startswith("units") for name in trial["parameters"]) for trial in trials}
    assert depths >= {1, 2}
    assert all(
        ("layer3" in t["parameters"]) == (t["parameters"]["layer2"] != "skip") for t in trials
    )
    assert best_of("layers", state=tmp_path)["value"] > 0.9


@needs_torch
@pytest.mark.parametrize("file", ["layers/network.yaml", "katib/enas/enas.yaml"])
def test_a_search_for_networks_trains_what_the_texts_say(tmp_path: Path, file: str) -> None:
    # Of one network in eight or so a training makes nothing better than 0.3.
    native = "spec.budget.trials=4" if file.startswith("layers") else "spec.maxTrialCount=4"
    done = tuner("run", DIGITS.parent / file, "--set", native, state=tmp_path)
    assert done.returncode == 0, done.stderr
    name = "network" if file.startswith("layers") else "katib-enas"
    trials = trials_of(name, state=tmp_path)
    assert [trial["state"] for trial in trials] == ["succeeded"] * 4
    assert all({"layer1", "layer3.from.input"} <= trial["parameters"].keys() for trial in trials)
    assert best_of(name, state=tmp_path)["value"] > 0.3


@needs_torch
def test_a_differentiable_search_ends_with_its_genotype(tmp_path: Path) -> None:
    file = DIGITS.parent / "katib" / "darts" / "darts-cpu.yaml"
    done = tuner("run", file, state=tmp_path)
    assert done.returncode == 0, done.stderr
    [trial] = trials_of("darts-cpu", state=tmp_path)
    assert trial["state"] == "succeeded"
    described = tuner("describe", "darts-cpu/0", state=tmp_path).stdout
    assert "it ended with Best-Genotype=Genotype(normal=[" in described
    best = tuner("best", "darts-cpu", state=tmp_path).stdout
    assert best.splitlines()[-1].startswith("Best-Genotype=Genotype(normal=[")


@pytest.mark.parametrize(
    "file", sorted(DIGITS.parent.glob("katib/*/*.yaml")), ids=lambda file: file.stem
)
def test_every_search_for_networks_is_valid(tmp_path: Path, file: Path) -> None:
    done = tuner("validate", file, state=tmp_path)
    assert done.returncode == 0, done.stderr


KATIB = {  # how many trials end in each state, where it is certain
    "random": {"succeeded": 4},
    "grid": {"succeeded": 6},
    "tpe": {"succeeded": 5},
    "multivariate-tpe": {"succeeded": 5},
    "bayesian-optimization": {"succeeded": 5},
    "cma-es": {"succeeded": 5},
    "sobol": {"succeeded": 5},
    "hyperband": None,
    "pbt": {"succeeded": 15},
    "early-stopping": None,
    "early-stopping-json": None,
    "metric-strategies": {"succeeded": 5},
    "resume-and-metadata": {"succeeded": 5},
    "distributions": {"succeeded": 6},
    "configmap-template": {"succeeded": 4},
    "file-metrics": {"succeeded": 3},
    "json-metrics": {"succeeded": 3},
    "tensorflow-event": {"succeeded": 3},
    "prometheus": {"succeeded": 3},
    "push": {"succeeded": 3},
}


def test_every_example_of_katibs_is_run() -> None:
    assert {file.stem for file in (DIGITS.parent / "katib").glob("*.yaml")} == set(KATIB)


# Most of a short training is the import of NumPy, so only the first trial of a file trains; the
# others print as much.
TRAINS_ONCE = f"""
import os, runpy, sys

if os.environ["TUNER_TRIAL_NUMBER"] == "0":
    runpy.run_path({str(DIGITS / "train.py")!r}, run_name="__main__")
else:
    (epochs,) = (int(word.removeprefix("--epochs=")) for word in sys.argv if word.startswith("--epochs="))
    for epoch in range(1, epochs + 1):
        print(f"epoch={{epoch}} accuracy={{0.8 + epoch / 1000}} loss={{1 / epoch}}", flush=True)
"""


@pytest.fixture(scope="module")
def katib_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of Katib's files, beside one with the programs."""
    folder = tmp_path_factory.mktemp("examples")
    shutil.copytree(DIGITS.parent / "katib", folder / "katib")
    (folder / "digits").mkdir()
    (folder / "digits" / "train.py").write_text(TRAINS_ONCE)
    (folder / "digits" / "train_generations.py").symlink_to(DIGITS / "train_generations.py")
    return folder / "katib"


@pytest.mark.parametrize("name", KATIB)
def test_a_katib_file_runs_unchanged(katib_files: Path, tmp_path: Path, name: str) -> None:
    if name == "cma-es":
        pytest.importorskip("cmaes")
    if name == "tensorflow-event":
        pytest.importorskip("tensorboard")
        pytest.importorskip("torch")
    done = tuner("run", katib_files / f"{name}.yaml", state=tmp_path)
    assert done.returncode == 0, done.stderr
    trials = trials_of(f"katib-{name}", state=tmp_path)
    if name == "pbt":
        assert sum("parent" in trial for trial in trials) == 10
        assert max(trial["step"] for trial in trials) in (5, 6)  # of the third generation
    states = Counter(trial["state"] for trial in trials)
    if (certain := KATIB[name]) is not None:
        assert states == certain
    else:
        assert set(states) <= {"succeeded", "pruned"}
        assert (
            sum(states.values())
            == {"hyperband": 9, "early-stopping": 6, "early-stopping-json": 5}[name]
        )
        assert states["succeeded"]
