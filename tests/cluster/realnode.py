"""A control plane and one real node on this machine: kubelet, containerd, runc, a bridge, CoreDNS,
kube-proxy. Needs root.

Containers, logs, kills, out-of-memory, names and Services are real. The node's two `nvidia.com/gpu`
are not: they are a number patched into its status, which scheduler, quota and kubelet count; no
container gets a device. There is one node, and no route to other networks.

Folders, sockets, ports and subnet are its own, so that several can share a machine. The node's
processes run in a network namespace, whose rules kube-proxy writes: those of the machine stay as
they are. The control plane runs outside of it, as on a machine of its own: a pair of interfaces
gives this machine the address `host` in the subnet of the node and its pods.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import binaries, images, sweeping
from tests.cluster.api import CORE, Object
from tests.cluster.binaries import program
from tests.cluster.controlplane import ControlPlane, ready
from tests.cluster.kwok import GPU
from tests.cluster.processes import PartFailed
from tests.cluster.waiting import eventually
from tests.ports import free_port

GPUS = 2
IMPORTED_WITHIN_S = 600.0  # more than a gigabyte, without overlays
# for the whole machine
SET_BY_KUBELET = ("vm/overcommit_memory", "kernel/panic", "kernel/panic_on_oops")
# for the node's network namespace alone: what a rule redirects is forwarded, and what pods send each
# other on the bridge passes the rules
BRIDGE_RULES = "net/bridge/bridge-nf-call-iptables"
SET_FOR_PROXY = ("net/ipv4/ip_forward", BRIDGE_RULES)
SETTINGS = Path("/proc/sys")
NAMESPACES = "/run/netns"
BRIDGE, HOST = "pods", "host"  # interfaces in the node's network namespace
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "ip": "iproute2",
    "iptables": "iptables",
    "openssl": "openssl",
}


def missing() -> str:
    """Return in one line why a real node cannot run here, or an empty string."""
    if os.geteuid() != 0:
        return "a real node takes root"
    lacking = [package for tool, package in PACKAGES.items() if not shutil.which(tool)]
    lacking += [] if _cni() else ["containernetworking-plugins"]
    if lacking:
        return f"a real node takes {', '.join(lacking)}: make cluster-packages"
    if not (SETTINGS / BRIDGE_RULES).exists():
        return "a real node takes the kernel module br_netfilter: modprobe br_netfilter"
    return binaries.missing(binaries.LEVEL_C) or images.missing()


class RealNode(ControlPlane):
    """A running cluster whose node is Ready and has `base` and GPUs.

    `flags`: additional flags of the API server.
    """

    def __init__(self, *, flags: Sequence[str] = ()) -> None:
        # 256 addresses each: of 10.192.0.0/10, and for Services of 10.128.0.0/10
        mark = random.randrange(1 << 14)
        pods, services = (f"10.{start + mark // 256}.{mark % 256}" for start in (192, 128))
        self.subnet = f"{pods}.0/24"
        self.address, self.host, self._first_of_pods = (f"{pods}.{last}" for last in (1, 2, 3))
        self.link = f"tuner{mark:04x}"  # the network namespace, and this machine's interface to it
        self.name = f"real-{mark:04x}"
        super().__init__(
            reached_by=(self.host,),
            services=f"{services}.0/24",
            users={f"system:node:{self.name}": "system:nodes", "network": "system:masters"},
            flags=flags,
        )
        try:
            for setting in SET_BY_KUBELET:
                value = (SETTINGS / setting).read_text().strip()
                self.processes.undo_with("sh", "-c", f"echo {value} > /proc/sys/{setting}")
            self._socket = self.folder / "containerd.sock"
            sweep = [sys.executable, "-I", sweeping.__file__, str(self.folder), self.link]
            self.processes.undo_with(*sweep)
            self._start_network()
            self._start_containerd()
            self.load(images.PAUSE)
            self._start_kubelet()
            self._start_proxy()
            self.load(images.BASE)
        except BaseException:
            self.close()
            raise

    def load(self, tag: str) -> None:
        """Import an image from the cache: `images.archive(tag)`, unless the node has it."""
        if tag not in self.ctr("images", "ls", "--quiet").splitlines():
            self.import_image(images.archive(tag))

    def import_image(self, archive: Path) -> None:
        self.ctr(
            "images",
            "import",
            "--snapshotter",
            self._snapshotter,
            str(archive),
            within_s=IMPORTED_WITHIN_S,
        )

    def ctr(self, *words: str, within_s: float = 120) -> str:
        command = ["ctr", "--address", str(self._socket), "--namespace", "k8s.io", *words]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=within_s, check=False
        )
        if done.returncode != 0:
            raise PartFailed(
                f"ctr {' '.join(words[:2])}: {done.stderr.strip()}; "
                f"{self.processes.tail('containerd')}"
            )
        return done.stdout

    def _start_kubelet(self) -> None:
        """Start it; return when the node is Ready and has its GPUs."""
        files = self.folder
        self._start_inside(
            "kubelet",
            [
                program("kubelet"),
                f"--config={files}/kubelet.json",
                f"--root-dir={files}/kubelet",
                f"--cert-dir={files}/kubelet-certificates",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
                f"--kubeconfig={self.kubeconfig(f'system:node:{self.name}', host=self.host)}",
            ],
        )
        path = f"{CORE}/nodes/{self.name}"

        def is_ready() -> bool:
            self.processes.check()
            found = self.api().find(path)
            return found is not None and ready(found)

        try:
            eventually(is_ready, within_s=180)
        except AssertionError:
            raise PartFailed(f"the node is not Ready; {self.processes.tail('kubelet')}") from None
        self.advertise_gpus(GPUS)

    def advertise_gpus(self, count: int) -> None:
        """Set the number of GPUs, as the kubelet would for a device plugin;
        there are no devices.
        """
        counted = {GPU: str(count)}
        self.api().patch(
            f"{CORE}/nodes/{self.name}/status",
            {"status": {"capacity": counted, "allocatable": counted}},
        )
        self.api().until(
            f"{CORE}/nodes/{self.name}",
            lambda node: node["status"]["allocatable"].get(GPU) == str(count),
        )

    def _start_inside(self, name: str, command: Sequence[str | Path]) -> None:
        """Start it in the node's network. It sees the files and mounts of this machine."""
        self.processes.start(name, ["nsenter", f"--net={NAMESPACES}/{self.link}", *command])

    def _start_network(self) -> None:
        for words in (
            ("netns", "add", self.link),
            ("link", "add", self.link, "type", "veth", "peer", "name", HOST, "netns", self.link),
            ("address", "add", f"{self.host}/24", "dev", self.link),
            ("link", "set", self.link, "up"),
            ("-n", self.link, "link", "set", "lo", "up"),
            ("-n", self.link, "link", "add", BRIDGE, "type", "bridge"),
            ("-n", self.link, "address", "add", f"{self.address}/24", "dev", BRIDGE),
            ("-n", self.link, "link", "set", BRIDGE, "up"),
            ("-n", self.link, "link", "set", HOST, "master", BRIDGE, "up"),
            # The API server calls webhooks.
            ("route", "add", self._services, "via", self.address, "dev", self.link),
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)
        self._let_rules_apply()
        subnet = {
            "type": "host-local",
            "dataDir": f"{self.folder}/leases",
            "ranges": [
                [
                    {
                        "subnet": self.subnet,
                        "rangeStart": self._first_of_pods,
                        "gateway": self.address,
                    }
                ]
            ],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        bridge = {
            "type": "bridge",
            "bridge": BRIDGE,
            "isGateway": False,
            "ipMasq": False,
            "ipam": subnet,
        }
        (self.folder / "cni").mkdir()
        network = {"cniVersion": "0.4.0", "name": self.link, "plugins": [bridge]}
        (self.folder / "cni/10-bridge.conflist").write_text(json.dumps(network))
        (self.folder / "Corefile").write_text(f"""
            cluster.local:53 in-addr.arpa:53 {{
                bind {self.address}
                kubernetes cluster.local in-addr.arpa {{
                    kubeconfig {self.kubeconfig("network", host=self.host)} test
                    ttl 1
                }}
            }}
            .:53 {{
                bind {self.address}
                template ANY ANY {{
                    rcode NXDOMAIN
                }}
            }}
        """)
        self._start_inside("coredns", [program("coredns"), "-conf", self.folder / "Corefile"])

    def _let_rules_apply(self) -> None:
        script = "\n".join(f"echo 1 > /proc/sys/{setting}" for setting in SET_FOR_PROXY)
        done = subprocess.run(
            ["nsenter", f"--net={NAMESPACES}/{self.link}", "sh", "-ec", script],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if done.returncode != 0:
            raise PartFailed(f"kube-proxy needs br_netfilter: {done.stderr.strip()}")

    def _start_proxy(self) -> None:
        options = {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(self.kubeconfig("network", host=self.host))},
            "hostnameOverride": self.name,
            "mode": "iptables",
            "clusterCIDR": self.subnet,
            # Settings of the whole machine, which a network namespace may not write.
            "conntrack": {
                "maxPerCore": 0,
                "min": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "iptables": {"localhostNodePorts": False},
        }
        path = self.folder / "kube-proxy.json"
        path.write_text(json.dumps(options))
        self._start_inside("kube-proxy", [program("kube-proxy"), f"--config={path}"])

    def _start_containerd(self) -> None:
        self._snapshotter = "overlayfs" if _overlay_works(self.folder) else "native"
        (self.folder / "containerd.toml").write_text(f"""
            version = 2
            root = "{self.folder}/containerd/root"
            state = "{self.folder}/containerd/run"
            [grpc]
              address = "{self._socket}"
            [plugins."io.containerd.internal.v1.opt"]
              path = "{self.folder}/containerd/opt"
            [plugins."io.containerd.grpc.v1.cri"]
              sandbox_image = "{images.PAUSE}"
              # Without CAP_SYS_RESOURCE no sandbox starts otherwise.
              restrict_oom_score_adj = true
              netns_mounts_under_state_dir = true
              stream_server_address = "127.0.0.1"
            [plugins."io.containerd.grpc.v1.cri".containerd]
              snapshotter = "{self._snapshotter}"
            [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
              runtime_type = "io.containerd.runc.v2"
            [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
              Root = "{self.folder}/containerd/runc"
            [plugins."io.containerd.grpc.v1.cri".cni]
              bin_dir = "{_cni()}"
              conf_dir = "{self.folder}/cni"
        """)
        self._start_inside(
            "containerd", ["containerd", "--config", self.folder / "containerd.toml"]
        )

        def answers() -> bool:
            self.processes.check()
            words = ["ctr", "--address", str(self._socket), "version"]
            return (
                subprocess.run(words, capture_output=True, timeout=30, check=False).returncode == 0
            )

        eventually(answers)
        (self.folder / "kubelet.json").write_text(json.dumps(self._kubelet_options()))

    def _kubelet_options(self) -> Object:
        serving = self.authority.issue("kubelet", f"/CN={self.name}", (self.address,))
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": False},
                "x509": {"clientCAFile": str(self.authority.own.certificate)},
            },
            "authorization": {"mode": "AlwaysAllow"},
            "tlsCertFile": str(serving.certificate),
            "tlsPrivateKeyFile": str(serving.key),
            "address": self.address,
            "port": free_port(),
            "healthzPort": free_port(),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            # Two kubelets that share the default folder remove each other's logs.
            "podLogsDir": f"{self.folder}/pod-logs",
            # The shortest; ten seconds by default. What is rotated is as by default: 10 MiB.
            "containerLogMonitorInterval": "3s",
            "volumePluginDir": f"{self.folder}/volume-plugins",
            "podCIDR": self.subnet,
            "clusterDNS": [self.address],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
            "failSwapOn": False,
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "1%",
                "imagefs.available": "1%",
            },
            "imageGCHighThresholdPercent": 100,
        }


def _cni() -> str:
    return next((folder for folder in CNI_FOLDERS if Path(folder, "bridge").exists()), "")


def _overlay_works(folder: Path) -> bool:
    """Return whether overlays can be mounted;
    without them every container is a copy of its image.
    """
    places = {name: folder / "overlay" / name for name in ("lower", "upper", "work", "merged")}
    for place in places.values():
        place.mkdir(parents=True)
    options = f"lowerdir={places['lower']},upperdir={places['upper']},workdir={places['work']}"
    mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(places["merged"])]
    works = subprocess.run(mount, capture_output=True, timeout=30, check=False).returncode == 0
    if works:
        subprocess.run(
            ["umount", str(places["merged"])], capture_output=True, timeout=30, check=True
        )
    return works
