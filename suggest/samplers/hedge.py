"""A hedge: most points come from the Gaussian process, and every fourth one from TPE, which fails
on other problems.

TPE's share grows where the process is expensive or uninformed: in long studies, and with many
trials in parallel. In a long study of floats alone, CMA-ES proposes three of four points, since it
still improves where the others no longer do. The trial's number and the settings decide which
algorithm proposes, so a rebuilt engine decides in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence

from suggest.proposal import PointRequest, Steps
from suggest.samplers.cmaes import CmaEsSettings, cmaes
from suggest.samplers.gp import GpSampler, GpSettings
from suggest.samplers.sampler import Sampler, SteppedSampler
from suggest.samplers.tpe import OwnSettings, tpe
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState
from suggest.workers import Workers

CYCLE = 4  # turns, at least one of which is TPE's
# Trials, from which gp has two of four turns, and one; beside CMA-ES one.
LONG, VERY_LONG = 300, 1000
# Trials in parallel, above which gp has two of four turns, and one.
SEVERAL, MANY = 8, 32


class HedgeSampler(SteppedSampler):
    """late_cmaes: CMA-ES replaces TPE from trial LONG on.

    The space then has floats alone, without conditions.

    first: proposes until both learn; None for random search.
    """

    def __init__(
        self,
        spec: StudySpec,
        seed: int,
        process: GpSettings,
        estimator: OwnSettings,
        *,
        parallelism: int,
        late_cmaes: bool,
        first: Sampler | None,
        workers: Workers | None,
    ) -> None:
        self._parallelism = parallelism
        self._gp = GpSampler(spec, seed, process, workers=workers, first=first)
        self._tpe = tpe(spec, seed, estimator, workers=workers, first=first)
        late = CmaEsSettings(warm_start=LONG)
        self._cmaes = cmaes(spec, seed, late, workers=workers) if late_cmaes else None

    def put(self, trial: Trial) -> None:
        self._gp.put(trial)
        self._tpe.put(trial)
        # A generation of CMA-ES consists of its own trials.
        if self._cmaes is not None and (
            trial.number < LONG or self._member(trial.number) is self._cmaes
        ):
            self._cmaes.put(trial)

    def _member(self, number: int) -> Sampler:
        """Return the sampler whose turn this trial is."""
        if gp_has_turn(number, self._parallelism, late_cmaes=self._cmaes is not None):
            return self._gp
        return self._tpe if self._cmaes is None or number < LONG else self._cmaes

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        """Let the process propose last: it avoids running trials.

        The points of the others vary by themselves.
        """
        points: dict[tuple[int, int], Assignment] = {}
        for member in (self._tpe, self._cmaes):
            theirs = [one for one in wanted if self._member(one.number) is member]
            if member is not None and theirs:
                found = yield from member.steps(theirs)
                points |= {one.key: point for one, point in zip(theirs, found, strict=True)}
        ours = [one for one in wanted if self._member(one.number) is self._gp]
        if ours:
            others = (one for one in wanted if one.key in points)
            beside = [Trial(one.number, TrialState.RUNNING, points[one.key]) for one in others]
            found = yield from self._gp.steps(ours, beside=beside)
            points |= {one.key: point for one, point in zip(ours, found, strict=True)}
        return [points[one.key] for one in wanted]

    def warm_up(self) -> None:
        self._tpe.warm_up()
        self._gp.warm_up()


def gp_has_turn(number: int, parallelism: int, *, late_cmaes: bool = False) -> bool:
    """Return whether the process, rather than another sampler, proposes a trial."""
    turns = 3
    if number >= LONG:
        turns = 2 if number < VERY_LONG and not late_cmaes else 1
    if parallelism > MANY:
        turns = 1
    elif parallelism > SEVERAL:
        turns = min(turns, 2)
    return number % CYCLE < turns
