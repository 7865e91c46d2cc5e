"""The second reader: converts Katib's file, `apiVersion: kubeflow.org/v1beta1`, to the data of a native one.

This reader refuses whatever Katib refuses, and whatever Katib accepts but never finishes. It also refuses, with a
message, everything that has no native form yet, so that an accepted file means the same as in Katib. Trials of a Job
run locally.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from typing import Any

from controller.spec.problems import ProblemCollector

API_VERSION = "kubeflow.org/v1beta1"
ALGORITHMS = {
    "random": "random",
    "grid": "grid",
    "tpe": "tpe",
    "bayesianoptimization": "gp",
    "cmaes": "cmaes",
    "sobol": "sobol",
}
_WITHOUT_SEED = ("sobol",)
_DEFAULT_PARALLEL = 3
_PLACEHOLDER = re.compile(r"\$\{trialParameters\.([^{}]*)\}")
_WHOLE = re.compile(r"[+-]?[0-9]+")
_RESOURCES = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}
_CONTAINER = ("name", "image", "imagePullPolicy", "command", "args", "env", "resources")
_NOT_ON_THIS_MACHINE = {
    "volumeMounts": "volumes are not mounted on this machine; remove it, and give the command a path that is there",
    "envFrom": "is not read; write the variables out under env",
    "workingDir": "is not read; trials start in the file's folder",
}
Json = dict[str, Any]  # a file's plain data, whose shape is not checked yet

_SPEC = {"parameters", "objective", "algorithm", "parallelTrialCount", "maxTrialCount", "maxFailedTrialCount"}
_NOT_YET = {
    "nasConfig": "a search for a network's layers is not read; write the layers as parameters",
    "earlyStopping": "is not read yet; remove it, or write the native file with pruning: {name: median}",
    "resumePolicy": "is not read yet; remove it: every experiment can be resumed from its store",
}


class KatibReader:
    """The reader of one file. `native` returns the native data; `problems` get the paths of Katib's file."""

    def __init__(self, data: Json, problems: ProblemCollector) -> None:
        self._data = data
        self._problems = problems

    def native(self) -> Json | None:
        """Return the native data; None if the file has problems."""
        before = len(self._problems.found)
        if self._data["apiVersion"] != API_VERSION:
            self._problems.add("apiVersion", f"{self._data['apiVersion']} is not read; write {API_VERSION}")
        if self._data.get("kind") != "Experiment":
            self._problems.add("kind", "of Katib's objects only an Experiment is read; write kind: Experiment")
        spec = self._mapping(self._data, "spec", "")
        self._only(self._data, "", ("apiVersion", "kind", "metadata", "spec", "status"))
        self._only(spec, "spec", (*_SPEC, "trialTemplate", "metricsCollectorSpec"), _NOT_YET)
        self._collector(spec)
        parameters = self._parameters(spec)
        native = {
            "objective": self._objective(spec),
            "parameters": parameters,
            "algorithm": self._algorithm(spec),
            **self._counts(spec),
            "canary": "0s",
            "trial": self._trial(spec, parameters),
        }
        metadata = self._mapping(self._data, "metadata", "")
        kept = {key: metadata[key] for key in ("name", "namespace", "labels") if key in metadata}
        if len(self._problems.found) > before:
            return None
        return {"apiVersion": "tuner.dev/v1", "kind": "Experiment", "metadata": kept, "spec": native}

    def _mapping(self, parent: Json, key: str, at: str) -> Json:
        return self._taken(parent, key, at, dict, "a mapping") or {}

    def _list(self, parent: Json, key: str, at: str) -> list[Any]:
        return self._taken(parent, key, at, list, "a list") or []

    def _optional(self, parent: Json, key: str, at: str) -> list[Any]:
        return [] if parent.get(key) is None else self._list(parent, key, at)

    def _taken(self, parent: Json, key: str, at: str, kind: type, what: str) -> Any:  # Any: of `kind`, or None
        below = f"{at}.{key}" if at else key
        value = parent.get(key)
        if value is None:
            self._problems.add(below, f"must be specified; write {what}")
        elif not isinstance(value, kind):
            self._problems.add(below, f"expected {what}")
            return None
        return value

    def _only(self, given: Json, at: str, keys: Iterable[str], refused: dict[str, str] | None = None) -> None:
        for name in given:
            if name not in keys:
                why = (refused or {}).get(name, "is not read; remove it")
                self._problems.add(f"{at}.{name}" if at else name, why, at_key=True)

    def _objective(self, spec: Json) -> Json:
        at = "spec.objective"
        given = self._mapping(spec, "objective", "spec")
        self._only(given, at, ("type", "goal", "objectiveMetricName", "additionalMetricNames", "metricStrategies"))
        metric = given.get("objectiveMetricName")
        if not metric:
            self._problems.add(f"{at}.objectiveMetricName", "must be specified; write the name of a metric")
        if given.get("type") not in ("minimize", "maximize"):
            self._problems.add(f"{at}.type", "must be minimize or maximize")
        if metric and metric in self._optional(given, "additionalMetricNames", at):
            self._problems.add(f"{at}.additionalMetricNames", f"should not contain the objective's metric, {metric}")
        native = {"metric": metric, "direction": given.get("type"), "value": "best"}
        best = "min" if given.get("type") == "minimize" else "max"
        for i, strategy in enumerate(self._optional(given, "metricStrategies", at)):
            if not isinstance(strategy, dict) or strategy.get("value") not in ("min", "max", "latest"):
                self._problems.add(f"{at}.metricStrategies[{i}]", "must have a name, and value: min, max or latest")
            elif strategy.get("name") == metric and strategy["value"] == "latest":
                native["value"] = "last"
            elif strategy.get("name") == metric and strategy["value"] != best:
                self._problems.add(f"{at}.metricStrategies[{i}].value", f"is not read; write {best} or latest")
        return native | ({"target": given["goal"]} if given.get("goal") is not None else {})

    def _algorithm(self, spec: Json) -> Json:
        at = "spec.algorithm"
        given = self._mapping(spec, "algorithm", "spec")
        self._only(given, at, ("algorithmName", "algorithmSettings"))
        name = given.get("algorithmName")
        if not isinstance(name, str) or name not in ALGORITHMS:
            self._problems.add(f"{at}.algorithmName", f"{name!r} is not read; write {', '.join(ALGORITHMS)}")
            return {}
        native: Json = {"name": ALGORITHMS[name]}
        for i, setting in enumerate(self._optional(given, "algorithmSettings", at)):
            below = f"{at}.algorithmSettings[{i}]"
            key, value = (setting.get("name"), setting.get("value")) if isinstance(setting, dict) else (None, None)
            if key != "random_state" or name in _WITHOUT_SEED:
                self._problems.add(below, f"the setting {key!r} of {name} is not read; remove it")
            elif "seed" in native:
                self._problems.add(below, "random_state is there twice; remove one")
            elif not isinstance(value, str) or not re.fullmatch(r"[0-9]+", value):
                self._problems.add(f"{below}.value", f"expected a whole number from 0 in quotes, got {value!r}")
            else:
                native["seed"] = int(value)
        return native

    def _counts(self, spec: Json) -> Json:
        most = self._count(spec, "maxTrialCount", 1)
        if most is None:
            if spec.get("maxTrialCount") is None:
                self._problems.add("spec.maxTrialCount", "is missing, so it would never end; write maxTrialCount: 100")
            return {}
        parallel = self._count(spec, "parallelTrialCount", 1)
        failed = self._count(spec, "maxFailedTrialCount", 0)
        for key, count in (("parallelTrialCount", parallel), ("maxFailedTrialCount", failed)):
            if count is not None and count > most:
                self._problems.add(f"spec.{key}", f"should be less than or equal to spec.maxTrialCount, {most}")
        # In Katib, 0 fails an experiment at the first failed trial, and a missing count never fails it.
        failures = most + 1 if failed is None else max(failed, 1)
        budget = {"trials": most, "failedTrials": failures}
        return {"parallelism": parallel or min(_DEFAULT_PARALLEL, most), "budget": budget}

    def _count(self, spec: Json, key: str, least: int) -> int | None:
        count = spec.get(key)
        if count is None:
            return None
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            self._problems.add(f"spec.{key}", f"expected a whole number from {least}, got {count!r}")
            return None
        return count

    def _collector(self, spec: Json) -> None:
        given = spec.get("metricsCollectorSpec")
        if given is not None and given != {"collector": {"kind": "StdOut"}}:
            self._problems.add("spec.metricsCollectorSpec", "only collector: {kind: StdOut} without a filter is read")

    def _parameters(self, spec: Json) -> Json:
        native: Json = {}
        for i, given in enumerate(self._list(spec, "parameters", "spec")):
            at = f"spec.parameters[{i}]"
            name = given.get("name") if isinstance(given, dict) else None
            if not isinstance(name, str) or not name:
                self._problems.add(at, "must be a mapping with a name, parameterType and feasibleSpace")
            elif name in native:
                self._problems.add(f"{at}.name", f"{name} is there twice; rename one")
            else:
                self._only(given, at, ("name", "parameterType", "feasibleSpace"))
                native[name] = self._domain(given, at)
        return native

    def _domain(self, given: Json, at: str) -> Json:
        kind = given.get("parameterType")
        space = self._mapping(given, "feasibleSpace", at)
        at_space = f"{at}.feasibleSpace"
        self._only(space, at_space, ("min", "max", "step", "list", "distribution"))
        if kind in ("categorical", "discrete"):
            for key in space.keys() & {"min", "max", "step"}:
                self._problems.add(f"{at_space}.{key}", f"a {kind} parameter has a list only; remove it")
            values = self._list(space, "list", at_space)
            if any(not isinstance(value, str) for value in values):
                self._problems.add(f"{at_space}.list", "expected text only; write each value in quotes")
            return {"type": "choice", "values": values}
        if kind not in ("int", "double"):
            self._problems.add(f"{at}.parameterType", f"{kind!r} is not supported; write int, double or categorical")
            return {}
        if "list" in space:
            self._problems.add(f"{at_space}.list", f"a parameter of type {kind} has min and max; remove it")
        if (shape := space.get("distribution", "uniform")) not in ("uniform", "logUniform"):
            self._problems.add(f"{at_space}.distribution", f"{shape!r} is not read; write uniform or logUniform")
        numbers = {key: self._number(space, key, kind, at_space) for key in ("min", "max", "step")}
        low, high = numbers["min"], numbers["max"]
        if low is not None and high is not None and low > high:
            self._problems.add(at_space, f"min {space['min']} is above max {space['max']}; exchange them")
        if shape == "logUniform" and low is not None and low <= 0:
            self._problems.add(f"{at_space}.min", "must be above 0 with distribution: logUniform")
        native: Json = {"type": "int" if kind == "int" else "float", "min": low, "max": high}
        if shape == "logUniform":
            return native | {"scale": "log"}  # Katib ignores the step in this case
        return native | ({"step": numbers["step"]} if numbers["step"] is not None else {})

    def _number(self, space: Json, key: str, kind: str, at: str) -> int | float | None:
        raw = space.get(key)
        if raw is None:
            if key != "step":
                self._problems.add(f"{at}.{key}", "must be specified; write a number in quotes")
            return None
        if kind == "int" and isinstance(raw, str) and _WHOLE.fullmatch(raw):
            return int(raw)
        if kind == "double" and isinstance(raw, str):
            try:
                value = float(raw)
            except ValueError:
                value = math.nan
            if math.isfinite(value):
                return value
        what = "a whole number" if kind == "int" else "a number"
        self._problems.add(f"{at}.{key}", f'expected {what} in quotes, such as "1", got {raw!r}')
        return None

    def _trial(self, spec: Json, parameters: Json) -> Json:
        at = "spec.trialTemplate"
        given = self._mapping(spec, "trialTemplate", "spec")
        known = ("trialSpec", "trialParameters", "primaryContainerName")
        self._only(given, at, known)
        names: dict[str, str] = {}
        for i, one in enumerate(self._list(given, "trialParameters", at)):
            below = f"{at}.trialParameters[{i}]"
            name, reference = (one.get("name"), one.get("reference")) if isinstance(one, dict) else (None, None)
            if not isinstance(name, str) or not isinstance(reference, str):
                self._problems.add(below, "must have a name and a reference")
            elif name in names or reference in names.values():
                self._problems.add(below, "its name or reference is there twice; remove one")
            elif reference not in parameters:
                self._problems.add(f"{below}.reference", f"{reference} is not a parameter of this file")
            else:
                names[name] = reference
        job = self._mapping(given, "trialSpec", at)
        if (job.get("apiVersion"), job.get("kind")) != ("batch/v1", "Job"):
            self._problems.add(f"{at}.trialSpec.kind", f"{job.get('kind')} needs a cluster; write a batch/v1 Job")
            return {}
        return self._container(given, job, names)

    def _container(self, given: Json, job: Json, names: dict[str, str]) -> Json:
        at = "spec.trialTemplate.trialSpec.spec.template.spec.containers"
        match job:
            case {"spec": {"template": {"spec": {"containers": list(containers)}}}}:
                pass
            case _:
                containers = []
        wanted = given.get("primaryContainerName")
        found = [(i, c) for i, c in enumerate(containers) if isinstance(c, dict) and c.get("name") == wanted]
        if not wanted or not found:
            where = "spec.trialTemplate.primaryContainerName"
            self._problems.add(where, f"{wanted!r} is not a container of the Job; write the name of one")
            return {}
        index, container = found[0]
        for i in range(len(containers)):
            if i != index:
                self._problems.add(f"{at}[{i}]", "only the primary container runs on this machine; remove the others")
        self._only(container, f"{at}[{index}]", _CONTAINER, _NOT_ON_THIS_MACHINE)
        used: set[str] = set()
        words = {
            key: [self._filled(word, f"{at}[{index}].{key}[{i}]", names, used) for i, word in enumerate(given_words)]
            for key in ("command", "args")
            if isinstance(given_words := container.get(key), list)
        }
        env = {}
        for i, one in enumerate(self._optional(container, "env", f"{at}[{index}]")):
            below = f"{at}[{index}].env[{i}]"
            if not isinstance(one, dict) or not isinstance(one.get("name"), str) or "valueFrom" in one:
                self._problems.add(below, "only a name with a value is read; write the value out")
            else:
                env[one["name"]] = self._filled(one.get("value", ""), below, names, used)
        if "command" not in words:
            self._problems.add(f"{at}[{index}].command", "is missing; a local trial cannot ask the image for it")
        for name in names.keys() - used:
            self._problems.add("spec.trialTemplate.trialParameters", f"{name} is not used in the container; remove it")
        image = {"image": container["image"]} if isinstance(container.get("image"), str) else {}
        return {**words, "env": env, **image, **self._resources(container, f"{at}[{index}].resources")}

    def _resources(self, container: Json, at: str) -> Json:
        """Return the limits, or the requests where there is no limit."""
        given = container.get("resources")
        if given is None:
            return {}
        if not isinstance(given, dict):
            self._problems.add(at, "expected a mapping with limits or requests")
            return {}
        amounts = given.get("limits") or given.get("requests") or {}
        native: Json = {}
        for key, amount in amounts.items() if isinstance(amounts, dict) else ():
            if key not in _RESOURCES:
                self._problems.add(f"{at}.{key}", f"{key} is not read; remove it")
            elif key == "memory":
                native["memory"] = amount
            else:
                native[_RESOURCES[key]] = self._amount(amount, f"{at}.{key}")
        return {"resources": native} if native else {}

    def _amount(self, amount: object, at: str) -> float | None:
        """Return an amount, which Kubernetes writes as 0.5 or 500m, for example."""
        text = str(amount)
        try:
            return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
        except ValueError:
            self._problems.add(at, f"expected a number, got {amount!r}")
            return None

    def _filled(self, text: object, at: str, names: dict[str, str], used: set[str]) -> str:
        if not isinstance(text, str):
            self._problems.add(at, f"expected text, got {text!r}; write it in quotes")
            return ""
        parts: list[str] = []
        end = 0
        for found in _PLACEHOLDER.finditer(text):
            if found[1] not in names:
                self._problems.add(at, f"{found[0]} is not one of trialParameters; declare it there")
            used.add(found[1])
            parts += [text[end : found.start()].replace("${", "$${"), "${" + names.get(found[1], "") + "}"]
            end = found.end()
        return "".join([*parts, text[end:].replace("${", "$${")])
