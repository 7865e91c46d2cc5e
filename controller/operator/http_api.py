"""The HTTP API of the controller, which the command line reads through the API server's proxy.

Each request says who sends it: `X-Tuner-Authorization`, because the API server's proxy removes
`Authorization`, which clients that come directly may send instead. Cookies do not count, so no page
of another site can send a request for its visitor.
"""

from __future__ import annotations

import asyncio
import json
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import IO, Any

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controller import experiment_rows as table_rows
from controller import experiment_tables as tables
from controller.app import pack
from controller.app.controller_api import AUTHORIZATION, OFFSET, PAGE, PAGE_OF_EXPERIMENTS
from controller.core.model import FINAL, Attempt, Experiment, Uid, trial_label
from controller.kube.reflector import Key
from controller.operator.access import Access, Caller
from controller.operator.experiments import HostedExperiments
from controller.operator.manager import ExperimentResources
from controller.operator.resource import uid_of
from controller.operator.rpc_access import ClusterAuthenticator
from controller.ui.application import status_of
from suggest.errors import (
    InvalidArgument,
    NotFound,
    PermissionDenied,
    TunerError,
    Unauthenticated,
    Unavailable,
)
from suggest.server import Server

# Addresses of both families, where the system has both.
ALL_INTERFACES = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
_HEADERS = (AUTHORIZATION.lower(), "authorization")
_LONGEST_REQUEST = 1 << 16  # bytes of the message of a method
_METHOD_S = 60.0
_PART = 1 << 20  # bytes of a log in one response, and of a pack in one message
# Packs at a time, since each needs room on the disk until it is sent.
_PACKS = 4
# The methods that change nothing. People change objects of the API server instead.
_METHODS = frozenset(
    (
        "GetStudy",
        "ListStudies",
        "GetTrial",
        "ListTrials",
        "ListMeasurements",
        "ListOptimalTrials",
        "EstimateStudy",
    )
)
_SERVICE = "/tuner.suggest.v1.SuggestService"
_EXPERIMENT = "/api/v1/namespaces/{namespace}/experiments/{name}"
_LOG = _EXPERIMENT + "/trials/{trial}/attempts/{attempt:int}/log"


class HttpApi:
    """The routes below /api/v1, and the reading methods of the suggestion service.

    resources: all experiments that the controller knows.
    storage: the URL of the store of their studies.
    """

    def __init__(
        self,
        access: Access,
        experiments: HostedExperiments,
        server: Server,
        authenticator: ClusterAuthenticator,
        resources: ExperimentResources,
        storage: str,
    ) -> None:
        self._access = access
        self._experiments = experiments
        self._server = server
        self._authenticator = authenticator
        self._resources = resources
        self._storage = storage
        self._packing = asyncio.Lock()
        self._packs = asyncio.Semaphore(_PACKS)

    @property
    def routes(self) -> Sequence[Route]:
        return [
            Route("/api/v1/whoami", self._whoami),
            Route("/api/v1/experiments", self._list),
            Route("/api/v1/names", self._names),
            Route(_EXPERIMENT, self._experiment),
            Route(f"{_EXPERIMENT}/attempts", self._attempts),
            Route(f"{_EXPERIMENT}/events", self._events),
            Route(f"{_EXPERIMENT}/pack", self._pack),
            Route(_LOG, self._log),
            Route(f"{_LOG}/start", self._log_start),
            Route(f"{_SERVICE}/{{method}}", self._method, methods=["POST"]),
        ]

    async def _whoami(self, request: Request) -> Response:
        caller = await caller_of(self._access, request.headers)
        return JSONResponse({"name": caller.name, "groups": list(caller.groups)})

    async def _list(self, request: Request) -> Response:
        """Answer with a page of the experiments that the caller may list."""
        after = tuple(request.query_params.get("after", "/").split("/", 1))
        name = request.query_params.get("name")
        keys = [key for key in await self._readable(request) if key > after]
        if name is not None:
            keys = [key for key in keys if key[1] == name]
        page, rest = keys[:PAGE_OF_EXPERIMENTS], keys[PAGE_OF_EXPERIMENTS:]
        rows = self._experiments.rows_of(page)
        finals = self._experiments.final_attempts(
            [row["uid"] for row in rows.values() if row["final_trial"] is not None]
        )
        documents, never_ran = [], []
        for key in page:
            if key in rows:
                documents.append(self._document_of(rows[key]) | self._overview(rows[key], finals))
            else:
                never_ran += self._never_ran(*key)
        following = "/".join(page[-1]) if rest else None
        return _json({"experiments": documents, "neverRan": never_ran, "next": following})

    async def _names(self, request: Request) -> Response:
        """Answer with names to propose: none to those who may not list them."""
        try:
            keys = await self._readable(request)
        except PermissionDenied:
            keys = []
        return _json({"names": [key[1] for key in keys]})

    async def _readable(self, request: Request) -> list[Key]:
        """Return the sorted keys of the experiments that the caller may list.

        Those of one namespace if the request names it. Raises PermissionDenied if it may list none.
        """
        caller = await caller_of(self._access, request.headers)
        keys = sorted(self._resources.keys)
        if (namespace := request.query_params.get("namespace")) is not None:
            await self._access.check(caller, "list", namespace)
            return [key for key in keys if key[0] == namespace]
        namespaces = await self._access.readable(caller, {key[0] for key in keys})
        return [key for key in keys if namespaces is None or key[0] in namespaces]

    async def _experiment(self, request: Request) -> Response:
        return _json(self._document(await self._found(request)))

    async def _attempts(self, request: Request) -> Response:
        experiment = await self._found(request)
        uid = experiment.uid
        if "trial" in request.query_params:
            trial = table_rows.trial_of(_number(request, "trial"))
            return _attempts(uid, self._experiments.attempts(uid, trial), None)
        first = _number(request, "first", table_rows.FINAL_ROW)
        last = first + PAGE - 1
        attempts = self._experiments.attempts_between(uid, first, last)
        is_last = self._experiments.last_trial(uid) <= last
        return _attempts(uid, attempts, None if is_last else last + 1)

    async def _events(self, request: Request) -> Response:
        experiment = await self._found(request)
        trial = None
        if "trial" in request.query_params:
            trial = table_rows.trial_of(_number(request, "trial"))
        events = self._experiments.events(experiment.uid, trial)
        return _json({"events": [tables.event_row(experiment.uid, event) for event in events]})

    async def _log(self, request: Request) -> Response:
        experiment = await self._found(request)
        attempt = self._attempt(experiment, request)
        log = await self._experiments.available_log(experiment.uid, attempt)
        begin, data = log.read(_number(request, "offset", 0))
        parts, size = [data], len(data)
        while data and size < _PART:
            at, data = log.read(begin + size)
            if at != begin + size:
                break  # what is in between was not kept
            parts.append(data)
            size += len(data)
        headers = {OFFSET: str(begin), "cache-control": "no-store"}
        return Response(b"".join(parts), media_type="application/octet-stream", headers=headers)

    async def _log_start(self, request: Request) -> Response:
        experiment = await self._found(request)
        attempt = self._attempt(experiment, request)
        log = await self._experiments.available_log(experiment.uid, attempt)
        return _json({"offset": log.begins_at(_number(request, "tail"))})

    async def _pack(self, request: Request) -> Response:
        """Answer with the file of `tuner pack`, in which the cluster is the request's context."""
        experiment = await self._found(request)  # those who may not get it do not wait
        context = request.query_params.get("context", "")
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._packs)
            async with self._packing, self._experiments.with_all_files(experiment.uid):
                file = await asyncio.to_thread(self._packed, experiment, context)
            stack.enter_context(file)
            return Download(file, stack.pop_all())

    def _packed(self, experiment: Experiment, context: str) -> IO[bytes]:
        """Return the open pack. Nothing is left of it once it is closed, or this process dies."""
        try:
            with tempfile.TemporaryDirectory(prefix="tuner-pack-") as folder:
                target = Path(folder, experiment.name)
                pack.write(self._experiments, experiment, self._storage, target, context=context)
                return target.open("rb")
        except OSError as error:
            place = error.filename or tempfile.gettempdir()  # a full disk names no file
            raise Unavailable(
                f"the controller cannot write the pack: {place}: {error.strerror or error}"
            ) from error

    async def _method(self, request: Request) -> Response:
        """Answer a method of the suggestion service, as in Connect's unary protocol."""
        caller = await caller_of(self._access, request.headers)
        method = request.path_params["method"]
        if method not in _METHODS:
            raise NotFound(f"{method} is not a method that reads")
        message = b""
        async for chunk in request.stream():
            message += chunk
            if len(message) > _LONGEST_REQUEST:
                raise InvalidArgument.at("", f"has more than {_LONGEST_REQUEST} bytes")
        channel = self._server.inside(rights=self._authenticator.rights_for(caller))
        reply = await channel.exchange(f"{_SERVICE}/{method}", message, timeout_s=_METHOD_S)
        headers = {"cache-control": "no-store"}
        return Response(reply, media_type="application/proto", headers=headers)

    async def _found(self, request: Request) -> Experiment:
        """Return the experiment of the path. Raises NotFound, also if another has its name now."""
        namespace, name = request.path_params["namespace"], request.path_params["name"]
        caller = await caller_of(self._access, request.headers)
        # Before anything is looked up, so that the answer does not tell what exists.
        await self._access.check(caller, "get", namespace)
        found = self._experiments.experiment(namespace, name)
        if found is None or request.query_params.get("uid") not in (None, found.uid):
            raise NotFound(f"there is no experiment {name} in {namespace}")
        return found

    def _attempt(self, experiment: Experiment, request: Request) -> Attempt:
        label, number = request.path_params["trial"], request.path_params["attempt"]
        trial = FINAL if label == trial_label(FINAL) else _whole(label, "trial")
        for attempt in self._experiments.attempts(experiment.uid, trial):
            if attempt.number == number:
                return attempt
        raise NotFound(f"{experiment.name}/{label} has no attempt {number}")

    def _overview(
        self, row: Mapping[str, Any], finals: Mapping[Uid, Sequence[Attempt]]
    ) -> dict[str, Any]:
        """Return what the status says of all trials together, if that is all that a list shows.

        It does not have the Pareto front.
        """
        uid = row["uid"]
        resource = self._resources.find(row["namespace"], row["name"])
        if resource is None or uid_of(resource) != uid:
            return {}
        if "objectives" in resource["spec"] or resource["spec"].get("constraints"):
            return {}
        status = resource.get("status") or {}
        keys = ("trials", "running", "queued", "best")
        overview = {key: status[key] for key in keys if key in status}
        overview["final"] = [tables.attempt_row(uid, each) for each in finals.get(uid, ())]
        return {"overview": overview}

    def _never_ran(self, namespace: str, name: str) -> list[dict[str, str]]:
        """Return `controller.app.experiments.NeverRan` of a resource, if that is known."""
        resource = self._resources.find(namespace, name)
        status = {} if resource is None else resource.get("status") or {}
        if not status.get("reason"):
            return []
        about = {"namespace": namespace, "name": name}
        return [about | {key: str(status[key]) for key in ("state", "reason")}]

    def _document(self, experiment: Experiment) -> dict[str, Any]:
        row = tables.experiment_row(experiment)
        row["document"] = json.dumps(tables.stored_document(experiment.spec))
        return self._document_of(row)

    def _document_of(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Return a row, with who controls the experiment, and what keeps it from running."""
        holder = self._experiments.holder(row["uid"])
        trouble = self._experiments.trouble(row["uid"]).read(controlled=holder is not None)
        who = None
        if holder is not None:
            who = {"pid": holder.pid, "host": holder.host, "since": holder.since}
        budget = self._experiments.tenant_budget(row["namespace"])
        return {"row": row, "holder": who, "trouble": trouble, "tenantBudget": budget}


class Download(StreamingResponse):
    """The content of a file. owned: what ends with the response, also if its client goes away."""

    def __init__(self, file: IO[bytes], owned: AsyncExitStack) -> None:
        super().__init__(iter(partial(file.read, _PART), b""), media_type="application/gzip")
        self._owned = owned

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with self._owned:
            await super().__call__(scope, receive, send)


def _attempts(uid: str, attempts: Sequence[Attempt], following: int | None) -> Response:
    rows = [tables.attempt_row(uid, attempt) for attempt in attempts]
    return _json({"attempts": rows, "next": following})


def _json(document: Mapping[str, object]) -> Response:
    return JSONResponse(document, headers={"cache-control": "no-store"})


def _number(request: Request, key: str, default: int | None = None) -> int:
    text = request.query_params.get(key)
    if text is None and default is not None:
        return default
    return _whole(text or "", key)


def _whole(text: str, key: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise InvalidArgument.at(key, f"{text!r} is not a number") from None


async def caller_of(access: Access, headers: Headers) -> Caller:
    """Return who has sent a request with these headers.

    The scheme is `Bearer`, with a token, or `Certificate`, with a statement that the owner of a
    client certificate has signed (`controller.kube.assertion`).

    Raises Unauthenticated, and Unavailable if it is not known.
    """
    found = next((sent for name in _HEADERS if (sent := headers.getlist(name))), [])
    if len(found) != 1:
        raise Unauthenticated("send X-Tuner-Authorization: Bearer TOKEN, once")
    scheme, _, secret = found[0].partition(" ")
    match scheme.lower():
        case "bearer":
            return await access.by_token(secret.strip(), of_api_server=True)
        case "certificate":
            return await access.by_certificate(secret.strip())
    raise Unauthenticated("X-Tuner-Authorization must be Bearer TOKEN or Certificate STATEMENT")


async def error_response(_: Request, error: Exception) -> Response:
    """Return an error as Connect's unary protocol has it."""
    assert isinstance(error, TunerError)
    status = 401 if isinstance(error, Unauthenticated) else status_of(error)
    document = {"code": error.reason.lower(), "message": str(error)}
    return JSONResponse(document, status_code=status, headers={"cache-control": "no-store"})
