"""SGD with Nesterov momentum, and lookahead, implemented with foreach calls.

Learning rates are tensors on the device, so that a captured step follows the schedule. All state is
a list of tensors from the beginning, which checkpoints store and workers share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from network import Fast, Norm, Sweep, averaged
from recipe import Recipe
from torch import Tensor

LOOK_EVERY = 5  # steps


@dataclass(frozen=True, slots=True)
class WeightGroup:
    """Parameters with the same learning rate.

    They are trained for `epochs` epochs and then frozen.
    """

    weights: list[Tensor]
    rate: float
    decay: float
    epochs: float = float("inf")


def groups_of(network: Fast | Sweep, recipe: Recipe) -> list[WeightGroup]:
    (rate, bias_rate), (decay, bias_decay) = recipe.rates(), recipe.decays()
    biases = [module.bias for module in network.modules() if isinstance(module, Norm)]
    first = [network.whitening.bias] if isinstance(network, Fast) else []
    assert all(bias is not None for bias in first)
    apart = {id(bias) for bias in (*biases, *first)}
    other_weights = [
        weight
        for weight in network.parameters()
        if weight.requires_grad and id(weight) not in apart
    ]
    groups = [WeightGroup(other_weights, rate, decay)]
    if biases:
        groups.append(WeightGroup(biases, bias_rate, bias_decay))
    if first:
        groups.append(WeightGroup(first, rate, decay, recipe.number("whiten_epochs")))
    return groups


class NesterovSGD:
    """SGD with Nesterov momentum. `step` takes gradients in the order of the groups' weights."""

    def __init__(self, groups: Sequence[WeightGroup], momentum: float) -> None:
        self.groups, self.momentum = groups, momentum
        self.weights = list(chain.from_iterable(group.weights for group in groups))
        self.velocity = [torch.zeros_like(weight) for weight in self.weights]
        self.rates = torch.zeros(len(groups), device=self.weights[0].device)

    def rates_at(self, part: float, epoch: int) -> list[float]:
        """Return each group's rate in an epoch, counted from 0.

        The schedule is at `part` of the peak.
        """
        return [group.rate * part if epoch < group.epochs else 0.0 for group in self.groups]

    @torch.no_grad()
    def step(self, gradients: list[Tensor]) -> None:
        """Update the weights with the present `rates`. Changes `gradients`."""
        start = 0
        for number, group in enumerate(self.groups):
            part = slice(start, start := start + len(group.weights))
            self._update(group, gradients[part], self.velocity[part], self.rates[number])

    def _update(
        self, group: WeightGroup, gradients: list[Tensor], velocity: list[Tensor], rate: Tensor
    ) -> None:
        if group.decay:
            torch._foreach_add_(gradients, group.weights, alpha=group.decay)
        torch._foreach_mul_(velocity, self.momentum)
        torch._foreach_add_(velocity, gradients)
        torch._foreach_add_(gradients, velocity, alpha=self.momentum)
        torch._foreach_mul_(gradients, rate)
        torch._foreach_sub_(group.weights, gradients)


class Lookahead:
    """A slow average of all tensors (Zhang et al. 2019).

    The network is reset to it every fifth step.
    """

    def __init__(self, network: Fast | Sweep) -> None:
        self.fast = averaged(network)
        self.slow = [tensor.clone() for tensor in self.fast]

    @staticmethod
    def weight(step: int, total: int) -> float:
        """Return the slow average's weight after `step` steps: small first, 0.95**5 last."""
        return 0.95**LOOK_EVERY * (step / total) ** 3

    @torch.no_grad()
    def look(self, keep: float) -> None:
        if keep < 1:
            torch._foreach_lerp_(self.slow, self.fast, 1 - keep)
        torch._foreach_copy_(self.fast, self.slow)
