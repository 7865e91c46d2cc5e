"""A control plane and one real node on this machine: kubelet, containerd, runc, a bridge, CoreDNS.
Needs root.

Containers, logs, kills, out-of-memory and names are real. The node's two `nvidia.com/gpu` are not:
they are a number patched into its status, which scheduler, quota and kubelet count; no container
gets a device. There is one node, no kube-proxy (headless Services have names, but no ClusterIP
answers, not even that of the API server), and no route to other networks.

Folders, sockets, ports, bridge and subnet are its own, so that several can share a machine.
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
CNI_FOLDERS = ("/usr/lib/cni", "/opt/cni/bin")
PACKAGES = {
    "containerd": "containerd",
    "runc": "runc",
    "buildah": "buildah",
    "ip": "iproute2",
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
    return binaries.missing(binaries.LEVEL_C) or images.missing()


class RealNode(ControlPlane):
    """A running cluster whose node is Ready and has `base` and GPUs.

    `flags`: additional flags of the API server.
    """

    def __init__(self, *, flags: Sequence[str] = ()) -> None:
        mark = random.randrange(1 << 14)  # of 10.192.0.0/10: 256 addresses each
        self.subnet = f"10.{192 + mark // 256}.{mark % 256}.0/24"
        self.gateway = f"10.{192 + mark // 256}.{mark % 256}.1"
        self.bridge = f"tuner{mark:04x}"
        self.name = f"real-{mark:04x}"
        super().__init__(
            reached_by=(self.gateway,),
            users={f"system:node:{self.name}": "system:nodes", "dns": "system:masters"},
            flags=flags,
        )
        try:
            for setting in SET_BY_KUBELET:
                value = Path("/proc/sys", setting).read_text().strip()
                self.processes.undo_with("sh", "-c", f"echo {value} > /proc/sys/{setting}")
            self._socket = self.folder / "containerd.sock"
            sweep = [sys.executable, "-I", sweeping.__file__, str(self.folder), self.bridge]
            self.processes.undo_with(*sweep)
            self._start_network()
            self._start_containerd()
            self.load(images.PAUSE)
            self.start_kubelet()
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

    def stop_kubelet(self) -> None:
        """Kill it: containers run on, and the API server is not told."""
        self.processes.stop("kubelet")

    def start_kubelet(self) -> None:
        """Start it; return when the node is Ready and has its GPUs."""
        files = self.folder
        self.processes.start(
            "kubelet",
            [
                program("kubelet"),
                f"--config={files}/kubelet.json",
                f"--root-dir={files}/kubelet",
                f"--cert-dir={files}/kubelet-certificates",
                f"--hostname-override={self.name}",
                f"--node-ip={self.gateway}",
                f"--kubeconfig={self.kubeconfig(f'system:node:{self.name}')}",
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

    def _start_network(self) -> None:
        for words in (
            ("link", "add", self.bridge, "type", "bridge"),
            ("address", "add", f"{self.gateway}/24", "dev", self.bridge),
            ("link", "set", self.bridge, "up"),
        ):
            subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)
        subnet = {
            "type": "host-local",
            "dataDir": f"{self.folder}/leases",
            "ranges": [[{"subnet": self.subnet, "gateway": self.gateway}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        }
        # No gateway and no masquerading: those would change settings of the whole machine.
        bridge = {
            "type": "bridge",
            "bridge": self.bridge,
            "isGateway": False,
            "ipMasq": False,
            "ipam": subnet,
        }
        (self.folder / "cni").mkdir()
        network = {"cniVersion": "0.4.0", "name": self.bridge, "plugins": [bridge]}
        (self.folder / "cni/10-bridge.conflist").write_text(json.dumps(network))
        (self.folder / "Corefile").write_text(f"""
            cluster.local:53 in-addr.arpa:53 {{
                bind {self.gateway}
                kubernetes cluster.local in-addr.arpa {{
                    kubeconfig {self.kubeconfig("dns")} test
                    ttl 1
                }}
            }}
            .:53 {{
                bind {self.gateway}
                template ANY ANY {{
                    rcode NXDOMAIN
                }}
            }}
        """)
        self.processes.start("coredns", [program("coredns"), "-conf", self.folder / "Corefile"])

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
        self.processes.start(
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
        serving = self.authority.issue("kubelet", f"/CN={self.name}", (self.gateway,))
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
            "address": self.gateway,
            "port": free_port(),
            "healthzPort": free_port(),
            "containerRuntimeEndpoint": f"unix://{self._socket}",
            # Two kubelets that share the default folder remove each other's logs.
            "podLogsDir": f"{self.folder}/pod-logs",
            # The shortest; ten seconds by default. What is rotated is as by default: 10 MiB.
            "containerLogMonitorInterval": "3s",
            "volumePluginDir": f"{self.folder}/volume-plugins",
            "podCIDR": self.subnet,
            "clusterDNS": [self.gateway],
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
            "makeIPTablesUtilChains": False,  # the machine's tables are not ours to change
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
