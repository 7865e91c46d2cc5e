"""Measures the digits trial at many settings, once: the table behind the last
problem of the quality benchmark.

Settings are drawn as by random search in examples/digits. The trial is `train.py` with 20 epochs,
and its value is the last accuracy, NaN if it was infeasible. This takes ten minutes on one CPU;
results are saved every hundred settings, so that a stopped run can be continued. Run it manually:
`python bench/digits_table.py`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import math
import sys
from pathlib import Path

import numpy as np

from suggest.samplers import PointRequest
from suggest.samplers.uniform import draw_point
from suggest.space import Assignment, Choice, Condition, Float, Int, Parameter, Scale, Space

TABLE = Path(__file__).parent / "data/digits_table.npz"
TRIAL = Path(__file__).parent.parent / "examples/digits"
SETTINGS, SEED, EPOCHS = 5000, 20, 20
ACTIVATIONS = ("relu", "tanh", "sigmoid")

# As in examples/digits/experiment.yaml.
SPACE = Space(
    (
        Parameter("lr", Float(1e-4, 1, Scale.LOG)),
        Parameter("momentum", Float(0, 0.95)),
        Parameter("batch", Int(8, 128, step=8)),
        Parameter("width", Int(16, 128, step=16)),
        Parameter("weight_decay", Float(1e-6, 1e-2, Scale.LOG)),
        Parameter("activation", Choice(ACTIVATIONS)),
        Parameter("dropout", Float(0, 0.7), (Condition("activation", ("relu",)),)),
    )
)


def place(point: Assignment) -> list[float]:
    """Return the position of a point in the unit cube.

    A point without dropout has no coordinate for it.
    """
    return [
        math.log10(float(point["lr"])) / 4 + 1,
        float(point["momentum"]) / 0.95,
        (float(point["batch"]) - 8) / 120,
        (float(point["width"]) - 16) / 112,
        math.log10(float(point["weight_decay"])) / 4 + 1.5,
        float(ACTIVATIONS.index(str(point["activation"]))),
        float(point.get("dropout", 0.0)) / 0.7,
    ]


class Table:
    """Looks up the accuracy at a point: that of the nearest setting with the same activation."""

    def __init__(self) -> None:
        with np.load(TABLE) as kept:
            places, accuracy = (
                kept["places"].astype(np.float64),
                kept["accuracy"].astype(np.float64),
            )
        self._by_activation = [
            (places[places[:, 5] == k], accuracy[places[:, 5] == k])
            for k in range(len(ACTIVATIONS))
        ]
        self.size = len(accuracy)

    def accuracy(self, point: Assignment) -> float:
        wanted = np.array(place(point))
        places, accuracy = self._by_activation[int(wanted[5])]
        away = places - wanted
        return float(accuracy[np.argmin(np.einsum("ij,ij->i", away, away))])


def measured(point: Assignment) -> float:
    sys.path.insert(0, str(TRIAL))
    import train  # type: ignore[import-not-found]  # a program, not a package

    options = argparse.Namespace(**{"dropout": 0.0, **point}, epochs=EPOCHS, seed=0)
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), np.errstate(all="ignore"):
            train.train(options, None)
    except SystemExit:
        return math.nan
    return float(output.getvalue().split("accuracy=")[-1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--settings", type=int, default=SETTINGS)
    parser.add_argument(
        "--partial", type=Path, default=Path("digits_table.txt"), help="where it is kept meanwhile"
    )
    asked = parser.parse_args()
    found = [float(x) for x in asked.partial.read_text().split()] if asked.partial.exists() else []
    points = [draw_point(SPACE, SEED, PointRequest(k, {})) for k in range(asked.settings)]
    for point in points[len(found) :]:
        found.append(measured(point))
        if len(found) % 100 == 0:
            asked.partial.write_text("\n".join(map(repr, found)))
            print(len(found), file=sys.stderr, flush=True)
    places = np.array([place(point) for point in points[: len(found)]], dtype=np.float32)
    TABLE.parent.mkdir(exist_ok=True)
    np.savez_compressed(TABLE, places=places, accuracy=np.array(found, dtype=np.float32))


if __name__ == "__main__":
    main()
