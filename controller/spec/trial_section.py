"""The table of the keys under `spec.trial`: what one attempt executes, and what it gets.

Rules between keys are in `rules`.
"""

from __future__ import annotations

import re

from controller.core.substitute import as_text
from controller.spec.cluster_section import (
    AFFINITY,
    ANNOTATIONS,
    CONDITION,
    DNS_NAME,
    FREE_LABELS,
    LABELS,
    SPREAD,
    TOLERATION,
    VOLUME,
)
from controller.spec.fields import (
    FLAG,
    INVALID,
    REQUIRED,
    Key,
    ListOf,
    Number,
    Parsed,
    Schema,
    Text,
    WholeNumber,
    Word,
    describe_value,
    mapping_of,
    refuse,
)
from controller.spec.problems import ProblemCollector
from controller.spec.quantities import (
    AMOUNT_SCHEMA,
    DURATION_SCHEMA,
    format_bytes,
    format_duration,
    parse_bytes,
    parse_cpu,
    parse_duration,
)
from controller.spec.sections import MapOf, Section

# A hundred years. Beyond, the sum with a time is no time any more.
MAX_DURATION_S = 36_500 * 86_400.0
# 1Ei; Kubernetes takes less than eight of them.
MAX_BYTES = 2**60
MAX_CPUS = MAX_GPUS = 1e6
FILE_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
ENV_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
EXTENDED_RESOURCE = r"[a-z0-9.-]+/[A-Za-z0-9_.-]+"
EXTENDED_WORDS = "names with a domain, such as google.com/tpu"
SECRET = re.compile(rf"({DNS_NAME})/([A-Za-z0-9_.-]+)")


def duration(*, above_zero: bool) -> Parsed:
    def read(raw: str | int | float) -> str:
        if not isinstance(raw, str):
            raise ValueError(
                f"{as_text(raw)} has no unit; write {as_text(raw)}s, {as_text(raw)}m or "
                f"{as_text(raw)}h"
            )
        seconds = parse_duration(raw)
        # Not in parse_duration, which also reads stored documents, from before there was a maximum.
        if seconds > MAX_DURATION_S:
            raise ValueError(f"{raw!r} is too long; use at most {format_duration(MAX_DURATION_S)}")
        if above_zero and seconds == 0:
            raise ValueError(
                f"{raw!r} is too short; write a longer one, or remove the key for no limit"
            )
        return format_duration(seconds)

    return Parsed(
        "a duration such as 90s, 30m or 1h30m", read, {"type": "string", "pattern": DURATION_SCHEMA}
    )


def _cpu(raw: str | int | float) -> int | float:
    cores = parse_cpu(raw)
    if not 0 < cores < MAX_CPUS:
        raise ValueError(f"{raw} is not a number of CPUs; write 2, 0.5 or 500m")
    return int(cores) if cores.is_integer() else cores


def _memory(raw: str | int | float) -> str:
    amount = parse_bytes(raw)
    # Not in parse_bytes, which also reads stored documents, from before there was a maximum.
    if amount > MAX_BYTES:
        raise ValueError(f"{as_text(raw)} is more than a machine has; use at most 1Ei")
    return format_bytes(amount)


MEMORY = Parsed(
    "an amount of memory such as 512Mi",
    _memory,
    {"type": ["string", "integer"], "pattern": AMOUNT_SCHEMA},
)
CPU = Parsed(
    "a number of CPUs such as 2 or 500m",
    _cpu,
    {"type": ["number", "string"], "pattern": r"^[0-9.]+m?$"},
)


class CommandWord:
    """An element of a command line. Numbers and booleans become text."""

    expected = "a string or a number"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, str | int | float):
            return refuse(raw, at, problems, self.expected)
        return as_text(raw)

    def schema(self) -> Schema:
        return {"type": ["string", "number", "boolean"]}


class CommandLine:
    def __init__(self, expected: str, least: int) -> None:
        self.expected = expected
        self._list = ListOf(CommandWord(), expected, least)

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, str):
            problems.add(
                at,
                f"expected {self.expected}, got {describe_value(raw)}; write [sh, -c, ...] to have "
                "a shell read it",
            )
            return INVALID
        if self._list.least and isinstance(raw, list) and raw and raw[0] == "":
            problems.add(f"{at}[0]", "'' is not a program; write its name or path")
            return INVALID
        return self._list.take(raw, at, problems)

    def schema(self) -> Schema:
        return self._list.schema()


class EnvValue:
    expected = "a string, a number or {secret: name/key}"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, str | int | float):
            return as_text(raw)
        if not isinstance(raw, dict) or set(raw) != {"secret"}:
            return refuse(raw, at, problems, self.expected)
        secret = raw["secret"]
        if not isinstance(secret, str) or not SECRET.fullmatch(secret):
            problems.add(
                f"{at}.secret", f"{describe_value(secret)} is not a secret's key; write name/key"
            )
            return INVALID
        return {"secret": secret}

    def schema(self) -> Schema:
        secret = {"type": "string", "pattern": f"^{SECRET.pattern}$"}
        reference = {"type": "object", "properties": {"secret": secret}, "required": ["secret"]}
        return {
            "oneOf": [
                {"type": ["string", "number", "boolean"]},
                reference | {"additionalProperties": False},
            ]
        }


class DeviceName:
    """A GPU as in CUDA_VISIBLE_DEVICES. An index may be written as a number or as a string."""

    expected = "the index or UUID of a GPU"
    _UUID = r"(GPU|MIG)-[A-Za-z0-9/-]+"

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= 0:
            return raw
        if isinstance(raw, str) and re.fullmatch(r"[0-9]{1,4}", raw):
            return int(raw)
        if isinstance(raw, str) and re.fullmatch(self._UUID, raw):
            return raw
        problems.add(
            at,
            f"expected {self.expected}, got {describe_value(raw)}; write 0 or GPU-5d5b..., as "
            "nvidia-smi -L shows them",
        )
        return INVALID

    def schema(self) -> Schema:
        return {
            "oneOf": [
                {"type": "integer", "minimum": 0},
                {"type": "string", "pattern": f"^([0-9]{{1,4}}|{self._UUID})$"},
            ]
        }


RESOURCES = Section(
    (
        Key("cpu", CPU, "Cores; enforced on a cluster, advisory locally."),
        Key("memory", MEMORY, "Memory; enforced on a cluster only."),
        Key(
            "gpu",
            Number(0, most=MAX_GPUS),
            "GPUs: `nvidia.com/gpu` on a cluster. Locally, two trials with 0.5 share one.",
            0,
        ),
        Key("ephemeralStorage", MEMORY, "Scratch disk of the container."),
    ),
    expected="a mapping such as {cpu: 4, memory: 16Gi}",
    rest=WholeNumber(0),
    rest_pattern=EXTENDED_RESOURCE,
    rest_words=EXTENDED_WORDS,
    refused={"nvidia.com/gpu": "is not accepted here; write gpu: 1"},
)
RETRIES = Section(
    (
        Key(
            "infrastructure",
            WholeNumber(0),
            "Retries after an eviction, a preemption, a lost node, or a kill from outside.",
            3,
        ),
        Key("timeout", WholeNumber(0), "Retries after exceeding `timeout`.", 0),
        Key("outOfMemory", WholeNumber(0), "Retries after running out of memory.", 0),
        Key("userError", WholeNumber(0), "Retries after the program exited with an error.", 0),
        Key("metricsMissing", WholeNumber(0), "Retries after exit code 0 without a value.", 0),
    ),
    expected="a mapping such as {infrastructure: 3}",
    refused={
        "configuration": "is never retried: it pauses the experiment; correct the cause, then "
        "resume"
    },
)

# The keys that only a cluster reads: `TrialTemplate.cluster` holds them,
# and the Kubernetes runtime interprets them.
CLUSTER_KEYS = (
    Key(
        "imagePullPolicy",
        Word(("Always", "IfNotPresent", "Never")),
        "When to pull the image (cluster). By default, always for the tag `latest`, else if the "
        "node lacks it.",
    ),
    Key(
        "imagePullSecrets",
        ListOf(Text("a secret's name"), "a list of secrets' names"),
        "Secrets of the namespace for the registry (cluster).",
    ),
    Key(
        "shm",
        MEMORY,
        "Size of /dev/shm, which counts as part of `memory`; by default 64 MiB (cluster).",
    ),
    Key(
        "volumes",
        MapOf(
            VOLUME,
            "a mapping of names to volumes",
            r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?",
            "lower-case letters, digits and -",
        ),
        "Volumes by name, each with one of claim, nfs, emptyDir (cluster).",
    ),
    Key(
        "checkpoints",
        Section(
            (Key("claim", Text("the name of a PersistentVolumeClaim"), "The claim.", REQUIRED),)
        ),
        "Volume of `TUNER_CHECKPOINT_DIR`, with a folder for each trial. Without it, checkpoints "
        "are deleted with the attempt (cluster).",
    ),
    Key(
        "labels",
        LABELS,
        "Labels of the Jobs and pods, in addition to those of `metadata` (cluster).",
    ),
    Key("annotations", ANNOTATIONS, "Annotations of the Jobs and pods (cluster)."),
    Key("nodeSelector", LABELS, "Labels that a node must have (cluster)."),
    Key(
        "tolerations",
        ListOf(TOLERATION, "a list of tolerations"),
        "Taints that are tolerated (cluster).",
    ),
    Key(
        "affinity",
        AFFINITY,
        "Nodes and pods that a pod is placed near or away from (cluster).",
    ),
    Key(
        "topologySpread",
        ListOf(
            SPREAD,
            "a list of constraints such as [{maxSkew: 1, topologyKey: …, whenUnsatisfiable: …}]",
        ),
        "Rules that spread pods over nodes, zones or other domains (cluster).",
    ),
    Key(
        "schedulerName",
        Text("the name of a scheduler", DNS_NAME, "lower-case letters, digits, - and ."),
        "The scheduler that places the pods (cluster).",
        says="the cluster's",
    ),
    Key(
        "runtimeClass",
        Text("the name of a RuntimeClass", DNS_NAME, "lower-case letters, digits, - and ."),
        "RuntimeClass of the pods, such as gvisor (cluster).",
        says="the node's",
    ),
    Key(
        "priorityClass",
        Text("the name of a PriorityClass"),
        "PriorityClass of the pods, which decides which pods are scheduled first if nodes are "
        "full (cluster).",
    ),
    Key(
        "serviceAccount",
        Text("the name of a ServiceAccount"),
        "ServiceAccount of the pods. They get its token; by default, they get no token (cluster).",
    ),
    Key(
        "readOnlyRootFilesystem",
        FLAG,
        "Whether the program can write only to its volumes, `/tmp` and the folders that Tuner sets "
        "(cluster).",
        says="`true`",
    ),
    Key(
        "queue",
        Text("the name of a LocalQueue"),
        "Kueue's LocalQueue, which then decides when a trial starts (cluster).",
    ),
    Key(
        "distributed",
        Section(
            (
                Key(
                    "workers",
                    WholeNumber(1),
                    "Number of pods, or local processes, per attempt. Each gets all of "
                    "`resources`.",
                    REQUIRED,
                ),
            ),
            expected="a mapping such as {workers: 2}",
        ),
        "Runs an attempt as several pods or processes, with the variables of torchrun.",
    ),
    Key(
        "template",
        mapping_of("a whole object with apiVersion, kind and spec"),
        "A complete object of any kind, with `${name}` in its strings, instead of a command and "
        "an image (cluster).",
    ),
    Key(
        "success",
        CONDITION,
        "The condition of the template's object that means success (cluster).",
        says="by its kind",
    ),
    Key(
        "failure",
        CONDITION,
        "The condition of the template's object that means failure (cluster).",
        says="by its kind",
    ),
    Key(
        "primary",
        Section(
            (
                Key("labels", FREE_LABELS, "Labels of the pod."),
                Key(
                    "container",
                    Text("the name of a container"),
                    "Container of the pod; by default `trial`, else the first.",
                ),
            )
        ),
        "The pod and container whose log is read, if a template has several (cluster).",
        says="by its kind",
    ),
)
TRIAL = Section(
    (
        Key(
            "command",
            CommandLine("a list of words, [python, train.py]", 1),
            "The program and its arguments; `${name}` is a parameter. Required without `template`.",
        ),
        Key("args", CommandLine("a list of words", 0), "More arguments, after the command.", []),
        Key(
            "env",
            MapOf(EnvValue(), "a mapping of names to values", ENV_NAME, "letters, digits and _"),
            "Environment variables: values, or `{secret: name/key}`.",
            {},
        ),
        Key(
            "workingDir",
            Text("a path"),
            "Directory in which the command runs, relative to the file's folder (on a cluster: an "
            "absolute path).",
            says="the file's folder; on a cluster the image's",
            field="working_dir",
        ),
        Key(
            "files",
            ListOf(
                Text(
                    "a path",
                    rf"{FILE_NAME}(/{FILE_NAME})*",
                    "a path below the file's folder, of letters, digits, _ - and .",
                ),
                "a list of paths such as [train.py]",
            ),
            "Files beside the experiment file that a trial on a cluster gets in its working "
            "directory, at most 1 MiB. Local trials see the folder itself.",
            field="files",
            value=tuple,
        ),
        Key(
            "filesDigest",
            Text("the digest of files", r"[0-9a-f]{10}"),
            "Digest of the contents of `files` in the cluster, written by `tuner apply` when it "
            "sends them. It has no effect in `tuner run`.",
            field="files_digest",
        ),
        Key(
            "parametersFile",
            Word(("json", "yaml")),
            "Format of the file that `TUNER_PARAMETERS_FILE` names (local).",
            says="`json`",
            field="parameters_file",
        ),
        Key("resources", RESOURCES, "Resources of an attempt, as requests and limits.", {}),
        Key(
            "devices",
            ListOf(DeviceName(), "a list of GPUs such as [0, 1]", 1),
            "GPUs that trials may use, by index or UUID (local).",
            says="all GPUs that this machine offers",
        ),
        Key(
            "timeout",
            duration(above_zero=True),
            "An attempt that runs longer is stopped and failed; waiting for room does not count.",
            field="timeout_s",
            value=parse_duration,
        ),
        Key(
            "gracePeriod",
            duration(above_zero=False),
            "Time from SIGTERM to SIGKILL.",
            "30s",
            field="grace_s",
            value=parse_duration,
        ),
        Key(
            "logLimit",
            MEMORY,
            "Maximum size of an attempt's log on this machine's disk. The beginning and the end "
            "of a longer log are kept.",
            "1Gi",
            field="log_limit_bytes",
            value=parse_bytes,
        ),
        Key("retries", RETRIES, "Number of retries of a trial, by failure class.", {}),
        Key(
            "image",
            Text("the name of an image"),
            "Container image (cluster); it may not run as root.",
            field="image",
        ),
        *CLUSTER_KEYS,
    ),
    expected="a mapping with a command",
)
# A template says everything else itself.
_BESIDE_TEMPLATE = {
    *("template", "success", "failure", "primary", "queue", "labels", "annotations"),
    *("timeout", "gracePeriod", "logLimit", "retries", "checkpoints"),
}
INSTEAD_OF_TEMPLATE = frozenset(key.name for key in TRIAL.keys) - _BESIDE_TEMPLATE
