"""An existing cluster (kind, minikube) in place of the real node:
TUNER_TEST_KUBECONFIG names its kubeconfig.

It must have the image localhost/tuner-test/base:1 (`kind load image-archive`
loads what `make cluster-images` built) and offer `nvidia.com/gpu`. Tests
that would stop its components are skipped.
"""

from __future__ import annotations

import base64
import json
import tempfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
import yaml

from tests.cluster.api import CORE, Api


class Existing:
    """The current context of the kubeconfig, as its user."""

    def __init__(self, path: Path) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tuner-test-cluster-")
        self._config = yaml.safe_load(path.read_text())
        context = _named(self._config["contexts"], self._config["current-context"])["context"]
        self._cluster = _named(self._config["clusters"], context["cluster"])["cluster"]
        self._user = _named(self._config["users"], context["user"])["user"]

    def api(self, *, token: str = "") -> Api:
        given = "" if token else self._user.get("token", "")
        pair = (
            None if token or given else (self._file("client-certificate"), self._file("client-key"))
        )
        authority = Path(self._file("certificate-authority", of=self._cluster)).read_text()
        return Api(self._cluster["server"], authority, token or given, pair)

    def kubeconfig(self, *, namespace: str = "default", token: str = "") -> Path:
        user = {"token": token} if token else self._user
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "test", "cluster": self._cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [
                {
                    "name": "test",
                    "context": {"cluster": "test", "user": "test", "namespace": namespace},
                }
            ],
            "current-context": "test",
        }
        path = Path(self._folder.name, f"{namespace}{'-token' if token else ''}.kubeconfig")
        path.write_text(json.dumps(content))
        return path

    def service_account_token(self, namespace: str, name: str) -> str:
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        made = self.api().post(
            f"{CORE}/namespaces/{namespace}/serviceaccounts/{name}/token", request
        )
        return str(made["status"]["token"])

    def close(self) -> None:
        self._folder.cleanup()

    def __getattr__(self, name: str) -> NoReturn:
        pytest.skip(f"needs a cluster of its own: {name} is nothing to do to one that exists")

    def _file(self, what: str, *, of: dict[str, Any] | None = None) -> str:
        """Return a file of the kubeconfig, which has its name or its content."""
        place = self._user if of is None else of
        if f"{what}-data" not in place:
            return str(place[what])
        path = Path(self._folder.name, what)
        path.write_bytes(base64.b64decode(place[f"{what}-data"]))
        return str(path)


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any]:
    return next(entry for entry in entries if entry["name"] == name)
