"""Train a network whose layers are parameters, on the digits of examples/digits, with NumPy alone.

`--layer=KIND:UNITS` adds a layer, relu or tanh with so many units; a network without layers is
linear. It prints one line for each epoch, `epoch=3 accuracy=0.95100 parameters=5210`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "digits"))
from train import CLASSES, load_digits

Array = np.ndarray


class Layer:
    def __init__(self, kind: str, inputs: int, units: int, rng: np.random.Generator) -> None:
        self.kind = kind
        self.weights = rng.standard_normal((inputs, units)) * np.sqrt(2 / inputs)
        self.bias = np.zeros(units)
        self.speed = [np.zeros_like(self.weights), np.zeros_like(self.bias)]

    def forward(self, x: Array) -> Array:
        self.x = x
        z = x @ self.weights + self.bias
        self.out = (
            np.maximum(z, 0) if self.kind == "relu" else np.tanh(z) if self.kind == "tanh" else z
        )
        return self.out

    def backward(self, gradient: Array, lr: float) -> Array:
        """Take a step against the gradient of the output, and return that of the input."""
        if self.kind == "relu":
            gradient = gradient * (self.out > 0)
        elif self.kind == "tanh":
            gradient = gradient * (1 - self.out**2)
        before = gradient @ self.weights.T
        for k, (value, slope) in enumerate(
            ((self.weights, self.x.T @ gradient), (self.bias, gradient.sum(axis=0)))
        ):
            self.speed[k] = 0.9 * self.speed[k] - lr * slope
            value += self.speed[k]
        return before


def network(layers: list[str], inputs: int, rng: np.random.Generator) -> list[Layer]:
    layers_made: list[Layer] = []
    for layer in layers:
        kind, _, units = layer.partition(":")
        layers_made.append(Layer(kind, inputs, int(units), rng))
        inputs = int(units)
    return [*layers_made, Layer("linear", inputs, CLASSES, rng)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--layer", action="append", default=[], help="KIND:UNITS, where KIND is relu or tanh"
    )
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--epochs", type=int, default=5)
    arguments = parser.parse_args()
    train_x, train_y, valid_x, valid_y = load_digits()
    rng = np.random.default_rng(0)
    layers = network(arguments.layer, train_x.shape[1], rng)
    size = sum(layer.weights.size + layer.bias.size for layer in layers)
    for epoch in range(1, arguments.epochs + 1):
        for batch in np.array_split(rng.permutation(len(train_x)), len(train_x) // 32):
            out = train_x[batch]
            for layer in layers:
                out = layer.forward(out)
            shares = np.exp(out - out.max(axis=1, keepdims=True))
            gradient = shares / shares.sum(axis=1, keepdims=True)
            gradient[np.arange(len(batch)), train_y[batch]] -= 1
            gradient /= len(batch)
            for layer in reversed(layers):
                gradient = layer.backward(gradient, arguments.lr)
        out = valid_x
        for layer in layers:
            out = layer.forward(out)
        print(
            f"epoch={epoch} accuracy={(out.argmax(axis=1) == valid_y).mean():.5f} "
            f"parameters={size}",
            flush=True,
        )


if __name__ == "__main__":
    main()
