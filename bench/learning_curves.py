"""Measures learning curves of small networks on the handwritten digits, once, for bench/pruning.py to replay.

There are 200 random settings of scikit-learn's MLPClassifier with 30 epochs each, and after each epoch the accuracy and
the log loss on 600 held-out digits. This takes five minutes on one CPU. Run it manually: `python
bench/learning_curves.py`.
"""

from __future__ import annotations

import random
import sys
import warnings
from pathlib import Path

import numpy as np

CURVES = Path(__file__).parent / "data/learning_curves.npz"
COUNT, EPOCHS, SEED, HELD_OUT = 200, 30, 11, 600
WORST_LOSS = 30.0  # loss of a network that diverges; log_loss itself is at most about 36


def main() -> None:
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order] / 16.0, labels[order]
    train, test = slice(HELD_OUT, None), slice(0, HELD_OUT)
    accuracy = np.zeros((COUNT, EPOCHS), dtype=np.float32)
    loss = np.full((COUNT, EPOCHS), WORST_LOSS, dtype=np.float32)
    for number in range(COUNT):
        draw = random.Random(f"{SEED}:{number}")
        network = MLPClassifier(
            hidden_layer_sizes=(draw.choice([4, 8, 16, 32, 64]),) * draw.choice([1, 1, 2]),
            activation=draw.choice(["relu", "tanh", "logistic"]),
            solver=draw.choice(["sgd", "sgd", "adam"]),
            alpha=10 ** draw.uniform(-6, 0),
            batch_size=draw.choice([16, 32, 64, 128]),
            learning_rate_init=10 ** draw.uniform(-4, 0.3),
            momentum=draw.uniform(0, 0.97),
            random_state=number,
        )
        for epoch in range(EPOCHS):
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    network.partial_fit(images[train], labels[train], classes=np.arange(10))
                    likely = network.predict_proba(images[test])
            except ValueError:
                likely = np.full((HELD_OUT, 10), np.nan)  # the weights have overflowed
            accuracy[number, epoch] = np.mean(likely.argmax(axis=1) == labels[test])
            if np.isfinite(likely).all():
                loss[number, epoch] = min(WORST_LOSS, log_loss(labels[test], likely, labels=np.arange(10)))
        if number % 20 == 19:
            print(number + 1, file=sys.stderr, flush=True)
    CURVES.parent.mkdir(exist_ok=True)
    np.savez_compressed(CURVES, accuracy=accuracy, loss=loss)


if __name__ == "__main__":
    main()
