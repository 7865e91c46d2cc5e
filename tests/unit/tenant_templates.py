"""Templates of tenants: a Job, and changes of it with what the profile `baseline` says of its pod.

`tests/unit/test_operator_policy.py` holds the policy of the controller to it, and
`tests/cluster/test_policy_as_pod_security.py` the pod security of a real API server.
"""

from __future__ import annotations

from typing import Any, TypeAlias

Data: TypeAlias = dict[str, Any]  # Any: JSON
# A path in the Job and the value there; and the rest of the path of what is refused, from it.
Change: TypeAlias = tuple[str, object, str]

POD, MAIN = "spec.template.spec", "spec.template.spec.containers[0]"
ANNOTATIONS = "spec.template.metadata.annotations"
APPARMOR = "container.apparmor.security.beta.kubernetes.io/main"


def job() -> Data:
    pod = {"containers": [{"name": "main", "image": "train:1"}], "restartPolicy": "Never"}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": pod}}}


def changed(path: str, value: object) -> Data:
    """Return the Job with another value at a path."""
    obj = job()
    node: Any = obj
    *parents, last = path.replace("[0]", ".0").split(".")
    for key in parents:
        if isinstance(node, list):
            node = node[0]
        else:
            node = node.setdefault(key, {})
    node[last] = value
    return obj


CAPABILITIES = [
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
]
SYSCTLS = [
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
]
BASELINE_REFUSES: list[Change] = [
    (f"{POD}.hostNetwork", True, ""),
    (f"{POD}.hostPID", True, ""),
    (f"{POD}.hostIPC", True, ""),
    (f"{POD}.volumes", [{"name": "root", "hostPath": {"path": "/"}}], "[0].hostPath"),
    (f"{POD}.securityContext.windowsOptions.hostProcess", True, ""),
    (f"{POD}.securityContext.seccompProfile.type", "Unconfined", ""),
    (f"{POD}.securityContext.appArmorProfile.type", "Unconfined", ""),
    (f"{POD}.securityContext.seLinuxOptions.type", "spc_t", ""),
    (f"{POD}.securityContext.seLinuxOptions.user", "system_u", ""),
    (f"{POD}.securityContext.seLinuxOptions.role", "system_r", ""),
    (
        f"{POD}.securityContext.sysctls",
        [{"name": "net.ipv4.tcp_syncookies"}, {"name": "kernel.msgmax", "value": "1"}],
        "[1].name",
    ),
    (f"{MAIN}.securityContext.privileged", True, ""),
    (f"{MAIN}.securityContext.procMount", "Unmasked", ""),
    (f"{MAIN}.securityContext.capabilities.add", ["CHOWN", "SYS_ADMIN"], ""),
    (f"{MAIN}.securityContext.capabilities.add", ["ALL"], ""),
    (f"{MAIN}.securityContext.capabilities.add", ["NET_RAW"], ""),
    (f"{MAIN}.securityContext.seccompProfile.type", "Unconfined", ""),
    (f"{MAIN}.securityContext.appArmorProfile.type", "Unconfined", ""),
    (f"{MAIN}.securityContext.seLinuxOptions.type", "unconfined_t", ""),
    (f"{MAIN}.securityContext.windowsOptions.hostProcess", True, ""),
    (f"{MAIN}.ports", [{"containerPort": 80, "hostPort": 80}], "[0].hostPort"),
    (f"{MAIN}.livenessProbe.httpGet", {"host": "169.254.169.254", "port": 80}, ".host"),
    (f"{MAIN}.startupProbe.tcpSocket", {"host": "10.0.0.1", "port": 80}, ".host"),
    (f"{MAIN}.lifecycle.preStop.httpGet", {"host": "10.0.0.1", "port": 80}, ".host"),
    (
        f"{POD}.initContainers",
        [{"name": "first", "image": "train:1", "securityContext": {"privileged": True}}],
        "[0].securityContext.privileged",
    ),
    (
        f"{POD}.ephemeralContainers",
        [{"securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}],
        "[0].securityContext.capabilities.add",
    ),
    (ANNOTATIONS, {APPARMOR: "unconfined"}, f".{APPARMOR}"),
]
BASELINE_ACCEPTS: list[tuple[str, object]] = [
    (f"{POD}.hostNetwork", False),
    (f"{POD}.hostUsers", False),
    (f"{POD}.securityContext", {"runAsUser": 0, "runAsNonRoot": False}),
    (f"{MAIN}.securityContext.allowPrivilegeEscalation", True),
    (f"{POD}.securityContext.sysctls", [{"name": name, "value": "1"} for name in SYSCTLS]),
    (f"{POD}.securityContext.seLinuxOptions", {"type": "container_t", "level": "s0"}),
    (f"{POD}.securityContext.seLinuxOptions", {"type": "container_init_t"}),
    (f"{MAIN}.securityContext.seLinuxOptions", {"type": "container_kvm_t"}),
    (f"{MAIN}.securityContext.seLinuxOptions", {"type": "container_engine_t"}),
    (f"{MAIN}.securityContext.procMount", "Default"),
    (f"{POD}.volumes", [{"name": "a", "secret": {"secretName": "a"}}]),
    (f"{MAIN}.securityContext.capabilities", {"drop": ["ALL"], "add": CAPABILITIES}),
    (f"{MAIN}.securityContext.seccompProfile", {"type": "Localhost", "localhostProfile": "a"}),
    (f"{POD}.securityContext.appArmorProfile", {"type": "RuntimeDefault"}),
    (f"{MAIN}.ports", [{"containerPort": 80, "hostPort": 0}]),
    (f"{MAIN}.livenessProbe", {"httpGet": {"path": "/", "port": 80}}),
    (ANNOTATIONS, {APPARMOR: "localhost/mine"}),
    (ANNOTATIONS, {APPARMOR: "runtime/default"}),
]
