"""Epochs and regret of trials that run in steps, on the learning curves
of `pruning.py`, four trials at a time.

Nothing is tuned: `spec.fidelity` from 1 epoch to all, eta 3 and 4, with ASHA's promotion and with
Hyperband's brackets. A promoted trial continues from its checkpoint, or starts over without one.
The figures are of the half of the curves on which `pruning.py` reports. Run it manually:
`bench/fidelity.py`; `--keep` writes docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from dataclasses import replace

import record
from pruning import ORDERS, SIZES, WORKERS, Problem, problems

from suggest.engine import Engine
from suggest.space import Int, Parameter, Space
from suggest.study import Algorithm, Fidelity, Objective, Pruning, Study, StudyName, StudySpec
from suggest.trial import RungResult, Trial, TrialState

RULES = [(rule, eta) for rule in ("asha", "hyperband") for eta in (3, 4)]


def search(
    problem: Problem, rule: str, eta: int, seed: int, trials: int
) -> tuple[float, float, float]:
    """Return the epochs with checkpoints and without, as fractions of whole runs,
    and the regret of the best trial.
    """
    draw = random.Random(seed)
    order = draw.sample(range(len(problem.curves)), trials)
    last = problem.curves.shape[1]
    spec = StudySpec(
        Space((Parameter("x", Int(0, 9)),)),
        (Objective("metric", problem.direction),),
        Algorithm("random", seed),
        Pruning(rule),
        fidelity=Fidelity("epochs", 1, last, eta),
    )
    engine = Engine(Study(StudyName("bench", "bench"), "bench", spec, seed), (), ())
    running: list[Trial] = []
    epochs, from_start, sign = 0.0, 0.0, problem.direction.sign
    while True:
        while len(running) < WORKERS:
            more = engine.next_number < trials
            proposal = engine.propose(1) if more else engine.propose_paused(1)
            if not proposal.trials:
                break
            (one,) = proposal.trials
            there = engine.open_trial(one.number) or Trial(
                one.number, TrialState.RUNNING, one.parameters
            )
            trial = replace(there, state=TrialState.RUNNING, fidelity=one.fidelity, value=None)
            engine.put(trial)
            running.append(trial)
        if not running:
            break
        trial = running.pop(draw.randrange(len(running)))
        assert trial.fidelity is not None
        value = float(problem.curves[order[trial.number], int(trial.fidelity) - 1])
        epochs += trial.fidelity - (trial.rungs[-1].fidelity if trial.rungs else 0)
        from_start += trial.fidelity
        ended = replace(trial, state=TrialState.SUCCEEDED, value=value)
        if engine.pauses(trial):
            ended = replace(
                ended,
                state=TrialState.PAUSED,
                rungs=(*trial.rungs, RungResult(trial.fidelity, value)),
            )
        engine.put(ended)
    finals = sorted(sign * problem.curves[order, -1])
    whole = [
        sign * t.value
        for t in engine.trials()
        if t.state is TrialState.SUCCEEDED and t.value is not None
    ]
    regret = (min(whole) - finals[0]) / (finals[len(finals) // 2] - finals[0])
    return epochs / (trials * last), from_start / (trials * last), regret


def row(rule: str, eta: int, halves: Sequence[Problem], trials: int) -> list[str]:
    means = [
        _mean([search(half, rule, eta, seed, trials) for seed in range(ORDERS)]) for half in halves
    ]
    shown = [
        f"{kept:.0%} ({over:.0%}), {regret:.3f}" for kept, over, regret in (*means, _mean(means))
    ]
    return [f"`{rule}`", str(eta), *shown]


def _mean(runs: Sequence[tuple[float, float, float]]) -> tuple[float, float, float]:
    kept, over, regret = (statistics.fmean(column) for column in zip(*runs, strict=True))
    return kept, over, regret


def main() -> None:
    parser = argparse.ArgumentParser(
        description="What trials in steps cost and find, on replayed learning curves."
    )
    parser.add_argument("--keep", action="store_true", help="write docs/benchmarks.md")
    options = parser.parse_args()
    halves = [each.half(1) for each in problems()]
    header = ["rule", "eta", *(each.name for each in halves), "mean"]
    tables = [
        f"{trials} trials:\n\n"
        + record.table(header, [row(rule, eta, halves, trials) for rule, eta in RULES])
        for trials in SIZES
    ]
    text = "\n\n".join(tables)
    record.keep("fidelity", text, quick=not options.keep)


if __name__ == "__main__":
    main()
