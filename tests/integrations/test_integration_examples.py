"""Every example of examples/integrations runs as a user runs it;
docs/integrations.md shows parts of these files.
"""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

from tests.integrations.conftest import EXAMPLES, Programs

FOLDER = EXAMPLES / "integrations"
PAGE = EXAMPLES.parent / "docs" / "integrations.md"
# The names of the searches that each runs.
SEARCHES = {
    "keras_callback.py": "keras",
    "lightning_callback.py": "lightning",
    "mlflow_log.py": "mlflow",
    "optuna_objective.py": "optuna-objective",
    "pytorch_loop.py": "pytorch-loop",
    "tensorboard_log.py": "tensorboard",
    "transformers_trainer.py": "transformers",
    "wandb_log.py": "wandb",
    "xgboost_rounds.py": "xgboost",
}
FILES = {"lightgbm.yaml": "lightgbm", "torchvision/experiment.yaml": "torchvision"}
OTHERS = {"lightgbm_script.py", "sklearn_search.py", "hydra_app.py", "torchvision/train.py"}


def trials_of(file: str) -> int:
    """Return how many trials to run, instead of 20, because each imports its library:
    one, or two for examples that run two at once.
    """
    text = (FOLDER / file).read_text(encoding="utf-8")
    return 1 + bool(re.search(r"\bparallelism(=|: )2\b", text))


@pytest.fixture
def examples(programs: Programs) -> Programs:
    shutil.copytree(FOLDER, programs.folder, dirs_exist_ok=True)
    return programs


def check_search(examples: Programs, name: str, trials: int) -> None:
    out, _ = examples.run("tuner", "get", "trials", name, "-o", "json")
    found = json.loads(out)
    assert len(found) == trials
    assert {each["state"] for each in found} <= {"succeeded", "pruned"}
    assert "succeeded" in {each["state"] for each in found}


def test_every_example_is_run() -> None:
    scripts = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py")}
    assert scripts == SEARCHES.keys() | OTHERS


@pytest.mark.parametrize("script", sorted(SEARCHES))
def test_a_script_finds_parameters(examples: Programs, script: str) -> None:
    file = examples.folder / script
    text = file.read_text(encoding="utf-8")
    assert text.count("trials=20") == 1
    trials = trials_of(script)
    file.write_text(text.replace("trials=20", f"trials={trials}"))
    examples.run(sys.executable, script)
    check_search(examples, SEARCHES[script], trials)


@pytest.mark.parametrize("file", sorted(FILES))
def test_a_file_is_run(examples: Programs, file: str) -> None:
    trials = trials_of(file)
    examples.run("tuner", "run", file, "--set", f"spec.budget.trials={trials}")
    check_search(examples, FILES[file], trials)


def test_a_script_with_current_trial_runs_by_hand(examples: Programs) -> None:
    out, _ = examples.run(sys.executable, "lightgbm_script.py")
    assert re.search(r"^step=29 valid_0_binary_logloss=0\.\d+$", out, re.MULTILINE)


def test_the_search_of_scikit_learn_is_good_and_stored(examples: Programs) -> None:
    out, _ = examples.run(sys.executable, "sklearn_search.py")
    score = float(out.split()[-1])
    assert score > 0.9


def test_the_hydra_application_runs_once_or_searches(examples: Programs) -> None:
    examples.run(sys.executable, "hydra_app.py")
    trials = trials_of("hydra_app.yaml")
    settings = ["hydra.sweep.dir=multirun", f"hydra.sweeper.trials={trials}"]
    examples.run(sys.executable, "hydra_app.py", "--multirun", *settings)
    results = (examples.folder / "multirun" / "optimization_results.yaml").read_text()
    name = re.search(r"^search: (\S+)$", results, re.MULTILINE)
    assert name
    check_search(examples, name[1], trials)


def blocks(language: str) -> list[str]:
    found: list[str] = re.findall(
        rf"```{language}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return found


def test_the_page_shows_what_the_examples_run() -> None:
    """Each snippet is a part of a file that a test above runs; `...` marks left-out lines."""
    files = {
        path: path.read_text(encoding="utf-8")
        for path in FOLDER.rglob("*")
        if path.suffix in (".py", ".yaml")
    }
    shown = [*blocks("python"), *blocks("yaml")]
    assert len(shown) > 10
    missing = [
        part
        for block in shown
        for part in re.split(r"^ *\.\.\.\n", block, flags=re.MULTILINE)
        if not any(part.strip("\n") in text for text in files.values())
    ]
    assert missing == []
