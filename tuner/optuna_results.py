"""The trials of a search as those of a study of Optuna, and those of a study that a search learns
from.
"""

from __future__ import annotations

import hashlib
import json
import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import tuner.optuna_kept as kept
from controller import app
from controller.core.model import trial_name
from suggest.client.search_space import level_of_caller
from suggest.imports import Source
from suggest.study import Direction, Objective
from suggest.trial import Measurement
from suggest.trial import TrialState as OurState
from tuner.integrations.trial_log import TrialLog
from tuner.running import Callback
from tuner.study import Study, TrialResult
from tuner.waiting import waited_for

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from controller.app.workspace import Workspace
    from controller.core.model import Experiment
    from controller.folders import ExperimentFolders
    from controller.report.record import ExperimentRecord, TrialRecord

# The attribute of trials that are of a search here: the trial's name.
_MARK = "tuner:trial"
# What a callback cannot do with its study.
_OF_NO_EFFECT = ("add_trial", "add_trials", "ask", "enqueue_trial", "optimize", "tell")
# Of trials here; all others have failed.
_STATES = {
    OurState.SUCCEEDED: "COMPLETE",
    OurState.PRUNED: "PRUNED",
    OurState.QUEUED: "RUNNING",
    OurState.RUNNING: "RUNNING",
}


def own_and_known(
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


def source(
    study: optuna.Study, trials: Sequence[optuna.trial.FrozenTrial], bounds: Iterable[str]
) -> Source:
    """Return trials of a study for an import. bounds: the keys of the search's constraints."""
    # Here, because it loads Optuna.
    from suggest.optuna_storage.optuna_studies import source_of

    metrics = kept.metrics_of(len(study.directions))

    def measured(trial: optuna.trial.FrozenTrial) -> dict[str, object]:
        of_function = trial.system_attrs.get(kept.CONSTRAINTS, ())
        found = kept.with_largest(trial.constraints, [kept.CONSTRAINT + key for key in bounds])
        if of_function:
            found[kept.CONSTRAINTS_FUNC] = max(of_function)
        further = dict(zip(metrics[1:], trial.values[1:], strict=True))
        return {**further, **{kept.CONSTRAINT + key: found.get(key) for key in bounds}}

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
    told = list(values or ()) if state.name == "COMPLETE" else []
    return json.dumps([dict(parameters), told, state.name], sort_keys=True, default=str)


def is_of_search(trial: optuna.trial.FrozenTrial) -> bool:
    """Return whether a search here has run the trial."""
    return bool(_mark(trial))


def searches_of(study: optuna.Study) -> set[str]:
    """Return the names of the searches here that have run trials of the study."""
    marks = filter(None, map(_mark, study.get_trials(deepcopy=False)))
    return {mark.rsplit("-", 2)[0] for mark in marks}


def _mark(trial: optuna.trial.FrozenTrial) -> str:
    return str(trial.system_attrs.get(_MARK, ""))


class Results:
    """The trials of a search, as a study of Optuna."""

    def __init__(
        self,
        # Any: a study of Optuna, or what a trial knows of one
        study: Any,
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
        # Whether a callback of a trial that the search has run before has ended it.
        self._stopped = False
        # While the search runs, those that have ended, which are read once.
        self._ended: dict[int, optuna.trial.FrozenTrial] = {}

    def of(self, ran: Study, running: optuna.trial.FrozenTrial | None = None) -> optuna.Study:
        """Return a study with all trials so far. running: the one that asks, as it knows itself."""
        record = waited_for(
            app.query.look_up(ran._workspace, ran.name, ran._namespace, measurements=True)
        )
        # Nothing is there of a search that the cluster's controller runs.
        folders = self._state.folders(record.experiment.uid)
        made = self._empty(ran)
        trials = {
            entry.trial.number: self._ended.get(entry.trial.number)
            or _frozen(ran, record, entry, folders)
            for entry in record.trials
            if not entry.imported_from
        }
        if running is not None:
            trials[running.number] = running
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

    def _empty(self, ran: Study) -> optuna.Study:
        """Return a study like that of the search, without trials."""
        import optuna

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
            # Optuna warns that the method is experimental, which the caller's own call has done.
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                made.set_metric_names(self._study.metric_names)
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
            if self._stopped:
                ran.stop()
            self._call(functions, _of_callback(study, ran.stop), trials[result.number])

        return call

    def repeat(self, functions: Sequence[Callback], ran: Study, end: int | None = None) -> None:
        """Call the functions of a script that runs again for the trials that its study lacks, in
        the order of their numbers: what they had collected went with its process.

        end: the number of the first trial that is left out.
        """
        functions = [each for each in functions if not isinstance(each, TrialLog)]
        if not functions:
            return
        cancelled = OurState.CANCELLED.value
        left_out = {each.number for each in ran.results() if each.state == cancelled}
        had = {"", *map(_mark, self._study.get_trials(deepcopy=False))}
        study = self._empty(ran)
        add = study.add_trial
        study = _of_callback(study, self._stop)
        for trial in self.of(ran).get_trials(deepcopy=False)[:end]:
            add(trial)
            is_new = trial.state.is_finished() and _mark(trial) not in had
            if is_new and trial.number not in left_out:
                self._call(functions, study, study.get_trials(deepcopy=False)[trial.number])

    def _stop(self) -> None:
        # The search ends when it calls back.
        self._stopped = True

    def _call(
        self,
        functions: Sequence[Callback],
        study: optuna.Study,
        trial: optuna.trial.FrozenTrial,
    ) -> None:
        for function in functions:
            function(study, trial)
        # One may keep what it has found there.
        self._attributes = dict(study.user_attrs)


def _of_callback(study: optuna.Study, stop: Callable[[], None]) -> optuna.Study:
    """Return the study with the methods that it has in a callback."""
    # Optuna's own work only while Optuna searches.
    methods = {name: staticmethod(partial(_refuse, name)) for name in _OF_NO_EFFECT}
    methods |= {"stop": staticmethod(stop)}
    own = {**methods, "__reduce_ex__": _as_of_optuna}
    study.__class__ = type("Study", (type(study),), own)
    return study


# Any: what pickle makes a study of
def _as_of_optuna(study: optuna.Study, _protocol: object) -> tuple[Any, ...]:
    """Return the study of a callback for pickle, with the methods of Optuna."""
    return object.__new__, (type(study).__base__,), study.__getstate__()


def _refuse(name: str, *_: object, **__: object) -> None:
    raise RuntimeError(
        f"study.{name}() in a callback has no effect on the search, which is stored by tuner; "
        "enqueue and add trials before the search"
    )


def _frozen(
    ran: Study, record: ExperimentRecord, entry: TrialRecord, folders: ExperimentFolders
) -> optuna.trial.FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    trial, newest, state = entry.trial, entry.newest, _state(entry)
    if trial.reason.startswith(kept.PRUNED):
        state = TrialState.PRUNED
    found: Mapping[str, Any] = {}
    objects: Mapping[str, Any] = {}
    choices: Mapping[str, Sequence[Any]] = {}
    unread: Sequence[str] = ()
    if newest is not None:
        output = folders.attempt(newest.trial, newest.number).output
        found = kept.read(output / kept.FILE, lambda: ran.log(trial.number))
        objects, choices, unread = kept.read_objects(output / kept.OBJECTS_FILE)
    for omitted in (*found.get("omitted", ()), *unread):
        warnings.warn(omitted, stacklevel=level_of_caller())
    began = entry.start_time or trial.create_time
    if "datetime_start" in found:
        began = datetime.fromisoformat(found["datetime_start"])
    values: Sequence[float] | None = trial.values if state is TrialState.COMPLETE else None
    if entry.state is OurState.INFEASIBLE and "values" in found:
        state, values = TrialState.COMPLETE, found["values"]
    distributions = kept.read_distributions(found.get("distributions", {}), choices)
    named = [name for name in distributions if name in trial.parameters]
    curve = {
        m.step: m.value
        for m in record.measurements.get(trial.number, ())
        if m.metric == kept.VALUE and newest is not None and m.attempt == newest.number
    }
    if entry.state is OurState.SUCCEEDED and curve:
        # The last one is what the objective returned.
        del curve[max(curve)]
    if state is TrialState.PRUNED and curve:
        last = curve[max(curve)]
        values = None if math.isnan(last) else [last]
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=state,
        value=None,
        values=None if values is None else list(values),
        datetime_start=_local(began),
        datetime_complete=_local(trial.end_time) if state.is_finished() else None,
        params={
            name: kept.own_choice(
                getattr(distributions[name], "choices", ()), trial.parameters[name]
            )
            for name in named
        },
        distributions={name: distributions[name] for name in named},
        user_attrs={**found.get("user_attrs", {}), **objects},
        system_attrs={
            _MARK: trial_name(record.experiment.name, record.experiment.uid, trial.number),
            **found.get("system_attrs", {}),
            **{f"constraints:{key}": value for key, value in found.get("constraints", {}).items()},
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
            m.metric.removeprefix(kept.CONSTRAINT): m.value
            for m in measured
            if m.metric.startswith(kept.CONSTRAINT)
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


def add_results(study: optuna.Study, found: optuna.Study, end: int | None = None) -> None:
    """Add the finished trials of a search to a study that may have some of them.

    end: the number of the first one that is not added.
    """
    # Imported ones have no mark.
    had = {"", *map(_mark, study.get_trials(deepcopy=False))}
    for trial in found.get_trials(deepcopy=False)[:end]:
        if trial.state.is_finished() and _mark(trial) not in had:
            study.add_trial(trial)
    for key, value in found.user_attrs.items():
        study.set_user_attr(key, value)
