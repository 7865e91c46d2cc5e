"""Which GPUs this machine lends to trials, by name. Pure but for `_listed`, which asks nvidia-smi once.

Who gets which of them is decided across experiments, by their supervisors (`gpu_claims`).
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from controller.runtime.gpu_claims import VARIABLE

POOL = "TUNER_GPUS"
ORDER = "CUDA_DEVICE_ORDER"
LISTED = "nvidia-smi"
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_ROUNDING = 1e-9  # three thirds are one


@dataclass(frozen=True, slots=True)
class Device:
    """id: as CUDA_VISIBLE_DEVICES is to name it. key: the same for one device, whether it is named by index or UUID."""

    id: str
    key: str


@dataclass(frozen=True, slots=True)
class _Listing:
    """What nvidia-smi lists. names: key by index and UUID."""

    ids: tuple[str, ...]
    names: Mapping[str, str]

    def device(self, id: str) -> Device:
        if id in self.names:
            return Device(id, self.names[id])
        # CUDA takes the beginning of a UUID for the whole.
        begun = {key for name, key in self.names.items() if id.startswith(("GPU-", "MIG-")) and name.startswith(id)}
        return Device(id, begun.pop() if len(begun) == 1 else id)


def pool(environment: Mapping[str, str], wanted: Sequence[str] = ()) -> tuple[Device, ...]:
    """The GPUs that trials may use: those in TUNER_GPUS, else in CUDA_VISIBLE_DEVICES, else all that nvidia-smi lists.

    wanted: only these of them. Where nothing says which GPUs there are, these are taken for granted.
    """
    listing = _listed(environment.get("PATH"))
    named = _named(environment)
    ids = listing.ids if named is None else named
    if wanted and named is None and not listing.ids:
        ids = tuple(wanted)
    lent = {device.key: device for device in map(listing.device, reversed(ids))}  # of two names the first counts
    devices = tuple(reversed(lent.values()))
    if not wanted:
        return devices
    chosen = {device.key: device for device in map(listing.device, wanted)}
    return tuple(device for device in chosen.values() if device.key in lent)


def not_lent(environment: Mapping[str, str], wanted: Sequence[str]) -> list[str]:
    """Of the GPUs that a file names, those that this machine does not offer."""
    listing = _listed(environment.get("PATH"))
    lent = {device.key for device in pool(environment, wanted)}
    return [id for id in wanted if listing.device(id).key not in lent]


def source(environment: Mapping[str, str]) -> str:
    """Who says which GPUs there are, for people."""
    for name in (POOL, VARIABLE):
        if name in environment:
            return f"{name} names"
    return f"{LISTED} lists"


def _named(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    named = environment.get(POOL, environment.get(VARIABLE))
    if named is None:
        return None
    ids = tuple(part.strip() for part in named.split(",") if part.strip())
    # CUDA itself stops at the first id that names nothing.
    return ids[: ids.index("-1")] if "-1" in ids else ids


@lru_cache(8)
def _listed(path: str | None) -> _Listing:
    """Empty where there is no such program, or it fails."""
    program = shutil.which(LISTED, path=path)
    if program is None:
        return _Listing((), {})
    try:
        listed = subprocess.run((program, "-L"), capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return _Listing((), {})
    return parse(listed.stdout) if listed.returncode == 0 else _Listing((), {})


def parse(text: str) -> _Listing:
    """What `nvidia-smi -L` prints. A GPU with MIG instances is lent as those; by its own name CUDA uses the first."""
    ids: list[str] = []
    names: dict[str, str] = {}
    own: tuple[str, str] | None = None  # index and UUID of the GPU whose instances may follow
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            own = gpu[1], gpu[2]
            ids.append(own[0])
            names |= dict.fromkeys(own, own[1])
        elif mig := _MIG.match(line):
            if own is not None:
                ids.remove(own[0])
                names |= dict.fromkeys(own, mig[1])
                own = None
            ids.append(mig[1])
            names[mig[1]] = mig[1]
    return _Listing(tuple(ids), names)


def slots(count: int, gpu: float) -> int:
    """How many attempts of `gpu` > 0 GPUs each fit on `count` GPUs at once."""
    if gpu < 1:
        return count * math.floor(1 / gpu + _ROUNDING)
    return count // math.ceil(gpu)
