"""Trial 0 of a file that was never run, and its final stage, to be shown or to be checked: nobody suggested it, and
nothing is stored."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

from controller.core.model import Attempt, Experiment, ExperimentSpec
from controller.folders import ExperimentFolders
from controller.launch import cluster_launch
from controller.runtime.protocol import Launch
from suggest.space import Choice, Domain, Float, Int, Scale, Space, Value
from suggest.trial import Trial, TrialState

UID = "dryrunaaaaaaaaaa"  # as good as any other, and the same each time


def specimen(spec: ExperimentSpec, stage: int = 0) -> Launch:
    """As a cluster would execute it. stage: 0, or FINAL with the same parameters."""
    experiment = Experiment(uid=UID, spec=spec, revision=1, directory="", study="")
    trial = Trial(0, TrialState.RUNNING, first_point(spec))
    return cluster_launch(experiment, trial, [Attempt(stage, 1)], ExperimentFolders(Path(UID)).attempt(stage, 1))


def first_point(spec: ExperimentSpec) -> dict[str, Value]:
    """The first of `spec.initial`, and for whatever that leaves open the middle of its range."""
    return _completed(spec.space, spec.initial[0] if spec.initial else {})


def _completed(space: Space, given: Mapping[str, Value]) -> dict[str, Value]:
    point: dict[str, Value] = {}
    for parameter in space.ordered:
        if parameter.active(point):
            point[parameter.name] = given.get(parameter.name, _middle(parameter.domain))
    return space.canonical(point)


def _middle(domain: Domain) -> Value:
    match domain:
        case Choice():
            return domain.at(0)
        case Int(min=low, max=high, scale=Scale.LOG):
            return round(math.sqrt(low * high))
        case Float(min=low, max=high, scale=scale) if domain.count is None:
            exact = math.sqrt(low) * math.sqrt(high) if scale is Scale.LOG else low / 2 + high / 2
            short = float(f"{exact:.3g}")
            return short if domain.contains(short) else exact
        case Float() | Int():
            count = domain.count
            assert count is not None
            return domain.at((count - 1) // 2)
