"""Log every trial of a search to Weights & Biases."""

import tuner
from tuner.integrations.wandb import WandbLog


def objective(trial):
    for epoch in range(5):
        trial.report(epoch, loss=(trial["x"] - 2) ** 2 + 1 / (epoch + 1))


parameters = {"x": tuner.Float(-5, 5), "kind": ["a", "b"]}
tuner.minimize(
    objective, parameters, trials=20, name="wandb", callbacks=[WandbLog("digits", mode="offline")]
)
