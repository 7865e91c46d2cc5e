"""Failures of devices, their memory and all-reduce operations. No GPU is needed.

The errors that torch raises on a GPU are simulated, with the texts from its source
and from reports of users.
"""

from __future__ import annotations

import os
import re
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from tests.torch_here import needs_torch

pytestmark = needs_torch
GPU_S = "CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB"
CONTEXT_S = """CUDA error: out of memory
Search for `cudaErrorMemoryAllocation' in the documentation of the CUDA runtime for more information.
CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be incorrect.
For debugging consider passing CUDA_LAUNCH_BLOCKING=1"""
NCCL = (
    "NCCL error in: ProcessGroupNCCL.cpp:3690, {} (run with NCCL_DEBUG=INFO for details), NCCL "
    "version 2.27.3\n{}"
)
NCCL_MEMORY_S = NCCL.format("unhandled cuda error", "Last error:\nCuda failure 2 'out of memory'")
NCCL_USAGE_S = NCCL.format(
    "invalid usage", "Last error:\nDuplicate GPU detected : rank 1 and rank 0 both on f000"
)
NCCL_LOST_S = NCCL.format(
    "remote process exited or there was a network error", "Last error:\nsocketPollConnect"
)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for name in ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.setenv(name, "")
    return monkeypatch


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", "2"),
        ("CUDA_VISIBLE_DEVICES", "GPU-5d3a"),
        ("NVIDIA_VISIBLE_DEVICES", "GPU-5d3a"),
    ],
)
def test_an_assigned_gpu_that_is_not_found_is_an_error(
    name: str, value: str, no_gpu: pytest.MonkeyPatch
) -> None:
    from device import chosen_device
    from errors import NoDevice

    no_gpu.setenv(name, value)
    with pytest.raises(NoDevice) as missed:
        chosen_device("auto", 0)
    assert str(missed.value).startswith(f"{name}={value} lends this process a GPU: torch ")
    assert str(missed.value).endswith("; use --device cpu")
    assert chosen_device("cpu", 0).type == "cpu"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("CUDA_VISIBLE_DEVICES", ""),
        ("CUDA_VISIBLE_DEVICES", "-1"),
        ("CUDA_VISIBLE_DEVICES", "NoDevFiles"),
        ("NVIDIA_VISIBLE_DEVICES", "void"),
        ("NVIDIA_VISIBLE_DEVICES", "none"),
        ("NVIDIA_VISIBLE_DEVICES", "all"),
    ],
)
def test_without_an_assigned_gpu_the_cpu_is_used(
    name: str, value: str, no_gpu: pytest.MonkeyPatch
) -> None:
    from device import chosen_device

    no_gpu.setenv(name, value)
    assert chosen_device("auto", 0).type == "cpu"


def test_float32_on_a_gpu_is_not_rounded_to_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch
    from device import chosen_precision

    gpu, cpu = torch.device("cuda", 0), torch.device("cpu")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    assert [chosen_precision("auto", cpu), chosen_precision("float32", cpu)] == [
        "float32",
        "float32",
    ]
    assert [chosen_precision("auto", gpu), chosen_precision("bfloat16", gpu)] == [
        "float16",
        "bfloat16",
    ]
    assert torch.backends.cudnn.allow_tf32
    assert chosen_precision("float32", gpu) == "float32"
    assert not torch.backends.cudnn.allow_tf32


def test_out_of_memory_errors_are_printed_in_a_form_that_the_tuner_recognizes() -> None:
    import torch
    from memory import is_lacking, out_of_memory

    from controller.core.failures import NO_MEMORY_SAID
    from tests.trial.small_trainings import recipe

    with pytest.raises(RuntimeError) as torch_s:
        torch.zeros(2**60, dtype=torch.uint8)
    with pytest.raises(MemoryError) as numpy_s:
        np.ones(2**60, np.uint8)
    gpu_s = torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
    for error in (torch_s.value, numpy_s.value, gpu_s):
        assert is_lacking(error)
        sentence = str(out_of_memory(recipe("--batch=4096"), error))
        assert NO_MEMORY_SAID.search(sentence)
        assert sentence.endswith(
            "has no room for --batch 4096 and --width 64; use smaller ones, or fewer trials "
            "beside it"
        )
    assert not is_lacking(RuntimeError("shape '[2]' is invalid"))


def test_a_gpu_without_memory_for_a_context_is_out_of_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from memory import is_lacking, out_of_memory

    from controller.core.failures import FailureClass, class_by_itself
    from tests.trial.small_trainings import recipe

    def no_context() -> tuple[int, int]:
        raise RuntimeError(CONTEXT_S)

    monkeypatch.setattr(torch.cuda, "mem_get_info", no_context)
    assert is_lacking(RuntimeError(CONTEXT_S))
    sentence = str(out_of_memory(recipe(), RuntimeError(CONTEXT_S)))
    assert sentence.startswith("out of memory: the GPU has no room for --batch 1024")
    assert "\n" not in sentence
    assert class_by_itself(1, f"cifar10.py: {sentence}") == FailureClass.OUT_OF_MEMORY


class FailedSum:
    """The handle of an all_reduce that fails as NCCL's does: when it is waited for, and not before."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def wait(self) -> None:
        raise self.error


@pytest.mark.parametrize(
    ("said", "ends_as", "sentence"),
    [
        (NCCL_LOST_S, "Lost", "a worker of 2 was lost (NCCL error in: "),
        (
            NCCL_USAGE_S,
            "ConfigurationError",
            "NCCL does not take these workers: Duplicate GPU detected : rank 1 and rank 0 both on ",
        ),
        (NCCL_MEMORY_S, "RuntimeError", NCCL_MEMORY_S),
        (GPU_S, "OutOfMemoryError", GPU_S),
    ],
)
def test_a_failed_all_reduce_tells_whether_a_worker_was_lost(
    said: str, ends_as: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from world import Worker, World

    world = World(Worker(rank=0, size=2))
    failed = FailedSum(torch.cuda.OutOfMemoryError(said) if said == GPU_S else RuntimeError(said))
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda _, async_op: failed)
    with pytest.raises(Exception, match=re.escape(sentence[:20])) as end:
        world.add_up([torch.zeros(3)])
    assert (type(end.value).__name__, str(end.value)[: len(sentence)]) == (ends_as, sentence)


def refusals(monkeypatch: pytest.MonkeyPatch, *workers: tuple[dict[str, str], str]) -> list[str]:
    """Return the errors of workers on GPUs that form a group. each: (device description, its GPU)."""
    import torch
    from errors import ConfigurationError
    from world import Worker, World

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setenv("MASTER_PORT", str(server.getsockname()[1]))
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    for name in ("TORCH_NCCL_BLOCKING_WAIT", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)

    def meet(rank: int) -> World | str:
        world: Any = World(Worker(rank=rank, size=len(workers)))
        try:
            world.join(workers[rank][0], torch.device("cuda", 0), workers[rank][1], patience_s=20)
        except ConfigurationError as refusal:
            return str(refusal)
        return "not refused"

    with ThreadPoolExecutor(len(workers)) as threads:
        return [str(said) for said in threads.map(meet, range(len(workers)))]


def test_two_workers_on_one_gpu_are_refused_before_nccl_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    message = refusals(monkeypatch, ({}, "NVIDIA H100 (5d3a)"), ({}, "NVIDIA H100 (5d3a)"))
    assert message[0].startswith(
        "ranks 0 and 1 are on the same GPU, NVIDIA H100 (5d3a), which NCCL does not do; "
    )
    assert message[1].startswith("ranks 1 and 0 are on the same GPU, ")
    assert os.environ["TORCH_NCCL_BLOCKING_WAIT"] == "1", "or a lost worker is an abort of torch's"


def test_workers_on_different_kinds_of_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refusals(monkeypatch, ({"device": "cuda"}, "a"), ({"device": "cpu"}, ""))
    assert message[0].startswith(
        "the workers differ in their device: rank 0 has cuda, rank 1 has cpu; "
    )
    assert message[1].startswith(
        "the workers differ in their device: rank 1 has cpu, rank 0 has cuda; "
    )
