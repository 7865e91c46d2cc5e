"""Finished trials from elsewhere: what an import carries and returns, and which values a space accepts.

Pure. A value outside the space is kept and reported: it was tried, and counts once the space has grown to include it.
A missing value where one is needed, or text for a number, excludes the trial.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from suggest.domain import NO_MEMBER, NoMember, json_problem, number
from suggest.errors import Problem, did_you_mean
from suggest.space import Assignment, Choice, Domain, Int, Space, Value
from suggest.study import Direction
from suggest.trial import NO_LABELS, Measurement, Outcome

MAX_ROWS = 100_000  # trials of one source: what a study holds lies in memory


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """`source_id`: which it is where it comes from; "": its place in the request."""

    parameters: Assignment
    outcome: Outcome
    measurements: Sequence[Measurement] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    source_id: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """What somebody wants to import. `title`: for people. `identity`: the same whenever the same source is read again.

    `direction`, `metric`: of its objective, where it says so. `trials`: with their places in it, such as `line 7`.
    `left_out`: how many of what cannot be imported. `refused`: what is wrong with others; paths are places.
    """

    title: str
    identity: str
    trials: Sequence[tuple[str, FinishedTrial]]
    direction: Direction | None = None
    metric: str = ""
    left_out: Mapping[str, int] = field(default_factory=dict)
    refused: Sequence[Problem] = ()


@dataclass(frozen=True, slots=True)
class ImportResult:
    """`number`: in the study; None: it was not taken, and the problems say why. `known`: it had been taken before.

    With a number the problems say what lies outside of the space, or was left out; paths are names of parameters.
    """

    number: int | None
    known: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """What of the values a space takes. `remarks`: on what was taken. `refused`: why the trial cannot be taken."""

    parameters: Assignment
    remarks: tuple[Problem, ...] = ()
    refused: tuple[Problem, ...] = ()


def fit(space: Space, given: Assignment) -> Fit:
    kept: dict[str, Value] = {}
    remarks: list[Problem] = []
    refused: list[Problem] = []
    known = space.by_name
    for name in given:
        if name not in known:
            remarks.append(Problem(name, f"no parameter of the space, and left out{did_you_mean(name, known)}"))
    for parameter in space.ordered:
        name, domain = parameter.name, parameter.domain
        if not parameter.active(kept):
            continue  # a value for it means nothing
        if name not in given:
            refused.append(Problem(name, "no value; every active parameter needs one"))
            continue
        member = domain.canonical(given[name])
        if member is NO_MEMBER:
            read = _readable(domain, given[name])
            if read is NO_MEMBER:
                refused.append(Problem(name, domain.complaint(given[name])))
                continue
            remarks.append(Problem(name, domain.complaint(given[name])))
            member = read
        kept[name] = member
    return Fit({p.name: kept[p.name] for p in space.parameters if p.name in kept}, tuple(remarks), tuple(refused))


def _readable(domain: Domain, value: Value) -> Value | NoMember:
    """A value of the domain's type, though not of the domain."""
    if json_problem(value):
        return NO_MEMBER
    if isinstance(domain, Choice):
        return value
    x = number(value)
    if x is None:
        return NO_MEMBER
    return int(x) if isinstance(domain, Int) and x == int(x) else float(x)
