"""Tuner's suggestion service: studies, trials and what to try next. `suggest.Client` talks to a running one.

Importing this package imports nothing else: the client is imported when it is first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suggest.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]


# Any: a module's __getattr__ has no narrower type.
def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from suggest import client

    return getattr(client, name)
