"""Pickles an objective by value, with the names and the text of its source files, for the
tracebacks of its trials.

A trial cannot read the cell of a notebook, nor on a cluster the script; some versions of
cloudpickle drop the names.
"""

from __future__ import annotations

import functools
import importlib
import io
import linecache
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]


def dumps(
    objective: object, stand_ins: Sequence[tuple[object, object]]
) -> tuple[bytes, dict[str, str]]:
    """Return the pickled objective, and the text of the files of its code.

    stand_ins: objects that the objective may use, each with what a trial has in its place.

    Raises whatever a value raises.
    """
    pickled = io.BytesIO()
    pickler = _Pickler(pickled, stand_ins)
    pickler.dump(objective)
    texts = {name: "".join(linecache.getlines(name)) for name in sorted(pickler.files)}
    return pickled.getvalue(), {name: text for name, text in texts.items() if text}


def show_in_tracebacks(sources: Mapping[str, str]) -> None:
    """Let this process's tracebacks quote these texts, whatever files so named hold now."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # Any: cloudpickle has no types
    """Keeps the file name of each code object. `files` has those that it met."""

    def __init__(self, file: io.BytesIO, stand_ins: Sequence[tuple[object, object]]) -> None:
        super().__init__(file)
        self._stand_ins = {id(replaced): stand_in for replaced, stand_in in stand_ins}
        self.files: set[str] = set()

    def reducer_override(self, obj: object) -> Any:
        if id(obj) in self._stand_ins:
            return _itself, (self._stand_ins[id(obj)],)
        # cloudpickle knows plain modules only, and libraries have some that load their parts late.
        if issubclass(type(obj), ModuleType) and type(obj) is not ModuleType:
            return importlib.import_module, (vars(obj)["__name__"],)
        # pickle finds a cached function by its name, which a script's trials do not have.
        if isinstance(obj, functools._lru_cache_wrapper) and not _is_importable(obj):
            return _cached, (obj.__wrapped__, obj.cache_parameters())
        if type(obj) is functools.cached_property:
            # Python 3.11 keeps a lock in it.
            attributes = {name: value for name, value in vars(obj).items() if name != "lock"}
            return functools.cached_property, (obj.func,), attributes
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        make, arguments = self.dispatch_table[CodeType](obj)
        self.files.add(obj.co_filename)
        return _with_file, (obj.co_filename, make, arguments)


def _is_importable(function: Any) -> bool:
    return function.__module__ != "__main__" and "<locals>" not in function.__qualname__


# Any: whatever a function returns
def _cached(function: Callable[..., Any], parameters: Mapping[str, Any]) -> Callable[..., Any]:
    cached: Callable[..., Any] = functools.lru_cache(**parameters)(function)
    return cached


def _itself(stand_in: object) -> object:
    return stand_in


def _with_file(file: str, make: Callable[..., CodeType], arguments: tuple[object, ...]) -> CodeType:
    return make(*arguments).replace(co_filename=file)
