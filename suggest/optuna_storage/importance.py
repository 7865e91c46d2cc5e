"""How much each parameter matters for getting good values:
PED-ANOVA through Optuna, with an uncertainty.

Watanabe et al. 2023 (PED-ANOVA): how much the distribution of a parameter among the best
trials differs from its distribution among all trials. The two also differ by chance,
more so with fewer trials. Therefore the difference is computed on resamples of the
trials, and on the same resamples with the values shuffled: the mean excess is the
importance, and its spread over the resamples the uncertainty.

Only the order of the trials matters. A pruned trial was worse than others at its step,
so it comes after all that succeeded: after those that were pruned at a later step, and
by its value among those of the same step.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence

from optuna.distributions import BaseDistribution
from optuna.importance import PedAnovaImportanceEvaluator
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from suggest.domain import encode
from suggest.optuna_storage import STUDY_NAME, WindowStorage, frozen_trial, quiet
from suggest.optuna_storage.distributions import distribution
from suggest.space import Space
from suggest.study import MIN_TRIALS_TO_RANK, Direction, Importance
from suggest.trial import Trial, TrialState

# The share of the trials that count as the best.
BEST_SHARE = 0.1
LEAST_BEST = 10  # trials that count as the best, at least
RESAMPLES = 20
# The most trials of a resample, and fewer with many parameters, to bound the time.
MAX_TRIALS = 1000
LEAST_DRAWN = 40  # but at least, if there are so many
MAX_CELLS = 10_000  # trials times parameters, of a resample


def importances(space: Space, trials: Iterable[Trial], *, direction: Direction) -> list[Importance]:
    """Return the parameters, most important first, then those without a value.

    Those with a single value are left out.

    A conditional parameter is judged by the trials that have it,
    and weighted by their share of all trials.
    """
    ranked = [t for t in trials if t.value is not None and math.isfinite(t.value)]
    ranks = _ranks(ranked, direction)
    names = [p.name for p in space.parameters if p.domain.count != 1]
    frozen = _frozen(space, names, ranked, ranks)
    having: Counter[str] = Counter()
    for trial in frozen:
        having.update(trial.params.keys())
    estimated: dict[str, tuple[float, float]] = {}
    if len(set(ranks)) > 1:
        common = [name for name in names if having[name] >= MIN_TRIALS_TO_RANK]
        estimated = _estimate(frozen, [name for name in common if _varies(frozen, name)])
    answers = [Importance(name, having[name], *estimated.get(name, (None, None))) for name in names]
    known = [answer for answer in answers if answer.value is not None]
    known.sort(key=lambda answer: answer.value or 0.0, reverse=True)
    return known + [answer for answer in answers if answer.value is None]


def _varies(trials: Sequence[FrozenTrial], name: str) -> bool:
    return len({trial.params[name] for trial in trials if name in trial.params}) > 1


def _ranks(trials: Sequence[Trial], direction: Direction) -> list[int]:
    """Return the rank of each trial, from 0 for the best on. Equal trials have the same."""
    keys = [_key(trial, direction) for trial in trials]
    ranks = {key: rank for rank, key in enumerate(sorted(set(keys)))}
    return [ranks[key] for key in keys]


def _key(trial: Trial, direction: Direction) -> tuple[float, float]:
    assert trial.value is not None
    early = 1 - (trial.step or 0) if trial.state is TrialState.PRUNED else -math.inf
    return early, direction.sign * trial.value


def _frozen(
    space: Space, names: Sequence[str], trials: Sequence[Trial], ranks: Sequence[int]
) -> list[FrozenTrial]:
    """Return the trials as Optuna sees them, with their ranks as values.

    They lack values outside of the space, which imported trials may have.
    """
    domains = {name: space.by_name[name].domain for name in names}
    distributions: dict[str, BaseDistribution] = {
        name: distribution(domain) for name, domain in domains.items()
    }
    frozen = []
    for number, (trial, rank) in enumerate(zip(trials, ranks, strict=True)):
        params = {
            name: encoded
            for name, value in trial.parameters.items()
            if name in domains and (encoded := encode(domains[name], value)) is not None
        }
        own = {name: distributions[name] for name in params}
        frozen.append(frozen_trial(number, OptunaState.COMPLETE, params, own, value=float(rank)))
    return frozen


def _estimate(
    trials: Sequence[FrozenTrial], names: Sequence[str]
) -> dict[str, tuple[float, float]]:
    """Return the value and the spread of each parameter. The same trials give the same result."""
    if not names:
        return {}
    rng = random.Random(0)
    size = min(len(trials), MAX_TRIALS, max(LEAST_DRAWN, MAX_CELLS // len(names)))
    gains: dict[str, list[float]] = {name: [] for name in names}
    chances: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(RESAMPLES):
        drawn = rng.choices(range(len(trials)), k=size)
        values = [trial.value for trial in trials]
        rng.shuffle(values)
        shuffled = {
            k: frozen_trial(
                k, OptunaState.COMPLETE, trials[k].params, trials[k].distributions, value=values[k]
            )
            for k in set(drawn)
        }
        real = _divergences([trials[k] for k in drawn], names)
        chance = _divergences([shuffled[k] for k in drawn], names)
        for name in names:
            gains[name].append(real[name])
            chances[name].append(chance[name])
    return _shares(gains, chances)


def _divergences(trials: Sequence[FrozenTrial], names: Sequence[str]) -> dict[str, float]:
    candidates = [name for name in names if any(name in trial.params for trial in trials)]
    share = min(0.5, max(BEST_SHARE, LEAST_BEST / len(trials)))
    study = OptunaStudy(STUDY_NAME, WindowStorage([StudyDirection.MINIMIZE], trials))
    with quiet():
        evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
        divergences = evaluator.evaluate(study, candidates)
    return {name: divergences.get(name, 0.0) for name in names}


def _shares(
    gains: dict[str, list[float]], chances: dict[str, list[float]]
) -> dict[str, tuple[float, float]]:
    """Return each parameter's share beyond chance: mean and standard deviation of the resamples."""
    by_chance = {name: statistics.fmean(values) for name, values in chances.items()}
    shares: dict[str, list[float]] = {name: [] for name in gains}
    for k in range(RESAMPLES):
        beyond = {name: max(0.0, values[k] - by_chance[name]) for name, values in gains.items()}
        total = sum(beyond.values())
        for name, gain in beyond.items():
            shares[name].append(gain / total if total else 0.0)
    return {
        name: (statistics.fmean(values), statistics.stdev(values))
        for name, values in shares.items()
    }
