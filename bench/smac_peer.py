"""SMAC3 as a contestant in a process of its own: run by `games.py` with the Python of an
environment that has SMAC3.

It reads a line of JSON and answers with one: first the space, then `{"ask": number}` and
`{"tell": number, "loss": …}`. It imports nothing of the project.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

from ConfigSpace import AndConjunction, Categorical, ConfigurationSpace, Float, InCondition, Integer
from smac import HyperparameterOptimizationFacade, Scenario
from smac.runhistory.dataclasses import TrialInfo, TrialValue
from smac.runhistory.enumerations import StatusType


def hyperparameter(described: dict[str, Any]) -> Any:
    """Whole numbers with steps are searched as counts of steps."""
    name = described["name"]
    if "values" in described:
        return Categorical(name, described["values"])
    bounds, step = (described["min"], described["max"]), described["step"]
    if step is None:
        return Float(name, bounds, log=described["log"])
    if step == 1:
        return Integer(name, bounds, log=described["log"])
    return Integer(name, (0, (bounds[1] - bounds[0]) // step))


def space(parameters: list[dict[str, Any]], seed: int) -> ConfigurationSpace:
    made = ConfigurationSpace(seed=seed)
    found = {described["name"]: hyperparameter(described) for described in parameters}
    made.add(list(found.values()))
    for described in parameters:
        name = described["name"]
        conditions = [
            InCondition(found[name], found[parent], values) for parent, values in described["when"]
        ]
        if conditions:
            made.add(conditions[0] if len(conditions) == 1 else AndConjunction(*conditions))
    return made


def point(config: Any, parameters: list[dict[str, Any]]) -> dict[str, Any]:
    values = dict(config)
    made = {}
    for described in parameters:
        name = described["name"]
        if name in values:
            # a number of NumPy as Python's
            value = getattr(values[name], "item", lambda v=values[name]: v)()
            step = described.get("step")
            made[name] = described["min"] + value * step if step not in (None, 1) else value
    return made


def serve(folder: str) -> None:
    began = time.process_time()
    setup = json.loads(sys.stdin.readline())
    # Deterministic: each point is evaluated once, as by the other contestants.
    scenario = Scenario(
        space(setup["parameters"], setup["seed"]),
        output_directory=folder,
        n_trials=setup["trials"],
        seed=setup["seed"],
        deterministic=True,
    )
    smac = HyperparameterOptimizationFacade(
        scenario, lambda config, seed=0: math.nan, logging_level=50, overwrite=True
    )
    running: dict[int, TrialInfo] = {}
    worst = 0.0

    def answer(**reply: object) -> None:
        print(json.dumps({**reply, "cpu_s": time.process_time() - began}), flush=True)

    answer(version=f"smac {version('smac')}")
    for line in sys.stdin:
        request = json.loads(line)
        if "ask" in request:
            running[request["ask"]] = smac.ask()
            answer(point=point(running[request["ask"]].config, setup["parameters"]))
        else:
            loss = request["loss"]
            worst = worst if loss is None else max(worst, loss)
            status = StatusType.CRASHED if loss is None else StatusType.SUCCESS
            smac.tell(
                running.pop(request["tell"]),
                TrialValue(worst if loss is None else loss, status=status),
            )
            answer()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as made:
        serve(made)
