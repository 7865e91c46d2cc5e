"""Rate limits of clients and quotas of namespaces, read
from the operator's file, with sensible defaults.

Pure functions that parse and validate bytes. `suggest.server.rate_limits` and
`suggest.server.quota` enforce the limits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from suggest import names, strict_yaml
from suggest.errors import Problems, did_you_mean, raise_if
from suggest.server.access.caller import UNIX

UNLIMITED = "unlimited"
_PAGE = "docs/server.md"
_NONE: Mapping[str, object] = {}


@dataclass(frozen=True, slots=True)
class RateLimit:
    """The limit of one client; None means no limit.

    `rate` calls per second on average, `burst` calls at once.
    """

    rate: float | None = 1000.0
    burst: float | None = 2000.0


@dataclass(frozen=True, slots=True)
class Quota:
    """How many studies, trials and measurements one namespace may have. None means no limit."""

    studies: int | None = 10_000
    trials: int | None = 10_000_000
    measurements: int | None = 500_000_000


_OWN = {UNIX: RateLimit(None, None)}  # only its user can reach a socket, so it needs no limit


@dataclass(frozen=True, slots=True)
class Limits:
    rate: RateLimit = RateLimit()
    quota: Quota = Quota()
    rates: Mapping[str, RateLimit] = field(default_factory=lambda: dict(_OWN))  # by client
    quotas: Mapping[str, Quota] = field(default_factory=dict)  # by namespace

    def rate_of(self, client: str) -> RateLimit:
        return self.rates.get(client, self.rate)

    def quota_of(self, namespace: str) -> Quota:
        return self.quotas.get(namespace, self.quota)


_KINDS = {f.name: int for f in dataclasses.fields(Quota)} | {
    f.name: float for f in dataclasses.fields(RateLimit)
}
S = TypeVar("S", RateLimit, Quota)


def read_limits(content: bytes, *, place: str) -> Limits:
    """Parse a file of limits, which messages call `place`.

    Raises InvalidArgument with all problems.
    """
    problems = Problems()
    document = strict_yaml.load(content, place=place, page=_PAGE)
    top = _mapping(
        {} if document is None else document, place, problems, ("defaults", "namespaces", "clients")
    )
    defaults = _numbers(top.get("defaults"), f"{place}: defaults", problems, tuple(_KINDS))
    rate, quota = _changed(RateLimit(), defaults), _changed(Quota(), defaults)
    rates, quotas = dict(_OWN), dict[str, Quota]()
    for name, of in _named(top.get("namespaces"), f"{place}: namespaces", problems).items():
        at = f"{place}: namespaces.{name[:80]}"
        if problem := names.label_problem(name):
            problems.add(at, problem)
        quotas[name] = _changed(quota, _numbers(of, at, problems, _fields(Quota)))
    for name, of in _named(top.get("clients"), f"{place}: clients", problems).items():
        rates[name] = _changed(
            rate, _numbers(of, f"{place}: clients.{name[:80]}", problems, _fields(RateLimit))
        )
    for at, limit in {
        "defaults": rate,
        **{f"clients.{name[:80]}": client_rate for name, client_rate in rates.items()},
    }.items():
        if limit.rate is not None and limit.burst is not None and limit.burst < 1:
            problems.add(
                f"{place}: {at}.burst", "must be at least 1; below that no call is accepted"
            )
    raise_if(problems)
    return Limits(rate, quota, rates, quotas)


def _mapping(
    section: object, at: str, problems: Problems, known_keys: tuple[str, ...]
) -> Mapping[str, object]:
    if not isinstance(section, dict):
        problems.add(at, f"must have at least one of {', '.join(known_keys)} below it")
        return _NONE
    for key in section:
        if key not in known_keys:
            hint = did_you_mean(str(key)[:40], known_keys)
            problems.add(at, f"unknown key {str(key)[:40]}; use {', '.join(known_keys)}{hint}")
    return {key: value for key, value in section.items() if key in known_keys}


def _named(value: object, at: str, problems: Problems) -> Mapping[str, object]:
    if value is None:
        return _NONE
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        problems.add(at, "must have names below it, and under each its limits")
        return _NONE
    return value


def _numbers(
    section: object, at: str, problems: Problems, known_keys: tuple[str, ...]
) -> dict[str, Any]:
    if section is None:
        return {}
    numbers: dict[str, Any] = {}
    for key, value in _mapping(section, at, problems, known_keys).items():
        if value == UNLIMITED:
            numbers[key] = None
        elif (
            isinstance(value, bool)
            or not isinstance(value, int | _KINDS[key])
            or not 0 <= value < 2**63
        ):
            kind = "a whole number" if _KINDS[key] is int else "a number"
            problems.add(
                f"{at}.{key}", f"{str(value)[:40]} is not a limit; use {kind} or {UNLIMITED}"
            )
        elif key == "rate" and value == 0:
            problems.add(f"{at}.rate", "0 would lock everyone out; use a number above 0")
        else:
            numbers[key] = value
    return numbers


def _fields(kind: type[RateLimit] | type[Quota]) -> tuple[str, ...]:
    return tuple(f.name for f in dataclasses.fields(kind))


def _changed(of: S, changes: Mapping[str, Any]) -> S:
    return dataclasses.replace(
        of, **{name: value for name, value in changes.items() if name in _fields(type(of))}
    )
