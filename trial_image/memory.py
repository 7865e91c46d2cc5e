"""Out-of-memory errors of torch and the libraries below it, and the peak memory of the process."""

from __future__ import annotations

import resource
import sys

import torch
from errors import OutOfMemory
from recipe import Recipe

# Only the first of these errors has its own class in torch.
NO_MEMORY = ("out of memory", "can't allocate memory", "not enough memory", "_STATUS_ALLOC_FAILED")


def is_lacking(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, torch.cuda.OutOfMemoryError)) or any(
        words in str(error) for words in NO_MEMORY
    )


def out_of_memory(recipe: Recipe, error: BaseException) -> OutOfMemory:
    device = _gpu() if torch.cuda.is_initialized() or "CUDA" in str(error) else "this machine"
    return OutOfMemory(
        f"out of memory: {device} has no room for --batch {recipe.batch} and --width "
        f"{recipe.whole('width')}; use smaller ones, or fewer trials beside it"
    )


def _gpu() -> str:
    try:
        free, whole = torch.cuda.mem_get_info()
    # the query needs a CUDA context, for which there is no memory
    except (RuntimeError, AssertionError):
        return "the GPU"
    return f"the GPU, of whose {whole / 2**30:.1f} GiB {free / 2**30:.1f} are free,"


def peak_memory_bytes() -> int:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
