"""The parameters that trials meet while they run: answers their requests at a socket.

Only for experiments that are define-by-run. The experiment's folder has a file with the socket's
path. Running trials read it at each request, since they outlive a controller and the next one may
listen elsewhere; until then they wait. A request and its answer are one line of JSON each:

    {"trial": 3, "attempt": 1, "name": "lr", "domain": {"type": "float", "min": 0, "max": 1, ...}}
    {"value": 0.25} or {"refused": "why"} or {"later": "why"}

The other end is `tuner.asking`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path

from controller.runtime.local.listening import listen
from controller.spec.document import Json, domain_of
from suggest.errors import TunerError, Unavailable
from suggest.space import Parameter, Value

FILE = "parameter-requests"
# A choice may have many long values.
_MAX_LINE = 16 << 20

Decide = Callable[[int, int, Parameter], Awaitable[Value]]
"""Returns the value for (trial, attempt, parameter), which is stored. Raises TunerError."""


@asynccontextmanager
async def answering(folder: Path, decide: Decide) -> AsyncIterator[Path]:
    """Answer requests of the trials in an experiment's folder; the file with the socket's path.

    Raises OSError: no folder is suitable for a socket.
    """
    sock, path = listen(str(folder), "-parameters.sock")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, ValueError, asyncio.IncompleteReadError):
            line = await reader.readuntil(b"\n")
            writer.write(json.dumps(await _answer(line, decide)).encode() + b"\n")
            await writer.drain()

    server = await asyncio.start_unix_server(answer, sock=sock, limit=_MAX_LINE)
    file = folder / FILE
    temporary = file.with_suffix(".new")
    temporary.write_text(path, encoding="utf-8")
    temporary.replace(file)
    try:
        yield file
    finally:
        server.close()
        Path(path).unlink(missing_ok=True)


async def _answer(line: bytes, decide: Decide) -> Json:
    try:
        request = json.loads(line)
        parameter = Parameter(request["name"], domain_of(request["domain"]))
        trial, attempt = int(request["trial"]), int(request["attempt"])
    except (ValueError, KeyError, TypeError) as error:
        return {"refused": f"not a request for a parameter: {error!r}"}
    try:
        return {"value": await decide(trial, attempt, parameter)}
    except Unavailable as error:
        return {"later": str(error)}
    except TunerError as error:
        return {"refused": str(error)}
