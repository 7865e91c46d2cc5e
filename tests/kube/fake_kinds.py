"""Simulates the operator of one kind on a FakeApi: pods with the labels
of their template and of the operator.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from tests.kube.fake_api import FakeApi

Raw = dict[str, Any]

NAMESPACE = "user1"


class FakeKind:
    """Defines the kind of `manifest` on the server, under this plural."""

    def __init__(
        self, api: FakeApi, manifest: Raw, plural: str, *, fields: tuple[str, ...] = ()
    ) -> None:
        self._api, self._plural = api, plural
        self._version, self._kind = manifest["apiVersion"], manifest["kind"]
        api.define(self._version, plural, self._kind, fields=fields)

    def start_pod(
        self,
        job: str,
        name: str,
        place: Callable[[Raw], Raw],
        *,
        annotations: Raw | None = None,
        **labels: str,
    ) -> str:
        """Start a pod. `place`: the path of its template in the object.

        `labels`, `annotations`: the operator's own.
        """
        owner = self._api.get(self._plural, NAMESPACE, job)
        template = place(owner["spec"])
        container = {"name": "main", "image": "tiny:1"}
        about = {
            "name": f"{job}-{name}",
            "namespace": NAMESPACE,
            "labels": template["metadata"]["labels"] | labels,
            "annotations": annotations or {},
            "ownerReferences": [
                {
                    "apiVersion": self._version,
                    "kind": self._kind,
                    "name": job,
                    "uid": owner["metadata"]["uid"],
                }
            ],
        }
        spec = {"restartPolicy": "Never", "containers": [container], **template.get("spec", {})}
        self._api.put("pods", {"metadata": about, "spec": spec, "status": {"phase": "Pending"}})
        self._api.kubelet.start(about["name"])
        return str(about["name"])

    def say(self, job: str, **status: Any) -> None:
        self._api.change(self._plural, NAMESPACE, job, lambda obj: obj["status"].update(status))

    async def until_made(self, job: str) -> Raw:
        async with asyncio.timeout(10):
            # made by another task
            while self._api.find(self._plural, NAMESPACE, job) is None:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        return self._api.get(self._plural, NAMESPACE, job)
