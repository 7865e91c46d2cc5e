"""What callbacks of libraries report: which metrics, under which names.

And what is said without a library.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

import tuner
from tuner.integrations.reporting import MetricReporter, safe_name

BRIDGES = [
    "hydra",
    "keras",
    "lightgbm",
    "lightning",
    "mlflow",
    "sklearn",
    "tensorboard",
    "transformers",
    "wandb",
    "xgboost",
]
FOUND = {"valid_0 map@3": 0.5, "epoch": 2.0, "lr": "a text", "loss": 1}


@pytest.mark.parametrize(
    ("metrics", "printed"),
    [
        (None, "step=3 valid_0_map_3=0.5 loss=1.0"),
        ("loss", "step=3 loss=1.0"),
        (["loss", "valid_0 map@3"], "step=3 loss=1.0 valid_0_map_3=0.5"),
    ],
)
def test_chosen_metrics_are_reported_or_all_numbers(
    metrics: str | list[str] | None, printed: str, capfd: pytest.CaptureFixture[str]
) -> None:
    MetricReporter(metrics, tuner.Trial({}, None)).report(3, FOUND)
    assert capfd.readouterr().out.strip() == printed


def test_a_chosen_metric_that_is_not_a_number_is_refused() -> None:
    with pytest.raises(TypeError, match="lr: expected a number, got 'a text'"):
        MetricReporter("lr", tuner.Trial({}, None)).report(0, FOUND)


@pytest.mark.parametrize(
    ("name", "safe"),
    [
        ("eval/loss", "eval/loss"),
        ("valid 0's l2", "valid_0_s_l2"),
        ("95%", "_95_"),
        ("validation_0-rmse", "validation_0-rmse"),
    ],
)
def test_names_of_libraries_become_names_of_metrics(name: str, safe: str) -> None:
    assert safe_name(name) == safe


@pytest.mark.parametrize("module", BRIDGES)
def test_a_bridge_names_the_extra_that_its_library_needs(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None\ntry: import tuner.integrations.{module}\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", f"{program}except ImportError as error: print(error)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (
        f"tuner.integrations.{module} needs {module}, which is not installed; "
        f"install with: pip install 'tuner-hpo[{module}]'\n"
    )
