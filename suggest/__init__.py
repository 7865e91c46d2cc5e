"""Tuner's suggestion service: studies, trials and what to try next.
`suggest.Client` talks to a running one.

Importing this package imports nothing else: the client is imported when it is first used.
"""

from suggest.lazy_module import lazily

TYPE_CHECKING = False  # importing typing takes longer than all of this

if TYPE_CHECKING:
    from suggest import errors as errors
    from suggest.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
__getattr__ = lazily(__name__, dict.fromkeys(__all__, "client"))
