"""Requests to an API server: raw JSON in and out, errors from `errors`, bounded waits. Knows
nothing of trials.

`transport` sends them. It is imported in the background while the rest of the program starts.

Requests are repeated after 429, and after 503 with Retry-After. Credentials that have expired or
are rejected are read again, once. When the connection breaks, only GET and DELETE are repeated,
once; after a create the caller finds out whether it arrived, because names are computed and a
second create returns 409.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import importlib
import importlib.util
import json
import logging
import math
import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote, urlencode

import orjson

from controller.kube import kubeconfig
from controller.kube.errors import (
    ANONYMOUS,
    AccessDenied,
    ApiConflict,
    ApiError,
    ApiForbidden,
    ApiNotFound,
    BackendError,
    BadKubeconfig,
    NotResponding,
    NotServed,
    Unreachable,
)
from controller.kube.log_streams import LogStreams
from controller.kube.loop_turns import LoopTurns
from controller.kube.objects import Body, Raw
from controller.kube.request_limit import OWN, PER_S, RequestLimit, Sender
from suggest.distribution import install_command

if TYPE_CHECKING:
    from controller.kube.transport import Response, Transport

_PAGE = 500
# limit for a silent stream whose TCP connection is alive; bookmarks come every minute
_SILENCE_S = 120.0
# A server may take this long before it sends the first byte.
_DOWNLOAD_SILENCE_S = 600.0
_TRIES = 6  # one, and five more after a 429
_LONGEST_PAUSE_S = 10.0
_RENEWAL_PAUSE_S = 3.0  # after a failed renewal: hundreds of requests may ask for another
_RESPONSE_S = 15.0
_ANSWER_S = 5.0  # to the shortest question
_REQUEST_S = 60.0  # the server's own limit for requests other than watches
_MERGE_PATCH, _JSON_PATCH = "application/merge-patch+json", "application/json-patch+json"
# With its parameter, the `kubernetes` package sends the bytes that it is given.
_APPLY_PATCH = "application/apply-patch+yaml; charset=utf-8"
# Characters that YAML takes for line breaks, or refuses, besides those that JSON escapes anyway.
_ESCAPED = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
# The manager of fields that `apply` writes; as the header User-Agent, also of those of patches.
MANAGER = "tuner"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of object, with its path on the server."""

    api_version: str
    plural: str
    kind: str
    namespaced: bool = True

    def path(self, namespace: str | None, name: str = "", subresource: str = "") -> str:
        """Return the path of the collection or of one object. namespace None: of all namespaces."""
        parts = ["apis" if "/" in self.api_version else "api", self.api_version]
        if self.namespaced and namespace is not None:
            parts += ["namespaces", namespace]
        parts += [part for part in (self.plural, name, subresource) if part]
        quoted = (quote(part, safe="/" if part == self.api_version else "") for part in parts)
        return "/" + "/".join(quoted)


JOBS = Kind("batch/v1", "jobs", "Job")
LEASES = Kind("coordination.k8s.io/v1", "leases", "Lease")
PODS = Kind("v1", "pods", "Pod")
EVENTS = Kind("v1", "events", "Event")
QUOTAS = Kind("v1", "resourcequotas", "ResourceQuota")
LIMIT_RANGES = Kind("v1", "limitranges", "LimitRange")
SERVICES = Kind("v1", "services", "Service")
CONFIG_MAPS = Kind("v1", "configmaps", "ConfigMap")
CLAIMS = Kind("v1", "persistentvolumeclaims", "PersistentVolumeClaim")
SECRETS = Kind("v1", "secrets", "Secret")
NODES = Kind("v1", "nodes", "Node", namespaced=False)
NAMESPACES = Kind("v1", "namespaces", "Namespace", namespaced=False)
_ACCESS_REVIEWS = Kind(
    "authorization.k8s.io/v1", "selfsubjectaccessreviews", "SelfSubjectAccessReview", False
)
_SELF_REVIEWS = Kind("authentication.k8s.io/v1", "selfsubjectreviews", "SelfSubjectReview", False)


# Returns further headers of a request, for the present credentials.
HeadersOf = Callable[[kubeconfig.ClusterAccess], Sequence[tuple[str, str]]]


class Connection:
    """A pool of connections with current credentials. `open`, use it from one loop, close it."""

    def __init__(
        self, access: kubeconfig.ClusterAccess, context: str | None, limit: RequestLimit
    ) -> None:
        self.access = access
        # Answered requests by verb and code; `error`: no response came.
        self.requests: Counter[tuple[str, str]] = Counter()
        self._context = context
        self._renewing = asyncio.Lock()
        self._renew_after_s = 0.0  # monotonic
        self._why_not_renewed = ""
        self.limit = limit
        # Raises if the process may not write on behalf of an experiment: asked when a request is
        # sent, which may be long after it was made.
        self.fence: Callable[[], None] = lambda: None
        self._loading = asyncio.create_task(
            asyncio.to_thread(importlib.import_module, "controller.kube.transport")
        )
        self._transport: Transport | None = None
        self._replaced: list[Transport] = []  # streams still use them

    @classmethod
    async def open(cls, context: str | None, limit: RequestLimit) -> Connection:
        """Does not call the server. Raises BadKubeconfig, AccessDenied."""
        if not _is_installed():
            raise BadKubeconfig(
                "the Python package `kubernetes` 37 is missing; install with: "
                f"{install_command('kubernetes')}; beside a package that needs an older one: "
                f"{install_command('kubernetes-asyncio')}"
            )
        return cls(await kubeconfig.load(context, attended=True), context, limit)

    async def close(self) -> None:
        """Close all connections, also those of responses in progress."""
        await asyncio.wait([self._loading])
        for transport in (*self._replaced, self._transport):
            if transport is not None:
                await transport.close()

    @asynccontextmanager
    async def response(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: Body | None = None,
        content_type: str = "",
        silence_s: float | None = None,
        headers_of: HeadersOf = lambda _access: (),
        is_fenced: bool = False,
    ) -> AsyncIterator[Response]:
        """Yield the successful response, its body unread.

        content_type: of the body; "" is that of a merge patch or of a whole object.
        silence_s: the limit of a stream; None: not a stream.
        headers_of: what a server behind the API server's proxy asks for.

        Raises ApiError, BackendError if such a server has sent it, AccessDenied and Unreachable.
        """
        content_type = content_type or (_MERGE_PATCH if method == "PATCH" else "application/json")
        target = path + (f"?{urlencode(query)}" if query else "")
        tries, renewed = 0, False
        while True:
            if self.access.credentials.expired():
                await self._renew(self.access, self.access.credentials.authorization())
            access = self.access
            authorization = access.credentials.authorization()
            headers = [
                ("Accept", "application/json"),
                ("Accept-Encoding", "gzip" if access.compressed else "identity"),
                ("User-Agent", MANAGER),
                ("Content-Type", content_type),
                *access.impersonation,  # each group has a header of its own
                *headers_of(access),
            ]
            if authorization:
                headers.append(("Authorization", authorization))
            transport = await self._current_transport()
            if is_fenced:
                self.fence()
            sending = transport.request(
                method,
                target,
                headers,
                body,
                silence_s=_RESPONSE_S if silence_s is None else silence_s,
                total_s=_REQUEST_S if silence_s is None else None,
            )
            response = await self._counted("WATCH" if "watch" in query else method, sending)
            try:
                if response.status < 300:
                    yield response
                    return
                status = _status_of(await response.read())
                error = _error_of(status, response)
            finally:
                response.close()
            # The API server's own errors have a number.
            if isinstance(code := status.get("code"), str):
                raise BackendError(code, error.message)
            if error.status == 401 and not renewed and await self._renew(access, authorization):
                renewed = True
                continue
            is_anonymous = error.refusal is not None and error.refusal.user == ANONYMOUS
            if error.status == 401 or is_anonymous:
                raise AccessDenied(self._credentials_rejected()) from error
            tries += 1
            says_when = error.retry_after_s is not None
            may_pass = error.status == 429 or (error.status == 503 and says_when)
            if not may_pass or tries == _TRIES:
                raise error
            pause_s = 1.0 if error.retry_after_s is None else error.retry_after_s
            await asyncio.sleep(min(pause_s, _LONGEST_PAUSE_S))

    async def _counted(self, verb: str, sending: Awaitable[Response]) -> Response:
        try:
            response = await sending
        except Unreachable:
            self.requests[verb, "error"] += 1
            raise
        self.requests[verb, str(response.status)] += 1
        return response

    async def _current_transport(self) -> Transport:
        if self._transport is None:
            module = await asyncio.shield(self._loading)  # others wait for it, too
            self._transport = self._transport or module.Transport(self.access)
        return self._transport

    def json_of(self, body: bytes) -> Raw:
        """Parse the body of a successful response, or one line of a watch."""
        try:
            value = orjson.loads(body)
        except ValueError as error:
            raise Unreachable(
                f"{self.access.full_name}: the response is not JSON ({error}); is it an API "
                f"server or a login page?"
            ) from error
        return value if isinstance(value, dict) else {}

    async def _renew(self, used: kubeconfig.ClusterAccess, authorization: str) -> bool:
        """Read the credentials again, which may run a plugin.

        Return False if they are still those that were `authorization`.

        Raises:
            Unreachable: there are no credentials now. A retry may help: trials keep running while a
            person logs in.
        """
        async with self._renewing:
            if self.access is not used:
                return True  # another request has just done it
            if time.monotonic() < self._renew_after_s:
                if self._why_not_renewed:
                    raise Unreachable(self._why_not_renewed)
                return False
            self._renew_after_s, self._why_not_renewed = time.monotonic() + _RENEWAL_PAUSE_S, ""
            try:
                renewed = await kubeconfig.load(self._context)
            # it was deleted since the start; the error to report is still the 401
            except BadKubeconfig:
                return False
            except AccessDenied as error:
                self._why_not_renewed = str(error)
                raise Unreachable(str(error)) from error
            same_transport = renewed.transport == used.transport
            if same_transport and renewed.credentials.authorization() == authorization:
                return False
            _log.info("context=%s credentials renewed", self.access.context)
            self.access, self._renew_after_s = renewed, 0.0
            if not same_transport:
                await self._replace_transport()
            return True

    async def _replace_transport(self) -> None:
        """Let the next request connect with other certificates. Streams keep their connections."""
        previous = [*filter(None, [self._transport]), *self._replaced]
        self._transport = None
        self._replaced = [transport for transport in previous if transport.open_responses]
        for transport in previous:
            if not transport.open_responses:
                await transport.close()

    def _credentials_rejected(self) -> str:
        access = self.access
        return (
            f"{access.server} does not accept the credentials of context {access.context!r} (user "
            f"{access.user!r}): they are wrong or have expired; log in again, and check with: "
            "kubectl auth whoami"
        )


class KubernetesClient:
    """The client of one context.

    `connect` one, use it from one loop, close it or leave its `async with`. Its requests are those
    of the process, which wait for no others.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._sender = OWN
        self.turns = LoopTurns()
        self._discovered: dict[tuple[str, str], Kind] = {}
        # as of the start; renewed credentials are in the connection
        self.access = connection.access
        self.context = connection.access.context
        self.server = connection.access.server
        self.default_namespace = connection.access.namespace
        self.log_streams = LogStreams()
        self.requests = connection.requests

    @classmethod
    async def connect(
        cls, context: str | None = None, *, requests_per_s: float = PER_S
    ) -> KubernetesClient:
        """Connect by $KUBECONFIG, ~/.kube/config, or the service account of this pod.

        Does not call the server. Raises BadKubeconfig, AccessDenied.
        """
        return cls(await Connection.open(context, RequestLimit(per_s=requests_per_s)))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close()

    @property
    def requests_waiting(self) -> int:
        """Return how many requests wait for a place."""
        return self._connection.limit.waiting

    def fence_with(self, fence: Callable[[], None]) -> None:
        """Let writes on behalf of experiments raise what the fence raises when they are sent."""
        self._connection.fence = fence

    def on_behalf_of(self, sender: Sender) -> Self:
        """Return a client whose requests take turns with those of others. Do not close it."""
        client = copy.copy(self)
        client._sender = sender
        return client

    async def _call(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None = None,
        body: Body | None = None,
        *,
        content_type: str = "",
    ) -> Raw:
        connection, is_own = self._connection, self._sender == OWN
        repeated = method not in ("GET", "DELETE")
        while True:
            sending = connection.response(
                method,
                path,
                query or {},
                body=body,
                content_type=content_type,
                is_fenced=not is_own and method != "GET",
            )
            try:
                async with connection.limit.place(self._sender), sending as response:
                    answer = connection.json_of(await response.read())
                    break
            except Unreachable as lost:
                if repeated or isinstance(lost, NotResponding):
                    raise
                repeated = True
        if not is_own:
            await self.turns.next(self._sender)  # for what the caller does with the answer
        return answer

    async def create(
        self, kind: Kind, namespace: str | None, body: Raw, *, dry_run: bool = False
    ) -> Raw:
        """Create an object and return it.

        A field that the server does not know is an error, not ignored.
        """
        query = {"fieldValidation": "Strict"} | ({"dryRun": "All"} if dry_run else {})
        return await self._call("POST", kind.path(namespace), query, body)

    async def get(self, kind: Kind, namespace: str | None, name: str) -> Raw:
        return await self._call("GET", kind.path(namespace, name))

    async def list(
        self, kind: Kind, namespace: str | None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Raw], str]:
        """Return all objects, with kind and apiVersion set, and the version to watch from."""
        query = _selectors(labels, fields) | {"limit": str(_PAGE)}
        items: list[Raw] = []
        while True:
            try:
                page = await self._call("GET", kind.path(namespace), query)
            except ApiNotFound as error:
                raise self._without_kind(kind.api_version, kind.kind) from error
            except ApiError as error:
                if error.status != 410 or "limit" not in query:
                    raise
                # The snapshot behind the pages has been compacted: list without paging.
                query, items = _selectors(labels, fields), []
                continue
            items += page.get("items") or []
            about = page["metadata"]
            if not about.get("continue"):
                for item in items:
                    item.setdefault("apiVersion", kind.api_version)
                    item.setdefault("kind", kind.kind)
                return items, about["resourceVersion"]
            query = query | {"continue": about["continue"]}

    async def delete(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        *,
        uid: str = "",
        grace_s: float | None = None,
        propagation: str | None = "Background",
    ) -> None:
        """Delete an object; no error if it is gone or, with `uid`, another one has its name.

        Raises NotServed, since an object of a kind that is not served may exist.
        """
        options: Raw = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if grace_s is not None:
            options["gracePeriodSeconds"] = math.ceil(grace_s)
        if uid:
            options["preconditions"] = {"uid": uid}
        gone = (ApiNotFound, ApiConflict) if uid else (ApiNotFound,)
        try:
            await self._call("DELETE", kind.path(namespace, name), body=options)
        except NotServed:
            raise
        except gone:
            pass

    async def patch(
        self, kind: Kind, namespace: str | None, name: str, body: Raw, *, subresource: str = ""
    ) -> Raw:
        """Apply a merge patch, in which None removes a key."""
        return await self._call("PATCH", kind.path(namespace, name, subresource), body=body)

    async def apply(
        self,
        kind: Kind,
        namespace: str | None,
        name: str,
        body: Raw,
        *,
        subresource: str = "",
        manager: str = MANAGER,
        dry_run: bool = False,
        force: bool = False,
    ) -> Raw:
        """Create an object or change it to what the body says, by server-side apply.

        Fields that an earlier call of the manager set are removed if the body lacks them. One that
        the server does not know is an error, but in a subresource.

        Raises ApiError: 409 if another program has set a field to another value, unless `force`
        overwrites it, or if the object has not the resourceVersion of the body.
        """
        query = {"fieldManager": manager}
        query |= {} if subresource else {"fieldValidation": "Strict"}
        query |= {"dryRun": "All"} if dry_run else {}
        query |= {"force": "true"} if force else {}
        whole = {"apiVersion": kind.api_version, "kind": kind.kind, **body}
        whole["metadata"] = {"name": name, **body.get("metadata", {})}
        # The API server reads it as YAML, which has no escapes of surrogate pairs, as JSON has.
        text = json.dumps(whole, ensure_ascii=False)
        text = _ESCAPED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)
        data = text.encode("utf-8", errors="replace")
        path = kind.path(namespace, name, subresource)
        return await self._call("PATCH", path, query, data, content_type=_APPLY_PATCH)

    @asynccontextmanager
    async def proxied(
        self,
        method: str,
        namespace: str,
        service: str,
        path: str,
        query: Mapping[str, str],
        *,
        body: bytes | None = None,
        is_download: bool = False,
        headers_of: HeadersOf,
    ) -> AsyncIterator[Response]:
        """Send a request to a service by way of the API server, and yield the response.

        service: the name between `services/` and `/proxy`, such as `https:tuner:https`. The API
        server removes the header Authorization. is_download: the answer may take as long as it
        takes. Raises BackendError if the service refuses.
        """
        async with (
            self._connection.limit.place(self._sender),
            self._connection.response(
                method,
                f"{SERVICES.path(namespace)}/{service}/proxy{path}",
                query,
                body=body,
                content_type="application/proto",
                silence_s=_DOWNLOAD_SILENCE_S if is_download else None,
                headers_of=headers_of,
            ) as response,
        ):
            yield response

    async def replace_status(
        self, kind: Kind, namespace: str | None, name: str, status: Raw, *, uid: str
    ) -> Raw:
        """Replace the status of the object with this uid, and of no later one of its name.

        The API server takes a uid in the metadata of a status for that of the stored object; a JSON
        patch can test it. Others may change the rest of the object meanwhile.

        Raises ApiError: 404 if there is no such object, 409 if another one has its name.
        """
        patch: list[Raw] = [
            {"op": "test", "path": "/metadata/uid", "value": uid},
            {"op": "add", "path": "/status", "value": status},
        ]
        path = kind.path(namespace, name, "status")
        try:
            return await self._call("PATCH", path, body=patch, content_type=_JSON_PATCH)
        except ApiError as error:
            # A status that the schema refuses has causes.
            if error.status != 422 or error.details.get("causes"):
                raise
            message = f"{kind.plural} {name}: another object has this name now"
            raise ApiError(409, "Conflict", message) from error

    async def watch(
        self,
        kind: Kind,
        namespace: str | None,
        *,
        labels: str = "",
        fields: str = "",
        resource_version: str,
        timeout_s: float,
    ) -> AsyncGenerator[Raw, None]:
        """Yield events as {"type", "object"}, including bookmarks, until the server ends the watch.

        The server ends it after timeout_s. Raises ApiError (410: list again), and Unreachable when
        the stream breaks or is silent for too long.
        """
        query = _selectors(labels, fields) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(math.ceil(timeout_s)),
        }
        silence_s = min(_SILENCE_S, math.ceil(timeout_s) * 1.25)
        path = kind.path(namespace)
        async with self._connection.response("GET", path, query, silence_s=silence_s) as response:
            partial = b""
            async for chunk in response.chunks():
                partial += chunk
                if b"\n" not in chunk:
                    continue
                *lines, partial = partial.split(b"\n")
                for line in lines:
                    event = self._connection.json_of(line)
                    if event["type"] == "ERROR":
                        raise _error_of(event["object"])
                    yield event

    async def may_stream(self) -> None:
        """Wait until a request for a log may be sent, whose answer occupies no place."""
        await self._connection.limit.begin(self._sender)

    async def log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        since: str = "",
        last_lines: int = 0,
        previous: bool = False,
        follow: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        """Yield the container's log in chunks, which may end within a line. See `may_stream`.

        A timestamp comes before each line.

        since: a timestamp; only later lines are sent. last_lines: only so many are sent; 0: all.
        previous: the log before the container was restarted in place. The stream ends with the
        container, but also after two minutes of silence, when the kubelet rotates the file, or at
        the server's choice: only the pod tells whether it was all. Raises ApiError (400 while the
        container waits, 404 when the pod is gone), Unreachable when the stream breaks.
        """
        options = {
            "container": container,
            "follow": "true" if follow else "",
            "previous": "true" if previous else "",
            "sinceTime": since,
            "tailLines": str(last_lines) if last_lines else "",
        }
        query = {"timestamps": "true"} | {key: value for key, value in options.items() if value}
        path = PODS.path(namespace, pod) + "/log"
        # Until a container has printed something, not even the response head arrives.
        with contextlib.suppress(NotResponding):
            streaming = self._connection.response("GET", path, query, silence_s=_SILENCE_S)
            async with streaming as response:
                async for chunk in response.chunks():
                    yield chunk

    async def review(
        self, verb: str, kind: Kind, namespace: str | None, *, subresource: str = ""
    ) -> bool:
        """Return whether the server allows us the verb (SelfSubjectAccessReview)."""
        group, _, version = kind.api_version.rpartition("/")
        attributes = {
            "verb": verb,
            "group": group,
            "version": version,
            "resource": kind.plural,
            "namespace": namespace,
        }
        attributes |= {"subresource": subresource} if subresource else {}
        body = {
            "apiVersion": _ACCESS_REVIEWS.api_version,
            "kind": _ACCESS_REVIEWS.kind,
            "spec": {"resourceAttributes": attributes},
        }
        reply = await self._call("POST", _ACCESS_REVIEWS.path(None), body=body)
        return bool(reply["status"]["allowed"])

    async def version(self) -> Raw:
        version, _ = await self._version_and_date()
        return version

    async def clock(self) -> datetime | None:
        """Return the server's time in whole seconds, as it stamps objects; None: it tells none.

        A server without SelfSubjectReviews tells it in the header Date, which a proxy may set.
        """
        try:
            review = await self._review_self()
        except (ApiForbidden, ApiNotFound):
            review = {}
        if stamp := (review.get("metadata") or {}).get("creationTimestamp"):
            return datetime.fromisoformat(stamp)
        _, date = await self._version_and_date()
        return date

    async def _version_and_date(self) -> tuple[Raw, datetime | None]:
        async with (
            self._connection.limit.place(self._sender),
            self._connection.response("GET", "/version", {}) as response,
        ):
            version = self._connection.json_of(await response.read())
            date = response.headers.get("Date")
        return version, None if date is None else parsedate_to_datetime(date)

    async def answers(self) -> bool:
        """Return whether the server answers now, and not with an error of its own."""
        try:
            async with asyncio.timeout(_ANSWER_S):
                await self.version()
        except (Unreachable, TimeoutError):
            return False
        except ApiError as error:
            return not error.is_of_server
        except AccessDenied:
            pass
        return True

    async def whoami(self) -> str:
        """Return the user name that the server authenticated."""
        reply = await self._review_self()
        return str(reply["status"]["userInfo"].get("username", ""))

    async def _review_self(self) -> Raw:
        body = {"apiVersion": _SELF_REVIEWS.api_version, "kind": _SELF_REVIEWS.kind}
        return await self._call("POST", _SELF_REVIEWS.path(None), body=body)

    async def discover(self, api_version: str, kind: str) -> Kind:
        """Look up the plural and scope of a kind on the server, once. Raises ApiError 404."""
        if (discovered := self._discovered.get((api_version, kind))) is not None:
            return discovered
        root = "/apis/" if "/" in api_version else "/api/"
        try:
            offered = (await self._call("GET", root + api_version))["resources"]
        except ApiNotFound:
            offered = []
        for entry in offered:
            if entry["kind"] == kind and "/" not in entry["name"]:
                discovered = Kind(api_version, entry["name"], kind, bool(entry["namespaced"]))
                self._discovered[api_version, kind] = discovered
                return discovered
        raise self._without_kind(api_version, kind)

    def _without_kind(self, api_version: str, kind: str) -> ApiError:
        message = f"{self.server} has no kind {kind} in {api_version}; install its definition"
        return ApiError(404, "NotFound", message)

    async def spec_fields(self, api_version: str, kind: str) -> frozenset[str] | None:
        """Return the fields under `spec` of a kind, or None if the server does not publish them.

        Every authenticated user may read the server's OpenAPI document, but few may read the
        definition of a kind.
        """
        group, _, version = api_version.rpartition("/")
        root = "apis" if group else "api"
        try:
            document = await self._call("GET", f"/openapi/v3/{root}/{api_version}")
        except ApiError as error:
            if error.status not in (403, 404, 406):
                raise
            return None
        wanted = {"group": group, "version": version, "kind": kind}
        for schema in document.get("components", {}).get("schemas", {}).values():
            if wanted in schema.get("x-kubernetes-group-version-kind", ()):
                spec = schema.get("properties", {}).get("spec", {})
                return frozenset(spec["properties"]) if "properties" in spec else None
        return None

    async def close(self) -> None:
        await self._connection.close()


async def list_allowed(
    client: KubernetesClient, kind: Kind, namespace: str | None
) -> list[Any] | None:
    """List the objects of a kind, whose type the caller names; None without the right to."""
    try:
        objects, _ = await client.list(kind, namespace)
    except ApiForbidden:
        return None
    return objects


def _selectors(labels: str, fields: str) -> dict[str, str]:
    chosen = {"labelSelector": labels, "fieldSelector": fields}
    return {key: value for key, value in chosen.items() if value}


def _is_installed() -> bool:
    """Whether `transport` can be imported.

    Importing `kubernetes` to find out would take a quarter of a second.
    """
    official = importlib.util.find_spec("kubernetes")
    folders = official.submodule_search_locations if official is not None else None
    has_aio = any((Path(folder) / "aio").is_dir() for folder in folders or ())
    return has_aio or importlib.util.find_spec("kubernetes_asyncio") is not None


def _status_of(body: bytes) -> Raw:
    """Parse the body of an error response.

    One from in front of the API server, such as a proxy's, is text.
    """
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        value = " ".join(body.decode(errors="replace").split())[:500]
    return value if isinstance(value, dict) else {"message": str(value)}


def _error_of(status: Raw, response: Response | None = None) -> ApiError:
    """Make the error of a `Status`: the body of a response, or the object of an ERROR event."""
    code = int(response.status if response is not None else status.get("code") or 500)
    details = status.get("details") or {}
    after = None if response is None else response.headers.get("Retry-After")
    after = after or details.get("retryAfterSeconds")
    message = status.get("message") or f"HTTP {code}"
    return ApiError(
        code,
        status.get("reason") or (response.reason if response is not None else "") or "Unknown",
        message,
        retry_after_s=float(after) if after is not None and str(after).isdigit() else None,
        details=details,
    )
