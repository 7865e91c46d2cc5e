"""What a tenant's experiment may not make the controller in the cluster create.

The controller creates objects in a tenant's namespace with its own rights. A tenant who may only
create experiments must gain no more by it than ordinary pods: those that the profile `baseline` of
the Pod Security Standards accepts, with the service accounts and the kinds of objects that the
platform team allows.

A template is checked as the file has it, before its placeholders are filled in. A parameter may
have another value in each trial; a placeholder is none of the allowed values, so it is refused.
Fields are refused by their names at any depth, not only in what looks like a pod: operators have
pod specs, and parts of them, in fields of their own, such as `podTemplateOverrides` of a TrainJob,
`taskRunTemplate` of a PipelineRun and `templates` of a Workflow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import cast

from controller.app.controller_api import AUDIENCE
from controller.core.katib_keys import katib_place
from controller.core.model import FUNCTION_ARCHIVE, ExperimentSpec, TrialTemplate
from controller.kube.objects import AnyObject
from controller.phrases import command
from controller.runtime.kubernetes.labels import MANAGED_BY
from controller.runtime.kubernetes.sample_manifests import (
    TEMPLATE,
    final_manifests_of,
    manifests_of,
)
from controller.runtime.protocol import LOG_LIMIT_BYTES
from controller.spec.fields import describe_value
from suggest.errors import Problem, raise_if

# Values of the chart.
ALLOWED_SERVICE_ACCOUNTS = "controller.allowedServiceAccounts"
ALLOWED_KINDS = "controller.kinds"
CORE_GROUP = "core"  # in the name of a kind whose apiVersion has no group


@dataclass(frozen=True, slots=True)
class Policy:
    """What the platform team allows.

    service_accounts: those that pods of trials may have in any namespace, besides `default`, which
    they have if they name none.
    kinds: those that a template, and an object in it, may have, besides `batch/Job`, as
    `group/Kind`. The Service beside a Job of several workers is the controller's own.
    log_limit_bytes: the cap of each log, whatever `spec.trial.logLimit` says.
    prices: of an hour of each resource, whatever `spec.prices` says of it.
    node_label, node_prices: of resources of nodes, by the value of this label, instead of these.
    """

    service_accounts: frozenset[str] = frozenset()
    kinds: frozenset[str] = frozenset()
    log_limit_bytes: int = LOG_LIMIT_BYTES
    prices: Mapping[str, float] = field(default_factory=dict)
    node_label: str = ""
    node_prices: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


NO_EXCEPTIONS = Policy()


def check_policy(spec: ExperimentSpec, policy: Policy) -> None:
    """Raise InvalidArgument with all that is refused of an experiment, at its places in the file.

    It is also raised if no cluster accepts the experiment's objects: see `manifests_of`.
    """
    problems = _problems_of(spec, policy)
    if spec.is_katib:
        problems = [Problem(katib_place(each.path, {}), each.message) for each in problems]
    raise_if(problems)


def _problems_of(spec: ExperimentSpec, policy: Policy) -> list[Problem]:
    found = list(_without_a_disk(spec.trial))
    template = spec.trial.cluster.get("template")
    if template is None:
        # What is built from the keys of the file is checked, so that a new key is, too.
        built = _Inspection(policy, spec.namespace, by_tenant=False)
        for obj in (*manifests_of(spec), *final_manifests_of(spec)):
            found += map(_in_file, built.inspect(obj))
    else:
        given = _Inspection(policy, spec.namespace)
        found += given.inspect_object(cast(AnyObject, template), TEMPLATE)
        # The pods of a template get these, too.
        annotations = {"annotations": spec.trial.cluster.get("annotations")}
        found += given.inspect(annotations, "spec.trial")
    return list(dict.fromkeys(found))


def _without_a_disk(trial: TrialTemplate) -> Iterator[Problem]:
    """Yield the keys that need files of the person's disk which were not sent."""
    if trial.files and not trial.files_digest:
        yield Problem(
            "spec.trial.files",
            "names files beside the experiment file, which kubectl does not send; apply the file "
            f"with {command('apply', '-f', 'FILE')}, build them into the image, or put them on a "
            "claim of spec.trial.volumes",
        )
    if trial.calls_function and FUNCTION_ARCHIVE not in trial.files:
        yield Problem(
            "spec.trial.command",
            "calls a Python function that was not sent to the cluster; run the search with "
            'tuner.minimize(…, runtime="cluster"), or write a program in the image',
        )


# Fields of a built Job, with the keys of the file that they come from.
_KEYS = {
    "serviceAccountName": "spec.trial.serviceAccount",
    "annotations": "spec.trial.annotations",
    "affinity": "spec.trial.affinity",
}


def _in_file(problem: Problem) -> Problem:
    """Return a problem of an object that was built from the keys of `spec.trial`, at its key."""
    for name, key in _KEYS.items():
        _, found, below = problem.path.partition(f".{name}")
        if found:
            return Problem(f"{key}{below}", problem.message)
    return Problem("spec.trial", f"{problem.path} of its object: {problem.message}")


# The rules


@dataclass(frozen=True, slots=True)
class _Rule:
    """Why no value of a field is allowed but `allowed` and the empty ones, and the cure."""

    why: str
    cure: str = "omit it"
    allowed: tuple[str, ...] = ()


# Not {}: as a selector it selects everything. 0 is equal to False.
_EMPTY: tuple[object, ...] = (None, False, "", [])

_CAPABILITIES = (
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
)
_SYSCTLS = (
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
)
_PROFILES = ("RuntimeDefault", "Localhost")
_SELINUX_TYPES = ("container_t", "container_init_t", "container_kvm_t", "container_engine_t")
_PROBED_HOST = _Rule("the node would send requests to that host")
_SELINUX_IDENTITY = _Rule("a pod must not choose its SELinux user or role")
_REMOTE_STEPS = _Rule(
    "its steps are fetched when it runs, and cannot be checked before",
    "write pipelineSpec and taskSpec",
)

# By the field, or by the field and the one that it is in. A list has the name of its field.
_BASELINE = {
    "hostNetwork": _Rule("the pod would share the network of its node"),
    "hostPID": _Rule("the pod would see the processes of its node"),
    "hostIPC": _Rule("the pod would share memory with the processes of its node"),
    "hostProcess": _Rule("the container would be a process of its node"),
    "privileged": _Rule("the container would have all rights on its node"),
    "capabilities.add": _Rule(
        "the container would have rights beyond the usual ones",
        f"only {', '.join(_CAPABILITIES)} may be added",
        _CAPABILITIES,
    ),
    "hostPath": _Rule(
        "a pod must not access the disk of its node",
        "use persistentVolumeClaim, nfs or emptyDir",
    ),
    "hostPort": _Rule("a pod must not open ports of its node"),
    "httpGet.host": _PROBED_HOST,
    "tcpSocket.host": _PROBED_HOST,
    "appArmorProfile.type": _Rule(
        "AppArmor must stay on", "write RuntimeDefault, or omit it", _PROFILES
    ),
    "seLinuxOptions.type": _Rule(
        "SELinux must confine the container",
        f"write one of {', '.join(_SELINUX_TYPES)}, or omit it",
        _SELINUX_TYPES,
    ),
    "seLinuxOptions.user": _SELINUX_IDENTITY,
    "seLinuxOptions.role": _SELINUX_IDENTITY,
    "procMount": _Rule("the masks of /proc must stay", "write Default, or omit it", ("Default",)),
    "seccompProfile.type": _Rule(
        "system calls must stay filtered", "write RuntimeDefault, or omit it", _PROFILES
    ),
    "sysctls.name": _Rule(
        "it may affect other pods of the node", f"only {', '.join(_SYSCTLS)} may be set", _SYSCTLS
    ),
}
# What the cluster or an operator would do for the object that a tenant may not do alone.
_BY_OTHERS = {
    "nodeName": _Rule(
        "the pod would bypass the scheduler", "use nodeSelector or affinity to choose nodes"
    ),
    "namespaceSelector": _Rule(
        "the pod would depend on pods of other namespaces, or keep them off its node"
    ),
    "manualSelector": _Rule("the Job would adopt pods that are not its own"),
    "finalizers": _Rule("the object could not be removed at the end of the trial"),
    # Argo's: a text that is merged into the specs of pods, or by which a step changes objects.
    # A Workflow is possible only if its kind is allowed; even so, nobody could check these.
    "podSpecPatch": _Rule("a text that changes pods cannot be checked", "write the fields"),
    "resource.action": _Rule(
        "the step would create, change or delete objects that cannot be checked",
        "use a step with container or script",
    ),
    # Tekton's: tasks and pipelines from git, a registry, a URL or another namespace.
    "resolver": _REMOTE_STEPS,
    "pipelineRef.bundle": _REMOTE_STEPS,
    "taskRef.bundle": _REMOTE_STEPS,
    # KubeRay's: it would create a service account with the right to change pods, a way into the
    # cluster from outside, and a Service of any form.
    "enableInTreeAutoscaling": _Rule("the pods would get the right to create and delete pods"),
    "enableIngress": _Rule("the pods would be reachable from outside of the cluster"),
    "serviceType": _Rule(
        "the pods would be reachable from outside of the cluster",
        "write ClusterIP, or omit it",
        ("ClusterIP",),
    ),
    "headService": _Rule("an experiment creates no Services of its own"),
}
# Rules for what a person writes. The controller sets the first for `spec.trial.serviceAccount`.
_OF_TENANT = {
    "automountServiceAccountToken": _Rule(
        "the service account decides whether its pods get a token", "write false, or omit it"
    ),
    "ownerReferences": _Rule("the experiment owns the objects of its trials"),
    "generateName": _Rule("Tuner names the objects of its trials"),
}


def _case_folded(rules: Mapping[str, _Rule]) -> dict[str, _Rule]:
    return {field.casefold(): rule for field, rule in rules.items()}


# Some operators read the names of fields without regard to case.
_RULES = _case_folded(_BASELINE | _BY_OTHERS)
_RULES_OF_TENANT = _RULES | _case_folded(_OF_TENANT)

_API_VERSION = re.compile(r"(?:([a-z0-9.-]+)/)?v[a-z0-9]+")
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_OWN_NAMES = "tuner.dev/"
# Mappings with keys of the tenant's own. In the selectors, our labels are only read.
_SELECTORS = {"matchlabels", "nodeselector"}
_FREE_KEYS = {"labels", "annotations"} | _SELECTORS


@dataclass(frozen=True, slots=True)
class _Inspection:
    """Finds what is refused in an object of any kind.

    by_tenant: a person wrote the object; otherwise the controller built it, with names and labels
    of its own.
    """

    policy: Policy
    namespace: str
    by_tenant: bool = True

    def inspect_object(self, obj: AnyObject, at: str) -> Iterator[Problem]:
        """Yield the problems of a whole object, and of its kind."""
        yield from self._kind(obj, at)
        yield from self.inspect(obj, at)

    def inspect(self, node: AnyObject, at: str = "", within: str = "") -> Iterator[Problem]:
        """Yield the problems of a mapping. within: the field that it is in, case-folded."""
        for key, value in node.items():
            path = f"{at}.{key}" if at else key
            if message := self._message(key, value, within):
                yield Problem(path, message)
            else:
                yield from self._below(value, path, key.casefold())

    def _below(self, value: object, path: str, field: str) -> Iterator[Problem]:
        if isinstance(value, list):
            for index, item in enumerate(value):
                yield from self._below(item, f"{path}[{index}]", field)
        elif isinstance(value, Mapping):
            # An operator may create it, such as a custom task of a PipelineRun or an item of a
            # List. A mere reference looks the same.
            if {"apiversion", "kind"} <= {key.casefold() for key in value}:
                yield from self._kind(value, path)
            yield from self.inspect(value, path, field)

    def _kind(self, obj: AnyObject, at: str) -> Iterator[Problem]:
        versions, kinds = list(_named("apiversion", obj)), list(_named("kind", obj))
        name = f"{_group(versions[0])}/{kinds[0]}" if versions and kinds else "an object"
        allowed = {"batch/Job", *self.policy.kinds}
        if (len(versions), len(kinds)) == (1, 1) and name in allowed:
            return
        yield Problem(
            f"{at}.kind",
            f"an experiment may not create {name} here, only {_listed(allowed)}; "
            f"{_can_be_allowed('kind', ALLOWED_KINDS)}",
        )

    def _message(self, key: str, value: object, within: str) -> str:
        """Return why a field is refused; "" if it is not."""
        if key.startswith(_APPARMOR):
            return _of_apparmor(value)
        if self.by_tenant and within not in _SELECTORS:
            if key.startswith(_OWN_NAMES):
                return f"names of {_OWN_NAMES} are set by Tuner; use another prefix"
            if key == MANAGED_BY:
                return "is set by Tuner, which finds its objects by it; omit it"
        if within in _FREE_KEYS and isinstance(value, str):
            return ""
        field = key.casefold()
        if field == "serviceaccount" or field.endswith("serviceaccountname"):
            return self._of_service_account(value)
        if field in ("namespace", "namespaces"):
            return self._of_namespace(value)
        if field == "serviceaccounttoken":
            return _of_token(value)
        rules = _RULES_OF_TENANT if self.by_tenant else _RULES
        rule = rules.get(f"{within}.{field}") or rules.get(field)
        return "" if rule is None else _of_rule(rule, value)

    def _of_service_account(self, value: object) -> str:
        allowed = {"default", *self.policy.service_accounts}
        if value in _EMPTY or (isinstance(value, str) and value in allowed):
            return ""
        return (
            f"{_shown(value)} is refused: trials here may only use the service account "
            f"{_listed(allowed)}; omit it; "
            f"{_can_be_allowed('service account', ALLOWED_SERVICE_ACCOUNTS)}"
        )

    def _of_namespace(self, value: object) -> str:
        names = value if isinstance(value, list) else [value]
        if all(name in (None, "", self.namespace) for name in names):
            return ""
        return (
            f"{_shown(value)} is refused: an experiment stays in its own namespace, "
            f"{self.namespace}; omit it"
        )


def _named(field: str, obj: AnyObject) -> Iterator[object]:
    """Yield the values of a field in all its spellings: an operator may read any of them."""
    return (value for key, value in obj.items() if key.casefold() == field)


def _group(version: object) -> str:
    """Return the group of an apiVersion. Of one that is not valid return all of it.

    The apiVersion is a part of the path of requests, and may have a placeholder.
    """
    match = _API_VERSION.fullmatch(str(version))
    if match is None:
        return str(version)
    return match[1] or CORE_GROUP


def _of_rule(rule: _Rule, value: object) -> str:
    values = value if isinstance(value, list) else [value]
    refused = [each for each in values if each not in _EMPTY and each not in rule.allowed]
    if not refused:
        return ""
    return f"{_shown(refused[0])} is refused: {rule.why}; {rule.cure}"


def _of_token(value: object) -> str:
    """Return why a token is refused, unless it is for the controller's own service.

    For another audience, the pod could sign in elsewhere as its service account; for the API
    server, it would have the token that `automountServiceAccountToken: false` denies.
    """
    audiences = list(_named("audience", value)) if isinstance(value, Mapping) else []
    if value in _EMPTY or audiences == [AUDIENCE]:
        return ""
    return (
        "pods of trials get no further tokens of their service account, but those with the "
        f"audience {AUDIENCE}, for the controller's own service; omit it"
    )


def _of_apparmor(value: object) -> str:
    is_allowed = isinstance(value, str) and value.startswith("localhost/")
    if is_allowed or value in (None, "", "runtime/default"):
        return ""
    return f"{_shown(value)} is refused: AppArmor must stay on; write runtime/default, or omit it"


def _shown(value: object) -> str:
    return repr(value) if isinstance(value, str) else describe_value(value)


def _listed(names: Iterable[str]) -> str:
    return " or ".join(sorted(names))


def _can_be_allowed(what: str, value: str) -> str:
    return f"the platform team can allow the {what} with the chart's value {value}"
