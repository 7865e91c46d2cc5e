"""Effect of one slow study on ninety-nine others at the same server: the same load, without and
with the slow study.

Many clients request many trials at once from the slow study, which computes each with an algorithm
of Optuna, until the measurement ends. As in `studies`, the time of a call is measured from when it
was due. `--quick` keeps no results.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
import tempfile
import uuid
from pathlib import Path

from record import keep, quantile, table, verdict
from studies import QUICK, SPEC, Load, Size, connected, filled, ms

from suggest.client import AsyncClient
from suggest.study import Algorithm, StudyName, StudySpec
from suggest.trial import Outcome, TrialState

SLOW = StudyName("default", "slow")
SLOW_ALGORITHM = "optuna:tpe"
CLIENTS, COUNT, HISTORY, AT_MOST = 12, 20, 200, 2.0
WHOLE = Size(studies=99, trials=1_000, per_s=50, for_s=20.0, steps=0, flood_s=0.0)


async def slow(client: AsyncClient) -> int:
    """Load the slow study until cancelled."""
    while True:
        await client.suggest(SLOW, COUNT, client_id="slow", request_id=uuid.uuid4().hex)


async def measured(folder: Path, size: Size) -> str:
    url = f"sqlite:///{folder}/studies.db"
    filled(url, size, studies=size.studies)
    alone, beside, rows = [], [], []
    async with connected(folder, url) as (client, _):
        await client.create_study(
            SLOW,
            StudySpec(SPEC.space, SPEC.objectives, Algorithm(SLOW_ALGORITHM, seed=1)),
            request_id="slow",
        )
        for trial in (
            await client.suggest(SLOW, HISTORY, client_id="slow", request_id="first")
        ).trials:
            await client.complete(
                SLOW, trial.number, Outcome(TrialState.SUCCEEDED, trial.number / HISTORY)
            )
        quiet = Load(client, size.studies)
        await quiet.warm()
        for _ in range(3):
            quiet = Load(client, size.studies)
            await quiet.run(per_s=size.per_s, for_s=size.for_s / 3)
            asking = [asyncio.create_task(slow(client)) for _ in range(CLIENTS)]
            await asyncio.sleep(1.0)
            loaded = Load(client, size.studies)
            await loaded.run(per_s=size.per_s, for_s=size.for_s / 3)
            for task in asking:
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(*asking)
            alone.append(quiet.suggestions + quiet.completions)
            beside.append(loaded.suggestions + loaded.completions)
            rows.append(
                [
                    *(
                        f"{ms(seconds, share):.1f}"
                        for seconds in (alone[-1], beside[-1])
                        for share in (0.5, 0.99)
                    )
                ]
            )
            print(rows[-1], file=sys.stderr)
            await asyncio.sleep(2.0)
    ratio = quantile([ms(b, 0.99) / ms(a, 0.99) for a, b in zip(alone, beside, strict=True)], 0.5)
    head = ["p50 alone in ms", "p99 alone", "p50 beside the slow one", "p99 beside it"]
    return (
        f"{size.studies} studies of {size.trials:,} trials, {size.per_s} suggestions and "
        f"completions a second on them, "
        f"by turns without and with {CLIENTS} clients who each ask one more study for {COUNT} "
        f"trials of "
        f"`{SLOW_ALGORITHM}` "
        f"again and again:\n\n{table(head, rows)}\n\nClaim: p99 at most {AT_MOST:g} times, the "
        f"median of three turns: "
        f"{ratio:.2f}, {verdict(ratio, AT_MOST)}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short; keeps nothing")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tuner-") as name:
        text = asyncio.run(measured(Path(name), QUICK if given.quick else WHOLE))
    keep("slow-study", text, quick=given.quick)


if __name__ == "__main__":
    main()
