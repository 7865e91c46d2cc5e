"""Callbacks of optuna-integration, unchanged, in objectives that `tuner.optimize_optuna` runs."""

from __future__ import annotations

from tests.integrations.conftest import Programs

# The second trial learns nothing, and takes long enough for the rule to judge it.
SCRIPT = """
import time

import numpy
import optuna
import xgboost
from optuna_integration import XGBoostPruningCallback

import tuner


class Slow(xgboost.callback.TrainingCallback):
    def after_iteration(self, model, epoch, evals_log):
        time.sleep(0.01)
        return False


def objective(trial):
    data = xgboost.DMatrix(numpy.eye(8), numpy.arange(8) % 2)
    learns = trial.number == 0
    settings = {
        "objective": "binary:logistic",
        "eta": trial.suggest_float("eta", 0.3, 0.5) if learns else 0.0,
        "min_child_weight": 0,
        "nthread": 1,
    }
    evaluated = {}
    xgboost.train(
        settings,
        data,
        50 if learns else 5000,
        evals=[(data, "train")],
        evals_result=evaluated,
        callbacks=[XGBoostPruningCallback(trial, "train-logloss"), *([] if learns else [Slow()])],
        verbose_eval=False,
    )
    return evaluated["train"]["logloss"][-1]


study = optuna.create_study(pruner=optuna.pruners.MedianPruner(n_startup_trials=1))
study = tuner.optimize_optuna(objective, study, trials=2, name="callback", progress=False)
print([trial.state.name for trial in study.trials], len(study.trials[0].intermediate_values))
"""


def test_a_pruning_callback_reports_each_round_and_ends_the_trial(programs: Programs) -> None:
    out, _ = programs.script(SCRIPT)
    assert out == "['COMPLETE', 'PRUNED'] 50\n"


BOOSTED = """
import time

import lightgbm
import numpy
import optuna
from optuna_integration import LightGBMPruningCallback

import tuner


def slow(env):
    time.sleep(0.01)


def objective(trial):
    numbers = numpy.random.default_rng(1).normal(size=(64, 4))
    data = lightgbm.Dataset(numbers, (numbers[:, 0] > 0).astype(int))
    learns = trial.number == 0
    settings = {
        "objective": "binary",
        "metric": "auc",
        "learning_rate": trial.suggest_float("rate", 0.3, 0.5),
        "num_leaves": 4,
        "min_data_in_leaf": 1 if learns else 100,
        "num_threads": 1,
        "verbosity": -1,
    }
    evaluated = {}
    lightgbm.train(
        settings,
        data,
        50 if learns else 5000,
        valid_sets=[data],
        valid_names=["valid_0"],
        callbacks=[
            LightGBMPruningCallback(trial, "auc"),
            lightgbm.record_evaluation(evaluated),
            *([] if learns else [slow]),
        ],
    )
    return evaluated["valid_0"]["auc"][-1]


pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
study = optuna.create_study(direction="maximize", pruner=pruner)
study = tuner.optimize_optuna(objective, study, trials=2, name="boosted", progress=False)
print([trial.state.name for trial in study.trials], len(study.trials[0].intermediate_values))
"""


def test_a_callback_that_reads_the_direction_of_the_study_works(programs: Programs) -> None:
    out, _ = programs.script(BOOSTED)
    assert out == "['COMPLETE', 'PRUNED'] 50\n"
