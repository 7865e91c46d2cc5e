"""A script that was written for Optuna, read without running it: its call of `study.optimize`, and
what its trials need of it. Pure.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from symtable import symtable

from controller.script_values import FUNCTIONS, argument, assigned

# The samplers of Optuna that say which values are tried, and not only in which order.
FIXING_SAMPLERS = ("GridSampler", "PartialFixedSampler")
# What a trial must not do: it has no study, and would change that of the script each time.
_SEARCHES = (
    *("create_study", "load_study", "delete_study", "copy_study", "optimize"),
    *("RDBStorage", "JournalStorage", "JournalFileBackend", "GrpcStorageProxy"),
)
# What stores in Optuna's database, which a trial does not have.
_STORING = ("report_cross_validation_scores", "upload_artifact", "TorchDistributedTrial")
# What a trial knows of its study: see `tuner.optuna_trial.OptunaStudy`.
OF_STUDY = ("direction", "directions", "study_name", "stop")
_NAMED = (*FUNCTIONS, ast.ClassDef)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
_LOOPS = (ast.For, ast.AsyncFor, ast.While, *_COMPREHENSIONS)
# What calls the function that it gets once: of Typer, Abseil, Fire, Tyro and others.
_RUNNERS = ("run", "Fire", "cli")


@dataclass(frozen=True, slots=True)
class OptunaScript:
    """The module of a script.

    searches: its calls of `study.optimize`. studies: of `create_study`. enqueued: of
    `study.enqueue_trial`. loads: of `load_study`. added: of `study.add_trial`, `add_trials` and
    `tell`. storing: of _STORING. constrained: those with a
    `constraints_func`. constraints: of `trial.set_constraint`. fixing: of FIXING_SAMPLERS.
    """

    module: ast.Module
    searches: tuple[ast.Call, ...]
    studies: tuple[ast.Call, ...]
    enqueued: tuple[ast.Call, ...]
    loads: tuple[ast.Call, ...]
    added: tuple[ast.Call, ...]
    storing: tuple[ast.Call, ...]
    constrained: tuple[ast.Call, ...]
    constraints: tuple[ast.Call, ...]
    fixing: tuple[ast.Call, ...]

    @staticmethod
    def read(text: str, path: str) -> OptunaScript:
        """Raises SyntaxError."""
        module = ast.parse(text, path)

        def calls(*names: str) -> tuple[ast.Call, ...]:
            return tuple(each for each in _calls(module) if _called(each) in names)

        return OptunaScript(
            module,
            searches=calls("optimize"),
            studies=calls("create_study"),
            enqueued=calls("enqueue_trial"),
            loads=calls("load_study"),
            # Files have a `tell`, too, without arguments.
            added=tuple(each for each in calls("add_trial", "add_trials", "tell") if each.args),
            storing=calls(*_STORING),
            constrained=tuple(each for each in _calls(module) if _is_constrained(each)),
            constraints=calls("set_constraint"),
            fixing=calls(*FIXING_SAMPLERS),
        )

    def without_search(self) -> ast.Module:
        """Return the module without what makes the study, runs it, or uses it: what is left defines
        the objective. Imports and definitions stay.
        """
        return ast.Module(self._split()[0], [])

    def _split(self) -> tuple[list[ast.stmt], set[str]]:
        """Return the statements of `without_search`, and the names that only the others define."""
        names: set[str] = set()  # of studies, of what comes from them, and of what runs them
        for each in self.module.body:
            if isinstance(each, FUNCTIONS) and _runs_search(each, names):
                names.add(each.name)
        kept: list[ast.stmt] = []
        for each in self.module.body:
            defines = (*_NAMED, ast.Import, ast.ImportFrom)
            if isinstance(each, defines) or not _runs_search(each, names):
                kept.append(each)
            else:
                names |= {
                    node.id
                    for node in ast.walk(each)
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
        return kept, names - {node.name for node in kept if isinstance(node, _NAMED)}

    def of_the_search(self, objective: ast.expr) -> list[ast.expr]:
        """Return what the objective, and what it calls, use of the study of the script."""
        kept, names = self._split()
        definitions = {node.name: node for node in kept if isinstance(node, _NAMED)}
        made = names.intersection(self.study_names())
        given = list(_given_names(objective, definitions))
        # An argument of the name is the study, too.
        studies = made | {parameter for node, parameter in given if node.id in made}
        parts: list[ast.AST] = [objective]
        for part in parts:
            called = {each.id for each in ast.walk(part) if isinstance(each, ast.Name)}
            found = [node for name, node in definitions.items() if name in called]
            parts += [node for node in found if node not in parts]
        used: list[ast.expr] = []
        for part in parts:
            nodes = [each for each in ast.walk(part) if isinstance(each, ast.Name)]
            own = {each.id for each in nodes if isinstance(each.ctx, ast.Store)}
            reads = list(_reads_of_study(part, studies - own))
            used += [each for each in reads if each.attr not in OF_STUDY]
            own |= {each.arg for each in ast.walk(part) if isinstance(each, ast.arg)}
            # `undefined` returns the other names of the objective itself.
            foreign = (made if part is objective else names) - own
            known = [*(each.value for each in reads), *(node for node, _ in given)]
            used += [each for each in nodes if each.id in foreign and each not in known]
        return used

    def study_names(self) -> list[str]:
        """Return the names of the script's studies, which are assigned once, as it makes them."""
        return [name for name, value in assigned(self.module).items() if value in self._made]

    @property
    def _made(self) -> tuple[ast.Call, ...]:
        return (*self.studies, *self.loads)

    def constraint_names(self) -> list[str]:
        """Return the names of constraints that are written in the script."""
        keys = [argument(each, 0, "key") for each in self.constraints]
        names = [key.value for key in keys if isinstance(key, ast.Constant)]
        return list(dict.fromkeys(name for name in names if isinstance(name, str)))

    def repeats(self, call: ast.Call) -> bool:
        """Return whether the call may happen more than once.

        It is in a loop, or in a function that is called in a loop or twice, or passed on to
        anything but a runner.
        """
        names = [each for each in ast.walk(self.module) if isinstance(each, ast.Name)]
        todo = [call]
        for one in todo:
            around = [each for each in ast.walk(self.module) if one in ast.walk(each)]
            if any(isinstance(each, _LOOPS) for each in around):
                return True
            for function in around:
                if not isinstance(function, FUNCTIONS):
                    continue
                uses = [each for each in names if each.id == function.name]
                calls = self._calls_of(uses)
                if len(uses) > 1 or len(calls) < len(uses):
                    return True
                if any(each in ast.walk(function) for each in calls):
                    return True
                # Functions may call each other.
                todo += [each for each in calls if each not in todo]
        return False

    def _calls_of(self, uses: list[ast.Name]) -> list[ast.Call]:
        """Return the calls of a function that is used there, or that runners are given there."""
        return [
            each
            for each in _calls(self.module)
            if each.func in uses
            or (_called(each) in _RUNNERS and argument(each, 0, "main") in uses)
        ]

    def after(self, search: ast.Call) -> ast.stmt | None:
        """Return the first statement that would follow the search, and that no trial runs."""
        kept = (*_NAMED, ast.Import, ast.ImportFrom, ast.Return, ast.Pass)
        return next(
            (each for each in _after(self.module.body, search) if not isinstance(each, kept)), None
        )

    def passed_on(self) -> ast.Attribute | None:
        """Return a `study.optimize` that the script gives to something else."""
        for call in _calls(self.module):
            for given in (*call.args, *(each.value for each in call.keywords)):
                if isinstance(given, ast.Attribute) and given.attr == "optimize":
                    return given
        return None

    def undefined(self, objective: ast.expr) -> list[str]:
        """Return the names in an expression that the module without its search does not define."""
        text = ast.unparse(self.without_search())
        if any("*" in (alias.name for alias in each.names) for each in _imports(self.module)):
            return []
        symbols = symtable(text, "", "exec").get_symbols()
        known = {each.get_name() for each in symbols if each.is_assigned() or each.is_imported()}
        for node in ast.walk(self.module):
            if isinstance(node, ast.Global):
                known.update(node.names)
        # Where trials have what they know of it.
        known.update(self.study_names())
        names = [each for each in ast.walk(objective) if isinstance(each, ast.Name)]
        # Arguments of a lambda, and targets of comprehensions.
        own = {each.arg for each in ast.walk(objective) if isinstance(each, ast.arg)}
        own |= {each.id for each in names if isinstance(each.ctx, ast.Store)}
        used = {each.id for each in names} - own
        return sorted(used - known - set(dir(builtins)) - {"__file__", "__name__"})


def objective_of(search: ast.Call) -> ast.expr | None:
    """Return the first argument of a call of `study.optimize`."""
    return argument(search, 0, "func")


def _reads_of_study(tree: ast.AST, studies: Set[str]) -> Iterator[ast.Attribute]:
    """Yield what is such as `trial.study.best_value`, also by another name of the study.

    studies: the names of the script's own.
    """
    names = set(studies)
    for node in ast.walk(tree):
        match node:
            case ast.Assign([ast.Name(name)], value) if _is_study_of_trial(value):
                names.add(name)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Name(owner)) if owner in names:
                yield node
            case ast.Attribute(value) if _is_study_of_trial(value):
                yield node


def _given_names(
    objective: ast.expr,
    definitions: Mapping[str, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef],
) -> Iterator[tuple[ast.Name, str]]:
    """Yield the names that the calls in an objective pass, each with its name in the function."""
    for call in _calls(objective):
        function = definitions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        places = function.args.args if isinstance(function, FUNCTIONS) else []
        passed = [(each.value, each.arg or "") for each in call.keywords]
        passed += [(each, place.arg) for each, place in zip(call.args, places, strict=False)]
        yield from ((each, name) for each, name in passed if isinstance(each, ast.Name))


def _is_study_of_trial(node: ast.expr) -> bool:
    match node:
        case ast.Attribute(ast.Name(owner), "study"):
            return owner != "self"
    return False


def _after(body: Sequence[ast.stmt], search: ast.Call) -> Iterator[ast.stmt]:
    """Yield the statements that follow the search, within the function that it is in."""
    for place, statement in enumerate(body):
        if search not in ast.walk(statement):
            continue
        for part in (statement, *getattr(statement, "handlers", ())):
            for block in ("body", "orelse", "finalbody"):
                inner = getattr(part, block, None)
                if isinstance(inner, list):
                    yield from _after(inner, search)
        if not isinstance(statement, _NAMED):
            yield from body[place + 1 :]


def _imports(module: ast.Module) -> Iterator[ast.ImportFrom]:
    return (each for each in ast.walk(module) if isinstance(each, ast.ImportFrom))


def _calls(tree: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(tree) if isinstance(each, ast.Call))


def _is_constrained(call: ast.Call) -> bool:
    match argument(call, None, "constraints_func"):
        case None | ast.Constant(None):
            return False
    return True


def _called(call: ast.Call) -> str:
    """Return the name of the function or method; "" for those of this package."""
    match call.func:
        case ast.Attribute(ast.Name("tuner")):
            return ""
        case ast.Attribute(attr=name) | ast.Name(name):
            return name
    return ""


def _runs_search(tree: ast.AST, names: set[str]) -> bool:
    """Return whether a part of the script calls a study's functions, or uses one of the names."""
    return any(_called(each) in _SEARCHES for each in _calls(tree)) or any(
        isinstance(each, ast.Name) and each.id in names for each in ast.walk(tree)
    )
