"""Tuner's suggestion service: studies, trials and what to try next. `suggest.Client` talks to a running one.

Importing this package imports nothing else: the client is imported when it is first used.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import exported

if TYPE_CHECKING:
    from suggest.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
__getattr__ = exported(__name__, dict.fromkeys(__all__, "client"))
