"""Tune XGBoost: XGBoostReport reports each boosting round."""

import xgboost
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import tuner
from tuner.integrations.xgboost import XGBoostReport

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y % 2, random_state=0)


def objective(trial):
    model = xgboost.XGBClassifier(
        n_estimators=30,
        learning_rate=trial["lr"],
        max_depth=trial["depth"],
        eval_metric="logloss",
        n_jobs=1,
        callbacks=[XGBoostReport("validation_0-logloss")],
    )
    model.fit(X_train, y_train, eval_set=[(X_test, y_test)], verbose=False)


parameters = {"lr": tuner.Float(0.01, 1, log=True), "depth": tuner.Int(1, 6)}
study = tuner.minimize(
    objective, parameters, trials=20, parallelism=2, pruning="median", name="xgboost"
)
print(study.best.parameters, study.best.value)
