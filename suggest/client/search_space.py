"""Parameters in Python code: `Float(1e-5, 1, log=True, when={"optimizer": "sgd"})`.

A wrong type raises a TypeError with the argument, the accepted types and the given value. The
service checks ranges and conditions. Nothing here makes a call.
"""

from __future__ import annotations

import math
import numbers
import operator
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, TypeAlias

from suggest import domain
from suggest.domain import Domain, Scale, Value
from suggest.errors import InvalidArgument
from suggest.space import Condition, Parameter

# Names of parameters, each with the value that makes another parameter active,
# or a list of such values.
When: TypeAlias = Mapping[str, object]
# A plain sequence is a choice. A Parameter must have its key as name, or an empty name.
Parameters: TypeAlias = Mapping[str, Domain | Parameter | Sequence[object]]

# Whose lines a warning does not name.
_OWN_PACKAGES = frozenset({"suggest", "tuner", "controller"})
_SCALES = {scale.value: scale for scale in Scale}


def Float(  # noqa: N802  # reads as the type that it makes
    min: float,
    max: float,
    scale: str | Scale = Scale.LINEAR,
    step: float | None = None,
    points: int | None = None,
    *,
    log: bool = False,
    distribution: str | None = None,
    mean: float | None = None,
    deviation: float | None = None,
    when: When | None = None,
) -> Domain | Parameter:
    """A real number from `min` to `max`.

    Args:
        min: The lowest value.
        max: The highest value.
        scale: `linear` or `log`.
        step: If given, the values are min + k * step only.
        points: The number of values that a grid search tries.
        log: `log=True` is the same as `scale="log"`.
        distribution: `normal`, truncated to the range, or None: uniform on the scale.
        mean: Of the normal distribution; the geometric mean on a log scale. By default halfway on
            the scale.
        deviation: Standard deviation, on a log scale the geometric one. By default a sixth of the
            range on the scale.
        when: The parameter is active only if these parameters have these values.

    Raises:
        TypeError: an argument has the wrong type.
    """
    low, high = number("Float", "min", min), number("Float", "max", max)
    on = _scale("Float", scale, log)
    values = domain.Float(
        low,
        high,
        on,
        None if step is None else number("Float", "step", step),
        None if points is None else whole("Float", "points", points),
        _normal("Float", domain.Normal.within(low, high, on), distribution, mean, deviation),
    )
    return _active_when("Float", when, values)


def Int(  # noqa: N802  # reads as the type that it makes
    min: int,
    max: int,
    scale: str | Scale = Scale.LINEAR,
    step: int = 1,
    *,
    log: bool = False,
    distribution: str | None = None,
    mean: float | None = None,
    deviation: float | None = None,
    when: When | None = None,
) -> Domain | Parameter:
    """A whole number min + k * step, at most `max`. All other arguments are as in `Float`.

    Raises:
        TypeError: an argument has the wrong type.
    """
    low, high = whole("Int", "min", min), whole("Int", "max", max)
    on = _scale("Int", scale, log)
    values = domain.Int(
        low,
        high,
        on,
        whole("Int", "step", step),
        _normal("Int", domain.Normal.within(low, high, on), distribution, mean, deviation),
    )
    return _active_when("Int", when, values)


# reads as the type that it makes
def Choice(values: Sequence[object], *, when: When | None = None) -> Domain | Parameter:  # noqa: N802
    """One of several values: text, numbers, booleans, None, lists and dicts of these.

    `when` is as in `Float`.

    Raises:
        TypeError: an argument has the wrong type.
    """
    if not isinstance(values, Sequence) or isinstance(values, str | bytes):
        refuse("Choice", "values", values, "a list of values")
    choices = [json_value("Choice", f"values[{k}]", value) for k, value in enumerate(values)]
    return _active_when("Choice", when, domain.Choice(tuple(choices)))


def named(parameters: Parameters, *, caller: str = "study") -> tuple[Parameter, ...]:
    """Return the parameters with their keys as names. Raises TypeError."""
    if not isinstance(parameters, Mapping):
        refuse(
            caller,
            "parameters",
            parameters,
            "a dict of names to Float, Int, Choice, a range or a list of values",
        )
    return tuple(_named(caller, name, parameter) for name, parameter in parameters.items())


def _named(caller: str, name: str, parameter: object) -> Parameter:
    place = f"parameters[{name!r}]"
    if not isinstance(name, str):
        refuse(caller, "parameters", name, "text for the name of a parameter")
    match parameter:
        case Parameter(name="", domain=domain.Float() | domain.Int() | domain.Choice()):
            return replace(parameter, name=name)
        case Parameter(domain=domain.Float() | domain.Int() | domain.Choice()):
            return parameter
        case Parameter():
            refuse(caller, f"{place}.domain", parameter.domain, "Float, Int or Choice without when")
        case domain.Float() | domain.Int() | domain.Choice():
            return Parameter(name, parameter)
        case (low, high) if isinstance(parameter, tuple) and _looks_like_a_range(low, high):
            # Other libraries take this for a range, and a search
            # of two values does not look like a mistake.
            warnings.warn(
                f"{caller}: {place}: ({low!r}, {high!r}) is a choice of two values; for those "
                f"between, too, use "
                f"Float({low!r}, {high!r}) or Int; for these two only, use [{low!r}, {high!r}]",
                stacklevel=level_of_caller(),
            )
            return _named(caller, name, Choice(parameter))
        case range() if parameter:
            low, high = sorted((parameter[0], parameter[-1]))
            return _named(caller, name, Int(low, high, step=abs(parameter.step)))
        case Sequence() if not isinstance(parameter, str | bytes):
            return _named(caller, name, Choice(parameter))
    refuse(caller, place, parameter, "Float, Int, Choice, a range or a list of values")


def level_of_caller() -> int:
    """Return the `stacklevel` for a warning about the line that called the library.

    It is the level for the function that calls this one.
    """
    level, frame = 1, sys._getframe(1)
    while (
        frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in _OWN_PACKAGES
    ):
        level, frame = level + 1, frame.f_back
    return level


def _looks_like_a_range(low: object, high: object) -> bool:
    return (
        isinstance(low, int | float)
        and isinstance(high, int | float)
        and not isinstance(low, bool)
        and low < high
    )


def _scale(caller: str, scale: object, log: object) -> Scale:
    if not isinstance(log, bool):
        refuse(caller, "log", log, "True or False")
    if not isinstance(scale, str | Scale):
        refuse(caller, "scale", scale, "'linear' or 'log'")
    member = _SCALES.get(scale) if isinstance(scale, str) else scale
    if member is None:
        raise InvalidArgument.at(f"{caller}: scale", f"expected 'linear' or 'log', got {scale!r}")
    return Scale.LOG if log else member


def _normal(
    caller: str, default: domain.Normal, distribution: object, mean: object, deviation: object
) -> domain.Normal | None:
    numbers = {
        name: number(caller, name, value)
        for name, value in (("mean", mean), ("deviation", deviation))
        if value is not None
    }
    if distribution not in (None, "normal"):
        refuse(caller, "distribution", distribution, "'normal' or None")
    if distribution is None and numbers:
        refuse(
            caller, "distribution", distribution, f"'normal' together with {' and '.join(numbers)}"
        )
    return None if distribution is None else replace(default, **numbers)


def _active_when(caller: str, when: object, values: Domain) -> Domain | Parameter:
    """Return the domain, or a parameter without a name if it is conditional."""
    if when is None:
        return values
    if not isinstance(when, Mapping):
        refuse(caller, "when", when, "a dict of parameters to values, such as {'optimizer': 'sgd'}")
    conditions = []
    for name, held in when.items():
        if not isinstance(name, str):
            refuse(caller, "when", name, "text for the name of a parameter")
        several = held if isinstance(held, list | tuple) else [held]
        place = f"when[{name!r}]"
        conditions.append(
            Condition(name, tuple(json_value(caller, place, value) for value in several))
        )
    return Parameter("", values, tuple(conditions))


# Type checks of arguments, which raise TypeError


def refuse(caller: str, argument: str, value: object, expected: str) -> NoReturn:
    text = repr(value)
    text = text if len(text) <= 80 else text[:77] + "..."
    raise TypeError(
        f"{caller}: {argument}: expected {expected}, got {text} ({type(value).__name__})"
    )


def text(caller: str, argument: str, value: object) -> str:
    return value if isinstance(value, str) else refuse(caller, argument, value, "text")


def number(caller: str, argument: str, value: object) -> float | int:
    """Return a number, also from NumPy's types."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        refuse(caller, argument, value, "a number")
    return operator.index(value) if isinstance(value, numbers.Integral) else float(value)


def whole(caller: str, argument: str, value: object) -> int:
    """Return a whole number, also from NumPy's types."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        refuse(caller, argument, value, "a whole number")
    return operator.index(value)


def measured(caller: str, argument: str, value: object) -> float:
    """Accept everything that float() accepts except text, such as a tensor with one element."""
    if not isinstance(value, str | bytes):
        try:
            return float(value)  # type: ignore[arg-type]  # what it cannot take is refused
        except (TypeError, ValueError):
            pass
    refuse(caller, argument, value, "a number")


def json_value(caller: str, argument: str, value: object) -> Value:
    """Return a JSON value, with tuples converted to lists and NumPy numbers to Python's."""
    match value:
        case None | bool() | str():
            return value
        case numbers.Integral():
            return operator.index(value)
        case numbers.Real():
            if math.isfinite(value):
                return float(value)
            return refuse(caller, argument, value, "a finite number")
        case list() | tuple():
            return [
                json_value(caller, f"{argument}[{index}]", item) for index, item in enumerate(value)
            ]
        case Mapping():
            found: dict[str, Value] = {}
            for key, item in value.items():
                if not isinstance(key, str):
                    refuse(caller, argument, key, "text for a key")
                found[key] = json_value(caller, f"{argument}.{key}", item)
            return found
    refuse(caller, argument, value, "text, a number, a boolean, None, or a list or dict of these")
