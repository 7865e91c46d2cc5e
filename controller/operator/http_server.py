"""The HTTP port of the controller: the API for the command line, and the page."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.routing import BaseRoute

from controller.operator.http_api import error_response
from controller.ui.server import LimitedListener, listen, running
from suggest.errors import TunerError

# Of both families, where the system has both.
ALL_INTERFACES = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"


@asynccontextmanager
async def http_server(
    port: int,
    routes: Sequence[BaseRoute],
    *,
    closing: asyncio.Event,
    tls: Callable[[], ssl.SSLContext],
    most_connections: int,
) -> AsyncIterator[int]:
    """Answer requests on a port, and yield it; 0 lets the system choose.

    closing: is set at the end, so that streams end. tls: returns the context of a new connection.

    Raises FailedPrecondition: it is in use.
    """
    listener = listen(ALL_INTERFACES, (port,), flag="--http-port")
    actual: int = listener.getsockname()[1]
    app = Starlette(routes=routes, exception_handlers={TunerError: error_response})
    limited = LimitedListener(listener, most_connections)
    async with running(app, limited, closing, tls=tls):
        yield actual
