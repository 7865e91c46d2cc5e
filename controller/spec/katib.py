"""The second reader: converts Katib's file, `apiVersion: kubeflow.org/v1beta1`, to the data of a native one.

This reader refuses whatever Katib refuses, and whatever Katib accepts but never finishes. It also refuses, with a
message, everything that has no native form yet, so that an accepted file means the same as in Katib. On this machine
the primary container of a Job runs as a process; on a cluster the trial's object is created as the file has it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from controller.core.runtime_traits import DEFAULT_RUNTIME, is_on_cluster
from controller.spec.katib_collectors import KatibCollectorReader
from controller.spec.problems import ProblemCollector, SpecErrors
from controller.spec.substitute import TRIAL_NAME
from controller.spec.yaml_text import parse, plain_scalar
from suggest.study import Fidelity

API_VERSION = "kubeflow.org/v1beta1"
_DEFAULT_PARALLEL = 3
_PLACEHOLDER = re.compile(r"\$\{trialParameters\.([^{}]*)\}")
_METADATA = re.compile(r"\$\{trialSpec\.([A-Za-z]+)(?:\[([^\]]*)\])?\}")
_WHOLE = re.compile(r"[+-]?[0-9]+")
# Conditions in GJSON. `status.conditions.#(type=="Complete")#|#(status=="True")#`, in either order, and
# `status.[@this].#(phase=="Succeeded")#`, which makes a list of one mapping. The last # is optional.
_TYPE, _STATUS = (rf"""#\({key}==["']?(?P<{key}>\w+)["']?\)""" for key in ("type", "status"))
_CONDITIONS = (
    re.compile(rf"status\.conditions\.{_TYPE}#\|{_STATUS}#?"),
    re.compile(rf"status\.conditions\.{_STATUS}#\|{_TYPE}#?"),
)
_KEYS = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*"
_VALUE = r'(?:"(?P<text>[^"]*)"|(?P<plain>[^"()]+))'
_FIELD = re.compile(rf"(?P<above>{_KEYS})\.\[@this\]\.#\((?P<key>{_KEYS})=={_VALUE}\)#?")
# Kinds whose conditions Katib fills in, in templates that are in the file.
_WITH_CONDITIONS = ("Job", "TFJob", "PyTorchJob", "XGBoostJob", "MPIJob", "TrainJob")
# Katib's distributions: the scale, and whether values are normal on it.
_DISTRIBUTIONS = {
    "uniform": ("linear", False),
    "logUniform": ("log", False),
    "normal": ("linear", True),
    "logNormal": ("log", True),
}
_RESOURCES = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}
_CONTAINER = ("name", "image", "imagePullPolicy", "command", "args", "env", "resources")
_NOT_ON_THIS_MACHINE = {
    "volumeMounts": "volumes are not mounted on this machine; remove it, and give the command a path that is there",
    "envFrom": "is not read; write the variables out under env",
    "workingDir": "is not read; trials start in the file's folder",
}
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
_RESUME_POLICIES = ("Never", "LongRunning", "FromVolume")
Json = dict[str, Any]  # a file's plain data, whose shape is not checked yet

_SPEC = {"parameters", "objective", "algorithm", "parallelTrialCount", "maxTrialCount", "maxFailedTrialCount"}
_REFUSED = {"nasConfig": "a search for a network's layers is not read; write the layers as parameters"}


# Settings of algorithms, which are text


def _whole(text: str, least: int) -> int:
    if not re.fullmatch(r"[0-9]+", text) or int(text) < least:
        raise ValueError(f"expected a whole number from {least}")
    return int(text)


def _real(text: str) -> float:
    value = float(text) if re.fullmatch(r"[+-]?([0-9]*[.])?[0-9]+([eE][+-]?[0-9]+)?", text) else math.nan
    if not math.isfinite(value):
        raise ValueError("expected a number")
    return value


def _positive(text: str) -> float:
    if (value := _real(text)) <= 0:
        raise ValueError("expected a number above 0")
    return value


def _not_negative(text: str) -> float:
    if (value := _real(text)) < 0:
        raise ValueError("expected a number from 0")
    return value


def _share(text: str) -> float:
    if not 0 < (value := _real(text)) < 1:
        raise ValueError("expected a number between 0 and 1")
    return value


def _share_or_all(text: str) -> float:
    if not 0 <= (value := _real(text)) <= 1:
        raise ValueError("expected a number from 0 to 1")
    return value


def _folder(text: str) -> str:
    if not text.startswith("/") or not text.strip("/"):
        raise ValueError("expected the absolute path of a folder")
    return text.rstrip("/")


def _one_of(*words: str) -> Callable[[str], str]:
    def taken(text: str) -> str:
        if text not in words:
            raise ValueError(f"expected one of {', '.join(words)}")
        return text

    return taken


@dataclass(frozen=True, slots=True)
class _Setting:
    """A setting of an algorithm. `to`: its name in the native file; "" if it has no effect here, which is said."""

    take: Callable[[str], Any]
    to: str = ""


_TRIAL_DIR = "trialDir"  # where the program of a pbt trial expects its checkpoint; not a setting of the native file
_SEED = _Setting(lambda text: _whole(text, 0), "seed")
_TPE_SETTINGS = {  # of Optuna's service
    "random_state": _SEED,
    "n_startup_trials": _Setting(lambda text: _whole(text, 0), "startupTrials"),
    "n_ei_candidates": _Setting(lambda text: max(1, _whole(text, 0)), "candidates"),
}
_HYPEROPT_SETTINGS = {
    "n_EI_candidates": _Setting(lambda text: _whole(text, 1), "candidates"),
    "gamma": _Setting(_share),
    "prior_weight": _Setting(_positive),
}


@dataclass(frozen=True, slots=True)
class _Algorithm:
    """An algorithm of Katib's: its native name and settings, and the settings that it takes."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    takes: dict[str, _Setting] = field(default_factory=dict)


ALGORITHMS = {
    "random": _Algorithm("random", takes={"random_state": _SEED}),
    "grid": _Algorithm("grid", takes={"random_state": _Setting(lambda text: _whole(text, 0))}),
    "tpe": _Algorithm("tpe", {"multivariate": False}, _TPE_SETTINGS | _HYPEROPT_SETTINGS),
    "multivariate-tpe": _Algorithm("tpe", {"multivariate": True}, _TPE_SETTINGS),
    "bayesianoptimization": _Algorithm(
        "gp",
        takes={
            "random_state": _SEED,
            "n_initial_points": _Setting(lambda text: _whole(text, 0), "startupTrials"),
            "base_estimator": _Setting(_one_of("GP", "RF", "ET", "GBRT")),
            "acq_func": _Setting(_one_of("gp_hedge", "LCB", "EI", "PI", "EIps", "PIps")),
            "acq_optimizer": _Setting(_one_of("auto", "sampling", "lbfgs")),
        },
    ),
    "cmaes": _Algorithm(
        "cmaes",
        takes={
            "random_state": _SEED,
            "sigma": _Setting(_not_negative),
            "restart_strategy": _Setting(_one_of("ipop", "bipop", "none", "None")),
        },
    ),
    "sobol": _Algorithm("sobol"),
    "hyperband": _Algorithm(
        "hyperband",
        takes={
            "r_l": _Setting(_positive, "max"),
            "eta": _Setting(lambda text: _whole(text, 2), "eta"),
            "resource_name": _Setting(str, "parameter"),
        },
    ),
    # Without a probability, Katib perturbs every parameter.
    "pbt": _Algorithm(
        "pbt",
        {"resampleProbability": 0.0},
        {
            "suggestion_trial_dir": _Setting(_folder, _TRIAL_DIR),
            "n_population": _Setting(lambda text: _whole(text, 5), "population"),
            "truncation_threshold": _Setting(_share_or_all, "truncation"),
            "resample_probability": _Setting(_share_or_all, "resampleProbability"),
        },
    ),
}
_NOT_HERE = {
    "enas": "enas is not read: write the choices of its layers as parameters, with conditions in a native file",
    "darts": "darts is not read: write the choices of its layers as parameters, with conditions in a native file",
}


class NoConfigMap(Exception):
    """A ConfigMap cannot be read. The message says why, and the cure."""


@dataclass(frozen=True, slots=True)
class ConfigMaps:
    """The ConfigMaps in the experiment's own file, and `of_cluster`, which reads those of the cluster."""

    in_file: Sequence[Json] = ()
    of_cluster: Callable[[str, str], Mapping[str, str]] | None = None

    def text(self, namespace: str, name: str, key: str, *, on_cluster: bool) -> str:
        """Return the text under a key of a ConfigMap. Raises NoConfigMap."""
        for each in self.in_file:
            match each:
                case {"metadata": {"name": found} as metadata} if found == name:
                    if metadata.get("namespace", namespace) == namespace:
                        return self._value(each.get("data"), namespace, name, key)
        if not on_cluster or self.of_cluster is None:
            cure = "add it to this file as another document, or run with --runtime kubernetes to read the cluster's"
            raise NoConfigMap(f"the ConfigMap {namespace}/{name} is not in this file; {cure}")
        return self._value(self.of_cluster(namespace, name), namespace, name, key)

    def _value(self, data: object, namespace: str, name: str, key: str) -> str:
        keys = data if isinstance(data, Mapping) else {}
        text = keys.get(key)
        if not isinstance(text, str):
            there = f"it has {', '.join(map(str, keys))}" if keys else "it has no data"
            raise NoConfigMap(f"the ConfigMap {namespace}/{name} has no text under {key!r}; {there}")
        return text


class KatibReader:
    """The reader of one file. `native` returns the native data; `problems` get the paths of Katib's file."""

    def __init__(self, data: Json, problems: ProblemCollector, config_maps: ConfigMaps | None = None) -> None:
        self._data = data
        self._problems = problems
        self._config_maps = config_maps or ConfigMaps()
        self.warnings: list[str] = []  # what is read and has no effect
        self._places: dict[str, str] = {  # of native keys in this file
            "spec.objective": "spec.objective",
            "spec.objective.metric": "spec.objective.objectiveMetricName",
            "spec.objective.direction": "spec.objective.type",
            "spec.objective.target": "spec.objective.goal",
            "spec.algorithm": "spec.algorithm",
            "spec.algorithm.name": "spec.algorithm.algorithmName",
            "spec.fidelity": "spec.algorithm.algorithmSettings",
            "spec.pruning": "spec.earlyStopping",
            "spec.budget.trials": "spec.maxTrialCount",
            "spec.budget.failedTrials": "spec.maxFailedTrialCount",
            "spec.parallelism": "spec.parallelTrialCount",
            "spec.trial": "spec.trialTemplate",
            **KatibCollectorReader.places,
        }

    def place_of(self, path: str) -> str:
        """Return the place in this file of a native key; of the nearest key around it if it has none."""
        key = path
        while key not in self._places and "." in key:
            key = re.sub(r"[.\[][^.\[]*$", "", key)
        return self._places.get(key, path)

    def native(self) -> Json | None:
        """Return the native data; None if the file has problems."""
        before = len(self._problems.found)
        if self._data["apiVersion"] != API_VERSION:
            self._problems.add("apiVersion", f"{self._data['apiVersion']} is not read; write {API_VERSION}")
        if self._data.get("kind") != "Experiment":
            self._problems.add("kind", "of Katib's objects only an Experiment is read; write kind: Experiment")
        spec = self._mapping(self._data, "spec", "")
        self._only(self._data, "", ("apiVersion", "kind", "metadata", "spec", "status"))
        known = ("trialTemplate", "metricsCollectorSpec", "earlyStopping", "resumePolicy", "runtime")
        self._only(spec, "spec", (*_SPEC, *known), _REFUSED)
        if spec.get("resumePolicy") not in (None, *_RESUME_POLICIES):
            self._problems.add("spec.resumePolicy", f"expected one of {', '.join(_RESUME_POLICIES)}")
        runtime = spec.get("runtime", DEFAULT_RUNTIME)
        parameters = self._parameters(spec)
        algorithm = self._algorithm(spec)
        trial_dir = self._trial_dir(algorithm, on_cluster=is_on_cluster(runtime))
        names = set(parameters)
        native = {
            "objective": self._objective(spec),
            "parameters": parameters,
            **self._fidelity(algorithm, parameters),
            "algorithm": algorithm,
            **self._early_stopping(spec),
            **self._counts(spec),
            **self._collector(spec),
            "canary": "0s",
            **({"runtime": runtime} if "runtime" in spec else {}),
            "trial": self._trial(spec, names, on_cluster=is_on_cluster(runtime), trial_dir=trial_dir),
        }
        metadata = self._mapping(self._data, "metadata", "")
        name = metadata.get("name")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            rule = "1 to 40 lower-case letters, digits and -, with a letter first and no - last"
            self._problems.add("metadata.name", f"{name!r} is not a name; use {rule}")
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
                native["value"] = "worst"
        return native | ({"target": given["goal"]} if given.get("goal") is not None else {})

    def _algorithm(self, spec: Json) -> Json:
        at = "spec.algorithm"
        given = self._mapping(spec, "algorithm", "spec")
        self._only(given, at, ("algorithmName", "algorithmSettings"))
        name = given.get("algorithmName")
        if not isinstance(name, str) or name not in ALGORITHMS:
            refused = _NOT_HERE.get(name) if isinstance(name, str) else None
            known = ", ".join(ALGORITHMS)
            self._problems.add(f"{at}.algorithmName", refused or f"unknown algorithm name {name!r}; write {known}")
            return {}
        algorithm = ALGORITHMS[name]
        native: Json = {"name": algorithm.name}
        settings = dict(algorithm.settings) | self._settings(given, at, f"{at}.settings", name, algorithm.takes)
        if "seed" in settings:
            native["seed"] = settings.pop("seed")
        return native | ({"settings": settings} if settings else {})

    def _settings(self, given: Json, at: str, native_at: str, algorithm: str, takes: dict[str, _Setting]) -> Json:
        """Return the settings under their native names. Katib writes all of them as text."""
        native: Json = {}
        seen: set[str] = set()
        for i, one in enumerate(self._optional(given, "algorithmSettings", at)):
            below = f"{at}.algorithmSettings[{i}]"
            key, value = (one.get("name"), one.get("value")) if isinstance(one, dict) else (None, None)
            setting = takes.get(key) if isinstance(key, str) else None
            if setting is None:
                there = f"write {', '.join(takes)}" if takes else "remove it"
                self._problems.add(below, f"unknown setting {key!r} for algorithm {algorithm}; {there}")
            elif key in seen:
                self._problems.add(below, f"{key} is there twice; remove one")
            elif not isinstance(value, str):
                self._problems.add(f"{below}.value", f"expected text, got {value!r}; write it in quotes")
            else:
                try:
                    taken = setting.take(value)
                except ValueError as error:
                    self._problems.add(f"{below}.value", f"{error} in quotes, got {value!r}")
                    continue
                if setting.to:
                    native[setting.to] = taken
                    self._places[f"{native_at}.{setting.to}"] = below
                else:
                    self.warnings.append(f"{below}: {key} has no effect here: {algorithm} has its own rule for it")
            if isinstance(key, str):
                seen.add(key)
        return native

    def _fidelity(self, algorithm: Json, parameters: Json) -> Json:
        """Return the fidelity of hyperband, whose resource is a parameter in Katib and none in the native file."""
        if algorithm.get("name") != "hyperband":
            return {}
        settings = algorithm.pop("settings", {})
        at = "spec.algorithm.algorithmSettings"
        if "max" not in settings or "parameter" not in settings:
            self._problems.add(at, "r_l and resource_name must be set")
            return {}
        resource, most, eta = settings["parameter"], settings["max"], settings.get("eta", 3)
        if resource not in parameters:
            self._problems.add(at, f"value of resource_name setting must be in parameters; {resource!r} is not")
            return {}
        if parameters.pop(resource).get("type") != "int":
            self._problems.add(at, f"{resource}, of resource_name, must have parameterType: int")
        found = Fidelity.of_resource(resource, most, eta)
        return {"fidelity": {"parameter": resource, "min": found.min, "max": found.max, "eta": eta}}

    def _trial_dir(self, algorithm: Json, *, on_cluster: bool) -> str:
        """Return the folder where a trial of pbt expects its checkpoint; "" for other algorithms."""
        if algorithm.get("name") != "pbt":
            return ""
        settings = algorithm["settings"]
        names = {_TRIAL_DIR: "suggestion_trial_dir", "population": "n_population", "truncation": "truncation_threshold"}
        if lacking := [theirs for ours, theirs in names.items() if ours not in settings]:
            told = f"Required params missing: {', '.join(lacking)}"
            self._problems.add("spec.algorithm.algorithmSettings", told)
        if on_cluster:
            cure = "run it on this machine, or write a native file with trial.image and trial.checkpoints"
            told = f"an object from a template mounts no checkpoint of its parent; {cure}"
            self._problems.add("spec.algorithm.algorithmName", told)
        return str(settings.pop(_TRIAL_DIR, ""))

    def _early_stopping(self, spec: Json) -> Json:
        at = "spec.earlyStopping"
        if spec.get("earlyStopping") is None:
            return {}
        given = self._mapping(spec, "earlyStopping", "spec")
        self._only(given, at, ("algorithmName", "algorithmSettings"))
        name = given.get("algorithmName")
        if name != "medianstop":
            self._problems.add(f"{at}.algorithmName", f"unknown algorithm name {name!r}; write medianstop")
            return {}
        takes = {
            "min_trials_required": _Setting(lambda text: _whole(text, 1), "minTrials"),
            "start_step": _Setting(lambda text: _whole(text, 1), "warmupSteps"),
        }
        settings = self._settings(given, at, "spec.pruning", name, takes)
        return {"pruning": {"name": "median", "minTrials": 3, "warmupSteps": 4, **settings}}

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

    def _collector(self, spec: Json) -> Json:
        metrics = KatibCollectorReader(spec, self._problems, self.warnings).native()
        return {"metrics": metrics} if metrics else {}

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
                self._places[f"spec.parameters.{name}"] = at
                for key, there in (("min", "min"), ("max", "max"), ("step", "step"), ("values", "list")):
                    if key in native[name]:
                        self._places[f"spec.parameters.{name}.{key}"] = f"{at}.feasibleSpace.{there}"
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
        shape = space.get("distribution", "uniform")
        if not isinstance(shape, str) or shape not in _DISTRIBUTIONS:
            words = ", ".join(_DISTRIBUTIONS)
            self._problems.add(f"{at_space}.distribution", f"{shape!r} is not supported; write {words}")
            return {}
        scale, is_normal = _DISTRIBUTIONS[shape]
        numbers = {key: self._number(space, key, kind, at_space) for key in ("min", "max", "step")}
        low, high = numbers["min"], numbers["max"]
        if low is not None and high is not None and low > high:
            self._problems.add(at_space, f"min {space['min']} is above max {space['max']}; exchange them")
        if scale == "log" and low is not None and low <= 0:
            self._problems.add(f"{at_space}.min", f"must be above 0 with distribution: {shape}")
        native: Json = {"type": "int" if kind == "int" else "float", "min": low, "max": high}
        native |= {"scale": scale} if scale == "log" else {}
        native |= {"step": numbers["step"]} if numbers["step"] is not None else {}
        return native | ({"distribution": "normal"} if is_normal else {})

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

    def _trial(self, spec: Json, parameters: set[str], *, on_cluster: bool, trial_dir: str) -> Json:
        at = "spec.trialTemplate"
        given = self._mapping(spec, "trialTemplate", "spec")
        known = ("trialSpec", "configMap", "trialParameters", "primaryContainerName", "primaryPodLabels", "retain",
                 "successCondition", "failureCondition")  # fmt: skip
        self._only(given, at, known)
        job = self._template(given, at, on_cluster=on_cluster)
        if not job:
            return {}
        if not isinstance(given.get("primaryContainerName"), str):
            self._problems.add(f"{at}.primaryContainerName", "must be specified; write the name of a container")
        for key, pattern in (("successCondition", "Complete"), ("failureCondition", "Failed")):
            if given.get(key) is None and ("configMap" in given or job.get("kind") not in _WITH_CONDITIONS):
                example = f'status.conditions.#(type=="{pattern}")#|#(status=="True")#'
                self._problems.add(f"{at}.{key}", f"must be specified for this template, such as {example}")
        names: dict[str, str] = {}
        references: set[str] = set()
        for i, one in enumerate(self._list(given, "trialParameters", at)):
            below = f"{at}.trialParameters[{i}]"
            name, reference = (one.get("name"), one.get("reference")) if isinstance(one, dict) else (None, None)
            if not isinstance(name, str) or not isinstance(reference, str):
                self._problems.add(below, "must have a name and a reference")
            elif not name or not reference or "{" in name or "}" in name:
                self._problems.add(below, f"{name!r} is not a name, or has no reference; a name has no braces")
            elif name in names or reference in references:
                self._problems.add(below, "its name or reference is there twice; remove one")
            elif reference.startswith("${trialSpec."):
                names[name] = self._of_metadata(reference, job, f"{below}.reference")
            elif reference not in parameters:
                self._problems.add(f"{below}.reference", f"{reference} is not a parameter of this file")
            else:
                names[name] = "${" + reference + "}"
            references.add(str(reference))
        ends = {
            key: self._condition(given, theirs, at)
            for key, theirs in (("success", "successCondition"), ("failure", "failureCondition"))
            if given.get(theirs) is not None
        }
        if on_cluster:
            return self._object(given, job, names, ends)
        if (job.get("apiVersion"), job.get("kind")) != ("batch/v1", "Job"):
            cure = "run it with --runtime kubernetes, or write a batch/v1 Job"
            self._problems.add(f"{at}.trialSpec.kind", f"{job.get('kind')} needs a cluster; {cure}")
            return {}
        return self._container(given, job, names, trial_dir=trial_dir)

    def _of_metadata(self, reference: str, job: Json, at: str) -> str:
        """Return the text that a reference to the template's own metadata stands for."""
        found = _METADATA.fullmatch(reference)
        what, key = (found[1], found[2]) if found is not None else ("", None)
        metadata = job.get("metadata")
        match what, key:
            case "Kind", None:
                return str(job.get("kind", ""))
            case "APIVersion", None:
                return str(job.get("apiVersion", ""))
            case "Namespace", None:
                own = self._data.get("metadata")
                return str(own.get("namespace", "default")) if isinstance(own, dict) else "default"
            case (("Labels" | "Annotations"), str()):
                of = metadata.get(what.lower()) if isinstance(metadata, dict) else None
                if isinstance(of, dict) and isinstance(of.get(key), str):
                    return str(of[key]).replace("${", "$${")
                self._problems.add(at, f"the template's metadata.{what.lower()} has no {key!r}")
            case "Name", None:
                return "${" + TRIAL_NAME + "}"
            case _:
                self._problems.add(
                    at, f"{reference} is not one of Name, Namespace, Kind, APIVersion, Labels, Annotations"
                )
        return ""

    def _condition(self, given: Json, key: str, at: str) -> Json:
        condition = native_condition(given[key]) if isinstance(given[key], str) else None
        if condition is None:
            examples = 'status.conditions.#(type=="Complete")#|#(status=="True")# or status.[@this].#(phase=="Failed")#'
            self._problems.add(f"{at}.{key}", f"expected a condition such as {examples}, got {given[key]!r}")
            return {}
        return condition

    def _template(self, given: Json, at: str, *, on_cluster: bool) -> Json:
        """Return the trial's object, from the file or from a ConfigMap; empty if it has problems."""
        if given and ("trialSpec" in given) == ("configMap" in given):
            self._problems.add(at, "has trialSpec or configMap, exactly one of them; write the object under trialSpec")
            return {}
        job = self._template_in_config_map(given, at, on_cluster=on_cluster) if "configMap" in given else None
        place = f"{at}.configMap" if "configMap" in given else f"{at}.trialSpec"
        if job is None:
            job = {} if "configMap" in given else self._mapping(given, "trialSpec", at)
        for key in ("apiVersion", "kind"):
            if job and not isinstance(job.get(key), str):
                self._problems.add(f"{place}.{key}", "must be specified in the template")
                job = {}
        metadata = job.get("metadata")
        for key in ("name", "namespace"):
            if isinstance(metadata, dict) and key in metadata:
                self._problems.add(f"{place}.metadata.{key}", "each trial gets its own; remove it")
        return job

    def _template_in_config_map(self, given: Json, at: str, *, on_cluster: bool) -> Json | None:
        at = f"{at}.configMap"
        source = self._mapping(given, "configMap", at.rpartition(".")[0])
        keys = ("configMapNamespace", "configMapName", "templatePath")
        self._only(source, at, keys)
        missing = [key for key in keys if not isinstance(source.get(key), str) or not source[key]]
        for key in missing:
            self._problems.add(f"{at}.{key}", "must be specified")
        if missing:
            return None
        namespace, name, path = (source[key] for key in keys)
        try:
            data, _ = parse(self._config_maps.text(namespace, name, path, on_cluster=on_cluster), f"{name}: {path}")
        except NoConfigMap as error:
            self._problems.add(at, str(error))
            return None
        except SpecErrors as error:
            told = "; ".join(f"line {each.mark.line}: {each.message}" for each in error.placed[:3])
            self._problems.add(at, f"the template {path!r} of the ConfigMap {namespace}/{name} is not YAML: {told}")
            return None
        if not isinstance(data, dict):
            self._problems.add(at, f"the template {path!r} of the ConfigMap {namespace}/{name} is not an object")
            return None
        return data

    def _object(self, given: Json, job: Json, names: dict[str, str], ends: Json) -> Json:
        """Return a trial that is an object of a cluster."""
        at = "spec.trialTemplate"
        used: set[str] = set()
        template = self._filled_data(job, f"{at}.trialSpec", names, used)
        self._unused(names, used)
        primary: Json = {}
        if isinstance(labels := given.get("primaryPodLabels"), dict):
            primary["labels"] = labels
        if isinstance(container := given.get("primaryContainerName"), str):
            primary["container"] = container
        return {"template": template, **({"primary": primary} if primary else {}), **ends}

    def _filled_data(
        self, data: Any, at: str, names: dict[str, str], used: set[str]
    ) -> Any:  # Any: any of YAML's types
        if isinstance(data, str):
            return self._filled(data, at, names, used)
        if isinstance(data, list):
            return [self._filled_data(one, f"{at}[{i}]", names, used) for i, one in enumerate(data)]
        if isinstance(data, dict):
            return {key: self._filled_data(one, f"{at}.{key}", names, used) for key, one in data.items()}
        return data

    def _unused(self, names: dict[str, str], used: set[str]) -> None:
        for name in names.keys() - used:
            self._problems.add("spec.trialTemplate.trialParameters", f"{name} is not used in the template; remove it")

    def _container(self, given: Json, job: Json, names: dict[str, str], *, trial_dir: str) -> Json:
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
        self._unused(names, used)
        if trial_dir:
            words = {"command": _with_checkpoint([word for some in words.values() for word in some], trial_dir)}
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
            parts += [text[end : found.start()].replace("${", "$${"), names.get(found[1], "")]
            end = found.end()
        return "".join([*parts, text[end:].replace("${", "$${")])


def _with_checkpoint(words: list[str], folder: str) -> list[str]:
    """Return a command line in which the trial's checkpoint folder takes the place of `folder`.

    A shell fills it in; all text of the words stays in arguments, so that the shell reads none of it.
    """
    if not any(folder in word for word in words):
        return words
    texts: list[str] = []
    script: list[str] = []
    for word in words:
        parts = word.split(folder)
        places = range(len(texts) + 1, len(texts) + len(parts) + 1)
        script.append('"' + "$TUNER_CHECKPOINT_DIR".join(f"$${{{place}}}" for place in places) + '"')
        texts += parts
    return ["sh", "-c", f"exec {' '.join(script)}", "sh", *texts]


def native_condition(expression: str) -> Json | None:
    """Return the native condition of a GJSON expression of Katib's; None for one of another form."""
    for pattern in _CONDITIONS:
        if found := pattern.fullmatch(expression):
            return {"type": found["type"], "status": found["status"]}
    if found := _FIELD.fullmatch(expression):
        wanted = plain_scalar(found["plain"]) if found["text"] is None else found["text"]
        return {"path": f"{found['above']}.{found['key']}", "equals": wanted}
    return None
