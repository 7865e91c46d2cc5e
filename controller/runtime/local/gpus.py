"""The GPUs of this machine that trials may use, by name. Pure except for `_listed`,
which runs nvidia-smi once.

The supervisors of all experiments decide together which attempt gets which GPU (`gpu_claims`).
"""

from __future__ import annotations

import math
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from controller.runtime.local.gpu_claims import VARIABLE

POOL = "TUNER_GPUS"
ORDER = "CUDA_DEVICE_ORDER"
LISTED = "nvidia-smi"
_GPU = re.compile(r"GPU (\d+): .*\(UUID: (GPU-[^)]+)\)")
_MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
_ROUNDING = 1e-9  # so that three thirds make one


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU: `id` is its name in CUDA_VISIBLE_DEVICES; `key` is equal for its index and UUID."""

    id: str
    key: str


@dataclass(frozen=True, slots=True)
class _Listing:
    """The GPUs that nvidia-smi lists. `names` maps each index and UUID to the device's key."""

    ids: tuple[str, ...]
    names: Mapping[str, str]

    def device(self, id: str) -> Device:
        if id in self.names:
            return Device(id, self.names[id])
        # CUDA accepts a prefix of a UUID.
        begun = {
            key
            for name, key in self.names.items()
            if id.startswith(("GPU-", "MIG-")) and name.startswith(id)
        }
        return Device(id, begun.pop() if len(begun) == 1 else id)


def pool(environment: Mapping[str, str], selected: Sequence[str] = ()) -> tuple[Device, ...]:
    """Return the GPUs for trials: those of TUNER_GPUS, CUDA_VISIBLE_DEVICES, or else nvidia-smi.

    `selected` restricts them to these. If no source says which GPUs exist,
    the wanted ones are assumed to.
    """
    listing = _listed(environment.get("PATH"))
    named = _visible_devices(environment)
    ids = listing.ids if named is None else named
    if selected and named is None and not listing.ids:
        ids = tuple(selected)
    # keeps the first of two names
    available = {device.key: device for device in map(listing.device, reversed(ids))}
    devices = tuple(reversed(available.values()))
    if not selected:
        return devices
    chosen = {device.key: device for device in map(listing.device, selected)}
    return tuple(device for device in chosen.values() if device.key in available)


def unavailable(environment: Mapping[str, str], devices: Sequence[str]) -> list[str]:
    """Return the GPUs of `devices` that are not available to trials on this machine."""
    listing = _listed(environment.get("PATH"))
    available = {device.key for device in pool(environment, devices)}
    return [id for id in devices if listing.device(id).key not in available]


def source(environment: Mapping[str, str]) -> str:
    """Return the source of the list of GPUs, as the beginning of a sentence for people."""
    for name in (POOL, VARIABLE):
        if name in environment:
            return f"{name} names"
    return f"{LISTED} lists"


def _visible_devices(environment: Mapping[str, str]) -> tuple[str, ...] | None:
    named = environment.get(POOL, environment.get(VARIABLE))
    if named is None:
        return None
    ids = tuple(part.strip() for part in named.split(",") if part.strip())
    # Like CUDA, stop at the first invalid id.
    return ids[: ids.index("-1")] if "-1" in ids else ids


@lru_cache(8)
def _listed(path: str | None) -> _Listing:
    """Return what nvidia-smi lists; nothing if the program does not exist or fails."""
    program = shutil.which(LISTED, path=path)
    if program is None:
        return _Listing((), {})
    try:
        listed = subprocess.run(
            (program, "-L"), capture_output=True, text=True, timeout=20, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return _Listing((), {})
    return parse(listed.stdout) if listed.returncode == 0 else _Listing((), {})


def parse(text: str) -> _Listing:
    """Parse the output of `nvidia-smi -L`.

    A GPU with MIG instances is replaced by them; its own name means
    the first instance, as for CUDA.
    """
    ids: list[str] = []
    names: dict[str, str] = {}
    # index and UUID of the latest GPU, whose instances may follow
    latest: tuple[str, str] | None = None
    for line in text.splitlines():
        if gpu := _GPU.match(line):
            latest = gpu[1], gpu[2]
            ids.append(latest[0])
            names |= dict.fromkeys(latest, latest[1])
        elif mig := _MIG.match(line):
            if latest is not None:
                ids.remove(latest[0])
                names |= dict.fromkeys(latest, mig[1])
                latest = None
            ids.append(mig[1])
            names[mig[1]] = mig[1]
    return _Listing(tuple(ids), names)


def slots(count: int, gpu: float) -> int:
    """Return how many attempts with `gpu` > 0 GPUs each fit on `count` GPUs at once."""
    if gpu < 1:
        return count * math.floor(1 / gpu + _ROUNDING)
    return count // math.ceil(gpu)
