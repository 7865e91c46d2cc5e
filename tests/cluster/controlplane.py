"""A control plane that starts in seconds as any user: etcd, API server, controller manager and
scheduler on free ports.

With `fake_nodes`, kwok simulates nodes and pods (see kwok.py). It listens on loopback unless given
other hosts. All files are in one temporary folder, which is removed at the end; etcd does not sync
its writes to the disk.
"""

from __future__ import annotations

import base64
import json
import os
import random
import signal
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from ipaddress import ip_network
from pathlib import Path

from tests.cluster import kwok
from tests.cluster.api import CORE, Api, Object, RequestRefused
from tests.cluster.binaries import program
from tests.cluster.pki import Authority
from tests.cluster.processes import PartFailed, Processes
from tests.cluster.waiting import eventually
from tests.ports import free_port

LOOPBACK = "127.0.0.1"
ADMIN, USERS = "admin", ("user1", "user2")
READY_WITHIN_S = 90  # three to four seconds on an idle machine
# Flags of the API server for what is on by default from Kubernetes 1.36 on.
POLICIES = (
    "--feature-gates=MutatingAdmissionPolicy=true",
    "--runtime-config=admissionregistration.k8s.io/v1beta1=true",
)
# The client limits of the controller manager are the bottleneck
# of a busy cluster: 20 a second by default.
UNHURRIED = ("--kube-api-qps=500", "--kube-api-burst=1000")


class ControlPlane:
    """A running control plane. `close` ends it, and so does the end
    of this process, even by SIGKILL.

    `reached_by`: addresses at which pods reach the API server; if there are any, it listens on all
    interfaces.
    `users`: additional users, with the group of each. `flags`: additional flags of the API server.
    """

    def __init__(
        self,
        *,
        fake_nodes: int = 0,
        reached_by: tuple[str, ...] = (),
        users: Mapping[str, str] | None = None,
        services: str = "10.96.0.0/16",
        flags: Sequence[str] = (),
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="tuner-test-cluster-"))
        self.processes = Processes(self.folder)
        try:
            self._reached_by = reached_by
            self._flags = flags
            self._services = services
            own_service = str(next(ip_network(services).hosts()))
            names = (LOOPBACK, "localhost", "kubernetes.default.svc", own_service, *reached_by)
            self._ports = {name: free_port() for name in ("api", "etcd", "peer", "kwok", "logs")}
            self.authority = Authority(self.folder)
            self._serving = self.authority.issue("serving", "/CN=test-cluster", names)
            self._to_kubelets = self.authority.issue(
                "to-kubelets", "/O=system:masters/CN=to-kubelets"
            )
            self._signing = self.authority.issue("service-accounts", "/CN=service-accounts")
            groups = {ADMIN: "system:masters", **dict.fromkeys(USERS, ""), **(users or {})}
            self._tokens = {name: f"token-{random.getrandbits(128):x}" for name in groups}
            lines = (
                f'{self._tokens[name]},{name},{name},"{group}"\n' for name, group in groups.items()
            )
            (self.folder / "tokens.csv").write_text("".join(lines))
            self._start(fake_nodes)
        except BaseException:
            self.close()
            raise

    @property
    def server(self) -> str:
        return f"https://{LOOPBACK}:{self._ports['api']}"

    def api(self, user: str = ADMIN, *, token: str = "") -> Api:
        return Api(
            self.server, self.authority.own.certificate.read_text(), token or self._tokens[user]
        )

    def kubeconfig(
        self,
        user: str = ADMIN,
        *,
        namespace: str = "default",
        token: str = "",
        host: str = LOOPBACK,
    ) -> Path:
        """Write a kubeconfig for this user or token; its only context is named `test`."""
        path = self.folder / f"{user}-{namespace}{'-token' if token else ''}-{host}.kubeconfig"
        authority = base64.b64encode(self.authority.own.certificate.read_bytes()).decode()
        cluster = {
            "server": f"https://{host}:{self._ports['api']}",
            "certificate-authority-data": authority,
        }
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": user, "user": {"token": token or self._tokens[user]}}],
            "contexts": [
                {
                    "name": "test",
                    "context": {"cluster": "test", "user": user, "namespace": namespace},
                }
            ],
            "current-context": "test",
        }
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(content))
        beside.replace(path)  # atomically: an earlier process may be reading it
        return path

    def service_account_token(self, namespace: str, name: str) -> str:
        path = f"{CORE}/namespaces/{namespace}/serviceaccounts/{name}/token"
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        return str(self.api().post(path, request)["status"]["token"])

    def add_nodes(self, prefix: str, count: int, **kind: object) -> list[str]:
        """Add fake nodes `prefix-0`, `prefix-1`, ... and wait until they are Ready.

        `kind`: arguments of kwok.node.
        """
        names = [f"{prefix}-{index}" for index in range(count)]
        for name in names:
            self.api().post(f"{CORE}/nodes", kwok.node(name, **kind))  # type: ignore[arg-type]
        for name in names:
            self.api().until(f"{CORE}/nodes/{name}", ready)
        return names

    def stop_api_server(self) -> None:
        self.processes.stop("kube-apiserver")

    def start_api_server(self) -> None:
        """Start it on its earlier port; return when it is ready."""
        self._start_api_server()
        self._await_ready()

    def freeze(self, part: str, for_s: float) -> None:
        """Let a part answer nothing for a while.

        kwok starts again afterwards: it forgets pods whose statuses it could not write.
        """
        pid = self.processes.pid(part)
        os.kill(pid, signal.SIGSTOP)
        time.sleep(for_s)
        os.kill(pid, signal.SIGCONT)
        self._await_ready()
        for name in ("kwok", "logs"):
            self.processes.stop(name)
        self._start_kwok(f"--kubeconfig={self.kubeconfig()}")

    def compact(self) -> None:
        """Compact etcd and restart the API server, which drops its caches:
        watches from earlier versions get 410.
        """
        for index in range(3):  # so that there is history to compact
            made = {"metadata": {"name": f"history-{random.getrandbits(40):x}-{index}"}}
            name = self.api().post(f"{CORE}/namespaces/default/configmaps", made)["metadata"][
                "name"
            ]
            self.api().delete(f"{CORE}/namespaces/default/configmaps/{name}")
        self.stop_api_server()
        answer = self._etcd("/v3/kv/range", {"key": base64.b64encode(b"none").decode()})
        self._etcd(
            "/v3/kv/compaction", {"revision": answer["header"]["revision"], "physical": True}
        )
        self.start_api_server()

    def close(self) -> None:
        self.processes.close()

    def _start(self, fake_nodes: int) -> None:
        etcd, peer = (f"http://{LOOPBACK}:{self._ports[name]}" for name in ("etcd", "peer"))
        self.processes.start(
            "etcd",
            [
                program("etcd"),
                f"--data-dir={self.folder}/etcd",
                "--unsafe-no-fsync",
                "--log-level=warn",
                f"--listen-client-urls={etcd}",
                f"--advertise-client-urls={etcd}",
                f"--listen-peer-urls={peer}",
                f"--initial-advertise-peer-urls={peer}",
                f"--initial-cluster=default={peer}",
                "--quota-backend-bytes=4294967296",
            ],
        )
        self._start_api_server()
        self._await_ready()
        mine = f"--kubeconfig={self.kubeconfig()}"
        alone = (mine, "--leader-elect=false", "--secure-port=0", *UNHURRIED)
        self.processes.start(
            "kube-controller-manager",
            [
                program("kube-controller-manager"),
                *alone,
                "--use-service-account-credentials=false",
                f"--service-account-private-key-file={self._signing.key}",
                f"--root-ca-file={self.authority.own.certificate}",
                "--concurrent-job-syncs=20",
                "--node-monitor-grace-period=40s",
            ],
        )
        self.processes.start("kube-scheduler", [program("kube-scheduler"), *alone])
        if fake_nodes:
            self._start_kwok(mine)
            self.add_nodes("fake", fake_nodes)
        # Pods are refused where the account they run as is not there yet.
        self.api().until(
            f"{CORE}/namespaces/default/serviceaccounts/default", bool, within_s=READY_WITHIN_S
        )
        self.processes.check()

    def _start_api_server(self) -> None:
        authority, serving = self.authority.own.certificate, self._serving
        kubelets, signing = self._to_kubelets, self._signing
        self.processes.start(
            "kube-apiserver",
            [
                program("kube-apiserver"),
                f"--etcd-servers=http://{LOOPBACK}:{self._ports['etcd']}",
                f"--secure-port={self._ports['api']}",
                f"--bind-address={'0.0.0.0' if self._reached_by else LOOPBACK}",
                f"--advertise-address={(*self._reached_by, LOOPBACK)[0]}",
                f"--tls-cert-file={serving.certificate}",
                f"--tls-private-key-file={serving.key}",
                f"--client-ca-file={authority}",
                f"--kubelet-certificate-authority={authority}",
                f"--kubelet-client-certificate={kubelets.certificate}",
                f"--kubelet-client-key={kubelets.key}",
                "--kubelet-preferred-address-types=InternalIP",
                f"--service-account-key-file={signing.certificate}",
                f"--service-account-signing-key-file={signing.key}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--token-auth-file={self.folder}/tokens.csv",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                f"--service-cluster-ip-range={self._services}",
                "--allow-privileged=true",
                # A loopback address cannot be an endpoint of the Service `kubernetes`.
                f"--endpoint-reconciler-type={'lease' if self._reached_by else 'none'}",
                # A pod is evicted from a lost node after five seconds, not five minutes.
                "--default-not-ready-toleration-seconds=5",
                "--default-unreachable-toleration-seconds=5",
                *self._flags,
            ],
        )

    def _start_kwok(self, mine: str) -> None:
        options = self.folder / "kwok.yaml"
        options.write_text(
            kwok.configuration(
                port=self._ports["kwok"], log_port=self._ports["logs"], serving=self._serving
            )
        )
        self.processes.start("kwok", [program("kwok"), mine, "-c", options, "-c", kwok.STAGES])
        self.processes.start(
            "logs",
            [
                program("logs"),
                f"-server={self.server}",
                f"-ca={self.authority.own.certificate}",
                f"-token={self._tokens[ADMIN]}",
                f"-listen={LOOPBACK}:{self._ports['logs']}",
                f"-cert={self._serving.certificate}",
                f"-key={self._serving.key}",
            ],
        )

    def _await_ready(self) -> None:
        api = self.api()

        def ready() -> bool:
            self.processes.check()
            try:
                return api.text("/readyz") == "ok"
            except (OSError, RequestRefused):
                return False

        try:
            eventually(ready, within_s=READY_WITHIN_S)
        except AssertionError:
            raise PartFailed(f"no API server; {self.processes.tail('kube-apiserver')}") from None

    def _etcd(self, path: str, body: Object) -> Object:
        address = f"http://{LOOPBACK}:{self._ports['etcd']}{path}"
        request = urllib.request.Request(address, data=json.dumps(body).encode())
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read())  # type: ignore[no-any-return]


def ready(node: Object) -> bool:
    return any(
        c["type"] == "Ready" and c["status"] == "True"
        for c in node.get("status", {}).get("conditions", ())
    )
