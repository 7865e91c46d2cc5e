"""Train the network that `--architecture` and `--nn_config` describe, on handwritten digits: one
trial of enas.yaml.

The texts are those of Katib's `enas`, read as Katib's image does: an apostrophe is a quotation
mark, and each layer reads the layer before it and, where its entry has a 1, an earlier one. It
prints one line per epoch, `epoch=3 Validation-Accuracy=0.95100 weights=5210`.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

# Trials run side by side; spinning threads would slow all of them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

try:
    import torch
except ModuleNotFoundError:
    sys.exit("train.py: torch is not installed: pip install torch")

import numpy as np
from torch.nn import functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[2] / "digits"))
from train import load_digits

Apply = Callable[[torch.Tensor], torch.Tensor]
BATCH, RATE, MOMENTUM = 64, 0.1, 0.9


class Network:
    """A stack of layers, each applied to the joined outputs of those that it reads."""

    def __init__(self, architecture: Sequence[Sequence[int]], config: Mapping[str, Any]) -> None:
        height, width, channels = config["input_sizes"]
        self.weights: list[torch.Tensor] = []
        self._layers: list[tuple[Sequence[int], Apply]] = []
        shapes = [(channels, height, width)]
        for layer, (number, *joined) in enumerate(architecture):
            sources = [layer, *(j for j, is_joined in enumerate(joined) if is_joined)]
            of = [shapes[source] for source in sources]
            inputs = (sum(c for c, _, _ in of), min(h for _, h, _ in of), min(w for *_, w in of))
            apply, shape = self._made(config["embedding"][str(number)], inputs)
            self._layers.append((sources, apply))
            shapes.append(shape)
        self._last = self._weight((config["output_sizes"][-1], torch.Size(shapes[-1]).numel()))

    def _weight(self, shape: Sequence[int]) -> torch.Tensor:
        inputs = torch.Size(shape[1:]).numel()
        weight = (torch.randn(*shape) * (2 / inputs) ** 0.5).requires_grad_()
        self.weights.append(weight)
        return weight

    def _made(
        self, operation: Mapping[str, Any], shape: tuple[int, int, int]
    ) -> tuple[Apply, tuple[int, int, int]]:
        """Return a layer and the shape of its outputs, which are images of at least one pixel."""
        kind, options = operation["opt_type"], operation["opt_params"]
        channels, height, width = shape
        if kind == "reduction":
            size = min(int(options["pool_size"]), height, width)
            pool = F.max_pool2d if options["reduction_type"] == "max_pooling" else F.avg_pool2d
            return lambda x: pool(x, size), (channels, height // size, width // size)
        size, stride = int(options["filter_size"]), int(options.get("stride", 1))
        count = int(options.get("num_filter", channels))
        after = (-(-height // stride), -(-width // stride))
        if kind == "convolution":
            weight = self._weight((count, channels, size, size))

            def apply(x: torch.Tensor) -> torch.Tensor:
                return _normal(F.conv2d(x, weight, stride=stride, padding=size // 2))

            return apply, (count, *after)
        if kind not in ("separable_convolution", "depthwise_convolution"):
            sys.exit(f"train.py: unknown operation {kind}")
        depth = self._weight((channels, 1, size, size))
        point = self._weight((count, channels, 1, 1)) if kind.startswith("separable") else None

        def separated(x: torch.Tensor) -> torch.Tensor:
            x = F.conv2d(x, depth, stride=stride, padding=size // 2, groups=channels)
            return _normal(x if point is None else F.conv2d(x, point))

        return separated, (channels if point is None else count, *after)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        outputs = [x]
        for sources, apply in self._layers:
            images = [outputs[source] for source in sources]
            least = [min(image.shape[axis] for image in images) for axis in (2, 3)]
            images = [F.adaptive_avg_pool2d(image, least) for image in images]
            outputs.append(apply(torch.cat(images, dim=1)))
        return F.linear(outputs[-1].flatten(1), self._last)


def _images(pixels: np.ndarray, sizes: Sequence[int]) -> torch.Tensor:
    """Return the digits as images of the network's input sizes: height, width and channels."""
    height, width, channels = sizes
    images = torch.from_numpy(pixels).reshape(-1, 1, 8, 8)
    if (height, width) != (8, 8):
        images = F.interpolate(images, size=(height, width))
    return images.expand(-1, channels, -1, -1)


def _normal(x: torch.Tensor) -> torch.Tensor:
    """Return the channels, each normalized over the batch, without their negative values."""
    return torch.relu(F.batch_norm(x, None, None, training=True))


def train(
    architecture: Sequence[Sequence[int]], config: Mapping[str, Any], *, epochs: int, seed: int
) -> float:
    """Train the network, print each epoch's accuracy, and return the last one."""
    train_x, train_y, valid_x, valid_y = load_digits()
    x, valid = (_images(each, config["input_sizes"]) for each in (train_x, valid_x))
    y, answers = torch.from_numpy(train_y), torch.from_numpy(valid_y)
    torch.manual_seed(seed)
    network = Network(architecture, config)
    speeds = [torch.zeros_like(weight) for weight in network.weights]
    batches, accuracy = len(x) // BATCH, 0.0
    for epoch in range(1, epochs + 1):
        rate = RATE * (1 - (epoch - 1) / epochs)
        for batch in torch.randperm(len(x)).tensor_split(batches):
            loss = F.cross_entropy(network(x[batch]), y[batch])
            gradients = torch.autograd.grad(loss, network.weights)
            with torch.no_grad():
                for weight, speed, slope in zip(network.weights, speeds, gradients, strict=True):
                    speed.mul_(MOMENTUM).add_(slope, alpha=-rate)
                    weight.add_(speed)
        with torch.no_grad():
            accuracy = (network(valid).argmax(1) == answers).float().mean().item()
        size = sum(weight.numel() for weight in network.weights)
        print(f"epoch={epoch} Validation-Accuracy={accuracy:.5f} weights={size}", flush=True)
    return accuracy


def _json(text: str) -> Any:
    return json.loads(text.replace("'", '"'))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--architecture", required=True, type=_json)
    parser.add_argument("--nn_config", required=True, type=_json)
    parser.add_argument("--num_epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    train(options.architecture, options.nn_config, epochs=options.num_epochs, seed=options.seed)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    torch.set_num_threads(1)
    main()
    sys.stdout.flush()
    # Skip torch's shutdown, which takes a fifth of a second.
    os._exit(0)
