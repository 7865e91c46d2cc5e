"""Clients that run a search while something happens to their server,
and the checks of the study afterwards.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from suggest.client import Client
from suggest.trial import Outcome, Trial, TrialState
from tests.conditions import eventually
from tests.service.running import NAME, ServerProcess, score

PATIENCE_S = 40.0


def a_client(server: ServerProcess) -> Client:
    return Client(server.address, timeout_s=PATIENCE_S)


def started(client: Client, request_id: str) -> Trial:
    [trial] = client.suggest(NAME, 1, client_id="c", request_id=request_id).trials
    return trial


@dataclass
class Load:
    """Clients that search until stopped, and the replies that they got."""

    # by request: (trial, value)
    acknowledged: dict[str, tuple[int, float]] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)

    def search(self, server: ServerProcess, who: int) -> None:
        with a_client(server) as client:
            for turn in range(10_000):
                if self._over.is_set():
                    return
                request = f"{who}-{turn}"
                value = who + turn / 10_000
                self.acknowledged[request] = self._run(client, request, value), value

    def _run(self, client: Client, request: str, value: float) -> int:
        """Run one trial. May be repeated."""
        trial = started(client, request)
        client.report(NAME, trial.number, [score(0, 0.5)])
        client.complete(
            NAME, trial.number, Outcome(TrialState.SUCCEEDED), measurements=[score(1, value)]
        )
        return trial.number

    def end(self) -> None:
        self._over.set()

    def progress(self) -> Callable[[], bool]:
        """Return a function that returns whether every client has got a reply since this call."""
        now = len(self.acknowledged)
        return lambda: len(self.acknowledged) > now + 20

    def hold_against(self, client: Client) -> None:
        trials = client.list_trials(NAME)
        assert len({t.request_id for t in trials}) == len(trials), (
            "no request was answered with two trials"
        )
        found = {
            t.request_id: (t.number, t.value) for t in trials if t.state is TrialState.SUCCEEDED
        }
        assert found == self.acknowledged, (
            "what was answered is there, once; nothing else has ended"
        )
        assert [t.number for t in trials] == list(range(len(trials)))


@contextmanager
def under_load(servers: list[ServerProcess]) -> Iterator[Load]:
    load = Load()
    with ThreadPoolExecutor(len(servers)) as pool:
        clients = [pool.submit(load.search, server, who) for who, server in enumerate(servers)]
        try:
            eventually(load.progress())
            yield load
        finally:
            load.end()
        for client in clients:
            client.result()
