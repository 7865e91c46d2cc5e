"""The gRPC server around `suggest.studies`: handling of calls, access control, metrics, limits and administration.

Importing this package imports nothing else: modules are loaded when a name is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suggest.server.access.protection import Protection
    from suggest.server.process import Companion, Server, raise_descriptor_limit, serve
    from suggest.server.server_options import ServerOptions

__all__ = ["Companion", "Protection", "Server", "ServerOptions", "raise_descriptor_limit", "serve"]


# Any: a module's __getattr__ has no narrower type.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from suggest.server import process

    return getattr(process, name)
