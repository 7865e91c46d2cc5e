"""The routes of the page: JSON for reading, server-sent events for changes, POST for actions.

Errors of `app` become an HTTP status and a message, as they become an exit code on the command line.
"""

from __future__ import annotations

import asyncio
import json
import mimetypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any, TypeAlias

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from controller.app import query
from controller.app.delete import delete
from controller.app.detached import control_detached
from controller.core.model import Experiment
from controller.report import documents, drawing, figures
from controller.search import study_name
from controller.spec import redacted_document
from controller.ui.board import Board, trial_document
from controller.ui.guard import Access, Guard
from controller.ui.live_table import Json
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    Problem,
    TunerError,
    Unauthenticated,
)

HEARTBEAT_S = 10.0
RETRY_MS = 500  # before a page connects again
LOG_POLL_S = 0.1
LOG_PORTION = 1 << 16
LOG_BEGIN = 1 << 18  # bytes at the end of a long log that a page shows first
SHOWN_FIGURES = ("history", "curves", "parallel")
MOST_TRIALS_ADDED = 100_000
Events: TypeAlias = AsyncIterator[tuple[str, Json]]
_STATUS: dict[type[TunerError], int] = {
    InvalidArgument: 400,
    Unauthenticated: 403,
    PermissionDenied: 403,
    NotFound: 404,
    AlreadyExists: 409,
    FailedPrecondition: 409,
}


def application(board: Board, access: Access, closing: asyncio.Event) -> Starlette:
    """Return the application. `closing` is set when the server ends, so that streams end as well."""
    page = _Page(board, access, closing)
    one, trial = "/api/experiments/{namespace}/{name}", "/api/experiments/{namespace}/{name}/trials/{number:int}"

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await board.close()

    return Starlette(
        routes=[
            Route("/", page.index),
            Route("/static/{name}", page.static),
            Route("/api/stream", page.stream_list),
            Route(f"{one}/stream", page.stream_experiment),
            Route(f"{one}/file", page.file),
            Route(f"{one}/figures/{{figure}}.svg", page.figure),
            Route(trial, page.trial),
            Route(f"{trial}/log", page.stream_log),
            Route(f"{one}/stop", page.stop, methods=["POST"]),
            Route(f"{one}/resume", page.resume, methods=["POST"]),
            Route(f"{one}/extend", page.extend, methods=["POST"]),
            Route(f"{one}/delete", page.delete, methods=["POST"]),
            Route(f"{trial}/labels", page.label, methods=["POST"]),
        ],
        middleware=[Middleware(Guard, access=access)],
        exception_handlers={TunerError: _said},
        lifespan=lifespan,
    )


async def _said(_: Request, error: Exception) -> Response:
    assert isinstance(error, TunerError)
    status = next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)
    return JSONResponse({"error": str(error)}, status_code=status)


class _Page:
    def __init__(self, board: Board, access: Access, closing: asyncio.Event) -> None:
        self._board = board
        self._access = access
        self._closing = closing
        self._static = resources.files("controller.ui") / "static"

    # Files

    async def index(self, _: Request) -> Response:
        text = (self._static / "index.html").read_text(encoding="utf-8")
        return Response(text.replace("{{page-token}}", self._access.page_token), media_type="text/html")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        file = self._static / name
        if name in ("", ".", "..", "index.html") or not file.is_file():
            return Response("not found\n", status_code=404, media_type="text/plain")
        return Response(file.read_bytes(), media_type=mimetypes.guess_type(name)[0] or "application/octet-stream")

    # Reading

    async def stream_list(self, _: Request) -> Response:
        return self._stream(self._board.follow_list())

    async def stream_experiment(self, request: Request) -> Response:
        position = request.headers.get("last-event-id") or request.query_params.get("after", "")
        return self._stream(self._board.follow(*_named(request), position))

    async def file(self, request: Request) -> Response:
        experiment = self._experiment(request)
        return JSONResponse(redacted_document(experiment.spec.document))

    async def figure(self, request: Request) -> Response:
        """Return a figure of the experiment, or the curves of one `trial`."""
        name = request.path_params["figure"]
        if name not in SHOWN_FIGURES:
            raise NotFound(f"no figure {name}; there are {', '.join(SHOWN_FIGURES)}")
        experiment = self._experiment(request)
        number = request.query_params.get("trial")
        trial = None if number is None else _whole_number(number, "trial", least=0, most=1 << 31)
        client = await self._board.client(experiment)
        record = await query.gather(
            self._board.experiments(), experiment, client, measurements=name == "curves", trial=trial
        )
        if trial is not None:
            record = replace(record, trials=[query.find_trial(record, trial)])
        drawn = await asyncio.to_thread(lambda: drawing.svg(figures.FIGURES[name](record, ())))
        return Response(drawn, media_type="image/svg+xml")

    async def trial(self, request: Request) -> Response:
        number = request.path_params["number"]
        record = await self._board.record(*_named(request))
        one = query.find_trial(record, number)
        experiment = record.experiment
        client = await self._board.client(experiment)
        measured = [each for _, each in await client.list_measurements(study_name(experiment), number)]
        folders = self._board.workspace.state.folders(experiment.uid)
        recorded = {}
        for attempt in one.attempts:
            try:
                file = folders.attempt(number, attempt.number).root / "provenance.json"
                recorded[attempt.number] = json.loads(file.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                continue  # the attempt was killed before the file was written, or ran elsewhere
        shown = trial_document(record, one, self._board.experiments().events(experiment.uid, number))
        shown["measurements"] = [documents.measurement(each) for each in measured]
        shown["provenance"] = recorded
        return JSONResponse(shown)

    async def stream_log(self, request: Request) -> Response:
        number = request.path_params["number"]
        record = await self._board.record(*_named(request))
        one = query.find_trial(record, number)
        if one.newest is None:
            raise NotFound(f"trial {number} has not started yet: there is no log")
        attempt = _whole_number(request.query_params.get("attempt", str(one.newest.number)), "attempt", most=1 << 31)
        log = self._board.workspace.state.folders(record.experiment.uid).attempt(number, attempt).log
        known = request.headers.get("last-event-id", "")
        return self._stream(_log(log, int(known) if known.isascii() and known.isdigit() else None))

    def _stream(self, events: Events) -> Response:
        return StreamingResponse(_sent(events, self._closing), media_type="text/event-stream")

    # Acting

    async def stop(self, request: Request) -> Response:
        experiment = self._experiment(request)
        experiments = self._board.experiments()
        if experiment.state.finished:
            raise FailedPrecondition(f"{experiment.name} has ended")
        if experiments.holder(experiment.uid) is not None:
            experiments.request_stop(experiment.uid)
        else:
            await control_detached(self._board.workspace, experiment, ("stop",))
        return _done(f"{experiment.name} is stopping")

    async def resume(self, request: Request) -> Response:
        experiment = self._experiment(request)
        await control_detached(self._board.workspace, experiment, ("resume",))
        return _done(f"{experiment.name} goes on")

    async def extend(self, request: Request) -> Response:
        experiment = self._experiment(request)
        trials = _whole_number((await _body(request)).get("trials"), "trials", most=MOST_TRIALS_ADDED)
        await control_detached(self._board.workspace, experiment, ("extend", "--trials", f"+{trials}"))
        return _done(f"{experiment.name} has {trials} more trials")

    async def delete(self, request: Request) -> Response:
        experiment = self._experiment(request)
        await delete(self._board.workspace, experiment.name, experiment.namespace, confirm=lambda what: True)
        return _done(f"{experiment.name} is deleted")

    async def label(self, request: Request) -> Response:
        """Set all labels of the trial. Labels that the body lacks are removed."""
        experiment = self._experiment(request)
        labels = (await _body(request)).get("labels")
        if not isinstance(labels, dict) or not all(isinstance(value, str) for value in labels.values()):
            raise InvalidArgument([Problem("labels", "expected an object of strings")])
        client = await self._board.client(experiment)
        await client.update_trial(study_name(experiment), request.path_params["number"], labels=labels)
        self._board.expire(experiment)
        return _done("the labels are stored")

    def _experiment(self, request: Request) -> Experiment:
        return self._board.find(*_named(request))


def _named(request: Request) -> tuple[str, str]:
    return request.path_params["namespace"], request.path_params["name"]


def _done(what: str) -> Response:
    return JSONResponse({"message": what})


async def _body(request: Request) -> dict[str, Any]:  # Any: what JSON holds
    """Return the request's JSON object. Raises InvalidArgument."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgument([Problem("", "the body is not JSON")]) from error
    if not isinstance(body, dict):
        raise InvalidArgument([Problem("", "expected a JSON object")])
    return body


def _whole_number(given: object, what: str, *, most: int, least: int = 1) -> int:
    """Return a whole number from `least` to `most`. Raises InvalidArgument."""
    text = str(given)
    if isinstance(given, bool) or not (
        text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= most
    ):
        raise InvalidArgument([Problem(what, f"expected a whole number from {least} to {most}")])
    return int(text)


async def _sent(events: Events, closing: asyncio.Event) -> AsyncIterator[str]:
    """Yield events as text/event-stream, with comments at intervals, which detect whether the reader is still there."""
    closed = asyncio.ensure_future(closing.wait())
    following = asyncio.ensure_future(anext(events))
    try:
        yield f"retry: {RETRY_MS}\n\n"
        while True:
            await asyncio.wait({closed, following}, timeout=HEARTBEAT_S, return_when=asyncio.FIRST_COMPLETED)
            if closed.done():
                return
            if not following.done():
                yield ": still here\n\n"
                continue
            try:
                name, data = following.result()
            except StopAsyncIteration:
                return
            identity = f"id: {data['id']}\n" if "id" in data else ""
            # JSON has no line feeds between its tokens, and escapes those in strings.
            yield f"event: {name}\n{identity}data: {json.dumps(data, ensure_ascii=True)}\n\n"
            following = asyncio.ensure_future(anext(events))
    finally:
        closed.cancel()
        following.cancel()
        await asyncio.gather(closed, following, return_exceptions=True)


async def _log(path: Path, at: int | None) -> Events:
    """Yield the log from byte `at` on, and what is added to it.

    Of a long log only the end is sent, after the number of bytes that were skipped.
    """
    first = True
    while True:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                if at is None or size - at > LOG_BEGIN or at > size:  # more than a page shows, or a new file
                    at = max(0, size - LOG_BEGIN)
                    first = True
                file.seek(at)
                data = file.read(LOG_PORTION)
        except FileNotFoundError:
            data, size, at = b"", 0, None
        if data or first:
            start = at or 0
            at = start + len(data)
            text = data.decode("utf-8", errors="replace")
            yield "lines", {"id": at, "text": text, "first": first, "skipped": start if first else 0}
            first = False
        if not data or at == size:
            await asyncio.sleep(LOG_POLL_S)
