"""Train a small convolutional network on the handwritten digits, with torch:
one trial of torch.yaml.

The program is minimal because the trial is short: most of its three seconds are `import torch`.
Constructing any optimizer of `torch.optim` would import a compiler, which takes another second, so
the step is written out here.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys

# trials run side by side; spinning threads would slow all of them
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import torch
except ModuleNotFoundError:
    sys.exit("train_torch.py: torch is not installed: pip install torch")

import numpy as np
from torch.nn import functional as F  # noqa: N812
from train import INFEASIBLE, TRAIN_SIZE, WARMUP, load_digits

ACTIVATIONS = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
GAINS = {"relu": 2.0**0.5, "tanh": 5 / 3, "sigmoid": 4.0}


class Network:
    """Two convolutions with width/4 and width/2 channels, and a hidden layer with `width` units."""

    def __init__(self, width: int, activation: str) -> None:
        self.activate, gain = ACTIVATIONS[activation], GAINS[activation]
        first, second = width // 4, width // 2
        shapes = [(first, 1, 3, 3), (second, first, 3, 3), (width, second * 16), (10, width)]
        self.weights = []
        for shape, scale in zip(shapes, (gain, gain, gain, 0.1), strict=True):
            inputs = torch.Size(shape[1:]).numel()
            self.weights += [torch.randn(shape) * scale / inputs**0.5, torch.zeros(shape[0])]
        for weight in self.weights:
            weight.requires_grad_()

    def __call__(self, x: torch.Tensor, dropout: float = 0.0) -> torch.Tensor:
        w1, b1, w2, b2, w3, b3, w4, b4 = self.weights
        x = self.activate(F.conv2d(x, w1, b1, padding=1))
        x = F.max_pool2d(self.activate(F.conv2d(x, w2, b2, padding=1)), 2).flatten(1)
        x = self.activate(F.linear(F.dropout(x, dropout), w3, b3))
        return F.linear(F.dropout(x, dropout), w4, b4)


def images(pixels: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(pixels).reshape(-1, 1, 8, 8)


def train(options: argparse.Namespace) -> None:
    train_x, train_y, valid_x, valid_y = load_digits()
    x, y = images(train_x), torch.from_numpy(train_y)
    valid, answers = images(valid_x), torch.from_numpy(valid_y)
    torch.manual_seed(options.seed)
    network = Network(options.width, options.activation)
    weights = network.weights
    velocity = [torch.zeros_like(weight) for weight in weights]
    batches = -(-TRAIN_SIZE // options.batch)
    total, step = batches * options.epochs, 0
    for epoch in range(1, options.epochs + 1):
        for batch in torch.randperm(TRAIN_SIZE).tensor_split(batches):
            step += 1
            rate = options.lr * min(
                step / (WARMUP * total), (total - step + 1) / ((1 - WARMUP) * total), 1.0
            )
            loss = F.cross_entropy(network(x[batch], options.dropout), y[batch])
            gradients = list(torch.autograd.grad(loss, weights))
            with torch.no_grad():
                torch._foreach_add_(gradients, weights, alpha=options.weight_decay)
                torch._foreach_mul_(velocity, options.momentum)
                torch._foreach_add_(velocity, gradients, alpha=-rate)
                torch._foreach_add_(weights, velocity)
        with torch.no_grad():
            scores = network(valid)
            loss = F.cross_entropy(scores, answers).item()
            accuracy = (scores.argmax(1) == answers).float().mean().item()
        if not np.isfinite(loss):
            print(
                f"the loss is no longer finite in epoch {epoch}: lr={options.lr:g} is too large "
                f"here",
                flush=True,
            )
            sys.exit(INFEASIBLE)
        print(f"epoch={epoch} accuracy={accuracy:.5f} loss={loss:.5f}", flush=True)


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Train a small convolutional network on the handwritten digits."
    )
    parser.add_argument("--lr", type=float, default=0.1, help="peak learning rate")
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument(
        "--width", type=int, default=64, help="units of the hidden layer; channels follow it"
    )
    parser.add_argument("--weight-decay", type=float, default=1e-4)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--activation", choices=sorted(ACTIVATIONS), default="relu")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


if __name__ == "__main__":
    # for containers, as in train.py; all output is flushed
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    torch.set_num_threads(1)
    train(parse())
    sys.stdout.flush()
    os._exit(0)  # skip torch's shutdown, which takes a fifth of a second
