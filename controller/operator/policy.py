"""What a tenant's experiment may make the controller create. Pure.

The controller creates objects with its own rights. So that whoever may create experiments gains
nothing but ordinary pods of their namespace, their templates are held to the baseline profile of
the Pod Security Standards (kubernetes.io/docs/concepts/security/pod-security-standards), whatever
the namespace enforces, and to the identities that the installation allows.

Every mapping with a list of containers counts as a pod, at any depth: templates of operators have
pods in places that are not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from controller.core.model import ExperimentSpec
from controller.kube.objects import Raw
from controller.runtime.kubernetes.sample_manifests import final_manifests_of, manifests_of
from suggest.errors import InvalidArgument, Problem

_OWN = "tuner.dev/"
_APPARMOR = "container.apparmor.security.beta.kubernetes.io/"
_CAPABILITIES = frozenset(
    {
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
    }
)
_SYSCTLS = frozenset(
    {
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    }
)
_SELINUX_TYPES = frozenset({"", "container_t", "container_init_t", "container_kvm_t"})
_CONTAINERS = ("containers", "initContainers", "ephemeralContainers")
_HOST_NAMESPACES = ("hostNetwork", "hostPID", "hostIPC")


@dataclass(frozen=True, slots=True)
class Policy:
    """service_accounts: those that pods of trials may have, besides the namespace's default."""

    service_accounts: frozenset[str] = frozenset()


NO_EXCEPTIONS = Policy()


def check_policy(spec: ExperimentSpec, policy: Policy = NO_EXCEPTIONS) -> None:
    """Raise InvalidArgument with everything that the objects of the experiment may not have."""
    problems = list(_problems(spec, policy))
    if problems:
        raise InvalidArgument(problems)


def _problems(spec: ExperimentSpec, policy: Policy) -> Iterator[Problem]:
    if spec.trial.files:
        yield Problem(
            "spec.trial.files",
            "the controller in the cluster has no files of yours; build them into the image",
        )
    if spec.trial.calls_function:
        yield Problem("spec.trial", "a Python function runs with tuner.minimize, not here")
    for name in spec.labels:
        if name.startswith(_OWN):
            yield Problem("metadata.labels", f"{name} is the controller's; remove it")
    template = spec.trial.cluster.get("template")
    if isinstance(template, dict):
        yield from _at("spec.trial.template", _of_template(template, spec.namespace))
    place = "spec.trial.template" if isinstance(template, dict) else "spec.trial"
    yield from _at(place, _of_objects(manifests_of(spec), policy))
    yield from _at("spec.final", _of_objects(final_manifests_of(spec), policy))


def _at(path: str, messages: Iterable[str]) -> Iterator[Problem]:
    for message in dict.fromkeys(messages):
        yield Problem(path, message)


def _of_template(template: Raw, namespace: str) -> Iterator[str]:
    """Yield what the template itself may not say of its objects."""
    for path, node in _walk(template):
        about = node.get("metadata")
        if not isinstance(about, dict):
            continue
        at = f"{path}metadata"
        if about.get("namespace") not in (None, namespace):
            yield f"{at}.namespace: {about['namespace']} is not the experiment's, {namespace}"
        for key in ("ownerReferences", "finalizers", "generateName", "uid"):
            if about.get(key):
                yield f"{at}.{key}: is set by the controller; remove it"
        for key in ("labels", "annotations"):
            entries = about.get(key)
            for name in entries if isinstance(entries, dict) else ():
                if str(name).startswith(_OWN):
                    yield f"{at}.{key}: {name} is the controller's; remove it"


def _of_objects(objects: Iterable[Raw], policy: Policy) -> Iterator[str]:
    for manifest in objects:
        for path, node in _walk(manifest):
            if isinstance(node.get("containers"), list):
                yield from _of_pod(path, node, policy)
            annotations = _mapping(_mapping(node.get("metadata")).get("annotations"))
            for name, value in annotations.items():
                if str(name).startswith(_APPARMOR) and value == "unconfined":
                    yield f"{path}metadata.annotations: {name} may not be unconfined"


def _walk(node: object, path: str = "") -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each mapping with its path, which ends with a dot unless it is the root."""
    if isinstance(node, Mapping):
        yield path, node
        for key, value in node.items():
            yield from _walk(value, f"{path}{key}.")
    elif isinstance(node, Sequence) and not isinstance(node, str):
        for index, value in enumerate(node):
            yield from _walk(value, f"{path[:-1]}[{index}].")


def _of_pod(at: str, pod: Mapping[str, Any], policy: Policy) -> Iterator[str]:
    for key in _HOST_NAMESPACES:
        if pod.get(key):
            yield f"{at}{key}: pods of trials do not share what is the node's; remove it"
    for key in ("serviceAccountName", "serviceAccount"):
        account = pod.get(key)
        if account and account != "default" and account not in policy.service_accounts:
            yield (
                f"{at}{key}: {account} is not allowed; use default, or ask the platform team to "
                "add it to the chart's value controller.allowedServiceAccounts"
            )
    if pod.get("nodeName"):
        yield f"{at}nodeName: the scheduler chooses the node; use nodeSelector"
    yield from _of_volumes(at, pod)
    context = _mapping(pod.get("securityContext"))
    yield from _of_context(f"{at}securityContext.", context)
    for sysctl in _mappings(context.get("sysctls")):
        if sysctl.get("name") not in _SYSCTLS:
            yield f"{at}securityContext.sysctls: {sysctl.get('name')} is not a safe sysctl"
    for key in _CONTAINERS:
        for index, container in enumerate(_mappings(pod.get(key))):
            yield from _of_container(f"{at}{key}[{index}].", container)


def _of_volumes(at: str, pod: Mapping[str, Any]) -> Iterator[str]:
    for index, volume in enumerate(_mappings(pod.get("volumes"))):
        if "hostPath" in volume:
            yield f"{at}volumes[{index}].hostPath: pods of trials do not see the node's files"
        for source in _mappings(_mapping(volume.get("projected")).get("sources")):
            if "serviceAccountToken" in source:
                yield f"{at}volumes[{index}].projected: pods of trials get no further tokens"


def _of_container(at: str, container: Mapping[str, Any]) -> Iterator[str]:
    for port in _mappings(container.get("ports")):
        if port.get("hostPort"):
            yield f"{at}ports: hostPort {port['hostPort']} would be a port of the node"
    context = _mapping(container.get("securityContext"))
    yield from _of_context(f"{at}securityContext.", context)
    if context.get("privileged"):
        yield f"{at}securityContext.privileged: pods of trials are not privileged"
    added = _mapping(context.get("capabilities")).get("add")
    for capability in added if isinstance(added, list) else ():
        if capability not in _CAPABILITIES:
            yield f"{at}securityContext.capabilities: {capability} cannot be added"
    if context.get("procMount") not in (None, "Default"):
        yield f"{at}securityContext.procMount: {context['procMount']} shows what is the node's"


def _of_context(at: str, context: Mapping[str, Any]) -> Iterator[str]:
    """Yield what neither a pod's nor a container's security context may have."""
    for key in ("seccompProfile", "appArmorProfile"):
        if _mapping(context.get(key)).get("type") == "Unconfined":
            yield f"{at}{key}: Unconfined is not allowed; use RuntimeDefault"
    selinux = _mapping(context.get("seLinuxOptions"))
    if selinux.get("type", "") not in _SELINUX_TYPES or selinux.get("user") or selinux.get("role"):
        yield f"{at}seLinuxOptions: only the types of containers are allowed"
    if _mapping(context.get("windowsOptions")).get("hostProcess"):
        yield f"{at}windowsOptions.hostProcess: pods of trials are not processes of the node"


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: object) -> list[Mapping[str, Any]]:
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []
