"""What goes on and shows no change is not judged anew at every look: a thousand are looked at many times a second.

An object that changes is a new dict (`reflector`), so that the same dicts mean the same sighting, but for what only
time brings; so none is believed for long.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from controller.runtime.protocol import Sighting

Raw = dict[str, Any]

_BELIEVED_S = 5.0
_DOUBTED_S = 1.0  # its controller has said something: its end may be near; or it has not begun, and may never


class Steady:
    def __init__(self) -> None:
        self._known: dict[str, tuple[float, Raw, Sequence[Raw], Sighting]] = {}

    def sighting(self, name: str, shown: Raw, pods: Sequence[Raw], *, calm: bool) -> Sighting | None:
        """None: look at it. calm: the cluster tells of no trouble that would keep anything from beginning."""
        known = self._known.get(name)
        if known is None:
            return None
        until_s, same, same_pods, sighting = known
        if shown is not same or len(pods) != len(same_pods) or time.monotonic() >= until_s:
            return None
        if sighting.start_time is None and not calm:
            return None
        return sighting if all(a is b for a, b in zip(pods, same_pods, strict=True)) else None

    def note(self, name: str, shown: Raw, pods: Sequence[Raw], sighting: Sighting, *, left_s: float | None) -> None:
        """left_s: until its time is up."""
        if sighting.exit is not None:
            self.forget(name)
            return
        doubted = sighting.start_time is None or shown.get("status", {}).get("conditions")
        believed_s = _DOUBTED_S if doubted else _BELIEVED_S
        until_s = time.monotonic() + (believed_s if left_s is None else min(believed_s, left_s))
        self._known[name] = until_s, shown, pods, sighting

    def forget(self, name: str) -> None:
        self._known.pop(name, None)
