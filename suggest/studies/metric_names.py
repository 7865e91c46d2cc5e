"""Rename the metrics of a study: its trials, values and measurements stay,
and only what they are called changes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from suggest.errors import Problem, raise_if
from suggest.study import Constraint, Objective, Study, StudySpec

_FIXED = "only its metric can change in a study; write the rest as it is, or create a new study"


def renamed(
    study: Study, objectives: Sequence[Objective], constraints: Sequence[Constraint]
) -> Study:
    """Return the study with these names of metrics.

    Raises InvalidArgument if anything else of the objectives or constraints differs.
    """
    spec = study.spec
    problems = [*_problems("spec.objectives", spec.objectives, objectives)]
    problems += _problems("spec.constraints", spec.constraints, constraints)
    raise_if(problems)
    return replace(
        study, spec=replace(spec, objectives=tuple(objectives), constraints=tuple(constraints))
    )


def _problems(
    path: str, old: Sequence[Objective | Constraint], new: Sequence[Objective | Constraint]
) -> Iterator[Problem]:
    if len(old) != len(new):
        yield Problem(
            path,
            f"has {len(old)} elements in the study, not {len(new)}; their number cannot change",
        )
        return
    for place, (was, now) in enumerate(zip(old, new, strict=True)):
        if replace(was, metric=now.metric) != now:
            yield Problem(f"{path}[{place}]", _FIXED)


def new_names(old: StudySpec, new: StudySpec) -> Mapping[str, str]:
    """Return the metrics that no longer exist under their old names, with their new names.

    Names that both specs have are left out: their measurements are those of that name.
    """
    was, now = _names(old), _names(new)
    return {a: b for a, b in zip(was, now, strict=True) if a not in now and b not in was}


def _names(spec: StudySpec) -> list[str]:
    return [
        *(objective.metric for objective in spec.objectives),
        *(each.metric for each in spec.constraints),
    ]
