"""`optimize_optuna`: the search of an objective that was written for Optuna.

The objective runs as it is: each trial is a process, and names its parameters while it runs. The
result is a study of Optuna with all trials, for its `best_params`, callbacks and figures.
"""

from __future__ import annotations

import dis
import functools
import inspect
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, fields
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, Unpack

import tuner.optuna_kept as kept
import tuner.optuna_trial as inside
from controller import app
from controller.core.model import Overrun, ReasonCode
from controller.core.snapshot import DesiredState
from controller.runtime.registry import traits_if_known
from suggest.client.search_space import level_of_caller, refuse
from suggest.errors import InvalidArgument, NotFound, TunerError
from suggest.pruners.optuna_rules import CLASSES
from suggest.settings import camel_case
from suggest.trial import TrialState
from tuner.experiment import merged
from tuner.functions import SearchOptions, check_lists, search
from tuner.integrations.trial_log import TrialLog
from tuner.objective_code import codes_of
from tuner.optuna_results import Results, add_results, own_and_known, source
from tuner.session import CLUSTER
from tuner.study import SearchFailed, Study, workspace_of
from tuner.trial import Trial, plain
from tuner.worker import functions_of

if TYPE_CHECKING:
    import optuna

    from controller.app.workspace import Workspace
    from controller.core.model import Experiment
    from tuner.session import Shell

# What a PatientPruner may wrap.
_WRAPPED = ("median", "successive-halving", "hyperband")
# Parameters, and the attributes of the trial that gets them.
Point: TypeAlias = tuple[Mapping[str, Any], Mapping[str, Any]]
# Methods by which an objective collects what it has found.
_COLLECTING = {"add", "append", "extend", "insert", "setdefault", "update"}
# Points of a GridSampler: they are written into the experiment.
_MOST_POINTS = 10_000


def optimize_optuna(
    objective: Callable[[optuna.Trial], float | Sequence[float]],
    study: optuna.Study | None = None,
    **options: Unpack[SearchOptions],
) -> optuna.Study:
    """Run an objective that was written for Optuna: `study.optimize` with processes.

    Args:
        objective: Is called with a trial that has the methods of `optuna.Trial`.
        study: Its directions, its pruner, its sampler's `constraints_func`, and its enqueued and
            finished trials are used. Without it, the objective is minimized, and pruned by the
            median.
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
    return run_search(SearchCaller(), objective, study, (), options)


@dataclass(frozen=True, slots=True)
class SearchCaller:
    """Who asks for a search: the name that errors begin with, and how it says an option.

    calls: what a script keeps with the search.
    variables: those that a script has set in its modules, by module and name.
    goes_on: the script has just run the search. again: it has run it, perhaps in another process.
    """

    name: str = "tuner.optimize_optuna"
    shell: Shell | None = None
    calls: str = ""
    # Any: a value of a variable
    variables: Mapping[tuple[str, str], Any] = field(default_factory=dict)
    goes_on: bool = False
    again: bool = False

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

    points: those that are tried after the ones that the study waits for.
    """
    import optuna

    runtime = options.get("runtime")
    reads = runtime != CLUSTER and not traits_if_known(runtime).in_containers
    _check(caller, objective, study, options, reads=reads)
    shell, namespace = caller.shell, options.get("namespace")
    workspace = workspace_of(options.get("state_dir")) if shell is None else shell.workspace
    directions = [direction.name.lower() for direction in study.directions]
    has_objects = reads and isinstance(study._storage, optuna.storages.InMemoryStorage)
    seen = inside.OptunaStudy(
        directions,
        _plain_attributes(study),
        study.metric_names,
        state_dir=str(workspace.state.root.absolute()) if reads else None,
        namespace=namespace,
        pruner=_set_pruning(caller, study, options, reads=reads),
        has_objects=has_objects,
    )
    waiting = study.get_trials(deepcopy=False, states=[optuna.trial.TrialState.WAITING])
    first = [(each.system_attrs.get("fixed_params", {}), each.user_attrs) for each in waiting]
    points = [*first, *points]
    attributes = [attributes for _, attributes in points]
    sampler, fixed = _unfixed(study.sampler)
    _set_points(caller, sampler, fixed, [point for point, _ in points], options)
    if has_objects:
        fixed = _stored_choices(fixed)
        options["initial"] = [*map(_stored_choices, options["initial"])]
    constraints_func = getattr(sampler, "_constraints_func", None)
    bounds = dict(options.get("constraints") or {})
    if constraints_func is not None:
        bounds[kept.CONSTRAINTS_FUNC] = {"max": 0.0}
    options["constraints"] = {kept.CONSTRAINT + key: bounds[key] for key in bounds}
    stored = _stored(workspace, options)
    own, known = own_and_known(study, stored)
    if known and runtime == CLUSTER:
        raise caller.error(
            f"study {study.study_name!r} has trials, of which a search in the cluster cannot "
            "learn; pass a new study, and enqueue the best points"
        )
    before = () if stored is None else stored.spec.initial
    late = () if stored is None else attributes[len(before) :]
    if own and shell is None:
        # The study that an earlier call returned has only the points of this one.
        late, new = attributes, options["initial"]
        options["initial"] = [*before, *(each for each in new if each not in before)]
    if any(late):
        raise caller.error(
            "a point that was enqueued after the search had begun has user_attrs, which only its "
            "first trials can get; enqueue it without them"
        )
    to_import = source(study, known, bounds) if known else None
    results = Results(study, workspace, known, to_import)
    callbacks = options.get("callbacks") or ()
    if optunas := [each for each in callbacks if not isinstance(each, TrialLog)]:
        ours = [each for each in callbacks if isinstance(each, TrialLog)]
        options["callbacks"] = [*ours, results.callback(optunas)]
    if "timeout" in options:
        # As in Optuna, running trials finish.
        finish = {"budget": {"overrun": Overrun.FINISH.value}}
        options["spec"] = merged(finish, options.get("spec") or {})
    levels, variables = _levels(), caller.variables

    @functools.wraps(objective)
    def of_ours(trial: Trial) -> Any:
        inside.log_at(levels)
        inside.set_variables(variables)
        return inside.run(objective, trial, seen, attributes, constraints_func, fixed)

    try:
        if caller.again and stored is not None:
            results.repeat(optunas, Study(workspace, stored.name, namespace))
        ran = search(
            caller.name,
            of_ours,
            None,
            dict(zip(kept.metrics_of(len(directions)), directions, strict=True)),
            options,
            # The objective may use it, too.
            stand_ins=[(study, seen)],
            known=to_import,
            on_stop=DesiredState.FINISH,
            shell=shell,
            calls=caller.calls,
            goes_on=caller.goes_on,
        )
    except SearchFailed as failure:
        ran = failure.study
        if not _ended_as_in_optuna(ran, options):
            raise
    except TunerError:
        raise
    except (Exception, KeyboardInterrupt):
        # Of a callback, or of a person. A script may handle it, and use what was found, if the
        # search had begun.
        if shell is not None:
            with suppress(NotFound):
                add_results(study, results.of(Study(workspace, options["name"], namespace)))
        raise
    found = results.of(ran)
    if shell is not None:
        add_results(study, found)
    return found


def _set_pruning(
    caller: SearchCaller, study: optuna.Study, options: SearchOptions, *, reads: bool
) -> optuna.pruners.BasePruner | None:
    """Set the rule that is the study's pruner, or else return the pruner, which trials ask."""
    if "pruning" in options or len(study.directions) > 1:
        return None
    rule = pruning_of(study.pruner)
    options["pruning"] = rule or {}
    if rule is not None:
        return None
    if not reads and _reads_results(study.pruner):
        raise caller.error(
            f"the study has a {type(study.pruner).__name__}, which trials in containers cannot "
            "ask, because it reads other trials; name the rule: "
            + caller.option("pruning", "spec.pruning.name", "optuna:hyperband")
        )
    return study.pruner


def _set_points(
    caller: SearchCaller,
    sampler: optuna.samplers.BaseSampler,
    fixed: Mapping[str, object],
    points: Sequence[Mapping[str, Any]],
    options: SearchOptions,
) -> None:
    """Set the points that are tried first: those given, and then those of a grid.

    fixed: parameters that each point of a grid gets.
    """
    import optuna

    initial = [*map(dict, points)]
    options["initial"] = initial
    if "algorithm" in options:
        return
    if isinstance(sampler, optuna.samplers.BruteForceSampler):
        raise caller.error(
            "the study has a BruteForceSampler, which is not taken over: no search here tries each "
            "point once and then ends; set a GridSampler, or name another algorithm: "
            + caller.option("algorithm", "spec.algorithm.name", "random")
        )
    if isinstance(sampler, optuna.samplers.GridSampler):
        initial += [{**point, **fixed} for point in _grid(caller, sampler)]
        # As in Optuna, the search ends with the last point.
        trials = min(options.get("trials", len(initial)), len(initial))
        options["spec"] = merged(options.get("spec") or {}, {"budget": {"trials": trials}})
    elif not type(sampler).__module__.startswith("optuna."):
        warnings.warn(
            f"{caller.name}: the study has a {type(sampler).__name__}, which is not used: the "
            "search chooses the points by an algorithm of its own; name one: "
            + caller.option("algorithm", "spec.algorithm.name", "tpe"),
            stacklevel=level_of_caller(),
        )


def _stored_choices(point: Mapping[str, Any]) -> dict[str, Any]:
    return {name: kept.stored_choice(value) for name, value in point.items()}


def _levels() -> dict[str, int]:
    """Return the levels of this program's loggers; none if it has not set up logging."""
    known = logging.root.manager.loggerDict.values()
    loggers = [logging.root, *(each for each in known if isinstance(each, logging.Logger))]
    # Optuna sets up its own in each process.
    if not any(each.handlers and each.level for each in loggers if each.name != "optuna"):
        return {}
    return {each.name: each.level for each in loggers if each.level}


def _ended_as_in_optuna(ran: Study, options: SearchOptions) -> bool:
    """Return whether the search has no value, but Optuna would not raise for that, either."""
    catches = (options.get("spec") or {}).get("breaker") == "off"
    fails = any(result.state == TrialState.FAILED.value for result in ran.results())
    return ran.reason_code == ReasonCode.NO_TRIAL_SUCCEEDED.value and (catches or not fails)


def _plain_attributes(study: optuna.Study) -> dict[str, Any]:
    """Return the attributes of a study that every trial can get: those that can be JSON."""
    found: dict[str, Any] = {}
    for key, value in study.user_attrs.items():
        with suppress(TypeError, ValueError):
            json.dumps(value)
            found[key] = value
    return found


def _check(
    caller: SearchCaller,
    objective: object,
    study: object,
    options: SearchOptions,
    *,
    reads: bool,
) -> None:
    """Refuse what the search would not do. reads: trials can read the stored search."""
    import optuna

    if not callable(objective):
        refuse(caller.name, "objective", objective, "a function of one argument, the trial")
    if not isinstance(study, optuna.Study):
        refuse(caller.name, "study", study, "a study of Optuna, such as optuna.create_study()")
    known = inside.OF_STUDY + (inside.OF_RESULTS if reads else ())
    for used in _used_of_study(objective, study):
        if used not in known:
            raise caller.error(f"the objective uses study.{used}: {inside.LIMITS}")
    if changed := ", ".join(dict.fromkeys(_changed_outside(objective))):
        warnings.warn(
            f"{caller.name}: the objective changes {changed}, which is not seen outside of the "
            "trial, a process of its own: keep results with trial.set_user_attr, and read them "
            "from study.best_trial and study.trials",
            stacklevel=level_of_caller(),
        )
    for name in ("metric", "fidelity", "initial"):
        if name in options:
            raise TypeError(f"{caller.name}: {name} is what the study of Optuna says; omit it")
    check_lists(caller.name, options)
    bounds_given = options.get("constraints") or {}
    if not isinstance(bounds_given, Mapping):
        refuse(caller.name, "constraints", bounds_given, "a dict such as {'weight': {'max': 0}}")


def _grid(caller: SearchCaller, sampler: optuna.samplers.GridSampler) -> list[dict[str, Any]]:
    """Return the points of a grid, in Optuna's order."""
    points: Sequence[tuple[object, ...]] = sampler._all_grids
    if len(points) > _MOST_POINTS:
        raise caller.error(
            f"the study's GridSampler has {len(points):,} points, and at most {_MOST_POINTS:,} are "
            "taken over; search without it: "
            + caller.option("algorithm", "spec.algorithm.name", "tpe")
        )
    return [
        {name: plain(value) for name, value in zip(sampler._param_names, point, strict=True)}
        for point in points
    ]


def _unfixed(
    sampler: optuna.samplers.BaseSampler,
) -> tuple[optuna.samplers.BaseSampler, dict[str, object]]:
    """Return a sampler below those that fix parameters, and the values that these have."""
    import optuna

    fixed: dict[str, object] = {}
    while isinstance(sampler, optuna.samplers.PartialFixedSampler):
        fixed = {name: plain(value) for name, value in sampler._fixed_params.items()} | fixed
        sampler = sampler._base_sampler
    return sampler, fixed


def _stored(workspace: Workspace, options: SearchOptions) -> Experiment | None:
    """Return the search of this name, if there is one."""
    if "name" not in options:
        return None
    try:
        with workspace.opened() as experiments:
            return app.experiments.find(experiments, options["name"], options.get("namespace"))
    except NotFound:
        return None


# Any: a function, a partial one, or an object that can be called
def _used_of_study(objective: Any, study: optuna.Study) -> Iterator[str]:
    """Yield what the objective's code reads of its study."""
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
    # Also if the objective imports it.
    modules = {"optuna"} | {k for k, value in visible.items() if isinstance(value, ModuleType)}
    for each in codes_of(called.__code__):
        loads = list(dis.get_instructions(each))
        for before, owner, read in zip([None, *loads], loads, loads[1:], strict=False):
            of_self = before is not None and before.argval == "self"
            known = own if of_self else {"study"}
            # Another thing is the study of a module, such as optuna.study.
            of_module = before is not None and before.argval in modules
            is_study = owner.opname == "LOAD_ATTR" and owner.argval in known and not of_module
            is_study |= owner.opname in ("LOAD_GLOBAL", "LOAD_DEREF") and owner.argval in names
            if is_study and read.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                yield read.argval


# Any: a function, a partial one, or an object that can be called
def _changed_outside(objective: Any) -> Iterator[str]:
    """Yield the variables outside of the objective that it changes, also by its script's functions.

    These are global ones, those of enclosing functions, attributes that its object has already, and
    arguments of a partial function.
    """
    bound: Mapping[str, Any] = {}
    if isinstance(objective, functools.partial):
        given, objective = objective, objective.func
        with suppress(TypeError, ValueError):
            signature = inspect.signature(objective)
            bound = signature.bind_partial(*given.args, **given.keywords).arguments
    todo = list(functions_of(objective))
    for function in todo:
        codes = codes_of(function.__code__)
        names = {name for code in codes for name in code.co_names}
        visible = {name: function.__globals__.get(name) for name in names}
        visible |= inspect.getclosurevars(function).nonlocals
        todo += [
            each
            for each in visible.values()
            if isinstance(each, FunctionType) and each.__module__ == "__main__" and each not in todo
        ]
        owner = getattr(objective, "__self__", objective)
        is_objective = function in functions_of(objective)
        own = getattr(owner, "__dict__", {}) if is_objective else {}
        visible |= bound if is_objective else {}
        for code in codes:
            loads = list(dis.get_instructions(code))
            # Where `name[key] = value` begins, and so its name.
            stored = {_begin(each) for each in loads if each.opname == "STORE_SUBSCR"} - {None}
            for before, read, used in zip([None, *loads], loads, [*loads[1:], None], strict=False):
                of_self = before is not None and before.argval == "self"
                name, value = read.argval, visible.get(read.argval)
                if read.opname == "STORE_ATTR" and of_self and name in own:
                    yield f"self.{name}"
                elif read.opname == "STORE_GLOBAL" or (
                    read.opname == "STORE_DEREF" and name in function.__code__.co_freevars
                ):
                    yield name
                elif read.opname == "LOAD_ATTR" and of_self:
                    name, value = f"self.{name}", own.get(name)
                elif read.opname not in ("LOAD_GLOBAL", "LOAD_DEREF") and not (
                    read.opname.startswith("LOAD_FAST") and is_objective and name in bound
                ):
                    continue
                is_collection = isinstance(value, list | dict | set)
                collects = used is not None and used.argval in _COLLECTING
                stores = _begin(read) in stored and not isinstance(value, ModuleType | None)
                if (is_collection and collects) or stores:
                    yield name


def _reads_results(pruner: optuna.pruners.BasePruner) -> bool:
    """Return whether the code of a pruner, or of one that it wraps, reads other trials."""
    import optuna

    members = [member for owner in type(pruner).__mro__ for member in vars(owner).values()]
    codes = [member.__code__ for member in members if isinstance(member, FunctionType)]
    used = {name for code in codes for part in codes_of(code) for name in part.co_names}
    wrapped = [v for v in vars(pruner).values() if isinstance(v, optuna.pruners.BasePruner)]
    return bool(used & {*inside.OF_RESULTS, "_storage"}) or any(map(_reads_results, wrapped))


def _begin(instruction: dis.Instruction) -> tuple[int, int] | None:
    """Return the line and the column at which an instruction's expression begins, if known."""
    place = instruction.positions
    if place is None or place.lineno is None or place.col_offset is None:
        return None
    return place.lineno, place.col_offset


def pruning_of(pruner: optuna.pruners.BasePruner) -> dict[str, object] | None:
    """Return the rule `optuna:NAME` that is the study's pruner; None if there is none."""
    import optuna

    names = {getattr(optuna.pruners, known): name for name, (known, _) in CLASSES.items()}
    name = names.get(type(pruner))
    if name == "nop":
        return {}
    shape = {key.removeprefix("_"): value for key, value in vars(pruner).items()}
    if (wrapped := shape.get("wrapped_pruner")) is not None:
        inner = shape["wrapped_pruner"] = names.get(type(wrapped))
        # The setting is one of these names, and has no settings.
        if inner not in _WRAPPED or vars(wrapped) != vars(type(wrapped)()):
            name = None
    if name is None:
        return None
    _, settings = CLASSES[name]
    given: dict[str, object] = {"name": f"optuna:{name}"}
    for each in fields(settings):
        value = shape.get(each.name)
        # "auto", or None, is the default.
        if value not in (None, "auto", each.default):
            given[camel_case(each.name)] = value
    return given
