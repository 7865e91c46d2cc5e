"""Run an objective that was written for Optuna: scikit-learn's classifiers, each with parameters
of its own.
"""

import optuna
from sklearn.datasets import load_digits
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.model_selection import train_test_split

import tuner


def objective(trial):
    x, y = load_digits(return_X_y=True)
    x_train, x_valid, y_train, y_valid = train_test_split(x / 16, y, random_state=0)
    if trial.suggest_categorical("classifier", ["forest", "sgd"]) == "forest":
        depth = trial.suggest_int("max_depth", 2, 32, log=True)
        forest = RandomForestClassifier(max_depth=depth, n_estimators=20, random_state=0)
        return forest.fit(x_train, y_train).score(x_valid, y_valid)
    sgd = SGDClassifier(alpha=trial.suggest_float("alpha", 1e-5, 1e-1, log=True), random_state=0)
    for step in range(20):
        sgd.partial_fit(x_train, y_train, classes=range(10))
        trial.report(sgd.score(x_valid, y_valid), step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return sgd.score(x_valid, y_valid)


study = optuna.create_study(direction="maximize")
# With Optuna alone: study.optimize(objective, n_trials=…)
study = tuner.optimize_optuna(objective, study, trials=20, parallelism=2, name="optuna-objective")
print(study.best_params, study.best_value)
