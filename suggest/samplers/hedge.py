"""A hedge: most points come from the Gaussian process, and every fourth one from TPE, which fails on other problems.

TPE's share grows where the process is expensive or uninformed: in long studies, and with many trials in parallel. The
trial's number and the settings decide which algorithm proposes, so a rebuilt engine decides in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from suggest.samplers.gp import GpSampler, GpSettings
from suggest.samplers.sampler import PointRequest, Steps, completed
from suggest.samplers.tpe import OwnSettings, tpe
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import Workers

TURNS = 4  # of which one at least is TPE's
LONG, VERY_LONG = 300, 1000  # trials, from which the process has two of four turns, and one
SEVERAL, MANY = 8, 32  # trials in parallel, above which it is the same


class HedgeSampler:
    def __init__(
        self,
        spec: StudySpec,
        seed: int,
        process: GpSettings,
        estimator: OwnSettings,
        *,
        parallelism: int,
        workers: Workers | None = None,
    ) -> None:
        self._parallelism = parallelism
        self._gp = GpSampler(spec, seed, process, workers=workers)
        self._tpe = tpe(spec, seed, estimator, workers=workers)

    def put(self, trial: Trial) -> None:
        self._gp.put(trial)
        self._tpe.put(trial)

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return completed(self.steps(wanted))

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        """Propose TPE's points first. They vary by themselves, and the process then avoids all running trials."""
        turns = [gp_has_turn(one.number, self._parallelism) for one in wanted]
        theirs = [one for one, is_gp in zip(wanted, turns, strict=True) if not is_gp]
        ours = [one for one, is_gp in zip(wanted, turns, strict=True) if is_gp]
        found = (yield from self._tpe.steps(theirs)) if theirs else []
        points = dict(zip(map(_key, theirs), found, strict=True))
        beside = [Trial(one.number, TrialState.RUNNING, points[_key(one)]) for one in theirs]
        found = (yield from self._gp.steps(ours, beside=beside)) if ours else []
        points.update(zip(map(_key, ours), found, strict=True))
        return [points[_key(one)] for one in wanted]

    def warm_up(self) -> None:
        self._tpe.warm_up()
        self._gp.warm_up()


def gp_has_turn(number: int, parallelism: int) -> bool:
    by_length = 3 if number < LONG else 2 if number < VERY_LONG else 1
    by_width = 3 if parallelism <= SEVERAL else 2 if parallelism <= MANY else 1
    return number % TURNS < min(by_length, by_width)


def _key(one: PointRequest) -> tuple[int, int]:
    return one.number, one.again
