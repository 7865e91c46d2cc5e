"""`optimize_optuna`: the search of an objective that was written for Optuna.

The objective runs as it is: each trial is a process, and names its parameters while it runs. The
result is a study of Optuna with all trials, for its `best_params`, callbacks and figures.
"""

from __future__ import annotations

import dis
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from types import CodeType
from typing import TYPE_CHECKING, Any, Unpack

import tuner.optuna_trial as inside
from controller import app
from controller.optuna_script import FIXING_SAMPLERS, OF_STUDY
from controller.spec.script import CONSTRAINED, FIXED_VALUES
from suggest.client.search_space import refuse
from suggest.errors import InvalidArgument
from suggest.trial import TrialState as OurState
from tuner.functions import SearchOptions, search
from tuner.study import Study, workspace_of
from tuner.trial import Trial
from tuner.waiting import waited_for

if TYPE_CHECKING:
    import optuna

    from controller.folders import ExperimentFolders
    from controller.report.record import ExperimentRecord, TrialRecord

_CALLER = "tuner.optimize_optuna"
# Of trials here; all others have failed.
_STATES = {OurState.SUCCEEDED: "COMPLETE", OurState.PRUNED: "PRUNED"}


def optimize_optuna(
    objective: Callable[[optuna.Trial], float | Sequence[float]],
    study: optuna.Study | None = None,
    **options: Unpack[SearchOptions],
) -> optuna.Study:
    """Run an objective that was written for Optuna: `study.optimize` with processes.

    Args:
        objective: Is called with a trial that has the methods of `optuna.Trial`.
        study: Its directions, its median pruner and its enqueued trials are used. Without it, the
            objective is minimized, and pruned by the median.
        options: See `SearchOptions`; directions and enqueued points are those of the study, and
            `constraints` has the keys of `trial.set_constraint`: `{"weight": {"max": 0}}`.

    Returns:
        A study of Optuna with all trials of the search so far.

    Raises:
        ImportError: Optuna is not installed.
        TunerError, SearchFailed, KeyboardInterrupt: as `tuner.minimize`.
    """
    import optuna

    if not callable(objective):
        refuse(_CALLER, "objective", objective, "a function of one argument, the trial")
    if study is None:
        study = optuna.create_study()
    if not isinstance(study, optuna.Study):
        refuse(_CALLER, "study", study, "a study of Optuna, such as optuna.create_study()")
    if getattr(study.sampler, "_constraints_func", None) is not None:
        raise InvalidArgument.at(
            _CALLER, f"the study's sampler has a constraints_func; {CONSTRAINED}"
        )
    if type(study.sampler).__name__ in FIXING_SAMPLERS and "algorithm" not in options:
        raise InvalidArgument.at(
            _CALLER, f"{FIXED_VALUES}; to search without it, pass algorithm='tpe'"
        )
    if used := next(_unknown_of_study(objective, study), ""):
        raise InvalidArgument.at(
            _CALLER,
            f"the objective uses study.{used}, and each trial is a process that knows only "
            f"{', '.join(OF_STUDY)} of its study; pass what the objective needs as a value",
        )
    for each in options.get("callbacks") or ():
        if type(each).__module__.partition(".")[0] == "optuna":
            raise InvalidArgument.at(
                _CALLER,
                f"a {type(each).__name__} of Optuna needs its study; write a function of a "
                "tuner.Study and a tuner.TrialResult, which may call study.stop(), or pass trials= "
                "or target=",
            )
    for name in ("metric", "fidelity", "initial"):
        if name in options:
            raise TypeError(f"{_CALLER}: {name} is what the study of Optuna says; omit it")
    directions = [direction.name.lower() for direction in study.directions]
    count = len(directions)

    waiting = _enqueued(study)
    attributes = [trial.user_attrs for trial in waiting]
    if any(attributes) and "import_from" in options:
        raise InvalidArgument.at(
            _CALLER,
            "import_from cannot be combined with user_attrs of enqueued trials, which are the "
            "first ones; omit one",
        )

    @functools.wraps(objective)
    def of_ours(trial: Trial) -> Any:
        return inside.run(objective, trial, directions, attributes)

    metrics = inside.metrics_of(count)
    if "pruning" not in options and count == 1 and (rule := _pruning(study.pruner)) is not None:
        options["pruning"] = rule
    options["initial"] = [trial.system_attrs.get("fixed_params", {}) for trial in waiting]
    bounds = options.get("constraints") or {}
    if not isinstance(bounds, Mapping):
        refuse(_CALLER, "constraints", bounds, "a dict such as {'weight': {'max': 0}}")
    options["constraints"] = {inside.CONSTRAINT + key: bounds[key] for key in bounds}
    objectives = dict(zip(metrics, directions, strict=True))
    ran = search(
        "optimize_optuna",
        of_ours,
        None,
        objectives,
        options,
        # The objective may use it, too.
        stand_ins=[(study, inside.OptunaStudy(directions))],
    )
    record = waited_for(
        app.query.look_up(ran._workspace, ran.name, ran._namespace, measurements=True)
    )
    # Nothing is there of a search that the cluster's controller runs.
    folders = workspace_of(options.get("state_dir")).state.folders(record.experiment.uid)
    made = optuna.create_study(directions=study.directions, study_name=ran.name)
    for key, value in study.user_attrs.items():
        made.set_user_attr(key, value)
    if study.metric_names is not None:
        made.set_metric_names(study.metric_names)
    made.add_trials([_frozen(ran, record, entry, folders) for entry in record.trials])
    return made


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
            if reads and is_study and read.argval not in OF_STUDY:
                yield read.argval


def _enqueued(study: optuna.Study) -> list[optuna.trial.FrozenTrial]:
    import optuna

    waiting = optuna.trial.TrialState.WAITING
    trials = study.get_trials(deepcopy=False)
    if any(trial.state is not waiting for trial in trials):
        raise InvalidArgument.at(
            _CALLER,
            f"study {study.study_name!r} has run trials; pass a new study, whose results are those "
            "of this search",
        )
    return trials


def _pruning(pruner: optuna.pruners.BasePruner) -> dict[str, object] | None:
    import optuna

    if isinstance(pruner, optuna.pruners.NopPruner):
        return None
    if type(pruner) is not optuna.pruners.MedianPruner:
        raise InvalidArgument.at(
            _CALLER,
            f"the study has a {type(pruner).__name__}; name the rule, as in pruning='asha' or "
            "pruning='optuna:hyperband'",
        )
    shape = vars(pruner)
    return {
        "name": "optuna:median",
        "nStartupTrials": shape["_n_startup_trials"],
        "nWarmupSteps": shape["_n_warmup_steps"],
        "intervalSteps": shape["_interval_steps"],
        "nMinTrials": shape["_n_min_trials"],
    }


def _frozen(
    ran: Study, record: ExperimentRecord, entry: TrialRecord, folders: ExperimentFolders
) -> optuna.trial.FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    trial, newest = entry.trial, entry.newest
    state = TrialState[_STATES.get(entry.state, "FAIL")]
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
            **kept.get("system_attrs", {}),
            **{f"constraints:{key}": value for key, value in kept.get("constraints", {}).items()},
        },
        intermediate_values=curve,
    )


def _local(time: datetime | None) -> datetime | None:
    """Return the time as Optuna shows it: local and naive."""
    return None if time is None else time.astimezone().replace(tzinfo=None)
