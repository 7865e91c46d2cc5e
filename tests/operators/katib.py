"""A real Katib 0.19 beside a test cluster: its definitions, its webhooks for Experiments, and its
controller as a process of the host.

Of its other parts, tests play what the controller asks for: the service of suggestions, which is a
pod for each Experiment and stays unschedulable here, and the manager of its database.

    cluster = ControlPlane(fake_nodes=2)
    katib = Katib(cluster)         # ready: the webhooks answer, the controller runs
    katib.suggest(namespace)       # once for each time that suggestions may be missing
"""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from contextlib import ExitStack

from tests.cluster import binaries
from tests.cluster.api import CORE, Api, Object
from tests.cluster.binaries import program
from tests.cluster.controlplane import LOOPBACK, ControlPlane
from tests.cluster.jobset import define
from tests.cluster.pki import Authority
from tests.cluster.waiting import eventually
from tests.kube.katib_database import database
from tests.ports import free_port

VERSION = "0.19.0"
NAME = "katib-controller"
GROUP = "/apis/kubeflow.org/v1beta1/namespaces/{namespace}/{plural}"
INJECTION = {"katib.kubeflow.org/metrics-collector-injection": "enabled"}
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_READY_WITHIN_S = 60
_PODS = "mutator.pod.katib.kubeflow.org"  # adds the sidecar, whose image fake nodes do not run


def missing() -> str:
    """Return in one line why it cannot run here, or an empty string."""
    return binaries.missing((*binaries.LEVEL_B, *binaries.KATIB))


class Katib:
    """Katib in one cluster. It ends with the cluster's processes.

    value: what each trial has reported. variables: by which clients find the database.
    """

    def __init__(self, cluster: ControlPlane) -> None:
        self.cluster = cluster
        self.value = "0.5"
        self._folder = cluster.folder / "katib"
        (self._folder / "cert").mkdir(parents=True)
        self._webhook, self._health, self._metrics = free_port(), free_port(), free_port()
        self._authority = Authority(self._folder)
        self._open = ExitStack()
        self.variables = self._open.enter_context(database(lambda _trial: [self.value]))
        self._install()
        self.start()

    def stop(self) -> None:
        self.cluster.processes.stop(NAME)

    def close(self) -> None:
        self._open.close()

    def start(self) -> None:
        """Start the controller; return when it is ready."""
        (self._folder / "kubeconfig").write_bytes(self.cluster.kubeconfig().read_bytes())
        # It reads its certificate from /tmp/cert.
        script = 'mount --bind "$1" /tmp && shift && exec "$@"'
        in_own_tmp = ("unshare", "--mount", "sh", "-c", script, "sh", self._folder)
        environment = {
            "KUBECONFIG": "/tmp/kubeconfig",
            "KATIB_CORE_NAMESPACE": "kubeflow",
            **self.variables,
        }
        command = [*in_own_tmp, program(NAME), "--katib-config=/tmp/katib-config.yaml"]
        self.cluster.processes.start(NAME, command, environment=environment)
        eventually(self._is_ready, within_s=_READY_WITHIN_S)

    def _is_ready(self) -> bool:
        self.cluster.processes.check()
        try:
            with urllib.request.urlopen(f"http://{LOOPBACK}:{self._health}/readyz", timeout=5):
                return True
        except (urllib.error.URLError, OSError):
            return False

    def _install(self) -> None:
        api = self.cluster.api()
        api.post(f"{CORE}/namespaces", {"metadata": {"name": "kubeflow"}})
        for each in json.loads(program("katib.json").read_text()):
            match each["kind"]:
                case "CustomResourceDefinition":
                    define(api, each)
                case "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration":
                    self._hook(api, each)
        issued = self._authority.issue("serving", "/CN=katib", ("localhost", LOOPBACK))
        (self._folder / "cert" / "tls.crt").write_bytes(issued.certificate.read_bytes())
        (self._folder / "cert" / "tls.key").write_bytes(issued.key.read_bytes())
        text = json.dumps(self._configuration)
        (self._folder / "katib-config.yaml").write_text(text)
        about = {"name": "katib-config", "namespace": "kubeflow"}
        config = {"metadata": about, "data": {"katib-config.yaml": text}}
        api.post(f"{CORE}/namespaces/kubeflow/configmaps", config)

    def _hook(self, api: Api, each: Object) -> None:
        each["webhooks"] = [hook for hook in each["webhooks"] if hook["name"] != _PODS]
        bundle = base64.b64encode(self._authority.own.certificate.read_bytes()).decode()
        for hook in each["webhooks"]:
            path = hook["clientConfig"]["service"]["path"]
            url = f"https://{LOOPBACK}:{self._webhook}{path}"
            hook["clientConfig"] = {"url": url, "caBundle": bundle}
        plural = each["kind"].lower() + "s"
        api.post(f"{_ADMISSION}/{plural}", each)

    @property
    def _configuration(self) -> Object:
        suggestion = {
            "algorithmName": "random",
            "image": "suggestion:none",
            "resources": {"requests": {"cpu": "10000"}, "limits": {"cpu": "10000"}},
        }
        return {
            "apiVersion": "config.kubeflow.org/v1beta1",
            "kind": "KatibConfig",
            "init": {
                "controller": {
                    "webhookPort": self._webhook,
                    "metricsAddr": f"{LOOPBACK}:{self._metrics}",
                    "healthzAddr": f"{LOOPBACK}:{self._health}",
                    "trialResources": ["Job.v1.batch"],
                }
            },
            "runtime": {
                "metricsCollectors": [{"kind": "StdOut", "image": "collector:none"}],
                "suggestions": [suggestion],
            },
        }

    def objects(self, namespace: str, plural: str) -> list[Object]:
        return self.cluster.api().items(GROUP.format(namespace=namespace, plural=plural))

    def experiment(self, namespace: str, name: str = "tiny") -> Object:
        path = GROUP.format(namespace=namespace, plural="experiments")
        return self.cluster.api().get(f"{path}/{name}")

    def suggest(self, namespace: str, name: str = "tiny") -> None:
        """Suggest as many trials as Katib has asked for."""
        path = f"{GROUP.format(namespace=namespace, plural='suggestions')}/{name}"
        api = self.cluster.api()
        found = api.find(path)
        if found is None:
            return
        known = (found.get("status") or {}).get("suggestions") or []
        more = [
            {
                "name": f"{name}-{number:08d}",
                "parameterAssignments": [{"name": "x", "value": str((number % 97) / 97)}],
            }
            for number in range(len(known), found["spec"]["requests"])
        ]
        if more:
            status = {"suggestions": [*known, *more], "suggestionCount": len(known) + len(more)}
            api.patch(f"{path}/status", {"status": status})
