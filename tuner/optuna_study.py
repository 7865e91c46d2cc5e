"""`optimize_optuna`: the search of an objective that was written for Optuna.

The objective runs as it is: each trial is a process, and names its parameters while it runs. The
result is a study of Optuna with all trials, for its `best_params`, callbacks and figures.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from datetime import datetime
from types import CodeType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import tuner.optuna_trial as inside
from controller import app
from controller.core.model import Overrun, trial_name
from suggest.client.search_space import refuse
from suggest.errors import InvalidArgument, NotFound
from suggest.imports import Source
from suggest.pruners.optuna_rules import CLASSES
from suggest.settings import camel_case
from suggest.study import Direction, Objective
from suggest.trial import Measurement
from suggest.trial import TrialState as OurState
from tuner.experiment import merged
from tuner.functions import SearchOptions, check_lists, search
from tuner.integrations.trial_log import TrialLog
from tuner.running import Callback
from tuner.session import CLUSTER
from tuner.study import Study, TrialResult, workspace_of
from tuner.trial import Trial
from tuner.waiting import waited_for

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from controller.app.workspace import Workspace
    from controller.core.model import Experiment
    from controller.folders import ExperimentFolders
    from controller.report.record import ExperimentRecord, TrialRecord
    from tuner.session import Shell

# What a PatientPruner may wrap.
_WRAPPED = ("median", "successive-halving", "hyperband")
# The attribute of trials that are of a search here: the trial's name.
_MARK = "tuner:trial"
# Parameters, and the attributes of the trial that gets them.
Point: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
# What a trial knows of its study: see `tuner.optuna_trial.OptunaStudy`.
_OF_STUDY = ("direction", "directions", "study_name", "stop")
# The samplers of Optuna that say which values are tried, and not only in which order.
_FIXING_SAMPLERS = ("GridSampler", "PartialFixedSampler")
# Of trials here; all others have failed.
_STATES = {
    OurState.SUCCEEDED: "COMPLETE",
    OurState.PRUNED: "PRUNED",
    OurState.QUEUED: "RUNNING",
    OurState.RUNNING: "RUNNING",
}


def optimize_optuna(
    objective: Callable[[optuna.Trial], float | Sequence[float]],
    study: optuna.Study | None = None,
    **options: Unpack[SearchOptions],
) -> optuna.Study:
    """Run an objective that was written for Optuna: `study.optimize` with processes.

    Args:
        objective: Is called with a trial that has the methods of `optuna.Trial`.
        study: Its directions, its pruner, its sampler's `constraints_func` and its enqueued trials
            are used. Without it, the objective is minimized, and pruned by the median.
        options: See `SearchOptions`; directions and enqueued points are those of the study,
            `constraints` has the keys of `trial.set_constraint`: `{"weight": {"max": 0}}`, and
            `callbacks` are called as Optuna calls them, with a study of Optuna and the trial that
            has ended; the logs of `tuner.integrations` as by `tuner.minimize`.

    Returns:
        A study of Optuna with all trials of the search so far.

    Raises:
        ImportError: Optuna is not installed.
        TunerError, SearchFailed, KeyboardInterrupt: as `tuner.minimize`.
    """
    import optuna

    if study is None:
        study = optuna.create_study()
    waiting = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.WAITING])
    points = [(each.system_attrs.get("fixed_params", {}), each.user_attrs) for each in waiting]
    return run_search(SearchCaller(), objective, study, points, options)


@dataclass(frozen=True, slots=True)
class SearchCaller:
    """Who asks for a search: the name that errors begin with, and how it says an option."""

    name: str = "tuner.optimize_optuna"
    shell: Shell | None = None

    def option(self, argument: str, key: str, value: str) -> str:
        if self.shell is None:
            return f"pass {argument}={value!r}"
        return f"add --set {key}={value}"

    def error(self, message: str) -> InvalidArgument:
        return InvalidArgument.at(self.name, message)


def run_search(
    caller: SearchCaller,
    objective: Callable[[optuna.Trial], float | Sequence[float]],
    study: optuna.Study,
    points: Sequence[Point],
    options: SearchOptions,
) -> optuna.Study:
    """Run a search, and return a new study with its trials. Raises as `optimize_optuna`.

    The study of a script gets them, too.

    points: those that the study waits for.
    """
    _check(caller, objective, study, options)
    directions = [direction.name.lower() for direction in study.directions]
    shell = caller.shell
    workspace = workspace_of(options.get("state_dir")) if shell is None else shell.workspace
    attributes = [attributes for _, attributes in points]
    constraints_func = getattr(study.sampler, "_constraints_func", None)

    @functools.wraps(objective)
    def of_ours(trial: Trial) -> Any:
        return inside.run(objective, trial, directions, attributes, constraints_func)

    if "timeout" in options:
        # As in Optuna, running trials finish.
        finish = {"budget": {"overrun": Overrun.FINISH.value}}
        options["spec"] = merged(finish, options.get("spec") or {})
    if "pruning" not in options and len(directions) == 1:
        options["pruning"] = pruning_of(caller, study.pruner)
    options["initial"] = [parameters for parameters, _ in points]
    bounds = dict(options.get("constraints") or {})
    if constraints_func is not None:
        bounds[inside.CONSTRAINTS_FUNC] = {"max": 0.0}
    stored = _stored(workspace, options)
    own, known = _own_and_known(study, stored)
    source = _source(study, known, bounds) if known else None
    results = _Results(study, workspace, known, source)
    if stored is not None and own and not points:
        # They were the first ones.
        options["initial"] = stored.spec.initial
    if known and options.get("runtime") == CLUSTER:
        raise caller.error(
            f"study {study.study_name!r} has trials, of which a search in the cluster cannot "
            "learn; pass a new study, and enqueue the best points"
        )
    if any(attributes) and (known or "import_from" in options):
        raise caller.error(
            "user_attrs of enqueued trials are those of the first ones, which the known trials of "
            "the study, or import_from, are; omit one"
        )
    options["constraints"] = {inside.CONSTRAINT + key: bounds[key] for key in bounds}
    callbacks = options.get("callbacks") or ()
    if optunas := [each for each in callbacks if not isinstance(each, TrialLog)]:
        ours = [each for each in callbacks if isinstance(each, TrialLog)]
        options["callbacks"] = [*ours, results.callback(optunas)]
    try:
        ran = search(
            caller.name,
            of_ours,
            None,
            dict(zip(inside.metrics_of(len(directions)), directions, strict=True)),
            options,
            # The objective may use it, too.
            stand_ins=[(study, inside.OptunaStudy(directions))],
            known=source,
            shell=shell,
        )
    except KeyboardInterrupt:
        if shell is None:
            raise
        # A script may handle it, and use what was found, if the search had begun.
        ran = Study(workspace, options["name"], options.get("namespace"))
        with suppress(NotFound):
            _add_results(study, results.of(ran))
        raise
    found = results.of(ran)
    if shell is not None:
        _add_results(study, found)
    return found


def _check(caller: SearchCaller, objective: object, study: object, options: SearchOptions) -> None:
    """Refuse what the search would not do."""
    import optuna

    if not callable(objective):
        refuse(caller.name, "objective", objective, "a function of one argument, the trial")
    if not isinstance(study, optuna.Study):
        refuse(caller.name, "study", study, "a study of Optuna, such as optuna.create_study()")
    sampler = type(study.sampler).__name__
    if sampler in _FIXING_SAMPLERS and "algorithm" not in options:
        raise caller.error(
            f"the study has a {sampler}, which says which values are tried, and only Optuna reads "
            'that; write them in the objective, as in trial.suggest_categorical("x", [1, 2]); to '
            f"search without it, {caller.option('algorithm', 'spec.algorithm.name', 'tpe')}"
        )
    if used := next(_unknown_of_study(objective, study), ""):
        raise caller.error(
            f"the objective uses study.{used}, and each trial is a process that knows only "
            f"{', '.join(_OF_STUDY)} of its study; pass what the objective needs as a value"
        )
    for name in ("metric", "fidelity", "initial"):
        if name in options:
            raise TypeError(f"{caller.name}: {name} is what the study of Optuna says; omit it")
    check_lists(caller.name, options)
    bounds_given = options.get("constraints") or {}
    if not isinstance(bounds_given, Mapping):
        refuse(caller.name, "constraints", bounds_given, "a dict such as {'weight': {'max': 0}}")


def _own_and_known(
    study: optuna.Study, stored: Experiment | None
) -> tuple[list[optuna.trial.FrozenTrial], list[optuna.trial.FrozenTrial]]:
    """Return the finished trials of a study that are of the stored search, and all others."""
    own: list[optuna.trial.FrozenTrial] = []
    known: list[optuna.trial.FrozenTrial] = []
    begin = "" if stored is None else trial_name(stored.name, stored.uid, 0).removesuffix("0")
    for trial in study.get_trials(deepcopy=False):
        if trial.state.is_finished():
            (own if begin and _mark(trial).startswith(begin) else known).append(trial)
    return own, known


def _source(
    study: optuna.Study, trials: Sequence[optuna.trial.FrozenTrial], bounds: Iterable[str]
) -> Source:
    """Return trials of a study for an import. bounds: the keys of the search's constraints."""
    # Here, because it loads Optuna.
    from suggest.optuna_storage.optuna_studies import source_of

    metrics = inside.metrics_of(len(study.directions))

    def measured(trial: optuna.trial.FrozenTrial) -> dict[str, object]:
        of_function = trial.system_attrs.get(inside.CONSTRAINTS, ())
        found = dict(trial.constraints)
        if of_function:
            found[inside.CONSTRAINTS_FUNC] = max(of_function)
        further = dict(zip(metrics[1:], trial.values[1:], strict=True))
        return {**further, **{inside.CONSTRAINT + key: found.get(key) for key in bounds}}

    # By content, because a script that adds them does so each time it runs.
    seen: Counter[str] = Counter()
    source_ids = []
    for trial in trials:
        content = _content(trial.params, trial.values, trial.state)
        seen[content] += 1
        digest = hashlib.sha256(content.encode()).hexdigest()[:32]
        source_ids.append(f"{digest}-{seen[content]}")
    directions = [Direction[direction.name] for direction in study.directions]
    return source_of(
        trials,
        source_ids,
        first=0,
        objectives=[*map(Objective, metrics, directions)],
        measured=measured,
        title=f"study {study.study_name}"[:256],
        identity="optuna-study",
    )


def _content(
    parameters: Mapping[str, Any], values: Sequence[float] | None, state: optuna.trial.TrialState
) -> str:
    kept = list(values or ()) if state.name == "COMPLETE" else []
    return json.dumps([dict(parameters), kept, state.name], sort_keys=True, default=str)


def _mark(trial: optuna.trial.FrozenTrial) -> str:
    return str(trial.system_attrs.get(_MARK, ""))


def _stored(workspace: Workspace, options: SearchOptions) -> Experiment | None:
    """Return the search of this name, if there is one."""
    if "name" not in options:
        return None
    try:
        with workspace.opened() as experiments:
            return app.experiments.find(experiments, options["name"], options.get("namespace"))
    except NotFound:
        return None


class _Results:
    """The trials of a search, as a study of Optuna."""

    def __init__(
        self,
        study: optuna.Study,
        workspace: Workspace,
        known: Iterable[optuna.trial.FrozenTrial],
        source: Source | None,
    ) -> None:
        """known: the trials of the study that are imported from `source`."""
        self._study = study
        self._state = workspace.state
        places = () if source is None else {place for place, _ in source.trials}
        # Of the same content there may be several.
        self._known: defaultdict[str, list[optuna.trial.FrozenTrial]] = defaultdict(list)
        for each in known:
            if f"trial {each.number}" in places:
                self._known[_content(each.params, each.values, each.state)].append(each)
        self._attributes = dict(study.user_attrs)
        # While the search runs, those that have ended, which are read once.
        self._ended: dict[int, optuna.trial.FrozenTrial] = {}

    def of(self, ran: Study) -> optuna.Study:
        """Return a study with all trials so far."""
        import optuna

        record = waited_for(
            app.query.look_up(ran._workspace, ran.name, ran._namespace, measurements=True)
        )
        # Nothing is there of a search that the cluster's controller runs.
        folders = self._state.folders(record.experiment.uid)
        verbosity = optuna.logging.get_verbosity()
        # Optuna would announce this study, which no person has made.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            made = optuna.create_study(
                directions=self._study.directions,
                study_name=ran.name,
                # For a call that continues the search with it.
                sampler=self._study.sampler,
                pruner=self._study.pruner,
            )
        finally:
            optuna.logging.set_verbosity(verbosity)
        for key, value in self._attributes.items():
            made.set_user_attr(key, value)
        if self._study.metric_names is not None:
            made.set_metric_names(self._study.metric_names)
        trials = {
            entry.trial.number: self._ended.get(entry.trial.number)
            or _frozen(ran, record, entry, folders)
            for entry in record.trials
            if not entry.imported_from
        }
        distributions = {
            name: each for trial in trials.values() for name, each in trial.distributions.items()
        }
        known = {content: iter(each) for content, each in self._known.items()}
        for entry in record.trials:
            number = entry.trial.number
            if number in trials:
                made.add_trial(trials[number])
                continue
            content = _content(entry.trial.parameters, entry.trial.values, _state(entry))
            original = next(known.get(content, iter(())), None)
            measured = record.measurements.get(number, ())
            made.add_trial(original or _imported(entry, measured, distributions))
        return made

    def callback(self, functions: Sequence[Callback]) -> Callback:
        """Return what calls the functions as Optuna does, when a trial has ended."""

        def call(ran: Study, result: TrialResult) -> None:
            if result.state == OurState.CANCELLED.value:
                # Optuna has none: it lets them finish.
                return
            study = self.of(ran)
            trials = study.get_trials(deepcopy=False)
            self._ended = {trial.number: trial for trial in trials if trial.state.is_finished()}
            # Optuna's own works only while Optuna searches.
            study.stop = ran.stop  # type: ignore[method-assign]
            for function in functions:
                function(study, trials[result.number])
            # One may keep what it has found there.
            self._attributes = dict(study.user_attrs)

        return call


# Any: a function, a partial one, or an object that can be called
def _unknown_of_study(objective: Any, study: optuna.Study) -> Iterator[str]:
    """Yield what the objective's code reads of its study that a trial does not know."""
    if isinstance(objective, functools.partial):
        objective = objective.func
    # Of the object of a method, or of one that can be called.
    attributes = getattr(getattr(objective, "__self__", objective), "__dict__", {})
    own = {name for name, value in attributes.items() if value is study}
    called = objective if hasattr(objective, "__code__") else type(objective).__call__
    if not hasattr(called, "__code__"):
        return
    visible = {**called.__globals__, **inspect.getclosurevars(called).nonlocals}
    names = {name for name, value in visible.items() if value is study}
    todo = [called.__code__]
    for each in todo:
        todo += [part for part in each.co_consts if isinstance(part, CodeType)]
        loads = list(dis.get_instructions(each))
        for before, owner, read in zip([None, *loads], loads, loads[1:], strict=False):
            of_self = before is not None and before.argval == "self"
            known = own if of_self else {"study"}
            is_study = owner.opname == "LOAD_ATTR" and owner.argval in known
            is_study |= owner.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and owner.argval in names
            reads = read.opname in ("LOAD_ATTR", "LOAD_METHOD")
            if reads and is_study and read.argval not in _OF_STUDY:
                yield read.argval


def pruning_of(caller: SearchCaller, pruner: optuna.pruners.BasePruner) -> dict[str, object]:
    """Return the rule `optuna:NAME` that is the study's pruner."""
    kind = type(pruner).__name__
    names = {known: name for name, (known, _) in CLASSES.items()}
    name = names.get(kind)
    if name == "nop":
        return {}
    shape = {key.removeprefix("_"): value for key, value in vars(pruner).items()}
    if (wrapped := shape.get("wrapped_pruner")) is not None:
        inner = shape["wrapped_pruner"] = names.get(type(wrapped).__name__)
        # The setting is one of these names, and has no settings.
        if inner not in _WRAPPED or vars(wrapped) != vars(type(wrapped)()):
            name = None
    if name is None:
        raise caller.error(
            f"the study has a {kind}, which is not taken over; name the rule: "
            f"{caller.option('pruning', 'spec.pruning.name', 'optuna:hyperband')}"
        )
    _, settings = CLASSES[name]
    given: dict[str, object] = {"name": f"optuna:{name}"}
    for each in fields(settings):
        value = shape.get(each.name)
        # "auto", or None, is the default.
        if value not in (None, "auto", each.default):
            given[camel_case(each.name)] = value
    return given


def _frozen(
    ran: Study, record: ExperimentRecord, entry: TrialRecord, folders: ExperimentFolders
) -> optuna.trial.FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    trial, newest, state = entry.trial, entry.newest, _state(entry)
    if trial.reason.startswith(inside.PRUNED):
        state = TrialState.PRUNED
    kept: Mapping[str, Any] = {}
    if newest is not None:
        file = folders.attempt(newest.trial, newest.number).output / inside.FILE
        kept = inside.kept(file, lambda: ran.log(trial.number))
    distributions = inside.read_distributions(kept.get("distributions", {}))
    named = [name for name in distributions if name in trial.parameters]
    curve = {
        m.step: m.value
        for m in record.measurements.get(trial.number, ())
        if m.metric == inside.VALUE and newest is not None and m.attempt == newest.number
    }
    if state is TrialState.COMPLETE and curve:
        # The last one is what the objective returned.
        del curve[max(curve)]
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=state,
        value=None,
        values=list(trial.values) if state is TrialState.COMPLETE else None,
        datetime_start=_local(entry.start_time or trial.create_time),
        datetime_complete=_local(trial.end_time) if state.is_finished() else None,
        params={name: trial.parameters[name] for name in named},
        distributions={name: distributions[name] for name in named},
        user_attrs=kept.get("user_attrs", {}),
        system_attrs={
            _MARK: trial_name(record.experiment.name, record.experiment.uid, trial.number),
            **kept.get("system_attrs", {}),
            **{f"constraints:{key}": value for key, value in kept.get("constraints", {}).items()},
        },
        intermediate_values=curve,
    )


def _imported(
    entry: TrialRecord,
    measured: Iterable[Measurement],
    distributions: Mapping[str, BaseDistribution],
) -> optuna.trial.FrozenTrial:
    """Return an imported trial, with the parameters that trials here have named."""
    from optuna.trial import create_trial

    trial, state = entry.trial, _state(entry)
    params = {
        name: value
        for name, value in trial.parameters.items()
        if name in distributions and _contains(distributions[name], value)
    }
    return create_trial(
        state=state,
        values=list(trial.values) if state.name == "COMPLETE" else None,
        params=params,
        distributions={name: distributions[name] for name in params},
        constraints={
            m.metric.removeprefix(inside.CONSTRAINT): m.value
            for m in measured
            if m.metric.startswith(inside.CONSTRAINT)
        },
    )


def _state(entry: TrialRecord) -> optuna.trial.TrialState:
    from optuna.trial import TrialState

    return TrialState[_STATES.get(entry.state, "FAIL")]


def _contains(distribution: BaseDistribution, value: Any) -> bool:
    try:
        return distribution._contains(distribution.to_internal_repr(value))
    except ValueError:
        return False


def _local(time: datetime | None) -> datetime | None:
    """Return the time as Optuna shows it: local and naive."""
    return None if time is None else time.astimezone().replace(tzinfo=None)


def _add_results(study: optuna.Study, found: optuna.Study) -> None:
    """Add the finished trials of a search to a study that may have some of them."""
    # Imported ones have no mark.
    had = {"", *map(_mark, study.get_trials(deepcopy=False))}
    for trial in found.get_trials(deepcopy=False):
        if trial.state.is_finished() and _mark(trial) not in had:
            study.add_trial(trial)
    for key, value in found.user_attrs.items():
        study.set_user_attr(key, value)
