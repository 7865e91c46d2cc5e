"""Finished trials from elsewhere: the values of an import, and which of them a space accepts.

Pure. A value outside of the space is kept and reported: it counts once the space has grown to
include it. A trial that lacks a required value, or has text for a number, is refused, unless the
trials of the study name its parameters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from suggest.domain import NO_MEMBER, NoMember, json_problem, number
from suggest.errors import InvalidArgument, NotFound, Problem, did_you_mean
from suggest.space import Assignment, Choice, Domain, Int, Space, Value
from suggest.study import Objective
from suggest.trial import NO_LABELS, Measurement, Outcome

AnyStudy = TypeVar("AnyStudy")

MAX_ROWS = 100_000  # trials of one source, because a study is held in memory


@dataclass(frozen=True, slots=True)
class FinishedTrial:
    """A finished trial to import.

    `source_id` identifies it in its source; "" uses its place in the request.
    """

    parameters: Assignment
    outcome: Outcome
    measurements: Sequence[Measurement] = ()
    labels: Mapping[str, str] = field(default_factory=lambda: NO_LABELS)
    source_id: str = ""


@dataclass(frozen=True, slots=True)
class Source:
    """A source of trials to import.

    title: the name for people.
    identity: the same text whenever the same source is read again.
    objectives: the source's objectives, if known, that of the value first; a metric is "" if it has
    no name.
    trials: the trials with their places in the source, such as `line 7`.
    left_out: what cannot be imported, and how many of it.
    refused: the problems of other trials; paths are places.
    remark: what a person should know about how the source was read.
    """

    title: str
    identity: str
    trials: Sequence[tuple[str, FinishedTrial]]
    objectives: Sequence[Objective] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    refused: Sequence[Problem] = ()
    remark: str = ""


def study_of(studies: Mapping[str, AnyStudy], name: str, place: str) -> AnyStudy:
    """Return the study of that name in a store; with "", the only one.

    Raises InvalidArgument, NotFound.
    """
    if name in studies:
        return studies[name]
    if not name and len(studies) == 1:
        return next(iter(studies.values()))
    some = ", ".join([*studies][:8]) + (", …" if len(studies) > 8 else "") or "none"
    if not name:
        raise InvalidArgument.at("--study", f"name one of the studies in {place}; there are {some}")
    raise NotFound(
        f"{place} has no study {name!r}{did_you_mean(name, studies) or f'; there are {some}'}"
    )


@dataclass(frozen=True, slots=True)
class ImportResult:
    """The result for one imported trial.

    number: its number in the study; None if it was refused, for the reasons in `problems`.
    known: it was imported before. problems: with a number, what lies outside of the space
    or was left out; paths are names of parameters.
    """

    number: int | None
    known: bool = False
    problems: tuple[Problem, ...] = ()


@dataclass(frozen=True, slots=True)
class Fit:
    """Which values a space accepts, with remarks on those.

    `refused` says why the trial cannot be accepted.
    """

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
            remarks.append(
                Problem(
                    name, f"not a parameter of the space, and ignored{did_you_mean(name, known)}"
                )
            )
    for parameter in space.ordered:
        name, domain = parameter.name, parameter.domain
        if not parameter.active(kept):
            continue  # its value has no meaning
        if name not in given:
            refused.append(Problem(name, "no value; every active parameter needs one"))
            continue
        member = domain.canonical(given[name])
        if member is NO_MEMBER:
            read = _readable(domain, given[name])
            if read is NO_MEMBER:
                refused.append(Problem(name, domain.problem_with(given[name])))
                continue
            remarks.append(Problem(name, domain.problem_with(given[name])))
            member = read
        kept[name] = member
    return Fit(space.in_order(kept), tuple(remarks), tuple(refused))


def kept(given: Assignment) -> Fit:
    """Accept all values for a space whose parameters trials name: each counts once it is named."""
    problems = [Problem(name, problem) for name in given if (problem := json_problem(given[name]))]
    return Fit(given, refused=tuple(problems))


def _readable(domain: Domain, value: Value) -> Value | NoMember:
    """Return whether the value has the domain's type, even if it is not a member."""
    if json_problem(value):
        return NO_MEMBER
    if isinstance(domain, Choice):
        return value
    x = number(value)
    if x is None:
        return NO_MEMBER
    return int(x) if isinstance(domain, Int) and x == int(x) else float(x)
