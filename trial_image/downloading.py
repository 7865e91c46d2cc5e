"""The one way to the network: CIFAR-10 through torchvision's own data set class, when `--download` asks for it.

torchvision is imported here and nowhere else: it takes seconds, and many a torch has no torchvision that it can import.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from decoded import locked
from formats import DataError, batches_in

CURE = "download cifar-10-python.tar.gz by hand and name it with --data"

_kept: list[Any] = []


def download_into(root: Path) -> None:
    """root/cifar-10-batches-py, unless it is there. Of several processes one downloads."""
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / ".download.lock"):
        if batches_in(root / "cifar-10-batches-py") is None:
            try:
                # Progress belongs to stderr: what a trial prints is read for metrics.
                with contextlib.redirect_stdout(sys.stderr):
                    _cifar10()(str(root), download=True)
            except DataError:
                raise
            except Exception as problem:  # urllib, tarfile, torchvision: whatever it is, it is told
                raise DataError(
                    f"{root}: nothing was downloaded ({type(problem).__name__}: {problem}); {CURE}"
                ) from problem


def _cifar10() -> Any:  # torchvision's class; no checker needs torchvision
    try:
        try:
            from torchvision.datasets import CIFAR10
        except RuntimeError as problem:
            if "operator torchvision::" not in str(problem):
                raise
            _name_the_operators()
            from torchvision.datasets import CIFAR10
    except ImportError as problem:
        reason = f"is not installed ({problem}); pip install torchvision"
        raise DataError(f"--download goes through torchvision, which {reason}, or {CURE}") from problem
    except (RuntimeError, AttributeError) as problem:
        reason = f"was made for another torch than this one ({problem}); install a matching pair"
        raise DataError(f"--download goes through torchvision, which {reason}, or {CURE}") from problem
    return CIFAR10


def _name_the_operators() -> None:
    """For a torchvision whose compiled half does not load with this torch, as beside torch's builds for the CPU.

    All it lacks at import are the names of operators on boxes, of which a data set of images uses none.
    """
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # half imported
    named = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        named.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(named)  # the names go with the object
