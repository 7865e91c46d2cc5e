"""The device on which a training runs, and its precision.

With `auto`, a GPU is used if there is one. If this process was assigned a GPU but finds none, that
is an error: a trial that silently used the CPU would hold the GPU for hours.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import torch
from errors import ConfigurationError, NoDevice

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def chosen_device(name: str, local: int) -> torch.device:
    """Return the device, with the context of a GPU already created.

    `local` is this worker's number on its machine.

    Raises:
        NoDevice: there is no such device.
        ConfigurationError: `name` is not a device.
    """
    request = f"--device {name}"
    if name == "auto":
        lent = _lent(os.environ)
        request = f"{lent} lends this process a GPU"
        name = "cuda" if lent or torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and (kind == "cpu" or not number.isdecimal())):
        raise ConfigurationError(f"--device {name} is not allowed; it is auto, cpu, cuda or cuda:N")
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        reason = (
            "it is built without CUDA"
            if torch.version.cuda is None
            else "see nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
        raise NoDevice(
            f"{request}: torch {torch.__version__} finds no GPU here ({reason}); use --device cpu"
        )
    count = torch.cuda.device_count()
    index = int(number) if number else local % count
    if index >= count:
        raise NoDevice(f"--device {name}: there are {count} GPUs here, counted from 0")
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # all steps have the same shapes
    torch.zeros(1, device=device)
    torch.cuda.synchronize()
    return device


def _lent(environment: Mapping[str, str]) -> str:
    """Return the variable by which Tuner or a cluster assigns this process GPUs, or ""."""
    named = environment.get("CUDA_VISIBLE_DEVICES", "").strip()
    if named and named != "NoDevFiles" and not named.startswith("-1"):
        return f"CUDA_VISIBLE_DEVICES={named}"
    named = environment.get("NVIDIA_VISIBLE_DEVICES", "").strip()
    if named not in ("", "void", "none", "all"):  # CUDA base images set `all` on every machine
        return f"NVIDIA_VISIBLE_DEVICES={named}"
    return ""


def chosen_precision(name: str, device: torch.device) -> str:
    """Resolve `auto`. Also disable TF32 for float32.

    By default torch lets cuDNN round convolutions to its ten bits.
    """
    if name == "auto":
        name = "float16" if device.type == "cuda" else "float32"
    if device.type == "cuda" and name == "float32":
        torch.backends.cudnn.allow_tf32 = False
    return name


def gpu_of(device: torch.device) -> str:
    """Return the name and the globally unique id of the GPU, "" on the CPU."""
    if device.type == "cpu":
        return ""
    properties = torch.cuda.get_device_properties(device)
    return f"{properties.name} ({properties.uuid})"
