"""Logistic regression with DistributedDataParallel, trained by the replicas of a PyTorchJob.

The operator sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK. The master
prints the loss and the accuracy on held-out examples: the metrics of the trial.
A worker prints the loss on its own shard, which nobody else has.
"""

from __future__ import annotations

import argparse

import torch
from torch import distributed
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.nn.parallel import DistributedDataParallel

FEATURES, TRAINING, HELD_OUT, BATCH = 16, 1024, 256, 32


def examples() -> tuple[torch.Tensor, torch.Tensor]:
    """(examples, features) and their labels, 0 or 1:
    on which side of a hidden plane an example is.
    """
    generator = torch.Generator().manual_seed(7)
    inputs = torch.randn(TRAINING + HELD_OUT, FEATURES, generator=generator)
    plane = torch.randn(FEATURES, 1, generator=generator)
    return inputs, (inputs @ plane > 0).float()


def train(lr: float, epochs: int) -> None:
    rank, replicas = distributed.get_rank(), distributed.get_world_size()
    inputs, labels = examples()
    held_out = inputs[TRAINING:], labels[TRAINING:]
    shard = inputs[rank:TRAINING:replicas], labels[rank:TRAINING:replicas]
    torch.manual_seed(7)
    model = torch.nn.Linear(FEATURES, 1)
    replicated = DistributedDataParallel(model)  # averages the gradients of all replicas
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(1, epochs + 1):
        for batch, answers in zip(shard[0].split(BATCH), shard[1].split(BATCH), strict=True):
            optimizer.zero_grad()
            binary_cross_entropy_with_logits(replicated(batch), answers).backward()
            optimizer.step()
        with torch.no_grad():
            seen, answers = held_out if rank == 0 else shard
            logits = model(seen)
            loss = binary_cross_entropy_with_logits(logits, answers).item()
            accuracy = ((logits > 0) == (answers > 0.5)).float().mean().item()
        print(f"epoch={epoch} loss={loss:.6f} accuracy={accuracy:.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lr", type=float, required=True)
    parser.add_argument("--epochs", type=int, default=8)
    options = parser.parse_args()
    distributed.init_process_group("gloo")
    print(f"replica {distributed.get_rank()} of {distributed.get_world_size()}", flush=True)
    train(options.lr, options.epochs)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
