"""What the study is told of an experiment: its spec in the service's nouns. Pure."""

from __future__ import annotations

from controller.model import Experiment, ExperimentSpec, PruningSpec, short_name
from suggest.study import Algorithm, Direction, Objective, Pruning, StudyName, StudySpec, ValueRule


def study_name(experiment: Experiment) -> StudyName:
    return StudyName(experiment.namespace, short_name(experiment.name, experiment.uid))


def study_spec(spec: ExperimentSpec) -> StudySpec:
    objective = spec.objective
    return StudySpec(
        space=spec.space,
        objectives=(
            Objective(
                objective.metric,
                Direction.MAXIMIZE if objective.maximize else Direction.MINIMIZE,
                ValueRule(objective.value),
            ),
        ),
        algorithm=Algorithm(spec.algorithm.name, spec.algorithm.seed, dict(spec.algorithm.settings)),
        pruning=pruning(spec.pruning),
    )


def pruning(spec: PruningSpec | None) -> Pruning | None:
    return None if spec is None else Pruning(spec.name, dict(spec.settings))
