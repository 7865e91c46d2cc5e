"""The models behind `optuna:NAME`: Optuna's own samplers, unchanged,
called through their public methods.

Each proposal creates a sampler with a seed from (study seed, trial number), and shows it the study
through a read-only storage. The state that Optuna's samplers keep in attributes of trials and of
the study is derived from the trials:

* `gp`, `random` and `bruteforce` keep no state.
* `tpe` keeps none either. It is called group by group, over a window of trials.
* `qmc` counts its points: trial n gets the n-th.
* `nsgaii`, `nsgaiii` and `cmaes` have generations: those of `generations`, over succeeded trials.
  If trials run one after the other, they are the same as Optuna's. With parallel trials Optuna also
  considers which trials had finished when a trial began, which trials do not record. The sampler
  itself computes the memory: the parents, or the pickled optimizer.

Samplers with a model propose the parameters that are always active, and the others are drawn as
`random` draws them, as in Optuna. Optuna sees numbers only: stepped values and choices are encoded
as their index, because 1 and True are the same choice in Optuna. This module imports Optuna, and
only worker processes import it.
"""

from __future__ import annotations

import copy
import logging
import math
from abc import ABC, abstractmethod
from bisect import insort
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from types import MappingProxyType
from typing import Any, Generic, TypeAlias, TypeVar

from optuna.distributions import BaseDistribution
from optuna.samplers import (
    BaseGASampler,
    BaseSampler,
    BruteForceSampler,
    CmaEsSampler,
    GPSampler,
    GridSampler,
    NSGAIIISampler,
    NSGAIISampler,
    QMCSampler,
    RandomSampler,
    TPESampler,
)
from optuna.study import Study as OptunaStudy
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial
from optuna.trial import TrialState as OptunaState

from suggest import deadline
from suggest.axis import axis_of
from suggest.domain import decode, encode
from suggest.optuna_storage import STUDY_NAME, OverlayStorage, WindowStorage, frozen_trial, quiet
from suggest.optuna_storage.distributions import distribution
from suggest.proposal import PointRequest, generator
from suggest.samplers.generations import Generations
from suggest.samplers.optuna_family import (
    OptunaCmaEsSettings,
    OptunaGeneticSettings,
    OptunaGpSettings,
    OptunaQmcSettings,
)
from suggest.samplers.running import LIARS
from suggest.samplers.tpe import TpeSettings, decided, groups
from suggest.samplers.uniform import draw
from suggest.settings import NoSettings
from suggest.space import Assignment, Choice, Value
from suggest.study import StudySpec
from suggest.trial import Trial, TrialState

logging.getLogger("optuna").setLevel(logging.ERROR)  # the service reports problems itself

# The JSON values that Optuna's samplers store with trials.
Attributes: TypeAlias = dict[str, Any]
Trials: TypeAlias = Sequence[FrozenTrial]
Numbers: TypeAlias = Mapping[str, float | int]  # by parameter, as Optuna sees values
S = TypeVar("S")

_STATES = {
    TrialState.SUCCEEDED: OptunaState.COMPLETE,
    TrialState.PRUNED: OptunaState.PRUNED,
    TrialState.RUNNING: OptunaState.RUNNING,
    TrialState.FAILED: OptunaState.FAIL,
    TrialState.INFEASIBLE: OptunaState.FAIL,
}

NO_VALUES: Assignment = MappingProxyType({})
_HUGE = 1e150  # the squares of larger numbers overflow soon
_CONSTRAINTS = "constraints"  # Optuna's own attribute of a trial

# Returns the sampler's value for a parameter, given the earlier values;
# None if it does not propose this parameter.
Ask = Callable[[str, BaseDistribution, Assignment], float | int | None]


class OptunaModel(ABC, Generic[S]):
    """The common part: each finished trial is converted once.

    Each proposal knows the earlier ones of its batch.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: S) -> None:
        self._space = spec.space
        self._seed = seed
        self._settings = settings
        self._purpose = spec.algorithm.name
        self._criteria = spec.criteria
        self._directions = [StudyDirection[o.direction.name] for o in spec.objectives]
        self._constraints = _excesses if spec.constraints else None
        self._distributions = {
            p.name: distribution(p.domain) for p in spec.space.parameters if p.domain.count != 1
        }
        self._frozen: dict[int, FrozenTrial] = {}  # finished trials, each built once

    def propose(
        self, learned: Iterable[Trial], running: Iterable[Trial], wanted: Sequence[PointRequest]
    ) -> list[Assignment]:
        known = self._frozen
        self._frozen = {t.number: known.get(t.number) or self._freeze(t) for t in learned}
        pending = [self._freeze(t) for t in running]
        points: list[Assignment] = []
        for one in wanted:
            deadline.check()
            with quiet():
                point = self._point(list(self._frozen.values()), pending, one)
            if point is None:
                break
            points.append(point)
            insort(pending, self._running(one.number, point), key=lambda t: t.number)
        return points

    @abstractmethod
    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        """Return a point; None if the space is exhausted.

        `pending` are running trials and earlier proposals.
        """

    def _random_seed(self, wanted: PointRequest) -> int:
        return wanted.source(self._seed, self._purpose).getrandbits(32)

    def _walk(self, wanted: PointRequest, ask: Ask) -> Assignment:
        """Return a point, asking parameter by parameter.

        Parameters without an answer are drawn at random.
        """
        rng = wanted.source(self._seed, "random")
        values: dict[str, Value] = {}
        for parameter in self._space.ordered:
            if not parameter.active(values):
                continue
            name, domain = parameter.name, parameter.domain
            if name in wanted.fixed:
                values[name] = wanted.fixed[name]
            elif name not in self._distributions:
                values[name] = domain.at(0)
            else:
                number = ask(name, self._distributions[name], values)
                finite = number is not None and math.isfinite(number)
                values[name] = (
                    decode(domain, number) if number is not None and finite else draw(domain, rng)
                )
        return self._space.in_order(values)

    def _study(self, sampler: BaseSampler, trials: Trials, attributes: Attributes) -> OptunaStudy:
        ordered = sorted(trials, key=lambda t: t.number)
        return OptunaStudy(
            STUDY_NAME, OverlayStorage(self._directions, ordered, attributes), sampler=sampler
        )

    def _running(self, number: int, point: Assignment = NO_VALUES) -> FrozenTrial:
        return self._freeze(Trial(number, TrialState.RUNNING, point))

    def _freeze(self, trial: Trial) -> FrozenTrial:
        params: dict[str, float | int] = {}
        # An exhaustive search depends on this order.
        for parameter in self._space.ordered:
            name = parameter.name
            if name in trial.parameters and name in self._distributions:
                number = encode(parameter.domain, trial.parameters[name])
                if number is not None:
                    params[name] = number
        state, value = _STATES[trial.state], trial.value
        several = len(self._criteria.objectives) > 1
        # With several objectives, Optuna does not accept pruned trials.
        is_complete = state is OptunaState.COMPLETE
        if (is_complete and self._criteria.losses(trial) is None) or (
            several and state is OptunaState.PRUNED
        ):
            state, value, is_complete = OptunaState.FAIL, None, False
        reported = {} if value is None or trial.step is None else {trial.step: value}
        return frozen_trial(
            trial.number,
            state,
            params,
            {name: self._distributions[name] for name in params},
            value=None if several else value,
            values=trial.values if several and is_complete else None,
            system_attrs=self._attributes(trial),
            reported=reported,
        )

    def _attributes(self, trial: Trial) -> Attributes:
        """Return Optuna's attribute for the constraints.

        It has a number for each bound, above 0 if the trial breaks it.
        """
        constraints, values = self._criteria.constraints, trial.constraint_values
        if not constraints or len(values) != len(constraints):
            return {}
        excesses: list[float] = []
        for constraint, value in zip(constraints, values, strict=True):
            if constraint.min is not None:
                excesses.append(constraint.min - value)
            if constraint.max is not None:
                excesses.append(value - constraint.max)
        return {_CONSTRAINTS: tuple(excesses)}


def _excesses(trial: FrozenTrial) -> Sequence[float]:
    """Return the constraint values of a trial.

    A sampler calls this after a trial; here they are already attributes.
    """
    found: Sequence[float] = trial.system_attrs.get(_CONSTRAINTS, ())
    return found


class OptunaTpeModel(OptunaModel[TpeSettings]):
    def __init__(self, spec: StudySpec, seed: int, settings: TpeSettings) -> None:
        super().__init__(spec, seed, settings)
        self._groups = tuple(groups(spec.space))

    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        settings = self._settings
        sampler = TPESampler(
            # `TpeSampler` draws these without this model.
            n_startup_trials=0,
            n_ei_candidates=settings.candidates,
            multivariate=settings.multivariate,
            constant_liar=settings.constant_liar,
            constraints_func=self._constraints,
            seed=wanted.source(self._seed, "tpe").getrandbits(32),
        )
        storage = WindowStorage(self._directions, [*finished, *pending[-LIARS:]])
        study = OptunaStudy(STUDY_NAME, storage, sampler=sampler)
        trial = self._running(wanted.number)
        values: dict[str, Value] = {}
        for group in self._groups:
            if not group[0].active(values):
                continue
            fixed, names = decided(group, wanted.fixed, self._distributions)
            values |= fixed
            free = {name: self._distributions[name] for name in names}
            for name, number in self._ask(study, trial, free).items():
                values[name] = decode(self._space.by_name[name].domain, number)
        return self._space.in_order(values)

    def _ask(
        self, study: OptunaStudy, trial: FrozenTrial, free: dict[str, BaseDistribution]
    ) -> Numbers:
        if self._settings.multivariate:
            return study.sampler.sample_relative(study, trial, free)
        values: dict[str, float | int] = {}
        for name, among in free.items():
            values[name] = study.sampler.sample_independent(study, trial, name, among)
        return values


class OptunaRandomModel(OptunaModel[object]):
    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        sampler = RandomSampler(seed=self._random_seed(wanted))
        trial = self._running(wanted.number)
        study = self._study(sampler, [], {})
        return self._walk(
            wanted, lambda name, among, _: sampler.sample_independent(study, trial, name, among)
        )


class OptunaBruteForceModel(OptunaModel[NoSettings]):
    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        sampler = BruteForceSampler(seed=self._random_seed(wanted))
        others = [
            t for t in (*finished, *pending) if t.number != wanted.number and self._is_whole(t)
        ]
        study = self._study(sampler, [*others, self._running(wanted.number)], {})

        def ask(name: str, among: BaseDistribution, before: Assignment) -> float | int:
            found: float | int = sampler.sample_independent(
                study, self._running(wanted.number, before), name, among
            )
            return found

        point = self._walk(wanted, ask)
        held = {_key(t.params) for t in others}
        # It proposes a known point only if there is no other.
        # A request with fixed values gets one anyway.
        return None if not wanted.fixed and _key(self._running(0, point).params) in held else point

    def _is_whole(self, trial: FrozenTrial) -> bool:
        """Return whether the trial has exactly the parameters of a point.

        One from before the space grew may not.
        """
        values = {
            name: decode(self._space.by_name[name].domain, number)
            for name, number in trial.params.items()
        }
        ones = {p.name: p.domain.at(0) for p in self._space.parameters if p.domain.count == 1}
        active = self._space.restricted({**ones, **values})
        return active.keys() - ones.keys() == trial.params.keys() and not self._space.missing(
            active
        )


def _fixed(numbers: Numbers) -> Ask:
    return lambda name, among, before: numbers.get(name)


def _key(params: Numbers) -> tuple[tuple[str, float | int], ...]:
    return tuple(sorted(params.items()))


class OptunaGridModel(OptunaModel[NoSettings]):
    """Proposes the first point that no trial holds, in Optuna's order.

    The study's seed determines the order. Optuna's grid has no conditions. Points that differ only
    in inactive parameters are the same point here.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: NoSettings) -> None:
        super().__init__(spec, seed, settings)
        self._points: list[dict[str, float | int]] | None = None

    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        held = {_key(t.params) for t in (*finished, *pending) if t.number != wanted.number}
        first: Assignment | None = None
        if self._points is None:
            self._points = self._all_points()
        for numbers in self._points:
            point = self._walk(wanted, _fixed(numbers))
            if _key(self._running(0, point).params) not in held:
                return point
            first = point if first is None else first
        return first if wanted.fixed else None

    def _all_points(self) -> list[dict[str, float | int]]:
        among: dict[str, list[float | int]] = {}
        for parameter in self._space.parameters:
            if parameter.name in self._distributions:
                axis = axis_of(parameter.domain)
                assert axis is not None
                assert axis.count is not None
                found = (encode(parameter.domain, axis.at(k)) for k in range(axis.count))
                among[parameter.name] = [number for number in found if number is not None]
        sampler = GridSampler(among, seed=generator(self._seed, 0, self._purpose).getrandbits(32))
        points: list[dict[str, float | int]] = []
        for number in range(math.prod(len(numbers) for numbers in among.values())):
            trial = self._running(number)
            study = self._study(sampler, [trial], {})
            sampler.before_trial(study, trial)
            points.append(
                {
                    n: sampler.sample_independent(study, trial, n, self._distributions[n])
                    for n in among
                }
            )
        return points


class OptunaQmcModel(OptunaModel[OptunaQmcSettings]):
    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        settings = self._settings
        # All trials use the same seed, because they are points of one sequence.
        shared = (
            wanted.source(self._seed, self._purpose)
            if wanted.again
            else generator(self._seed, 0, self._purpose)
        )
        sampler = QMCSampler(
            qmc_type=settings.qmc_type, scramble=settings.scramble, seed=shared.getrandbits(32)
        )
        trial = self._running(wanted.number)
        attributes: Attributes = {}
        study = self._study(sampler, [trial], attributes)
        numbers: Numbers = {}
        if self._distributions:
            numbers = sampler.sample_relative(study, trial, self._distributions)
            if wanted.number:
                # The only attribute is the index of the point that was sampled last.
                (counter,) = attributes
                attributes[counter] = wanted.number - 1
                numbers = sampler.sample_relative(study, trial, self._distributions)
        return self._walk(wanted, _fixed(numbers))


class OptunaGpModel(OptunaModel[OptunaGpSettings]):
    def __init__(self, spec: StudySpec, seed: int, settings: OptunaGpSettings) -> None:
        super().__init__(spec, seed, settings)
        self._relative = _always_active(spec, self._distributions)

    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        settings = self._settings
        usable = [t for t in (*finished, *pending) if self._relative.keys() <= t.params.keys()]
        numbers: Numbers = {}
        succeeded = sum(t.state is OptunaState.COMPLETE for t in usable)
        # Earlier proposals do not wait for torch to load.
        if self._relative and succeeded >= settings.startup_trials:
            sampler = GPSampler(
                n_startup_trials=settings.startup_trials,
                deterministic_objective=settings.deterministic_objective,
                constraints_func=self._constraints,
                seed=self._random_seed(wanted),
            )
            trial = self._running(wanted.number)
            others = [t for t in usable if t.number != wanted.number]
            study = self._study(sampler, [*_without_huge_values(others), trial], {})
            numbers = sampler.sample_relative(study, trial, self._relative)
        return self._walk(wanted, _fixed(numbers))


def _without_huge_values(trials: Trials) -> Trials:
    """Return the trials with values whose squares are finite.

    Otherwise Optuna's process has NaN and its search fails.

    It standardizes values, so their scale does not matter.
    """
    values = chain.from_iterable(trial.values or () for trial in trials)
    largest = max((abs(value) for value in values if math.isfinite(value)), default=0.0)
    if largest < _HUGE:
        return trials
    scaled = [copy.copy(trial) for trial in trials]
    for trial in scaled:
        if trial.values is not None:
            trial.values = [v / largest for v in trial.values]
    return scaled


def _always_active(
    spec: StudySpec, distributions: Mapping[str, BaseDistribution], *, choices: bool = True
) -> dict[str, BaseDistribution]:
    return {
        p.name: distributions[p.name]
        for p in spec.space.parameters
        if p.name in distributions and not p.when and (choices or not isinstance(p.domain, Choice))
    }


def _with_attributes(trial: FrozenTrial, attributes: Attributes) -> FrozenTrial:
    made = copy.copy(trial)
    made.system_attrs = {**trial.system_attrs, **attributes}
    return made


class OptunaGeneticModel(OptunaModel[OptunaGeneticSettings]):
    """`optuna:nsgaii` and `optuna:nsgaiii`.

    The memory is the study's attributes, which name the next parents.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: OptunaGeneticSettings) -> None:
        super().__init__(spec, seed, settings)
        self._generations = Generations(settings.population_size, Attributes, self._next_parents)
        self._class = NSGAIIISampler if spec.algorithm.name == "optuna:nsgaiii" else NSGAIISampler
        self._relative = _always_active(spec, self._distributions)

    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        usable = [t for t in finished if self._relative.keys() <= t.params.keys()]
        generation, memory = self._generations.replay(usable)
        numbers: Numbers = {}
        if generation and self._relative:
            sampler = self._sampler(self._random_seed(wanted))
            trial = self._running(wanted.number)
            trial.system_attrs[self._generation_key] = generation
            study = self._study(sampler, [*self._parents(memory), trial], dict(memory))
            numbers = sampler.sample_relative(study, trial, self._relative)
        return self._walk(wanted, _fixed(numbers))

    def _next_parents(
        self, generation: int, trials: Trials, memories: Mapping[int, Attributes]
    ) -> Attributes:
        memory = memories[generation]
        sampler = self._sampler(
            generator(self._seed, generation, f"{self._purpose} parents").getrandbits(32)
        )
        members = [_with_attributes(t, {self._generation_key: generation}) for t in trials]
        attributes = dict(memory)
        study = self._study(sampler, [*members, *self._parents(memory)], attributes)
        sampler.get_parent_population(study, generation + 1)
        return {name: value for name, value in attributes.items() if name not in memory}

    def _sampler(self, seed: int) -> BaseGASampler:
        settings = self._settings
        return self._class(
            population_size=settings.population_size,
            mutation_prob=settings.mutation_prob or None,
            crossover_prob=settings.crossover_prob,
            swapping_prob=settings.swapping_prob,
            constraints_func=self._constraints,
            seed=seed,
        )

    @cached_property
    def _generation_key(self) -> str:
        """The name of Optuna's attribute for the generation of a trial."""
        trial = self._running(0)
        sampler = self._sampler(0)
        sampler.get_trial_generation(self._study(sampler, [trial], {}), trial)
        # A running trial has no other.
        (key,) = trial.system_attrs
        return key

    def _parents(self, memory: Attributes) -> list[FrozenTrial]:
        return [self._frozen[number] for number in chain(*map(sorted, memory.values()))]


class OptunaCmaEsModel(OptunaModel[OptunaCmaEsSettings]):
    """`optuna:cmaes`.

    The memory is a trial's attributes with the pickled optimizer after a generation.
    """

    def __init__(self, spec: StudySpec, seed: int, settings: OptunaCmaEsSettings) -> None:
        super().__init__(spec, seed, settings)
        self._relative = _always_active(spec, self._distributions, choices=False)
        # Hansen 2016, equation 48.
        default_size = 4 + math.floor(3 * math.log(max(1, len(self._relative))))
        self._size = max(2, settings.popsize) if settings.popsize else default_size
        self._generations = Generations(self._size, Attributes, self._next_optimizer)

    def _point(self, finished: Trials, pending: Trials, wanted: PointRequest) -> Assignment | None:
        usable = [t for t in finished if self._relative.keys() <= t.params.keys()]
        numbers: Numbers = {}
        if len(usable) >= self._settings.startup_trials and self._relative:
            generation, memory = self._generations.replay(usable[self._settings.startup_trials :])
            carrier = [_with_attributes(usable[0], memory)] if generation else []
            numbers, _ = self._ask(self._random_seed(wanted), carrier, wanted.number)
        return self._walk(wanted, _fixed(numbers))

    def _next_optimizer(
        self, generation: int, trials: Trials, memories: Mapping[int, Attributes]
    ) -> Attributes:
        members = [_with_attributes(t, {self._generation_key: generation}) for t in trials]
        members[-1].system_attrs.update(memories[generation])
        _, attributes = self._ask(0, members, trials[-1].number + 1)
        return {name: value for name, value in attributes.items() if name != self._generation_key}

    def _ask(self, seed: int, trials: Trials, number: int) -> tuple[Numbers, Attributes]:
        """Return the sampler's proposal for a trial, and the attributes that it sets on it."""
        sampler = CmaEsSampler(
            n_startup_trials=0,
            popsize=self._size,
            use_separable_cma=self._settings.use_separable_cma,
            seed=seed,
        )
        trial = self._running(number)
        numbers = sampler.sample_relative(
            self._study(sampler, [*trials, trial], {}), trial, self._relative
        )
        return numbers, trial.system_attrs

    @cached_property
    def _generation_key(self) -> str:
        """The name of Optuna's attribute for the generation of a trial."""
        # The first trial has no other attribute.
        (key,) = self._ask(0, [], 0)[1]
        return key
