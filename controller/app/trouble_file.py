"""What keeps a controller from its work, as a small file in the experiment's folder: its database
may be what is away.

The controller replaces the file when its trouble changes, and removes it when the trouble is over.
One that ends with an error leaves the reason. A file that cannot be read or written is as good as
none: it is for people.
"""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from controller.report.formatting import timestamp


class TroubleFile:
    """The file of one experiment. Writers hold its lease."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trouble.json"

    def write(self, message: str, *, now: datetime, ended: bool = False) -> None:
        """Replace the trouble; "" removes it."""
        with suppress(OSError):
            if not message:
                self.path.unlink(missing_ok=True)
                return
            content = {"message": message, "since": timestamp(now), "ended": ended}
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps(content), encoding="utf-8")
            partial.rename(self.path)

    def read(self, *, controlled: bool) -> str:
        """Return the running controller's trouble, or why the last one ended; "" if unknown."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            message = str(content["message"])
            since = str(content["since"])
            ended = bool(content["ended"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        if controlled:
            return "" if ended else f"{message} (since {since})"
        if ended:
            return f"{message} (its last controller ended {since})"
        return f"{message} (when its last controller ran)"
