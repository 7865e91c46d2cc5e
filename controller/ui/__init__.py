"""`tuner ui`: a web page on this machine for a person who watches searches,
and the server of that page.

It is built on `app` and `report` only. Starlette and uvicorn are an extra, and only this package
imports them. The page consists of plain ES modules in `static/`, without a build step.
"""

from typing import TYPE_CHECKING

from suggest.lazy_module import lazily

if TYPE_CHECKING:
    from controller.ui import vega as vega

__getattr__ = lazily(__name__)
