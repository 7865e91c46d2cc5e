"""CPU time of a proposal of `gp` as a study grows,
compared to Optuna's GPSampler, which needs torch.

Both have the same random history and then propose and learn from 20 more trials, so the mean
includes the fits that fall among them. Measured in this process, without store and network; the
contestants take turns. Allow one thread, for a second one costs more than it helps:
`OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python bench/gp_cost.py`.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable

from mixed import SPACE, drawn, optuna_space
from record import keep, table
from suggest_latency import score

from suggest.engine import Engine
from suggest.study import Algorithm, Direction, Objective, Study, StudyName, StudySpec
from suggest.trial import Trial, TrialState

HISTORIES = (50, 100, 200)
MEASURED, ROUNDS = 20, 3
MOST_OVER_OPTUNA = 1 / 3  # the claim, at 100 trials


def ours(history: int, seed: int) -> Callable[[], None]:
    """Return a function that proposes a trial and learns its outcome,
    for a study with a history.
    """
    spec = StudySpec(SPACE, (Objective("loss", Direction.MINIMIZE),), Algorithm("gp"))
    rng = random.Random(seed)
    points = [drawn(rng) for _ in range(history)]
    trials = (
        Trial(n, TrialState.SUCCEEDED, point, value=score(point)) for n, point in enumerate(points)
    )
    engine = Engine(Study(StudyName("default", "cost"), "uid", spec, seed), trials, ())

    def step() -> None:
        (new,) = engine.propose(1).trials
        engine.put(
            Trial(
                new.number, TrialState.SUCCEEDED, new.parameters, value=score(dict(new.parameters))
            )
        )

    return step


def optunas(history: int, seed: int) -> Callable[[], None]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.GPSampler(seed=seed))
    spread = optuna_space()
    rng = random.Random(seed)
    for _ in range(history):
        point = drawn(rng)
        study.add_trial(
            optuna.trial.create_trial(params=point, distributions=spread, value=score(point))
        )

    def step() -> None:
        trial = study.ask(spread)
        study.tell(trial, score(trial.params))

    return step


def cost_ms(step: Callable[[], None]) -> float:
    """Return the mean milliseconds of a step, without the first one, which has one-time imports."""
    step()
    began = time.process_time()
    for _ in range(MEASURED):
        step()
    return 1e3 * (time.process_time() - began) / MEASURED


def main() -> None:
    rows, ratio_at_100 = [], 0.0
    for history in HISTORIES:
        pairs = [
            (cost_ms(ours(history, seed)), cost_ms(optunas(history, seed)))
            for seed in range(ROUNDS)
        ]
        mine, theirs = (statistics.median(each) for each in zip(*pairs, strict=True))
        ratio_at_100 = mine / theirs if history == 100 else ratio_at_100
        rows.append([str(history), f"{mine:.1f}", f"{theirs:.0f}", f"{mine / theirs:.3f}"])
    verdict = "yes" if ratio_at_100 <= MOST_OVER_OPTUNA else "**no**"
    claim = f"Claim: at most a third at 100 trials: {ratio_at_100:.3f}, {verdict}."
    head = ["finished trials", "gp, ms", "Optuna's GPSampler, ms", "ratio"]
    keep("gp-cost", f"{table(head, rows)}\n\n{claim}")


if __name__ == "__main__":
    main()
