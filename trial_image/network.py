"""The two networks. Weights are float32 and are cast to the precision
of the images where they are used.

Thus the same weights work with float32, float16 and bfloat16,
and an update is never too small for its weight.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from recipe import Recipe
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from world import World, shared_moments

CLASSES = 10
WHITENED = 24  # 2 x 2 pixels of 3 colors have 12 directions, each with both signs
# added to the variances, so that directions without variance are not amplified
WHITENING_FLOOR = 5e-4


class Conv(nn.Conv2d):
    """A convolution, by default 3 x 3 without bias."""

    def __init__(
        self, inputs: int, outputs: int, side: int = 3, *, padding: int = 1, bias: bool = False
    ) -> None:
        super().__init__(inputs, outputs, side, padding=padding, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return self._conv_forward(x, self.weight.to(x.dtype), bias)


class Norm(nn.Module):
    """Batch norm in float32 for any input.

    Over the images of all workers if `world` is given, else over those of this worker.
    """

    weight: Tensor
    running_mean: Tensor
    running_var: Tensor

    def __init__(
        self, channels: int, *, momentum: float, eps: float, scaled: bool, world: World | None
    ) -> None:
        super().__init__()
        self.momentum, self.eps, self.world = momentum, eps, world
        ones = torch.ones(channels)
        if scaled:
            self.weight = nn.Parameter(ones)
        else:  # the scale stays 1, but cuDNN needs a tensor
            self.register_buffer("weight", ones)
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        mean, var = self.running_mean, self.running_var
        if not self.training or self.world is None:
            return F.batch_norm(
                x, mean, var, self.weight, self.bias, self.training, self.momentum, self.eps
            )
        batch_mean, batch_var, count = shared_moments(x.float(), self.world)
        with torch.no_grad():
            mean.lerp_(batch_mean, self.momentum)
            var.lerp_(batch_var * (count / max(count - 1, 1)), self.momentum)
        scale = self.weight * (batch_var + self.eps).rsqrt()
        shift = self.bias - batch_mean * scale
        normalized = x.float() * scale.view(1, -1, 1, 1) + shift.view(1, -1, 1, 1)
        return normalized.to(x.dtype)


class Head(nn.Linear):
    def __init__(self, inputs: int, scale: float) -> None:
        super().__init__(inputs, CLASSES, bias=False)
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale


class ConvGroup(nn.Module):
    """Two convolutions of the fast network, which halve the side length of the input."""

    def __init__(self, inputs: int, outputs: int, recipe: Recipe, world: World | None) -> None:
        super().__init__()
        self.first, self.second = Conv(inputs, outputs), Conv(outputs, outputs)
        for conv in (self.first, self.second):  # initialize as identity
            nn.init.dirac_(conv.weight.data[: conv.in_channels])
        self.norm1, self.norm2 = (_fast_norm(outputs, recipe, world) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        halved = F.max_pool2d(self.first(x), 2)
        x = F.gelu(self.norm1(halved))
        return F.gelu(self.norm2(self.second(x)))


def _fast_norm(channels: int, recipe: Recipe, world: World | None) -> Norm:
    return Norm(
        channels, momentum=recipe.number("bn_momentum"), eps=1e-12, scaled=False, world=world
    )


class Fast(nn.Module):
    """Seven layers without residuals: whitening, three groups, a linear head."""

    def __init__(self, recipe: Recipe, world: World | None) -> None:
        super().__init__()
        width = recipe.whole("width")
        self.whitening = Conv(3, WHITENED, 2, padding=0, bias=True)
        self.whitening.weight.requires_grad_(False)
        self.groups = nn.Sequential(
            ConvGroup(WHITENED, width, recipe, world),
            ConvGroup(width, 4 * width, recipe, world),
            ConvGroup(4 * width, 4 * width, recipe, world),
        )
        self.head = Head(4 * width, recipe.number("logit_scale"))

    def forward(self, x: Tensor) -> Tensor:
        x = self.groups(F.gelu(self.whitening(x)))
        return self.head(F.max_pool2d(x, 3).flatten(1))

    def look_at(self, portions: Iterable[Tensor]) -> None:
        """Set the first layer's filters to whiten 2 x 2 patches of these images.

        images: (n, 3, 32, 32) float32.
        """
        self.whitening.weight.data.copy_(whitening_filters(portions))


def whitening_filters(portions: Iterable[Tensor]) -> Tensor:
    """Return the patches' principal directions, with both signs.

    Each is divided by its standard deviation. The directions are ordered by falling variance; those
    with the opposite sign follow. The images come in portions, because there is a patch for each
    pixel, which takes four times the memory of the images.
    """
    sums, count = [], 0
    for images in portions:
        windows = images.unfold(2, 2, 1).unfold(3, 2, 1)
        patches = windows.permute(0, 2, 3, 1, 4, 5).reshape(-1, 12)
        sums.append(patches.T @ patches)
        count += len(patches)
    second_moments = torch.stack(sums).sum(0)
    # On the CPU, because loading a GPU's solver would take longer.
    variances, directions = torch.linalg.eigh((second_moments / count).cpu())
    whitened = directions / (variances + WHITENING_FLOOR).sqrt()
    filters = whitened.T.flip(0).reshape(12, 3, 2, 2)
    return torch.cat([filters, -filters])


class Layer(nn.Module):
    """Convolution, batch norm (or biases), ReLU."""

    def __init__(self, inputs: int, outputs: int, recipe: Recipe, world: World | None) -> None:
        super().__init__()
        normed = recipe.on("batch_norm")
        self.conv = Conv(inputs, outputs, bias=not normed)
        self.norm: nn.Module = nn.Identity()
        if normed:
            momentum = recipe.number("bn_momentum")
            self.norm = Norm(outputs, momentum=momentum, eps=1e-5, scaled=True, world=world)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.norm(self.conv(x)))


class Residual(nn.Module):
    def __init__(self, channels: int, recipe: Recipe, world: World | None) -> None:
        super().__init__()
        self.inner = nn.Sequential(*(Layer(channels, channels, recipe, world) for _ in range(2)))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


class Sweep(nn.Module):
    """The well-known ResNet-9: nine layers with two residual blocks."""

    def __init__(self, recipe: Recipe, world: World | None) -> None:
        super().__init__()
        width = recipe.whole("width")
        self.layers = nn.Sequential(
            Layer(3, width, recipe, world),
            Layer(width, 2 * width, recipe, world),
            nn.MaxPool2d(2),
            Residual(2 * width, recipe, world),
            Layer(2 * width, 4 * width, recipe, world),
            nn.MaxPool2d(2),
            Layer(4 * width, 8 * width, recipe, world),
            nn.MaxPool2d(2),
            Residual(8 * width, recipe, world),
        )
        self.head = Head(8 * width, recipe.number("logit_scale"))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.max_pool2d(self.layers(x), 4).flatten(1))


def build(recipe: Recipe, world: World | None = None) -> Fast | Sweep:
    """Build the network on the CPU from the recipe's seed: the same weights on every machine.

    With `world`, batch norm is over all workers.
    """
    torch.manual_seed(recipe.seed)
    return Fast(recipe, world) if recipe.name == "fast" else Sweep(recipe, world)


def averaged(network: nn.Module) -> list[Tensor]:
    """Return all that training changes, in a fixed order: weights, biases, running statistics."""
    constant = {"whitening.weight"}
    for name, module in network.named_modules():
        if isinstance(module, Norm) and not isinstance(module.weight, nn.Parameter):
            constant.add(f"{name}.weight")
    return [tensor for name, tensor in network.state_dict().items() if name not in constant]
