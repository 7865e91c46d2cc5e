"""The heartbeat of a trial: a thread that renews its lease for as long as it is open in this process, however silent.

It must never end a trial or the program: whatever a renewal raises, the next report or completion meets the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from suggest.errors import TunerError
from suggest.study import StudyName

if TYPE_CHECKING:
    from suggest.client import Client

BEATS = 3  # in a lease: two may be lost

log = logging.getLogger(__name__)


class Leased(Protocol):
    """A trial that this process runs."""

    number: int
    tries: int

    def lose(self, why: str) -> None:
        """It was handed out again."""


class Heartbeat:
    """Of one trial at a time. Its thread lives from the first trial until the `with` ends."""

    def __init__(self, client: Client, study: StudyName, lease_s: float | None) -> None:
        self._client = client
        self._study = study
        self._lease_s = lease_s
        self._trial: Leased | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Heartbeat:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # the thread may be in a call; nobody waits for that

    @contextmanager
    def of(self, trial: Leased) -> Iterator[None]:
        """Renew the trial's lease until the `with` ends."""
        if self._lease_s is None or not trial.tries:  # an older server knows no leases
            yield
            return
        self._trial = trial
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._beat, args=(self._lease_s / BEATS,), name="lease-heartbeat", daemon=True
            )
            self._thread.start()
        try:
            yield
        finally:
            self._trial = None

    def _beat(self, every_s: float) -> None:
        while not self._over.wait(every_s):
            trial = self._trial
            if trial is None:
                continue
            try:
                lost = self._client.renew_leases(self._study, {trial.number: trial.tries})
            except TunerError as error:
                log.debug("study=%s trial=%d lease not renewed: %s", self._study, trial.number, error)
                continue
            except ValueError:  # what gRPC raises where the client was closed meanwhile
                return
            if lost and self._trial is trial:
                trial.lose(f"{self._study}: trial {trial.number} has ended, or its lease expired and another has it")
