"""Both recipes implemented from their definitions with plain torch modules
and torch.optim, as the reference of test_recipe_equivalence.py. They share
only the plan of an epoch and the initial weights with the programs.
"""

from __future__ import annotations

import copy
import math

import numpy as np
import torch
from augment import drawn
from network import Norm
from torch import nn
from torch.optim.sgd import sgd
from training import TrainingRun

from tests.trial.small_trainings import LEARN, SMALL, seen_slowly


class Scaled(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Residual(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + super().forward(x)


def fast_network(width: int) -> nn.Sequential:
    def norm(channels: int) -> nn.BatchNorm2d:
        module = nn.BatchNorm2d(channels, eps=1e-12, momentum=0.4)
        module.weight.requires_grad_(False)
        return module

    def group(inputs: int, outputs: int) -> list[nn.Module]:
        first = nn.Conv2d(inputs, outputs, 3, padding="same", bias=False)
        second = nn.Conv2d(outputs, outputs, 3, padding="same", bias=False)
        return [first, nn.MaxPool2d(2), norm(outputs), nn.GELU(), second, norm(outputs), nn.GELU()]

    whitening = nn.Conv2d(3, 24, 2)
    whitening.weight.requires_grad_(False)
    groups = [*group(24, width), *group(width, 4 * width), *group(4 * width, 4 * width)]
    head = nn.Linear(4 * width, 10, bias=False)
    return nn.Sequential(
        whitening, nn.GELU(), *groups, nn.MaxPool2d(3), nn.Flatten(), head, Scaled(1 / 9)
    )


def sweep_network(width: int, *, normed: bool) -> nn.Sequential:
    def layer(inputs: int, outputs: int) -> list[nn.Module]:
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=not normed)
        return [conv, *([nn.BatchNorm2d(outputs)] if normed else []), nn.ReLU()]

    def residual(channels: int) -> Residual:
        return Residual(*layer(channels, channels), *layer(channels, channels))

    w2, w4, w8 = 2 * width, 4 * width, 8 * width
    return nn.Sequential(
        *layer(3, width),
        *layer(width, w2),
        nn.MaxPool2d(2),
        residual(w2),
        *layer(w2, w4),
        nn.MaxPool2d(2),
        *layer(w4, w8),
        nn.MaxPool2d(2),
        residual(w8),
        nn.MaxPool2d(4),
        nn.Flatten(),
        nn.Linear(w8, 10, bias=False),
        Scaled(0.125),
    )


def leaves(network: nn.Module) -> list[nn.Module]:
    """Return the modules with weights in the order of computation."""
    kinds = (nn.Conv2d, nn.Linear, nn.BatchNorm2d, Norm)
    return [module for module in network.modules() if isinstance(module, kinds)]


def in_order(network: nn.Module) -> list[nn.Module]:
    """Return `leaves` with each norm after its convolution,
    even in a group that names its convolutions first.
    """
    found = leaves(network)
    convolutions = [module for module in found if isinstance(module, nn.Conv2d)]
    norms = [module for module in found if isinstance(module, (nn.BatchNorm2d, Norm))]
    return [*convolutions, *norms, *(module for module in found if isinstance(module, nn.Linear))]


def weights_of(network: nn.Module) -> list[torch.Tensor]:
    """Return everything that training changes, in the same order for both implementations."""
    tensors = []
    for module in in_order(network):
        tensors += [module.weight, *([] if module.bias is None else [module.bias])]
        if isinstance(module, (nn.BatchNorm2d, Norm)):
            tensors += [module.running_mean, module.running_var]
    return [tensor.detach() for tensor in tensors]


class Group:
    """A parameter group of torch.optim.SGD, updated by the function that SGD itself calls.

    The SGD class imports a compiler, which takes longer than all these tests.
    """

    def __init__(self, weights: list[nn.Parameter], lr: float, decay: float) -> None:
        self.weights, self.lr, self.decay = weights, lr, decay
        self.momenta: dict[nn.Parameter, torch.Tensor | None] = {}

    def step(self, part: float, momentum: float) -> None:
        learning = [weight for weight in self.weights if weight.grad is not None]
        momenta = [self.momenta.get(weight) for weight in learning]
        with torch.no_grad():
            sgd(
                learning,
                [weight.grad for weight in learning],
                momenta,
                foreach=False,
                lr=self.lr * part,
                weight_decay=self.decay,
                momentum=momentum,
                dampening=0.0,
                nesterov=True,
                maximize=False,
            )
        self.momenta.update(zip(learning, momenta, strict=True))


class PlainTraining:
    """A training that begins with the weights of `ours` before its first step."""

    def __init__(self, ours: TrainingRun) -> None:
        self.recipe, knobs = ours.recipe, ours.recipe.knobs
        self.fast = self.recipe.name == "fast"
        width = int(knobs["width"])
        self.network = (
            fast_network(width)
            if self.fast
            else sweep_network(width, normed=bool(knobs["batch_norm"]))
        )
        with torch.no_grad():
            for mine, its in zip(weights_of(self.network), weights_of(ours.network), strict=True):
                mine.copy_(its)
        self.batch = int(knobs["batch"])
        self.total = math.ceil(len(LEARN) // self.batch * float(knobs["epochs"]))
        self.groups = self.fast_groups() if self.fast else self.sweep_groups()
        self.criterion = nn.CrossEntropyLoss(
            label_smoothing=float(knobs["label_smoothing"]), reduction="none"
        )
        self.slow = copy.deepcopy(self.network.state_dict())
        self.step = 0

    def fast_groups(self) -> list[Group]:
        knobs = self.recipe.knobs
        kilostep = 1024 * (1 + 1 / (1 - knobs["momentum"]))
        lr, decay = knobs["lr"] / kilostep, knobs["weight_decay"] * self.batch / kilostep
        bias_lr = lr * knobs["bias_lr"]
        norms = [m.bias for m in self.network if isinstance(m, nn.BatchNorm2d)]
        others = [
            p
            for p in self.network.parameters()
            if p.requires_grad and not any(p is bias for bias in norms)
        ]
        return [Group(norms, bias_lr, decay / bias_lr), Group(others, lr, decay / lr)]

    def sweep_groups(self) -> list[Group]:
        knobs = self.recipe.knobs
        return [
            Group(
                list(self.network.parameters()),
                knobs["lr"] / self.batch,
                knobs["weight_decay"] * self.batch,
            )
        ]

    def part(self) -> float:
        """Return the fraction of the peak learning rate in the next step."""
        peak = self.recipe.knobs["peak"] * self.total
        if self.fast:
            return float(np.interp(self.step, [0, int(peak), self.total], [0.2, 1, 0.07]))
        return float(np.interp(self.step + 1, [0, round(peak), self.total], [0, 1, 0]))

    def look(self, keep: float) -> None:
        for name, tensor in self.network.state_dict().items():
            if tensor.is_floating_point():
                self.slow[name] = self.slow[name] * keep + tensor * (1 - keep)
                tensor.copy_(self.slow[name])

    def epoch(self, number: int) -> list[float]:
        """Return the mean loss of each of its steps."""
        losses = []
        self.network.train()
        for plan in drawn(self.recipe, number, len(LEARN)).numpy():
            if self.fast:
                self.network[0].bias.requires_grad_(number < self.recipe.knobs["whiten_epochs"])
            scores = self.network(seen_slowly(plan, self.recipe.cutout))
            loss = self.criterion(scores, torch.from_numpy(SMALL.labels[plan[0]].astype(np.int64)))
            self.network.zero_grad(set_to_none=True)
            loss.sum().backward()
            for group in self.groups:
                group.step(self.part(), self.recipe.knobs["momentum"])
            self.step += 1
            if self.recipe.knobs["lookahead"] and self.step % 5 == 0:
                self.look(0.95**5 * (self.step / self.total) ** 3)
            losses.append(loss.mean().item())
        if self.recipe.knobs["lookahead"] and self.step == self.total:
            self.look(1.0)
        return losses
