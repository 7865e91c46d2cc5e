"""Quantiles of the values of one parameter, and samplers that see quantiles instead of values.

The quantile at a fraction from 0 to 1 is the value below which this share of all draws lies.
Samplers place numbers evenly on a linear or a log scale, or by index. A parameter with another
distribution is therefore shown to them as a real number from 0 to 1, its fraction: an even draw of
fractions is a draw from the distribution, and a model looks closer where the distribution says that
good values are likely. Such a parameter is normally distributed, or has steps on a log scale.
Algorithms that enumerate values need no distribution, so they are shown the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import NormalDist

from suggest.domain import number
from suggest.proposal import PointRequest, Steps
from suggest.samplers.sampler import Sampler, SteppedSampler
from suggest.space import (
    Assignment,
    Choice,
    Domain,
    Float,
    Int,
    Parameter,
    Scale,
    Space,
    Value,
)
from suggest.study import StudySpec
from suggest.trial import Trial

FRACTION = Float(0.0, 1.0)


def by_index(domain: Domain) -> bool:
    """Return whether the values are countable and equally likely."""
    if isinstance(domain, Choice) or domain.count is None:
        return domain.count is not None
    if domain.normal is not None:
        return False
    is_logarithmic_float = isinstance(domain, Float) and not domain.step
    return domain.scale is Scale.LINEAR or is_logarithmic_float


def quantile(domain: Float | Int, fraction: float) -> float | int:
    """Return the value at a fraction from 0 to 1, for a domain that is not `by_index`."""
    if domain.normal is None:
        x = _between(*_ends(domain), domain.scale, fraction)
    else:
        x = _normal_quantile(domain, fraction)
    if isinstance(domain, Float) and domain.step is None:
        return float(min(max(x, domain.min), domain.max))
    step = domain.step or 1
    if isinstance(domain, Int) and step == 1:
        index = round(x) - domain.min
    else:
        index = round((x - domain.min) / step)
    assert domain.count is not None
    return domain.at(min(max(index, 0), domain.count - 1))


def fraction_of(domain: Float | Int, value: float) -> float:
    """Return the fraction whose quantile is the value, from 0 to 1.

    A value outside the range gives an end.
    """
    x = _on_scale(domain, min(max(value, domain.min), domain.max))
    if domain.normal is not None:
        curve, first, last = _curve(domain)
        return min(max((curve.cdf(x) - first) / (last - first), 0.0), 1.0)
    low, high = (_on_scale(domain, end) for end in _ends(domain))
    return (x - low) / (high - low) if high > low else 0.5


def _ends(domain: Float | Int) -> tuple[float, float]:
    """Return the ends of the range.

    They are half a step beyond the first and last value, so that these
    are as likely as others. On a log scale the lower end stays above 0:
    it is then as far from the first value, by ratio, as the next edge is.
    """
    step = domain.step
    if step is None:
        return domain.min, domain.max
    half = step / 2
    low = domain.min - half
    if domain.scale is Scale.LOG and low <= 0:
        low = max(domain.min * (domain.min / (domain.min + half)), math.ulp(0.0))
    return low, domain.max + half


def _curve(domain: Float | Int) -> tuple[NormalDist, float, float]:
    """Return the distribution on the scale, and its mass below each end of the range."""
    assert domain.normal is not None
    mean, deviation = domain.normal.mean, domain.normal.deviation
    if domain.scale is Scale.LOG:
        deviation = math.log(deviation)
    curve = NormalDist(_on_scale(domain, mean), deviation)
    first, last = (curve.cdf(_on_scale(domain, end)) for end in _ends(domain))
    return curve, first, last


def _normal_quantile(domain: Float | Int, fraction: float) -> float:
    curve, first, last = _curve(domain)
    mass = first + (last - first) * fraction
    # An end is so far from the mean that its mass is rounded.
    if not 0 < mass < 1:
        return domain.min if mass <= 0 else domain.max
    x = curve.inv_cdf(mass)
    return math.exp(x) if domain.scale is Scale.LOG else x


def _on_scale(domain: Float | Int, x: float) -> float:
    return math.log(x) if domain.scale is Scale.LOG else x


def _between(low: float, high: float, scale: Scale, fraction: float) -> float:
    if scale is Scale.LOG:
        x = math.exp(math.log(low) + (math.log(high) - math.log(low)) * fraction)
    else:
        x = low + (high - low) * fraction
    return float(min(max(x, low), high))


# Samplers


def on_quantiles(spec: StudySpec, build: Callable[[StudySpec], Sampler]) -> Sampler:
    """Return the sampler that `build` creates, shown the fractions of uneven parameters."""
    uneven: dict[str, Float | Int] = {}
    shown: list[Parameter] = []
    for parameter in spec.space.parameters:
        domain = parameter.domain
        if not isinstance(domain, Choice) and domain.is_uneven:
            uneven[parameter.name] = domain
            parameter = replace(parameter, domain=FRACTION)
        shown.append(parameter)
    if not uneven:
        return build(spec)
    earlier = tuple(
        replace(
            each,
            trials=tuple(
                replace(t, parameters=_fractions(uneven, t.parameters)) for t in each.trials
            ),
        )
        for each in spec.learn_from
    )
    prior = tuple(
        replace(each, around=_fractions(uneven, {each.parameter: each.around})[each.parameter])
        for each in spec.prior
    )
    shown_spec = replace(spec, space=Space(tuple(shown)), learn_from=earlier, prior=prior)
    return QuantileSampler(uneven, build(shown_spec))


class QuantileSampler(SteppedSampler):
    """A sampler around one that is shown the fractions of the `uneven` parameters."""

    def __init__(self, uneven: dict[str, Float | Int], sampler: Sampler) -> None:
        self._uneven = uneven
        self._sampler = sampler

    def put(self, trial: Trial) -> None:
        self._sampler.put(replace(trial, parameters=_fractions(self._uneven, trial.parameters)))

    def steps(self, wanted: Sequence[PointRequest]) -> Steps:
        points = yield from self._sampler.steps(self._as_fractions(wanted))
        return [self._values(point, one.fixed) for point, one in zip(points, wanted, strict=False)]

    def parents(self, wanted: Sequence[PointRequest]) -> Mapping[int, int]:
        return self._sampler.parents(self._as_fractions(wanted))

    def warm_up(self) -> None:
        self._sampler.warm_up()

    def _as_fractions(self, wanted: Sequence[PointRequest]) -> list[PointRequest]:
        return [replace(one, fixed=_fractions(self._uneven, one.fixed)) for one in wanted]

    def _values(self, point: Assignment, fixed: Assignment) -> dict[str, Value]:
        """Return the point with values.

        Fixed ones stay as they are: a fraction loses the last digits.
        """
        values = dict(point)
        for name, domain in self._uneven.items():
            if name in fixed:
                values[name] = fixed[name]
            elif (fraction := number(point.get(name))) is not None:
                values[name] = quantile(domain, fraction)
        return values


def _fractions(uneven: Mapping[str, Float | Int], point: Assignment) -> dict[str, Value]:
    shown = dict(point)
    for name, domain in uneven.items():
        if name in point:
            x = number(point[name])
            # Values of other types are refused before a trial is stored.
            assert x is not None
            shown[name] = fraction_of(domain, x)
    return shown
