"""Load on one server: a hundred long studies at once, a restart,
floods of measurements; on SQLite and PostgreSQL.

Calls are sent when they are due, whether or not earlier ones have been answered, and the time of a
call is measured from when it was due. Thus a server that stalls still gets all calls (open-loop
load). Only the delay of the client's own timer, which has a resolution of milliseconds, is not
attributed to the server. The client is a separate process on the same machine. `make bench` runs
this; `--quick` is a smoke test that keeps no results, `--only PART` runs one part.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import math
import multiprocessing
import os
import random
import sys
import tempfile
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

import sqlalchemy
from mixed import SPACE, drawn
from processes import peak_mb, serving
from record import keep, quantile, table, verdict

from suggest.client import AsyncClient
from suggest.server.admin import open_store
from suggest.space import Assignment
from suggest.storage.store import StudyRecord
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Measurement, Outcome, Trial, TrialState
from tests.postgres import Postgres, programs

SPEC = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm("tpe", seed=1))
P50_MS = {"SQLite": 2.5, "SQLite, --sync full": 2.5, "PostgreSQL": 6.0}
P99_MS = {"SQLite": 15.0, "SQLite, --sync full": 15.0, "PostgreSQL": 50.0}
MEMORY_MB, RESTART_S, MEASUREMENTS_S, UNDER_LOAD = 300.0, 0.5, 20_000.0, 3.0
FLOODED = 4  # studies, and clients
BATCH, METRICS = 1_000, ("loss", "accuracy", "seconds", "lr", "norm")


@dataclass(frozen=True, slots=True)
class Size:
    studies: int
    trials: int
    per_s: int
    for_s: float
    steps: int
    flood_s: float


WHOLE = Size(studies=100, trials=10_000, per_s=100, for_s=60.0, steps=50, flood_s=60.0)
QUICK = Size(studies=3, trials=100, per_s=20, for_s=2.0, steps=5, flood_s=1.0)


# Histories, written directly to the store, because they are not measured


def name_of(place: int) -> StudyName:
    return StudyName("default", f"s{place:03d}")


def filled(url: str, size: Size, *, studies: int, steps: int = 0) -> None:
    """Create `studies` studies with the same history: the first is written,
    the others are copies.
    """
    rng = random.Random(1)
    with contextlib.closing(open_store(url)) as store:
        for place in range(studies):
            study = Study(
                name_of(place),
                uuid.uuid4().hex[:16],
                SPEC,
                seed=place,
                create_time=datetime.now(UTC),
            )
            assert store.insert_study(StudyRecord(study, uuid.uuid4().hex, "none"))
            if place == 0:
                lease = store.take(study.name, uid=study.uid, address="")
                for start in range(0, size.trials, 500):
                    numbers = range(start, min(size.trials, start + 500))
                    store.hand_out(
                        lease, [_finished(number, drawn(rng), rng) for number in numbers]
                    )
                store.release(lease)
    engine = sqlalchemy.create_engine(url)
    with engine.begin() as connection:
        columns = _columns(connection, "trials")
        others = ", ".join(c for c in columns if c != "study")
        for place in range(1, studies):
            connection.exec_driver_sql(
                f"INSERT INTO trials (study, {others}) SELECT '{name_of(place).study}', {others} "
                f"FROM trials "
                f"WHERE study = '{name_of(0).study}'"
            )
        if steps:
            value = "1.0 / (1 + t.number + s.step)"
            connection.exec_driver_sql(
                "INSERT INTO measurements (namespace, study, trial, attempt, metric, step, value) "
                f"WITH RECURSIVE s(step) AS (SELECT 0 UNION ALL SELECT step + 1 FROM s WHERE step "
                f"< {steps - 1}) "
                f"SELECT t.namespace, t.study, t.number, 1, 'loss', s.step, {value} FROM trials "
                f"t, s"
            )
    if engine.dialect.name == "postgresql":  # otherwise it would vacuum during the measurement
        with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
            connection.exec_driver_sql("VACUUM ANALYZE")
            connection.exec_driver_sql("CHECKPOINT")
    engine.dispose()
    os.sync()  # so that this data is not written to disk during the measurement


def _columns(connection: sqlalchemy.Connection, name: str) -> list[str]:
    return [column["name"] for column in sqlalchemy.inspect(connection).get_columns(name)]


def _finished(number: int, point: Assignment, rng: random.Random) -> Trial:
    at, request = datetime.now(UTC), f"{rng.getrandbits(128):032x}"
    value = rng.random()
    return Trial(
        number,
        TrialState.SUCCEEDED,
        point,
        value,
        9,
        request_id=request,
        client_id="c",
        create_time=at,
        end_time=at,
    )


# The server and its load


@contextlib.asynccontextmanager
async def connected(folder: Path, url: str, *flags: str) -> AsyncIterator[tuple[AsyncClient, int]]:
    """Run a server; yield a client and the server's process id."""
    with serving(folder, url, *flags) as (address, pid):
        async with AsyncClient(address, timeout_s=60) as client:
            await client.algorithms()
            yield client, pid


@dataclass
class Load:
    """Sends calls when they are due and measures them.

    `suggestions` and `completions` are seconds from when each call was due until its reply. With
    `ends_drawn`, trials have random durations, otherwise equal ones. A call is due when its timer
    fires or, if the client itself is behind, when the timer should have fired.
    """

    client: AsyncClient
    studies: int
    ends_drawn: bool = False
    suggestions: list[float] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)
    first_s: float = 0.0  # seconds until every study has been loaded, one at a time

    async def warm(self) -> None:
        began = time.monotonic()
        for place in range(self.studies):
            await self._trial(name_of(place), time.monotonic())
        self.first_s = time.monotonic() - began
        self.suggestions.clear()
        self.completions.clear()

    async def run(self, *, per_s: float, for_s: float) -> None:
        """Request a trial of each study in turn,
        and complete it before the next turn of the study.
        """
        # Freeze existing objects, so that garbage collection
        # in the client does not affect the measurement.
        gc.collect()
        gc.freeze()
        began, under_way = time.monotonic(), set()
        for turn in range(int(per_s * for_s)):
            due = began + turn / per_s
            if (early_s := due - time.monotonic()) > 0:
                await asyncio.sleep(early_s)
                due = time.monotonic()
            name = name_of(turn % self.studies)
            share = random.uniform(0.25, 0.75) if self.ends_drawn else 0.5
            lasts_s = share * min(1.0, self.studies / per_s)
            task = asyncio.create_task(self._trial(name, due, after_s=lasts_s))
            under_way.add(task)
            task.add_done_callback(under_way.discard)
        await asyncio.gather(*under_way)

    async def _trial(self, name: StudyName, due: float, *, after_s: float = 0.0) -> None:
        found = await self.client.suggest(name, 1, client_id="bench", request_id=uuid.uuid4().hex)
        self.suggestions.append(time.monotonic() - due)
        await asyncio.sleep(after_s)
        due = time.monotonic()
        await self.client.complete(
            name, found.trials[0].number, Outcome(TrialState.SUCCEEDED, random.random())
        )
        self.completions.append(time.monotonic() - due)


def ms(seconds: list[float], share: float) -> float:
    return 1e3 * quantile(seconds, share)


# The parts


async def hundred(folder: Path, stores: dict[str, tuple[str, list[str]]], size: Size) -> str:
    rows, verdicts = [], []
    for store, (url, flags) in stores.items():
        print(f"{store}: filling {size.studies} studies of {size.trials} trials", file=sys.stderr)
        if not flags:  # with flags, reuse the file of the previous row
            filled(url, size, studies=size.studies)
        async with connected(folder, url, *flags) as (client, pid):
            load = Load(client, size.studies)
            await load.warm()
            await load.run(per_s=size.per_s, for_s=size.for_s)
            p50, p99 = ms(load.suggestions, 0.5), ms(load.suggestions, 0.99)
            memory = peak_mb(pid)
            most = await saturation(client, size, P99_MS[store])
            first_ms = load.first_s / size.studies * 1e3
            rows.append([store, *_figures(load), *map("{:.0f}".format, (memory, first_ms, most))])
            verdicts.append(
                f"{store}: p50 at most {P50_MS[store]:g} ms, {verdict(p50, P50_MS[store])}; "
                f"p99 at most {P99_MS[store]:g} ms, {verdict(p99, P99_MS[store])}; "
                f"at most {MEMORY_MB:g} MB, {verdict(memory, MEMORY_MB)}"
            )
            print(rows[-1], file=sys.stderr)
            if not flags:
                drawn = Load(client, size.studies, ends_drawn=True)
                await drawn.run(per_s=size.per_s, for_s=size.for_s)
                rows.append([f"{store}, trials that end at random", *_figures(drawn), "", "", ""])
                print(rows[-1], file=sys.stderr)
    head = [
        "store",
        "suggestion p50 in ms",
        "p99",
        "completion p50 in ms",
        "p99",
        "peak memory in MB",
        "first suggestion of a study in ms, mean",
        "most per second",
    ]
    return table(head, rows) + "\n\nClaims: " + ". ".join(verdicts) + "."


def _figures(load: Load) -> list[str]:
    return [
        f"{ms(seconds, share):.1f}"
        for seconds in (load.suggestions, load.completions)
        for share in (0.5, 0.99)
    ]


async def saturation(client: AsyncClient, size: Size, p99_ms: float) -> float:
    """Return the highest of the tried rates at which the 99th percentile stays within the claim."""
    most, rate = 0.0, size.per_s / 4
    while rate <= 20 * size.per_s:
        load = Load(client, size.studies)
        await load.run(per_s=rate, for_s=min(size.for_s, 8.0))
        if ms(load.suggestions, 0.99) > p99_ms:
            return most
        most, rate = rate, rate * 1.4
    return most


async def restart(folder: Path, stores: dict[str, tuple[str, list[str]]], size: Size) -> str:
    rows, worst = [], 0.0
    for store, (url, flags) in stores.items():
        if flags:
            continue
        filled(url, size, studies=1, steps=size.steps)
        taken = []
        for _ in range(3):
            async with connected(folder, url) as (client, pid):
                began = time.monotonic()
                await client.suggest(name_of(0), 1, client_id="bench", request_id=uuid.uuid4().hex)
                taken.append(time.monotonic() - began)
                memory = peak_mb(pid)
        worst = max(worst, quantile(taken, 0.5))
        rows.append([store, " ".join(f"{seconds:.2f}" for seconds in taken), f"{memory:.0f}"])
    head = ["store", "first suggestion after a restart in s, three times", "peak memory in MB"]
    return (
        f"{table(head, rows)}\n\nClaim: at most {RESTART_S:g} s: {worst:.2f} s, "
        f"{verdict(worst, RESTART_S)}."
    )


async def reports(folder: Path, stores: dict[str, tuple[str, list[str]]], size: Size) -> str:
    """Send batches of measurements from a separate process,
    and request suggestions of another study meanwhile.
    """
    rows = []
    for store, (url, flags) in stores.items():
        if flags:
            continue
        few = replace(size, trials=min(size.trials, 1_000))
        filled(url, few, studies=2 + FLOODED)
        async with connected(folder, url) as (client, _):
            quiet, meanwhile = Load(client, 1), Load(client, 1)
            await quiet.warm()
            await quiet.run(per_s=20, for_s=size.flood_s)
            with flooding(client.address, size.flood_s, per_s=MEASUREMENTS_S) as flood:
                await meanwhile.run(per_s=20, for_s=size.flood_s)
            with flooding(client.address, size.flood_s, per_s=math.inf) as highest:
                most_per_s = highest.result()
        alone, under = ms(quiet.suggestions, 0.99), ms(meanwhile.suggestions, 0.99)
        enough = "yes" if most_per_s >= MEASUREMENTS_S else "**no**"
        rows.append(
            [
                store,
                f"{most_per_s:,.0f}",
                enough,
                f"{alone:.1f}",
                f"{under:.1f}",
                f"{flood.result():,.0f}",
                f"{under / alone:.1f}",
                verdict(under / alone, UNDER_LOAD),
            ]
        )
    head = [
        "store",
        "measurements a second, at most",
        f"at least {MEASUREMENTS_S:,.0f}",
        "suggestion p99 alone in ms",
        "with others' measurements",
        "as many a second",
        "ratio",
        f"at most {UNDER_LOAD:g}",
    ]
    return table(head, rows)


@contextlib.contextmanager
def flooding(address: str, for_s: float, *, per_s: float) -> Iterator[Future[float]]:
    """Yield the rate of acknowledged measurements, which is known at the end."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        yield pool.submit(flood_all, address, for_s, per_s)


def flood_all(address: str, for_s: float, per_s: float) -> float:
    """Send measurements from several clients at once and return the acknowledged rate."""

    async def all_of_them() -> int:
        client = AsyncClient(address, timeout_s=60)
        until = time.monotonic() + for_s
        counts = await asyncio.gather(
            *(flood(client, name_of(2 + k), until, per_s / FLOODED) for k in range(FLOODED))
        )
        await client.close()
        return sum(counts)

    return asyncio.run(all_of_them()) / for_s


async def flood(client: AsyncClient, name: StudyName, until: float, per_s: float) -> int:
    told, began = 0, time.monotonic()
    while time.monotonic() < until:
        found = await client.suggest(name, 1, client_id="flood", request_id=uuid.uuid4().hex)
        number = found.trials[0].number
        for start in range(0, 20 * BATCH, BATCH):
            await asyncio.sleep(max(0.0, began + told / per_s - time.monotonic()))
            steps = range(start // len(METRICS), (start + BATCH) // len(METRICS))
            batch = [
                Measurement(1, metric, step, step * 0.5) for step in steps for metric in METRICS
            ]
            await client.report(name, number, batch)
            told += len(batch)
            if time.monotonic() >= until:
                break
    return told


PARTS = {"hundred": hundred, "restart": restart, "reports": reports}


@contextlib.contextmanager
def stores_in(folder: Path) -> Iterator[dict[str, tuple[str, list[str]]]]:
    """Yield the stores by name, with the URL and further flags of `tuner serve`."""
    sqlite = f"sqlite:///{folder}/studies.db"
    found: dict[str, tuple[str, list[str]]] = {
        "SQLite": (sqlite, []),
        "SQLite, --sync full": (sqlite, ["--sync", "full"]),
    }
    binaries = programs()
    if binaries is None:
        print("without PostgreSQL: there is no initdb on this machine", file=sys.stderr)
        yield found
        return
    # With fsync, as in production: acknowledged writes are on disk.
    with contextlib.closing(Postgres(binaries, fsync="on", shared_buffers="128MB")) as postgres:
        yield {**found, "PostgreSQL": (postgres.new_database(), [])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short; keeps nothing")
    parser.add_argument("--only", choices=PARTS, help="one part")
    given = parser.parse_args()
    for part, measured in PARTS.items():
        if given.only in (None, part):
            with (
                tempfile.TemporaryDirectory(prefix="tuner-") as name,
                stores_in(Path(name)) as stores,
            ):
                text = asyncio.run(measured(Path(name), stores, QUICK if given.quick else WHOLE))
            keep(f"studies-{part}", text, quick=given.quick)


if __name__ == "__main__":
    main()
