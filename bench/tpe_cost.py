"""CPU time of a TPE proposal as a study grows, compared to Optuna's,
and of a batch of 64 proposals.

Measured in this process, without store and network, which `suggest_latency.py` includes. Part of
`make bench`. The contestants take turns, and the lowest of many times is shown, because a busy
machine can only add time.
"""

from __future__ import annotations

import random
import time

from mixed import SPACE
from record import keep, table

from suggest.engine import Engine
from suggest.samplers import PointRequest
from suggest.samplers.uniform import draw_point
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

HISTORIES = (100, 1_000, 10_000, 100_000)
ROUNDS, BATCH = 40, 64


def filled(algorithm: str, history: int) -> Engine:
    spec = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm(algorithm))
    rng = random.Random(1)
    points = (draw_point(SPACE, 3, PointRequest(n, {})) for n in range(history))
    trials = (
        Trial(n, TrialState.SUCCEEDED, point, value=rng.random()) for n, point in enumerate(points)
    )
    engine = Engine(Study(StudyName("default", "cost"), "uid", spec, 1), trials, ())
    engine.propose(1)  # exclude one-time imports
    return engine


def cost_ms(engine: Engine, count: int) -> float:
    """Return the milliseconds of one proposal; afterwards one of its trials ends."""
    start = time.thread_time()
    proposed = engine.propose(count).trials[0]
    taken = time.thread_time() - start
    engine.put(Trial(proposed.number, TrialState.SUCCEEDED, proposed.parameters, value=taken))
    return 1e3 * taken


def main() -> None:
    rows = []
    for history in HISTORIES:
        ours, theirs = filled("tpe", history), filled("optuna:tpe", history)
        ones, others, batches = [], [], []
        for turn in range(ROUNDS):
            ones += [cost_ms(ours, 1) for _ in range(3)]
            others.append(cost_ms(theirs, 1))
            if turn % 4 == 0:
                batches.append(cost_ms(ours, BATCH))
        one, other, batch = min(ones), min(others), min(batches)
        rows.append(
            [
                f"{history:,}",
                f"{one:.2f}",
                f"{other:.2f}",
                f"{other / one:.1f}",
                f"{batch:.1f}",
                f"{batch / one:.0f}",
            ]
        )
    head = [
        "finished trials",
        "tpe, ms",
        "optuna:tpe, ms",
        "ratio",
        f"tpe, {BATCH} at once, ms",
        "over one",
    ]
    keep("tpe-cost", table(head, rows))


if __name__ == "__main__":
    main()
