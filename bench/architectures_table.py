"""Measures every network of a small space on the digits once: the table behind
`architectures.py`.

The trial is examples/katib/enas/train.py with two epochs; the loss is the share of wrong answers.
This takes ten minutes on one CPU. Rows are saved as they are measured, so that a stopped run can
be continued. Run it manually, where torch is installed: `python bench/architectures_table.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import itertools
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from suggest.network import ARCHITECTURE, CONFIG, Network, Operation
from suggest.space import Choice, Int, Parameter

TABLE = Path(__file__).parent / "data/architectures_digits.npz"
TRIAL = Path(__file__).parent.parent / "examples/katib/enas/train.py"
EPOCHS = 2
SIZES = Parameter("filter_size", Choice(("3", "5")))
NETWORK = Network(
    3,
    (8, 8, 1),
    (10,),
    (
        Operation("convolution", (SIZES, Parameter("num_filter", Int(8, 8)))),
        Operation("separable_convolution", (SIZES,)),
        Operation(
            "reduction",
            (
                Parameter("reduction_type", Choice(("max_pooling", "avg_pooling"))),
                Parameter("pool_size", Int(2, 2)),
            ),
        ),
    ),
)


def architectures() -> list[str]:
    """Return the architecture of each network, in the order of the table."""
    numbers = range(sum(operation.count for operation in NETWORK.operations))
    found = []
    for operations in itertools.product(numbers, repeat=NETWORK.layers):
        for one, two, three in itertools.product((0, 1), repeat=3):
            first, second, third = operations
            found.append(json.dumps([[first], [second, one], [third, two, three]]))
    return found


def _trial() -> Callable[..., float]:
    spec = importlib.util.spec_from_file_location("enas_trial", TRIAL)
    assert spec is not None
    assert spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    import torch

    torch.set_num_threads(1)

    def loss(architecture: str) -> float:
        point = NETWORK.point(architecture)
        assert point is not None
        texts = {name: text.replace("'", '"') for name, text in NETWORK.texts(point).items()}
        with contextlib.redirect_stdout(io.StringIO()):
            accuracy: float = program.train(
                json.loads(texts[ARCHITECTURE]),
                json.loads(texts[CONFIG]),
                epochs=EPOCHS,
                seed=0,
            )
        return 1 - accuracy

    return loss


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partial", type=Path, default=Path("architectures_digits.txt"))
    partial = parser.parse_args().partial
    loss = _trial()
    done = partial.read_text().split() if partial.exists() else []
    with partial.open("a") as file:
        for architecture in architectures()[len(done) :]:
            file.write(f"{loss(architecture):.6f}\n")
            file.flush()
    losses = np.array(partial.read_text().split(), dtype=np.float32)
    np.savez_compressed(TABLE, losses=losses)


if __name__ == "__main__":
    main()
