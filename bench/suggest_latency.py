"""Latency of suggestions by TPE as the study grows:
SuggestTrials over gRPC compared to Optuna's ask().

The contestants take turns with blocks of suggestions, so that a busy moment affects all of them.
`make bench` runs this; `--quick` is a smoke test that does not change the page.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import random
import sys
import tempfile
import time
import uuid
import warnings
from pathlib import Path
from typing import Protocol

import optuna
import sqlalchemy
from mixed import SPACE, Point, drawn, optuna_space
from processes import serving
from record import keep, quantile, table, verdict

from suggest.client import AsyncClient
from suggest.study import Algorithm, Direction, Objective, StudyName, StudySpec
from suggest.trial import Outcome, TrialState

P50_AT_MOST_MS = 15.0  # at the largest history

DISTRIBUTIONS = optuna_space()


def score(point: Point) -> float:
    """A smooth bowl with a ridge, which is cheap and which TPE can learn."""
    lr, width = math.log10(float(point["lr"])), math.log2(float(point["width"]))
    best = {"relu": 0.0, "tanh": 0.1, "gelu": -0.1}[str(point["activation"])]
    return (
        (lr + 2) ** 2
        + (width - 7) ** 2 / 4
        + (float(point["momentum"]) - 0.9) ** 2
        + float(point["dropout"]) * 0.5
        + abs(float(point["layers"]) - 5) / 5
        + best
    )


class Contestant(Protocol):
    name: str

    def fill(self, points: list[Point]) -> None:
        """Add finished trials with these parameters."""

    def suggest(self) -> float:
        """Return the seconds of one suggestion. The trial is completed afterwards."""


class Ours:
    """A study at a separate `tuner serve`, over a socket."""

    name = "tuner: SuggestTrials over gRPC, SQLite"

    def __init__(self, address: str) -> None:
        self.loop = asyncio.new_event_loop()
        self.study = StudyName("default", "bench")
        self.loop.run_until_complete(self._connect(address))

    async def _connect(self, address: str) -> None:
        self.client = AsyncClient(address, timeout_s=60)
        objective = Objective("loss", Direction.MINIMIZE)
        spec = StudySpec(SPACE, (objective,), Algorithm("tpe", seed=1))
        await self.client.create_study(self.study, spec, request_id=uuid.uuid4().hex)

    async def _add(self, point: Point) -> None:
        outcome = Outcome(TrialState.SUCCEEDED, score(point))
        await self.client.add_trial(self.study, point, request_id=uuid.uuid4().hex, outcome=outcome)

    async def _fill(self, points: list[Point]) -> None:
        for start in range(0, len(points), 16):
            await asyncio.gather(*map(self._add, points[start : start + 16]))

    def fill(self, points: list[Point]) -> None:
        self.loop.run_until_complete(self._fill(points))

    async def _suggest(self) -> float:
        start = time.perf_counter()
        suggestions = await self.client.suggest(
            self.study, 1, client_id="bench", request_id=uuid.uuid4().hex
        )
        seconds = time.perf_counter() - start
        trial = suggestions.trials[0]
        await self.client.complete(
            self.study, trial.number, Outcome(TrialState.SUCCEEDED, score(dict(trial.parameters)))
        )
        return seconds

    def suggest(self) -> float:
        return self.loop.run_until_complete(self._suggest())

    def close(self) -> None:
        self.loop.run_until_complete(self.client.close())
        self.loop.close()


class Optunas:
    """The same search as an Optuna study in this process."""

    def __init__(self, name: str, storage: optuna.storages.BaseStorage) -> None:
        self.name = f"Optuna {optuna.__version__}: ask(), {name}"
        sampler = optuna.samplers.TPESampler(seed=1)
        self.study = optuna.create_study(storage=storage, sampler=sampler, direction="minimize")

    def fill(self, points: list[Point]) -> None:
        for point in points:
            trial = optuna.trial.create_trial(
                params=point, distributions=DISTRIBUTIONS, value=score(point)
            )
            self.study.add_trial(trial)

    def suggest(self) -> float:
        start = time.perf_counter()
        trial = self.study.ask()
        point: Point = {
            "lr": trial.suggest_float("lr", 1e-5, 1.0, log=True),
            "momentum": trial.suggest_float("momentum", 0.0, 1.0),
            "dropout": trial.suggest_float("dropout", 0.0, 0.7),
            "layers": trial.suggest_int("layers", 1, 12),
            "width": trial.suggest_int("width", 16, 1024, log=True),
            "activation": trial.suggest_categorical("activation", ["relu", "tanh", "gelu"]),
        }
        seconds = time.perf_counter() - start
        self.study.tell(trial, score(point))
        return seconds


class OptunasSqlite(Optunas):
    """An Optuna study on SQLite, which does not wait for the disk
    while it is filled with 10,000 trials.
    """

    def __init__(self, path: Path) -> None:
        self.storage = optuna.storages.RDBStorage(f"sqlite:///{path}")
        super().__init__("SQLite", self.storage)

    def _wait_for_disk(self, wait: bool) -> None:
        @sqlalchemy.event.listens_for(self.storage.engine, "connect")
        def set_synchronous(connection: object, record: object) -> None:
            connection.execute(f"PRAGMA synchronous = {'FULL' if wait else 'OFF'}")  # type: ignore[attr-defined]

        self.storage.remove_session()
        self.storage.engine.dispose()  # the setting applies to new connections

    def fill(self, points: list[Point]) -> None:
        self._wait_for_disk(False)
        super().fill(points)
        self._wait_for_disk(True)


def optunas(folder: Path) -> list[Contestant]:
    journal = optuna.storages.journal.JournalFileBackend(str(folder / "journal.log"))
    return [
        OptunasSqlite(folder / "optuna.db"),
        Optunas("journal file", optuna.storages.JournalStorage(journal)),
        Optunas("in memory", optuna.storages.InMemoryStorage()),
    ]


def measure(all_of_them: list[Contestant], count: int, patience_s: float) -> dict[str, list[float]]:
    """Measure `count` suggestions of each in alternating blocks of ten;
    stop slow ones early, after ten or more.
    """
    for each in all_of_them:
        each.suggest()  # exclude one-time imports
    taken: dict[str, list[float]] = {each.name: [] for each in all_of_them}
    for _ in range(0, count, 10):
        for each in all_of_them:
            if sum(taken[each.name]) < patience_s:
                taken[each.name] += [each.suggest() for _ in range(10)]
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few suggestions over short histories; keeps nothing"
    )
    quick = parser.parse_args().quick
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    warnings.filterwarnings("ignore", category=optuna.exceptions.ExperimentalWarning)
    histories, count, patience_s = (
        ((20, 50), 10, 5.0) if quick else ((100, 1_000, 10_000), 200, 30.0)
    )
    rng, rows, ours_p50_ms = random.Random(1), [], 0.0
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), f"sqlite:///{name}/studies.db") as (address, _),
    ):
        ours, peers = Ours(address), optunas(Path(name))
        try:
            held = 0
            for history in histories:
                points = [drawn(rng) for _ in range(history - held)]
                for each in (ours, *peers):
                    print(f"filling up to {history} trials: {each.name}", file=sys.stderr)
                    each.fill(points)
                held = history  # plus the few trials that were measured
                taken = measure([ours, *peers], count, patience_s)
                ours_p50_ms = 1e3 * quantile(taken[ours.name], 0.5)
                for who, seconds in taken.items():
                    p50, p99 = 1e3 * quantile(seconds, 0.5), 1e3 * quantile(seconds, 0.99)
                    ratio = f"{p50 / ours_p50_ms:.1f}"
                    rows.append(
                        [f"{history:,}", who, f"{p50:.1f}", f"{p99:.1f}", ratio, str(len(seconds))]
                    )
        finally:
            ours.close()
    head = table(
        ["finished trials", "who", "p50 in ms", "p99 in ms", "p50 over ours", "suggestions"], rows
    )
    claim = (
        f"Claim: p50 at most {P50_AT_MOST_MS:g} ms at {histories[-1]:,} trials: {ours_p50_ms:.1f} "
        f"ms, " + verdict(ours_p50_ms, P50_AT_MOST_MS)
    )
    keep("suggestions", f"{head}\n\n{claim}.", quick=quick)


if __name__ == "__main__":
    main()
