"""Measures learning curves of real trainings, once, for bench/pruning.py
and bench/fidelity.py to replay.

* `digits`: scikit-learn's MLPClassifier on the handwritten digits; after each of 30 epochs the
  accuracy and the log loss on 600 held-out digits. Curves rise and level off, and large learning
  rates diverge.
* `characters`: a network in PyTorch that predicts the next character of Python's own source code;
  after each of 40 epochs the loss on another file. Many curves fall and rise again, because the
  network overfits.

Each has 200 random settings. The best ten are trained again with four other seeds, which measures
the noise of retraining. A stopped run is continued by the same command. One training takes ten
minutes on one CPU. Run it manually: `python bench/learning_curves.py characters`.
"""

from __future__ import annotations

import argparse
import difflib
import inspect
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suggest.study import Direction

DATA = Path(__file__).parent / "data"
COUNT, BEST, SEEDS = 200, 10, 5
SEED, HELD_OUT = 11, 600
WORST_LOSS = 30.0  # loss of a network that diverges; log_loss itself is at most about 36
LENGTH, POSITIONS = 8, 4096  # characters that the network sees; those that it predicts in an epoch
Curves = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class RecordedTraining:
    """A kind of network with random settings.

    metrics: What it measures after each epoch. The first one decides which settings are the best.
    train: Trains the n-th random setting with a seed, and returns the curves, (metrics, epochs).
    """

    name: str
    metrics: dict[str, Direction]
    train: Callable[[int, int], Curves]

    @property
    def path(self) -> Path:
        return DATA / f"learning_curves_{self.name}.npz"

    def curves(self) -> Curves:
        """Return what has been measured of the settings: (settings, metrics, epochs)."""
        return self._read("curves")

    def retrained(self) -> Curves:
        """Return the last values of the best settings by seed: (settings, seeds, metrics)."""
        return self._read("retrained").reshape(-1, SEEDS, len(self.metrics))

    def _read(self, array: str) -> Curves:
        if not self.path.exists():
            return np.zeros((0,), dtype=np.float32)
        with np.load(self.path) as kept:
            found: Curves = kept[array]
        return found


def _digits(number: int, seed: int) -> Curves:
    from sklearn.datasets import load_digits
    from sklearn.metrics import log_loss
    from sklearn.neural_network import MLPClassifier

    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(SEED).permutation(len(images))
    images, labels = images[order] / 16.0, labels[order]
    train, test = slice(HELD_OUT, None), slice(0, HELD_OUT)
    draw = random.Random(f"{SEED}:{number}")
    network = MLPClassifier(
        hidden_layer_sizes=(draw.choice([4, 8, 16, 32, 64]),) * draw.choice([1, 1, 2]),
        activation=draw.choice(["relu", "tanh", "logistic"]),
        solver=draw.choice(["sgd", "sgd", "adam"]),
        alpha=10 ** draw.uniform(-6, 0),
        batch_size=draw.choice([16, 32, 64, 128]),
        learning_rate_init=10 ** draw.uniform(-4, 0.3),
        momentum=draw.uniform(0, 0.97),
        random_state=number + COUNT * seed,
    )
    found = np.full((2, 30), WORST_LOSS, dtype=np.float32)
    for epoch in range(found.shape[1]):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                network.partial_fit(images[train], labels[train], classes=np.arange(10))
                likely = network.predict_proba(images[test])
        except ValueError:
            likely = np.full((HELD_OUT, 10), np.nan)  # the weights have overflowed
        found[0, epoch] = np.mean(likely.argmax(axis=1) == labels[test])
        if np.isfinite(likely).all():
            found[1, epoch] = min(WORST_LOSS, log_loss(labels[test], likely, labels=np.arange(10)))
    return found


def _characters(number: int, seed: int) -> Curves:
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(number + COUNT * seed)
    draw = random.Random(f"{SEED}:{number}")
    width, hidden = draw.choice([4, 8, 16, 32]), draw.choice([16, 32, 64, 128])
    rate, batch = 10 ** draw.uniform(-4, 0.5), draw.choice([64, 128, 256])
    dropout, decay = draw.choice([0.0, draw.uniform(0, 0.6)]), 10 ** draw.uniform(-6, -2)
    is_adam, momentum = draw.random() < 0.5, draw.uniform(0, 0.97)
    network = torch.nn.Sequential(
        torch.nn.Embedding(128, width),
        torch.nn.Flatten(),
        torch.nn.Linear(LENGTH * width, hidden),
        draw.choice([torch.nn.ReLU, torch.nn.Tanh])(),
        torch.nn.Dropout(dropout),
        torch.nn.Linear(hidden, 128),
    )
    weights = network.parameters()
    optimizer: torch.optim.Optimizer = (
        torch.optim.AdamW(weights, lr=rate / 10, weight_decay=decay)
        if is_adam
        else torch.optim.SGD(weights, lr=rate, momentum=momentum, weight_decay=decay)
    )
    seen, wanted = (torch.from_numpy(each) for each in _examples(argparse))
    test, expected = (torch.from_numpy(each) for each in _examples(difflib))
    found = np.full((1, 40), WORST_LOSS, dtype=np.float32)
    for epoch in range(found.shape[1]):
        network.train()
        for rows in torch.randperm(POSITIONS).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(network(seen[rows]), wanted[rows]).backward()
            optimizer.step()
        network.eval()
        with torch.no_grad():
            loss = float(functional.cross_entropy(network(test), expected))
        if np.isfinite(loss):
            found[0, epoch] = min(WORST_LOSS, loss)
    return found


def _examples(module: Any) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the first stretches of a module's source, (positions, LENGTH),
    and the characters that follow.
    """
    text = np.frombuffer(
        inspect.getsource(module).encode("ascii", "replace"), dtype=np.uint8
    ).astype(np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(text[: POSITIONS + LENGTH], LENGTH + 1)
    return windows[:, :-1].copy(), windows[:, -1].copy()


TRAININGS = (
    RecordedTraining(
        "digits", {"accuracy": Direction.MAXIMIZE, "loss": Direction.MINIMIZE}, _digits
    ),
    RecordedTraining("characters", {"loss": Direction.MINIMIZE}, _characters),
)


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measures the learning curves of a training, or continues to."
    )
    parser.add_argument("training", choices=[training.name for training in TRAININGS])
    name = parser.parse_args().training
    (training,) = (each for each in TRAININGS if each.name == name)
    curves, retrained = list(training.curves()), list(training.retrained())

    def keep() -> None:
        np.savez_compressed(training.path, curves=np.array(curves), retrained=np.array(retrained))
        print(
            f"{len(curves)} settings, {len(retrained)} of them again", file=sys.stderr, flush=True
        )

    while len(curves) < COUNT:
        curves.append(training.train(len(curves), 0))
        if len(curves) % 20 == 0:
            keep()
    sign = next(iter(training.metrics.values())).sign
    best = np.argsort(sign * np.array(curves)[:, 0, -1], kind="stable")[:BEST].tolist()
    while len(retrained) < BEST:
        number = best[len(retrained)]
        again = [training.train(number, seed)[:, -1] for seed in range(1, SEEDS)]
        retrained.append(np.array([curves[number][:, -1], *again]))
        keep()


if __name__ == "__main__":
    main()
