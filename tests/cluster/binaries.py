"""The programs of the test cluster: built once from pinned Go modules, then found in a cache.

`python -m tests.cluster.binaries` builds what is missing (about ten minutes on two cores), and with
the argument `operator-binaries` the operators of `tests/operators` (ten more minutes). If the cache
is complete, it builds nothing. The cache key of a set is a hash of its sources, so a changed pin is
built beside the old one. The version of Go is not part of the key: a binary also works on a machine
with a newer Go, or without Go. Tests only look programs up: no test builds anything.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import yaml

SOURCES = Path(__file__).resolve().parent / "go"
KUBERNETES = "v1.34.4"
# The parts of its manifests that an operator needs when it runs as a process of the host.
INSTALLED = (
    "Namespace",
    "Secret",
    "CustomResourceDefinition",
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
)


@dataclass(frozen=True, slots=True)
class Manifest:
    """A JSON file with the INSTALLED objects that kustomize builds from folders of a Go module."""

    file: str
    module: str
    folders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Module:
    """A folder of go/ and the programs that its `tool` lines (or its own main package) build."""

    name: str
    programs: tuple[str, ...]
    renamed: tuple[str, str] = ("", "")  # the name in Go, the usual name
    own: bool = False  # a program of ours, not a list of tools
    # Nothing is built: these files are taken from the one module that go.mod requires.
    taken: tuple[str, ...] = ()
    stamp: str = ""
    manifests: tuple[Manifest, ...] = ()
    target: str = "cluster-binaries"  # of the Makefile

    @property
    def files(self) -> tuple[str, ...]:
        return (*self.programs, *(manifest.file for manifest in self.manifests))

    @property
    def folder(self) -> Path:
        inputs = sorted([*(SOURCES / self.name).glob("go.*"), *(SOURCES / self.name).glob("*.go")])
        digest = hashlib.sha256(self.stamp.encode())
        for path in inputs:
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        if self.manifests:
            digest.update(repr((self.manifests, INSTALLED)).encode())
        return cache() / f"{self.name}-{digest.hexdigest()[:16]}"

    @property
    def built(self) -> bool:
        return all((self.folder / file).exists() for file in self.files)


# versions of Kubeflow Trainer whose definition of TrainJobs tests install
TRAINERS = ("2.0", "2.1", "2.2", "2.3")
_MONITORING = "example/prometheus-operator-crd/monitoring.coreos.com"
_VERSION = "k8s.io/component-base/version"
_KUBERNETES = (
    f"-X {_VERSION}.gitVersion={KUBERNETES} -X {_VERSION}.gitMajor=1 -X {_VERSION}.gitMinor=34"
)
MODULES = (
    Module(
        "core",
        (
            "etcd",
            "kube-apiserver",
            "kube-controller-manager",
            "kube-scheduler",
            "kubelet",
            "kubectl",
        ),
        renamed=("server", "etcd"),
        stamp=_KUBERNETES,
    ),
    # Apart from `core`, which takes most of the time to build: its key stays.
    Module("kube-proxy", ("kube-proxy",), stamp=_KUBERNETES),
    Module("kwok", ("kwok",)),
    Module("logs", ("logs",), own=True),
    Module("pause", ("pause",), own=True),
    Module("coredns", ("coredns",)),
    Module("helm", ("helm",)),
    Module(
        "jobset",
        ("jobsets.yaml",),
        taken=("config/components/crd/bases/jobset.x-k8s.io_jobsets.yaml",),
    ),
    Module(
        "monitoring",
        ("servicemonitors.yaml", "prometheusrules.yaml"),
        taken=(
            f"{_MONITORING}_servicemonitors.yaml",
            f"{_MONITORING}_prometheusrules.yaml",
        ),
    ),
    *(
        Module(
            f"trainer-{version}",
            (f"trainjobs-{version}.yaml",),
            taken=("manifests/base/crds/trainer.kubeflow.org_trainjobs.yaml",),
        )
        for version in TRAINERS
    ),
    Module(
        "kueue",
        ("kueue",),
        manifests=(Manifest("kueue.json", "sigs.k8s.io/kueue", ("config/default",)),),
        target="operator-binaries",
    ),
    Module(
        "trainer",
        ("jobset", "trainer-controller-manager"),
        manifests=(
            Manifest("jobset.json", "sigs.k8s.io/jobset", ("config/default",)),
            # Its overlays fetch JobSet from the network.
            Manifest(
                "trainer.json",
                "github.com/kubeflow/trainer/v2",
                ("manifests/base/crds", "manifests/base/webhook"),
            ),
        ),
        target="operator-binaries",
    ),
    Module(
        "trainingoperator",
        ("training-operator.v1",),
        manifests=(
            Manifest(
                "trainingoperator.json",
                "github.com/kubeflow/training-operator",
                ("manifests/overlays/standalone",),
            ),
        ),
        target="operator-binaries",
    ),
    Module(
        "katib",
        ("katib-controller",),
        renamed=("v1beta1", "katib-controller"),
        manifests=(
            Manifest(
                "katib.json",
                "github.com/kubeflow/katib",
                ("manifests/v1beta1/components/crd", "manifests/v1beta1/components/webhook"),
            ),
        ),
        target="operator-binaries",
    ),
)
LEVEL_B = (
    "core",
    "kwok",
    "logs",
    "jobset",
    "monitoring",
    *(f"trainer-{version}" for version in TRAINERS),
)
LEVEL_C = ("core", "kube-proxy", "pause", "coredns")
OPERATORS = ("kueue", "trainer", "trainingoperator")
KATIB = ("katib",)


def cache() -> Path:
    """Return the folder that keeps expensive build results between runs.

    It can be removed safely.
    """
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(home).expanduser() / "tuner-test-cluster"


def missing(modules: tuple[str, ...]) -> str:
    """Return one line with the cure, or an empty string if nothing is missing."""
    lacking = [module for module in MODULES if module.name in modules and not module.built]
    names, targets = (
        ", ".join(module.name for module in lacking),
        " ".join({module.target: "" for module in lacking}),
    )
    return f"the cluster's programs are not built ({names}): make {targets}" if lacking else ""


def module_of(file: str) -> Module:
    return next(module for module in MODULES if file in module.files)


def program(name: str) -> Path:
    return module_of(name).folder / name


def build(module: Module) -> None:
    """Build a set unless the cache has it. A second process waits for the first."""
    if module.built:
        return
    with locked(module.folder):
        if module.built:
            return
        began = time.monotonic()
        print(
            f"building {module.name}: {', '.join(module.programs)} ...", file=sys.stderr, flush=True
        )
        with tempfile.TemporaryDirectory(dir=cache(), prefix=f".{module.name}-") as scratch:
            made = Path(scratch) / "bin"
            made.mkdir()
            _take(module, made) if module.taken else _compile(module, made)
            for manifest in module.manifests:
                (made / manifest.file).write_text(json.dumps(_installed(module, manifest)))
            was, now = module.renamed
            if was:
                (made / was).rename(made / now)
            shutil.rmtree(module.folder, ignore_errors=True)  # an incomplete earlier build
            made.rename(module.folder)
        print(
            f"built {module.name} in {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True
        )


def _compile(module: Module, made: Path) -> None:
    flags = ["-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", f"-s -w {module.stamp}".strip()]
    subprocess.run(
        ["go", "build", *flags, "-o", f"{made}/", "." if module.own else "tool"],
        cwd=SOURCES / module.name,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )


def _take(module: Module, made: Path) -> None:
    for path, file in zip(module.taken, module.programs, strict=True):
        shutil.copyfile(_sources(module) / path, made / file)


def _installed(module: Module, manifest: Manifest) -> list[dict[str, object]]:
    build(module_of("kubectl"))
    found: list[dict[str, object]] = []
    for folder in manifest.folders:
        command = [program("kubectl"), "kustomize", _sources(module, manifest.module) / folder]
        text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        found += [
            each for each in yaml.load_all(text, yaml.CSafeLoader) if each["kind"] in INSTALLED
        ]
    return found


def _sources(module: Module, *which: str) -> Path:
    """Return Go's folder of a module's only dependency, or of the named one."""
    answer = subprocess.run(
        ["go", "mod", "download", "-json", *which],
        cwd=SOURCES / module.name,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout
    return Path(json.loads(answer)["Dir"])


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the lock on this folder of the cache; wait for a process that builds it already."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.with_name(f"{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> int:
    target = (sys.argv[1:] or ["cluster-binaries"])[0]
    lacking = [module for module in MODULES if module.target == target and not module.built]
    if lacking and not shutil.which("go"):
        print(
            "building the test cluster's programs needs Go 1.26 or later: https://go.dev/dl",
            file=sys.stderr,
        )
        return 1
    for module in lacking:
        try:
            build(module)
        except subprocess.CalledProcessError as failed:
            print(f"{module.name}: go ended with {failed.returncode}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
