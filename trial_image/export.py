"""The trained network as one TorchScript file that needs none of this code: images in, scores out."""

from __future__ import annotations

import copy
import os
import warnings
from pathlib import Path

import torch
from augment import MEAN, SIDE, STD
from torch import Tensor, nn

NAME = "model.pt"
CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


class Served(nn.Module):
    """images: (n, 3, 32, 32) float32 in 0 to 1, as photographs are; scores: (n, 10)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images - self.mean) / self.std)


def export(network: nn.Module, folder: Path) -> Path:
    """Written whole or not at all, and read back: what is in the file answers as the network does.

    Raises OSError, and RuntimeError if it does not.
    """
    served = Served(copy.deepcopy(network).to("cpu", memory_format=torch.contiguous_format)).eval()
    images = torch.rand(16, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    path, beside = folder / NAME, folder / f".{NAME}.new"
    folder.mkdir(parents=True, exist_ok=True)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that TorchScript is an old form, and that shapes are numbers in a trace
        torch.jit.save(torch.jit.trace(served, images[:2], check_trace=False), str(beside))
        expected, found = served(images), torch.jit.load(str(beside))(images)
    if not torch.allclose(expected, found, rtol=1e-4, atol=1e-4):
        beside.unlink()
        raise RuntimeError(f"{path}: the exported model does not answer as the trained one does; it is not kept")
    os.replace(beside, path)  # noqa: PTH105
    return path
