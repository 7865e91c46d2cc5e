"""The model behind `gp`: Gaussian processes fitted to a window of trials.

There is a process for each objective, for each constraint, and for whether a trial fails or is
infeasible. `gp_acquisition` combines their predictions, and `gp_search` finds the most promising
point. It imports NumPy and neither Optuna nor SciPy.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from suggest import deadline
from suggest.estimate import LEAST_TRIALS, Estimate
from suggest.proposal import PointRequest
from suggest.samplers import gp_process
from suggest.samplers.belief import FirstValues
from suggest.samplers.gp import GpSettings, fitted_below, teaches
from suggest.samplers.gp_acquisition import (
    CENTERS,
    Acquisition,
    ExpectedHypervolumeImprovement,
    ExpectedImprovement,
    Feasibility,
    Improvement,
)
from suggest.samplers.gp_belief import Beliefs
from suggest.samplers.gp_earlier import EarlierStudies, InformedPosterior, first_guess
from suggest.samplers.gp_estimate import estimate
from suggest.samplers.gp_process import Hyperparameters, Posterior
from suggest.samplers.gp_search import CandidateSearch
from suggest.samplers.gp_space import Features, Places
from suggest.samplers.gp_warp import balanced, plateau, scaled, standardized, warped
from suggest.samplers.history import BARRED_STATES
from suggest.samplers.normal import Flags, Floats, Indexes
from suggest.samplers.running import LIARS
from suggest.samplers.uniform import draw_points
from suggest.space import Assignment
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

# Beside running trials, a point must promise this improvement, in standard deviations of the warped
# losses.
LEAST_GAIN = 0.003
# Noise up to this, in the same unit, may be detail of the losses near a trial.
DETAIL = 0.03
# From this many trials on, a process knows the surroundings of the best one.
ENOUGH = 50
# From this many results on, our own beliefs would keep the search from coming closer:
# docs/adr/0016.
INFORMED = 30
LEAST = 3  # the fewest trials to fit parameters to
# The first trials, which begin at points of earlier studies.
STARTS = 5
# From this many trials on, a process ignores the earlier studies: docs/adr/0033.
FORGOTTEN = 15
# The value of a trial without a result in the process of failures. The value of others is 0.
BARRED = 2.0
# The value in that process at which a failure counts as likely as a result. It is not the middle,
# because the best point often lies where the feasible region ends.
DOUBTFUL = 0.5


class GpModel:
    """as_log: see `Places`."""

    def __init__(
        self,
        spec: StudySpec,
        seed: int,
        settings: GpSettings,
        *,
        as_log: Collection[str] = (),
    ) -> None:
        self._spec = spec
        self._criteria = spec.criteria
        self._seed = seed
        self._first_values = FirstValues(spec.prior, spec.space, seed)
        self._places = Places(spec.space, as_log=as_log)
        self._rows: dict[int, Floats] = {}
        self._fits: dict[tuple[str, tuple[int, ...]], Hyperparameters] = {}
        self._earlier: EarlierStudies | None = None

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        if not self._places.size:
            return draw_points(self._spec.space, self._seed, wanted)
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            finished, pending = list(learned), list(running)
            if self._spec.learn_from and self._begins(finished, pending):
                return self._started(finished, pending, wanted)
            below = fitted_below(finished[-1].number, [t.number for t in pending])
            search = self._search(finished, below, pending[-LIARS:])
            points: list[Assignment] = []
            for index, one in enumerate(wanted):
                if index:
                    deadline.check()
                # Begin again now and then, so that the cost of a large batch is not quadratic.
                if index and index % LIARS == 0:
                    search = self._search(finished, below, pending[-LIARS:])
                source = one.source(self._seed, "gp")
                rng = np.random.Generator(np.random.PCG64(source.getrandbits(128)))
                row = search.best(one.fixed, rng)
                points.append(self._places.decoded(row, one.fixed))
                pending.append(Trial(one.number, TrialState.RUNNING, points[-1]))
                search.add_pending(row)
            return points

    def density(self, learned: list[Trial]) -> float:
        """Return the log density of the only objective's process, as `Hyperparameters` has it.

        It compares models of the same trials.
        """
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            history = self._history(learned)
            taught, _ = self._taught(history)
            return self._of_the_objective(history, taught).log_density

    def _begins(self, finished: Sequence[Trial], pending: Sequence[Trial]) -> bool:
        """Return whether the next points are those of earlier studies."""
        if self._earlier is None:
            sign = self._criteria.objectives[0].direction.sign
            self._earlier = EarlierStudies(
                self._spec.learn_from, sign, self._spec.space, self._places
            )
        taught = sum(teaches(trial, self._criteria) for trial in finished)
        return taught < LEAST or len(finished) + len(pending) < STARTS

    def _started(
        self,
        finished: Sequence[Trial],
        pending: Sequence[Trial],
        wanted: Sequence[PointRequest],
    ) -> list[Assignment]:
        """Return the first points of earlier studies that no trial has, then drawn ones."""
        assert self._earlier is not None
        known = self._places.encoded([trial.parameters for trial in (*finished, *pending)])
        points = []
        for one in wanted:
            source = one.source(self._seed, "gp")
            rng = np.random.Generator(np.random.PCG64(source.getrandbits(128)))
            row = self._earlier.start(known)
            # If this point was proposed before and was a duplicate, draw another one.
            if row is None or one.again:
                row = np.full(self._places.size, np.nan)
            decided = self._places.encoded([one.fixed])[0]
            row = np.where(np.isnan(decided), row, decided)
            believed = self._places.encoded([self._first_values.of(one)])[0]
            row = np.where(np.isnan(row), believed, row)
            quantiles = rng.random((1, self._places.size))
            row = self._places.completed(row[None], quantiles)[0]
            points.append(self._places.decoded(row, one.fixed))
            known = np.concatenate([known, row[None]])
        return points

    def estimate(self, learned: Iterable[Trial]) -> Estimate | None:
        """See `EstimatingModel.estimate`. The study has one objective."""
        finished = list(learned)
        if not self._places.size or len(finished) < LEAST_TRIALS:
            return None
        with np.errstate(divide="ignore", over="ignore", under="ignore", invalid="ignore"):
            history = self._history(finished)
            taught, barred = self._taught(history)
            if np.count_nonzero(taught) < LEAST_TRIALS:
                return None
            process = self._warped(history, taught, self._failures(history, taught, barred)[1])
            trials = [trial for trial, there in zip(finished, taught, strict=True) if there]
            succeeded = [trial.state is TrialState.SUCCEEDED for trial in trials]
            return estimate(
                process,
                self._places,
                numbers=history.numbers[taught],
                rows=history.rows[taught],
                succeeded=np.array(succeeded, dtype=np.bool_),
                losses=self._losses(finished, taught, 0),
                sign=self._criteria.objectives[0].direction.sign,
                rng=np.random.Generator(np.random.PCG64([self._seed, len(trials)])),
            )

    def _history(self, learned: list[Trial]) -> _History:
        """Return a history without running trials."""
        rows = self._encoded(learned)
        below = fitted_below(learned[-1].number, ())
        return _History(learned, rows, below, Features(self._places, rows))

    def _search(self, learned: list[Trial], below: int, running: list[Trial]) -> CandidateSearch:
        """Return a search for the next point. below: as in `_History`."""
        rows = self._encoded(learned)
        pending = self._places.encoded([t.parameters for t in running])
        features = Features(self._places, np.concatenate([rows, pending]))
        history = _History(learned, rows, below, features)
        search = CandidateSearch(self._places, self._acquisition(history), rows)
        for row in pending:
            search.add_pending(row)
        return search

    def _encoded(self, trials: list[Trial]) -> Floats:
        new = [trial for trial in trials if trial.number not in self._rows]
        rows = self._places.encoded([trial.parameters for trial in new])
        self._rows |= {trial.number: row for trial, row in zip(new, rows, strict=True)}
        self._rows = {trial.number: self._rows[trial.number] for trial in trials}
        return np.array(list(self._rows.values()))

    def _acquisition(self, history: _History) -> Acquisition:
        criteria = self._criteria
        taught, barred = self._taught(history)
        chances, hopeless = self._failures(history, taught, barred)
        bounds: list[Feasibility] = []
        for index in range(len(criteria.constraints)):
            bounds += self._constraint(history, index)
        chances.extend(bounds)
        violations = np.array([criteria.violation(t) for t in history.trials])[taught]
        known, kept = history.rows[taught], violations == 0
        if not kept.any():
            # There is nothing to improve on.
            if bounds:
                least = known[np.argsort(violations, kind="stable")[:CENTERS]]
                return Acquisition(None, chances, least, self._beliefs(least, len(known)))
            # No constraint was measured.
            kept[:] = True
        improvement: Improvement
        if len(criteria.objectives) == 1:
            # Parameters with few values have no points between them, and so no detail.
            detailed = len(known) >= ENOUGH and self._places.smooth.all()
            gain, detail = LEAST_GAIN, DETAIL if detailed else 0.0
            if bounds:
                # At the border of the feasible region, only points that break the constraints
                # would promise this gain.
                gain = detail = 0.0
            process = self._warped(history, taught, hopeless)
            improvement = ExpectedImprovement(process, known, kept, gain=gain, detail=detail)
        else:
            members = [
                self._linear(history, taught, hopeless, index)
                for index in range(len(criteria.objectives))
            ]
            improvement = ExpectedHypervolumeImprovement(members, known, kept)
        beliefs = self._beliefs(improvement.centers(), len(known))
        return Acquisition(improvement, chances, known, beliefs)

    def _beliefs(self, best: Floats, results: int) -> Beliefs | None:
        """Return a person's beliefs, or our own while little else is known."""
        spec = self._spec
        # Our own beliefs were not measured with several objectives, constraints or earlier studies.
        informed = results >= INFORMED or spec.learn_from or not self._criteria.is_plain
        if informed and not spec.prior:
            return None
        return Beliefs(spec.prior, self._places, best, results)

    def _warped(self, history: _History, taught: Flags, hopeless: Floats) -> Posterior:
        """Return the process of the only objective. hopeless: see `_believed`."""
        found = self._of_the_objective(history, taught)
        losses = scaled(self._losses(history.trials, taught, 0))
        y, *_ = warped(losses, found.log_delta)
        return self._believed(history, taught, hopeless, found, y)

    def _of_the_objective(self, history: _History, taught: Flags) -> Hyperparameters:
        """Return the parameters of the process of the only objective."""
        first = history.deciding(taught)
        # The losses that parameters are fitted to must not depend on later trials, because a fit is
        # kept as long as its own trials are the same.
        early = scaled(self._losses(history.trials, first, 0))
        return self._fit("objective", history, first, early, warp=True)

    def _linear(self, history: _History, taught: Flags, hopeless: Floats, index: int) -> Posterior:
        """Return the process of one of several objectives.

        Its losses are not warped, which would distort volumes.
        """
        first = history.deciding(taught)
        early, _ = standardized(scaled(self._losses(history.trials, first, index)))
        found = self._fit(f"objective {index}", history, first, early)
        y, _ = standardized(scaled(self._losses(history.trials, taught, index)))
        return self._believed(history, taught, hopeless, found, y)

    def _believed(
        self, history: _History, taught: Flags, hopeless: Floats, found: Hyperparameters, y: Floats
    ) -> Posterior:
        """Return a process of these values.

        hopeless: rows without a value, where failure was likely. They count as no better than the
            median.
        """
        rows = history.rows[taught]
        earlier = self._remembered(history, taught)
        process = (
            Posterior(found, history.features, rows, y)
            if earlier is None
            else InformedPosterior(found, history.features, rows, y, earlier)
        )
        middle = float(np.median(y))
        for row, mean in zip(hopeless, process.means(hopeless), strict=True):
            process.append(row, max(float(mean), middle))
        return process

    def _remembered(self, history: _History, taught: Flags) -> EarlierStudies | None:
        """Return the earlier studies while the trials that decide the parameters are few."""
        few = np.count_nonzero(history.deciding(taught)) < FORGOTTEN
        return self._earlier if few else None

    def _taught(self, history: _History) -> tuple[Flags, Flags]:
        """Return the trials that have a value, and those that failed or were infeasible.

        Trials at a plateau of the worst losses count as failed. Otherwise the process of the values
        would take the edge of the plateau for roughness everywhere.
        """
        states = [trial.state for trial in history.trials]
        taught = np.array([teaches(t, self._criteria) for t in history.trials], dtype=np.bool_)
        barred = np.array([state in BARRED_STATES for state in states], dtype=np.bool_)
        # Without pruned trials, which have the loss of an early step.
        ended = taught & np.array([state is TrialState.SUCCEEDED for state in states])
        if self._criteria.is_plain and ended.any():
            losses = np.full(len(ended), -np.inf)
            losses[ended] = self._losses(history.trials, ended, 0)
            # Only by trials that decide parameters: later ones must not change which of them count.
            flat = losses >= plateau(losses[history.deciding(ended)])
            taught, barred = taught & ~flat, barred | flat
        return taught, barred

    def _failures(
        self, history: _History, taught: Flags, barred: Flags
    ) -> tuple[list[Feasibility], Floats]:
        """Return the probability of a value, and the rows of failures that were likely."""
        if not barred.any():
            return [], history.rows[:0]
        labels = np.where(barred, BARRED, 0.0)
        first = history.deciding(np.ones(len(taught), dtype=np.bool_))
        found = self._fit("failures", history, first, labels[first])
        process = Posterior(found, history.features, history.rows, labels)
        rows = history.rows[barred]
        return [Feasibility(process, DOUBTFUL)], rows[process.means(rows) > 0.5 * BARRED]

    def _constraint(self, history: _History, index: int) -> list[Feasibility]:
        """Return the probability of keeping one constraint; nothing if it was never measured."""
        bound = self._criteria.constraints[index]
        values = [
            t.constraint_values[index] if t.constraint_values else np.nan for t in history.trials
        ]
        margins = np.array([bound.margin(value) for value in values])
        told: Flags = np.isfinite(margins)
        if not told.any():
            return []
        first = history.deciding(told)
        found = self._fit(f"constraint {index}", history, first, balanced(margins[first]))
        process = Posterior(found, history.features, history.rows[told], balanced(margins[told]))
        return [Feasibility(process, 0.0)]

    def _losses(self, learned: Sequence[Trial], which: Flags, index: int) -> Floats:
        """Return the losses of one objective.

        A pruned trial counts as no better than the median of succeeded ones.
        """
        sign = self._criteria.objectives[index].direction.sign
        trials = [trial for trial, there in zip(learned, which, strict=True) if there]
        losses = np.array([sign * t.values[index] for t in trials])
        pruned = np.array([t.state is TrialState.PRUNED for t in trials], dtype=np.bool_)
        if pruned.any() and not pruned.all():
            losses[pruned] = np.maximum(losses[pruned], np.median(losses[~pruned]))
        return losses

    def _fit(
        self, what: str, history: _History, which: Flags, y: Floats, *, warp: bool = False
    ) -> Hyperparameters:
        """Return fitted parameters, kept as long as the trials that decide them are the same."""
        key = (what, tuple(history.numbers[which].tolist()))
        found = self._fits.get(key)
        if found is None:
            rows = history.rows[which]
            earlier = self._remembered(history, which) if warp else None
            expected = 0.0 if earlier is None else first_guess(earlier, rows, warped(y, 0.0)[0])
            features = Features(self._places, rows)
            found = gp_process.fit(features, rows, y, warp=warp, expected=expected)
            self._fits = {k: f for k, f in self._fits.items() if k[0] != what}
            self._fits[key] = found
        return found


class _History:
    """The trials that the model is shown. below: the first trial that decides no parameters."""

    def __init__(
        self, trials: Sequence[Trial], rows: Floats, below: int, features: Features
    ) -> None:
        self.trials = trials
        self.rows = rows
        self.features = features
        self.numbers: Indexes = np.array([t.number for t in trials], dtype=np.intp)
        self._early = self.numbers < below

    def deciding(self, which: Flags) -> Flags:
        """Return which of these trials decide the parameters.

        All of them do if there are too few early ones.
        """
        found: Flags = which & self._early
        return found if np.count_nonzero(found) >= LEAST else which
