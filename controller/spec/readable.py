"""The parts of a file with problems that can still be checked,
so that all its problems are reported at once.

A value that depends on an unreadable one is left out and never reported. Pure functions.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from controller.spec.document import (
    Json,
    algorithm_of,
    network_of,
    objective_of,
    pruning_of,
    space_of,
)
from controller.spec.native import AUTO, earlier_studies
from suggest.errors import Problem
from suggest.network import Network
from suggest.space import Choice, Parameter, Space, is_name
from suggest.study import (
    Algorithm,
    Belief,
    Constraint,
    Direction,
    EarlierStudy,
    Fidelity,
    Objective,
    StudySpec,
)

_ANY_SPACE = Space((Parameter("any", Choice((0, 1))),))
_ANY_OBJECTIVE = Objective("any", Direction.MINIMIZE)
_ANY_ALGORITHM = Algorithm("random")
_ANY_FIDELITY = Fidelity("_any", 1, 9)


def readable_space(spec: Json, raw: object) -> Space:
    """Return the readable parameters, without conditions on those of `raw` that are unreadable."""
    parameters = spec.get("parameters", {})
    lost = {name for name in raw if name not in parameters} if isinstance(raw, dict) else set()
    space = space_of(parameters, readable_network(spec))
    return _without_parents(space, lost)


def readable_network(spec: Json) -> Network | None:
    """Return the networks of `spec.network` if the section has no problems."""
    network = network_of(spec.get("network", {}))
    return None if network is None or any(True for _ in network.problems()) else network


def valid_part(space: Space, problems: Sequence[Problem]) -> Space:
    """Return the parameters with a valid domain, without conditions if any of them is wrong."""
    if not problems:
        return space
    right = [p for p in space.parameters if is_name(p.name) and not list(p.domain.problems())]
    wrong = {p.name for p in space.parameters} - {p.name for p in right}
    valid = _without_parents(Space(tuple(right)), wrong)
    return unconditional(valid) if any(".when." in problem.path for problem in problems) else valid


def _without_parents(space: Space, names: Set[str]) -> Space:
    """Return the space without conditions on these parameters."""
    kept = []
    for p in space.parameters:
        conditions = tuple(c for c in p.when if c.parameter not in names)
        kept.append(replace(p, when=conditions))
    return Space(tuple(kept))


def unconditional(space: Space) -> Space:
    return Space(tuple(replace(p, when=()) for p in space.parameters))


def study_part(document: Json, raw_document: Json) -> StudySpec:
    """Return the part of a file that the service checks.

    Unreadable parts are replaced by harmless values.
    """
    spec, raw = _spec_of(document), _spec_of(raw_document)
    space = readable_space(spec, raw.get("parameters"))
    # A single objective needs no check by the service.
    objectives = tuple(
        objective_of(objective)
        for objective in spec.get("objectives", ())
        if objective.keys() >= {"metric", "direction", "value"}
    )
    algorithm = spec.get("algorithm", {})
    define_by_run = spec.get("defineByRun") is True
    valid = valid_part(space, space.problems(may_be_empty=define_by_run))
    return StudySpec(
        space=valid if define_by_run else _non_empty(valid),
        define_by_run=define_by_run,
        objectives=objectives or (_ANY_OBJECTIVE,),
        constraints=_constraints(spec),
        algorithm=algorithm_of(algorithm) if "name" in algorithm else _ANY_ALGORITHM,
        pruning=pruning_of(spec.get("pruning", {})),
        fidelity=_fidelity(spec, raw),
        learn_from=_learn_from(spec),
        prior=_prior(spec, raw, valid),
    )


def _spec_of(document: Json) -> Json:
    spec = document.get("spec")
    return spec if isinstance(spec, dict) else {}


def _learn_from(spec: Json) -> tuple[EarlierStudy, ...]:
    """Return the earlier searches; none if one of them or the algorithm cannot be read.

    The service names a search by its place in the list, which leaving one out would shift.
    """
    taken = spec.get("learnFrom", [])
    has_names = taken == AUTO or all("study" in each for each in taken)
    return earlier_studies(taken) if has_names and _algorithm_is_known(spec) else ()


def _algorithm_is_known(spec: Json) -> bool:
    return "name" in spec.get("algorithm", {})


def _prior(spec: Json, raw: Json, space: Space) -> tuple[Belief, ...]:
    """Return the readable beliefs, without those about parameters with problems of their own.

    None if no parameter or the algorithm can be read.
    """
    parameters = raw.get("parameters")
    if not isinstance(parameters, dict) or not _algorithm_is_known(spec):
        return ()
    unreadable = parameters.keys() - space.by_name.keys()
    return tuple(
        Belief(name, **each)
        for name, each in spec.get("prior", {}).items()
        if name not in unreadable and each.keys() == {"around", "sure"}
    )


def _fidelity(spec: Json, raw: Json) -> Fidelity | None:
    """Return the fidelity, under a harmless name if a parameter has the same one.

    The reader reports the clash.
    """
    fidelity, parameters = spec.get("fidelity"), raw.get("parameters")
    if "fidelity" not in raw:
        return None
    if not isinstance(fidelity, dict) or not fidelity.keys() >= {"parameter", "min", "max"}:
        return _ANY_FIDELITY
    is_taken = isinstance(parameters, dict) and fidelity["parameter"] in parameters
    name = _ANY_FIDELITY.parameter if is_taken else fidelity["parameter"]
    return Fidelity(name, fidelity["min"], fidelity["max"], fidelity.get("eta", _ANY_FIDELITY.eta))


def _constraints(spec: Json) -> tuple[Constraint, ...]:
    named = (each for each in spec.get("constraints", ()) if "metric" in each)
    return tuple(Constraint(**each) for each in named if each.keys() & {"min", "max"})


def _non_empty(space: Space) -> Space:
    return space if space.parameters else _ANY_SPACE
