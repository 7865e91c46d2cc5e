"""The last words of a run: its result for stdout, and the next useful command for stderr. Pure text."""

from __future__ import annotations

from controller.model import Experiment, ExperimentState
from controller.report import figures
from controller.report.record import IMPORTED_FROM
from controller.report.story import cure
from suggest.trial import Trial


def result(experiment: Experiment, best: Trial) -> str:
    """`digits: best accuracy 0.9725 (trial 31)` and a line for each parameter."""
    metric = experiment.spec.objective.metric
    whose = ", imported" if IMPORTED_FROM in best.labels else ""
    lines = [f"{experiment.name}: best {metric} {figures.number(best.value)} (trial {best.number}{whose})"]
    width = max((len(name) for name in best.parameters), default=0)
    lines += [f"  {name:<{width}}  {figures.parameter(value)}" for name, value in best.parameters.items()]
    return "\n".join(lines)


def next_step(experiment: Experiment, best: Trial | None) -> str:
    name, reason = experiment.name, experiment.reason
    match experiment.state:
        case ExperimentState.SUCCEEDED if best is not None:
            return f"{name} succeeded: {reason}\nAll trials: tuner get trials {name}"
        case ExperimentState.SUCCEEDED:
            return f"{name} finished without one succeeded trial: {reason}\nWhy: tuner get trials {name}"
        case ExperimentState.FAILED:
            return f"{name} failed: {reason}\nWhy: tuner get trials {name}"
        case ExperimentState.PAUSED:
            return f"{name} is paused: {reason}\n{cure(experiment)}"
        case ExperimentState.RUNNING | ExperimentState.STOPPING:
            ways = f"Watch: tuner describe {name}\nGo on: tuner resume {name}\nEnd: tuner stop {name}"
            return f"{name} is left running\n{ways}"
        case ExperimentState.STOPPED:
            return f"{name} stopped: {reason}\nGo on: tuner resume {name}"
