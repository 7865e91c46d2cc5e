"""The runtimes by name: those of this project, and those that installed packages register.

A package registers a runtime by an entry point of the group `tuner.runtimes`: the file's
`spec.runtime` is the entry point's name, and its object is a
`controller.runtime.provider.RuntimeProvider`. Packages are searched, and providers are imported,
only for an experiment that needs them.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from controller.core.runtime_traits import BUILT_IN, DEFAULT_RUNTIME, RuntimeTraits
from suggest.errors import FailedPrecondition, InvalidArgument, did_you_mean

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from controller.runtime.provider import RuntimeProvider

GROUP = "tuner.runtimes"
KEY = "spec.runtime"

# Providers by name, as far as they are loaded.
LOADED: dict[str, RuntimeProvider] = {}


def names() -> list[str]:
    """Return the names of all runtimes, those of this project first."""
    return [*BUILT_IN, *sorted(name for name in {*_installed(), *LOADED} if name not in BUILT_IN)]


def is_known(name: str) -> bool:
    # Installed packages are searched last, because that takes milliseconds.
    return name in BUILT_IN or name in LOADED or name in _installed()


def traits_of(name: str) -> RuntimeTraits:
    """Return the traits of a runtime. Raises the errors of `provider_of`."""
    return BUILT_IN[name] if name in BUILT_IN else provider_of(name).traits


def traits_if_known(name: object) -> RuntimeTraits:
    """Return the traits of the runtime that unchecked input names, else of the default one."""
    return traits_of(name if isinstance(name, str) and is_known(name) else DEFAULT_RUNTIME)


def provider_of(name: str) -> RuntimeProvider:
    """Return the provider of a runtime.

    Raises:
        InvalidArgument: There is no runtime of that name.
        FailedPrecondition: The package that registers it cannot be imported, or registers something
        else.
    """
    if name not in LOADED:
        LOADED[name] = _built_in(name) if name in BUILT_IN else _of_package(name)
    return LOADED[name]


def _built_in(name: str) -> RuntimeProvider:
    provider: RuntimeProvider = import_module(f"controller.runtime.{name}.provider").PROVIDER
    return provider


def _of_package(name: str) -> RuntimeProvider:
    # lazy: only for runtimes of other packages
    from controller.runtime.provider import RuntimeProvider

    entry_point = _installed().get(name)
    if entry_point is None:
        raise InvalidArgument.at(KEY, unknown(name))
    package = "a package"
    if entry_point.dist is not None:
        package = f"{entry_point.dist.name} {entry_point.dist.version}"
    try:
        provider = entry_point.load()
    # Whatever the package raises, the message names the package.
    except Exception as error:
        raise FailedPrecondition(
            f"the runtime {name} of {package} cannot be loaded: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(provider, RuntimeProvider):
        raise FailedPrecondition(
            f"the runtime {name} of {package} is not a RuntimeProvider: {entry_point.value} is "
            f"{provider!r}"
        )
    return provider


def unknown(name: str) -> str:
    """Return the message for a runtime that is neither part of this project nor installed."""
    return (
        f"{name!r} is not a runtime; known here: {', '.join(names())}; another one needs its "
        f"package beside tuner"
        f"{did_you_mean(name, names())}"
    )


@lru_cache(1)
def _installed() -> dict[str, EntryPoint]:
    from importlib.metadata import entry_points  # lazy: importing it and searching takes 20 ms

    return {entry_point.name: entry_point for entry_point in entry_points(group=GROUP)}
