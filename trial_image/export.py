"""The trained network as a file that runs without this code: TorchScript, images in, scores out."""

from __future__ import annotations

import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from augment import MEAN, SIDE, STD
from network import build
from recipe import Recipe
from torch import Tensor, nn

NAME = "model.pt"


class Served(nn.Module):
    """images: (n, 3, 32, 32) float32 in 0 to 1, as photographs are; scores: (n, 10)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images - self.mean) / self.std)


def export(recipe: Recipe, weights: Mapping[str, Tensor], folders: Sequence[Path]) -> Path:
    """The same file in each of these folders, whole or not at all; the first one's path.

    It is read back before it gets its name: what is in it answers as the network does. weights: a network's
    `state_dict`. Raises OSError, and RuntimeError if it does not.
    """
    network = build(recipe)  # anew: one that trained with others holds on to them
    network.load_state_dict(weights)
    served = Served(network).eval()
    images = torch.rand(16, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    path, beside = folders[0] / NAME, folders[0] / f".{NAME}.new"
    folders[0].mkdir(parents=True, exist_ok=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is an old form, and that shapes are numbers in a trace
        torch.jit.save(torch.jit.trace(served, images[:2], check_trace=False), str(beside))
        expected, found = served(images), torch.jit.load(str(beside))(images)
    if not torch.allclose(expected, found, rtol=1e-4, atol=1e-4):
        beside.unlink()
        raise RuntimeError(f"{path}: the exported model does not answer as the trained one does; it is not kept")
    os.replace(beside, path)  # noqa: PTH105
    for folder in folders[1:]:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / beside.name)
        os.replace(folder / beside.name, folder / NAME)  # noqa: PTH105
    return path
