"""Which GPUs this machine lends to trials, and who gets which. Pure but for `visible_gpus`, which looks once.

A share below 1 sits on one GPU together with others; from 1 on it takes whole GPUs that nobody else uses.
"""

from __future__ import annotations

import math
import shutil
import subprocess
from collections.abc import Mapping, Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"
_QUERY = ("--query-gpu=index", "--format=csv,noheader")
_ROUNDING = 1e-9  # three thirds are one


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, ...]:
    """The ids that CUDA_VISIBLE_DEVICES names, else all that nvidia-smi lists; none where there is no such program."""
    named = environment.get(VARIABLE)
    if named is not None:
        ids = tuple(part.strip() for part in named.split(",") if part.strip())
        # CUDA itself stops at the first id that names nothing.
        return ids[: ids.index("-1")] if "-1" in ids else ids
    program = shutil.which("nvidia-smi", path=environment.get("PATH"))
    if program is None:
        return ()
    try:
        listed = subprocess.run((program, *_QUERY), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ()
    return tuple(listed.stdout.split()) if listed.returncode == 0 else ()


def slots(count: int, gpu: float) -> int:
    """How many attempts of `gpu` > 0 GPUs each fit on `count` GPUs at once."""
    if gpu < 1:
        return count * math.floor(1 / gpu + _ROUNDING)
    return count // math.ceil(gpu)


def assign(ids: Sequence[str], in_use: Sequence[tuple[float, Sequence[str]]], gpu: float) -> tuple[str, ...] | None:
    """GPUs for one more attempt, least used first; None when there is no room.

    in_use: (gpu, ids) of each attempt that runs.
    """
    used = dict.fromkeys(ids, 0.0)
    for share, held in in_use:
        for id in held:
            used[id] = used.get(id, 0.0) + min(share, 1.0)
    needed = min(gpu, 1.0)
    fitting = [id for id in sorted(ids, key=lambda id: used[id]) if used[id] + needed <= 1 + _ROUNDING]
    count = math.ceil(gpu)
    return tuple(fitting[:count]) if len(fitting) >= count else None
