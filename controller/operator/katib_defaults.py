"""What Katib's webhook writes into an Experiment that lacks it, and its clients read back. Pure.

What is wrong in a spec stays as it is; the reader refuses it.
"""

from __future__ import annotations

import copy
from typing import Any

_PARALLEL = 3
_TRAINING_JOBS = ("TFJob", "PyTorchJob", "XGBoostJob", "MPIJob")
_MASTER = {"training.kubeflow.org/job-role": "master"}
_NODE = {
    "jobset.sigs.k8s.io/replicatedjob-name": "node",
    "batch.kubernetes.io/job-completion-index": "0",
}
# By kind: the types of the conditions of success and failure, and the labels of the primary pod.
_ENDS = {
    "Job": ("Complete", "Failed", {}),
    "TrainJob": ("Complete", "Failed", _NODE),
    **dict.fromkeys(_TRAINING_JOBS, ("Succeeded", "Failed", _MASTER)),
}
_SOURCES: dict[str, dict[str, Any]] = {
    "File": {"fileSystemPath": {"path": "/var/log/katib/metrics.log", "kind": "File"}},
    "TensorFlowEvent": {"fileSystemPath": {"path": "/var/log/katib/tfevent/", "kind": "Directory"}},
    "PrometheusMetric": {"httpGet": {"path": "/metrics", "port": 8080}},
}


def with_defaults(spec: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the spec that is complete."""
    whole = copy.deepcopy(spec)
    most = whole.get("maxTrialCount")
    parallel = min(_PARALLEL, most) if isinstance(most, int) and most > 0 else _PARALLEL
    _fill(whole, {"parallelTrialCount": parallel, "resumePolicy": "Never"})
    _fill_objective(whole.get("objective"))
    for parameter in _list(whole.get("parameters")):
        if isinstance(space := parameter.get("feasibleSpace"), dict):
            _move_list(space)
            _fill(space, {"distribution": "uniform"})
    collector = whole.setdefault("metricsCollectorSpec", {})
    if isinstance(collector, dict):
        _fill_collector(collector)
    _fill_template(whole.get("trialTemplate"))
    return whole


def _fill(mapping: dict[str, Any], defaults: dict[str, Any]) -> None:
    for key, value in defaults.items():
        if mapping.get(key) in (None, "", {}):  # the same in Go
            mapping[key] = copy.deepcopy(value)


def _list(value: object) -> list[dict[str, Any]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def _move_list(space: dict[str, Any]) -> None:
    """Move the choices of `search.categorical`, which Katib's SDK sends as the distribution.

    Katib cannot read them (its issue 2542).
    """
    if isinstance(space.get("distribution"), list) and space.get("list") is None:
        space["list"] = [str(choice) for choice in space.pop("distribution")]


def _fill_objective(objective: object) -> None:
    """Add the strategy of each metric that has none: the best value counts."""
    if not isinstance(objective, dict):
        return
    others = objective.get("additionalMetricNames")
    metrics = [objective.get("objectiveMetricName"), *(others if isinstance(others, list) else ())]
    strategies = objective.get("metricStrategies") or []
    best = {"minimize": "min", "maximize": "max"}.get(str(objective.get("type")))
    if best is None or not isinstance(strategies, list):
        return
    known = [each.get("name") for each in _list(strategies)]
    added = [
        {"name": metric, "value": best}
        for metric in metrics
        if isinstance(metric, str) and metric not in known
    ]
    if added:
        objective["metricStrategies"] = [*strategies, *added]


def _fill_collector(collector: dict[str, Any]) -> None:
    _fill(collector, {"collector": {"kind": "StdOut"}})
    match collector["collector"]:
        case {"kind": str(kind)} if kind in _SOURCES:
            _fill(collector, {"source": {}})
            source, defaults = collector["source"], _SOURCES[kind]
        case _:
            return
    if not isinstance(source, dict):
        return
    for key, value in defaults.items():
        _fill(source, {key: {}})
        if isinstance(source[key], dict):
            _fill(source[key], value)
            if kind == "File":
                _fill(source[key], {"format": "TEXT"})


def _fill_template(template: Any) -> None:
    """Add the conditions of a template that the spec has; one of a ConfigMap gets none."""
    match template:
        case {"trialSpec": {"kind": str(kind)}} if kind in _ENDS:
            success, failure, labels = _ENDS[kind]
        case _:
            return
    _fill(template, {"successCondition": _condition(success)})
    _fill(template, {"failureCondition": _condition(failure)})
    if labels:
        _fill(template, {"primaryPodLabels": labels})


def _condition(name: str) -> str:
    return f'status.conditions.#(type=="{name}")#|#(status=="True")#'
