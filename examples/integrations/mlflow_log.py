"""Log every trial of a search to MLflow."""

import tuner
from tuner.integrations.mlflow import MLflowLog


def objective(trial):
    for epoch in range(5):
        trial.report(epoch, loss=(trial["x"] - 2) ** 2 + 1 / (epoch + 1))


parameters = {"x": tuner.Float(-5, 5), "kind": ["a", "b"]}
tuner.minimize(
    objective, parameters, trials=20, name="mlflow", callbacks=[MLflowLog("sqlite:///mlflow.db")]
)
