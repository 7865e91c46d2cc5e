"""The routes of the page: JSON for reading, server-sent events for changes, POST for actions.

Errors of `app` become an HTTP status and a message, as they become an exit code
on the command line. What experiments have beyond studies is in
`experiment_routes`; everything else works for both.
"""

from __future__ import annotations

import asyncio
import json
import math
import mimetypes
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any, Protocol, TypeAlias

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from controller.app import query
from controller.background_tasks import cancelled
from controller.report import colors, figures, html_page
from controller.report.record import TrialList
from controller.ui.live_table import Event, Json
from controller.ui.vega import VegaBundle
from controller.ui.visitor import VisitorLimits
from suggest.errors import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    RateLimited,
    TunerError,
    Unauthenticated,
)

HEARTBEAT_S = 10.0
RETRY_MS = 500  # before a page connects again
MOST_SHOWN = 1000  # trials that one stream may be limited to
MOST_COMPARED = 20  # trials in one figure of some
Events: TypeAlias = AsyncIterator[Event]
_STATUS: dict[type[TunerError], int] = {
    InvalidArgument: 400,
    Unauthenticated: 403,
    PermissionDenied: 403,
    NotFound: 404,
    AlreadyExists: 409,
    FailedPrecondition: 409,
    RateLimited: 429,
}


class PageContent(Protocol):
    """What the page shows.

    The experiments of a state directory, or the studies of a server that one token permits. Methods
    raise NotFound and the errors of the service. Streams yield names of events with their data.
    """

    limits: VisitorLimits

    def follow_list(self) -> Events: ...

    def follow(
        self, namespace: str, name: str, position: str, trials: frozenset[int] | None
    ) -> Events: ...

    async def drawn(
        self, namespace: str, name: str, figure: str, trials: Sequence[int]
    ) -> TrialList:
        """Return the record with what the figure needs, of some trials or of all."""

    async def trial(self, namespace: str, name: str, number: int) -> Json: ...


class ChangeableContent(PageContent, Protocol):
    """What people may also change by the page."""

    async def label(
        self, namespace: str, name: str, number: int, labels: Mapping[str, str]
    ) -> None: ...

    async def enqueue(self, namespace: str, name: str, texts: Mapping[str, str]) -> int:
        """Enqueue a point and return its number."""

    async def delete(self, namespace: str, name: str) -> None: ...


def application(
    content_of: Callable[[Request], PageContent],
    guard: Middleware,
    *,
    kind: str,
    closing: asyncio.Event,
    vega: VegaBundle,
    sign_in: str = "link",
    routes_of_kind: Sequence[Route] = (),
) -> Starlette:
    """Return the application.

    Args:
        content_of: Returns what the person who sent a request is shown.
        kind: "experiments" or "studies".
        closing: Is set when the server ends, so that streams end as well.
        vega: The JavaScript of figures.
        sign_in: How people sign in: by "link", with a "token", after which they can sign out, or
            by a "proxy".
        routes_of_kind: Further routes.
    """
    page = _Page(content_of, kind, vega, closing, sign_in)
    base = f"/api/{kind}/{{namespace}}/{{name}}"
    trial = f"{base}/trials/{{number:int}}"
    return Starlette(
        routes=[
            Route("/", page.index),
            Route("/static/vega.js", page.vega),
            Route("/static/{name}", page.static),
            Route("/api/stream", page.stream_list),
            *routes_of_kind,
            Route(f"{base}/stream", page.stream),
            Route(f"{base}/figures/{{figure}}.json", page.figure),
            Route(trial, page.trial),
        ],
        middleware=[guard],
        exception_handlers={TunerError: _error_response},
    )


def changing_routes(
    content_of: Callable[[Request], ChangeableContent], kind: str
) -> Sequence[Route]:
    """Return the routes by which people change experiments or studies, as `kind` says."""
    changes = _Changes(content_of)
    base = f"/api/{kind}/{{namespace}}/{{name}}"
    return [
        Route(f"{base}/enqueue", changes.enqueue, methods=["POST"]),
        Route(f"{base}/delete", changes.delete, methods=["POST"]),
        Route(f"{base}/trials/{{number:int}}/labels", changes.label, methods=["POST"]),
    ]


async def _error_response(_: Request, error: Exception) -> Response:
    assert isinstance(error, TunerError)
    headers = {}
    if isinstance(error, RateLimited):
        headers["retry-after"] = f"{math.ceil(error.retry_s)}"
    return JSONResponse({"error": str(error)}, status_code=status_of(error), headers=headers)


def status_of(error: TunerError) -> int:
    """Return the HTTP status of an error."""
    return next((status for kind, status in _STATUS.items() if isinstance(error, kind)), 503)


_STATIC = resources.files("controller.ui") / "static"


@dataclass(frozen=True, slots=True)
class _Page:
    shown: Callable[[Request], PageContent]
    kind: str
    bundle: VegaBundle
    closing: asyncio.Event
    sign_in: str

    # Files

    async def index(self, request: Request) -> Response:
        text = (_STATIC / "index.html").read_text(encoding="utf-8")
        text = text.replace("{{page-token}}", request.state.page_token)
        text = text.replace("{{page-sign-in}}", self.sign_in)
        return Response(text.replace("{{page-kind}}", self.kind), media_type="text/html")

    async def static(self, request: Request) -> Response:
        name = request.path_params["name"]
        if name == "figure.js":
            return Response(html_page.figure_script(), media_type="text/javascript")
        if name == "states.css":
            return Response(colors.stylesheet(), media_type="text/css")
        file = _STATIC / name
        if name.endswith(".html") or name in ("", ".", "..") or not file.is_file():
            return Response("not found\n", status_code=404, media_type="text/plain")
        return Response(
            file.read_bytes(),
            media_type=mimetypes.guess_type(name)[0] or "application/octet-stream",
        )

    async def vega(self, _: Request) -> Response:
        return Response(await self.bundle.text(), media_type="text/javascript")

    # Reading

    async def stream_list(self, request: Request) -> Response:
        shown = self.shown(request)
        return event_stream(request, shown, shown.follow_list(), self.closing)

    async def stream(self, request: Request) -> Response:
        position = request.headers.get("last-event-id") or request.query_params.get("after", "")
        trials = frozenset(_trials(request.query_params.get("only", ""), MOST_SHOWN)) or None
        shown = self.shown(request)
        return event_stream(
            request, shown, shown.follow(*named(request), position, trials), self.closing
        )

    async def figure(self, request: Request) -> Response:
        """Return the specification of a figure.

        The figure is of the whole search or of some `trials`; a curve is of a `metric`.
        """
        name = request.path_params["figure"]
        figure = figures.FIGURES.get(name)
        if figure is None:
            raise NotFound(f"no figure {name}; there are {', '.join(figures.FIGURES)}")
        trials = _trials(request.query_params.get("trials", ""), MOST_COMPARED)
        metric = request.query_params.get("metric", "")
        needs_importances = name == "importance"
        shown = self.shown(request)
        with shown.limits.requesting_figure():
            record = await shown.drawn(*named(request), name, trials)

            def draw() -> Response:
                if name == "curves":
                    spec = figures.curves(record, metric, color_trials=len(trials) > 1)
                elif needs_importances:
                    spec = figure.draw(query.with_importances(record))
                else:
                    spec = figure.draw(record)
                return JSONResponse(
                    spec | {"usermeta": spec["usermeta"] | {"empty": figure.why_empty}}
                )

            async with shown.limits.turn(slow=needs_importances):
                if await request.is_disconnected():
                    return Response(status_code=204)  # nobody reads it
                # In a thread, because it takes a while with many trials.
                return await asyncio.to_thread(draw)

    async def trial(self, request: Request) -> Response:
        return JSONResponse(
            await self.shown(request).trial(*named(request), request.path_params["number"])
        )


@dataclass(frozen=True, slots=True)
class _Changes:
    shown: Callable[[Request], ChangeableContent]

    async def enqueue(self, request: Request) -> Response:
        number = await self.shown(request).enqueue(
            *named(request), texts_of(await body_of(request), "")
        )
        return done(f"trial {number} is enqueued")

    async def label(self, request: Request) -> Response:
        """Set all labels of the trial. Labels that the body lacks are removed."""
        labels = texts_of((await body_of(request)).get("labels"), "labels")
        await self.shown(request).label(*named(request), request.path_params["number"], labels)
        return done("the labels are stored")

    async def delete(self, request: Request) -> Response:
        await self.shown(request).delete(*named(request))
        return done(f"{request.path_params['name']} is deleted")


def named(request: Request) -> tuple[str, str]:
    return request.path_params["namespace"], request.path_params["name"]


def done(change: str) -> Response:
    return JSONResponse({"message": change})


async def body_of(request: Request) -> dict[str, Any]:  # Any: what JSON holds
    """Return the request's JSON object. Raises InvalidArgument."""
    try:
        body = json.loads(await request.body() or b"{}")
    except (ValueError, RecursionError) as error:
        raise InvalidArgument.at("", "the body is not JSON") from error
    if not isinstance(body, dict):
        raise InvalidArgument.at("", "expected a JSON object")
    return body


def texts_of(field: object, name: str) -> dict[str, str]:
    """Check an object of strings. Raises InvalidArgument."""
    if not isinstance(field, dict) or not all(isinstance(value, str) for value in field.values()):
        raise InvalidArgument.at(name, "expected an object of strings")
    return field


def _trials(numbers: str, most: int) -> list[int]:
    """Return the first trials of a list such as "3,7"."""
    words = filter(None, numbers.split(",")[:most])
    return [whole_number(word, "trial", least=0, limit=1 << 31) for word in words]


def whole_number(digits: object, name: str, *, limit: int, least: int = 1) -> int:
    """Return a whole number from `least` to `limit`. Raises InvalidArgument."""
    text = str(digits)
    if isinstance(digits, bool) or not (
        text.isascii() and text.isdigit() and len(text) < 12 and least <= int(text) <= limit
    ):
        raise InvalidArgument.at(name, f"expected a whole number from {least} to {limit}")
    return int(text)


def event_stream(
    request: Request, content: PageContent, events: Events, closing: asyncio.Event
) -> Response:
    """Send events until the reader leaves, the server ends, or the reader's session has ended."""
    return _EventStream(content.limits, _sent(events, closing, request.state.is_signed_in))


class _EventStream(StreamingResponse):
    """Counts as a stream of its visitor while it is sent. Raises RateLimited before it begins."""

    def __init__(self, limits: VisitorLimits, sent: AsyncIterator[str]) -> None:
        super().__init__(sent, media_type="text/event-stream")
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._limits.streaming():
            await super().__call__(scope, receive, send)


async def _sent(
    events: Events, closing: asyncio.Event, is_signed_in: Callable[[], Awaitable[bool]]
) -> AsyncIterator[str]:
    """Yield events as text/event-stream.

    Comments at intervals detect whether the reader is still there.
    """
    next_check = time.monotonic() + HEARTBEAT_S
    closed = asyncio.ensure_future(closing.wait())
    following = asyncio.ensure_future(anext(events))
    try:
        yield f"retry: {RETRY_MS}\n\n"
        while True:
            remaining_s = max(0.0, next_check - time.monotonic())
            await asyncio.wait(
                {closed, following}, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED
            )
            if closed.done():
                return
            if time.monotonic() >= next_check:
                if not await is_signed_in():
                    return
                yield ": still here\n\n"
                next_check = time.monotonic() + HEARTBEAT_S
            if not following.done():
                continue
            if following.cancelled():  # the board was closed, and cancelled its calls
                return
            try:
                name, data = following.result()
            except StopAsyncIteration:
                return
            identity = f"id: {data.id}\n" if data.id else ""
            yield f"event: {name}\n{identity}data: {data.text}\n\n"
            following = asyncio.ensure_future(anext(events))
    finally:
        await cancelled(closed, following)
