"""Answers the requests of trials: for the parameters that they meet while they run, and for what
the pruning rule says of what they have reported.

Only for experiments that are define-by-run. A request and its answer are JSON:

    {"trial": 3, "attempt": 1, "name": "lr", "domain": {"type": "float", "min": 0, "max": 1, ...}}
    {"value": 0.25} or {"refused": "why"} or {"later": "why"}

A trial that reports and asks if it should stop gets its answer once the rule has judged all that it
has printed. It is asked to stop as any other; the answer tells it to wait for that:

    {"trial": 3, "attempt": 1, "judge": true}
    {"stop": true}

A trial that must get a certain value adds `"given": 0.25`. One that was told the value with its
start does not wait, and adds `"planned": true`.

Trials on this machine ask at a socket, one line each: the experiment's folder has a file with its
path. They read it at each request, since they outlive a controller and the next one may listen
elsewhere; until then they wait. Trials elsewhere print their requests
(`controller.core.parameter_requests`), and their runtime shows them all answers so far, by name.

The other end is `tuner.asking`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing, suppress
from functools import partial
from pathlib import Path

from controller.runtime.local.listening import listen
from controller.spec.document import Json, domain_of
from suggest.domain import NO_MEMBER, NoMember
from suggest.errors import NotOwner, TunerError, Unavailable
from suggest.space import Parameter, Value
from suggest.whole_file import replace_file

FILE = "parameter-requests"
# A choice may have many long values.
_MAX_LINE = 16 << 20

Decide = Callable[[int, int, Parameter, Value | NoMember], Awaitable[Value]]
"""Returns the value for (trial, attempt, parameter, value that the trial asks for).

It is stored. Raises TunerError.
"""

Judge = Callable[[int], Awaitable[bool]]
"""Returns whether the rule wants this trial to stop, by all that it has printed until the call."""


@asynccontextmanager
async def answering(folder: Path, decide: Decide, judge: Judge) -> AsyncIterator[Path]:
    """Answer requests of the trials in an experiment's folder; the file with the socket's path.

    Raises OSError: no folder is suitable for a socket.
    """
    sock, path = listen(str(folder), "-parameters.sock")

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer), suppress(OSError, ValueError, asyncio.IncompleteReadError):
            request = json.loads(await reader.readuntil(b"\n"))
            attempt = int(request["trial"]), int(request["attempt"])
            answered: Json
            try:
                if "judge" in request:
                    answered = {"stop": await judge(attempt[0])}
                else:
                    answered = await answer_to(request, partial(decide, *attempt))
            except (Unavailable, NotOwner) as error:
                answered = {"later": str(error)}
            writer.write(json.dumps(answered).encode() + b"\n")
            await writer.drain()

    server = await asyncio.start_unix_server(answer, sock=sock, limit=_MAX_LINE)
    file = folder / FILE
    replace_file(file, path)
    try:
        yield file
    finally:
        server.close()
        Path(path).unlink(missing_ok=True)


async def answer_to(
    request: Json, decide: Callable[[Parameter, Value | NoMember], Awaitable[Value]]
) -> Json:
    """Return the value, or why there is none.

    Raises Unavailable and NotOwner: another try, or another controller, will answer.
    """
    try:
        parameter = Parameter(request["name"], domain_of(request["domain"]))
    except (ValueError, KeyError, TypeError) as error:
        return {"refused": f"not a request for a parameter: {error!r}"}
    try:
        return {"value": await decide(parameter, request.get("given", NO_MEMBER))}
    except (Unavailable, NotOwner):
        raise
    except TunerError as error:
        return {"refused": str(error)}
