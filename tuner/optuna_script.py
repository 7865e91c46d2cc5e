"""`tuner run SCRIPT`: runs a script that was written for Optuna, with `optimize_optuna` in place of
`study.optimize`.

The calls are replaced in the text of the script, and of modules that it imports and that are not
installed. A search within an objective is Optuna's.
"""

from __future__ import annotations

import ast
import json
import math
import operator
import os
import pkgutil
import re
import sys
import sysconfig
import threading
import traceback
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, FrameType, ModuleType, TracebackType
from typing import TYPE_CHECKING, Any

import tuner.optuna_kept as kept
from controller import app
from controller.app.experiment_file import FileOptions
from controller.core.attempt import RuntimeLost
from controller.core.model import MAX_NAME_LENGTH
from controller.kube.errors import ApiError
from controller.spec.problems import LocatedProblem, Mark, SpecErrors
from controller.spec.reading import script_text
from suggest.errors import InvalidArgument, NotFound, TunerError
from suggest.trial import TrialState
from tuner.experiment import merged
from tuner.functions import CALLS_FILE, SearchOptions, name_of
from tuner.optuna_results import Results, add_results, is_of_search, searches_of
from tuner.optuna_study import Point, SearchCaller, run_search
from tuner.study import Study
from tuner.trial import NAME
from tuner.waiting import in_event_loop

if TYPE_CHECKING:
    import optuna

    from tuner.session import Shell

# What is replaced, of a study and of Optuna, and the names under which a script finds it.
_METHODS = ("optimize", "enqueue_trial")
_REPLACED = (*_METHODS, "create_study")
_METHOD_OF = "__tuner_{}__"
# Packages whose calls are their own, wherever they are.
_KEPT = ("controller", "optuna", "suggest", "tuner")
_BEGINNING = Mark(1, 1)
# Of a script without a search that could be ours.
_BY_OPTUNA = (
    "its trials are run by Optuna in this process, and not stored by tuner, because neither the "
    "script nor a module beside it calls study.optimize(objective, …); to change that, write what "
    "stands between study.ask() and study.tell() as an objective"
)
# Keys of the file that follow from the study in the script.
_OF_STUDY = ("spec.objectives", "spec.objective.metric", "spec.objective.direction")
# Of a study that the script has created before, or that another program has.
_CREATED = (
    "to continue the study, call optuna.create_study(…, load_if_exists=True), or remove it with "
    "optuna.delete_study"
)
# Of a search that is Optuna's.
_NOT_STORED = "the trials are run by Optuna and not stored by tuner"
_OF_PROCESS = (
    "a process that the script has started searches; to change that, call "
    "study.optimize(…, n_jobs=N) in the script's own process"
)
_OF_BRUTE_FORCE = (
    "no search here tries each point once and then ends, as the study's BruteForceSampler does; to "
    "change that, set a GridSampler, or name another algorithm: add --set "
    "spec.algorithm.name=random"
)


def run(path: str, words: Sequence[str], shell: Shell) -> int:
    """Run the script as a program with these arguments, and return its exit code.

    A script whose only searches are those of Optuna, as with `study.ask`, is run by Optuna, and a
    line on stderr says so.

    Raises SpecErrors if it cannot be read or has no search, SystemExit as the script and `shell`
    raise it, and the errors of `optimize_optuna`.
    """
    text = script_text(path)
    tree = _parsed(path, text)
    folder = str(Path(shell.script).parent)
    _refuse_modules_named_as_ours(path, tree, folder)
    sys.path.insert(0, folder)
    calls_none = not any(
        isinstance(each, ast.Attribute) and each.attr == "optimize" for each in ast.walk(tree)
    )
    imported = {*_imported(tree)}
    is_alone = not any(map(_is_own, imported))
    if calls_none and is_alone:
        uses_optuna = any(name.startswith("optuna") for name in imported)
        _leave_to_optuna(path, shell, imported, uses_optuna=uses_optuna)
    searches = _Searches(path, shell)
    script = ModuleType("__main__")
    script.__file__ = shell.script
    code = searches.prepared(text, script)
    sys.meta_path.insert(0, _OwnModules(searches))
    sys.modules["__main__"] = script
    sys.argv = [path, *words]
    try:
        exec(code, vars(script))
    except (TunerError, ApiError, RuntimeLost):
        raise
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _of_script(error.__traceback__, shell.script))
        if type(error).__name__ == "DuplicatedStudyError":
            print(f"{path}: {_CREATED}", file=sys.stderr)
        return 1
    if calls_none and not is_alone and not searches.begun:
        _leave_to_optuna(path, shell, imported, uses_optuna="optuna" in sys.modules)
    return 0


def _leave_to_optuna(
    path: str, shell: Shell, imported: Collection[str], *, uses_optuna: bool
) -> None:
    """Say that Optuna runs the script's trials. Raises SpecErrors if it has none that it could."""
    if not uses_optuna or "tuner" in imported:
        raise _error(
            path,
            "calls no study.optimize(objective, …); call it in the script or in a module beside "
            "it. A script that calls tuner.minimize or tuner.optimize_optuna, or has its search in "
            f"an installed package, runs by itself: python {path}",
        )
    if shell.options != FileOptions():
        raise _error(path, f"{_BY_OPTUNA}. Flags such as --set have no effect on them; omit these")
    print(f"{path}: {_BY_OPTUNA}", file=sys.stderr)


def _parsed(path: str, text: str) -> ast.Module:
    """Return the code of the script. Raises SpecErrors if it is not Python."""
    try:
        tree = ast.parse(text)
        compile(tree, path, "exec", dont_inherit=True)
    except SyntaxError as error:
        mark = Mark(error.lineno or 1, error.offset or 1)
        raise _error(path, f"is not Python: {error.msg}", mark) from None
    return tree


def _refuse_modules_named_as_ours(path: str, tree: ast.Module, folder: str) -> None:
    """Raise SpecErrors if the script imports a module beside it that has the name of our package.

    It would get our package, which is loaded already.
    """
    for name in {*_imported(tree)} & {"controller", "suggest"}:
        spec = PathFinder.find_spec(name, [folder])
        if spec is not None and spec.origin is not None:
            raise _error(
                path,
                f"imports {name}, which is a package that Tuner is made of; give {spec.origin} "
                "another name",
            )


def _error(path: str, message: str, mark: Mark = _BEGINNING) -> SpecErrors:
    return SpecErrors(path, [LocatedProblem(mark, "", message)])


def _imported(tree: ast.Module) -> Iterator[str]:
    """Yield the top-level names of the modules that a script imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name.partition(".")[0] for each in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            yield node.module.partition(".")[0]


def _is_own(module: str) -> bool:
    """Return whether a module is not an installed one, also if it is not found yet."""
    if module in sys.builtin_module_names:
        return False
    spec = PathFinder.find_spec(module)
    return spec is None or _is_own_file(spec.origin)


def _is_own_file(file: str | None) -> bool:
    path = Path(file or "")
    if path.is_relative_to(sysconfig.get_path("stdlib")):
        return False
    return not {"site-packages", "dist-packages"} & set(path.parts)


@dataclass(frozen=True, slots=True)
class _OptimizeCall:
    """A call of `study.optimize`. Its search keeps it for the next run of the script.

    asked: the trials and the seconds of the call, and the points so far.
    trials, number, seconds: what the search had used when the call began, and the number of the
        call's first trial.
    """

    asked: Sequence[float]
    trials: int = 0
    number: int = 0
    seconds: float = 0.0


class _Searches:
    """The searches of a script, in the order in which it runs them.

    A script that runs again makes the same calls. A call that was followed by another one returns
    at once, with the study as it was then.
    """

    def __init__(self, path: str, shell: Shell) -> None:
        self._path = path
        self._process = os.getpid()
        # Threads of a script may search with one study.
        self._naming = threading.Lock()
        self._locks: defaultdict[str, threading.RLock] = defaultdict(threading.RLock)
        # The bounds of the constraints that the code prepared so far names.
        self._constraints: dict[str, Mapping[str, float]] = {}
        self._shell = shell
        # The module and the name of each variable that this code sets in another module.
        self._variables: set[tuple[str, str]] = set()
        overrides = [each.partition("=") for each in shell.options.overrides]
        # Calls of an earlier run count only if it had the same script and flags.
        self._run = {"script": shell.script, "set": [*shell.options.overrides]}
        self._given = {key.strip(): value.strip() for key, _, value in overrides}
        self._names: list[tuple[optuna.Study, str]] = []
        # The names of the searches that this process has run.
        self._ran: set[str] = set()
        # By the search's name.
        self._calls: defaultdict[str, list[_OptimizeCall]] = defaultdict(list)
        self._points: defaultdict[str, list[Point]] = defaultdict(list)

    @property
    def begun(self) -> bool:
        return bool(self._names)

    def prepared(self, text: str | bytes, module: ModuleType) -> CodeType:
        """Return the code of a module with its calls replaced, and define what replaces them."""
        tree = ast.parse(text)
        self._constraints |= {name: {"max": 0.0} for name in _constraints(tree)}
        self._variables |= set(_set_in_modules(tree))
        for name in _REPLACED:
            setattr(module, _METHOD_OF.format(name), _MethodOf(name, self))
        replaced = ast.fix_missing_locations(_Replaced().visit(tree))
        return compile(replaced, module.__file__ or "", "exec", dont_inherit=True)

    # Any: the arguments of a function of Optuna
    def create_study(self, *arguments: Any, **named: Any) -> optuna.Study:
        """Create a study, or load the stored one that this script has searched with before."""
        import optuna

        name = named.get("study_name")
        if name is not None and named.get("storage") is not None and self._earlier(name_of(name)):
            named["load_if_exists"] = True
        return optuna.create_study(*arguments, **named)

    # Any: the arguments of a method of Optuna
    def called(self, method: str, study: optuna.Study, *arguments: Any, **named: Any) -> None:
        """Call what replaces a method of a study, once at a time for each study.

        Where a search here cannot replace Optuna's, it is Optuna's own method, and a line says so.
        """
        if because := self._why_optunas(study):
            if method == "optimize":
                # At once, because several processes may say so.
                sys.stderr.write(f"{self._place()}: {_NOT_STORED}, because {because}\n")
            getattr(study, method)(*arguments, **named)
            return
        with self._naming:
            lock = self._locks[self._name(study)]
        # A callback is called in an event loop, maybe while another thread waits for its search.
        if not lock.acquire(blocking=not in_event_loop()):
            raise RuntimeError("Nested invocation of `Study.optimize` method isn't allowed.")
        try:
            getattr(self, f"_{method}")(study, *arguments, **named)
        finally:
            lock.release()

    def _why_optunas(self, study: optuna.Study) -> str:
        """Return why Optuna itself searches with a study; "" if it does not."""
        import optuna

        if os.getpid() != self._process:
            return _OF_PROCESS
        # With flags, it is refused.
        has_flags = self._shell.options != FileOptions()
        is_brute = isinstance(study.sampler, optuna.samplers.BruteForceSampler)
        return _OF_BRUTE_FORCE if is_brute and not has_flags else ""

    def _optimize(
        self,
        study: optuna.Study,
        func: Callable[[optuna.Trial], float | Sequence[float]],
        n_trials: int | None = None,
        timeout: float | None = None,
        n_jobs: int = 1,
        catch: Iterable[type[Exception]] | type[Exception] = (),
        callbacks: Iterable[Callable[[optuna.Study, optuna.trial.FrozenTrial], None]] | None = None,
        gc_after_trial: bool = False,
        show_progress_bar: bool = False,
    ) -> None:
        """Run a search, and add its trials to the study. See `optuna.Study.optimize`."""
        parallelism = (os.cpu_count() or 1) if n_jobs == -1 else int(n_jobs)
        if parallelism < 1:
            rule = "at least 1, or -1 for the number of CPUs"
            raise InvalidArgument.at("n_jobs", f"{n_jobs} is not possible; write {rule}")
        for key in _OF_STUDY:
            if any(f"{given}.".startswith(f"{key}.") for given in self._given):
                raise InvalidArgument.at(
                    f"--set {key}", "is what the study in the script says; change it there"
                )
        name = self._name(study)
        most_trials = math.inf if n_trials is None else int(n_trials)
        most_s = math.inf if timeout is None else float(timeout)
        call, following = self._begin_call(name, (most_trials, most_s, len(self._points[name])))
        if following is not None:
            results = Results(study, self._shell.workspace, (), None)
            results.repeat([*(callbacks or ())], self._search(name), following.number)
            add_results(study, results.of(self._search(name)), following.number)
            return
        if most_trials <= 0:
            # The script has counted the trials that its study has already.
            return
        options: SearchOptions = {
            "name": name,
            "parallelism": parallelism,
            "constraints": self._constraints,
            "callbacks": list(callbacks or ()),
            "spec": {} if n_trials is not None else {"budget": {"trials": "none"}},
        }
        if n_trials is not None:
            options["trials"] = call.trials + int(n_trials)
        if timeout is not None:
            options["timeout"] = call.seconds + float(timeout)
        if catch:
            goes_on = {"breaker": "off", "budget": {"failedTrials": "none"}}
            options["spec"] = merged(options["spec"], goes_on)
        self._add_flags(options)
        run_search(self._caller(name), func, study, self._points[name], options)

    def _add_flags(self, options: SearchOptions) -> None:
        """Set the options that flags of `tuner run` give."""
        if any(given.startswith("spec.pruning") for given in self._given):
            options["pruning"] = {}
        if "spec.algorithm.name" in self._given:
            options["algorithm"] = self._given["spec.algorithm.name"]
        flags = self._shell.options
        if runtime := flags.runtime or self._given.get("spec.runtime"):
            options["runtime"] = runtime
        if flags.namespace is not None:
            options["namespace"] = flags.namespace
        if flags.context is not None:
            options["context"] = flags.context

    def _caller(self, name: str) -> SearchCaller:
        """Return what the search with this name is called with, and note that it runs."""
        calls = {**self._run, "calls": [*map(asdict, self._calls[name])]}
        variables = {
            (module, variable): getattr(sys.modules[module], variable)
            for module, variable in sorted(self._variables)
            if hasattr(sys.modules.get(module), variable) and _is_own(module.partition(".")[0])
        }
        goes_on = name in self._ran
        self._ran.add(name)
        return SearchCaller(
            self._place(),
            self._shell,
            json.dumps(calls),
            variables,
            goes_on=goes_on,
            again=bool(self._earlier(name)),
        )

    def _enqueue_trial(
        self,
        study: optuna.Study,
        params: Mapping[str, Any],
        user_attrs: Mapping[str, Any] | None = None,
        skip_if_exists: bool = False,
    ) -> None:
        """Try a point first. See `optuna.Study.enqueue_trial`."""
        name = self._name(study)
        points = self._points[name]
        known = [point for point, _ in points]
        for trial in study.get_trials(deepcopy=False):
            # A stored study may have this search's trials from an earlier run of the script, which
            # it did not have at this point of that run.
            if self._calls[name] or not is_of_search(trial):
                known.append(trial.system_attrs.get("fixed_params", trial.params))
        if not (skip_if_exists and params in known):
            points.append((dict(params), dict(user_attrs or {})))

    def _begin_call(
        self, name: str, asked: Sequence[float]
    ) -> tuple[_OptimizeCall, _OptimizeCall | None]:
        """Note a call, and return it.

        If the script's last run made it, too, and then another one, also return that one.
        """
        earlier, place = self._earlier(name), len(self._calls[name])
        call = earlier[place] if place < len(earlier) else self._begun(name)
        is_known = place < len(earlier) and all(map(operator.le, asked, call.asked))
        if not is_known:
            call = replace(call, asked=asked)
        self._calls[name].append(call)
        was_followed = is_known and place + 1 < len(earlier)
        return call, earlier[place + 1] if was_followed else None

    def _search(self, name: str) -> Study:
        return Study(self._shell.workspace, name, self._shell.options.namespace)

    def _earlier(self, name: str) -> Sequence[_OptimizeCall]:
        """Return the calls of the script's last run, and of this one."""
        try:
            with self._shell.workspace.opened() as experiments:
                stored = app.experiments.find(experiments, name, self._shell.options.namespace)
                file = experiments.folders(stored.uid).root / CALLS_FILE
                kept = json.loads(file.read_text(encoding="utf-8"))
        except (NotFound, FileNotFoundError):
            return ()
        calls = kept.pop("calls")
        return [_OptimizeCall(**each) for each in calls] if kept == self._run else ()

    def _begun(self, name: str) -> _OptimizeCall:
        """Return a call that begins now."""
        if not self._calls[name]:
            return _OptimizeCall(())
        try:
            record = self._search(name)._record()
        except NotFound:
            return _OptimizeCall(())
        own = [entry for entry in record.trials if not entry.imported_from]
        return _OptimizeCall(
            (),
            sum(entry.state is not TrialState.CANCELLED for entry in own),
            max((entry.trial.number + 1 for entry in own), default=0),
            record.experiment.running_s,
        )

    def _place(self) -> str:
        """Return the line of the script that is being run."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code.co_filename != self._shell.script:
            frame = frame.f_back
        return self._path if frame is None else f"{self._path}:{frame.f_lineno}"

    def _name(self, study: optuna.Study) -> str:
        """Return the name of the study's search, which is the same in each run of the script."""
        given = study.study_name
        for known, name in self._names:
            # It may have been loaded again.
            if known is study or (known.study_name == given and name in searches_of(study)):
                return name
        # Optuna names a study without a name so.
        words = Path(self._path).stem if given.startswith("no-name-") else given
        first = name_of(words)
        taken = {name for _, name in self._names}
        name, number = first, 1
        while name in taken:
            number += 1
            end = f"-{number}"
            name = first[: MAX_NAME_LENGTH - len(end)].rstrip("-") + end
        self._names.append((study, name))
        return name


class _OwnModules(MetaPathFinder):
    """Finds the modules that are not installed, and replaces their calls, too."""

    def __init__(self, searches: _Searches) -> None:
        self._searches = searches

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or spec.origin is None or not isinstance(spec.loader, SourceFileLoader):
            return None
        if fullname.partition(".")[0] in _KEPT or not _is_own_file(spec.origin):
            return None
        if any(name.encode() in Path(spec.origin).read_bytes() for name in _REPLACED):
            spec.loader = _Loader(fullname, spec.origin, self._searches)
        return spec


class _Loader(SourceFileLoader):
    def __init__(self, name: str, path: str, searches: _Searches) -> None:
        super().__init__(name, path)
        self._searches = searches

    def exec_module(self, module: ModuleType) -> None:
        exec(self._searches.prepared(self.get_data(self.path), module), vars(module))


class _MethodOf:
    """Returns what replaces a method of a study; of any other object, the object's own method.

    In a trial, unpickling makes it return the object's own method, too.
    """

    def __init__(self, name: str, searches: _Searches) -> None:
        self._name = name
        self._searches = searches

    # Any: what has an attribute of this name
    def __call__(self, owner: Any) -> Any:
        import optuna

        if self._name == "create_study":
            own = getattr(owner, self._name)
            return _CreateStudy(self._searches) if own is optuna.create_study else own
        # The study of a callback has methods of its own.
        if getattr(type(owner), self._name, None) is getattr(optuna.Study, self._name):
            return partial(self._searches.called, self._name, owner)
        return getattr(owner, self._name)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return operator.attrgetter, (self._name,)


class _CreateStudy:
    """Replaces `optuna.create_study`; in a trial, unpickling makes it that function again."""

    def __init__(self, searches: _Searches) -> None:
        self._searches = searches

    # Any: the arguments of a function of Optuna
    def __call__(self, *arguments: Any, **named: Any) -> optuna.Study:
        return self._searches.create_study(*arguments, **named)

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str]]:
        return pkgutil.resolve_name, ("optuna:create_study",)


class _Replaced(ast.NodeTransformer):
    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.stmt | list[ast.stmt]:
        """Let `from optuna import create_study` bind what replaces it."""
        if node.level or node.module not in ("optuna", "optuna.study"):
            return node
        function = _METHOD_OF.format("create_study")
        bound = [each.asname or each.name for each in node.names if each.name == "create_study"]
        found = [ast.parse(f"{name} = {function}(__import__('optuna'))").body[0] for name in bound]
        return [node, *(ast.copy_location(each, node) for each in found)]

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        self.generic_visit(node)
        if node.attr not in _REPLACED or not isinstance(node.ctx, ast.Load):
            return node
        function = ast.Name(_METHOD_OF.format(node.attr), ast.Load())
        return ast.copy_location(ast.Call(function, [node.value], []), node)


def _constraints(tree: ast.AST) -> Iterator[str]:
    """Yield the constraints that a script sets, as in `trial.set_constraint("weight", w)`.

    Those whose names are not in its text are one of the search.
    """
    for node in ast.walk(tree):
        match node:
            case ast.Call(ast.Attribute(attr="set_constraint"), arguments, keywords):
                keys = [*arguments[:1], *(each.value for each in keywords if each.arg == "key")]
                match keys:
                    case [ast.Constant(str(name))] if re.fullmatch(NAME, kept.CONSTRAINT + name):
                        yield name
                    case _:
                        yield kept.SET_CONSTRAINT


def _set_in_modules(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the variables of other modules that a script sets, as in `config.DEBUG = True`."""
    modules: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Import(names):
                modules |= {each.asname or each.name: each.name for each in names}
            case ast.ImportFrom(str(package), names, 0):
                modules |= {each.asname or each.name: f"{package}.{each.name}" for each in names}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(owner, name, ast.Store()) if ast.unparse(owner) in modules:
                yield modules[ast.unparse(owner)], name


def _of_script(trace: TracebackType | None, file: str) -> TracebackType | None:
    """Return a traceback without the frames before the script's."""
    while trace is not None and trace.tb_frame.f_code.co_filename != file:
        trace = trace.tb_next
    return trace
