"""Train the network of train.py for a few more epochs, from the checkpoint
of an earlier training if there is one.

One trial of generations.yaml: with population based training, TUNER_CHECKPOINT_DIR begins as a copy
of the parent's. The learning rate has no schedule of its own, because the search makes one.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import train  # beside this file; it sets NumPy's threads, so it comes first

import numpy as np  # isort: skip

BATCH, WIDTH = 32, 64  # the shape of a network cannot change on the way


def load(file: Path, network: train.Network, velocity: train.Array) -> int:
    """Load the state of a training and return how many epochs it has had;
    0 without a checkpoint.
    """
    if not file.exists():
        return 0
    with np.load(file) as state:
        network.vector[:], velocity[:] = state["weights"], state["velocity"]
        return int(state["epoch"])


def save(file: Path, network: train.Network, velocity: train.Array, epoch: int) -> None:
    """Replace the checkpoint in one step, because the process may be killed at any moment."""
    partial = file.with_name("partial.npz")
    np.savez(partial, weights=network.vector, velocity=velocity, epoch=epoch)
    partial.replace(file)


def run(options: argparse.Namespace) -> None:
    file = options.checkpoint / "state.npz"
    train_x, train_y, valid_x, valid_y = train.load_digits()
    network = train.Network(WIDTH, "relu", np.random.default_rng(options.seed))
    velocity = np.zeros_like(network.vector)
    one_hot = np.eye(train.CLASSES, dtype=np.float32)[train_y]
    done = load(file, network, velocity)
    # Up to a whole number of intervals: another attempt finishes the interval
    # in which the last one was killed.
    for epoch in range(done + 1, done - done % options.epochs + options.epochs + 1):
        rng = np.random.default_rng((options.seed, epoch))
        for batch in np.array_split(rng.permutation(train.TRAIN_SIZE), train.TRAIN_SIZE // BATCH):
            masks = train.dropout_masks((len(batch), WIDTH), options.dropout, rng)
            network.backpropagate(train_x[batch], one_hot[batch], masks, batch=len(batch))
            velocity *= options.momentum
            velocity -= options.lr * network.gradient
            network.vector += velocity
        scores = train.log_softmax(network.scores(valid_x))
        loss = -float(scores[np.arange(len(valid_y)), valid_y].mean())
        if not np.isfinite(loss):
            print(
                f"the loss is no longer finite in epoch {epoch}: lr={options.lr:g} is too large "
                f"here",
                flush=True,
            )
            sys.exit(train.INFEASIBLE)
        save(file, network, velocity, epoch)
        accuracy = float((scores.argmax(axis=1) == valid_y).mean())
        print(f"epoch={epoch} accuracy={accuracy:.5f} loss={loss:.5f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small network on the handwritten digits a little further."
    )
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument(
        "--dropout", type=float, default=0.0, help="share of hidden units switched off in a step"
    )
    parser.add_argument("--epochs", type=int, default=2, help="how many more")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        default=os.environ.get("TUNER_CHECKPOINT_DIR", "."),
        help="the folder of the checkpoint",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="of the initial weights, the order and the dropout"
    )
    return parser.parse_args()


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    np.seterr(all="ignore")
    run(parse())
