"""The second reader: converts Katib's file, `apiVersion: kubeflow.org/v1beta1`,
to the data of a native one.

This reader refuses whatever Katib refuses, and whatever Katib accepts but never finishes. It also
refuses, with a message, everything that has no native form yet, so that an accepted file means the
same as in Katib. On this machine the primary container of a Job runs as a process; on a cluster the
trial's object is created as the file has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from controller.core.katib_keys import katib_place, katib_words
from controller.core.runtime_traits import DEFAULT_RUNTIME
from controller.runtime.registry import traits_if_known
from controller.spec.katib_collectors import AT as COLLECTOR
from controller.spec.katib_collectors import (
    DEFAULT_FILTER,
    KatibCollectorReader,
)
from controller.spec.katib_domain import KatibDomainReader
from controller.spec.katib_layers import OF_LAYERS, KatibLayersReader, Layers
from controller.spec.katib_section import Json, KatibFile, shown
from controller.spec.katib_settings import taken
from controller.spec.katib_template import ConfigMaps, KatibTemplateReader
from controller.spec.problems import ProblemCollector
from controller.spec.spelling import meant_by
from suggest.katib_settings import (
    ALGORITHMS,
    MEDIAN_DEFAULTS,
    MEDIAN_STOPPING,
    TRIAL_DIR,
    KatibSetting,
)
from suggest.study import Fidelity

API_VERSION = "kubeflow.org/v1beta1"
_DEFAULT_PARALLEL = 3
_NAME = re.compile(r"[a-z]([-a-z0-9]{0,38}[a-z0-9])?")
# Keys of a feasible space, by those of a native parameter.
_OF_SPACE = {
    **dict.fromkeys(("scale", "mean", "deviation"), "distribution"),
    "values": "list",
}
_RESUME_POLICIES = ("Never", "LongRunning", "FromVolume")

# What Go reads as absent may be what is meant here: a label without a value, for example.
_AS_WRITTEN = ("trialSpec", "customCollector", "primaryPodLabels")
_SPEC = (
    "parameters",
    "objective",
    "algorithm",
    "parallelTrialCount",
    "maxTrialCount",
    "maxFailedTrialCount",
    "trialTemplate",
    "metricsCollectorSpec",
    "earlyStopping",
    "resumePolicy",
    "runtime",
    "nasConfig",
)


class KatibReader(KatibDomainReader):
    """The reader of one file.

    `native` returns the native data; `problems` get the paths of Katib's file. `ignored` has what
    to say of each key that is not one of Katib's.
    """

    def __init__(
        self, data: Json, problems: ProblemCollector, config_maps: ConfigMaps | None = None
    ) -> None:
        self.ignored: dict[str, str] = {}
        super().__init__(KatibFile(problems, self.ignored))
        self.warnings = self._file.warnings
        self._data = {**data, **({"spec": _given(data["spec"])} if "spec" in data else {})}
        self._config_maps = config_maps or ConfigMaps()

    def place_of(self, path: str) -> str:
        """Return the place in this file of a native key.

        Of the nearest key around it if it has none.
        """
        return katib_place(path, self._file.places)

    def words(self, message: str) -> str:
        """Return a message with the keys and the placeholders of this file."""
        for native, written in self._file.placeholders.items():
            message = message.replace(native, written)
        return katib_words(message)

    def native(self) -> Json | None:
        """Return the native data; None if the file has problems."""
        before = len(self._problems.found)
        if self._data.get("kind") != "Experiment":
            cure = "write an Experiment, as in examples/katib/random.yaml"
            message = f"{shown(self._data.get('kind'))} is not an Experiment of Katib's; {cure}"
            self._problems.add("kind", message)
            return None
        spec = self._mapping(self._data, "spec", "")
        self._check_keys(spec)
        if not spec:
            if len(self._problems.found) == before:
                self._problems.add("spec", "is empty; write it as in examples/katib/random.yaml")
            return None
        runtime = spec.get("runtime", DEFAULT_RUNTIME)
        algorithm = self._algorithm(spec)
        layers = self._layers(spec, algorithm)
        parameters = self._parameters(spec) if layers is None else layers.parameters
        trial_dir = self._trial_dir(spec, algorithm)
        self._check_grid(algorithm, parameters)
        names = set(parameters) if layers is None else set(layers.names)
        collector = KatibCollectorReader(self._file, spec)
        metrics = collector.native()
        if _algorithm_name(spec) == "darts" and metrics.get("pattern") == DEFAULT_FILTER:
            cure = r"write metricsFormat: ['([\w-]+)=(Genotype.*)']"
            message = f"expected a filter that reads the text, because darts reports one; {cure}"
            self._problems.add(f"{COLLECTOR}.source.filter", message)
        template = KatibTemplateReader(
            self._file,
            self._config_maps,
            namespace=self._namespace(),
            takes_templates=traits_if_known(runtime).takes_templates,
            through_shell="dbManager" not in metrics,
            split=frozenset(_split(parameters)),
            trial_dir=trial_dir,
            beside=collector.custom,
        )
        native = {
            "objective": self._objective(spec),
            "parameters": parameters,
            **({} if layers is None else layers.native),
            **self._fidelity(algorithm, parameters),
            "algorithm": algorithm,
            **self._early_stopping(spec),
            **self._counts(spec),
            # Katib knows no pause: failures end the search by their number. A trial that reports
            # nan has succeeded.
            "metrics": metrics | {"notFinite": "infeasible"},
            "canary": "0s",
            "breaker": "off",
            **({"runtime": runtime} if "runtime" in spec else {}),
            "trial": template.native(spec, names),
        }
        metadata = self._metadata()
        if len(self._problems.found) > before:
            for path, message in self.ignored.items():
                self._problems.add(path, message, at_key=True)
            return None
        self.warnings += [f"{path}: {message}" for path, message in self.ignored.items()]
        return {
            "apiVersion": "tuner.dev/v1",
            "kind": "Experiment",
            "metadata": metadata,
            "spec": native,
        }

    def _check_keys(self, spec: Json) -> None:
        if self._data["apiVersion"] != API_VERSION:
            self._problems.add(
                "apiVersion", f"{self._data['apiVersion']} is not supported; write {API_VERSION}"
            )
        self._only(self._data, "", ("apiVersion", "kind", "metadata", "spec", "status"))
        self._only(spec, "spec", _SPEC)
        if spec.get("resumePolicy") not in (None, *_RESUME_POLICIES):
            self._problems.add(
                "spec.resumePolicy", f"expected one of {', '.join(_RESUME_POLICIES)}"
            )

    def _metadata(self) -> Json:
        metadata = self._mapping(self._data, "metadata", "")
        name = metadata.get("name")
        if name is None and "generateName" in metadata:
            cure = "write metadata.name, or add --set metadata.name=NAME for each run"
            self._problems.add(
                "metadata.generateName", f"tuner run continues an experiment by its name; {cure}"
            )
        elif not isinstance(name, str) or not _NAME.fullmatch(name):
            rule = "1 to 40 lower-case letters, digits and -, with a letter first and no - last"
            self._problems.add("metadata.name", f"{shown(name)} is not a name; use {rule}")
        # The API server takes an empty namespace as none.
        return {key: metadata[key] for key in ("name", "namespace", "labels") if metadata.get(key)}

    def _layers(self, spec: Json, algorithm: Json) -> Layers | None:
        """Return what `enas` and `darts` search, None for an algorithm that has parameters."""
        name = _algorithm_name(spec)
        if name in OF_LAYERS:
            return KatibLayersReader(self._file, spec).read(name, algorithm.pop("settings", {}))
        if "nasConfig" in spec:
            message = f"{name} searches parameters; remove it, or write {' or '.join(OF_LAYERS)}"
            self._problems.add("spec.nasConfig", message, at_key=True)
        return None

    def _objective(self, spec: Json) -> Json:
        at = "spec.objective"
        objective = self._mapping(spec, "objective", "spec")
        self._only(
            objective,
            at,
            ("type", "goal", "objectiveMetricName", "additionalMetricNames", "metricStrategies"),
        )
        metric = objective.get("objectiveMetricName")
        if not metric:
            self._problems.add(
                f"{at}.objectiveMetricName", "must be specified; write the name of a metric"
            )
        if objective.get("type") not in ("minimize", "maximize"):
            self._problems.add(f"{at}.type", "must be minimize or maximize")
        if metric and metric in self._optional(objective, "additionalMetricNames", at):
            self._problems.add(
                f"{at}.additionalMetricNames",
                f"should not contain the objective's metric, {metric}",
            )
        native = {"metric": metric, "direction": objective.get("type"), "value": "best"}
        best = "min" if objective.get("type") == "minimize" else "max"
        for i, strategy in enumerate(self._optional(objective, "metricStrategies", at)):
            if not isinstance(strategy, dict) or strategy.get("value") not in (
                "min",
                "max",
                "latest",
            ):
                self._problems.add(
                    f"{at}.metricStrategies[{i}]", "must have a name, and value: min, max or latest"
                )
            elif strategy.get("name") == metric and strategy["value"] == "latest":
                native["value"] = "last"
            elif strategy.get("name") == metric and strategy["value"] != best:
                native["value"] = "worst"
        if _algorithm_name(spec) == "darts":
            # Katib ranks no trial by a text: the last one is the optimal trial.
            native |= {"text": True, "direction": "maximize", "value": "last"}
        return native | ({"target": objective["goal"]} if objective.get("goal") is not None else {})

    def _algorithm(self, spec: Json) -> Json:
        at = "spec.algorithm"
        section = self._mapping(spec, "algorithm", "spec")
        self._only(section, at, ("algorithmName", "algorithmSettings"))
        name = section.get("algorithmName")
        if not isinstance(name, str) or name not in ALGORITHMS:
            message = (
                "must be specified" if name is None else f"unknown algorithm name {shown(name)}"
            )
            meant = meant_by(str(name), ALGORITHMS)
            cure = f"write {', '.join(ALGORITHMS)}" if meant is None else f"did you mean {meant}?"
            self._problems.add(f"{at}.algorithmName", f"{message}; {cure}")
            return {}
        algorithm = ALGORITHMS[name]
        native: Json = {"name": algorithm.name}
        settings = dict(algorithm.settings) | self._settings(
            section, at, f"{at}.settings", name, algorithm.takes
        )
        if "seed" in settings:
            native["seed"] = settings.pop("seed")
        return native | ({"settings": settings} if settings else {})

    def _settings(
        self,
        section: Json,
        at: str,
        native_at: str,
        algorithm: str,
        takes: Mapping[str, KatibSetting],
    ) -> Json:
        """Return the settings under their native names. Katib writes all of them as text."""
        native: Json = {}
        names: set[str] = set()
        unused: dict[str, str] = {}
        for i, assignment in enumerate(self._optional(section, "algorithmSettings", at)):
            below = f"{at}.algorithmSettings[{i}]"
            key, value = self._pair(assignment, "name", "value")
            setting = takes.get(key) if isinstance(key, str) else None
            if setting is None:
                cure = f"write {', '.join(takes)}" if takes else "remove it"
                self._problems.add(
                    below, f"unknown setting {shown(key)} for algorithm {algorithm}; {cure}"
                )
            elif key in names:
                self._problems.add(below, f"{key} occurs twice; remove one")
            elif not isinstance(value, str):
                self._problems.add(
                    f"{below}.value", f"expected text, got {shown(value)}; write it in quotes"
                )
            else:
                try:
                    parsed = taken(setting, value)
                except ValueError as error:
                    self._problems.add(f"{below}.value", f"{error} in quotes, got {shown(value)}")
                    continue
                if setting.to:
                    self._file.places[f"{native_at}.{setting.to}"] = below
                    if parsed is not None:
                        native[setting.to] = parsed
                else:
                    unused[str(key)] = below
            if isinstance(key, str):
                names.add(key)
        if unused:
            place = next(iter(unused.values())) if len(unused) == 1 else f"{at}.algorithmSettings"
            have = "has" if len(unused) == 1 else "have"
            self.warnings.append(
                f"{place}: {', '.join(unused)} {have} no effect here: {algorithm} has its own rule "
                f"for {'it' if len(unused) == 1 else 'them'}"
            )
        return native

    def _fidelity(self, algorithm: Json, parameters: Json) -> Json:
        """Return hyperband's fidelity, whose resource is a parameter in Katib but not natively."""
        if algorithm.get("name") != "hyperband":
            return {}
        settings = algorithm.pop("settings", {})
        at = "spec.algorithm.algorithmSettings"
        if "max" not in settings or "parameter" not in settings:
            self._problems.add(at, "r_l and resource_name must be set")
            return {}
        resource, max_resource, eta = settings["parameter"], settings["max"], settings.get("eta", 3)
        if resource not in parameters:
            self._problems.add(
                at,
                f"value of resource_name setting must be in parameters; {shown(resource)} is not",
            )
            return {}
        if parameters.pop(resource).get("type", "int") != "int":
            self._problems.add(at, f"{resource}, of resource_name, must have parameterType: int")
        self._file.places["spec.fidelity.max"] = self._file.places["spec.algorithm.settings.max"]
        fidelity = Fidelity.of_resource(resource, max_resource, eta)
        return {
            "fidelity": {
                "parameter": resource,
                "min": fidelity.min,
                "max": fidelity.max,
                "eta": eta,
            }
        }

    def _trial_dir(self, spec: Json, algorithm: Json) -> str:
        """Return the folder where a trial of pbt expects its checkpoint.

        Return "" for other algorithms.
        """
        if algorithm.get("name") != "pbt":
            return ""
        listed = self._optional(spec["algorithm"], "algorithmSettings", "spec.algorithm")
        names = [setting.get("name") for setting in listed if isinstance(setting, dict)]
        if missing := [name for name in ALGORITHMS["pbt"].required if name not in names]:
            message = f"Required params missing: {', '.join(missing)}"
            self._problems.add("spec.algorithm.algorithmSettings", message)
        return str(algorithm["settings"].pop(TRIAL_DIR, ""))

    def _check_grid(self, algorithm: Json, parameters: Json) -> None:
        """Refuse a grid over a float without a step, in Katib's words: its file has no `points`."""
        for name, domain in parameters.items() if algorithm.get("name") == "grid" else ():
            if domain.get("type") == "float" and "step" not in domain:
                at = self._file.places[f"spec.parameters.{name}"]
                message = 'must be specified for grid; write a number in quotes, such as "0.1"'
                self._problems.add(f"{at}.feasibleSpace.step", message)

    def _early_stopping(self, spec: Json) -> Json:
        at = "spec.earlyStopping"
        if spec.get("earlyStopping") is None:
            return {}
        early_stopping = self._mapping(spec, "earlyStopping", "spec")
        self._only(early_stopping, at, ("algorithmName", "algorithmSettings"))
        name = early_stopping.get("algorithmName")
        if name != "medianstop":
            self._problems.add(
                f"{at}.algorithmName", f"unknown algorithm name {shown(name)}; write medianstop"
            )
            return {}
        defaults = {MEDIAN_STOPPING[key].to: value for key, value in MEDIAN_DEFAULTS.items()}
        settings = self._settings(early_stopping, at, "spec.pruning", name, MEDIAN_STOPPING)
        return {"pruning": {"name": "median", **defaults, **settings}}

    def _counts(self, spec: Json) -> Json:
        max_trials = self._count(spec, "maxTrialCount", 1)
        parallel = self._count(spec, "parallelTrialCount", 1)
        failed = self._count(spec, "maxFailedTrialCount", 0)
        for key, count in (("parallelTrialCount", parallel), ("maxFailedTrialCount", failed)):
            if max_trials is not None and count is not None and count > max_trials:
                self._problems.add(
                    f"spec.{key}",
                    f"should be less than or equal to spec.maxTrialCount, {max_trials}",
                )
        # In Katib, 0 fails an experiment at the first failed trial,
        # and a missing count never fails it.
        failures = "none" if failed is None else max(failed, 1)
        budget = {"trials": max_trials or "none", "failedTrials": failures}
        default_parallel = min(_DEFAULT_PARALLEL, max_trials or _DEFAULT_PARALLEL)
        return {"parallelism": parallel or default_parallel, "budget": budget}

    def _count(self, spec: Json, key: str, least: int) -> int | None:
        count = spec.get(key)
        if count is None:
            return None
        if isinstance(count, bool) or not isinstance(count, int) or count < least:
            self._problems.add(
                f"spec.{key}", f"expected a whole number from {least}, got {shown(count)}"
            )
            return None
        return count

    def _namespace(self) -> str:
        metadata = self._data.get("metadata")
        named = metadata.get("namespace") if isinstance(metadata, dict) else None
        return str(named or "default")

    def _parameters(self, spec: Json) -> Json:
        native: Json = {}
        for i, parameter in enumerate(self._list(spec, "parameters", "spec")):
            at = f"spec.parameters[{i}]"
            domain = self._add_parameter(parameter, at, native, "spec.parameters")
            for key in domain.keys() - {"type"}:
                place = f"{at}.feasibleSpace.{_OF_SPACE.get(key, key)}"
                self._file.places[f"spec.parameters.{parameter['name']}.{key}"] = place
        return native


def _algorithm_name(spec: Json) -> Any:  # Any: any of YAML's types
    section = spec.get("algorithm")
    return section.get("algorithmName") if isinstance(section, dict) else None


def _split(parameters: Json) -> Iterator[str]:
    """Yield the placeholders of parameters with a value that a shell splits, or drops."""
    for name, domain in parameters.items():
        values = domain.get("values", ())
        if any(isinstance(value, str) and len(value.split()) != 1 for value in values):
            yield "${" + name + "}"


def _given(value: Any) -> Any:  # Any: any of YAML's types
    """Return the data without the keys that Go reads as absent: of null, and of an empty text."""
    if isinstance(value, dict):
        return {
            key: each if key in _AS_WRITTEN else _given(each)
            for key, each in value.items()
            if each is not None and each != ""
        }
    return [_given(each) for each in value] if isinstance(value, list) else value
