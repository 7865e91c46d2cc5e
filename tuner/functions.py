"""`minimize` and `maximize`: the search for the parameters of a Python function, each trial in a
process of its own.

The function is pickled by value (cloudpickle), so it may be defined in a script or in a notebook's
cell, and kept in the experiment's folder. A trial is what it is for a file: an attempt with a log,
retries, a timeout and GPUs.
"""

from __future__ import annotations

import inspect
import pickle
import re
import secrets
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from numbers import Real
from os import PathLike
from pathlib import Path
from types import FunctionType
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, cast

from controller.app.experiment_file import FileOptions
from controller.core.model import (
    FINAL,
    FUNCTION_ARCHIVE,
    FUNCTION_FILE,
    FUNCTION_WORKER,
    MAX_NAME_LENGTH,
    AttemptState,
)
from controller.core.snapshot import DesiredState
from controller.phrases import command
from controller.report.formatting import ranges
from controller.runtime import trial_files
from controller.runtime.registry import traits_if_known
from controller.runtime.trial_files import DIRECTORY, TrialFiles
from controller.spec.rules import opposite_direction
from suggest.client.search_space import Parameters, level_of_caller, refuse
from suggest.errors import FailedPrecondition, InvalidArgument, did_you_mean
from suggest.imports import Source
from suggest.whole_file import replace_file
from tuner.archive import archive
from tuner.arguments import arguments_of_keys, problems_by_argument, spec_of
from tuner.code_hash import FILE as HASH_FILE
from tuner.code_hash import code_hash, differs
from tuner.experiment import BOUNDS, Experiment, merged
from tuner.importing import SOURCES, import_into
from tuner.objective_code import dumps
from tuner.running import Callback, control
from tuner.session import CLUSTER, Shell
from tuner.study import Study, workspace_of
from tuner.trial import PATTERN, STEP, Trial, metric_name
from tuner.worker import functions_of

if TYPE_CHECKING:
    from controller.app.experiment_file import ExperimentFile
    from controller.app.workspace import Workspace
    from controller.folders import ExperimentFolders

METRIC = "value"
# The file in the experiment's folder with the calls of a script that was written for Optuna.
CALLS_FILE = "calls.json"

Objective = Callable[[Trial], object]


class SearchOptions(TypedDict, total=False):
    """The keyword arguments of `minimize` and `maximize`; docs/python.md has a table of them.

    None is the default.
    """

    trials: int
    """The budget; 100 by default."""
    parallelism: int
    """Trials at a time; 1 by default."""
    name: str
    """The search's name. A stored search of this name is continued if it was interrupted or killed,
    or if its budget, or `initial` at its end, has grown. Without a name, each call is a new one."""
    metric: str
    """The name of the objective's value; "value" by default."""
    constraints: Mapping[str, Mapping[str, float]]
    """Bounds that the best trials keep, by metric: `{"latency_ms": {"max": 20}}`. The objective
    reports these metrics, or returns them in a mapping."""
    target: float
    """A value at which the search ends."""
    timeout: str | float
    """The limit of the whole search: seconds, or text such as "2h"."""
    algorithm: str
    """What chooses the points; "default" by default."""
    seed: int
    """Repeats the random numbers, and with `parallelism=1` the whole search."""
    settings: Mapping[str, object]
    """The algorithm's settings."""
    pruning: str | Mapping[str, object]
    """The name of a rule, such as "median", or a mapping with its name and settings."""
    fidelity: Mapping[str, object]
    """Run trials in steps, as `spec.fidelity` of a file: `{"parameter": "epochs", "min": 1, "max":
    81}`. The objective runs up to `trial["epochs"]`, and continues from what it has kept in
    `trial.checkpoint_dir`."""
    initial: Sequence[Mapping[str, object]]
    """Points to try first, whole or in part."""
    import_from: str | Path | Mapping[str, object]
    """Finished trials to learn from, as `tuner import --from`: a CSV file, the name of a search,
    the URL of a database. A mapping may add what its flags say: `{"source": "runs.csv", "value":
    "loss", "fill": {"depth": 3}}`, `study`. Each trial is imported once."""
    learn_from: str | Sequence[str | Mapping[str, object]]
    """Finished searches of similar tasks, by name, with the same metric: the search begins at their
    best points, and expects of others what they found. `{"study": "mlp-march", "weight": 0.5}`
    trusts one less. "auto": the most recent searches with the same parameters and metric."""
    prior: Mapping[str, Mapping[str, object]]
    """What you believe of the best values: `{"lr": {"around": 3e-4, "sure": 0.5}}`. `sure` is the
    probability that the best value is within a tenth of the range; of a choice, that it is the best
    one."""
    trial_timeout: str | float
    """The limit of one trial, in the form of `timeout`."""
    gpu: float
    """GPUs of one trial; two trials share one at 0.5."""
    runtime: str
    """Where trials run: "local", the default, or "kubernetes".

    With "cluster", the controller that is installed in the cluster runs the search, which goes on
    without this process. It needs a name and an image.
    """
    image: str
    """The container image of trials on a cluster.

    It needs this version of Python and what the objective imports.
    """
    namespace: str
    """The namespace in the cluster; the context's by default."""
    context: str
    """The context of the kubeconfig; the current one by default."""
    spec: Mapping[str, object]
    """Any other keys of an experiment file's `spec`; mappings are merged."""
    callbacks: Sequence[Callback]
    """Functions that are called here, as `callback(study, result)`, when a trial has ended.
    `study.stop()` in one ends the search; an exception ends it as Ctrl-C does, and is raised. The
    search and Ctrl-C wait until it returns."""
    state_dir: str | Path
    """Where searches are stored, as `--state-dir`."""
    progress: bool
    """Show progress on stderr; true by default."""


def minimize(
    objective: Objective, parameters: Parameters | None = None, **options: Unpack[SearchOptions]
) -> Study:
    """Search the parameters for which `objective(trial)` returns the smallest number.

    Args:
        objective: Is called with a `tuner.Trial`, in a process of its own, and returns a number.
            What it reports on the way (`trial.report(step, loss=loss)`) is kept, and judged by the
            pruning rule.
        parameters: Names to `Float`, `Int`, `Choice`, or a list of choices. Without them, the
            objective names its parameters while it runs: `trial.float("lr", 1e-5, 1, log=True)`,
            `trial.int`, `trial.choice`.
        options: See `SearchOptions`.

    Raises:
        Unpicklable: The objective cannot be sent to another process; the message names what cannot.
            It is a TunerError and a TypeError.
        TunerError: The search is not valid or cannot be run here; the message says what to do.
        SearchFailed: It failed, or it is paused until a person acts.
        KeyboardInterrupt: Ctrl-C, after running trials were ended; with a name, calling this again
            continues. With runtime="cluster" the search goes on.
    """
    return search(
        "tuner.minimize",
        objective,
        parameters,
        {options.get("metric", METRIC): "minimize"},
        options,
    )


def maximize(
    objective: Objective, parameters: Parameters | None = None, **options: Unpack[SearchOptions]
) -> Study:
    """Search the parameters for which `objective(trial)` returns the largest number.

    Otherwise like `minimize`.
    """
    return search(
        "tuner.maximize",
        objective,
        parameters,
        {options.get("metric", METRIC): "maximize"},
        options,
    )


def optimize(
    objective: Objective,
    parameters: Parameters | None,
    objectives: Mapping[str, str],
    **options: Unpack[SearchOptions],
) -> Study:
    """Search the best parameters for several metrics: the Pareto front, `Study.front`.

    Args:
        objective: As for `minimize`, but returns a mapping of metrics to numbers, or reports them.
        parameters: As for `minimize`.
        objectives: Metrics to "minimize" or "maximize".
        options: See `SearchOptions`; `metric` and `target` belong to one objective.

    Raises the errors of `minimize`.
    """
    for name in ("metric", "target"):
        if name in options:
            raise TypeError(
                f"tuner.optimize: {name} belongs to one objective; use minimize or maximize"
            )
    return search("tuner.optimize", objective, parameters, objectives, options)


def search(
    caller: str,
    objective: Objective,
    parameters: Parameters | None,
    objectives: Mapping[str, str],
    options: SearchOptions,
    *,
    stand_ins: Sequence[tuple[object, object]] = (),
    known: Source | None = None,
    on_stop: DesiredState = DesiredState.STOP,
    shell: Shell | None = None,
    calls: str = "",
    goes_on: bool = False,
) -> Study:
    """Run the search of an objective. Raises the errors of `minimize`.

    stand_ins: see `objective_code.dumps`. known: trials to learn from. on_stop: see
    `running.control`. shell: the program that runs it, if it has one. calls: what its script keeps
    with the search. goes_on: the script has just run it, perhaps with another objective.
    """
    options = _checked(caller, objective, objectives, options)
    handed_over = options.get("runtime") == CLUSTER
    runtime = "kubernetes" if handed_over else options.get("runtime")
    context = options.get("context")
    in_containers = traits_if_known(runtime).in_containers
    metrics = {
        "objectives": list(objectives),
        "constraints": list(options.get("constraints") or ()),
    }
    path = () if in_containers else sys.path
    packed, has_locks = _pickled(caller, objective, metrics, path=path, stand_ins=stand_ins)
    if has_locks and options.get("parallelism", 1) > 1:
        warnings.warn(
            f"{caller}: the objective has a lock of threads, and each trial, a process, has its "
            "own: it keeps no other trial waiting; write what trials write to files of their own",
            stacklevel=level_of_caller(),
        )
    # A search without a name is a new one.
    code = code_hash(objective) if "name" in options else ""
    script = "" if shell is None else shell.script
    kept = _KeptObjective(packed, in_containers, code, script, calls)
    experiment = _experiment(
        caller, objective, parameters, objectives, options, in_containers=in_containers
    )
    workspace = workspace_of(options.get("state_dir")) if shell is None else shell.workspace
    where = FileOptions(
        overrides=() if shell is None else shell.options.overrides,
        namespace=options.get("namespace"),
        runtime=runtime,
        context=context,
        handed_over=handed_over,
    )
    with problems_by_argument(experiment.arguments):
        file = experiment.file(where, workspace.state)
        if handed_over:
            _warn_of_directions(caller, objectives)
            return _hand_over(caller, file, options, kept)
        if "name" in options and not goes_on:
            _check_code(caller, workspace, file, kept)
        _warn_of_directions(caller, objectives)
        sources = [source for source in (options.get("import_from"), known) if source is not None]
        for source in sources:
            import_into(file, workspace, source, caller=caller, context=context)
        return control(
            workspace,
            file,
            context=context,
            progress=options.get("progress", True),
            on_admitted=lambda stored: kept.write(workspace.state.folders(stored.uid)),
            callbacks=options.get("callbacks") or (),
            on_stop=on_stop,
            shell=shell,
        )


@dataclass(frozen=True, slots=True)
class _KeptObjective:
    """What the folder of a search keeps of its objective.

    packed: what its trials need to call it. in_containers: they need it as an archive.
    code: the hash of its code. script, calls: see `search`; "" if there are none.
    """

    packed: bytes
    in_containers: bool
    code: str
    script: str
    calls: str

    def write(self, folders: ExperimentFolders) -> None:
        if self.in_containers:
            replace_file(folders.function, archive(self.packed))
        else:
            replace_file(folders.root / FUNCTION_FILE, self.packed)
        (folders.root / HASH_FILE).write_text(f"{self.code}\n{self.script}", encoding="utf-8")
        if self.calls:
            replace_file(folders.root / CALLS_FILE, self.calls.encode())


def _checked(
    caller: str, objective: object, objectives: object, options: SearchOptions
) -> SearchOptions:
    """Return the options that are given; None is the default. Raises TypeError, InvalidArgument."""
    if unknown := sorted(options.keys() - SearchOptions.__annotations__.keys()):
        raise TypeError(f"{caller}: unknown argument {unknown[0]!r}{_cure(unknown[0])}")
    if not callable(objective):
        raise TypeError(
            f"{caller}: expected a function of one argument, the trial, got {objective!r}"
        )
    given = {name: value for name, value in options.items() if value is not None}
    # mypy cannot know that these are keys of the TypedDict.
    options = cast(SearchOptions, given)
    _check_types(caller, options)
    check_lists(caller, options)
    if not isinstance(objectives, Mapping):
        refuse(
            caller,
            "objectives",
            objectives,
            "a dict of metrics to 'minimize' or 'maximize'",
        )
    _check_metrics(caller, [*objectives, *(options.get("constraints") or ())])
    if options.get("runtime") == CLUSTER:
        _check_for_cluster(caller, options)
    return options


def _experiment(
    caller: str,
    objective: Objective,
    parameters: Parameters | None,
    objectives: Mapping[str, str],
    options: SearchOptions,
    *,
    in_containers: bool,
) -> Experiment:
    """Return the search as an experiment, whose trials call the objective."""
    function = f"{DIRECTORY}/{FUNCTION_ARCHIVE}"
    worker = [sys.executable, "-m", FUNCTION_WORKER]
    return Experiment(
        options.get("name") or _new_name(objective),
        {} if parameters is None else parameters,
        ["python", function] if in_containers else worker,
        **_goal(objectives),
        constraints=options.get("constraints") or {},
        trials=options.get("trials", 100),
        parallelism=options.get("parallelism", 1),
        spec=_spec(options) | ({"defineByRun": True} if parameters is None else {}),
        source=caller,
        arguments=_arguments(parameters, objectives, options),
    )


def _check_for_cluster(caller: str, options: SearchOptions) -> None:
    """Raise InvalidArgument for a search that the controller in the cluster cannot run."""
    if "name" not in options:
        message = (
            f'name: is missing; with runtime="{CLUSTER}" the search goes on without this script, '
            "which finds it by its name when it runs again"
        )
        raise InvalidArgument.at(caller, message)
    # Here, because it loads the client of Kubernetes.
    from tuner import cluster

    cluster.refuse(caller, options)


def _hand_over(
    caller: str, file: ExperimentFile, options: SearchOptions, kept: _KeptObjective
) -> Study:
    """Let the controller in the cluster run the search. Raises the errors of `minimize`."""
    file.check_runnable()
    # Here, because it loads the client of Kubernetes.
    from tuner import cluster

    return cluster.hand_over(
        file,
        _sent_files(caller, file, archive(kept.packed)),
        caller=caller,
        context=options.get("context"),
        progress=options.get("progress", True),
        code=kept.code,
    )


def _sent_files(caller: str, file: ExperimentFile, objective: bytes) -> TrialFiles:
    """Return the files of the objective's trials. Raises FailedPrecondition."""
    paths = file.document.spec.trial.files
    own = trial_files.read(file.directory, paths)
    contents = {} if own is None else dict(own.contents or {})
    try:
        return TrialFiles.of({**contents, FUNCTION_ARCHIVE: objective})
    except FailedPrecondition as error:
        raise FailedPrecondition(
            f"{caller}: the objective is sent with the variables that it uses: {error}"
        ) from None


def _warn_of_directions(caller: str, objectives: Mapping[str, str]) -> None:
    for metric, direction in objectives.items():
        if doubt := opposite_direction(metric, direction):
            other = "minimize" if direction == "maximize" else "maximize"
            cure = (
                f"write {{{metric!r}: {other!r}}}"
                if caller == "tuner.optimize"
                else f"call tuner.{other}"
            )
            warnings.warn(f"{caller}: {doubt}; if so, {cure}", stacklevel=level_of_caller())


# Arguments that other libraries have, and what these functions have instead.
_INSTEAD = {
    "direction": "call tuner.maximize for the largest value, or tuner.minimize for the smallest",
    "directions": "call tuner.optimize, with objectives={'loss': 'minimize', 'accuracy': "
    "'maximize'}",
    "mode": "call tuner.maximize for the largest value, or tuner.minimize for the smallest",
    "n_trials": "use trials",
    "num_samples": "use trials",
    "max_evals": "use trials",
    "n_iter": "use trials",
    "n_jobs": "use parallelism",
    "study_name": "use name",
    "sampler": "use algorithm",
    "algo": "use algorithm",
    "search_alg": "use algorithm",
    "pruner": "use pruning",
    "scheduler": "use pruning",
    "storage": "use state_dir",
    "random_state": "use seed",
    "show_progress_bar": "use progress",
    "enqueue": "use initial",
    "points_to_evaluate": "use initial",
    "evaluated_rewards": "use import_from",
}


def _cure(argument: str) -> str:
    """Return the end of the sentence about an unknown argument."""
    if argument in _INSTEAD:
        return f"; {_INSTEAD[argument]}"
    return (
        did_you_mean(argument, SearchOptions.__annotations__)
        or f"; there are {', '.join(SearchOptions.__annotations__)}"
    )


def _check_code(
    caller: str, workspace: Workspace, file: ExperimentFile, new: _KeptObjective
) -> None:
    """Warn if the stored search of this name has results of another version of the objective.

    Raises FailedPrecondition if it is the search of another script.
    """
    spec = file.document.spec
    with workspace.opened(make=True) as experiments:
        stored = experiments.experiment(spec.namespace, spec.name)
        if stored is None:
            return
        file_of_hash = experiments.folders(stored.uid).root / HASH_FILE
        content = file_of_hash.read_text(encoding="utf-8") if file_of_hash.exists() else ""
        hashed, _, other = content.partition("\n")
        if not differs(hashed, new.code):
            return
        if new.script and other != new.script:
            owner = other or "a program in Python"
            raise FailedPrecondition(
                f"{caller}: {spec.name} is the search of {owner}; give the study of this script "
                f"another study_name, or first run {command('delete', spec.name)}"
            )
        with_results = {AttemptState.SUCCEEDED, AttemptState.PRUNED, AttemptState.INFEASIBLE}
        trials = {
            attempt.trial
            for attempt in experiments.attempts(stored.uid)
            if attempt.trial is not FINAL and attempt.state in with_results
        }
    if trials:
        ran = f"{'trial' if len(trials) == 1 else 'trials'} {ranges(trials)}"
        warnings.warn(
            f"{caller}: the code of the objective has changed since {spec.name} ran {ran}, "
            "and the results so far are kept; if they no longer apply, use another name, or first "
            f"run {command('delete', spec.name)}",
            stacklevel=level_of_caller(),
        )


def _arguments(
    parameters: Parameters | None, objectives: Mapping[str, str], options: SearchOptions
) -> dict[str, str]:
    """Return the arguments by the keys of the file that they set."""
    by_key = arguments_of_keys(
        {*SearchOptions.__annotations__, "parameters", "objectives"},
        written=options.get("spec") or {},
        # `Experiment` refuses anything but a mapping.
        parameters=parameters if isinstance(parameters, Mapping) else (),
        objectives=objectives,
        constraints=options.get("constraints") or (),
    )
    if len(objectives) == 1:
        by_key["spec.objective.direction"] = f"objectives[{next(iter(objectives))!r}]"
    if isinstance(options.get("pruning"), str):
        by_key["spec.pruning.name"] = "pruning"
    return by_key


_TYPES: dict[str, tuple[type | tuple[type, ...], str]] = {
    "constraints": (Mapping, BOUNDS),
    "timeout": ((Real, str), "seconds, or text such as '2h'"),
    "trial_timeout": ((Real, str), "seconds, or text such as '2h'"),
    "pruning": (
        (str, Mapping),
        "the name of a rule, such as 'median', or a dict with its name and settings",
    ),
    "import_from": ((str, PathLike, Mapping), SOURCES),
    "fidelity": (Mapping, "a dict, such as {'parameter': 'epochs', 'min': 1, 'max': 81}"),
    "learn_from": (Sequence, "'auto', or a list of names, such as ['mlp-march']"),
    "prior": (Mapping, "a dict, such as {'lr': {'around': 3e-4, 'sure': 0.5}}"),
    "spec": (Mapping, "a dict of keys of an experiment file's spec"),
    "state_dir": ((str, PathLike), "the path of a folder"),
}


def _check_types(caller: str, options: SearchOptions) -> None:
    """Refuse what could not be written as a file. Raises TypeError."""
    for name, value in options.items():
        types, expected = _TYPES.get(name, (object, ""))
        if not isinstance(value, types) or (types is not object and isinstance(value, bool)):
            refuse(caller, name, value, expected)


def check_lists(caller: str, options: SearchOptions) -> None:
    """Check what would otherwise fail only after the search has begun. Raises TypeError."""
    callbacks, initial = options.get("callbacks") or (), options.get("initial") or ()
    if not isinstance(callbacks, Sequence) or not all(map(callable, callbacks)):
        raise TypeError(f"{caller}: callbacks: expected a list of functions, got {callbacks!r}")
    if not isinstance(initial, Sequence) or not all(
        isinstance(point, Mapping) for point in initial
    ):
        raise TypeError(
            f"{caller}: initial: expected a list of points, such as [{{'lr': 0.1}}], got "
            f"{initial!r}"
        )


def _check_metrics(caller: str, names: Sequence[str]) -> None:
    """Refuse names that no trial could report. Raises InvalidArgument (a TunerError)."""
    for name in names:
        try:
            metric_name(name)
        except (TypeError, ValueError) as error:
            raise InvalidArgument.at(caller, str(error)) from error


def _goal(objectives: Mapping[str, str]) -> dict[str, Any]:
    """Return the arguments of `Experiment` for its objectives."""
    if len(objectives) != 1:
        return {"objectives": objectives}
    ((metric, direction),) = objectives.items()
    return {"metric": metric, "direction": direction}


# Options that are keys of a file with the same value; those of the second line unless empty.
_TAKEN = ("algorithm", "seed", "settings", "target", "timeout", "trial_timeout", "image")
_TAKEN_UNLESS_EMPTY = ("pruning", "fidelity", "learn_from", "prior", "initial", "gpu")


def _spec(options: SearchOptions) -> dict[str, Any]:
    """Return the options that are not arguments of `Experiment`, as keys of a file."""
    given: dict[str, object] = {"algorithm": "default"}
    for name, value in options.items():
        if name in _TAKEN or (name in _TAKEN_UNLESS_EMPTY and value):
            given[name] = value
    of_functions = {
        "metrics": {"step": STEP, "pattern": PATTERN},
        "trial": {"env": {"PYTHONUNBUFFERED": "1"}},
    }
    return merged(merged(of_functions, spec_of(given)), options.get("spec", {}))


def name_of(words: str, *, most: int = MAX_NAME_LENGTH) -> str:
    """Return the name of a search that is called so: lower-case letters, digits and dashes."""
    letters = re.sub(r"[^a-z0-9]+", "-", words.lower()).strip("-") or "search"
    return letters[:most].rstrip("-")


def _new_name(objective: Objective) -> str:
    """Return a name that no stored search has: the function's, the time, and some letters."""
    unique = f"-{datetime.now():%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    called = getattr(objective, "__name__", "search")
    return name_of(called, most=MAX_NAME_LENGTH - len(unique)) + unique


# Pickling


class Unpicklable(InvalidArgument, TypeError):
    """The objective uses a value that cannot be sent to another process."""

    reason = "UNPICKLABLE"


def _pickled(
    caller: str,
    objective: Objective,
    metrics: Mapping[str, Sequence[str]],
    *,
    path: Sequence[str],
    stand_ins: Sequence[tuple[object, object]],
) -> tuple[bytes, bool]:
    """Return what a trial needs to call the objective, and whether it has locks of threads.

    metrics: of the objectives and the constraints. path: folders of modules that the objective may
        import. stand_ins: see `objective_code.dumps`.

    Raises Unpicklable if it cannot be; the message names the value that cannot.
    """
    try:
        function, sources, has_locks = dumps(objective, stand_ins)
    except Exception as error:
        unpicklable = _unpicklable(objective, stand_ins)
        subject = f"it uses {unpicklable}, which" if unpicklable else "it"
        raise Unpicklable.at(
            caller,
            f"the objective cannot be sent to another process: {subject} cannot be pickled "
            f"({error}); create it in the objective",
        ) from error
    folders = [str(Path(folder).absolute()) for folder in path]
    about = {
        **metrics,
        "path": folders,
        "argv": sys.argv,
        "python": sys.version_info[:2],
        "sources": sources,
    }
    return pickle.dumps({"objective": function, **about}), has_locks


def _unpicklable(objective: Objective, stand_ins: Sequence[tuple[object, object]]) -> str:
    """Return the names of variables that the function uses and that cannot be pickled.

    Return "" if there are none.
    """
    used: dict[str, object] = {}
    called: object = inspect.unwrap(objective)
    if isinstance(called, partial):
        used |= called.keywords
        called = called.func
    owner = getattr(called, "__self__", called)
    if not isinstance(owner, FunctionType):
        used |= {f"self.{name}": value for name, value in getattr(owner, "__dict__", {}).items()}
    for function in functions_of(called):
        visible = inspect.getclosurevars(function)
        used |= {**visible.globals, **visible.nonlocals}
    names = []
    for name, value in used.items():
        try:
            dumps(value, stand_ins)
        except Exception:
            names.append(name)
    return ", ".join(names)
