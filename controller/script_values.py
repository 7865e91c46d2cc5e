"""What an expression of a script stands for, read without running it: literals, arithmetic, and the
names, arguments, options and settings that have one value. Pure.

What may have another value when the script runs is unknown: it is asked for, not guessed.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

UNKNOWN = object()
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_SCOPES = (*FUNCTIONS, ast.ClassDef)
# Without the power, whose result may have any size.
# Any: of numbers
_OPERATORS: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
}
# What changes a list or a dict.
_CHANGES = ("append", "extend", "insert", "remove", "pop", "clear", "update", "setdefault")


class ScriptValues:
    """The values in a module."""

    def __init__(self, module: ast.Module) -> None:
        self._module = module
        self._nodes = list(ast.walk(module))
        # The function or class around each part.
        self._scopes = dict(_scopes(module))

    def value(self, node: ast.expr) -> object:
        """Return the value of an expression; UNKNOWN if only the script that runs has it."""
        try:
            return self._read(node, ())
        except (ValueError, TypeError, ArithmeticError):
            return UNKNOWN

    def _read(self, node: ast.expr, within: Sequence[ast.expr]) -> object:
        """Raises ValueError, or what an operator raises. within: see `expression`."""
        found = self.expression(node, within)
        within = [*within, found]
        match found:
            case ast.BinOp(left, operation, right) if type(operation) in _OPERATORS:
                numbers = self._read(left, within), self._read(right, within)
                if not all(isinstance(number, int | float) for number in numbers):
                    raise ValueError
                return _OPERATORS[type(operation)](*numbers)
            case ast.UnaryOp(ast.Not(), operand):
                return not self._read(operand, within)
            case ast.Dict(keys, values):
                read = [self._read(each, within) for each in values]
                # None is `**` of another dict, which cannot be read.
                return dict(zip([ast.literal_eval(key or "") for key in keys], read, strict=True))
            case ast.List(elements):
                return [self._read(each, within) for each in elements]
            case ast.Tuple(elements):
                return tuple(self._read(each, within) for each in elements)
        return ast.literal_eval(found)

    def expression(self, node: ast.expr, within: Sequence[ast.expr] = ()) -> ast.expr:
        """Return what a name, an argument, an option, a setting or a condition stands for.

        Any other expression is returned as it is. within: the expressions that it is part of, none
        of which it can stand for.
        """
        seen = [*within, node]
        while (meaning := self._meaning(node, seen)) is not None and meaning not in seen:
            node = meaning
            seen.append(node)
        return node

    def _meaning(self, node: ast.expr, within: Sequence[ast.expr]) -> ast.expr | None:
        match node:
            case ast.Name(name):
                return self._of_name(name, self._scopes.get(node, self._module))
            case ast.IfExp(test, body, orelse):
                try:
                    return body if self._read(test, within) else orelse
                except (ValueError, TypeError, ArithmeticError):
                    return None
            case ast.Attribute(ast.Name(owner) as named, name) if not self._is_set(name):
                match self.expression(named, within):
                    case ast.Call(ast.Name(made), [], []) if made != "parse_args":
                        return self._of_class(made, name)
                    # Arguments that the script writes itself may replace a default.
                    case ast.Call(
                        ast.Name("parse_args") | ast.Attribute(attr="parse_args"),
                        [] | [ast.List([])],
                        [],
                    ):
                        return self._default_of_option(name)
                return self._of_class(owner, name)
            case ast.Subscript(ast.Name() as owner, ast.Constant(key)):
                match self.expression(owner, within):
                    case ast.Dict(keys, values):
                        items = zip(keys, values, strict=True)
                        found = [
                            v for k, v in items if isinstance(k, ast.Constant) and k.value == key
                        ]
                        return found[0] if len(found) == 1 else None
        return None

    def _of_name(self, name: str, scope: ast.AST) -> ast.expr | None:
        """Return what a name stands for in a function, a class or the module."""
        outer = (each for each in self._nodes if isinstance(each, ast.Global | ast.Nonlocal))
        if any(name in each.names for each in outer):
            return None
        while scope is not self._module:
            if isinstance(scope, FUNCTIONS):
                if name in (each.arg for each in _parameters(scope)):
                    return self._of_parameter(scope, name)
                if name in _stored(scope):
                    return self._unchanged(name, scope)
            scope = self._scopes[scope]
        return self._unchanged(name, self._module)

    def _unchanged(self, name: str, scope: ast.AST) -> ast.expr | None:
        """Return what is assigned to a name once, and not changed."""
        for each in self._nodes:
            match each:
                case ast.Subscript(ast.Name(owner), ctx=ast.Store()) if owner == name:
                    return None
                case ast.Call(ast.Attribute(ast.Name(owner), changes)):
                    if owner == name and changes in _CHANGES:
                        return None
        return assigned(scope).get(name)

    def _of_parameter(
        self, function: ast.FunctionDef | ast.AsyncFunctionDef, name: str
    ) -> ast.expr | None:
        """Return the argument of the only call of a function, or else the default."""
        uses = [
            each for each in self._nodes if isinstance(each, ast.Name) and each.id == function.name
        ]
        # An object decides how often a method is called.
        if (
            name in _stored(function)
            or len(uses) > 1
            or isinstance(self._scopes[function], ast.ClassDef)
        ):
            return None
        places = [each.arg for each in (*function.args.posonlyargs, *function.args.args)]
        for call in (each for each in self._nodes if isinstance(each, ast.Call)):
            if call.func in uses:
                if any(isinstance(each, ast.Starred) for each in call.args) or any(
                    each.arg is None for each in call.keywords
                ):
                    return None
                place = places.index(name) if name in places else None
                if (given := argument(call, place, name)) is not None:
                    return given
        return _defaults(function).get(name)

    def _of_class(self, owner: str, name: str) -> ast.expr | None:
        """Return what a class of the module assigns to a name in its body."""
        for each in self._module.body:
            if isinstance(each, ast.ClassDef) and each.name == owner:
                return assigned(each).get(name)
        return None

    def _default_of_option(self, name: str) -> ast.expr | None:
        """Return the default of an option of argparse, which nobody gives to the script."""
        options = [
            each
            for each in self._nodes
            if isinstance(each, ast.Call)
            and isinstance(each.func, ast.Attribute)
            and each.func.attr == "add_argument"
            and _destination(each) == name
        ]
        if len(options) != 1 or self._sets_defaults():
            return None
        if (default := argument(options[0], None, "default")) is not None:
            return default
        match argument(options[0], None, "action"):
            case ast.Constant("store_true"):
                return ast.Constant(False)
            case ast.Constant("store_false"):
                return ast.Constant(True)
        return None

    def _sets_defaults(self) -> bool:
        return any(isinstance(x, ast.Attribute) and x.attr == "set_defaults" for x in self._nodes)

    def _is_set(self, attribute: str) -> bool:
        """Return whether any object of the script gets a value of this name."""
        return any(
            isinstance(each, ast.Attribute)
            and each.attr == attribute
            and isinstance(each.ctx, ast.Store)
            for each in self._nodes
        )


def argument(call: ast.Call, place: int | None, name: str) -> ast.expr | None:
    """Return an argument by its place, or by its name."""
    if place is not None and place < len(call.args):
        return call.args[place]
    return next((each.value for each in call.keywords if each.arg == name), None)


def assigned(scope: ast.AST) -> dict[str, ast.expr]:
    """Return what the names stand for that a module, class or function assigns once.

    What its functions and classes assign is theirs.
    """
    values: dict[str, ast.expr] = {}
    for each in _inside_of(scope):
        match each:
            case ast.Assign(targets, value):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
                values |= dict.fromkeys(names, value)
            case ast.AnnAssign(ast.Name(name), _, ast.expr() as value):
                values[name] = value
    stored = _stored(scope)
    return {name: value for name, value in values.items() if stored.count(name) == 1}


def _inside_of(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a module, class or function without those of its functions and classes."""
    for each in ast.iter_child_nodes(scope):
        if not isinstance(each, (*_SCOPES, ast.Lambda)):
            yield each
            yield from _inside_of(each)


def _stored(scope: ast.AST) -> list[str]:
    """Return the names that a module, class or function assigns, each time."""
    # In an annotation without a value, nothing is assigned.
    declared = [
        each.target
        for each in _inside_of(scope)
        if isinstance(each, ast.AnnAssign) and each.value is None
    ]
    return [
        each.id
        for each in _inside_of(scope)
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store) and each not in declared
    ]


def _scopes(module: ast.Module) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yield each part of a module with the function or class around it, or else the module."""
    todo: list[tuple[ast.AST, ast.AST]] = [(module, module)]
    for part, scope in todo:
        around = part if isinstance(part, _SCOPES) else scope
        parts = [(each, around) for each in ast.iter_child_nodes(part)]
        yield from parts
        todo += parts


def _parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[ast.arg]:
    return (each for each in ast.walk(function.args) if isinstance(each, ast.arg))


def _defaults(function: ast.FunctionDef | ast.AsyncFunctionDef) -> dict[str, ast.expr]:
    arguments = function.args
    places = [*arguments.posonlyargs, *arguments.args]
    with_default = places[len(places) - len(arguments.defaults) :]
    found = {each.arg: value for each, value in zip(with_default, arguments.defaults, strict=True)}
    for each, value in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if value is not None:
            found[each.arg] = value
    return found


def _destination(option: ast.Call) -> str:
    """Return the attribute of an option of argparse."""
    match argument(option, None, "dest"):
        case ast.Constant(str() as name):
            return name
    for each in option.args:
        match each:
            case ast.Constant(str() as flag) if flag.startswith("--"):
                return flag[2:].replace("-", "_")
    return ""
