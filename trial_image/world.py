"""The workers of one training and their collective operations.
A world of one worker needs no sockets.

The workers are given by the variables that torchrun uses: MASTER_ADDR, MASTER_PORT,
WORLD_SIZE, RANK. All workers draw the same plan and take their part of each batch;
gradients are summed over all of them. If a worker is lost, `Lost` ends the process,
and the next attempt resumes from the checkpoint.
"""

from __future__ import annotations

import json
import os
import re
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from errors import ConfigurationError, Lost
from memory import is_lacking
from torch import Tensor

# a step takes far less, so a worker that is silent for this long hangs, or its node is gone
SILENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class Worker:
    """One worker of `size`, as given by the environment.

    `local` is its number on its machine, hence its GPU.
    """

    rank: int = 0
    size: int = 1
    local: int = 0

    @property
    def first(self) -> bool:
        return self.rank == 0


def worker_of(environment: Mapping[str, str]) -> Worker:
    """Read this worker's rank and the number of workers.

    Raises:
        ConfigurationError: the variables contradict each other.
    """
    size = _number(environment, "WORLD_SIZE", "1")
    if size <= 1:
        return Worker()
    # Fall back to the variable of an Indexed Job.
    rank = _number(environment, "RANK", environment.get("JOB_COMPLETION_INDEX", ""))
    if not 0 <= rank < size:
        raise ConfigurationError(f"RANK={rank} is not below WORLD_SIZE={size}: ranks count from 0")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if not environment.get(name):
            raise ConfigurationError(
                f"WORLD_SIZE is {size}, and {name} is not set: torchrun and tuner set it"
            )
    return Worker(rank, size, _number(environment, "LOCAL_RANK", "0"))


def _number(environment: Mapping[str, str], name: str, default: str) -> int:
    text = environment.get(name) or default
    if not text.isdecimal():
        raise ConfigurationError(
            f"{name}={text} is not a whole number"
            if text
            else f"{name} is not set: torchrun and tuner set it"
        )
    return int(text)


class World:
    """The workers of a training: at first only this one, after `join` all."""

    def __init__(self, worker: Worker | None = None) -> None:
        worker = worker or Worker()
        self.rank, self.size = worker.rank, worker.size
        self._store: Any = None  # if there are several workers

    @property
    def alone(self) -> bool:
        return self.size == 1

    def add_up(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor in every worker by its sum over the workers, in a single message."""
        if self.alone:
            return
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        try:
            # Wait explicitly: otherwise NCCL's sums return at once, and errors would go unnoticed.
            dist.all_reduce(flat, async_op=True).wait()
        except RuntimeError as error:
            if is_lacking(error):  # also of NCCL's own buffers
                raise
            if "invalid usage" in str(error):
                raise ConfigurationError(
                    f"NCCL does not take these workers: {_last_line(error)}"
                ) from error
            raise Lost(
                f"a worker of {self.size} was lost ({_first_line(error)}); rank {self.rank} ends "
                f"too"
            ) from error
        start = 0
        for tensor in tensors:
            tensor.copy_(flat[start : start + tensor.numel()].view(tensor.shape))
            start += tensor.numel()

    def from_first(self, tensors: Sequence[Tensor]) -> None:
        """Replace each tensor in every worker by the first worker's."""
        if self.alone:
            return
        with torch.no_grad():
            if self.rank > 0:
                for tensor in tensors:
                    tensor.zero_()
            self.add_up(tensors)

    def average(self, tensors: Sequence[Tensor]) -> None:
        if self.alone:
            return
        self.add_up(tensors)
        for tensor in tensors:
            tensor.div_(self.size)

    def share_of(self, count: int) -> slice:
        """Return this worker's part of a batch, which has the same size for all workers."""
        part = count // self.size
        return slice(self.rank * part, (self.rank + 1) * part)

    def join(
        self, about: dict[str, str], device: torch.device, gpu: str, *, patience_s: float
    ) -> None:
        """Join the other workers.

        `about` has values that must be equal for all; `gpu` must be different.

        Raises:
            Lost: the workers were not complete within `patience_s`.
            ConfigurationError: a worker trains something else, or uses the same GPU.
        """
        if self.alone:
            return
        address = os.environ["MASTER_ADDR"]
        if address in ("127.0.0.1", "localhost") and sys.platform == "linux":
            # Otherwise gloo resolves this machine's host name, which may fail in a container.
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        if device.type == "cuda":
            # Make waits block and raise on a timeout. Otherwise a thread
            # of torch aborts the process.
            os.environ.setdefault("TORCH_NCCL_BLOCKING_WAIT", "1")
        try:
            self._store = self._meet(address, timedelta(seconds=patience_s))
            self._compare({"world size": str(self.size), **about}, gpu, patience_s)
            dist.init_process_group(
                "nccl" if device.type == "cuda" else "gloo",
                store=self._store,
                rank=self.rank,
                world_size=self.size,
                timeout=timedelta(seconds=SILENCE_S),
            )
        except RuntimeError as error:
            raise Lost(
                f"rank {self.rank} of {self.size} did not find the others at "
                f"{address}:{os.environ['MASTER_PORT']} within {patience_s:g} s: "
                f"{_first_line(error)}"
            ) from error

    def _meet(self, address: str, patience: timedelta) -> Any:
        # torchrun has a store already
        agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        store = dist.TCPStore(
            address,
            int(os.environ["MASTER_PORT"]),
            is_master=self.rank == 0 and not agent,
            timeout=patience,
            wait_for_workers=False,  # so that workers with different world sizes can report it
        )
        round_ = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        return dist.PrefixStore(f"cifar10/{round_}", store)

    def _compare(self, about: dict[str, str], gpu: str, patience_s: float) -> None:
        """Compare with the first worker.

        That one compares with all others, so that both sides report a difference.
        """
        mine = json.dumps([about, gpu])
        ranks = {gpu: self.rank}
        if self.rank > 0:
            first = json.loads(self._store.get("0"))
            self._store.set(str(self.rank), mine)
            self._refuse(about, ranks, first, 0)
            return
        self._store.set("0", mine)
        for rank in range(1, self.size):
            try:
                self._store.wait([str(rank)], timedelta(seconds=patience_s))
            except RuntimeError as error:
                raise Lost(
                    f"rank {rank} of {self.size} did not join within {patience_s:g} s; rank 0 ends"
                ) from error
            self._refuse(about, ranks, json.loads(self._store.get(str(rank))), rank)

    def _refuse(
        self,
        about: dict[str, str],
        ranks: dict[str, int],
        reported: tuple[dict[str, str], str],
        rank: int,
    ) -> None:
        """Add `rank` to `ranks`, which maps known GPUs to ranks.

        Raises ConfigurationError if its values differ.
        """
        other, gpu = reported
        for key in about:
            if about[key] != other.get(key):
                raise ConfigurationError(
                    f"the workers differ in their {key}: rank {self.rank} has {about[key]}, rank "
                    f"{rank} has "
                    f"{other.get(key)}; start all with the same command and the same data"
                )
        if gpu and ranks.setdefault(gpu, rank) != rank:
            raise ConfigurationError(
                f"ranks {ranks[gpu]} and {rank} are on the same GPU, {gpu}, which NCCL does not "
                "do; give each worker a whole one of its own, or use --device cpu"
            )

    def leave(self) -> None:
        """Leave the world. The first worker hosts the store, so it leaves last."""
        if self.alone:
            return
        try:
            if self.rank > 0:
                self._store.set(f"left/{self.rank}", "")
                return
            self._store.wait(
                [f"left/{rank}" for rank in range(1, self.size)], timedelta(seconds=SILENCE_S)
            )
        except RuntimeError as error:
            # All sums are done and the result is printed, so only report the error.
            print(
                f"{socket.gethostname()}: rank {self.rank} left alone: {_first_line(error)}",
                file=sys.stderr,
            )


def _first_line(error: Exception) -> str:
    """Return the first line without the position in torch's source.

    Messages of gloo begin with this position.
    """
    return re.sub(r"^\[\S+\] ", "", next(iter(str(error).splitlines()), type(error).__name__))[:200]


def _last_line(error: Exception) -> str:
    """Return the last line, which has the cause in NCCL's messages."""
    return str(error).strip().rpartition("\n")[2][:200]


def shared_moments(x: Tensor, world: World) -> tuple[Tensor, Tensor, int]:
    """Return (mean, biased variance, images times pixels) per channel over all workers.

    x: (n, channels, h, w) float32. torch's own synchronized batch norm works on GPUs only.
    """
    mean, var = _Moments.apply(x, world)
    return mean, var, world.size * x.numel() // x.shape[1]


class _Moments(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor, world: World) -> tuple[Tensor, Tensor]:
        var, mean = torch.var_mean(x, (0, 2, 3), correction=0)
        rows = torch.zeros(world.size, 2, len(mean), device=x.device)
        rows[world.rank, 0], rows[world.rank, 1] = mean, var
        world.add_up([rows])
        means, variances = rows[:, 0], rows[:, 1]
        mean = means.mean(0)
        # All workers have equally many images, so the variance is the mean variance plus the
        # variance of the means.
        var = variances.mean(0) + (means - mean).square().mean(0)
        context.save_for_backward(x, mean)
        context.world = world
        return mean, var

    @staticmethod
    def backward(context: Any, by_mean: Tensor, by_var: Tensor) -> tuple[Tensor, None]:
        x, mean = context.saved_tensors
        by_mean, by_var = by_mean.clone(), by_var.clone()
        context.world.add_up([by_mean, by_var])
        count = context.world.size * x.numel() // x.shape[1]
        shape = (1, -1, 1, 1)
        return by_mean.view(shape) / count + (x - mean.view(shape)) * (
            by_var.view(shape) * 2 / count
        ), None
