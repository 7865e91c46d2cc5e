"""Export of the trained network as TorchScript, which runs
without this code: images in, scores out.
"""

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


class ExportedNetwork(nn.Module):
    """The exported network. images: (n, 3, 32, 32) float32 from 0 to 1; scores: (n, 10)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.register_buffer("mean", torch.tensor(MEAN).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(1, 3, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.network((images - self.mean) / self.std)


def export(recipe: Recipe, weights: Mapping[str, Tensor], folders: Sequence[Path]) -> Path:
    """Write the same file to each of these folders, atomically, and return the path of the first.

    Before the file gets its name, it is loaded again and its scores are compared with the
    network's. `weights` is a network's `state_dict`.

    Raises:
        OSError: the file cannot be written.
        RuntimeError: the scores of the exported network differ.
    """
    network = build(recipe)  # a new one, because a trained one may refer to the other workers
    network.load_state_dict(weights)
    served = ExportedNetwork(network).eval()
    images = torch.rand(16, 3, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    path, beside = folders[0] / NAME, folders[0] / f".{NAME}.new"
    folders[0].mkdir(parents=True, exist_ok=True)
    with torch.no_grad(), warnings.catch_warnings():
        # about TorchScript being deprecated, and about constant shapes in a trace
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.trace(served, images[:2], check_trace=False), str(beside))
        expected, actual = served(images), torch.jit.load(str(beside))(images)
    if not torch.allclose(expected, actual, rtol=1e-4, atol=1e-4):
        beside.unlink()
        raise RuntimeError(
            f"{path}: the exported model does not answer as the trained one does; it is not kept"
        )
    os.replace(beside, path)  # noqa: PTH105
    for folder in folders[1:]:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / beside.name)
        os.replace(folder / beside.name, folder / NAME)  # noqa: PTH105
    return path
