"""The gRPC server around `suggest.studies`: handling of calls, access control,
metrics, limits and administration.

Importing this package imports nothing else: modules are loaded when a name is first used.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from suggest.server import admin as admin
    from suggest.server import start_check as start_check
    from suggest.server.access.protection import Protection
    from suggest.server.descriptors import raise_descriptor_limit
    from suggest.server.process import Companion, Server, serve
    from suggest.server.server_options import ServerOptions

__all__ = ["Companion", "Protection", "Server", "ServerOptions", "raise_descriptor_limit", "serve"]
__getattr__ = lazily(__name__, dict.fromkeys(__all__, "process"))
