"""A training on one of two similar data sets: `train.py DATA LR DECAY`.

Logistic regression by gradient descent, in plain Python. The data sets differ in their noise and in
the scale of one feature, so the best learning rate and decay differ a little, and the accuracies a
lot.
"""

import math
import random
import sys

DATA = {"march": (0.5, 3.0), "april": (1.4, 4.0)}  # noise, and the scale of the first feature
ROWS, FEATURES, EPOCHS = 120, 6, 5


def rows(noise: float, scale: float, seed: int) -> list[tuple[list[float], int]]:
    chance = random.Random(seed)
    found = []
    for _ in range(ROWS):
        x = [chance.gauss(0, 1) for _ in range(FEATURES)]
        label = int(x[0] - x[1] + 0.5 * x[2] + chance.gauss(0, noise) > 0)
        found.append(([scale * x[0], *x[1:]], label))
    return found


def chance_of(weights: list[float], x: list[float]) -> float:
    z = sum(w * v for w, v in zip(weights, x, strict=True))
    return 1 / (1 + math.exp(-max(-30.0, min(30.0, z))))


data, lr, decay = sys.argv[1], float(sys.argv[2]), float(sys.argv[3])
weights = [0.0] * FEATURES
for _ in range(EPOCHS):
    for x, label in rows(*DATA[data], seed=1):
        error = chance_of(weights, x) - label
        weights = [w - lr * (error * v + decay * w) for w, v in zip(weights, x, strict=True)]
losses = [
    -math.log(max(1e-9, p if label else 1 - p))
    for x, label in rows(*DATA[data], seed=2)
    for p in [chance_of(weights, x)]
]
print(f"loss={sum(losses) / len(losses):.5f}")
