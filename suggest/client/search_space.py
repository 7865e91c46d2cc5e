"""Parameters as a program writes them: `Float(1e-5, 1, log=True, when={"optimizer": "sgd"})`.

A wrong type is a TypeError that names the argument, what is accepted and what was given. Whether a range or a condition
makes sense is for the service to say. Nothing here sends anything.
"""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias, overload

from suggest import domain
from suggest.domain import Domain, Scale, Value
from suggest.errors import InvalidArgument, Problem
from suggest.space import Condition, Parameter

# Parameters, each with the value that makes another one active, or a list of such values.
When: TypeAlias = Mapping[str, Any]
# A plain sequence is a choice. The name of a Parameter must be its key, or empty.
Parameters: TypeAlias = Mapping[str, Domain | Parameter | Sequence[Any]]

_SCALES = {scale.value: scale for scale in Scale}


@overload
def Float(
    min: float,
    max: float,
    scale: str | Scale = ...,
    step: float | None = ...,
    points: int | None = ...,
    *,
    log: bool = ...,
    when: None = ...,
) -> domain.Float: ...
@overload
def Float(
    min: float,
    max: float,
    scale: str | Scale = ...,
    step: float | None = ...,
    points: int | None = ...,
    *,
    log: bool = ...,
    when: When,
) -> Parameter: ...
def Float(  # noqa: N802  # reads as the type that it makes
    min: float,
    max: float,
    scale: str | Scale = Scale.LINEAR,
    step: float | None = None,
    points: int | None = None,
    *,
    log: bool = False,
    when: When | None = None,
) -> domain.Float | Parameter:
    """A real number from `min` to `max`. `log=True` is `scale="log"`. `step`: only min + k * step. `points`: how many
    values a grid tries. `when`: active only when these parameters have these values.

    Raises TypeError.
    """
    made = domain.Float(
        number("Float", "min", min),
        number("Float", "max", max),
        _scale("Float", scale, log),
        None if step is None else number("Float", "step", step),
        None if points is None else whole("Float", "points", points),
    )
    return made if when is None else Parameter("", made, _conditions("Float", when))


@overload
def Int(
    min: int, max: int, scale: str | Scale = ..., step: int = ..., *, log: bool = ..., when: None = ...
) -> domain.Int: ...
@overload
def Int(min: int, max: int, scale: str | Scale = ..., step: int = ..., *, log: bool = ..., when: When) -> Parameter: ...
def Int(  # noqa: N802  # reads as the type that it makes
    min: int,
    max: int,
    scale: str | Scale = Scale.LINEAR,
    step: int = 1,
    *,
    log: bool = False,
    when: When | None = None,
) -> domain.Int | Parameter:
    """A whole number min + k * step, at most `max`. `log` and `when` as of `Float`.

    Raises TypeError.
    """
    made = domain.Int(
        whole("Int", "min", min), whole("Int", "max", max), _scale("Int", scale, log), whole("Int", "step", step)
    )
    return made if when is None else Parameter("", made, _conditions("Int", when))


@overload
def Choice(values: Sequence[Any], *, when: None = ...) -> domain.Choice: ...
@overload
def Choice(values: Sequence[Any], *, when: When) -> Parameter: ...
def Choice(values: Sequence[Any], *, when: When | None = None) -> domain.Choice | Parameter:  # noqa: N802  # reads as the type that it makes
    """One of several values: text, numbers, booleans, None, lists and dicts of these. `when` as of `Float`.

    Raises TypeError.
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        refuse("Choice", "values", values, "a list of values")
    made = domain.Choice(tuple(json_value("Choice", f"values[{k}]", value) for k, value in enumerate(values)))
    return made if when is None else Parameter("", made, _conditions("Choice", when))


def named(parameters: Parameters) -> tuple[Parameter, ...]:
    """Raises TypeError."""
    if not isinstance(parameters, Mapping):
        refuse("study", "parameters", parameters, "a dict of names to Float, Int, Choice or a list of values")
    return tuple(_named(name, given) for name, given in parameters.items())


def _named(name: str, given: object) -> Parameter:
    place = f"parameters[{name!r}]"
    if not isinstance(name, str):
        refuse("study", "parameters", name, "text for the name of a parameter")
    match given:
        case Parameter(name="", domain=domain.Float() | domain.Int() | domain.Choice()):
            return replace(given, name=name)
        case Parameter(domain=domain.Float() | domain.Int() | domain.Choice()):
            return given
        case Parameter():
            refuse("study", f"{place}.domain", given.domain, "Float, Int or Choice without when")
        case domain.Float() | domain.Int() | domain.Choice():
            return Parameter(name, given)
        case Sequence() if not isinstance(given, str | bytes):
            return Parameter(name, Choice(given))
    refuse("study", place, given, "Float, Int, Choice or a list of values")


def _scale(caller: str, scale: object, log: object) -> Scale:
    if not isinstance(log, bool):
        refuse(caller, "log", log, "True or False")
    if not isinstance(scale, str | Scale):
        refuse(caller, "scale", scale, "'linear' or 'log'")
    found = _SCALES.get(scale) if isinstance(scale, str) else scale
    if found is None:
        raise InvalidArgument([Problem(f"{caller}: scale", f"expected 'linear' or 'log', got {scale!r}")])
    return Scale.LOG if log else found


def _conditions(caller: str, when: object) -> tuple[Condition, ...]:
    if not isinstance(when, Mapping):
        refuse(caller, "when", when, "a dict of parameters to values, such as {'optimizer': 'sgd'}")
    found = []
    for name, values in when.items():
        if not isinstance(name, str):
            refuse(caller, "when", name, "text for the name of a parameter")
        several = values if isinstance(values, list | tuple) else [values]
        place = f"when[{name!r}]"
        found.append(Condition(name, tuple(json_value(caller, place, value) for value in several)))
    return tuple(found)


# Arguments of all kinds


def refuse(caller: str, argument: str, value: object, what: str) -> NoReturn:
    shown = repr(value)
    shown = shown if len(shown) <= 80 else shown[:77] + "..."
    raise TypeError(f"{caller}: {argument}: expected {what}, got {shown} ({type(value).__name__})")


def text(caller: str, argument: str, value: object) -> str:
    return value if isinstance(value, str) else refuse(caller, argument, value, "text")


def number(caller: str, argument: str, value: object) -> float | int:
    """Of NumPy too."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        refuse(caller, argument, value, "a number")
    return operator.index(value) if isinstance(value, numbers.Integral) else float(value)


def whole(caller: str, argument: str, value: object) -> int:
    """Of NumPy too."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        refuse(caller, argument, value, "a whole number")
    return operator.index(value)


def measured(caller: str, argument: str, value: object) -> float:
    """What can be turned into a number: a tensor with one element too. Text cannot."""
    if not isinstance(value, str | bytes):
        try:
            return float(value)  # type: ignore[arg-type]  # what it cannot take is refused
        except (TypeError, ValueError):
            pass
    refuse(caller, argument, value, "a number")


def json_value(caller: str, argument: str, value: object) -> Value:
    """With tuples as lists, and numbers of NumPy as Python's."""
    match value:
        case None | bool() | str():
            return value
        case numbers.Integral():
            return operator.index(value)
        case numbers.Real():
            return float(value)
        case list() | tuple():
            return [json_value(caller, argument, each) for each in value]
        case Mapping():
            return {
                key if isinstance(key, str) else refuse(caller, argument, key, "text for a key"): json_value(
                    caller, argument, each
                )
                for key, each in value.items()
            }
    refuse(caller, argument, value, "text, a number, a boolean, None, or a list or dict of these")
