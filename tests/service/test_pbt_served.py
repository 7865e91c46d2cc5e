"""Population based training over gRPC: parents on the wire and in the store,
waiting, and several processes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client, Search
from suggest.replies import Suggestions
from suggest.study import Algorithm
from suggest.trial import Outcome, TrialState
from tests.service.running import NAME, SPEC, a_server

GENERATIONS = replace(
    SPEC, algorithm=Algorithm("pbt", 3, {"population": 4, "truncation": 0.25}), pruning=None
)


@pytest.fixture
def storage(tmp_path: Path) -> Path:
    return tmp_path / "studies.db"


@pytest.fixture
def client(storage: Path) -> Iterator[Client]:
    with a_server(storage) as server, Client(server.address) as client:
        client.create_study(NAME, GENERATIONS, request_id="create")
        yield client


def ask(client: Client, request: str, count: int = 1) -> Suggestions:
    return client.suggest(NAME, count, client_id="c", request_id=request)


def end(client: Client, number: int, value: float) -> None:
    client.complete(NAME, number, Outcome(TrialState.SUCCEEDED, value))


def test_a_request_that_must_wait_says_so_and_can_be_repeated(client: Client) -> None:
    first = ask(client, "first", 6)
    assert (len(first.trials), first.exhausted, first.waiting) == (4, False, True)
    assert ask(client, "second") == Suggestions(
        (), exhausted=False, independent=False, waiting=True
    )
    end(client, 0, 0.5)
    end(client, 1, 0.7)
    (child,) = ask(client, "second").trials
    assert (child.number, child.parent) == (4, 1)
    assert client.get_trial(NAME, 4).parent == 1
    assert [t.parent for t in client.list_trials(NAME)] == [None] * 4 + [1]


def test_another_server_continues_with_the_same_parents(storage: Path) -> None:
    parents: list[int | None] = []
    for number in range(12):
        with a_server(storage) as server, Client(server.address) as client:
            client.create_study(NAME, GENERATIONS, request_id="create")
            (trial,) = ask(client, f"{number}").trials
            assert (trial.number, ask(client, f"{number}").trials) == (number, (trial,))
            end(client, number, number % 4 / 4)
            parents.append(trial.parent)
    assert parents[:8] == [None] * 4 + [3, 2, 1, 3]
    assert set(parents[8:]) <= {4, 5, 6, 7}


def test_processes_that_share_a_study_wait_for_each_generation(client: Client) -> None:
    """A population of two keeps the third process waiting."""
    spec = replace(GENERATIONS, algorithm=Algorithm("pbt", 3, {"population": 2}))
    study = client.create_study(replace(NAME, study="shared"), spec, request_id="create")
    both = threading.Barrier(2)

    def work() -> None:
        with Client(client.address) as own:
            for trial in Search(own, study).trials(9):
                if trial.number < 2:
                    both.wait()
                trial.complete(trial.number / 9)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    trials = client.list_trials(study.name)
    # concurrent requests may create one too many
    counting = [t for t in trials if t.state is not TrialState.CANCELLED]
    assert [t.state for t in counting] == [TrialState.SUCCEEDED] * 9
    assert all((t.parent is None) == (t.number < 2) for t in trials)
