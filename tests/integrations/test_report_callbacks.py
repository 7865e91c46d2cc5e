"""The callbacks of training libraries print each evaluation as metrics,
and let Pruned through the library's loop.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tuner
from tests.integrations.conftest import Programs

pytestmark = pytest.mark.filterwarnings("default")  # those of the libraries

# the trial, its metric, rounds or epochs, a folder
Train = Callable[[tuner.Trial, "str | None", int, Path], None]


def xgboost_train(trial: tuner.Trial, metric: str | None, rounds: int, folder: Path) -> None:
    import numpy
    import xgboost

    from tuner.integrations.xgboost import XGBoostReport

    data = xgboost.DMatrix(numpy.eye(8), numpy.arange(8) % 2)
    settings = {"objective": "binary:logistic", "eval_metric": ["logloss", "error"], "nthread": 1}
    xgboost.train(
        settings,
        data,
        rounds,
        evals=[(data, "train")],
        callbacks=[XGBoostReport(metric, trial=trial)],
        verbose_eval=False,
    )


def lightgbm_train(trial: tuner.Trial, metric: str | None, rounds: int, folder: Path) -> None:
    import lightgbm
    import numpy

    from tuner.integrations.lightgbm import LightGBMReport

    data = lightgbm.Dataset(numpy.eye(40), numpy.arange(40) % 2)
    settings = {
        "objective": "binary",
        "metric": ["auc", "binary_error"],
        "num_threads": 1,
        "verbose": -1,
    }
    lightgbm.train(
        settings, data, rounds, valid_sets=[data], callbacks=[LightGBMReport(metric, trial=trial)]
    )


def keras_train(trial: tuner.Trial, metric: str | None, rounds: int, folder: Path) -> None:
    os.environ["KERAS_BACKEND"] = "torch"
    import keras
    import numpy

    from tuner.integrations.keras import KerasReport

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", loss="mse", metrics=["mae"])
    x = numpy.zeros((8, 2))
    model.fit(x, x[:, :1], epochs=rounds, verbose=0, callbacks=[KerasReport(metric, trial=trial)])


def lightning_fit(
    reporting: Any, epochs: int, folder: Path, *, resume: Path | None = None, **options: Any
) -> Any:
    """Return the trainer."""
    import lightning
    import torch

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)

        def training_step(self, batch: Any, _: int) -> Any:
            return self.layer(batch).mean()

        def validation_step(self, batch: Any, _: int) -> None:
            self.log("val/loss", self.layer(batch).mean())
            self.log("val/norm", self.layer.weight.norm())

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    data = torch.utils.data.DataLoader(torch.zeros(4, 1))
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=reporting,
        default_root_dir=folder,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    trainer.fit(Module(), data, data, ckpt_path=resume)
    return trainer


def lightning_train(trial: tuner.Trial, metric: str | None, rounds: int, folder: Path) -> None:
    from tuner.integrations.lightning import LightningReport

    lightning_fit(LightningReport(metric, trial=trial), rounds, folder)


def test_lightnings_steps_repeat_neither_within_an_epoch_nor_after_a_resume(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tuner.integrations.lightning import LightningReport

    def reporting() -> LightningReport:
        return LightningReport("val/loss", trial=tuner.Trial({}, ["value"]))

    checkpoint = tmp_path / "last.ckpt"
    lightning_fit(reporting(), 2, tmp_path, val_check_interval=2).save_checkpoint(checkpoint)
    lightning_fit(reporting(), 3, tmp_path, val_check_interval=2, resume=checkpoint)
    assert [each["step"] for each in printed(capfd.readouterr().out)] == list(range(6))


def test_lightnings_step_is_the_epoch_also_where_few_epochs_are_validated(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tuner.integrations.lightning import LightningReport

    trial = tuner.Trial({}, ["value"])
    lightning_fit(LightningReport("val/loss", trial=trial), 4, tmp_path, check_val_every_n_epoch=2)
    assert [each["step"] for each in printed(capfd.readouterr().out)] == [1, 3]


def test_two_callbacks_of_one_trainer_continue_after_a_resume(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from tuner.integrations.lightning import LightningReport

    def both() -> list[LightningReport]:
        return [
            LightningReport(metric, trial=tuner.Trial({}, ["value"]))
            for metric in ("val/loss", "val/norm")
        ]

    checkpoint = tmp_path / "last.ckpt"
    lightning_fit(both(), 2, tmp_path).save_checkpoint(checkpoint)
    lightning_fit(both(), 3, tmp_path, resume=checkpoint)
    found = printed(capfd.readouterr().out)
    assert [each["step"] for each in found if "val/loss" in each] == [0, 1, 2]
    assert [each["step"] for each in found if "val/norm" in each] == [0, 1, 2]


def transformers_train(trial: tuner.Trial, metric: str | None, rounds: int, folder: Path) -> None:
    import torch
    from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

    from tuner.integrations.transformers import TransformersReport

    config = BertConfig(
        vocab_size=8,
        hidden_size=4,
        intermediate_size=4,
        num_hidden_layers=1,
        num_attention_heads=1,
        max_position_embeddings=4,
    )
    data = [
        {"input_ids": torch.tensor([1, 2]), "labels": torch.tensor(each % 2)} for each in range(4)
    ]
    arguments = TrainingArguments(
        output_dir=str(folder),
        num_train_epochs=rounds,
        eval_strategy="epoch",
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        disable_tqdm=True,
    )
    callbacks = [TransformersReport(metric, trial=trial)]
    model = BertForSequenceClassification(config)
    Trainer(model, arguments, train_dataset=data, eval_dataset=data, callbacks=callbacks).train()


# The training, the metric that is chosen, another metric, the first step.
LIBRARIES = [
    pytest.param(xgboost_train, "train-logloss", "train-error", 0, id="xgboost"),
    pytest.param(lightgbm_train, "training binary_error", "training_auc", 0, id="lightgbm"),
    pytest.param(keras_train, "loss", "mae", 0, id="keras"),
    pytest.param(lightning_train, "val/loss", "val/norm", 0, id="lightning"),
    pytest.param(transformers_train, "eval_loss", "eval_runtime", 1, id="transformers"),
]


def printed(text: str) -> list[dict[str, float]]:
    lines = [line for line in text.splitlines() if line.startswith("tuner.step=")]
    return [
        {name: float(value) for name, value in re.findall(r"tuner\.(\S+?)=(\S+)", line)}
        for line in lines
    ]


@pytest.mark.parametrize(("train", "metric", "other", "first"), LIBRARIES)
def test_a_chosen_metric_is_the_objective_at_each_step(
    train: Train,
    metric: str,
    other: str,
    first: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    train(tuner.Trial({}, ["value"]), metric, 3, tmp_path)
    found = printed(capfd.readouterr().out)
    assert [each["step"] for each in found] == [first, first + 1, first + 2]
    name = metric.replace(" ", "_")
    assert all(
        each.keys() == {"step", name, "value"} and each["value"] == each[name] for each in found
    )


@pytest.mark.parametrize(("train", "metric", "other", "first"), LIBRARIES)
def test_without_a_choice_all_metrics_are_reported(
    train: Train,
    metric: str,
    other: str,
    first: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    train(tuner.Trial({}, ["value"]), None, 1, tmp_path)
    (found,) = printed(capfd.readouterr().out)
    assert found.keys() >= {"step", metric.replace(" ", "_"), other}
    assert "value" not in found


@pytest.mark.parametrize(("train", "metric", "other", "first"), LIBRARIES)
def test_pruned_ends_the_training(
    train: Train,
    metric: str,
    other: str,
    first: int,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    trial = tuner.Trial({}, ["value"])
    with pytest.raises(tuner.Pruned):
        trial.stop()
    with pytest.raises(tuner.Pruned):
        train(trial, metric, 3, tmp_path)
    assert len(printed(capfd.readouterr().out)) == 1


@pytest.mark.parametrize(("train", "metric", "other", "first"), LIBRARIES)
def test_a_metric_that_is_not_computed_is_an_error_that_names_those_that_are(
    train: Train, metric: str, other: str, first: int, tmp_path: Path
) -> None:
    with pytest.raises(
        KeyError, match=rf"metric 'accuracy' was not computed at step {first}; there are .*{metric}"
    ):
        train(tuner.Trial({}, ["value"]), "accuracy", 1, tmp_path)


def test_a_trial_that_trains_in_a_library_is_pruned(programs: Programs) -> None:
    out, _ = programs.script("""
import numpy, tuner, xgboost
from tuner.integrations.xgboost import XGBoostReport

def objective(trial):
    data = xgboost.DMatrix(numpy.eye(8), numpy.arange(8) % 2)
    report = XGBoostReport("train-logloss")
    settings = {"objective": "binary:logistic", "nthread": 1}
    xgboost.train(settings, data, trial["rounds"], evals=[(data, "train")], callbacks=[report], verbose_eval=False)

study = tuner.minimize(
    objective, {"rounds": [2, 1_000_000]}, algorithm="grid", trials=2, progress=False,
    pruning={"name": "threshold", "upper": 0.5, "warmupSteps": 10},
)
print([result.state for result in study.results()])
""")
    assert out == "['succeeded', 'pruned']\n"
