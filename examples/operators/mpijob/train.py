"""Logistic regression, its gradients averaged by MPI's Allreduce,
trained by the workers of an MPIJob.

The launcher's mpirun starts one rank in each worker, and what ranks print appears in the launcher's
log. Rank 0 prints the loss and the accuracy on held-out examples: the metrics of the trial. Each
rank appends the loss on its own shard to `--shard-log`, which its worker prints.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from mpi4py import MPI

FEATURES, TRAINING, HELD_OUT, BATCH = 16, 1024, 256, 32


def examples() -> tuple[np.ndarray, np.ndarray]:
    """(examples, features) and their labels, 0 or 1:
    on which side of a hidden plane an example is.
    """
    generator = np.random.default_rng(7)
    inputs = generator.normal(size=(TRAINING + HELD_OUT, FEATURES))
    plane = generator.normal(size=FEATURES)
    return inputs, (inputs @ plane > 0).astype(float)


def judge(weights: np.ndarray, inputs: np.ndarray, labels: np.ndarray) -> tuple[float, float]:
    """The mean loss, and the part of the labels that is predicted right."""
    logits = inputs @ weights
    return float(np.mean(np.logaddexp(0, logits) - labels * logits)), float(
        np.mean((logits > 0) == (labels > 0.5))
    )


def train(lr: float, epochs: int, shard_log: Path) -> None:
    world = MPI.COMM_WORLD
    inputs, labels = examples()
    held_out = inputs[TRAINING:], labels[TRAINING:]
    inputs, labels = (
        inputs[world.rank : TRAINING : world.size],
        labels[world.rank : TRAINING : world.size],
    )
    weights, gradient = np.zeros(FEATURES), np.zeros(FEATURES)
    for epoch in range(1, epochs + 1):
        for start in range(0, TRAINING // world.size, BATCH):
            batch, answers = inputs[start : start + BATCH], labels[start : start + BATCH]
            errors = 1 / (1 + np.exp(-batch @ weights)) - answers
            world.Allreduce(errors @ batch / len(batch), gradient)  # the sum over all ranks
            weights -= lr * gradient / world.size
        with shard_log.open("a") as log:
            print(
                "epoch={} loss={:.6f} accuracy={:.4f}".format(
                    epoch, *judge(weights, inputs, labels)
                ),
                file=log,
            )
        if world.rank == 0:
            print(
                "epoch={} loss={:.6f} accuracy={:.4f}".format(epoch, *judge(weights, *held_out)),
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--shard-log", type=Path, default=Path("/tmp/shard.log"))
    options = parser.parse_args()
    print(
        f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size} on {MPI.Get_processor_name()}",
        flush=True,
    )
    train(options.lr, options.epochs, options.shard_log)


if __name__ == "__main__":
    main()
