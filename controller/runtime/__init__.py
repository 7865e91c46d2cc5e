"""Where trials run: the protocol, and what implements it.

Importing this package imports none of it.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from controller.runtime import protocol as protocol

__getattr__ = lazily(__name__)
