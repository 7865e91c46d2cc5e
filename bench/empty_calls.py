"""The baseline for `studies.py`: a gRPC server in its own process that answers every call with nothing.

No server in Python can be faster than these calls on the same machine at the same time.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import grpc.aio

from suggest.replies import Suggestions
from suggest.trial import Trial, TrialState

METHOD = "/empty.Calls/Call"
_REQUEST, _REPLY = bytes(100), bytes(300)  # about the sizes of a suggestion
_SUGGESTIONS = Suggestions((Trial(0, TrialState.RUNNING, {}),), exhausted=False, independent=True)


class EmptyClient:
    """The methods of a client that `studies.Load` uses, each as an empty call."""

    def __init__(self, channel: grpc.aio.Channel) -> None:
        self._call = channel.unary_unary(METHOD)

    async def suggest(self, *_: object, **__: object) -> Suggestions:
        await self._call(_REQUEST)
        return _SUGGESTIONS

    async def complete(self, *_: object) -> None:
        await self._call(_REQUEST)


@contextlib.asynccontextmanager
async def answering(folder: Path) -> AsyncIterator[EmptyClient]:
    address = f"unix:{folder}/empty"
    server = subprocess.Popen([sys.executable, __file__, address])  # noqa: ASYNC220 - nothing else runs yet
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            await channel.unary_unary(METHOD)(_REQUEST, wait_for_ready=True, timeout=15)
            yield EmptyClient(channel)
    finally:
        server.terminate()
        server.wait(30)


async def _serve(address: str) -> None:
    async def answer(request: bytes, context: object) -> bytes:
        return _REPLY

    service, _, method = METHOD[1:].partition("/")
    handlers = {method: grpc.unary_unary_rpc_method_handler(answer)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    server.add_insecure_port(address)
    await server.start()
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(_serve(sys.argv[1]))
