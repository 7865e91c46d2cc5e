"""`tuner ui --optuna`: optuna-dashboard over the experiments
of a state directory, behind the page's guard.

It is a WSGI application, whose requests are answered in threads. Only reading is
possible: the guard refuses everything else, because the dashboard never sends the token
that changes need, and so does the storage.
"""

from __future__ import annotations

import asyncio
import io
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from controller.core.model import Experiment, by_trial
from controller.report.record import ExperimentRecord
from controller.search import study_name
from controller.ui.board import Board
from controller.ui.guard import Guard, LinkAuthenticator
from suggest.optuna_storage import dashboard
from suggest.trial import Measurement, Trial

# As the dashboard asks for: its figures need eval, and its library writes styles into the page.
POLICY = (
    "default-src 'none'; script-src 'self' 'unsafe-eval'; style-src 'self' data: 'unsafe-inline'; "
    "img-src 'self' data: blob:; font-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
ANSWER_S = 120.0
T = TypeVar("T")


def optuna_application(board: Board, authenticator: LinkAuthenticator) -> Starlette:
    """Return the application, for the running event loop."""
    wsgi = dashboard.application(_Source(board, asyncio.get_running_loop()))

    async def answer(request: Request) -> Response:
        return await asyncio.to_thread(_answered, wsgi, request)

    async def index(_: Request) -> Response:
        return RedirectResponse("/dashboard")

    return Starlette(
        routes=[Route("/", index), Route("/{path:path}", answer)],
        middleware=[Middleware(Guard, authenticator=authenticator, policy=POLICY)],
    )


def _answered(wsgi: Callable[..., Any], request: Request) -> Response:
    """Answer a request without a body by a WSGI application."""
    started: list[tuple[str, Sequence[tuple[str, str]]]] = []

    def start(status: str, headers: Sequence[tuple[str, str]], failed: object = None) -> None:
        started[:] = [(status, headers)]

    environ = {
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": "",
        "PATH_INFO": request.url.path.encode().decode("latin-1"),
        "QUERY_STRING": request.url.query,
        "SERVER_NAME": "127.0.0.1",
        "SERVER_PORT": str(request.url.port or 80),
        "SERVER_PROTOCOL": "HTTP/1.1",
        "HTTP_ACCEPT_ENCODING": "",  # which it takes to be there
        **{
            f"HTTP_{name.upper().replace('-', '_')}": value
            for name, value in request.headers.items()
            if name not in ("cookie", "content-type", "content-length")
        },
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": "http",
        "wsgi.input": io.BytesIO(),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": False,
        "wsgi.run_once": False,
    }
    parts = wsgi(environ, start)
    try:
        body = b"".join(parts)
    finally:
        if hasattr(parts, "close"):
            parts.close()
    if not started:
        return PlainTextResponse("the dashboard did not answer\n", status_code=502)
    status, headers = started[0]
    answer = Response(body, status_code=int(status.split(" ", 1)[0]))
    for name, value in headers:
        if name.lower() not in ("content-length", "content-security-policy", "set-cookie"):
            answer.headers[name] = value
    return answer


class _Source:
    """`dashboard.Source` over the board, whose methods run in its event loop."""

    def __init__(self, board: Board, loop: asyncio.AbstractEventLoop) -> None:
        self._board = board
        self._loop = loop
        self._identities: dict[str, int] = {}  # by uid, in the order in which they were seen

    def studies(self) -> list[dashboard.ShownStudy]:
        return self._in_loop(self._studies())

    def trials(self, identity: int) -> list[tuple[Trial, list[Measurement]]]:
        record, measured = self._in_loop(self._read(identity))
        metric = record.criteria.objectives[0].metric
        of_metric = ((number, each) for number, each in measured if each.metric == metric)
        of_trial = by_trial(of_metric)
        return [(entry.trial, of_trial.get(entry.trial.number, [])) for entry in record.trials]

    async def _studies(self) -> list[dashboard.ShownStudy]:
        return [
            dashboard.ShownStudy(
                self._identity(stored),
                f"{stored.namespace}/{stored.name}",
                stored.spec.criteria,
                stored.spec.space,
            )
            for stored in self._board.all()
        ]

    def _identity(self, experiment: Experiment) -> int:
        return self._identities.setdefault(experiment.uid, len(self._identities) + 1)

    async def _read(self, identity: int) -> tuple[ExperimentRecord, list[tuple[int, Measurement]]]:
        experiment = next(
            (stored for stored in self._board.all() if self._identity(stored) == identity), None
        )
        if experiment is None:
            raise KeyError(identity)
        record = await self._board.record(experiment.namespace, experiment.name)
        studies = await self._board.studies(experiment)
        return record, await studies.list_measurements(study_name(experiment))

    def _in_loop(self, call: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(call, self._loop).result(ANSWER_S)
