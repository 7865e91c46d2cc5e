"""BoTorch's qLogNoisyExpectedImprovement as a contestant in a process of its own: run by `games.py`
with the Python of an environment that has BoTorch. It speaks as `smac_peer.py` does.

As in BoTorch's tutorials: 2 (d + 1) points of a Sobol sequence, then `SingleTaskGP` with its
defaults, and one candidate at a time by `optimize_acqf`. BoTorch has no rule for other
parameters than numbers; here a choice is one number for each value, of which the largest counts,
whole numbers are rounded, and the model is fitted to the rounded points. Inactive parameters keep
their numbers.
"""

from __future__ import annotations

import json
import math
import sys
import time
import warnings
from importlib.metadata import version
from typing import Any

import torch
from botorch.acquisition.logei import qLogNoisyExpectedImprovement
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from gpytorch.mlls import ExactMarginalLogLikelihood
from torch.quasirandom import SobolEngine


class Encoded:
    """The space as a unit cube."""

    def __init__(self, parameters: list[dict[str, Any]]) -> None:
        self.parameters = parameters
        self.sizes = [len(each.get("values", [0])) for each in parameters]
        self.dimension = sum(self.sizes)

    def rounded(self, row: torch.Tensor) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return the row of the point that is nearest, and its active parameters."""
        found, point = [], {}
        for described, part in zip(self.parameters, row.split(self.sizes), strict=True):
            if "values" in described:
                index = int(part.argmax())
                part = torch.nn.functional.one_hot(torch.tensor(index), len(part)).to(row)
                value = described["values"][index]
            else:
                value = number(described, float(part))
                part = torch.tensor([place(described, value)]).to(row)
            found.append(part)
            if all(point.get(parent) in values for parent, values in described["when"]):
                point[described["name"]] = value
        return torch.cat(found), point


def number(described: dict[str, Any], share: float) -> float:
    low, high, step = described["min"], described["max"], described["step"]
    if described["log"]:
        value = low * (high / low) ** share
    else:
        value = low + (high - low) * share
    value = min(max(value, low), high)
    return value if step is None else low + round((value - low) / step) * step


def place(described: dict[str, Any], value: float) -> float:
    low, high = described["min"], described["max"]
    if described["log"]:
        return math.log(value / low) / math.log(high / low)
    return (value - low) / (high - low)


def serve() -> None:
    began = time.process_time()
    setup = json.loads(sys.stdin.readline())
    torch.manual_seed(setup["seed"])
    torch.set_num_threads(1)
    space = Encoded(setup["parameters"])
    sobol = SobolEngine(space.dimension, scramble=True, seed=setup["seed"])
    first = 2 * (space.dimension + 1)
    asked: dict[int, torch.Tensor] = {}
    rows: list[torch.Tensor] = []
    losses: list[float] = []

    def proposed() -> torch.Tensor:
        if len(rows) + len(asked) < first or len(rows) < 2:
            return sobol.draw(1, dtype=torch.double)[0]
        x = torch.stack(rows)
        worst = max((loss for loss in losses if math.isfinite(loss)), default=0.0)
        known = torch.tensor([loss if math.isfinite(loss) else worst for loss in losses])
        y = -known.double().unsqueeze(-1)
        model = SingleTaskGP(x, y)
        fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
        acquisition = qLogNoisyExpectedImprovement(
            model, x, X_pending=torch.stack(list(asked.values())) if asked else None
        )
        bounds = torch.stack([torch.zeros(space.dimension), torch.ones(space.dimension)]).double()
        found, _ = optimize_acqf(acquisition, bounds, q=1, num_restarts=10, raw_samples=512)
        return found[0]

    def answer(**reply: object) -> None:
        print(json.dumps({**reply, "cpu_s": time.process_time() - began}), flush=True)

    answer(version=f"botorch {version('botorch')}")
    for line in sys.stdin:
        request = json.loads(line)
        if "ask" in request:
            row, point = space.rounded(proposed())
            asked[request["ask"]] = row
            answer(point=point)
        else:
            rows.append(asked.pop(request["tell"]))
            losses.append(math.nan if request["loss"] is None else request["loss"])
            answer()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve()
