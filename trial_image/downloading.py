"""Download of CIFAR-10 with torchvision's data set class, only on `--download`. Nothing else uses the network.

torchvision is imported only here: the import takes seconds, and many installations of torch lack a working torchvision.
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
    """Download root/cifar-10-batches-py unless it exists. Of several processes, only one downloads."""
    root.mkdir(parents=True, exist_ok=True)
    with locked(root / ".download.lock"):
        if batches_in(root / "cifar-10-batches-py") is None:
            try:
                # Send progress to stderr, because metrics are read from a trial's stdout.
                with contextlib.redirect_stdout(sys.stderr):
                    _cifar10()(str(root), download=True)
            except DataError:
                raise
            except Exception as problem:  # of urllib, tarfile or torchvision; report any of them
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
    """Make a torchvision importable whose compiled part does not load with this torch, such as a CPU build.

    The import only lacks the names of operators on boxes, which a data set of images does not use.
    """
    import torch

    for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
        del sys.modules[name]  # partially imported
    named = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        named.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _kept.append(named)  # the names exist only as long as this object
