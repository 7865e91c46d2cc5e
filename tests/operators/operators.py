"""The real operators as host processes beside a test cluster: Kueue, JobSet,
Training Operator and Trainer.

How to use them:

    cluster = ControlPlane(fake_nodes=4)            # or RealNode(): real containers
    operators = Operators(cluster)                  # ready: webhooks answer, controllers run
    ...
    cluster.close()                                 # ends them too

or, in a test, the fixtures `fakes` and `real` of conftest.py.
`python -m tests.operators.by_hand [--real]` starts the same for a person. Versions are pinned in
tests/cluster/go/{kueue,trainer,trainingoperator}/go.mod; the programs are built by
`make operator-binaries`. Needs root: the Training Operator reads its certificate from a fixed
folder below /tmp and therefore gets a /tmp of its own.

Webhooks: the API server calls https://127.0.0.1:PORT, and every clientConfig carries our own
authority. Kueue and the Training Operator insist on managing their certificates; they find valid
ones in their Secret and leave them alone.

On a real node, workers of a PyTorchJob wait for the name of their master (`pytorch_init`, an image
with Python), and the launcher of an MPIJob gets kubectl from `mpi_delivery`, an image whose entry
point copies it to /opt/kube/kubectl.
"""

from __future__ import annotations

import base64
import json
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from tests.cluster import binaries, images
from tests.cluster.api import CORE, Api, Object, RequestRefused
from tests.cluster.binaries import program
from tests.cluster.controlplane import LOOPBACK, ControlPlane
from tests.cluster.jobset import DEFINITIONS, define
from tests.cluster.pki import Authority, Certificate
from tests.cluster.processes import PartFailed
from tests.cluster.waiting import eventually
from tests.operators.trainers import MPI_DELIVERY
from tests.ports import free_port

KUEUE, JOBSET, TRAINING, TRAINER = "kueue", "jobset", "training-operator", "trainer"
VERSIONS = {"Kueue": "0.19.0", "JobSet": "0.12.0", "Training Operator": "1.9.3", "Trainer": "2.3.0"}
READY_WITHIN_S = 60  # three seconds on an idle machine
QPS, BURST = 500, 1000
CERTIFICATE_FOLDER = "k8s-webhook-server/serving-certs"  # below TMPDIR, or below /tmp
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
COLLECTIONS = {
    "Namespace": f"{CORE}/namespaces",
    "CustomResourceDefinition": DEFINITIONS,
    "MutatingWebhookConfiguration": f"{ADMISSION}/mutatingwebhookconfigurations",
    "ValidatingWebhookConfiguration": f"{ADMISSION}/validatingwebhookconfigurations",
}
# MPIJob is missing: Kueue knows v2beta1, and the Training Operator serves v1.
FRAMEWORKS = (
    "batch/job",
    "jobset.x-k8s.io/jobset",
    "kubeflow.org/pytorchjob",
    "kubeflow.org/tfjob",
    "kubeflow.org/xgboostjob",
    "trainer.kubeflow.org/trainjob",
)
Command: TypeAlias = tuple[list[str | Path], dict[str, str]]  # words, environment
WAITS_FOR_MASTER = """
- name: init-pytorch
  image: {{.InitContainerImage}}
  imagePullPolicy: IfNotPresent
  env:
  - {name: MASTER, value: "{{.MasterAddr}}"}
  command: [python3, -c]
  args:
  - |
    import os, socket, time
    for attempt in range(600):
        try:
            socket.gethostbyname(os.environ["MASTER"])
            break
        except OSError:
            time.sleep(0.1)
    else:
        raise SystemExit(1)
"""


def missing() -> str:
    """Return in one line why they cannot run here, or an empty string."""
    return "the operators take root" if os.geteuid() != 0 else binaries.missing(binaries.OPERATORS)


@dataclass(frozen=True, slots=True)
class _Place:
    """The folder, ports and certificate of one operator."""

    folder: Path
    webhook: int
    health: int
    serving: Certificate

    @property
    def health_address(self) -> str:
        return f"{LOOPBACK}:{self.health}"


class Operators:
    """All four operators, running and ready. They end with the cluster's processes."""

    def __init__(
        self,
        cluster: ControlPlane,
        *,
        pytorch_init: str = images.BASE,
        mpi_delivery: str = MPI_DELIVERY,
    ) -> None:
        self.cluster = cluster
        self._images = (pytorch_init, mpi_delivery)
        self._folder = cluster.folder / "operators"
        self._folder.mkdir()
        # The names that a CA must have so that cert-controller does not replace it.
        self._authority = Authority(
            self._folder, hosts=("kueue-ca", "training-operator-ca"), rsa=True
        )
        services = {
            KUEUE: "kueue-webhook-service.kueue-system.svc",
            JOBSET: "localhost",
            TRAINING: "training-operator.kubeflow.svc",
            TRAINER: "localhost",
        }
        self._places = {name: self._place(name, service) for name, service in services.items()}
        self._install()
        self._commands = {
            KUEUE: self._kueue,
            JOBSET: self._jobset,
            TRAINING: self._training_operator,
            TRAINER: self._trainer,
        }
        for name in self._commands:
            self._launch(name)
        for name in self._commands:
            self._await_ready(name)

    def stop(self, name: str) -> None:
        """Kill an operator: its webhooks refuse connections afterwards."""
        self.cluster.processes.stop(name)

    def start(self, name: str) -> None:
        """Start an operator on its earlier ports; return when it is ready."""
        self._launch(name)
        self._await_ready(name)

    def restart(self, name: str) -> None:
        self.stop(name)
        self.start(name)

    def _place(self, name: str, service: str) -> _Place:
        folder = self._folder / name
        certificates = folder / CERTIFICATE_FOLDER
        certificates.mkdir(parents=True)
        issued = self._authority.issue(name, f"/CN={service}", (service, LOOPBACK))
        serving = Certificate(certificates / "tls.crt", certificates / "tls.key")
        serving.certificate.write_bytes(issued.certificate.read_bytes())
        serving.key.write_bytes(issued.key.read_bytes())
        return _Place(folder, free_port(), free_port(), serving)

    def _install(self) -> None:
        """Install definitions and webhooks of all four; return when the kinds are served."""
        api, definitions = self.cluster.api(), []
        for name, file in (
            (JOBSET, "jobset.json"),
            (TRAINER, "trainer.json"),
            (TRAINING, "trainingoperator.json"),
            (KUEUE, "kueue.json"),
        ):
            for each in json.loads(program(file).read_text()):
                self._point(each, self._places[name])
                if each["kind"] == "CustomResourceDefinition":
                    definitions.append(each)
                if each["kind"] == "Secret":
                    self._give_certificates(each, self._places[name].serving)
                _create(api, each)
        for each in definitions:
            define(api, each)

    def _point(self, each: Object, place: _Place) -> None:
        """Make the API server call the process on this host instead of a Service."""
        conversion = each.get("spec", {}).get("conversion", {}).get("webhook")
        for webhook in [*each.get("webhooks", ()), *([conversion] if conversion else [])]:
            service = webhook["clientConfig"].pop("service")
            url = f"https://{LOOPBACK}:{place.webhook}{service['path']}"
            webhook["clientConfig"] = {
                "url": url,
                "caBundle": _base64(self._authority.own.certificate),
            }

    def _give_certificates(self, secret: Object, serving: Certificate) -> None:
        own = self._authority.own
        files = {
            "ca.crt": own.certificate,
            "ca.key": own.key,
            "tls.crt": serving.certificate,
            "tls.key": serving.key,
        }
        secret["data"] = {name: _base64(path) for name, path in files.items()}

    def _launch(self, name: str) -> None:
        place = self._places[name]
        command, environment = self._commands[name](place)
        kubeconfig = {"KUBECONFIG": str(self.cluster.kubeconfig())}
        self.cluster.processes.start(name, command, environment={**kubeconfig, **environment})

    def _await_ready(self, name: str) -> None:
        address = f"http://{self._places[name].health_address}/readyz"

        def is_ready() -> bool:
            self.cluster.processes.check()
            try:
                with urllib.request.urlopen(address, timeout=5) as answer:
                    return bool(answer.status == 200)
            except (urllib.error.URLError, OSError):
                return False

        try:
            eventually(is_ready, within_s=READY_WITHIN_S)
        except AssertionError:
            raise PartFailed(f"{name} is not ready; {self.cluster.processes.tail(name)}") from None

    def _kueue(self, place: _Place) -> Command:
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "namespace": "kueue-system",
            "health": {"healthProbeBindAddress": place.health_address},
            "metrics": {"bindAddress": "0"},
            "webhook": {
                "host": LOOPBACK,
                "port": place.webhook,
                "certDir": str(place.serving.key.parent),
            },
            "leaderElection": {"leaderElect": False},
            # Without its own management Kueue reads a certificate for metrics from a fixed place.
            "internalCertManagement": {
                "enable": True,
                "webhookServiceName": "kueue-webhook-service",
                "webhookSecretName": "kueue-webhook-server-cert",
            },
            "clientConnection": {"qps": QPS, "burst": BURST},
            "integrations": {"frameworks": list(FRAMEWORKS)},
        }
        flags = [
            f"--config={_written(place, configuration)}",
            "--feature-gates=VisibilityOnDemand=false",
        ]
        return [program("kueue"), *flags], {}

    def _jobset(self, place: _Place) -> Command:
        configuration = {
            "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": place.health_address},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": LOOPBACK, "port": place.webhook},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "clientConnection": {"qps": QPS, "burst": BURST},
        }
        return [program("jobset"), f"--config={_written(place, configuration)}"], {
            "TMPDIR": str(place.folder)
        }

    def _trainer(self, place: _Place) -> Command:
        configuration = {
            "apiVersion": "config.trainer.kubeflow.org/v1alpha1",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": place.health_address},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": LOOPBACK, "port": place.webhook},  # without a host it panics
            "leaderElection": {"leaderElect": False},
            "certManagement": {"enable": False},
            "clientConnection": {"qps": QPS, "burst": BURST},
        }
        own = {"TMPDIR": str(place.folder)}
        return [
            program("trainer-controller-manager"),
            f"--config={_written(place, configuration)}",
        ], own

    def _training_operator(self, place: _Place) -> Command:
        """It writes certificates below /tmp whatever TMPDIR is;
        it is given a folder of its own there.
        """
        pytorch_init, mpi_delivery = self._images
        (place.folder / "kubeconfig").write_bytes(self.cluster.kubeconfig().read_bytes())
        (place.folder / "init.yaml").write_text(WAITS_FOR_MASTER)
        flags = [
            f"--webhook-server-port={place.webhook}",
            f"--health-probe-bind-address={place.health_address}",
            "--metrics-bind-address=0",
            f"--kube-api-qps={QPS}",
            f"--kube-api-burst={BURST}",
            "--controller-threads=4",
            f"--pytorch-init-container-image={pytorch_init}",
            "--pytorch-init-container-template-file=/tmp/init.yaml",
            f"--mpi-kubectl-delivery-image={mpi_delivery}",
        ]
        script = 'mount --bind "$1" /tmp && shift && exec "$@"'
        in_own_tmp = ("unshare", "--mount", "sh", "-c", script, "sh", place.folder)
        return [*in_own_tmp, program("training-operator.v1"), *flags], {
            "KUBECONFIG": "/tmp/kubeconfig"
        }


def _create(api: Api, each: Object) -> None:
    about = each["metadata"]
    path = COLLECTIONS.get(each["kind"]) or f"{CORE}/namespaces/{about['namespace']}/secrets"
    try:
        api.post(path, each)
    except RequestRefused as refused:
        if refused.code != 409:  # a namespace that two of them install
            raise


def _written(place: _Place, configuration: Object) -> Path:
    """Write the value as JSON, which is YAML."""
    path = place.folder / "configuration.yaml"
    path.write_text(json.dumps(configuration))
    return path


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
