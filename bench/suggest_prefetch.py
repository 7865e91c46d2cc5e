"""Latency of SuggestTrials with `gp`, whose points worker processes compute,
with one trial at a time and several.

Simulated trials run for a second; a free slot requests the next one at once. The server is
`tuner serve` on a socket with SQLite. `--quick` is a smoke test that does not change the page.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tempfile
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from mixed import SPACE, Point, drawn
from processes import serving
from record import keep, quantile, table, verdict
from suggest_latency import score

from suggest.client import AsyncClient
from suggest.imports import FinishedTrial
from suggest.study import Algorithm, Direction, Objective, StudyName, StudySpec
from suggest.trial import PROPOSED_BY, Outcome, TrialState

SLOTS = (1, 2, 8)
ALONE_MS, SEVERAL_MS, NEVER_MS = 60.0, 5.0, 250.0


@dataclass(slots=True)
class Taken:
    seconds: list[float] = field(default_factory=list)
    cheaper: int = 0


def finished(point: Point) -> FinishedTrial:
    return FinishedTrial(
        point, Outcome(TrialState.SUCCEEDED, score(point)), source_id=uuid.uuid4().hex
    )


async def slot(
    client: AsyncClient,
    study: StudyName,
    *,
    trials: int,
    trial_s: float,
    wait_s: float,
    taken: Taken,
) -> None:
    """Run trials one at a time in one slot, after waiting for `wait_s`."""
    await asyncio.sleep(wait_s)
    for place in range(trials):
        began = time.perf_counter()
        (trial,) = (
            await client.suggest(study, 1, client_id="bench", request_id=uuid.uuid4().hex)
        ).trials
        # skip the first call of a slot, which waits for the worker process and one-time imports
        if place:
            taken.seconds.append(time.perf_counter() - began)
            taken.cheaper += PROPOSED_BY in trial.labels
        await asyncio.sleep(trial_s)
        outcome = Outcome(TrialState.SUCCEEDED, score(dict(trial.parameters)))
        await client.complete(study, trial.number, outcome)


async def measured(
    client: AsyncClient, *, history: int, slots: int, trials: int, trial_s: float
) -> Taken:
    study = StudyName("default", f"gp-{history}-{slots}")
    spec = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm("gp"))
    await client.create_study(study, spec, request_id="create")
    rng = random.Random(1)
    for first in range(0, history, 500):
        page = [finished(drawn(rng)) for _ in range(min(500, history - first))]
        await client.import_trials(study, page, source="bench", request_id=uuid.uuid4().hex)
    taken = Taken()
    each = -(-trials // slots) + 1
    await asyncio.gather(
        *(
            slot(
                client, study, trials=each, trial_s=trial_s, wait_s=trial_s * k / slots, taken=taken
            )
            for k in range(slots)
        )
    )
    return taken


async def report(address: str, *, quick: bool) -> str:
    """Return the table and the verdicts on the claims."""
    rows: list[list[str]] = []
    alone, several, most = 0.0, 0.0, 0.0
    async with AsyncClient(address, timeout_s=60) as client:
        for history in (100,) if quick else (100, 250, 1_000, 10_000):
            for slots in SLOTS:
                trials, trial_s = (6, 0.2) if quick else (40, 1.0)
                taken = await measured(
                    client, history=history, slots=slots, trials=trials, trial_s=trial_s
                )
                p50, p90 = (1e3 * quantile(taken.seconds, share) for share in (0.5, 0.9))
                highest = 1e3 * max(taken.seconds)
                most = max(most, highest)
                alone, several = (
                    (max(alone, p50), several) if slots == 1 else (alone, max(several, p50))
                )
                cells = [
                    f"{p50:.1f}",
                    f"{p90:.1f}",
                    f"{highest:.0f}",
                    f"{taken.cheaper}",
                    str(len(taken.seconds)),
                ]
                rows.append([f"{history:,}", str(slots), *cells])
                print(rows[-1], file=sys.stderr)
    head = [
        "finished trials",
        "run at a time",
        "p50 in ms",
        "p90 in ms",
        "most in ms",
        "of them tpe's",
        "suggestions",
    ]
    claim = (
        f"Claims: p50 at most {ALONE_MS:g} ms one at a time: {alone:.1f} ms, "
        f"{verdict(alone, ALONE_MS)}; at most "
        f"{SEVERAL_MS:g} ms where several run: {several:.1f} ms, {verdict(several, SEVERAL_MS)}; "
        f"never above "
        f"{NEVER_MS:g} ms: {most:.0f} ms, {verdict(most, NEVER_MS)}."
    )
    return f"{table(head, rows)}\n\n{claim}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="few and short trials; keeps nothing")
    quick = parser.parse_args().quick
    with (
        tempfile.TemporaryDirectory(prefix="tuner-") as folder,
        serving(Path(folder), f"sqlite:///{folder}/studies.db") as (address, _),
    ):
        text = asyncio.run(report(address, quick=quick))
    keep("suggest-ahead", text, quick=quick)


if __name__ == "__main__":
    main()
