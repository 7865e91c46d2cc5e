"""What the keys under `spec.trial` that only a cluster reads consist of:
volumes, tolerations, conditions.
"""

from __future__ import annotations

from controller.spec.fields import (
    FLAG,
    INVALID,
    REQUIRED,
    SCALAR,
    Key,
    ListOf,
    Schema,
    Text,
    WholeNumber,
    Word,
    mapping_of,
    refuse,
)
from controller.spec.problems import ProblemCollector
from controller.spec.sections import MapOf, Section

DNS_NAME = r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?"
_LABEL_WORD = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
LABEL_KEY = rf"({DNS_NAME}/)?{_LABEL_WORD}"
LABEL_KEY_RULE = (
    "at most 63 letters, digits, _ . - with a letter or digit at both ends, and a "
    "domain/ before them if need be"
)
LABEL_VALUE = Text(
    "a label's value",
    f"({_LABEL_WORD})?",
    "at most 63 letters, digits, _ . - with a letter or digit at both ends",
)

VOLUME = Section(
    (
        Key(
            "mount",
            Text("an absolute path", r"/.*", "a path that begins with /"),
            "Mount path.",
            REQUIRED,
        ),
        Key(
            "claim",
            Text(
                "the name of a PersistentVolumeClaim",
                DNS_NAME,
                "lower-case letters, digits, - and .",
            ),
            "A PersistentVolumeClaim.",
        ),
        Key(
            "nfs",
            Section(
                (
                    Key("server", Text("a host name"), "Host name of the server.", REQUIRED),
                    Key("path", Text("a path"), "Exported path.", REQUIRED),
                )
            ),
            "An NFS export.",
        ),
        Key(
            "emptyDir",
            mapping_of("a mapping"),
            "Scratch space that ends with the attempt: `{}`, or with `sizeLimit`.",
        ),
        Key("readOnly", FLAG, "Mounted read-only.", False),
    ),
    refused={
        "hostPath": "a trial must not access the disk of its node; use claim, nfs or emptyDir"
    },
)
BY_TYPE = Section(
    (
        Key(
            "type",
            Text("the type of a condition"),
            "Type of the condition in `status.conditions`.",
            REQUIRED,
        ),
        Key("status", Text("the status of a condition"), "Status of that condition.", "True"),
    )
)
BY_PATH = Section(
    (
        Key(
            "path",
            Text(
                "a path",
                r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+",
                "keys joined by dots, such as status.phase",
            ),
            "Path of a field of the object, instead of `type`: keys joined by dots.",
            REQUIRED,
        ),
        Key("equals", SCALAR, "The value to compare with; its type counts.", REQUIRED),
    )
)


class ClusterCondition:
    """How an object shows that it has ended: by an entry of its conditions, or by another field."""

    expected = "{type: …}, or {path: …, equals: …}"
    sections = (BY_TYPE, BY_PATH)

    def take(self, raw: object, at: str, problems: ProblemCollector) -> object:
        if not isinstance(raw, dict):
            return refuse(raw, at, problems, self.expected)
        by_path = raw.keys() & {"path", "equals"}
        if by_path and raw.keys() & {"type", "status"}:
            problems.add(at, f"a condition has {self.expected}, and this mixes them; omit one")
            return INVALID
        return (BY_PATH if by_path else BY_TYPE).take(raw, at, problems)

    def schema(self) -> Schema:
        return {"oneOf": [section.schema() for section in self.sections]}


CONDITION = ClusterCondition()
TOLERATION = Section(
    (
        Key(
            "key",
            Text("a taint's key"),
            "The taint's key. Without a key, `Exists` matches every taint.",
        ),
        Key("operator", Word(("Exists", "Equal")), "How to compare the value."),
        Key("value", Text("a taint's value", r"[\s\S]*"), "The taint's value."),
        Key(
            "effect",
            Word(("NoSchedule", "PreferNoSchedule", "NoExecute")),
            "The taint's effect; none means all.",
        ),
        Key("tolerationSeconds", WholeNumber(0), "Seconds for which NoExecute is tolerated."),
    )
)
AFFINITY = Section(
    tuple(
        Key(
            name,
            mapping_of(f"a mapping as in a pod's affinity.{name}"),
            f"{words}, as in Kubernetes.",
        )
        for name, words in (
            ("nodeAffinity", "Required or preferred nodes"),
            ("podAffinity", "Pods whose node or zone to share"),
            ("podAntiAffinity", "Pods whose node or zone to avoid"),
        )
    ),
    expected="a mapping such as {nodeAffinity: …}",
)
_HONOR = Word(("Honor", "Ignore"))
SPREAD = Section(
    (
        Key(
            "maxSkew",
            WholeNumber(1),
            "Maximum number of pods by which a domain may exceed the one with the fewest.",
            REQUIRED,
        ),
        Key(
            "topologyKey",
            Text("a label of nodes", LABEL_KEY, LABEL_KEY_RULE),
            "Label that names a domain.",
            REQUIRED,
        ),
        Key(
            "whenUnsatisfiable",
            Word(("DoNotSchedule", "ScheduleAnyway")),
            "Required or preferred.",
            REQUIRED,
        ),
        Key(
            "labelSelector",
            mapping_of("a label selector"),
            "Pods that count.",
            says="those of the experiment",
        ),
        Key(
            "matchLabelKeys",
            ListOf(Text("a label"), "a list of labels"),
            "Labels whose values must match those of the pod.",
        ),
        Key("minDomains", WholeNumber(1), "Minimum number of domains, with `DoNotSchedule`."),
        Key(
            "nodeAffinityPolicy",
            _HONOR,
            "Whether nodes that the affinity excludes count.",
            says="`Honor`",
        ),
        Key(
            "nodeTaintsPolicy",
            _HONOR,
            "Whether nodes with taints that are not tolerated count.",
            says="`Ignore`",
        ),
    )
)
LABELS = MapOf(LABEL_VALUE, "a mapping of labels", LABEL_KEY, LABEL_KEY_RULE)
# Values of any form: of experiments, which may run without a cluster, and of pods, whose
# annotations count, too.
FREE_LABELS = MapOf(
    Text("a label's value", r"[\s\S]*"), "a mapping of labels", LABEL_KEY, LABEL_KEY_RULE
)
ANNOTATIONS = MapOf(
    Text("an annotation's value", r"[\s\S]*"), "a mapping of annotations", LABEL_KEY, LABEL_KEY_RULE
)
