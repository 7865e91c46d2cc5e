"""The trial template of Katib's file: an object of a cluster, or a process for the primary
container of a Job.

Templates are in the file, or in a ConfigMap. Katib's placeholders become native ones; its
conditions in GJSON become conditions by type or by field.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import Any

from controller.core.model import RETAIN
from controller.core.substitute import TRIAL_NAME, literal
from controller.spec.katib_collectors import AT as COLLECTOR
from controller.spec.katib_collectors import CustomCollector
from controller.spec.katib_section import Json, KatibFile, KatibSectionReader, shown
from controller.spec.problems import NoConfigMap, SpecErrors
from controller.spec.yaml_text import parse, plain_scalar

_PLACEHOLDER = re.compile(r"\$\{trialParameters\.([^{}]*)\}")
# A word whose quotes the shell removes that Katib puts around the command.
_OF_COMMAND = re.compile(r"\.(?:command|args)\[\d+\]$")
# Where Kubernetes takes text only, in containers of any kind.
_TEXT = re.compile(r"\.containers\[\d+\]\.(?:(?:command|args)\[\d+\]|env\[\d+\]\.value)$")
_LIST = re.compile(r"\.containers\[\d+\]\.(?:command|args)$")
_QUOTED = re.compile(
    r"""([^\s"']*)(?:"(?P<parameter>\$\{trialParameters\.[^{}]*\})"|'(?P<text>[^']*)')"""
)
# What the shell reads of a word without quotes. `$(NAME)` is for Kubernetes,
# and a word like `(64,32)` is an error in Katib.
_FOR_A_SHELL = re.compile(r"[\s;&|<>`\\\"']|\$[A-Za-z_{]")
_ARGUMENT = re.compile(r"\$\{?[@*#0-9]")
_SHELLS = (["sh", "-c"], ["bash", "-c"])
# What Kubernetes expands in commands and environment variables, and `${`,
# which this project's files escape.
_EXPANDED = re.compile(r"(?P<escaped>\$\$)\{?|\$\((?P<name>[^)]*)\)|\$\{")
_METADATA = re.compile(r"\$\{trialSpec\.([A-Za-z]+)(?:\[([^\]]*)\])?\}")
# Conditions in GJSON. `status.conditions.#(type=="Complete")#|#(status=="True")#`,
# in either order, and `status.[@this].#(phase=="Succeeded")#`, which makes a list
# of one mapping. The last # is optional.
_TYPE, _STATUS = (rf"""#\({key}==["']?(?P<{key}>\w+)["']?\)""" for key in ("type", "status"))
_CONDITIONS = (
    re.compile(rf"status\.conditions\.{_TYPE}#\|{_STATUS}#?"),
    re.compile(rf"status\.conditions\.{_STATUS}#\|{_TYPE}#?"),
)
_KEYS = r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+)*"
_VALUE = r'(?:"(?P<text>[^"]*)"|(?P<plain>[^"()]+))'
_FIELD = re.compile(rf"(?P<above>{_KEYS})\.\[@this\]\.#\((?P<key>{_KEYS})=={_VALUE}\)#?")
# Kinds whose conditions Katib fills in, in templates that are in the file.
_TEMPLATE_KEYS = (
    "trialSpec",
    "configMap",
    "trialParameters",
    "primaryContainerName",
    "primaryPodLabels",
    "retain",
    "successCondition",
    "failureCondition",
)
_GO_TEMPLATE = "goTemplate"  # of kubeflow.org/v1alpha3
_WITH_CONDITIONS = ("Job", "TFJob", "PyTorchJob", "XGBoostJob", "MPIJob", "TrainJob")
# The volume of a Custom collector, as in Katib.
_SHARED = "metrics-volume"
_CHECKPOINT = "$(TUNER_CHECKPOINT_DIR)"  # Kubernetes expands it in command and args
# The fields of a Job of Kubernetes 1.35, of its pod template and of its pods.
# Katib reads a Job strictly, too.
_JOB = (
    "activeDeadlineSeconds backoffLimit backoffLimitPerIndex completionMode completions managedBy "
    "manualSelector maxFailedIndexes parallelism podFailurePolicy podReplacementPolicy selector "
    "successPolicy suspend template ttlSecondsAfterFinished"
)
_TEMPLATE = "metadata spec"
_POD_SPEC = "spec.template.spec"
_POD = (
    "activeDeadlineSeconds affinity automountServiceAccountToken containers dnsConfig dnsPolicy "
    "enableServiceLinks ephemeralContainers hostAliases hostIPC hostNetwork hostPID hostUsers "
    "hostname hostnameOverride imagePullSecrets initContainers nodeName nodeSelector os overhead "
    "preemptionPolicy priority priorityClassName readinessGates resourceClaims resources "
    "restartPolicy runtimeClassName schedulerName schedulingGates securityContext serviceAccount "
    "serviceAccountName setHostnameAsFQDN shareProcessNamespace subdomain "
    "terminationGracePeriodSeconds tolerations topologySpreadConstraints volumes workloadRef"
)
_RESOURCES = {"cpu": "cpu", "memory": "memory", "nvidia.com/gpu": "gpu"}
_CONTAINER = ("name", "image", "command", "args", "env", "resources")
# Fields of a container that do not change what its program computes.
_WITHOUT_EFFECT = (
    "imagePullPolicy",
    "livenessProbe",
    "ports",
    "readinessProbe",
    "resizePolicy",
    "securityContext",
    "startupProbe",
    "stdin",
    "stdinOnce",
    "terminationMessagePath",
    "terminationMessagePolicy",
    "tty",
)
_ON_CLUSTER = "or run with --runtime kubernetes"
_NOT_ON_THIS_MACHINE = {
    "volumeMounts": "volumes are not mounted on this machine; give the command a path that is "
    f"there, {_ON_CLUSTER}",
    "volumeDevices": f"this machine attaches no volumes; remove it, {_ON_CLUSTER}",
    "envFrom": f"is not read on this machine; write the variables out under env, {_ON_CLUSTER}",
    "workingDir": "trials start in the file's folder on this machine; write paths from there, "
    f"{_ON_CLUSTER}",
    "lifecycle": "its commands do not run on this machine; run them in the container's command, "
    f"{_ON_CLUSTER}",
}
# Fields of a Job and of its pods that change what a trial computes, where a process on this machine
# cannot do the same.
_NOT_A_PROCESS = (
    (
        _POD_SPEC,
        "initContainers",
        f"they do not run on this machine; do their work in the container's command, {_ON_CLUSTER}",
    ),
    (
        _POD_SPEC,
        "hostAliases",
        f"names of hosts are those of this machine; remove it, {_ON_CLUSTER}",
    ),
    (
        _POD_SPEC,
        "resourceClaims",
        f"this machine has no such devices; remove it, {_ON_CLUSTER}",
    ),
    (
        "spec",
        "suspend",
        f"a trial that waits for someone to start it never ends; remove it, {_ON_CLUSTER}",
    ),
)
_DEADLINE = "activeDeadlineSeconds"
# Numbers of pods of a Job. A trial on this machine is one process.
_PODS = ("parallelism", "completions")


@dataclass(frozen=True, slots=True)
class ConfigMaps:
    """The ConfigMaps in the experiment's own file, and `of_cluster`, which reads the cluster's."""

    in_file: Sequence[Json] = ()
    of_cluster: Callable[[str, str], Mapping[str, str]] | None = None

    def text(self, namespace: str, name: str, key: str, *, takes_templates: bool) -> str:
        """Return the text under a key of a ConfigMap. Raises NoConfigMap."""
        for config_map in self.in_file:
            match config_map:
                case {"metadata": {"name": found} as metadata} if found == name:
                    if metadata.get("namespace", namespace) == namespace:
                        return self._value(config_map.get("data"), namespace, name, key)
        if not takes_templates or self.of_cluster is None:
            cure = (
                "add it to this file as another document, or run with --runtime kubernetes to "
                "read the cluster's"
            )
            raise NoConfigMap(f"the ConfigMap {namespace}/{name} is not in this file; {cure}")
        return self._value(self.of_cluster(namespace, name), namespace, name, key)

    def _value(self, data: object, namespace: str, name: str, key: str) -> str:
        keys = data if isinstance(data, Mapping) else {}
        text = keys.get(key)
        if not isinstance(text, str):
            content = f"it has {', '.join(map(str, keys))}" if keys else "it has no data"
            raise NoConfigMap(
                f"the ConfigMap {namespace}/{name} has no text under {shown(key)}; {content}"
            )
        return text


class KatibTemplateReader(KatibSectionReader):
    """Reads `spec.trialTemplate`.

    namespace: The experiment's own.
    takes_templates: Trials are objects of a cluster, not processes.
    through_shell: Katib's collector runs the command in a shell.
    split: Parameters with values that a shell splits into words, or drops.
    trial_dir: Where a trial of pbt expects its checkpoint; "" elsewhere.
    beside: A container that collects the trial's metrics, on a cluster.
    """

    def __init__(
        self,
        file: KatibFile,
        config_maps: ConfigMaps,
        *,
        namespace: str,
        takes_templates: bool,
        through_shell: bool,
        split: frozenset[str],
        trial_dir: str,
        beside: CustomCollector | None,
    ) -> None:
        super().__init__(file)
        self._config_maps = config_maps
        self._namespace = namespace
        self._takes_templates = takes_templates
        self._through_shell = through_shell
        self._split = split
        self._trial_dir = trial_dir
        self._beside = beside
        self._primary: object = None  # the name of the trial's container
        # The native placeholder or the text of each of the trialParameters, and which are used.
        self._names: dict[str, str] = {}
        self._used: set[str] = set()

    def native(self, spec: Json, parameters: set[str]) -> Json:
        """Return the native `trial`."""
        if self._beside is not None and not self._takes_templates:
            cure = (
                "run with --runtime kubernetes, or use StdOut or File, or Push with a trial "
                "that reports by itself"
            )
            self._problems.add(
                f"{COLLECTOR}.collector.kind",
                f"Custom is a container, which needs a cluster; {cure}",
            )
            return {}
        at = "spec.trialTemplate"
        template = self._mapping(spec, "trialTemplate", "spec")
        self._only(template, at, (*_TEMPLATE_KEYS, _GO_TEMPLATE))
        if not isinstance(template.get("retain", False), bool):
            self._problems.add(
                f"{at}.retain", f"expected true or false, got {shown(template['retain'])}"
            )
        job = self._template(template, at)
        if not job:
            return {}
        self._primary = template.get("primaryContainerName")
        if not isinstance(self._primary, str):
            self._problems.add(
                f"{at}.primaryContainerName", "must be specified; write the name of a container"
            )
        for key, pattern in (("successCondition", "Complete"), ("failureCondition", "Failed")):
            if template.get(key) is None and (
                "configMap" in template or job.get("kind") not in _WITH_CONDITIONS
            ):
                example = f'status.conditions.#(type=="{pattern}")#|#(status=="True")#'
                self._problems.add(
                    f"{at}.{key}", f"must be specified for this template, such as {example}"
                )
        self._check_primary(job)
        self._read_names(template, job, parameters)
        if self._through_shell:
            job = self._with_shell(job)
        ends = {
            key: self._condition(template, theirs, at)
            for key, theirs in (("success", "successCondition"), ("failure", "failureCondition"))
            if template.get(theirs) is not None
        }
        if self._takes_templates:
            if self._beside is not None:
                job = self._with_collector(job, self._beside)
            claim = ""
            if self._trial_dir:
                job, claim = self._with_checkpoints(job)
            checkpoints = {"checkpoints": {"claim": claim}} if claim else {}
            return self._object(template, job) | ends | checkpoints
        if (job.get("apiVersion"), job.get("kind")) != ("batch/v1", "Job"):
            cure = "run it with --runtime kubernetes, or write a batch/v1 Job"
            self._problems.add(f"{at}.trialSpec.kind", f"{job.get('kind')} needs a cluster; {cure}")
            return {}
        return self._container(job)

    def _read_names(self, template: Json, job: Json, parameters: set[str]) -> None:
        at, names = "spec.trialTemplate", self._names
        references: set[str] = set()
        for i, parameter in enumerate(self._list(template, "trialParameters", at)):
            below = f"{at}.trialParameters[{i}]"
            name, reference = self._pair(parameter, "name", "reference")
            if not isinstance(name, str) or not isinstance(reference, str):
                self._problems.add(below, "must have a name and a reference")
            elif not name or not reference or "{" in name or "}" in name:
                self._problems.add(
                    below, f"{shown(name)} is not a name, or has no reference; a name has no braces"
                )
            elif name in names or reference in references:
                self._problems.add(below, "its name or reference occurs twice; remove one")
            elif reference.startswith("${trialSpec."):
                names[name] = self._of_metadata(reference, job, f"{below}.reference")
            elif parameters and reference not in parameters:
                # Without parameters, a problem says so already.
                self._problems.add(
                    f"{below}.reference", f"{reference} is not a parameter of this file"
                )
                names[name] = ""
            else:
                names[name] = "${" + reference + "}"
                self._file.placeholders[names[name]] = f"${{trialParameters.{name}}}"
            references.add(str(reference))

    def _of_metadata(self, reference: str, job: Json, at: str) -> str:
        """Return the text that a reference to the template's own metadata stands for."""
        match = _METADATA.fullmatch(reference)
        field, key = (match[1], match[2]) if match is not None else ("", None)
        metadata = job.get("metadata")
        match field, key:
            case "Kind", None:
                return str(job.get("kind", ""))
            case "APIVersion", None:
                return str(job.get("apiVersion", ""))
            case "Namespace", None:
                return self._namespace
            case (("Labels" | "Annotations"), str()):
                of = metadata.get(field.lower()) if isinstance(metadata, dict) else None
                if isinstance(of, dict) and isinstance(of.get(key), str):
                    return literal(str(of[key]))
                self._problems.add(
                    at, f"the template's metadata.{field.lower()} has no {shown(key)}"
                )
            case "Name", None:
                return "${" + TRIAL_NAME + "}"
            case _:
                self._problems.add(
                    at,
                    f"{reference} is not one of Name, Namespace, Kind, APIVersion, Labels, "
                    "Annotations",
                )
        return ""

    def _condition(self, template: Json, key: str, at: str) -> Json:
        condition = native_condition(template[key]) if isinstance(template[key], str) else None
        if condition is None:
            examples = (
                'status.conditions.#(type=="Complete")#|#(status=="True")# or '
                'status.[@this].#(phase=="Failed")#'
            )
            self._problems.add(
                f"{at}.{key}",
                f"expected a condition such as {examples}, got {shown(template[key])}",
            )
            return {}
        return condition

    def _template(self, template: Json, at: str) -> Json:
        """Return the trial's object, from the file or from a ConfigMap.

        Empty if it has problems.
        """
        if _GO_TEMPLATE in template and not template.keys() & {"trialSpec", "configMap"}:
            cure = (
                "write primaryContainerName, trialParameters and, in place of this, trialSpec, "
                "as in examples/katib/random.yaml"
            )
            message = f"Katib has not read it since 0.10.1; {cure}"
            self._problems.add(f"{at}.{_GO_TEMPLATE}", message, at_key=True)
            return {}
        if template and ("trialSpec" in template) == ("configMap" in template):
            self._problems.add(
                at,
                "has trialSpec or configMap, exactly one of them; write the object under trialSpec",
            )
            return {}
        if "configMap" in template:
            place, job = f"{at}.configMap", self._template_in_config_map(template, at)
        else:
            place, job = f"{at}.trialSpec", self._mapping(template, "trialSpec", at)
        for key in ("apiVersion", "kind"):
            if job and not isinstance(job.get(key), str):
                self._problems.add(f"{place}.{key}", "must be specified in the template")
                job = {}
        metadata = job.get("metadata")
        if not isinstance(metadata, dict | None):
            message = f"expected a mapping, got {shown(metadata)}"
            self._problems.add(f"{place}.metadata", message)
        for key in ("name", "namespace"):
            if isinstance(metadata, dict) and key in metadata:
                self._problems.add(f"{place}.metadata.{key}", "each trial gets its own; remove it")
        if isinstance(metadata, dict):
            # Katib names the object, so the API server reads no prefix of a name.
            metadata = {key: value for key, value in metadata.items() if key != "generateName"}
            job = {**job, "metadata": metadata}
        if (job.get("apiVersion"), job.get("kind")) == ("batch/v1", "Job"):
            self._check_fields(job, place)
        return job

    def _check_fields(self, job: Json, at: str) -> None:
        """Refuse fields that a Job or its pods do not have."""
        part: object = job
        for key, owner, fields in (
            ("spec", "Job", _JOB),
            ("template", "pod template", _TEMPLATE),
            ("spec", "pod", _POD),
        ):
            part = part.get(key) if isinstance(part, dict) else None
            at = f"{at}.{key}"
            for name in part if isinstance(part, dict) else ():
                if name not in fields.split():
                    self._problems.add(
                        f"{at}.{name}", f"is not a field of a {owner}; remove it", at_key=True
                    )
        if isinstance(part, dict) and part.get("restartPolicy") == "Always":
            message = "a Job's pods have Never or OnFailure; write restartPolicy: Never"
            self._problems.add(f"{at}.restartPolicy", message)

    def _template_in_config_map(self, template: Json, at: str) -> Json:
        at = f"{at}.configMap"
        source = self._mapping(template, "configMap", at.rpartition(".")[0])
        keys = ("configMapNamespace", "configMapName", "templatePath")
        self._only(source, at, keys)
        missing_keys = [
            key for key in keys if not isinstance(source.get(key), str) or not source[key]
        ]
        for key in missing_keys:
            self._problems.add(f"{at}.{key}", "must be specified")
        if missing_keys:
            return {}
        namespace, name, path = (source[key] for key in keys)
        try:
            data, _ = parse(
                self._config_maps.text(
                    namespace, name, path, takes_templates=self._takes_templates
                ),
                f"{name}: {path}",
            )
        except NoConfigMap as error:
            self._problems.add(at, str(error))
            return {}
        except SpecErrors as error:
            reasons = "; ".join(
                f"line {located.mark.line}: {located.message}" for located in error.located[:3]
            )
            self._problems.add(
                at,
                f"the template {path!r} of the ConfigMap {namespace}/{name} is not YAML: {reasons}",
            )
            return {}
        if not isinstance(data, dict):
            self._problems.add(
                at,
                f"the template {path!r} of the ConfigMap {namespace}/{name} is not an object",
            )
            return {}
        return data

    def _with_collector(self, job: Json, beside: CustomCollector) -> Json:
        """Return the Job with the collector's container, as Katib's webhook adds it.

        It may look at the trial's processes, and see its files.
        The pod ends when both containers have ended.
        """
        job = copy.deepcopy(job)
        kind, pod = job.get("kind"), _at(job, _POD_SPEC)
        containers = pod.get("containers")
        if kind != "Job" or not isinstance(containers, list):
            cure = "write a batch/v1 Job, or put it into the template and write kind: Push"
            self._problems.add(
                COLLECTOR, f"Custom adds a container to a Job, and this is a {kind}; {cure}"
            )
            return job
        container = copy.deepcopy(beside.container)
        taken = [each.get("name") for each in containers if isinstance(each, dict)]
        if container.get("name") in taken:
            self._problems.add(
                f"{COLLECTOR}.collector.customCollector.name",
                f"the template has a container {container['name']} already; write another name",
            )
        if beside.folder:
            mount = {"name": _SHARED, "mountPath": beside.folder}
            for target in (
                container,
                *(c for c in containers if isinstance(c, dict) and c.get("name") == self._primary),
            ):
                target["volumeMounts"] = [*(target.get("volumeMounts") or ()), mount]
            pod["volumes"] = [*(pod.get("volumes") or ()), {"name": _SHARED, "emptyDir": {}}]
        containers.append(container)
        pod["shareProcessNamespace"] = True
        return job

    def _with_checkpoints(self, job: Json) -> tuple[Json, str]:
        """Return a Job of pbt and its checkpoints' claim: of the volume that it mounts for them.

        In Katib, each trial mounts a folder of its own there. Here that folder has another path,
        which a variable has.
        """
        job, folder = copy.deepcopy(job), self._trial_dir
        for container, mount, claim in _claims(job):
            if container.get("name") == self._primary and mount["mountPath"].rstrip("/") == folder:
                container["volumeMounts"].remove(mount)
                for key in container.keys() & {"command", "args"}:
                    container[key] = [
                        str(word).replace(folder, _CHECKPOINT) for word in container[key] or ()
                    ]
                return job, claim
        cure = "mount the volume of a persistentVolumeClaim there in the primary container of a Job"
        message = f"has no volume for the checkpoints at suggestion_trial_dir, {folder}; {cure}"
        self._problems.add("spec.trialTemplate.trialSpec", message)
        return job, ""

    def _with_shell(self, data: Any) -> Any:  # Any: any of YAML's types
        """Return the object whose primary containers have the command that Katib makes of theirs.

        Katib joins the words of a command with spaces, for a shell. A command from which the shell
        makes the same words stays.
        """
        if isinstance(data, list):
            return [self._with_shell(item) for item in data]
        if not isinstance(data, dict):
            return data
        data = {key: self._with_shell(item) for key, item in data.items()}
        words = _words(data) if data.get("name") == self._primary else []
        if words[:2] in _SHELLS:
            shell, script = words[:2], words[2:]
            # A script that reads arguments has them as it is. Katib breaks it.
            is_same = len(script) < 2 or _ARGUMENT.search(script[0]) is not None
        else:
            shell, script = _SHELLS[0], words
            is_same = not self._needs_shell(words)
        if is_same:
            return data
        others = {key: item for key, item in data.items() if key != "args"}
        return {**others, "command": [*shell, " ".join(script)]}

    def _needs_shell(self, words: list[str]) -> bool:
        """Return whether a shell makes other words of these.

        The script after `-c` does not count: without quotes of its own, Katib cannot run it.
        """
        for before, word in pairwise(["", *words]):
            if before == "-c" or _QUOTED.fullmatch(word):
                continue
            if _FOR_A_SHELL.search(_PLACEHOLDER.sub("", word)):
                return True
            if any(self._names.get(name) in self._split for name in _PLACEHOLDER.findall(word)):
                return True
        return False

    def _object(self, section: Json, job: Json) -> Json:
        """Return a trial that is an object of a cluster."""
        template = self._filled_data(job, "spec.trialTemplate.trialSpec")
        self._check_used()
        if section.get("retain") is True:
            annotations = {**_at(template, "metadata.annotations"), RETAIN: "true"}
            template["metadata"] = {**_at(template, "metadata"), "annotations": annotations}
        primary: Json = {}
        if isinstance(labels := section.get("primaryPodLabels"), dict) and labels:
            primary["labels"] = labels
        if isinstance(self._primary, str):
            primary["container"] = self._primary
        queue = _at(template, "metadata.labels").get("kueue.x-k8s.io/queue-name")
        return {
            "template": template,
            **({"primary": primary} if primary else {}),
            # It decides when a trial starts.
            **({"queue": queue} if isinstance(queue, str) else {}),
        }

    def _filled_data(self, data: object, at: str) -> Any:  # Any: any of YAML's types
        if isinstance(data, str):
            if _LIST.search(at):
                self._problems.add(at, "expected a list")
            return self._filled(data, at)
        if isinstance(data, list):
            return [self._filled_data(item, f"{at}[{i}]") for i, item in enumerate(data)]
        if isinstance(data, dict):
            return {key: self._filled_data(item, f"{at}.{key}") for key, item in data.items()}
        if data is not None and _TEXT.search(at):
            self._problems.add(at, f"expected text, got {shown(data)}; write it in quotes")
        return data

    def _check_used(self) -> None:
        for name in self._names.keys() - self._used:
            self._problems.add(
                "spec.trialTemplate.trialParameters",
                f"{name} is not used in the template; write ${{trialParameters.{name}}} there, or "
                "remove it here",
            )

    def _check_primary(self, job: Json) -> None:
        """Check that a Job has its primary container; other kinds differ in their form."""
        primary = self._primary
        is_job = (job.get("apiVersion"), job.get("kind")) == ("batch/v1", "Job")
        if not is_job or not isinstance(primary, str):
            return
        if all(container.get("name") != primary for container in _containers_of(job)):
            path = "spec.trialTemplate.primaryContainerName"
            self._problems.add(
                path, f"{shown(primary)} is not a container of the Job; write the name of one"
            )

    def _container(self, job: Json) -> Json:
        at = f"spec.trialTemplate.trialSpec.{_POD_SPEC}.containers"
        containers = _containers_of(job)
        matching = [(i, c) for i, c in enumerate(containers) if c.get("name") == self._primary]
        if not matching:
            return {}  # a problem says so
        index, container = matching[0]
        for i in range(len(containers)):
            if i != index:
                self._problems.add(
                    f"{at}[{i}]",
                    "only the primary container runs on this machine; remove the others",
                )
        self._check_process(job)
        for key in container:
            if key not in (*_CONTAINER, *_WITHOUT_EFFECT):
                problem = _NOT_ON_THIS_MACHINE.get(key, "is not supported; remove it")
                self._problems.add(f"{at}[{index}].{key}", problem, at_key=True)
        env: dict[str, str] = {}
        # Katib adds it to the container.
        known = {"KATIB_TRIAL_NAME": "${" + TRIAL_NAME + "}"}
        for i, variable in enumerate(self._optional(container, "env", f"{at}[{index}]")):
            below = f"{at}[{index}].env[{i}]"
            if (
                not isinstance(variable, dict)
                or not isinstance(variable.get("name"), str)
                or "valueFrom" in variable
            ):
                self._problems.add(below, "only a name with a value is read; write the value out")
            else:
                env[variable["name"]] = self._filled(variable.get("value", ""), below, known | env)
        words = {
            key: [
                self._filled(word, f"{at}[{index}].{key}[{i}]", known | env)
                for i, word in enumerate(self._list(container, key, f"{at}[{index}]"))
            ]
            for key in ("command", "args")
            if container.get(key) is not None
        }
        for key in (*words, "env", "image"):
            self._file.places[f"spec.trial.{key}"] = f"{at}[{index}].{key}"
        if "command" not in words:
            self._problems.add(
                f"{at}[{index}].command", "is missing; a local trial cannot ask the image for it"
            )
        if all(isinstance(container.get(key), list | None) for key in words):
            self._check_used()
        if self._trial_dir:
            for key in words:
                del self._file.places[f"spec.trial.{key}"]
            command_line = list(chain.from_iterable(words.values()))
            words = {"command": _with_checkpoint(command_line, self._trial_dir)}
        # One of a wrong type is refused as that of `spec.trial.image`.
        image = {"image": container["image"]} if container.get("image") is not None else {}
        resources = self._resources(container, f"{at}[{index}].resources")
        return {**words, "env": env, **image, **resources, **self._times(job)}

    def _check_process(self, job: Json) -> None:
        """Refuse fields that a local process cannot follow and that change the computation."""
        at = "spec.trialTemplate.trialSpec"
        for path, key, message in _NOT_A_PROCESS:
            if _at(job, path).get(key):
                self._problems.add(f"{at}.{path}.{key}", message, at_key=True)
        for key in _PODS:
            if _at(job, "spec").get(key, 1) not in (0, 1, None):
                message = f"a trial is one process on this machine; write {key}: 1, {_ON_CLUSTER}"
                self._problems.add(f"{at}.spec.{key}", message)

    def _resources(self, container: Json, at: str) -> Json:
        """Return the limits, or the requests where there is no limit."""
        resources = container.get("resources")
        if resources is None:
            return {}
        if not isinstance(resources, dict):
            self._problems.add(at, "expected a mapping with limits or requests")
            return {}
        kind = "limits" if resources.get("limits") else "requests"
        amounts, at = resources.get(kind) or {}, f"{at}.{kind}"
        if not isinstance(amounts, dict):
            self._problems.add(at, f"expected a mapping, got {shown(amounts)}")
            return {}
        native: Json = {}
        for key, amount in amounts.items():
            if key == "ephemeral-storage":
                # A limit of the disk does not change what the trial computes.
                continue
            if key not in _RESOURCES:
                self._problems.add(
                    f"{at}.{key}", f"this machine cannot give {key}; remove it, {_ON_CLUSTER}"
                )
                continue
            native_key = _RESOURCES[key]
            self._file.places[f"spec.trial.resources.{native_key}"] = f"{at}.{key}"
            is_number = key != "memory"
            native[native_key] = self._amount(amount, f"{at}.{key}") if is_number else amount
        return {"resources": native} if native else {}

    def _times(self, job: Json) -> Json:
        """Return the native keys of a Job's deadline and of its pods' grace period."""
        deadlines = [self._seconds(job, path, _DEADLINE, least=1) for path in ("spec", _POD_SPEC)]
        given = [each for each in deadlines if each is not None]
        grace = self._seconds(job, _POD_SPEC, "terminationGracePeriodSeconds", least=0)
        return {
            **({"timeout": f"{min(given)}s"} if given else {}),
            **({} if grace is None else {"gracePeriod": f"{grace}s"}),
        }

    def _seconds(self, job: Json, path: str, key: str, *, least: int) -> int | None:
        seconds = _at(job, path).get(key)
        if type(seconds) is int and seconds >= least:
            return seconds
        if seconds is not None:
            message = f"expected a whole number of seconds from {least}, got {shown(seconds)}"
            self._problems.add(f"spec.trialTemplate.trialSpec.{path}.{key}", message)
        return None

    def _amount(self, amount: object, at: str) -> float | None:
        """Return an amount, which Kubernetes writes as 0.5 or 500m, for example."""
        text = str(amount)
        try:
            return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
        except ValueError:
            self._problems.add(at, f"expected a number, got {shown(amount)}")
            return None

    def _filled(self, text: object, at: str, env: Mapping[str, str] | None = None) -> str:
        """Return the text in this project's syntax. env: replaces `$(NAME)`.

        None where Kubernetes does that.
        """
        of_text = literal if env is None else functools.partial(_expanded, env=env)
        if not isinstance(text, str):
            self._problems.add(at, f"expected text, got {shown(text)}; write it in quotes")
            return ""
        quoted = _QUOTED.fullmatch(text) if _OF_COMMAND.search(at) else None
        if self._through_shell and quoted is not None:
            text = f"{quoted[1]}{quoted['parameter'] or quoted['text'] or ''}"
        parts: list[str] = []
        end = 0
        for match in _PLACEHOLDER.finditer(text):
            if match[1] not in self._names:
                self._problems.add(
                    at, f"{match[0]} is not one of trialParameters; declare it there"
                )
            self._used.add(match[1])
            parts += [of_text(text[end : match.start()]), self._names.get(match[1], "")]
            end = match.end()
        return "".join([*parts, of_text(text[end:])])


def _containers_of(job: Json) -> list[Json]:
    return _mappings(_at(job, _POD_SPEC), "containers")


def _mappings(parent: Json, key: str) -> list[Json]:
    """Return the entries of a list, an empty mapping for one that is none; [] without a list."""
    entries = parent.get(key)
    if not isinstance(entries, list):
        return []
    return [each if isinstance(each, dict) else {} for each in entries]


def _words(container: Json) -> list[str]:
    """Return the command and args; [] without a command, which only the image has then."""
    command, args = container.get("command"), container.get("args") or []
    if not isinstance(command, list) or not command or not isinstance(args, list):
        return []
    words = [*command, *args]
    return words if all(isinstance(word, str) for word in words) else []


def _at(data: Json, path: str) -> Json:
    """Return the mapping at a path of keys; an empty one if there is none."""
    part: object = data
    for key in path.split("."):
        part = part.get(key) if isinstance(part, dict) else None
    return part if isinstance(part, dict) else {}


def _expanded(text: str, env: Mapping[str, str]) -> str:
    """Escape the text, and replace `$(NAME)` and `$$` as Kubernetes does.

    `$$` becomes `$`, and an unknown name stays.
    """

    def expanded(found: re.Match[str]) -> str:
        if found["escaped"]:
            return literal(found[0][1:])
        if found["name"] in env:
            return env[found["name"]]
        return literal(found[0])

    return _EXPANDED.sub(expanded, text)


def _with_checkpoint(words: list[str], folder: str) -> list[str]:
    """Return a command line in which the trial's checkpoint folder takes the place of `folder`.

    A shell fills it in; all text of the words stays in arguments,
    so that the shell reads none of it.
    """
    if not any(folder in word for word in words):
        return words
    texts: list[str] = []
    script: list[str] = []
    for word in words:
        parts = word.split(folder)
        indexes = range(len(texts) + 1, len(texts) + len(parts) + 1)
        script.append(
            '"' + "$TUNER_CHECKPOINT_DIR".join(f"$${{{index}}}" for index in indexes) + '"'
        )
        texts += parts
    return ["sh", "-c", f"exec {' '.join(script)}", "sh", *texts]


def _claims(job: Json) -> Iterator[tuple[Json, Json, str]]:
    """Yield each container of a Job that mounts a claim, with the mount and the claim's name."""
    if job.get("kind") != "Job":
        return
    claims = {}
    for volume in _mappings(_at(job, _POD_SPEC), "volumes"):
        claims[str(volume.get("name"))] = _at(volume, "persistentVolumeClaim").get("claimName")
    for container in _containers_of(job):
        for mount in _mappings(container, "volumeMounts"):
            claim = claims.get(str(mount.get("name")))
            if isinstance(claim, str) and isinstance(mount.get("mountPath"), str):
                yield container, mount, claim


def native_condition(expression: str) -> Json | None:
    """Return the native condition of a GJSON expression of Katib's.

    None for one of another form.
    """
    for pattern in _CONDITIONS:
        if match := pattern.fullmatch(expression):
            return {"type": match["type"], "status": match["status"]}
    if match := _FIELD.fullmatch(expression):
        expected = plain_scalar(match["plain"]) if match["text"] is None else match["text"]
        return {"path": f"{match['above']}.{match['key']}", "equals": expected}
    return None
