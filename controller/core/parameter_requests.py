"""The requests in the log of a trial that meets its parameters while it runs.

A trial that shares no files with its controller prints its requests, as it prints its metrics, and
gets the answers from its runtime. A request is a line of its own, `tuner.ask` and its JSON in
base64: no rule for metrics matches that. The other end is `tuner.asking`.

A trial that asks to end the search prints `tuner.end`, wherever it runs.

Pure: bytes in, requests out, however the bytes are divided. A trial repeats a request that stays
without an answer, and a restarted controller reads the log again from the start.
"""

from __future__ import annotations

import base64
import contextlib
import json
import re
from typing import Any

# A choice may have many long values. The rest of a longer line is no request.
MAX_LINE_BYTES = 1 << 20
_END = re.compile(rb"^tuner\.end\r?$", re.MULTILINE)
_LINE = re.compile(rb"^tuner\.ask ([\w-]+)\r?$", re.MULTILINE)


class RequestReader:
    """Reads the requests of one attempt's log.

    open: those without an answer, as JSON, by the parameter's name.
    ends_search: whether the trial has asked to end the search.
    """

    def __init__(self) -> None:
        self.ends_search = False
        self._partial = b""
        self.open: dict[str, dict[str, Any]] = {}  # Any: JSON

    def feed(self, data: bytes) -> None:
        """Take the log's next bytes."""
        whole, _, rest = (self._partial + data).rpartition(b"\n")
        self._partial = rest[:MAX_LINE_BYTES]
        self.ends_search = self.ends_search or _END.search(whole) is not None
        for found in _LINE.finditer(whole):
            # Whatever else a program prints is no request.
            with contextlib.suppress(ValueError, KeyError, TypeError):
                padding = b"=" * (-len(found[1]) % 4)
                request = json.loads(base64.urlsafe_b64decode(found[1] + padding))
                self.open[str(request["name"])] = request
