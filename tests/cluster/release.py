"""The chart on a real node, as helm installs it: the controller in its pod, with a volume there."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster import images
from tests.cluster.api import Object
from tests.cluster.installed import CHART, KUBEFLOW, SYSTEM, Kubectl, helm
from tests.cluster.objects import disk
from tests.cluster.realnode import RealNode

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


@contextmanager
def released(level_c: RealNode, **values: Object) -> Iterator[Kubectl]:
    """Install the chart with these values and the image of this checkout; remove it at the end."""
    images.server()
    level_c.load(images.SERVER)
    kubectl = Kubectl(level_c.kubeconfig())
    for name, labels in ((SYSTEM, RESTRICTED), (KUBEFLOW, {})):
        metadata = {"name": name, "labels": labels}
        kubectl.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": metadata}])
    folder = level_c.folder / "disk-controller"
    folder.mkdir(exist_ok=True)
    folder.chmod(0o777)  # a hostPath volume does not follow fsGroup
    volume = disk("controller", SYSTEM, folder, claim="tuner-controller")
    kubectl.apply([{"apiVersion": "v1", "kind": "PersistentVolume", **volume}])
    repository, _, tag = images.SERVER.rpartition(":")
    image = {"repository": repository, "tag": tag, "pullPolicy": "Never"}
    path = folder.with_suffix(".json")
    path.write_text(json.dumps({"image": image, **values}))
    # Other tests have created the same objects without helm. The chart looks whose Katib's are.
    for definition in kubectl("get", "crd", "-o", "name").split():
        if definition.endswith(".kubeflow.org"):
            kubectl("annotate", "--overwrite", definition, "meta.helm.sh/release-name=tuner")
    installing = ("install", "tuner", str(CHART), "--take-ownership", "--values", str(path))
    helm(level_c.kubeconfig(), *installing)
    try:
        yield kubectl
    finally:
        for kind in (
            "experiments.tuner.dev",
            *(["experiments.kubeflow.org"] if "katib" in values else []),
        ):
            kubectl("delete", kind, "--all", "--all-namespaces", "--timeout=60s")
        helm(level_c.kubeconfig(), "uninstall", "tuner")
        # The next test installs under the same names.
        kubectl("delete", "namespace", SYSTEM, "--timeout=120s")
        kubectl("delete", "persistentvolume", "controller", "--timeout=60s")
