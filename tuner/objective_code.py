"""Pickles an objective by value, with the names and the text of its source files, for the
tracebacks of its trials.

A trial cannot read the cell of a notebook, nor on a cluster the script; some versions of
cloudpickle drop the names.
"""

from __future__ import annotations

import contextlib
import dis
import functools
import importlib
import io
import linecache
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType, ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

# Locks of threads, and what makes another one. A trial is a process, whose locks no other has.
_LOCKS: dict[type, Callable[[], object]] = {
    type(threading.Lock()): threading.Lock,
    type(threading.RLock()): threading.RLock,
}


def dumps(
    objective: object, stand_ins: Sequence[tuple[object, object]]
) -> tuple[bytes, dict[str, str], bool]:
    """Return the pickled objective, the text of the files of its code, and whether it has locks.

    stand_ins: objects that the objective may use, each with what a trial has in its place.

    Raises whatever a value raises.
    """
    pickled, pickler = _dumped(objective, stand_ins)
    if pickler.scripts:
        # Its functions may use any variable of the script, which cloudpickle does not see.
        keepers = [_keeper(variables, stand_ins) for variables in pickler.scripts.values()]
        pickled, pickler = _dumped(_With(objective, keepers), stand_ins)
    texts = {name: "".join(linecache.getlines(name)) for name in sorted(pickler.files)}
    return pickled, {name: text for name, text in texts.items() if text}, pickler.has_locks


def _dumped(value: object, stand_ins: Sequence[tuple[object, object]]) -> tuple[bytes, _Pickler]:
    pickled = io.BytesIO()
    pickler = _Pickler(pickled, stand_ins)
    pickler.dump(value)
    return pickled.getvalue(), pickler


def _keeper(
    variables: dict[str, object], stand_ins: Sequence[tuple[object, object]]
) -> FunctionType:
    """Return a function that uses all variables that can be pickled."""
    names = []
    for name, value in variables.items():
        if name.isidentifier() and not name.startswith("_"):
            with contextlib.suppress(Exception):
                _dumped(value, stand_ins)
                names.append(name)
    scope: dict[str, FunctionType] = {}
    exec(f"def keep(): return [{', '.join(names)}]", {}, scope)
    return FunctionType(scope["keep"].__code__, variables)


def finds_by_text(code: CodeType) -> bool:
    """Return whether code finds variables by names in text, as in `globals()[f"make_{kind}"]`."""
    found = {
        each.argval
        for part in codes_of(code)
        for each in dis.get_instructions(part)
        if each.opname == "LOAD_GLOBAL" or each.argval == "modules"
    }
    return bool(found & {"eval", "exec", "globals"}) or found >= {"__name__", "modules"}


def codes_of(code: CodeType) -> list[CodeType]:
    """Return a function's code and that of the functions in it."""
    found = [code]
    for each in found:
        found += [part for part in each.co_consts if isinstance(part, CodeType)]
    return found


def show_in_tracebacks(sources: Mapping[str, str]) -> None:
    """Let this process's tracebacks quote these texts, whatever files so named hold now."""
    for name, text in sources.items():
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]  # Any: cloudpickle has no types
    """Keeps the file name of each code object. `files` has those that it met.

    `scripts` has the variables of scripts whose functions find some of them by names in text.
    `has_locks`: it met a lock of threads.
    """

    def __init__(self, file: io.BytesIO, stand_ins: Sequence[tuple[object, object]]) -> None:
        super().__init__(file)
        self._stand_ins = {id(replaced): stand_in for replaced, stand_in in stand_ins}
        self.files: set[str] = set()
        self.scripts: dict[int, dict[str, Any]] = {}
        self.has_locks = False

    # Any: each kind of object has attributes of its own
    def reducer_override(self, obj: Any) -> Any:
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
        if type(obj) in _LOCKS:
            self.has_locks = True
            return _LOCKS[type(obj)], ()
        if type(obj) is threading.local:
            return threading.local, ()
        # functools.singledispatch has one.
        if type(obj) is weakref.WeakKeyDictionary:
            return weakref.WeakKeyDictionary, (dict(obj),)
        is_of_script = isinstance(obj, FunctionType) and obj.__module__ == "__main__"
        if is_of_script and finds_by_text(obj.__code__):
            self.scripts[id(obj.__globals__)] = obj.__globals__
        if not isinstance(obj, CodeType):
            return super().reducer_override(obj)
        make, arguments = self.dispatch_table[CodeType](obj)
        self.files.add(obj.co_filename)
        return _with_file, (obj.co_filename, make, arguments)


class _With:
    """Is pickled as the objective, beside what shares its variables."""

    def __init__(self, objective: object, keepers: Sequence[FunctionType]) -> None:
        self._both = objective, keepers

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, object]]:
        return _first, self._both


def _first(objective: object, _keepers: object) -> object:
    return objective


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
