"""Checks the spec of a study: its space, objectives, algorithm, pruning rule and fidelity. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator

from suggest import pruners, samplers
from suggest.domain import INT32
from suggest.earlier import MOST_EARLIER
from suggest.engine.promotion import BRACKETED, PROMOTING
from suggest.errors import Problem, did_you_mean, under
from suggest.samplers import registry
from suggest.samplers.belief import belief_problems
from suggest.samplers.family import ALLOW, DEFAULT, MOST_MODELED, TPE
from suggest.space import NAME_RULE, is_name
from suggest.study import MOST_RUNGS, WIDEST, StudySpec

# With more of them, nearly every trial is on the Pareto front.
MOST_OBJECTIVES = 8
MOST_CONSTRAINTS = 32
# The algorithms whose model can learn from earlier studies and from beliefs.
LEARNING = (DEFAULT, "gp")
# The algorithms whose points may be completed parameter by parameter.
DEFINE_BY_RUN = (DEFAULT, TPE, "gp", "random")


def check_spec(spec: StudySpec, *, runs_here: bool = True) -> tuple[Problem, ...]:
    """Return the problems of a study's spec.

    Paths are fields of the spec, such as `space.lr.min` or `objectives`.

    runs_here: this process needs the packages of the algorithm.
    """
    return tuple(_spec_problems(spec, runs_here))


def _spec_problems(spec: StudySpec, runs_here: bool) -> Iterator[Problem]:
    space = spec.space.problems(may_be_empty=spec.define_by_run)
    yield from under("space", space)
    yield from _objective_problems(spec)
    yield from under("algorithm", samplers.algorithm_problems(spec.algorithm))
    if runs_here and (lacking := samplers.not_installed(spec.algorithm)):
        yield Problem("algorithm.name", lacking)
    yield from under("algorithm", samplers.objective_problems(spec))
    if not space:
        yield from under("space", samplers.space_problems(spec))
    if spec.pruning is not None:
        yield from under("pruning", pruners.pruning_problems(spec.pruning))
    yield from _fidelity_problems(spec)
    yield from _learning_problems(spec)
    yield from _prior_problems(spec)
    if spec.define_by_run:
        yield from _define_by_run_problems(spec)


def _define_by_run_problems(spec: StudySpec) -> Iterator[Problem]:
    algorithm = spec.algorithm
    if algorithm.name not in DEFINE_BY_RUN:
        yield Problem(
            "algorithm.name",
            f"{algorithm.name} needs all parameters from the start; give them, or use "
            f"{', '.join(DEFINE_BY_RUN)}",
        )
    if "duplicates" in algorithm.settings and algorithm.settings["duplicates"] != ALLOW:
        yield Problem(
            "algorithm.settings.duplicates",
            "the points of define-by-run trials are not known before they end; remove it",
        )
    if spec.fidelity is not None:
        yield Problem(
            "fidelity",
            "define-by-run trials cannot run in steps; give the parameters from the start, or "
            "prune trials instead",
        )


def _learning_problems(spec: StudySpec) -> Iterator[Problem]:
    """Yield what is wrong with `learn_from`, as far as it can be said without its studies."""
    if not spec.learn_from:
        return
    algorithm = spec.algorithm.name
    if algorithm not in LEARNING:
        yield Problem(
            "algorithm.name",
            f"{algorithm} does not learn from earlier searches; use {' or '.join(LEARNING)}, or "
            "name no earlier ones",
        )
    if not spec.criteria.is_plain or spec.define_by_run:
        yield Problem(
            "learn_from",
            "is for one objective without constraints, and parameters that are known from the "
            "start; remove it",
        )
    if len(spec.learn_from) > MOST_EARLIER:
        yield Problem(
            "learn_from",
            f"{len(spec.learn_from)} studies; at most {MOST_EARLIER}, the most similar",
        )
    seen: set[str] = set()
    for place, earlier in enumerate(spec.learn_from):
        path = f"learn_from[{place}]"
        if not earlier.study:
            yield Problem(f"{path}.study", "no name; name a finished study")
        elif earlier.study in seen:
            yield Problem(f"{path}.study", f"{earlier.study} is already there; name it once")
        seen.add(earlier.study)
        if not 0 < earlier.weight <= 1:
            yield Problem(
                f"{path}.weight", f"{earlier.weight:g} is not above 0 and at most 1; use 1, or 0.5"
            )


def _prior_problems(spec: StudySpec) -> Iterator[Problem]:
    if not spec.prior:
        return
    algorithm = spec.algorithm.name
    if algorithm not in LEARNING:
        yield Problem(
            "algorithm.name",
            f"{algorithm} does not use a prior; use {' or '.join(LEARNING)}, or remove prior",
        )
    if algorithm == DEFAULT and len(spec.objectives) > MOST_MODELED:
        yield Problem(
            "prior",
            f"{len(spec.objectives)} objectives; {algorithm} uses it for at most {MOST_MODELED}; "
            "remove it",
        )
    if spec.define_by_run:
        yield Problem("prior", "is for parameters that are known from the start; remove it")
        return
    domains = {p.name: p.domain for p in spec.space.parameters}
    seen: set[str] = set()
    for belief in spec.prior:
        name = belief.parameter
        path = f"prior.{name}"
        if name in seen:
            yield Problem(path, f"{name} is already there; give one belief for each parameter")
        elif name not in domains:
            hint = did_you_mean(name, domains) or "; the keys are parameters of the search"
            yield Problem(path, f"unknown parameter{hint}")
        elif not list(domains[name].problems()):
            yield from under(path, belief_problems(belief, domains[name]))
        seen.add(name)


def _fidelity_problems(spec: StudySpec) -> Iterator[Problem]:
    fidelity = spec.fidelity
    if fidelity is None:
        if spec.algorithm.name in BRACKETED:
            yield Problem(
                "algorithm.name",
                f"{spec.algorithm.name} needs a fidelity, such as epochs, so that trials run in "
                "steps; set fidelity, with parameter, min and max",
            )
        return
    name, least, largest, eta = fidelity.parameter, fidelity.min, fidelity.max, fidelity.eta
    if not is_name(name):
        yield Problem("fidelity.parameter", f"{name!r} is not a name; use {NAME_RULE}")
    elif any(p.name == name for p in spec.space.parameters):
        yield Problem(
            "fidelity.parameter",
            f"{name} is also a parameter of the search, but each run of a trial has its own; "
            "remove it there",
        )
    if registry.waits(spec.algorithm):
        message = (
            f"trials of {spec.algorithm.name} already run in generations; remove it, or use "
            "another algorithm"
        )
        yield Problem("fidelity", message)
    if eta < 2:
        yield Problem("fidelity.eta", f"{eta} is below 2")
    elif eta > INT32:
        yield Problem("fidelity.eta", f"{eta} is too large; use at most {INT32}")
    if not (math.isfinite(least) and least > 0):
        yield Problem("fidelity.min", f"{least:g} is not above 0")
    elif not math.isfinite(largest):
        yield Problem("fidelity.max", f"{largest:g} is not finite")
    elif eta >= 2 and largest < least * eta:
        yield Problem(
            "fidelity.max",
            f"{largest:g} is below min times eta, {least * eta:g}, so no trial would be compared "
            "before its end; raise it",
        )
    elif largest / least > WIDEST:
        yield Problem(
            "fidelity.min", f"{least:g} to {largest:g} spans more than 305 powers of ten; raise it"
        )
    elif eta >= 2 and len(fidelity.levels) > MOST_RUNGS:
        yield Problem(
            "fidelity.min",
            f"{least:g} to {largest:g} is more than {MOST_RUNGS} steps by {eta}; raise it",
        )
    if not spec.criteria.is_plain:
        yield Problem(
            "fidelity",
            "trials are promoted by one objective; remove the other objectives and constraints",
        )
    if spec.pruning is not None and spec.pruning.name in PROMOTING and spec.pruning.settings:
        for name in spec.pruning.settings:
            yield Problem(
                f"pruning.settings.{name}", "min, max and eta of the fidelity say this; remove it"
            )


def _objective_problems(spec: StudySpec) -> Iterator[Problem]:
    if not 1 <= len(spec.objectives) <= MOST_OBJECTIVES:
        yield Problem(
            "objectives", f"{len(spec.objectives)} objectives; a study has 1 to {MOST_OBJECTIVES}"
        )
    metrics: set[str] = set()
    for place, objective in enumerate(spec.objectives):
        if not objective.metric:
            yield Problem(
                f"objectives[{place}].metric", "no metric; name the one that trials report"
            )
        elif objective.metric in metrics:
            yield Problem(
                f"objectives[{place}].metric",
                f"{objective.metric} is already an objective; name it once",
            )
        metrics.add(objective.metric)
    if len(spec.constraints) > MOST_CONSTRAINTS:
        yield Problem(
            "constraints",
            f"{len(spec.constraints)} constraints; a study has at most {MOST_CONSTRAINTS}",
        )
    for place, constraint in enumerate(spec.constraints):
        path, bounds = f"constraints[{place}]", (constraint.min, constraint.max)
        if not constraint.metric:
            yield Problem(f"{path}.metric", "no metric; name the one that trials report")
        if bounds == (None, None):
            yield Problem(path, "no bound; set min, max or both")
        for word, bound in zip(("min", "max"), bounds, strict=True):
            if bound is not None and not math.isfinite(bound):
                yield Problem(
                    f"{path}.{word}", f"{bound} is not finite; omit it if there is no bound"
                )
        if (
            constraint.min is not None
            and constraint.max is not None
            and constraint.min > constraint.max
        ):
            yield Problem(
                path,
                f"min {constraint.min:g} is above max {constraint.max:g}; no value satisfies both",
            )
