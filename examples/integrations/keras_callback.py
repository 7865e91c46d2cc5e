"""Tune a Keras model: KerasReport reports each epoch. Works with any backend; here torch."""

import os

os.environ.setdefault("KERAS_BACKEND", "torch")

import keras
import numpy as np

import tuner
from tuner.integrations.keras import KerasReport


def objective(trial):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).random((512, 2), dtype=np.float32)
    y = x.prod(axis=1, keepdims=True)
    model = keras.Sequential(
        [keras.layers.Dense(trial["units"], activation="relu"), keras.layers.Dense(1)]
    )
    model.compile(keras.optimizers.Adam(trial["lr"]), loss="mse")
    model.fit(x, y, epochs=4, validation_split=0.2, verbose=0, callbacks=[KerasReport("val_loss")])


parameters = {"lr": tuner.Float(1e-4, 1e-1, log=True), "units": tuner.Int(8, 64)}
study = tuner.minimize(objective, parameters, trials=20, pruning="median", name="keras")
print(study.best.parameters, study.best.value)
