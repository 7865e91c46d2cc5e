"""`bohb`: points from TPE's model mixed with random points, for studies with a fidelity.

Falkner et al. 2018, "BOHB: Robust and Efficient Hyperparameter Optimization at Scale". A
third of the points is random, which bounds how much worse than Hyperband the search can be.
The others come from the model of `tpe`, fitted to the values of the largest fidelity that
has enough of them (`by_fidelity`). The kernels are those of `tpe`; the paper widens them.
The brackets are those of `hyperband`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from suggest.proposal import PointRequest, Steps, generator
from suggest.samplers.family import Family
from suggest.samplers.sampler import SteppedSampler
from suggest.samplers.tpe import OwnSettings, tpe
from suggest.samplers.uniform import draw_points
from suggest.settings import setting
from suggest.study import StudySpec
from suggest.trial import Trial
from suggest.workers import Workers


@dataclass(frozen=True, slots=True)
class BohbSettings(OwnSettings):
    candidates: int = setting(
        64, "points drawn for each trial; the most promising one is used", min=1, max=1000
    )
    good_share: float = setting(
        0.15, "share of the trials with a value that count as good ones", min=0.01, max=0.5
    )
    random_share: float = setting(
        0.33, "share of the points that are drawn at random", min=0.0, max=1.0
    )


class BohbSampler(SteppedSampler):
    def __init__(
        self, spec: StudySpec, seed: int, settings: BohbSettings, *, workers: Workers | None = None
    ) -> None:
        self._space = spec.space
        self._seed = seed
        self._random_share = settings.random_share
        self._tpe = tpe(spec, seed, settings, workers=workers)

    def put(self, trial: Trial) -> None:
        self._tpe.put(trial)

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        modeled = [one for one in wanted if not self._is_random(one)]
        points = (yield from self._tpe.steps(modeled)) if modeled else []
        for place, one in enumerate(wanted):
            if self._is_random(one):
                points[place:place] = draw_points(self._space, self._seed, [one])
        return points

    def warm_up(self) -> None:
        self._tpe.warm_up()

    def _is_random(self, one: PointRequest) -> bool:
        return generator(self._seed, one.number, "bohb").random() < self._random_share


ENTRIES = (
    Family(
        "bohb",
        "Points of TPE's model and random ones, for trials of several fidelities: BOHB.",
        BohbSettings,
        BohbSampler,
        several=False,
    ),
)
