"""A small API server for tests, in the test's process and loop: plain objects,
real HTTP, and injected faults.

    async with FakeApi() as api, api.client() as client:      # namespaces default and user1 are
    there
        await client.create(JOBS, "user1", {"metadata": {"name": "a"}, "spec": {…}})
        await api.kubelet.run_pod("user1", "a", lines=["x=1"], seconds=0.1, exit_code=0)  # Job
        controller and kubelet api.kubelet.play(lambda job: Script(lines=("x=1",)))  # the same for
        every Job created from now on

Direct access to objects (without a request, like another client; every change gets a version and
reaches watches):
    api.get("jobs", "user1", "a")    api.all("pods")    api.put("resourcequotas", {…})
    api.remove("pods", "user1", "a-x")
    api.change("jobs", "user1", "a", lambda job: job["status"].update(active=1))
As the real one: uids, growing versions, creationTimestamp, generateName, label selectors (=, !=,
in, notin, exists) and field selectors (any dotted path, = and !=), 404/409/410, pages, watches
whose selectors turn a change into ADDED or DELETED, dry runs, deletion of owned objects, logs whose
sinceTime counts whole seconds (the API server cuts the fraction off on its way to the kubelet, so
lines of that second repeat). Missing: schemas, defaults, versions of one kind, owners of fields, JSON
patches other than that of a status. `api.define(…)` adds a kind; with `fields`, its OpenAPI document too.

Faults: drop_connections() · answer(429, times=3, retry_after_s=1, method="GET", path="/pods") …
mend() · hold("POST", "/jobs") … release() (delays such requests; `held` counts them) ·
delay_s = callable(method, path) -> seconds · fails = callable(method, path) -> status or 0 ·
hides = callable(method, path) -> status or 0 (of a write that is made, as when etcd answers late) ·
log_bytes = callable(namespace, pod) -> size (of a log that nobody has printed) ·
forbid("create", "jobs") · silent = True (accepts, never answers; open streams go quiet) · quiet =
True (only streams) · late = True (lists are made, but held back) · await stop() / await start()
(same port) · compact() · gone_as = "event" or "status" (how a 410 comes) · bookmark() · say({…})
(sends this to watches) · refuse = callable(plural, object) -> message or "" (admission; 403) ·
lose_events(2) (hides the next two changes from watches) · unwatched = {"pods"} (hides all of theirs) · token = "…" (others get 401) · log_pieces
= 7 (bytes per write) · ahead_s = 60 (its clock). `api.requests` lists (method, path, query) of all
requests, and `listener` is called with method and path as they come; `api.headers` are the last one's, `api.impersonated` those of them that impersonate.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import random
import re
import socket
import tempfile
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]
from aiohttp import ClientConnectorError, ClientSession, web

from controller.kube.client import KubernetesClient
from tests.kube.fake_kubelet import FakeKubelet, stamp

_YAML = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # as strict as the API server's
Raw = dict[str, Any]
Predicate = Callable[[Raw], bool]

KINDS = {  # (group/version, plural): (kind, namespaced)
    ("v1", "pods"): ("Pod", True),
    ("v1", "events"): ("Event", True),
    ("v1", "services"): ("Service", True),
    ("v1", "configmaps"): ("ConfigMap", True),
    ("v1", "secrets"): ("Secret", True),
    ("v1", "persistentvolumeclaims"): ("PersistentVolumeClaim", True),
    ("v1", "serviceaccounts"): ("ServiceAccount", True),
    ("v1", "resourcequotas"): ("ResourceQuota", True),
    ("v1", "limitranges"): ("LimitRange", True),
    ("v1", "namespaces"): ("Namespace", False),
    ("v1", "nodes"): ("Node", False),
    ("batch/v1", "jobs"): ("Job", True),
    ("coordination.k8s.io/v1", "leases"): ("Lease", True),
    ("authorization.k8s.io/v1", "selfsubjectaccessreviews"): ("SelfSubjectAccessReview", False),
    ("authentication.k8s.io/v1", "selfsubjectreviews"): ("SelfSubjectReview", False),
    ("authentication.k8s.io/v1", "tokenreviews"): ("TokenReview", False),
    ("authorization.k8s.io/v1", "subjectaccessreviews"): ("SubjectAccessReview", False),
    ("scheduling.k8s.io/v1", "priorityclasses"): ("PriorityClass", False),
    ("node.k8s.io/v1", "runtimeclasses"): ("RuntimeClass", False),
}
USER = "system:serviceaccount:user1:tuner"
_SAID = web.RequestKey("said", int)  # how many events had been said when it came
_PROXIED = re.compile(r"/api/v1/(?P<service>namespaces/[^/]+/services/[^/]+)/proxy(?P<path>/.*)")
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}


class Failure(Exception):
    """An error reply in the words of the real server."""

    def __init__(self, status: int, reason: str, message: str, **details: Any) -> None:
        super().__init__(message)
        self.status = status
        self.body = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": message,
            "reason": reason,
            "details": details,
            "code": status,
        }


@dataclass(frozen=True)
class Change:
    version: int
    plural: str
    before: Raw | None
    after: Raw | None  # None: deleted


@dataclass(frozen=True)
class Target:
    """The object or collection of a request."""

    api_version: str
    plural: str
    namespace: str | None
    name: str
    subresource: str

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def resource(self) -> str:
        return self.plural + (f".{self.group}" if self.group else "")

    @property
    def key(self) -> tuple[str, str, str]:
        return (self.plural, self.namespace or "", self.name)


class FakeApi:
    def __init__(self) -> None:
        self.version = 100
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.headers: Mapping[str, str] = {}
        self.impersonated: list[tuple[str, str]] = []
        self.silent = False
        self.quiet = False
        self.late = False
        self.ahead_s = 0.0
        self.date_ahead_s = 0.0  # of the header Date, besides: a proxy sets it
        self.token = ""
        self.gone_as = "event"
        self.refuse: Callable[[str, Raw], str] = lambda plural, obj: ""
        self.listener: Callable[[str, str], None] = lambda method, path: None
        self.bookmark_s = 60.0
        self.log_pieces = 1 << 16
        self.delay_s: Callable[[str, str], float] = lambda method, path: 0.0
        self.fails: Callable[[str, str], int] = lambda method, path: 0
        self.hides: Callable[[str, str], int] = lambda method, path: 0
        self.log_bytes: Callable[[str, str], int] = lambda namespace, pod: 0
        self.kubelet = FakeKubelet(self)
        self._kinds = dict(KINDS)
        self._schemas: dict[str, Raw] = {}  # of one kind for each group and version
        self._objects: dict[tuple[str, str, str], Raw] = {}
        self._changes: list[Change] = []
        self.unwatched: set[str] = set()  # kinds of which watches show no change
        self._lost: set[int] = set()
        self._lose = 0
        self._compacted = 0
        self._bookmarks = 0
        self._said: list[Raw] = []
        self._moved = asyncio.Event()
        self._pages: dict[str, tuple[int, list[Raw]]] = {}
        self._answers: list[tuple[int, float | None, str, str]] = []
        self.held = 0
        self._holding: tuple[str, str] | None = None
        # Users by their token and its audience, and their verbs on experiments in namespaces.
        self.people: dict[tuple[str, str], str] = {}
        self.grants: set[tuple[str, str, str]] = set()
        # Where a service answers, by its path: `namespaces/tuner-system/services/https:tuner:https`.
        self.backends: dict[str, str] = {}
        self._forbidden: set[tuple[str, str]] = set()
        self._runner: web.AppRunner | None = None
        self._servers: list[web.Server] = []
        self._reserved: socket.socket | None = None
        self._port = 0
        for name in ("default", "user1"):
            self.put("namespaces", {"metadata": {"name": name}, "status": {"phase": "Active"}})

    async def __aenter__(self) -> FakeApi:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.kubelet.close()
        await self.stop()
        if self._reserved is not None:
            self._reserved.close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, on the same port after stop()."""
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.01, handler_cancellation=True
        )
        await self._runner.setup()
        assert self._runner.server is not None
        self._servers.append(self._runner.server)
        if self._reserved is None:
            # Bound but not listening: while stopped, no other process gets the port, and
            # connections are refused.
            self._reserved = _bound(self._port)
        self._port = self._reserved.getsockname()[1]
        self._listening = _bound(self._port)
        await web.SockSite(self._runner, self._listening).start()

    async def stop(self) -> None:
        """Close all connections and stop listening. The objects are kept."""
        if self._runner is not None:
            # Accept no more, and close only after the connections that were accepted
            # in this turn of the loop are known: asyncio forgets those of a closed
            # server and leaves their sockets open.
            asyncio.get_running_loop().remove_reader(self._listening)
            for _ in range(5):
                await asyncio.sleep(0)
            for site in list(self._runner.sites):
                await site.stop()
            self.drop_connections()
            await self._runner.cleanup()
            self._runner = None

    def kubeconfig(self, *, namespace: str = "user1", token: str = "") -> Raw:
        """Write a kubeconfig with one context, `fake`."""
        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "fake",
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "tester", "user": {"token": token} if token else {}}],
            "contexts": [
                {
                    "name": "fake",
                    "context": {"cluster": "fake", "user": "tester", "namespace": namespace},
                }
            ],
        }

    @contextlib.asynccontextmanager
    async def client(self, **settings: str) -> AsyncIterator[KubernetesClient]:
        with kubeconfig_of(self.kubeconfig(**settings)):
            client = await KubernetesClient.connect()
        try:
            yield client
        finally:
            await client.close()

    # Objects, by direct access.

    def define(
        self,
        api_version: str,
        plural: str,
        kind: str,
        *,
        namespaced: bool = True,
        fields: tuple[str, ...] = (),
    ) -> None:
        """plural: `plural.group` if another group has that plural, and so for all calls here.
        fields: those of its spec that the OpenAPI document names;
        without any there is no document.
        """
        self._kinds[api_version, plural] = (kind, namespaced)
        group, _, version = api_version.rpartition("/")
        named = [{"group": group, "version": version, "kind": kind}]
        spec = {"type": "object", "properties": {field: {} for field in fields}}
        if fields:
            self._schemas[api_version] = {
                "properties": {"spec": spec},
                "x-kubernetes-group-version-kind": named,
            }

    def undefine(self, api_version: str, plural: str) -> None:
        """Remove a kind. Its objects are kept."""
        del self._kinds[api_version, plural]

    @property
    def changes(self) -> Sequence[Change]:
        """Return all changes so far, with the objects before and after."""
        return self._changes

    def find(self, plural: str, namespace: str | None, name: str) -> Raw | None:
        return copied(self._objects.get((plural, namespace or "", name)))

    def get(self, plural: str, namespace: str | None, name: str) -> Raw:
        found = self.find(plural, namespace, name)
        assert found is not None, f"no {plural} {namespace}/{name}"
        return found

    def all(self, plural: str, namespace: str | None = None) -> list[Raw]:
        return [
            copied(self._objects[key])
            for key in sorted(self._objects)
            if key[0] == plural and namespace in (None, key[1])
        ]

    def labelled(self, plural: str, namespace: str, label: str, value: str) -> list[Raw]:
        """Return the objects with a value of a label, without copying all of the namespace."""
        return [
            copied(obj)
            for key, obj in self._objects.items()
            if key[:2] == (plural, namespace)
            and obj["metadata"].get("labels", {}).get(label) == value
        ]

    def put(self, plural: str, obj: Raw) -> Raw:
        """Create or replace an object; its identity and version are filled in."""
        api_version = next(version for version, known in self._kinds if known == plural)
        kind, namespaced = self._kinds[api_version, plural]
        obj = {"apiVersion": api_version, "kind": kind, **copied(obj)}
        if plural in ("jobs", "pods"):
            obj.setdefault("status", {"phase": "Pending"} if plural == "pods" else {})
        about = obj.setdefault("metadata", {})
        if "generateName" in about and "name" not in about:
            about["name"] = about["generateName"] + "".join(
                random.choices("bcdfghjklmnpqrstvwxz2456789", k=5)
            )
        if namespaced:
            about.setdefault("namespace", "default")
        key = (plural, about.get("namespace", "") if namespaced else "", about["name"])
        before = self._objects.get(key)
        about["uid"] = before["metadata"]["uid"] if before else str(uuid.uuid4())
        if before:
            about.setdefault("creationTimestamp", before["metadata"]["creationTimestamp"])
        else:
            about["creationTimestamp"] = now()
        self._record(key, before, obj)
        return copied(obj)

    def change(
        self, plural: str, namespace: str | None, name: str, how: Callable[[Raw], object]
    ) -> Raw:
        """Change an object, including its status, by `how`, which changes its argument."""
        obj = self.get(plural, namespace, name)
        obj.setdefault("status", {})
        how(obj)
        return self.put(plural, obj)

    def remove(self, plural: str, namespace: str | None, name: str) -> None:
        """Remove an object at once, then the objects that it owns; without grace and kubelet."""
        key = (plural, namespace or "", name)
        before = self._objects.get(key)
        if before is not None:
            self._record(key, before, None)
            for owned in self._owned(before):
                self.remove(*owned)

    def _record(self, key: tuple[str, str, str], before: Raw | None, after: Raw | None) -> None:
        self.version += 1
        if after is None:
            self._objects.pop(key)
            assert before is not None
            before = copied(before)
            before["metadata"]["resourceVersion"] = str(self.version)
        else:
            after["metadata"]["resourceVersion"] = str(self.version)
            self._objects[key] = after
        self._changes.append(Change(self.version, key[0], before, copied(after)))
        if self._lose:
            self._lose -= 1
            self._lost.add(self.version)
        self.kubelet.saw(key[0], before, after)
        self._wake()

    def _owned(self, owner: Raw) -> list[tuple[str, str, str]]:
        uid = owner["metadata"]["uid"]
        return [
            key
            for key, obj in self._objects.items()
            if any(ref["uid"] == uid for ref in obj["metadata"].get("ownerReferences", []))
        ]

    # Trouble.

    def drop_connections(self) -> None:
        for server in self._servers:  # earlier ones too: one may have accepted while it went
            for connection in list(server.connections):
                if connection.transport is not None:
                    connection.transport.abort()

    def answer(
        self,
        status: int,
        *,
        times: int = 1,
        retry_after_s: float | None = None,
        method: str = "",
        path: str = "",
    ) -> None:
        """The next `times` requests (of that HTTP method, to a path with that in it)
        are answered with this and not looked at.
        """
        self._answers += [(status, retry_after_s, method, path)] * times

    def mend(self) -> None:
        """End the prepared replies."""
        self._answers.clear()

    def hold(self, method: str, path: str) -> None:
        """Delay requests of this method to paths that contain this, from now on."""
        self._holding = method, path

    def release(self) -> None:
        self._holding = None
        self._wake()

    async def _wait_if_held(self, request: web.Request) -> None:
        self.held += 1
        try:
            while (
                self._holding is not None
                and self._holding[0] == request.method
                and self._holding[1] in request.path
            ):
                await self._move(1.0)
        finally:
            self.held -= 1

    def forbid(self, verb: str, resource: str) -> None:
        """resource: jobs, pods, pods/log, …"""
        self._forbidden.add((verb, resource))

    def permit(self) -> None:
        self._forbidden.clear()

    def lose_events(self, count: int) -> None:
        self._lose += count

    def compact(self) -> None:
        """Forget older versions: a watch or page from an older version gets 410."""
        self._compacted = self.version

    def bookmark(self) -> None:
        self._bookmarks += 1
        self._wake()

    def say(self, event: Raw) -> None:
        """Send exactly this to all present watches."""
        self._said.append(event)
        self._wake()

    def _wake(self) -> None:
        self._moved.set()
        self._moved = asyncio.Event()

    async def _move(self, within_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._moved.wait(), within_s)

    # Requests.

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        query = dict(request.query)
        self.requests.append((request.method, request.path, query))
        self.listener(request.method, request.path)
        self.headers = request.headers
        self.impersonated = [
            each for each in request.headers.items() if each[0].startswith("Impersonate-")
        ]
        request[_SAID] = len(self._said)
        try:
            while self.silent:
                await self._move(0.05)
            await self._wait_if_held(request)
            await asyncio.sleep(self.delay_s(request.method, request.path))
            if status := self.fails(request.method, request.path):
                return _refusal(status, None)
            for index, (status, retry_after_s, method, path) in enumerate(self._answers):
                if method in ("", request.method) and path in request.path:
                    del self._answers[index]
                    return _refusal(status, retry_after_s)
            if self.token and request.headers.get("Authorization") != f"Bearer {self.token}":
                raise Failure(401, "Unauthorized", "Unauthorized")
            answer = await self._serve(request, query)
            if request.method != "GET" and (status := self.hides(request.method, request.path)):
                return _refusal(status, None)
            return answer
        except Failure as failure:
            return web.json_response(failure.body, status=failure.status)
        except ConnectionResetError:  # nobody listens any more
            return web.Response()

    async def _proxied(self, request: web.Request, service: str, path: str) -> web.Response:
        """Pass a request on to a service, as the API server does: without Authorization."""
        _, namespace, _, named = service.split("/")
        verb = _VERBS.get(request.method, "get")
        self._authorize(verb, Target("v1", "services", namespace, named, "proxy"))
        if service not in self.backends:
            name = named.split(":")[1]
            raise Failure(404, "NotFound", f'services "{name}" not found')
        headers = {
            name: value
            for name, value in request.headers.items()
            if name.lower() not in ("authorization", "host")
        }
        try:
            async with (
                ClientSession(auto_decompress=False) as session,
                session.request(
                    request.method,
                    f"{self.backends[service]}{path}",
                    params=request.query,
                    headers=headers,
                    data=await request.read(),
                    ssl=False,
                ) as answer,
            ):
                passed_on = {
                    name: value
                    for name, value in answer.headers.items()
                    if name.lower() not in ("transfer-encoding", "content-length")
                }
                return web.Response(
                    status=answer.status, body=await answer.read(), headers=passed_on
                )
        except ClientConnectorError as error:
            message = f"error trying to reach service: {error}"
            raise Failure(503, "ServiceUnavailable", message) from error

    async def _serve(self, request: web.Request, query: dict[str, str]) -> web.StreamResponse:
        if request.path == "/version":
            ahead = timedelta(seconds=self.ahead_s + self.date_ahead_s)
            date = format_datetime(datetime.now(UTC) + ahead, usegmt=True)
            return web.json_response(
                {"major": "1", "minor": "34", "gitVersion": "v1.34.4"}, headers={"Date": date}
            )
        if request.path.startswith("/openapi/v3/apis/"):
            return web.json_response(self._openapi(request.path.removeprefix("/openapi/v3/apis/")))
        if proxied := _PROXIED.fullmatch(request.path):
            return await self._proxied(request, proxied["service"], proxied["path"])
        target = self._target(request.path)
        if isinstance(target, str):
            return web.json_response(self._discovery(target))
        is_applied = "apply-patch" in request.content_type
        text = await request.text() or "{}"
        body = yaml.load(text, _YAML) if is_applied else json.loads(text)
        if target.plural == "selfsubjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            resource = asked["resource"] + (
                f"/{asked['subresource']}" if asked.get("subresource") else ""
            )
            return web.json_response(
                body | {"status": {"allowed": (asked["verb"], resource) not in self._forbidden}},
                status=201,
            )
        if target.plural == "selfsubjectreviews":
            about = {"creationTimestamp": stamp(self.ahead_s)}
            review = {"metadata": about, "status": {"userInfo": {"username": USER}}}
            return web.json_response(body | review, status=201)
        if target.plural == "tokenreviews":
            return web.json_response(body | {"status": self._review(body["spec"])}, status=201)
        if target.plural == "subjectaccessreviews":
            asked = body["spec"]["resourceAttributes"]
            wanted = (body["spec"]["user"], asked["verb"], asked.get("namespace", ""))
            return web.json_response(
                body | {"status": {"allowed": wanted in self.grants}}, status=201
            )
        watching = query.get("watch") in ("true", "1")
        verb = _VERBS.get(request.method) or (
            "watch" if watching else "get" if target.name else "list"
        )
        self._authorize(verb, target)
        match verb:
            case "create":
                return web.json_response(
                    self._create(target, body, dry_run="dryRun" in query), status=201
                )
            case "patch" if isinstance(body, list):
                return web.json_response(self._replace_status(target, body))
            case "update" | "patch":
                return web.json_response(
                    self._update(
                        target,
                        body,
                        verb=verb,
                        dry_run="dryRun" in query,
                        is_applied=is_applied,
                    )
                )
            case "delete":
                return web.json_response(self._delete(target, body))
            case "watch":
                return await self._watch(request, target, query)
            case "list":
                answer = self._list(target, query)
                while self.late:
                    await self._move(0.01)
                return web.json_response(answer)
        if target.subresource == "log":
            return await self._log(request, target, query)
        return web.json_response(self._existing(target))

    def _target(self, path: str) -> Target | str:
        """Or the api version that is asked about."""
        parts = path.strip("/").split("/")
        here = parts.pop(0)
        api_version = parts.pop(0) if here == "api" else "/".join([parts.pop(0), parts.pop(0)])
        if not parts:
            return api_version
        namespace = None
        if parts[0] == "namespaces" and len(parts) > 2:
            namespace, parts = parts[1], parts[2:]
        plural, name, subresource = [*parts, "", ""][:3]
        of_group = f"{plural}.{api_version.partition('/')[0]}"
        plural = of_group if (api_version, of_group) in self._kinds else plural
        if (api_version, plural) not in self._kinds:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        if (
            namespace is not None
            and ("namespaces", "", namespace) not in self._objects
            and not name
        ):
            raise Failure(
                404,
                "NotFound",
                f'namespaces "{namespace}" not found',
                name=namespace,
                kind="namespaces",
            )
        return Target(api_version, plural, namespace, name, subresource)

    def _openapi(self, api_version: str) -> Raw:
        if ("get", "openapi") in self._forbidden:
            raise Failure(
                403, "Forbidden", f'forbidden: User "{USER}" cannot get path "/openapi/v3"'
            )
        if api_version not in self._schemas:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        return {
            "openapi": "3.0.0",
            "components": {"schemas": {"a.Kind": self._schemas[api_version]}},
        }

    def _review(self, spec: Raw) -> Raw:
        """Return the status of a TokenReview; "" is the audience of the API server."""
        audience = next(iter(spec.get("audiences", ())), "")
        user = self.people.get((spec["token"], audience))
        if user is None:
            return {"authenticated": False}
        return {"authenticated": True, "user": {"username": user}, "audiences": [audience]}

    def _discovery(self, api_version: str) -> Raw:
        resources = [
            {"name": plural.partition(".")[0], "kind": kind, "namespaced": namespaced}
            for (version, plural), (kind, namespaced) in self._kinds.items()
            if version == api_version
        ]
        if not resources:
            raise Failure(404, "NotFound", "the server could not find the requested resource")
        return {"kind": "APIResourceList", "groupVersion": api_version, "resources": resources}

    def _authorize(self, verb: str, target: Target) -> None:
        resource = target.plural + (f"/{target.subresource}" if target.subresource else "")
        if (verb, resource) not in self._forbidden:
            return
        named = f' "{target.name}"' if target.name else ""
        where = (
            f'in the namespace "{target.namespace}"' if target.namespace else "at the cluster scope"
        )
        raise Failure(
            403,
            "Forbidden",
            f'{target.resource}{named} is forbidden: User "{USER}" cannot {verb} resource '
            f'"{resource}" in API group "{target.group}" {where}',
            name=target.name,
            group=target.group,
            kind=target.plural,
        )

    def _existing(self, target: Target) -> Raw:
        found = self._objects.get(target.key)
        if found is None:
            raise self._failure(404, "NotFound", target, "not found")
        return found

    def _failure(self, status: int, reason: str, target: Target, what: str) -> Failure:
        return Failure(
            status,
            reason,
            f'{target.resource} "{target.name}" {what}',
            name=target.name,
            group=target.group,
            kind=target.plural,
        )

    def _create(self, target: Target, body: Raw, *, dry_run: bool) -> Raw:
        about = body.setdefault("metadata", {})
        if target.namespace:
            about["namespace"] = target.namespace
        target = Target(
            target.api_version, target.plural, target.namespace, about.get("name", ""), ""
        )
        if not target.name and "generateName" not in about:
            raise Failure(
                422,
                "Invalid",
                f"{body.get('kind')} is invalid: metadata.name: Required value: name or "
                f"generateName is required",
            )
        if target.key in self._objects:
            raise self._failure(409, "AlreadyExists", target, "already exists")
        message = self.refuse(target.plural, body)
        if message:
            raise self._failure(403, "Forbidden", target, f"is forbidden: {message}")
        for key in ("uid", "resourceVersion", "creationTimestamp"):
            about.pop(key, None)
        if target.plural == "experiments":
            about["generation"] = 1
        if dry_run:
            return body | {
                "metadata": about | {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
            }
        return self.put(target.plural, body)

    # Server-side apply of an object only adds and replaces keys: there is one manager.
    def _update(
        self, target: Target, body: Raw, *, verb: str, dry_run: bool, is_applied: bool = False
    ) -> Raw:
        if is_applied and not target.subresource and target.key not in self._objects:
            body["metadata"]["generation"] = 1
            return self._create(target, body, dry_run=dry_run)
        before = self._existing(target)
        asked = body.get("metadata", {}).get("resourceVersion")
        if asked not in (None, before["metadata"]["resourceVersion"]):
            what = (
                "the object has been modified; please apply your changes to the latest version "
                "and try again"
            )
            raise Failure(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {target.resource} "{target.name}": {what}',
            )
        if is_applied and target.subresource:
            return self._put_status(target, before, body["status"])
        after = _merged(before, body) if verb == "patch" else copied(body)
        if dry_run:
            return after
        about = after["metadata"]
        if "generation" in about and after.get("spec") != before.get("spec"):
            about["generation"] += 1
        if "deletionTimestamp" in about and not about.get("finalizers"):
            self.remove(*target.key)
            return after
        return self.put(target.plural, after)

    def _replace_status(self, target: Target, patch: list[Raw]) -> Raw:
        """By a JSON patch that tests the uid first. The metadata are those of before."""
        test, add = patch
        assert (target.subresource, test["path"], add["path"]) == (
            "status",
            "/metadata/uid",
            "/status",
        )
        before = self._existing(target)
        if before["metadata"]["uid"] != test["value"]:
            message = "the server rejected our request due to an error in our request"
            raise Failure(422, "Invalid", message)
        return self._put_status(target, before, add["value"])

    def _put_status(self, target: Target, before: Raw, status: Raw) -> Raw:
        """The metadata are those of before; fields that the only manager set earlier are gone."""
        assert target.subresource == "status"
        return self.put(target.plural, copied(before) | {"status": status})

    def _delete(self, target: Target, options: Raw) -> Raw:
        before = self._existing(target)
        uid, asked = before["metadata"]["uid"], (options.get("preconditions") or {}).get("uid")
        if asked not in (None, uid):
            raise Failure(
                409,
                "Conflict",
                f'Operation cannot be fulfilled on {target.resource} "{target.name}": '
                f"Precondition failed: UID in precondition: {asked}, UID in object meta: {uid}",
                name=target.name,
                group=target.group,
                kind=target.plural,
            )
        if before["metadata"].get("finalizers"):
            return self.change(
                *target.key, lambda obj: obj["metadata"].setdefault("deletionTimestamp", now())
            )
        # Without a policy a Job's pods stay: the old default of its API.
        policy = options.get("propagationPolicy") or (
            "Orphan" if target.plural == "jobs" else "Background"
        )
        self.kubelet.delete(target.key, grace_s=options.get("gracePeriodSeconds"), policy=policy)
        return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"}

    def end(self, key: tuple[str, str, str], *, orphans: bool) -> list[tuple[str, str, str]]:
        """Remove this object only, and return the objects that it owned,
        for the caller to delete or release.
        """
        before = self._objects.get(key)
        if before is None:
            return []
        owned = self._owned(before)
        self._record(key, before, None)
        if orphans:
            for each in owned:
                self.change(*each, lambda obj: obj["metadata"].pop("ownerReferences"))
            return []
        return owned

    def owned_by(self, key: tuple[str, str, str]) -> list[tuple[str, str, str]]:
        found = self._objects.get(key)
        return self._owned(found) if found else []

    def _list(self, target: Target, query: dict[str, str]) -> Raw:
        token = query.get("continue", "")
        if token:
            version, items = self._pages.get(token, (-1, []))
            if version < self._compacted:
                raise Failure(
                    410,
                    "Expired",
                    "The provided continue parameter is too old to display a consistent list "
                    "result. You can start a new list without the continue parameter.",
                )
        else:
            chosen = _selection(query)
            version = self.version
            items = [obj for obj in self.all(target.plural, target.namespace) if chosen(obj)]
        limit = int(query.get("limit", 0)) or len(items)
        about: Raw = {"resourceVersion": str(version)}
        if items[limit:]:
            about["continue"] = base64.b64encode(uuid.uuid4().bytes).decode()
            about["remainingItemCount"] = len(items) - limit
            self._pages[about["continue"]] = (version, items[limit:])
        kind, _ = self._kinds[target.api_version, target.plural]
        for item in items:
            item.pop("kind", None)
            item.pop("apiVersion", None)
        return {
            "kind": f"{kind}List",
            "apiVersion": target.api_version,
            "metadata": about,
            "items": items[:limit],
        }

    async def _watch(
        self, request: web.Request, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        chosen, seen = _selection(query), int(query.get("resourceVersion") or 0)
        gone = Failure(410, "Expired", f"too old resource version: {seen} ({self._compacted})")
        if 0 < seen < self._compacted and self.gone_as == "status":
            raise gone
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        clock = asyncio.get_running_loop()
        end, bookmarks = clock.time() + float(query.get("timeoutSeconds", 1800)), self._bookmarks
        next_bookmark = clock.time() + self.bookmark_s
        said = request[_SAID]

        async def tell(kind: str, obj: Raw) -> None:
            while self.silent or self.quiet:
                await self._move(0.01)
            await response.write(json.dumps({"type": kind, "object": obj}).encode() + b"\n")

        if seen == 0:
            for obj in self.all(target.plural, target.namespace):
                if chosen(obj):
                    await tell("ADDED", obj)
            seen = self.version
        while (now_s := clock.time()) < end:
            if seen < self._compacted:
                await tell("ERROR", gone.body)
                break
            moved = self._moved
            for change in self._since(seen):
                seen = change.version
                event = _event(change, target, chosen)
                is_lost = change.version in self._lost or change.plural in self.unwatched
                if event is not None and not is_lost:
                    await tell(*event)
            for event in self._said[said:]:
                said += 1
                await response.write(json.dumps(event).encode() + b"\n")
            if (
                self._bookmarks > bookmarks or now_s >= next_bookmark
            ) and "allowWatchBookmarks" in query:
                bookmarks, next_bookmark = self._bookmarks, now_s + self.bookmark_s
                kind, _ = self._kinds[target.api_version, target.plural]
                await tell(
                    "BOOKMARK",
                    {
                        "kind": kind,
                        "apiVersion": target.api_version,
                        "metadata": {"resourceVersion": str(seen), "creationTimestamp": None},
                    },
                )
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(
                    moved.wait(), max(0.0, min(end, next_bookmark) - clock.time())
                )
        return response

    def _since(self, version: int) -> list[Change]:
        """A copy: more may come while they are told."""
        if not self._changes or self._changes[-1].version <= version:
            return []
        first = max(0, version + 1 - self._changes[0].version)  # one version is one change
        return self._changes[first:]

    async def _log(
        self, request: web.Request, target: Target, query: dict[str, str]
    ) -> web.StreamResponse:
        pod = self._existing(target)
        log = self.kubelet.log_of(target.namespace or "", target.name, query.get("container", ""))
        if log is None:
            name = query.get("container") or pod["spec"]["containers"][0]["name"]
            raise Failure(
                400,
                "BadRequest",
                f'container "{name}" in pod "{target.name}" is waiting to start: ContainerCreating',
            )
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        since, position = query.get("sinceTime", "")[:19], 0
        if size := self.log_bytes(target.namespace or "", target.name):
            await _write_long_log(response, size, since)
            return response
        follow, stamped = query.get("follow") == "true", query.get("timestamps") == "true"
        if "tailLines" in query:
            position = max(0, len(log.lines) - int(query["tailLines"]))
        while True:
            moved, ended = self._moved, log.ended
            pending = b""
            for time, line in log.lines[max(0, position - log.rotated) :]:
                if time[:19] >= since:
                    pending += (time.encode() + b" " if stamped else b"") + line + b"\n"
            position = log.rotated + len(log.lines)
            for start in range(0, len(pending), self.log_pieces):
                while self.silent or self.quiet:
                    await self._move(0.01)
                await response.write(pending[start : start + self.log_pieces])
            if not follow or (ended and position == log.rotated + len(log.lines)):
                return response
            await moved.wait()


async def _write_long_log(response: web.StreamResponse, size: int, since: str) -> None:
    """Write lines of 1 KiB, a thousand of them in a second, from that second on."""
    begin = datetime(2026, 1, 1, tzinfo=UTC)
    for second in range(size >> 20):
        stamp = (begin + timedelta(seconds=second)).strftime("%Y-%m-%dT%H:%M:%S")
        if stamp < since:
            continue
        text = b"x" * 990 + b"\n"
        for first in range(0, 1024, 64):
            numbers = range(first, first + 64)
            await response.write(b"".join(f"{stamp}.{n:09}Z ".encode() + text for n in numbers))


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextlib.contextmanager
def kubeconfig_of(config: Raw) -> Iterator[Path]:
    """The kubeconfig of this process, for as long as it lasts."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kubeconfig"
        path.write_text(yaml.safe_dump(config), encoding="utf-8")
        before = os.environ.get("KUBECONFIG")
        os.environ["KUBECONFIG"] = str(path)
        try:
            yield path
        finally:
            if before is None:
                del os.environ["KUBECONFIG"]
            else:
                os.environ["KUBECONFIG"] = before


def _refusal(status: int, retry_after_s: float | None) -> web.Response:
    reason = {429: "TooManyRequests", 503: "ServiceUnavailable"}.get(status, "InternalError")
    message = "the server has received too many requests and has asked us to try again later"
    headers = {} if retry_after_s is None else {"Retry-After": str(int(retry_after_s))}
    return web.json_response(Failure(status, reason, message).body, status=status, headers=headers)


def _event(change: Change, target: Target, chosen: Predicate) -> tuple[str, Raw] | None:
    """Return the event of a change for a watch with this selection."""
    if change.plural != target.plural:
        return None

    def shown(obj: Raw | None) -> bool:
        return (
            obj is not None
            and target.namespace in (None, obj["metadata"].get("namespace"))
            and chosen(obj)
        )

    match shown(change.before), shown(change.after):
        case True, True:
            return "MODIFIED", change.after or {}
        case False, True:
            return "ADDED", change.after or {}
        case True, False:
            last = copied(change.before or {})
            last["metadata"]["resourceVersion"] = str(change.version)
            return "DELETED", last
    return None


def _selection(query: dict[str, str]) -> Predicate:
    labels = [
        _label_rule(part)
        for part in re.split(r",(?![^(]*\))", query.get("labelSelector", ""))
        if part
    ]
    fields = [_field_rule(part) for part in query.get("fieldSelector", "").split(",") if part]
    return lambda obj: (
        all(rule(obj["metadata"].get("labels") or {}) for rule in labels)
        and all(rule(obj) for rule in fields)
    )


def _label_rule(text: str) -> Predicate:
    if listed := re.fullmatch(r"\s*(\S+)\s+(in|notin)\s+\((.*)\)\s*", text):
        key, how, values = listed[1], listed[2], {value.strip() for value in listed[3].split(",")}
        return lambda labels: (labels.get(key) in values) == (how == "in")
    if compared := re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(\S*)\s*", text):
        key, equal, value = compared[1], compared[2] != "!=", compared[3]
        return lambda labels: (labels.get(key) == value) == equal
    key, wanted = text.strip().lstrip("!"), not text.strip().startswith("!")
    return lambda labels: (key in labels) == wanted


def _field_rule(text: str) -> Predicate:
    path, how, value = re.fullmatch(r"([^=!]+)(==|=|!=)(.*)", text).groups()  # type: ignore[union-attr]

    def rule(obj: Raw) -> bool:
        at: Any = obj
        for step in path.split("."):
            at = at.get(step, "") if isinstance(at, dict) else ""
        return (str(at) == value) == (how != "!=")

    return rule


def copied(value: Any) -> Any:
    """Return a deep copy of what JSON can hold: in a third of the time of `copy.deepcopy`,
    which took a third of the processor time of the tests with this server.
    """
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    if isinstance(value, list):
        return [copied(each) for each in value]
    return value


def _merged(before: Any, patch: Any) -> Any:
    """RFC 7396."""
    if not isinstance(patch, dict):
        return copied(patch)
    after = copied(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            after.pop(key, None)
        else:
            after[key] = _merged(after.get(key), value)
    return after
