"""The optional webhooks, on a real API server, which reaches the controller by a URL."""

from __future__ import annotations

import json
import shutil
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.api import Object, RequestRefused
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import ROOT, SYSTEM, Installed, experiment
from tests.cluster.waiting import eventually
from tests.ports import free_port

NAME, EDITS = "validatingwebhookconfigurations", "mutatingwebhookconfigurations"
REGISTERED = "/apis/admissionregistration.k8s.io/v1/{kind}/tuner-experiments"
FOREVER = {"KWOK_RUN": "600s"}


class WithWebhook(Installed):
    def __init__(self, cluster: ControlPlane, folder: Path, *settings: str) -> None:
        super().__init__(cluster, folder, "webhook.enabled=true", *settings)
        self.port = free_port()
        self._kinds = (NAME, EDITS) if "katib.enabled=true" in settings else (NAME,)
        self._by_service = self.registered()
        # The API server of the tests does not reach Services.
        self._reach_by({"url": f"https://localhost:{self.port}/"})

    def reach_by_service(self) -> None:
        """Let the API server call it as the chart says."""
        self._reach_by(self._by_service)

    def _reach_by(self, client: dict[str, Any]) -> None:
        for kind in self._kinds:
            patch = [
                {"op": "replace", "path": f"/webhooks/{i}/clientConfig", "value": client}
                for i, _ in enumerate(self._hooks(kind))
            ]
            self.kubectl("patch", kind, "tuner-experiments", "--type=json", "-p", json.dumps(patch))

    def serve(self, *flags: str, name: str = "one") -> Any:
        """Start a controller, and return it once its webhook is registered."""
        before = self.registered()
        options = (f"--http-port={self.port}", "--webhook=tuner-experiments")
        process = self.start(*options, *flags, name=name)
        eventually(lambda: "caBundle" in self.registered(), within_s=60)
        eventually(lambda: self.registered()["url"] != before["url"], within_s=60)
        return process

    def registered(self) -> dict[str, Any]:
        """Return the place of the last hook, which the controller sets last."""
        return dict(self._hooks(self._kinds[-1])[-1]["clientConfig"])

    def _hooks(self, kind: str) -> list[dict[str, Any]]:
        return list(self.cluster.api().get(REGISTERED.format(kind=kind))["webhooks"])

    def refused(self, resource: dict[str, Any]) -> str:
        """Return what kubectl says when it applies the resource in vain."""
        with pytest.raises(AssertionError) as refused:
            self.kubectl("apply", "-f", "-", given=json.dumps(resource))
        return str(refused.value)

    def close(self) -> None:
        super().close()
        for kind in self._kinds:
            self.kubectl("delete", kind, "tuner-experiments", "--ignore-not-found")


@pytest.fixture
def installed(level_b: ControlPlane, tmp_path: Path) -> Iterator[WithWebhook]:
    installation = WithWebhook(level_b, tmp_path)
    yield installation
    installation.close()


def test_apply_refuses_in_the_words_of_the_file(installed: WithWebhook, namespace: str) -> None:
    installed.serve()
    wrong = experiment(namespace, parameters={"x": {"type": "float", "min": 2}})
    said = installed.refused(wrong)
    assert 'admission webhook "experiments.tuner.dev" denied the request' in said
    assert "spec.parameters.x" in said
    installed.kubectl.apply([experiment(namespace)])
    installed.until(namespace, lambda status: status.get("state") == "succeeded")


def test_apply_refuses_what_the_platform_does_not_allow(
    installed: WithWebhook, namespace: str
) -> None:
    installed.serve()
    job = experiment(namespace)
    job["spec"]["trial"]["serviceAccount"] = "builder"
    assert "controller.allowedServiceAccounts" in installed.refused(job)


def test_apply_refuses_a_change_as_the_condition_would_and_takes_one_that_is_allowed(
    installed: WithWebhook, namespace: str
) -> None:
    process = installed.serve()
    installed.kubectl("apply", "-f", "-", given=json.dumps(experiment(namespace, env=FOREVER)))
    installed.until(namespace, lambda status: status.get("running") == 1)
    change: dict[str, Any] = {"algorithm": {"name": "tpe"}}
    said = installed.refused(experiment(namespace, env=FOREVER, **change))
    assert "these changes would make tiny another search" in said
    edited = experiment(namespace, env=FOREVER, parallelism=2)
    installed.kubectl("apply", "-f", "-", given=json.dumps(edited))
    installed.until(namespace, lambda status: status.get("running") == 2)
    # Without the webhook, the condition says the same.
    process.send_signal(signal.SIGKILL)
    process.communicate()
    refused = experiment(namespace, env=FOREVER, **change)
    installed.kubectl("apply", "-f", "-", given=json.dumps(refused))
    installed.start()
    status = installed.until(namespace, lambda status: accepted(status)["status"] == "False")
    assert accepted(status)["reason"] == "ChangeRefused"
    assert accepted(status)["message"].splitlines()[0] in said
    # A refused spec in the cluster must not keep the controller from its own changes.
    installed.kubectl("delete", "texp", "tiny", "-n", namespace, "--timeout=60s")


def accepted(status: dict[str, Any]) -> dict[str, Any]:
    conditions = status.get("conditions", [])
    found = (each for each in conditions if each["type"] == "Accepted")
    return next(found, {"status": "", "message": "", "reason": ""})


def test_the_next_leader_registers_its_own_certificate(
    installed: WithWebhook, namespace: str
) -> None:
    process = installed.serve()
    first = installed.registered()["caBundle"]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    shutil.rmtree(installed.state / "tls")
    installed.serve(name="two")
    assert installed.registered()["caBundle"] != first
    wrong = experiment(namespace, parameters={"x": {"type": "float", "min": 2}})
    assert "denied the request" in installed.refused(wrong)


def test_the_leader_registers_where_its_service_leads(installed: WithWebhook) -> None:
    installed.reach_by_service()
    installed.start(f"--http-port={installed.port}", "--webhook=tuner-experiments")
    eventually(lambda: "caBundle" in installed.registered(), within_s=60)
    service = installed.registered()["service"]
    assert (service["name"], service["namespace"]) == ("tuner", SYSTEM)
    assert service["path"].startswith("/webhook/")


def katib(namespace: str, **spec: object) -> dict[str, Any]:
    """Return an Experiment of Katib's with these keys of spec besides."""
    text = (ROOT / "examples" / "katib" / "random.yaml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(text)
    found["metadata"] = {"name": "tiny", "namespace": namespace}
    limits = dict.fromkeys(("maxTrialCount", "parallelTrialCount", "maxFailedTrialCount"), 1)
    found["spec"] |= {**limits, **spec}
    pod = found["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]
    metric = found["spec"]["objective"]["objectiveMetricName"]
    pod["containers"][0]["env"] = [{"name": "KWOK_LOG", "value": f"{metric}=0.5"}]
    return found


def test_apply_refuses_all_that_is_wrong_with_an_experiment_of_katibs(
    level_b: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    installed = WithWebhook(level_b, tmp_path, "katib.enabled=true")
    try:
        installed.kubectl.established("experiments.kubeflow.org")
        installed.serve("--katib")
        wrong = katib(namespace)
        seed = {"name": "random_state", "value": "now"}
        wrong["spec"]["algorithm"]["algorithmSettings"] = [seed]
        wrong["spec"]["parameters"][0]["feasibleSpace"] = {"min": "2", "max": "1"}
        wrong["spec"]["earlyStopping"] = {"algorithmName": "hyperband"}
        said = installed.refused(wrong)
        assert 'admission webhook "experiments.kubeflow.org" denied the request' in said
        for place in (
            "spec.algorithm.algorithmSettings[0].value: ",
            "spec.parameters[0].feasibleSpace: ",
            "spec.earlyStopping.algorithmName: ",
        ):
            assert place in said
        # The defaults that the controller writes back are not refused.
        installed.kubectl("apply", "-f", "-", given=json.dumps(katib(namespace)))
        words = ("experiments.kubeflow.org/tiny", "-n", namespace)
        installed.kubectl("wait", *words, "--for=condition=Succeeded", "--timeout=60s")
        said = installed.refused(katib(namespace, algorithm={"algorithmName": "tpe"}))
        assert "would make" in said
        installed.kubectl("delete", *words, "--timeout=60s")
    finally:
        installed.close()


def test_an_edit_of_what_was_read_before_a_status_is_no_conflict(
    level_b: ControlPlane, tmp_path: Path, namespace: str
) -> None:
    installed = WithWebhook(level_b, tmp_path, "katib.enabled=true")
    path = f"/apis/kubeflow.org/v1beta1/namespaces/{namespace}/experiments"
    api = level_b.api()
    try:
        installed.kubectl.established("experiments.kubeflow.org")
        installed.serve("--katib")
        long = katib(namespace, maxTrialCount=10)
        pod = long["spec"]["trialTemplate"]["trialSpec"]["spec"]["template"]["spec"]
        pod["containers"][0]["env"].append({"name": "KWOK_RUN", "value": "600s"})
        api.post(path, long)
        path += "/tiny"
        api.until(path, lambda found: found.get("status", {}).get("trialsRunning") == 1)

        def read_before_a_status() -> Object:
            found = api.get(path)
            status = [{"op": "add", "path": "/status/trials", "value": 77}]
            api.patch(f"{path}/status", status, kind="application/json-patch+json")
            return found

        def is_taken() -> bool:
            """Return whether an edit is; not before the API server has read the registration."""
            found = read_before_a_status()
            found["spec"]["maxTrialCount"] = 20
            try:
                return bool(api.patch(path, found)["spec"]["maxTrialCount"] == 20)
            except RequestRefused as refused:
                if refused.code != 409:
                    raise
                return False

        eventually(is_taken, within_s=60)
        api.patch(path, {"metadata": {"labels": {"team": "audio"}}})
        found = read_before_a_status()
        api.patch(path, {"metadata": {"labels": {"team": "video"}}})
        with pytest.raises(RequestRefused, match="409"):
            api.patch(path, found)
        words = ("experiments.kubeflow.org/tiny", "-n", namespace)
        installed.kubectl("delete", *words, "--timeout=60s")
    finally:
        installed.close()


def test_nobody_but_the_api_server_knows_where_it_is(installed: WithWebhook) -> None:
    installed.serve()
    address = f"https://localhost:{installed.port}/webhook/guessed"
    content = {"Content-Type": "application/json"}
    request = urllib.request.Request(address, data=b"{}", headers=content, method="POST")
    with pytest.raises(urllib.error.HTTPError, match="401") as refused:
        urllib.request.urlopen(request, timeout=10, context=_unverified())
    refused.value.close()


def _unverified() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
