"""One connection to an API server: raw JSON in and out, every error one of `errors`, waits bounded.

Transport and authentication are the `kubernetes` package's (see `kubeconfig`); its models are not used: they drop what
they do not know and cost ten times the CPU. Nothing here knows what a trial is.

429, and 503 with Retry-After, are waited for and sent again. What only reads or deletes is repeated once when the
connection breaks; a create is not: whether it arrived is for its caller to find out (names are computed, 409 says so).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from urllib.parse import quote

from controller.runtime.kubernetes.connection import Connection, Raw, error_of
from controller.runtime.kubernetes.errors import (
    ApiError,
    BadKubeconfig,
    NotAllowed,
    Refusal,
    Silent,
    Unreachable,
    rule_for,
)

__all__ = [
    "CONFIG_MAPS", "EVENTS", "JOBS", "LEASES", "LIMIT_RANGES", "NAMESPACES", "NODES", "PODS", "QUOTAS", "SECRETS",
    "SERVICES",
    "ApiError", "BadKubeconfig", "Client", "Kind", "NotAllowed", "Raw", "Refusal", "Unreachable", "rule_for",
]  # fmt: skip

_PAGE = 500
_SILENCE_S = 120.0  # of a stream whose TCP is fine; bookmarks come each minute, a silent log is asked for again


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object and where it lives on a server."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "") -> str:
        """namespace None: of all of them."""
        parts = ["apis" if "/" in self.api_version else "api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [self.plural, *([name] if name else [])]
        return "/" + "/".join(quote(part, safe="/" if part == self.api_version else "") for part in parts)


JOBS = Kind("batch/v1", "jobs", "Job")
LEASES = Kind("coordination.k8s.io/v1", "leases", "Lease")
PODS = Kind("v1", "pods", "Pod")
EVENTS = Kind("v1", "events", "Event")
QUOTAS = Kind("v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = Kind("v1", "limitranges", "LimitRange")
SERVICES = Kind("v1", "services", "Service")
CONFIG_MAPS = Kind("v1", "configmaps", "ConfigMap")
SECRETS = Kind("v1", "secrets", "Secret")
NODES = Kind("v1", "nodes", "Node", namespaced=False)
NAMESPACES = Kind("v1", "namespaces", "Namespace", namespaced=False)
_ACCESS_REVIEWS = Kind("authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False)
_SELF_REVIEWS = Kind("authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview", False)


class Client:
    """`connect` one, use it from one loop, close it."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._discovered: dict[tuple[str, str], Kind] = {}
        self.access = connection.access  # as it was at the beginning
        self.context = connection.access.context
        self.server = connection.access.server
        self.default_namespace = connection.access.namespace

    @classmethod
    async def connect(cls, context: str | None = None) -> Client:
        """By $KUBECONFIG, ~/.kube/config, or the pod that this runs in. Does not call the server.

        Raises BadKubeconfig, NotAllowed.
        """
        return cls(await Connection.open(context))

    async def create(self, kind: Kind, namespace: str | None, body: Raw, *, dry_run: bool = False) -> Raw:
        """A field that the server does not know is an error, not ignored."""
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return await self._connection.call("POST", kind.path(namespace), query, body)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Raw:
        return await self._connection.call("GET", kind.path(namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Raw], str]:
        """All of them, and the version to watch from. They bear kind and apiVersion like single ones."""
        query = _selecting(labels, fields) | {"limit": str(_PAGE)}
        items: list[Raw] = []
        while True:
            try:
                page = await self._connection.call("GET", kind.path(namespace), query)
            except ApiError as error:
                if error.status != 410 or "limit" not in query:
                    raise
                # The snapshot that the pages came from has been compacted away: take it all at once.
                query, items = _selecting(labels, fields), []
                continue
            items += page.get("items") or []
            about = page["metadata"]
            if not about.get("continue"):
                for item in items:
                    item.setdefault("apiVersion", kind.api_version)
                    item.setdefault("kind", kind.kind)
                return items, about["resourceVersion"]
            query = query | {"continue": about["continue"]}

    async def delete(self, kind: Kind, namespace: str | None, name: str, *, uid: str = "",
                     grace_s: float | None = None, propagation: str | None = "Background") -> None:  # fmt: skip
        """Gone already, or (uid) there by that name but another one, is no error."""
        options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if grace_s is not None:
            options["gracePeriodSeconds"] = math.ceil(grace_s)
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            await self._connection.call("DELETE", kind.path(namespace, name), body=options)
        except ApiError as error:
            if error.status != 404 and not (error.status == 409 and uid):
                raise

    async def patch(self, kind: Kind, namespace: str | None, name: str, body: Raw) -> Raw:
        """A merge patch: None removes a key."""
        return await self._connection.call("PATCH", kind.path(namespace, name), body=body)

    async def watch(self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = "",
                    resource_version: str, timeout_s: float) -> AsyncGenerator[Raw, None]:  # fmt: skip
        """Events as {"type", "object"}, bookmarks among them, until the server ends it (after timeout_s).

        Raises ApiError (410: list again), Unreachable when it breaks off or has been silent for too long.
        """
        query = _selecting(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(math.ceil(timeout_s)),
        }
        silence_s = min(_SILENCE_S, math.ceil(timeout_s) * 1.25)
        async with self._connection.answer("GET", kind.path(namespace), query, silence_s=silence_s) as response:
            rest = b""
            async for chunk in self._connection.chunks(response):
                *lines, rest = (rest + chunk).split(b"\n") if b"\n" in chunk else (rest + chunk,)
                for line in lines:
                    event = self._connection.json_of(line)
                    if event["type"] == "ERROR":
                        raise error_of(event["object"])
                    yield event

    async def log(self, namespace: str, pod: str, *, container: str = "", since: str = "",
                  follow: bool = True) -> AsyncGenerator[bytes, None]:  # fmt: skip
        """What the container prints, each line with a timestamp before it, in pieces that may end within a line.

        since: a timestamp; lines from that moment on. Ends when the container has ended, and also after two minutes of
        silence, when the kubelet rotates the file, or the server feels like it: only the pod says whether that was all.
        Raises ApiError (400 while the container waits, 404 when the pod is gone), Unreachable when it breaks off.
        """
        query = {"timestamps": "true"} | ({"follow": "true"} if follow else {})
        query |= ({"container": container} if container else {}) | ({"sinceTime": since} if since else {})
        path = PODS.path(namespace, pod) + "/log"
        # Of a container that has printed nothing yet not even the answer's head comes.
        with contextlib.suppress(Silent):
            async with self._connection.answer("GET", path, query, silence_s=_SILENCE_S) as response:
                async for chunk in self._connection.chunks(response):
                    yield chunk

    async def review(self, verb: str, kind: Kind, namespace: str | None, *, subresource: str = "") -> bool:
        """May we?"""
        group, _, version = kind.api_version.rpartition("/")
        asked = {"verb": verb, "group": group, "version": version, "resource": kind.plural, "namespace": namespace}
        asked |= {"subresource": subresource} if subresource else {}
        body = {"apiVersion": _ACCESS_REVIEWS.api_version, "kind": _ACCESS_REVIEWS.kind,
                "spec": {"resourceAttributes": asked}}  # fmt: skip
        answer = await self._connection.call("POST", _ACCESS_REVIEWS.path(None), body=body)
        return bool(answer["status"]["allowed"])

    async def greet(self) -> tuple[Raw, datetime | None]:
        """The server's version, and what time it is there."""
        async with self._connection.answer("GET", "/version", {}) as response:
            version: Raw = self._connection.json_of(
                b"".join([chunk async for chunk in self._connection.chunks(response)])
            )
            date = response.headers.get("Date")
        return version, None if date is None else parsedate_to_datetime(date)

    async def whoami(self) -> str:
        """Whom the server takes us for."""
        body = {"apiVersion": _SELF_REVIEWS.api_version, "kind": _SELF_REVIEWS.kind}
        answer = await self._connection.call("POST", _SELF_REVIEWS.path(None), body=body)
        return str(answer["status"]["userInfo"].get("username", ""))

    async def discover(self, api_version: str, kind: str) -> Kind:
        """Where a kind lives that this code does not know; asked once. Raises ApiError 404 if the server has no such
        kind."""
        if (found := self._discovered.get((api_version, kind))) is not None:
            return found
        root = "/apis/" if "/" in api_version else "/api/"
        try:
            offered = (await self._connection.call("GET", root + api_version))["resources"]
        except ApiError as error:
            if error.status != 404:
                raise
            offered = []
        for entry in offered:
            if entry["kind"] == kind and "/" not in entry["name"]:
                found = Kind(api_version, entry["name"], kind, bool(entry["namespaced"]))
                self._discovered[api_version, kind] = found
                return found
        raise ApiError(404, "NotFound", f"{self.server} has no kind {kind} in {api_version}; install its definition")

    async def close(self) -> None:
        await self._connection.close()


def _selecting(labels: str, fields: str) -> dict[str, str]:
    return ({"labelSelector": labels} if labels else {}) | ({"fieldSelector": fields} if fields else {})
