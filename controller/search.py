"""The calls that an experiment makes to its study.

Each call is idempotent: this process or the next one may repeat it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from controller.core.model import (
    EXPERIMENT_LABEL,
    UID_LABEL,
    Experiment,
    ExperimentSpec,
    short_name,
)
from controller.phrases import command
from suggest import failpoints
from suggest.domain import NO_MEMBER, Choice, Domain, NoMember, show
from suggest.errors import (
    FailedPrecondition,
    InvalidArgument,
    LimitReached,
    NotFound,
    NotOwner,
    Problem,
    StoreBroken,
)
from suggest.replies import Suggestions
from suggest.space import Parameter, Space, Value
from suggest.study import (
    RERUNS_OF,
    SIMILAR,
    Algorithm,
    Objective,
    Pruning,
    Study,
    StudyName,
    StudySpec,
)
from suggest.trial import (
    IMPORTED_FROM,
    NO_LABELS,
    Measurement,
    Outcome,
    StopAdvice,
    Trial,
    TrialState,
)

if TYPE_CHECKING:
    from suggest.client import AsyncClient

_CREATE = failpoints.register("study.create")
_UPDATE = failpoints.register("study.update")
_ADD = failpoints.register("study.add_trial")
_SUGGEST = failpoints.register("study.suggest")
_REPORT = failpoints.register("study.report")
_DECIDE = failpoints.register("study.decide")
_REOPEN = failpoints.register("study.reopen")
_ESTIMATE = failpoints.register("study.estimate")
_COMPLETE = failpoints.register("study.complete")

MOST_REOPENED = 1000  # trials per call
LOST = Outcome(TrialState.CANCELLED, reason="lost when the study's database was set back")
OTHER_RANGE = "otherRange"  # an event's kind
CHOOSES = "default"  # the algorithm that chooses another one, once for each study


def times_handed_out(trial: Trial) -> int:
    """Return how often the study has handed out a trial; once if added or imported."""
    return max(1, trial.tries)


def study_name(experiment: Experiment) -> StudyName:
    return StudyName(experiment.namespace, short_name(experiment.name, experiment.uid))


def lost(study: StudyName, experiment: str) -> StoreBroken:
    return StoreBroken(
        f"{experiment} has run trials, but its store no longer has the study {study}; restore its "
        f"database (studies.db) from a backup, or start over after: {command('delete', experiment)}"
    )


def study_spec(spec: ExperimentSpec) -> StudySpec:
    return StudySpec(
        space=spec.space,
        objectives=tuple(
            Objective(objective.metric, objective.direction, objective.value)
            for objective in spec.objectives
        ),
        constraints=spec.constraints,
        algorithm=Algorithm(spec.algorithm.name, spec.algorithm.seed, _settings(spec)),
        pruning=_pruning(spec.pruning),
        fidelity=spec.fidelity,
        define_by_run=spec.define_by_run,
        learn_from=spec.learn_from,
        prior=spec.prior,
    )


async def create_study(
    studies: AsyncClient,
    name: StudyName,
    spec: StudySpec,
    *,
    request_id: str,
    labels: Mapping[str, str] = NO_LABELS,
    validate_only: bool = False,
) -> Study:
    """Create the study of a spec that names the experiments from which it learns.

    Raises InvalidArgument, which names them as the spec does.
    """
    known = await _with_earlier_studies(spec, name.namespace, studies)
    try:
        return await studies.create_study(
            name, known, request_id=request_id, labels=labels, validate_only=validate_only
        )
    except InvalidArgument as error:
        written = {
            f"spec.learn_from[{place}].study": (found.study, given.study)
            for place, (found, given) in enumerate(
                zip(known.learn_from, spec.learn_from, strict=True)
            )
        }
        raise InvalidArgument(
            Problem(each.path, each.message.replace(*written.get(each.path, ("", ""))))
            for each in error.problems
        ) from error


async def _with_earlier_studies(spec: StudySpec, namespace: str, studies: AsyncClient) -> StudySpec:
    """Return the spec with studies instead of the experiments from which it learns.

    A name that no experiment has is that of a study.
    """
    found = []
    for earlier in spec.learn_from:
        if earlier.study == SIMILAR:
            found.append(earlier)
            continue
        named = await studies.list_studies(namespace, labels={EXPERIMENT_LABEL: earlier.study})
        newest = max(named, key=lambda study: str(study.create_time), default=None)
        name = earlier.study if newest is None else newest.name.study
        found.append(replace(earlier, study=name))
    return replace(spec, learn_from=tuple(found)) if found else spec


def space_to_have(study: Study, space: Space) -> Space:
    """Return the space that the study should have.

    If another client has extended the study beyond the experiment's file,
    its space does not change. That of a define-by-run study is its trials'.
    """
    if study.spec.define_by_run:
        return study.spec.space
    return study.spec.space if any(past.space == space for past in study.past) else space


def _range(domain: Domain) -> str:
    assert not isinstance(domain, Choice)
    step = "" if domain.step is None else f" in steps of {show(domain.step)}"
    return f"{show(domain.min)} to {show(domain.max)}{step}"


def _settings(spec: ExperimentSpec) -> dict[str, Value]:
    """Return the algorithm's settings.

    The default algorithm also gets the facts on which its choice depends.
    """
    if spec.algorithm.name != CHOOSES:
        return dict(spec.algorithm.settings)
    context: dict[str, Value] = {"parallelism": spec.parallelism}
    if spec.budget.trials is not None:
        context["trials"] = spec.budget.trials
    return {**context, **spec.algorithm.settings}


def _pruning(spec: Pruning | None) -> Pruning | None:
    return None if spec is None else Pruning(spec.name, dict(spec.settings))


class ExperimentStudy:
    """The study of one experiment. Raises what the client raises."""

    def __init__(self, experiment: Experiment, studies: AsyncClient) -> None:
        self._spec = experiment.spec
        self._uid = experiment.uid
        self._experiment_name = experiment.name
        self._name = study_name(experiment)
        # These show whose study it is, on a service that many experiments share.
        self._labels = {EXPERIMENT_LABEL: experiment.name, UID_LABEL: experiment.uid}
        if (rerun := experiment.spec.rerun) is not None:
            self._labels[RERUNS_OF] = rerun.experiment
        self._studies = studies
        # The domains of parameters that trials have named, as in the study or the first such trial.
        self._domains: dict[str, Domain] = {}
        self.remarks: dict[str, str] = {}  # by kind, for `Journal.remark`
        # a lost reply may have handed out trials that this process does not know
        self.unanswered = False

    def revise(self, spec: ExperimentSpec) -> None:
        """Use a newer revision of the experiment from now on; `make` applies it to the study."""
        self._spec = spec

    async def make(self, *, begun: bool) -> None:
        """Create or update the study, to match the newest revision and have its initial points.

        Args:
            begun: The experiment had trials already.

        Raises:
            StoreBroken: The experiment has begun, but its study no longer exists.
        """
        expected = study_spec(self._spec)
        try:
            study = await self._studies.get_study(self._name)
        except NotFound as error:
            if begun:
                # In a new study, the old attempts would be taken for attempts of its own trials.
                raise lost(self._name, self._experiment_name) from error
            with _CREATE:
                study = await create_study(
                    self._studies,
                    self._name,
                    expected,
                    request_id=self._uid,
                    labels={**self._spec.labels, **self._labels},
                )
        space = space_to_have(study, expected.space)
        if (study.spec.space, study.spec.pruning, study.spec.criteria) != (
            space,
            expected.pruning,
            expected.criteria,
        ):
            with _UPDATE:
                await self._studies.update_study(
                    self._name,
                    space=space,
                    pruning=expected.pruning,
                    objectives=expected.objectives,
                    constraints=expected.constraints,
                )
        self._domains = {p.name: p.domain for p in study.spec.space.parameters}
        for index, point in enumerate(self._spec.initial):
            with _ADD:
                await self._studies.add_trial(
                    self._name, point, request_id=f"{self._uid}-initial-{index}"
                )

    async def trials(self) -> list[Trial]:
        """Return all trials that were ever handed out to this experiment."""
        trials = await self._studies.list_trials(self._name, client_id=self._uid)
        self.unanswered = False
        return trials

    async def imported(self) -> list[Trial]:
        """Return the imported trials that are among the best."""
        best = await self._studies.optimal_trials(self._name)
        return [trial for trial in best if IMPORTED_FROM in trial.labels]

    async def best(self) -> Trial:
        """Return the trial whose parameters the final stage takes, which may be an imported one.

        It is the best succeeded trial. With several objectives, it is the trial of the Pareto front
        that is best in the first objective, or by the weights of `spec.final.choose`.

        Raises:
            FailedPrecondition: No trial has succeeded and meets the constraints.
        """
        front, weights = await self._studies.optimal_trials(self._name), self._spec.final_weights
        criteria = self._spec.criteria
        best = criteria.compromise(front, weights) if weights else criteria.first_best(front)
        if best is None:
            raise FailedPrecondition(
                f"{self._name} has no succeeded trial that satisfies the constraints"
            )
        return best

    async def regret_bound(self) -> float | None:
        """Return how much better another point may still be; None if the study cannot tell."""
        with _ESTIMATE:
            try:
                return (await self._studies.estimate(self._name)).regret_bound
            except FailedPrecondition:
                return None

    async def trial(self, number: int) -> Trial:
        return await self._studies.get_trial(self._name, number)

    async def suggest(self, count: int, *, handed_out: int, paused_only: bool) -> Suggestions:
        """Request trials; with `paused_only`, only paused ones that go on with a larger fidelity.

        The request's id contains how many times trials were handed out so far. If the reply is
        lost, this process or the next one therefore repeats the request under the same id.
        """
        self.unanswered = True
        with _SUGGEST:
            try:
                suggestions = await self._studies.suggest(
                    self._name,
                    count,
                    client_id=self._uid,
                    request_id=f"{self._uid}-{handed_out}",
                    labels=self._spec.labels,
                    paused_only=paused_only,
                )
            except LimitReached:
                self.unanswered = False
                raise
        self.unanswered = False
        return suggestions

    async def report(self, number: int, measurements: list[Measurement]) -> StopAdvice | Trial:
        """Report measurements; return the advice, or the trial that another client completed."""
        with _REPORT:
            try:
                return await self._studies.report(self._name, number, measurements)
            except NotOwner:
                raise
            except FailedPrecondition as refusal:
                return await self._finished(number, refusal)

    async def decide(self, number: int, parameter: Parameter, given: Value | NoMember) -> Value:
        """Return the value of a parameter that a running trial meets; it is stored before.

        given: the value that the trial asks for.

        Raises FailedPrecondition for a parameter with which a rerun would not be one.
        """
        self._check_rerun(number, parameter)
        with _DECIDE:
            value = await self._studies.decide_parameter(self._name, number, parameter, value=given)
        earlier = self._domains.setdefault(parameter.name, parameter.domain)
        # Other choices are refused.
        if earlier != parameter.domain and not isinstance(parameter.domain, Choice):
            self.remarks.setdefault(
                OTHER_RANGE,
                f"{parameter.name} is {_range(parameter.domain)} in trial {number} and "
                f"{_range(earlier)} before: the search learns from both, and each trial's values "
                "are in its own ranges",
            )
        return value

    def _check_rerun(self, number: int, parameter: Parameter) -> None:
        """Raise FailedPrecondition if the trial reruns one that did not have this parameter."""
        if (source := self._spec.rerun_of(number)) is None:
            return
        of, point = source
        assert self._spec.rerun is not None
        name, trial = parameter.name, f"trial {of} of {self._spec.rerun.experiment}"
        cure = (
            "a rerun has the parameters of its trial and no others; restore the objective if it "
            "has changed, and let only parameters decide which others it names, not chance"
        )
        if name not in point:
            raise FailedPrecondition(f"{trial} did not name {name}: {cure}")
        if parameter.domain.canonical(point[name]) is NO_MEMBER:
            raise FailedPrecondition(
                f"{trial} had {name} = {show(point[name])}, which is not in its range any more: "
                f"{cure}"
            )

    async def complete(
        self, number: int, outcome: Outcome, measurements: list[Measurement]
    ) -> Trial:
        """Complete the trial and return it, with the outcome of another client that was first."""
        with _COMPLETE:
            try:
                return await self._studies.complete(
                    self._name, number, outcome, measurements=measurements
                )
            except NotOwner:
                raise
            except FailedPrecondition as refusal:
                return await self._finished(number, refusal)

    async def reopen(self, numbers: Sequence[int]) -> list[Trial]:
        """Reopen failed trials, so that they run again, and return them."""
        trials: list[Trial] = []
        with _REOPEN:
            for k in range(0, len(numbers), MOST_REOPENED):
                some = numbers[k : k + MOST_REOPENED]
                trials += await self._studies.reopen_trials(self._name, some)
        return trials

    def reissued_trials(self, trials: Sequence[Trial]) -> list[int]:
        """Return this experiment's open trials whose number the study may have given before.

        A request's id contains how many times trials had been handed out before it. A study that
        knows of fewer has lost some. With a fidelity that proves nothing: another client may have
        taken over a paused trial.
        """
        if self._spec.fidelity is not None:
            return []
        handed_out = sum(map(times_handed_out, trials))
        of_request = Counter(trial.request_id for trial in trials)
        return [
            trial.number
            for trial in trials
            if not trial.finished
            and times_handed_out(trial) == 1
            and (before := trial.request_id.removeprefix(f"{self._uid}-")).isdecimal()
            and int(before) > handed_out - of_request[trial.request_id]
        ]

    async def cancel_lost(self, last: int) -> list[Trial]:
        """Take the numbers up to `last`, which the study no longer knows, as cancelled trials.

        Returns these trials.

        A database that was set back (a copy was restored, a standby lagged) has lost its newest
        trials. Their numbers must not go to new trials, which would be taken for what ran under
        these numbers. Idempotent.
        """
        cancelled: list[Trial] = []
        while not cancelled or cancelled[-1].number < last:
            request_id = f"{self._uid}-lost-{last}-{len(cancelled)}"
            added = await self._studies.add_trial(self._name, {}, request_id=request_id)
            cancelled.append(await self.complete(added.number, LOST, []))
        return cancelled

    async def _finished(self, number: int, refusal: FailedPrecondition) -> Trial:
        """Return the trial that the study did not change because it has ended.

        Raises FailedPrecondition if it is open: the study has refused for another reason.
        """
        trial = await self._studies.get_trial(self._name, number)
        if not trial.finished:
            raise FailedPrecondition(
                f"{self._name}: trial {number} is open, but the study refuses its outcome: "
                f"{refusal}"
            ) from refusal
        return trial
