"""A study's spec as JSON, in the form in which it is stored.

This form is independent of protobuf and of the YAML file,
so both may change without affecting stored data.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from suggest.space import Choice, Condition, Domain, Float, Int, Normal, Parameter, Scale, Space
from suggest.storage.database import DamagedRow
from suggest.study import (
    Algorithm,
    Belief,
    Constraint,
    Direction,
    EarlierStudy,
    EarlierTrial,
    Fidelity,
    Objective,
    Pruning,
    StudySpec,
    ValueRule,
)

# The result of json.loads: any JSON type at any depth.
Document = dict[str, Any]

_decode = json.JSONDecoder().raw_decode


def read_json(text: str | bytes) -> Any:
    """Parse the output of json.dumps in half the time of json.loads.

    A study's trials have thousands of documents.

    Raises DamagedRow.
    """
    try:
        if isinstance(text, bytes):
            text = text.decode()
        return {} if text == "{}" else _decode(text)[0]
    except (TypeError, ValueError) as e:
        raise DamagedRow(f"{text[:40]!r} is not JSON") from e


def spec_document(spec: StudySpec) -> Document:
    document: Document = {
        "parameters": space_document(spec.space),
        "objectives": [
            {"metric": o.metric, "direction": o.direction.value, "value": o.value.value}
            for o in spec.objectives
        ],
        "algorithm": {
            "name": spec.algorithm.name,
            "seed": spec.algorithm.seed,
            "settings": dict(spec.algorithm.settings),
        },
        "constraints": [{"metric": c.metric, "min": c.min, "max": c.max} for c in spec.constraints],
    }
    if spec.fidelity is not None:
        f = spec.fidelity
        document["fidelity"] = {"parameter": f.parameter, "min": f.min, "max": f.max, "eta": f.eta}
    if spec.define_by_run:
        document["defineByRun"] = True
    if spec.learn_from:
        document["learnFrom"] = [_earlier_document(each) for each in spec.learn_from]
    if spec.prior:
        document["prior"] = {b.parameter: {"around": b.around, "sure": b.sure} for b in spec.prior}
    if spec.pruning is not None:
        document["pruning"] = {"name": spec.pruning.name, "settings": dict(spec.pruning.settings)}
    return document


def spec_of(document: Document) -> StudySpec:
    algorithm = document["algorithm"]
    pruning = document.get("pruning")
    fidelity = document.get("fidelity")
    return StudySpec(
        space=space_of(document["parameters"]),
        objectives=tuple(
            Objective(o["metric"], Direction(o["direction"]), ValueRule(o["value"]))
            for o in document["objectives"]
        ),
        algorithm=Algorithm(algorithm["name"], algorithm["seed"], algorithm["settings"]),
        pruning=None if pruning is None else Pruning(pruning["name"], pruning["settings"]),
        constraints=tuple(
            Constraint(c["metric"], c["min"], c["max"]) for c in document["constraints"]
        ),
        fidelity=None if fidelity is None else Fidelity(**fidelity),
        define_by_run=document.get("defineByRun", False),
        learn_from=tuple(_earlier_of(each) for each in document.get("learnFrom", ())),
        prior=tuple(Belief(name, **each) for name, each in document.get("prior", {}).items()),
    )


def _earlier_document(earlier: EarlierStudy) -> Document:
    return {
        "study": earlier.study,
        "weight": earlier.weight,
        "trials": [[dict(trial.parameters), trial.value] for trial in earlier.trials],
    }


def _earlier_of(document: Document) -> EarlierStudy:
    trials = (EarlierTrial(parameters, value) for parameters, value in document["trials"])
    return EarlierStudy(document["study"], document["weight"], tuple(trials))


def space_document(space: Space) -> list[Document]:
    return [parameter_document(p) for p in space.parameters]


def space_of(document: list[Document]) -> Space:
    return Space(tuple(_parameter_of(p) for p in document))


def fingerprint(spec: StudySpec) -> str:
    """Return a hash that is equal for equal specs, across processes and versions of Python.

    true and 1 differ.
    """
    text = json.dumps(spec_document(spec), sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def parameter_document(parameter: Parameter) -> Document:
    document = {"name": parameter.name, **domain_document(parameter.domain)}
    if parameter.when:
        document["when"] = [
            {"parameter": c.parameter, "values": list(c.values)} for c in parameter.when
        ]
    return document


def domain_document(domain: Domain) -> Document:
    match domain:
        case Float(low, high, scale, step, points):
            found = {
                "type": "float",
                "min": low,
                "max": high,
                "scale": scale.value,
                "step": step,
                "points": points,
            }
        case Int(low, high, scale, step):
            found = {"type": "int", "min": low, "max": high, "scale": scale.value, "step": step}
        case Choice(values):
            return {"type": "choice", "values": list(values)}
    if domain.normal is not None:
        found["normal"] = {"mean": domain.normal.mean, "deviation": domain.normal.deviation}
    return found


def _parameter_of(document: Document) -> Parameter:
    when = tuple(Condition(c["parameter"], tuple(c["values"])) for c in document.get("when", ()))
    return Parameter(document["name"], _domain_of(document), when)


def _domain_of(document: Document) -> Domain:
    if document["type"] == "choice":
        return Choice(tuple(document["values"]))
    low = document["min"]
    high = document["max"]
    scale = Scale(document["scale"])
    step = document["step"]
    normal = Normal(**document["normal"]) if "normal" in document else None
    if document["type"] == "float":
        return Float(low, high, scale, step, document["points"], normal)
    return Int(low, high, scale, step, normal)
