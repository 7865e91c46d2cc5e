"""Train a small neural network on 1,797 handwritten digits with NumPy alone:
one trial of experiment.yaml.

For Tuner, a trial only has to print one line per epoch,
`epoch=3 accuracy=0.96500 loss=0.11213`; it imports no library for this. Exit code 42 means
that the parameters cannot be used, with the reason in the last line.

If WORLD_SIZE is above 1, as set by torchrun and `distributed`,
several processes train one network; see parallel.py.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# Before NumPy's import: threads do not help a network this small,
# and slow down trials that run side by side.
for _library in ("OMP", "OPENBLAS", "MKL", "VECLIB_MAXIMUM"):
    os.environ.setdefault(f"{_library}_NUM_THREADS", "1")

import numpy as np  # noqa: E402

if TYPE_CHECKING:
    from parallel import World

INFEASIBLE = 42
TRAIN_SIZE = 997  # of 1,797; the other 800 validate, so accuracy moves in steps of 0.00125
SPLIT_SEED = 0  # the split is part of the problem: the same in every trial
WARMUP = 0.15  # fraction of all steps; afterwards the learning rate falls linearly to 0
CLASSES = 10
Array = np.ndarray


def digits_file() -> Path:
    """Return the file beside this program, as in the container image,
    else the one in scikit-learn's wheel.

    Importing scikit-learn to load the digits would take five times as long as training.
    """
    beside = Path(__file__).parent / "digits.csv.gz"
    if beside.exists():
        return beside
    package = importlib.util.find_spec("sklearn")
    if package is None or package.origin is None:
        sys.exit(
            "train.py: the digits come with scikit-learn, which is not installed: pip install "
            "scikit-learn"
        )
    return Path(package.origin).parent / "datasets/data/digits.csv.gz"


def load_digits() -> tuple[Array, Array, Array, Array]:
    """Return train x, train y, validation x, validation y, standardized by the training part."""
    text = gzip.decompress(digits_file().read_bytes())
    table = np.array(text.replace(b"\n", b",").rstrip(b",").split(b","), dtype=np.float32).reshape(
        -1, 65
    )
    table = table[np.random.default_rng(SPLIT_SEED).permutation(len(table))]
    pixels, labels = table[:, :64], table[:, 64].astype(np.int64)
    mean, spread = pixels[:TRAIN_SIZE].mean(axis=0), pixels[:TRAIN_SIZE].std(axis=0)
    # pixels that are always blank have a spread of 0
    pixels = (pixels - mean) / np.where(spread > 0, spread, 1)
    pixels = pixels.clip(-3, 3)  # a rare stroke in a corner would be forty standard deviations away
    return pixels[:TRAIN_SIZE], labels[:TRAIN_SIZE], pixels[TRAIN_SIZE:], labels[TRAIN_SIZE:]


def relu(x: Array) -> Array:
    return np.maximum(x, 0)


def relu_slope(y: Array) -> Array:
    return y > 0


def tanh_slope(y: Array) -> Array:
    return 1 - y * y


def sigmoid(x: Array) -> Array:
    return 0.5 + 0.5 * np.tanh(0.5 * x)


def sigmoid_slope(y: Array) -> Array:
    return y * (1 - y)


# Activation, its slope as a function of its value, and the gain of the initial weights that
# preserves signal sizes.
ACTIVATIONS: dict[str, tuple[Callable[[Array], Array], Callable[[Array], Array], float]] = {
    "relu": (relu, relu_slope, 2.0**0.5),
    "tanh": (np.tanh, tanh_slope, 5 / 3),
    "sigmoid": (sigmoid, sigmoid_slope, 4.0),
}


def log_softmax(scores: Array) -> Array:
    shifted = scores - scores.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


class Network:
    """A network with two hidden layers. All weights are in one vector,
    so that an optimizer step is three operations.

    The last layer starts with small weights, so that all classes are equally likely
    at first with any activation.
    """

    def __init__(self, width: int, activation: str, rng: np.random.Generator) -> None:
        self.activate, self.slope, gain = ACTIVATIONS[activation]
        shapes = [(64, width), (width, width), (width, CLASSES)]
        self.vector = np.zeros(sum((i + 1) * o for i, o in shapes), np.float32)
        self.gradient = np.zeros_like(self.vector)
        self.layers = self._views(self.vector, shapes)
        self.gradients = self._views(self.gradient, shapes)
        for weights, scale in zip(self.layers[::2], (gain, gain, 0.1), strict=True):
            weights[:] = (
                rng.standard_normal(weights.shape, np.float32) * scale / len(weights) ** 0.5
            )

    @staticmethod
    def _views(vector: Array, shapes: list[tuple[int, int]]) -> list[Array]:
        views, start = [], 0
        for inputs, outputs in shapes:
            views.append(vector[start : start + inputs * outputs].reshape(inputs, outputs))
            start += inputs * outputs
            views.append(vector[start : start + outputs])
            start += outputs
        return views

    def scores(self, x: Array) -> Array:
        w1, b1, w2, b2, w3, b3 = self.layers
        return self.activate(self.activate(x @ w1 + b1) @ w2 + b2) @ w3 + b3

    def backpropagate(self, x: Array, target: Array, masks: Array | None, *, batch: int) -> None:
        """Fill `gradient` with these rows' part of the gradient
        of the mean cross-entropy over the batch.

        target: one-hot. masks: dropout masks of both hidden layers, scaled to mean 1. batch: rows
        of the whole batch.
        """
        w1, b1, w2, b2, w3, b3 = self.layers
        first = value1 = self.activate(x @ w1 + b1)
        if masks is not None:
            first = first * masks[0]
        second = value2 = self.activate(first @ w2 + b2)
        if masks is not None:
            second = second * masks[1]
        error = (np.exp(log_softmax(second @ w3 + b3)) - target) / batch
        g1, h1, g2, h2, g3, h3 = self.gradients
        np.matmul(second.T, error, out=g3)
        error.sum(axis=0, out=h3)
        error = (error @ w3.T) * self.slope(value2)
        if masks is not None:
            error *= masks[1]
        np.matmul(first.T, error, out=g2)
        error.sum(axis=0, out=h2)
        error = (error @ w2.T) * self.slope(value1)
        if masks is not None:
            error *= masks[0]
        np.matmul(x.T, error, out=g1)
        error.sum(axis=0, out=h1)


def dropout_masks(shape: tuple[int, int], rate: float, rng: np.random.Generator) -> Array | None:
    if rate == 0:
        return None
    return (rng.random((2, *shape), np.float32) >= rate) / np.float32(1 - rate)


def train(options: argparse.Namespace, world: World | None) -> None:
    """Train and print metrics.

    In a world of several ranks, each trains with its share of every batch.
    """
    rank, size = (world.rank, world.size) if world else (0, 1)
    train_x, train_y, valid_x, valid_y = load_digits()
    rng = np.random.default_rng(options.seed)
    network = Network(options.width, options.activation, rng)
    velocity = np.zeros_like(network.vector)
    one_hot = np.eye(CLASSES, dtype=np.float32)[train_y]
    batches = -(-TRAIN_SIZE // options.batch)
    total, step = batches * options.epochs, 0
    for epoch in range(1, options.epochs + 1):
        for batch in np.array_split(rng.permutation(TRAIN_SIZE), batches):
            step += 1
            rate = options.lr * min(
                step / (WARMUP * total), (total - step + 1) / ((1 - WARMUP) * total), 1.0
            )
            masks = dropout_masks((len(batch), options.width), options.dropout, rng)
            share = batch[rank::size]
            if masks is not None:
                masks = masks[:, rank::size]
            network.backpropagate(train_x[share], one_hot[share], masks, batch=len(batch))
            if world:
                world.add_up(network.gradient)
            velocity *= options.momentum
            velocity -= rate * (network.gradient + options.weight_decay * network.vector)
            network.vector += velocity
        scores = log_softmax(network.scores(valid_x))
        loss = -float(scores[np.arange(len(valid_y)), valid_y].mean())
        if not np.isfinite(loss):
            print(
                f"the loss is no longer finite in epoch {epoch}: lr={options.lr:g} is too large "
                f"here",
                flush=True,
            )
            sys.exit(INFEASIBLE)
        accuracy = float((scores.argmax(axis=1) == valid_y).mean())
        if rank == 0:
            print(f"epoch={epoch} accuracy={accuracy:.5f} loss={loss:.5f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small network on the handwritten digits.")
    parser.add_argument("--lr", type=float, default=0.1, help="peak learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--width", type=int, default=64, help="units in each of the two hidden layers"
    )
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="share of hidden units switched off in a step"
    )
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="relu")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--seed", type=int, default=0, help="of the initial weights, the order and the dropout"
    )
    return parser.parse_args()


def meet() -> World | None:
    """Join the other processes that train this network; return None,
    without using sockets, if there are none.
    """
    if os.environ.get("WORLD_SIZE", "1") == "1":
        return None
    import parallel

    return parallel.join()


if __name__ == "__main__":
    # A container's first process gets SIGTERM only if it has a handler;
    # without one it would run until SIGKILL.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    np.seterr(all="ignore")  # an overflow is detected once, by a loss that is not finite
    train(parse(), meet())
