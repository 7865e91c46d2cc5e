"""What a new study takes from an earlier one: the trials that are points of its space, and why
others are not.

Pure. A trial is left out if one of its values is outside of the new range or not among the new
choices: moved to the nearest end it would claim a result that nobody has seen. Parameters that only
the earlier study has are ignored, and those that only the new one has are left open.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from suggest.domain import NO_MEMBER, compact_json
from suggest.errors import Problem
from suggest.space import Assignment, Parameter, Value
from suggest.study import RERUNS_OF, EarlierStudy, EarlierTrial, Study, StudySpec
from suggest.trial import Trial, TrialState

# Studies that one learns from.
MOST_EARLIER = 8
# Different points of a study that counts as a search, and not as a short try.
LEAST_POINTS = 10
# Trials that are taken from one study: the better half of them are its best.
MOST_TRIALS = 100
LEAST_TRIALS = 5


def source_problems(earlier: EarlierStudy, spec: StudySpec, source: Study) -> list[Problem]:
    """Return what keeps a study from learning from another one, whatever its trials are."""
    name = earlier.study
    if len(source.spec.objectives) > 1:
        return [
            Problem("study", f"{name} has several objectives; name one with a single objective")
        ]
    mine, theirs = spec.objective, source.spec.objective
    if mine.metric != theirs.metric:
        return [
            Problem(
                "study",
                f"{name} has the metric {theirs.metric}, and this search has {mine.metric}; name a "
                "study of the same metric",
            )
        ]
    if mine.direction is not theirs.direction:
        return [
            Problem(
                "study",
                f"{name} is to {theirs.direction.value} {mine.metric}, and this search is to "
                f"{mine.direction.value} it; name a study with the same direction",
            )
        ]
    if all(parameter.domain.count == 1 for parameter in _shared(spec, source.spec)):
        return [
            Problem(
                "study",
                f"{name} has no parameter of this search; its parameters are "
                f"{', '.join(p.name for p in source.spec.space.parameters)}",
            )
        ]
    return []


def is_similar(spec: StudySpec, study: Study) -> bool:
    """Return whether a study is a search with the same parameters, by name, and the same single
    objective.
    """
    source = study.spec
    mine, theirs = spec.objective, source.objective
    same_metric = (mine.metric, mine.direction) == (theirs.metric, theirs.direction)
    same_names = spec.space.by_name.keys() == source.space.by_name.keys()
    is_single = len(source.objectives) == 1 and RERUNS_OF not in study.labels
    return is_single and same_metric and same_names


def is_search(found: EarlierStudy) -> bool:
    """Return whether enough different points were taken from a study."""
    points = {compact_json(dict(trial.parameters)) for trial in found.trials}
    return len(points) >= LEAST_POINTS


def unfinished_problem(earlier: EarlierStudy, running: int) -> Problem:
    return Problem(
        "study",
        f"{earlier.study} is not finished: trials that still run: {running}; wait for their end, "
        "or cancel them",
    )


def taken(
    earlier: EarlierStudy, spec: StudySpec, source: Study, trials: Iterable[Trial]
) -> EarlierStudy | Problem:
    """Return the earlier study with the trials that the new one takes from it.

    Return a problem if they are too few. Raises nothing: `source_problems` found none.
    """
    shared = _shared(spec, source.spec)
    succeeded = 0
    found: list[EarlierTrial] = []
    for trial in trials:
        if trial.state is not TrialState.SUCCEEDED or trial.value is None:
            continue
        succeeded += 1
        if (point := _point(shared, trial.parameters)) is not None:
            found.append(EarlierTrial(point, trial.value))
    if len(found) < LEAST_TRIALS:
        cure = "add trials to it" if succeeded < LEAST_TRIALS else "widen the ranges"
        return Problem(
            "study",
            f"{succeeded} of the trials of {earlier.study} succeeded, {len(found)} of them in the "
            f"ranges of this search, and at least {LEAST_TRIALS} are needed; omit it, or {cure}",
        )
    sign = spec.objective.direction.sign
    return EarlierStudy(earlier.study, earlier.weight, _chosen(found, sign))


def _chosen(trials: Sequence[EarlierTrial], sign: float) -> tuple[EarlierTrial, ...]:
    """Return at most MOST_TRIALS: the best, and others at even distances of their ranks."""
    ranked = sorted(trials, key=lambda trial: sign * trial.value)
    if len(ranked) <= MOST_TRIALS:
        return tuple(ranked)
    best, others = MOST_TRIALS // 2, MOST_TRIALS - MOST_TRIALS // 2
    step = (len(ranked) - best) / others
    return (*ranked[:best], *(ranked[best + math.floor(k * step)] for k in range(others)))


def _shared(spec: StudySpec, other: StudySpec) -> list[Parameter]:
    """Return the parameters that both have, parents first.

    A parameter whose condition is on another one is left out with that.
    """
    names: set[str] = set()
    found = []
    for parameter in spec.space.ordered:
        if parameter.name in other.space.by_name and _has_parents(parameter, names):
            names.add(parameter.name)
            found.append(parameter)
    return found


def _has_parents(parameter: Parameter, names: Collection[str]) -> bool:
    return all(condition.parameter in names for condition in parameter.when)


def _point(shared: Sequence[Parameter], given: Assignment) -> Assignment | None:
    point: dict[str, Value] = {}
    for parameter in shared:
        if not parameter.active(point):
            continue
        member = parameter.domain.canonical(given.get(parameter.name))
        if parameter.name not in given or member is NO_MEMBER:
            return None
        point[parameter.name] = member
    return point
