"""Search a cell's operations on handwritten digits by gradients: one trial of darts.yaml.

Liu et al. 2019 (DARTS), first order. The texts are those of Katib's `darts`, read as Katib's image
does: an apostrophe is a quotation mark, and the operations get `none` in addition. Each edge of a
cell is the mixture of all operations; the weights learn from one half of the digits, the mixture
from the other. It prints `epoch=3 Validation-Accuracy=0.95` and, at its end, the strongest edges:
`Best-Genotype=Genotype(normal=[…], …)`.
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

from torch.nn import functional as F  # noqa: N812

sys.path.insert(0, str(Path(__file__).parents[2] / "digits"))
from train import load_digits

Apply = Callable[[torch.Tensor], torch.Tensor]
NONE = "none"


class Network:
    """Cells whose edges are mixtures of operations. A third and two thirds in, cells halve images.

    alphas: the logits of the mixtures of normal and of reducing cells, (edges, operations).
    """

    def __init__(self, space: Sequence[str], layers: int, nodes: int, channels: int) -> None:
        self.space, self.nodes = [*space, NONE], nodes
        self.weights: list[torch.Tensor] = []
        edges = sum(2 + node for node in range(nodes))
        self.alphas = [(torch.randn(edges, len(self.space)) * 1e-3).requires_grad_() for _ in "nr"]
        self._stem = self._weight((channels, 1, 3, 3))
        self._reducing = {layers // 3, 2 * layers // 3} if layers > 2 else {layers - 1}
        self._cells = []
        inputs = [channels, channels]
        for _ in range(layers):
            first, second = (self._weight((channels, count, 1, 1)) for count in inputs)
            mixtures = [
                [self._operation(name, channels) for name in self.space] for _ in range(edges)
            ]
            self._cells.append((first, second, mixtures))
            inputs = [inputs[1], nodes * channels]
        self._last = self._weight((10, inputs[1]))

    def _weight(self, shape: Sequence[int]) -> torch.Tensor:
        inputs = torch.Size(shape[1:]).numel()
        weight = (torch.randn(*shape) * (2 / inputs) ** 0.5).requires_grad_()
        self.weights.append(weight)
        return weight

    def _operation(self, name: str, channels: int) -> Apply:
        """Return an operation such as `separable_convolution_3x3`, which keeps an image's shape."""
        if name == NONE:
            return torch.zeros_like
        if name == "skip_connection":
            return lambda x: x
        kind, _, sizes = name.rpartition("_")
        size = int(sizes.partition("x")[0])
        if kind == "max_pooling":
            return lambda x: F.max_pool2d(x, size, stride=1, padding=size // 2)
        if kind == "avg_pooling":
            return lambda x: F.avg_pool2d(x, size, stride=1, padding=size // 2)
        if kind not in ("separable_convolution", "dilated_convolution"):
            sys.exit(f"train.py: unknown operation {name}")
        spread = 2 if kind == "dilated_convolution" else 1
        depth = self._weight((channels, 1, size, size))
        point = self._weight((channels, channels, 1, 1))

        def apply(x: torch.Tensor) -> torch.Tensor:
            padding = spread * (size // 2)
            x = F.conv2d(x, depth, padding=padding, dilation=spread, groups=channels)
            return _normal(F.conv2d(torch.relu(x), point))

        return apply

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        shares = [alpha.softmax(1) for alpha in self.alphas]
        before = last = _normal(F.conv2d(x, self._stem, padding=1))
        for layer, (first, second, mixtures) in enumerate(self._cells):
            is_reducing = layer in self._reducing
            size = [max(1, side // 2) if is_reducing else side for side in last.shape[2:]]
            states = [
                _normal(F.conv2d(F.adaptive_avg_pool2d(image, size), weight))
                for image, weight in ((before, first), (last, second))
            ]
            edge = 0
            for _ in range(self.nodes):
                total = torch.zeros_like(states[0])
                for state in list(states):
                    mixture = zip(shares[is_reducing][edge], mixtures[edge], strict=True)
                    total = total + sum(share * operation(state) for share, operation in mixture)
                    edge += 1
                states.append(total)
            before, last = last, torch.cat(states[2:], dim=1)
        return F.linear(last.mean((2, 3)), self._last)

    def genotype(self) -> str:
        """Return the two strongest edges of each node, without `none`."""
        cells = [self._strongest(alpha.detach().softmax(1)[:, :-1]) for alpha in self.alphas]
        concat = f"range(2, {2 + self.nodes})"
        return (
            f"Genotype(normal={cells[0]}, normal_concat={concat}, "
            f"reduce={cells[1]}, reduce_concat={concat})"
        )

    def _strongest(self, shares: torch.Tensor) -> list[list[tuple[str, int]]]:
        nodes, edge = [], 0
        for node in range(self.nodes):
            of_node = shares[edge : edge + 2 + node]
            edge += 2 + node
            strongest = of_node.max(1).values.argsort(descending=True)[:2].sort().values
            best = of_node.argmax(1)
            nodes.append([(self.space[int(best[k])], int(k)) for k in strongest])
        return nodes


def _normal(x: torch.Tensor) -> torch.Tensor:
    """Return the channels, each normalized over the batch."""
    return F.batch_norm(x, None, None, training=True)


class Steps:
    """Gradient steps with momentum and weight decay."""

    def __init__(self, weights: Sequence[torch.Tensor], momentum: float, decay: float) -> None:
        self._weights, self._momentum, self._decay = weights, momentum, decay
        self._speeds = [torch.zeros_like(weight) for weight in weights]

    def take(self, loss: torch.Tensor, rate: float) -> None:
        slopes = torch.autograd.grad(loss, self._weights, materialize_grads=True)
        with torch.no_grad():
            for weight, speed, slope in zip(self._weights, self._speeds, slopes, strict=True):
                change = (slope + self._decay * weight).clamp(-5, 5)
                speed.mul_(self._momentum).add_(change, alpha=-rate)
                weight.add_(speed)


def search(settings: Mapping[str, float], space: Sequence[str], layers: int) -> None:
    train_x, train_y, valid_x, valid_y = load_digits()
    x, valid = (torch.from_numpy(each).reshape(-1, 1, 8, 8) for each in (train_x, valid_x))
    y, answers = torch.from_numpy(train_y), torch.from_numpy(valid_y)
    torch.manual_seed(0)
    network = Network(space, layers, int(settings["num_nodes"]), int(settings["init_channels"]))
    weights = Steps(network.weights, settings["w_momentum"], settings["w_weight_decay"])
    # The mixture's rate is for Adam; plain steps are smaller.
    alphas = Steps(network.alphas, 0.5, settings["alpha_weight_decay"])
    half, epochs = len(x) // 2, int(settings["num_epochs"])
    batches = max(1, half // int(settings.get("batch_size") or 128))
    for epoch in range(1, epochs + 1):
        least, most = settings["w_lr_min"], settings["w_lr"]
        rate = least + (most - least) * (1 - (epoch - 1) / epochs)
        of_weights = torch.randperm(half).tensor_split(batches)
        of_alphas = (half + torch.randperm(len(x) - half)).tensor_split(batches)
        for one, other in zip(of_weights, of_alphas, strict=True):
            alphas.take(F.cross_entropy(network(x[other]), y[other]), 1000 * settings["alpha_lr"])
            weights.take(F.cross_entropy(network(x[one]), y[one]), rate)
        with torch.no_grad():
            accuracy = (network(valid).argmax(1) == answers).float().mean().item()
        print(f"epoch={epoch} Validation-Accuracy={accuracy:.5f}", flush=True)
    print(f"Best-Genotype={network.genotype()}", flush=True)


def _json(text: str) -> Any:
    return json.loads(text.replace("'", '"'))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algorithm-settings", required=True, type=_json)
    parser.add_argument("--search-space", required=True, type=_json)
    parser.add_argument("--num-layers", required=True, type=int)
    options = parser.parse_args()
    settings = {
        name: float(value)
        for name, value in options.algorithm_settings.items()
        if value is not None
    }
    search(settings, options.search_space, options.num_layers)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
    torch.set_num_threads(1)
    main()
    sys.stdout.flush()
    # Skip torch's shutdown, which takes a fifth of a second.
    os._exit(0)
