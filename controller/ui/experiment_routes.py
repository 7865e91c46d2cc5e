"""The routes that only experiments have: their files, logs and artifacts,
the queue, and what needs a controller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route

from controller.app import query
from controller.app.detached import control_detached
from controller.app.local_log import read_kept
from controller.app.revise import set_values
from controller.core.model import Experiment
from controller.folders import AttemptFolders
from controller.report.record import ExperimentRecord, TrialRecord
from controller.spec import redacted_document
from controller.ui.application import (
    Events,
    PageContent,
    body_of,
    done,
    event_stream,
    named,
    whole_number,
)
from controller.ui.board import Board
from controller.ui.live_table import Encoded
from suggest.errors import FailedPrecondition, InvalidArgument, NotFound

LOG_POLL_S = 0.1
LOG_BEGIN = 1 << 18  # bytes at the end of a long log that a page shows first
MOST_TRIALS_ADDED = 100_000


_BASE = "/api/experiments/{namespace}/{name}"
_TRIAL = f"{_BASE}/trials/{{number:int}}"


class ExperimentContent(PageContent, Protocol):
    """What the page shows of experiments only."""

    async def experiment(self, namespace: str, name: str) -> Experiment: ...

    async def record(self, namespace: str, name: str) -> ExperimentRecord: ...

    def permitted(self, namespace: str, events: Events) -> Events:
        """Yield the events as long as the visitor may see the namespace."""

    async def log_file(self, experiment: Experiment, trial: TrialRecord, attempt: int) -> Path: ...

    def folder(self, experiment: Experiment, number: int, attempt: int) -> AttemptFolders: ...


def reading_routes(
    content_of: Callable[[Request], ExperimentContent], closing: asyncio.Event
) -> Sequence[Route]:
    page = _Files(content_of, closing)
    return [
        Route(f"{_BASE}/file", page.file),
        Route(f"{_TRIAL}/log", page.log),
        Route(f"{_TRIAL}/artifacts/{{attempt:int}}/{{path:path}}", page.artifact),
    ]


def controlling_routes(board: Board, closing: asyncio.Event) -> Sequence[Route]:
    """Return the routes of what needs this machine's state directory, and the queue."""
    page = _Experiments(board, closing)
    return [
        Route("/api/queue", page.queue),
        Route(f"{_BASE}/stop", page.stop, methods=["POST"]),
        Route(f"{_BASE}/resume", page.resume, methods=["POST"]),
        Route(f"{_BASE}/retry", page.retry, methods=["POST"]),
        Route(f"{_TRIAL}/retry", page.retry, methods=["POST"]),
        Route(f"{_BASE}/extend", page.extend, methods=["POST"]),
        Route(f"{_BASE}/set", page.set, methods=["POST"]),
    ]


@dataclass(frozen=True, slots=True)
class _Files:
    shown: Callable[[Request], ExperimentContent]
    closing: asyncio.Event

    async def file(self, request: Request) -> Response:
        experiment = await self.shown(request).experiment(*named(request))
        return JSONResponse(redacted_document(experiment.spec.document))

    async def log(self, request: Request) -> Response:
        number = request.path_params["number"]
        shown = self.shown(request)
        namespace, name = named(request)
        record = await shown.record(namespace, name)
        trial_record = query.find_trial(record, number)
        if trial_record.newest is None:
            raise NotFound(f"trial {number} has not started yet: there is no log")
        attempt = whole_number(
            request.query_params.get("attempt", str(trial_record.newest.number)),
            "attempt",
            limit=1 << 31,
        )
        log = await shown.log_file(record.experiment, trial_record, attempt)
        last_id = request.headers.get("last-event-id") or request.query_params.get("after", "")
        at = int(last_id) if last_id.isascii() and last_id.isdigit() else None
        lines = shown.permitted(namespace, _log(log, at))
        return event_stream(request, shown, lines, self.closing)

    async def artifact(self, request: Request) -> Response:
        """Send a file that the trial wrote, as a download: a browser must not run what is in it."""
        number, attempt = request.path_params["number"], request.path_params["attempt"]
        shown = self.shown(request)
        experiment = await shown.experiment(*named(request))
        root = shown.folder(experiment, number, attempt).output
        path = await asyncio.to_thread(_inside, root, request.path_params["path"])
        return FileResponse(path, media_type="application/octet-stream", filename=path.name)


@dataclass(frozen=True, slots=True)
class _Experiments:
    board: Board
    closing: asyncio.Event

    async def queue(self, request: Request) -> Response:
        return event_stream(request, self.board, self.board.follow_queue(), self.closing)

    async def stop(self, request: Request) -> Response:
        experiment = self._experiment(request)
        experiments = self.board.experiments()
        if experiment.state.finished:
            raise FailedPrecondition(f"{experiment.name} has ended")
        if experiments.holder(experiment.uid) is not None:
            experiments.request_stop(experiment.uid)
        else:
            await control_detached(self.board.workspace, experiment, ("stop",))
        return done(f"{experiment.name} is stopping")

    async def resume(self, request: Request) -> Response:
        experiment = self._experiment(request)
        await control_detached(self.board.workspace, experiment, ("resume",))
        return done(f"{experiment.name} continues")

    async def retry(self, request: Request) -> Response:
        """Run one failed trial again, or all of them."""
        experiment, number = self._experiment(request), request.path_params.get("number")
        await control_detached(
            self.board.workspace,
            experiment,
            ("retry", "--failed" if number is None else str(number)),
        )
        run = "the failed trials run" if number is None else f"trial {number} runs"
        return done(f"{run} again")

    async def extend(self, request: Request) -> Response:
        experiment = self._experiment(request)
        trials = whole_number(
            (await body_of(request)).get("trials"), "trials", limit=MOST_TRIALS_ADDED
        )
        await control_detached(
            self.board.workspace, experiment, ("extend", "--trials", f"+{trials}")
        )
        return done(f"{experiment.name} has {trials} more trials")

    async def set(self, request: Request) -> Response:
        """Change the experiment while it runs. `changes` is a list of PATH=VALUE."""
        changes = (await body_of(request)).get("changes")
        if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes):
            raise InvalidArgument.at("changes", "expected a list of PATH=VALUE")
        lines: list[str] = []
        namespace, name = named(request)
        await set_values(self.board.workspace, name, namespace, changes, print_line=lines.append)
        return done("\n".join(lines))

    def _experiment(self, request: Request) -> Experiment:
        return self.board.find(*named(request))


def _inside(root: Path, name: str) -> Path:
    """Return the file below `root`. Links that lead out of it are not followed. Raises NotFound."""
    try:
        path = (root / name).resolve()
        if path.is_relative_to(root.resolve()) and path.is_file():
            return path
    except (OSError, ValueError):
        pass
    raise NotFound(f"no file {name} among the trial's outputs")


async def _log(path: Path, at: int | None) -> Events:
    """Yield the log from byte `at` on, and what is added to it.

    Of a long log only the end is sent, after the number of bytes that were skipped.
    """
    first = True
    while True:
        try:
            with path.open("rb") as file:
                size = file.seek(0, 2)
                # more than a page shows, or a new file
                if at is None or size - at > LOG_BEGIN or at > size:
                    at = max(0, size - LOG_BEGIN)
                    first = True
                at, data = read_kept(file, at)
        except FileNotFoundError:
            data, size, at = b"", 0, None
        if data or first:
            start = at or 0
            at = start + len(data)
            text = data.decode("utf-8", errors="replace")
            lines = {"id": at, "text": text, "first": first, "skipped": start if first else 0}
            yield "lines", Encoded.of(lines)
            first = False
        if not data or at == size:
            await asyncio.sleep(LOG_POLL_S)
