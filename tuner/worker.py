"""The program of a trial whose objective is a Python function:
`python -m tuner.worker`, started by the controller.

On this machine the experiment's supervisor imports this module once and forks for each trial, so it
imports little; the function is read from the experiment's folder. On a cluster it runs from the
archive of `tuner.archive`.

Calls the function with the trial, and prints what it returned. An exception ends the process with
code 1 and its traceback, without the frames of this package. Processes that the function spawns
import this module as `__mp_main__`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import FunctionType, MethodType, ModuleType, TracebackType
from typing import Any, NoReturn
from zipimport import zipimporter

from tuner.objective_code import show_in_tracebacks  # imports cloudpickle, before the fork
from tuner.trial import Infeasible, Pruned, Trial, begin

FILE = "objective.pickle"
INFEASIBLE_EXIT_CODE = 42
_PRUNED_BY_ITSELF = (
    "the objective raised tuner.Pruned, and nothing had asked the trial to stop: the rule of "
    "pruning= does that, in trial.report(); return the value so far, or raise tuner.Infeasible"
)
_PRUNED_EXIT_CODE = 143  # as of a process that SIGTERM ended


def main() -> int:
    """Run the trial and return its exit code."""
    message = pickle.loads(_packed())
    sys.path.extend(path for path in message["path"] if path not in sys.path)
    # A module of the script's may read them when it is imported. Versions before kept none.
    sys.argv = message.get("argv", sys.argv)
    if (file := _file()) is not None:
        # No folder, so imports skip it: for `_packed` in spawned processes.
        sys.path.append(str(file))
    if (packed_by := message.get("python", sys.version_info[:2])) != sys.version_info[:2]:
        theirs, ours = (
            ".".join(map(str, version)) for version in (packed_by, sys.version_info[:2])
        )
        print(
            f"the objective was pickled by Python {theirs}, and this is Python {ours}; use an "
            f"image with {theirs}"
        )
        return 1
    show_in_tracebacks(message["sources"])

    def objective() -> Any:
        try:
            function = pickle.loads(message["objective"])
        except ImportError:
            raise
        except Exception as error:
            # Some objects can be pickled and then not be loaded, such as a progress bar of tqdm.
            raise RuntimeError(
                f"the objective cannot be loaded in a trial ({error!r}): a variable that it uses "
                "cannot be sent to another process; create it in the objective"
            ) from error
        _install_script(_script_names(function))
        return function

    # Functions stored before several objectives existed have one metric.
    objectives = message.get("objectives") or [message["metric"]]
    return run_trial(objective, objectives, message.get("constraints", ()))


# Any: an objective, and what it returns
def run_trial(
    load: Callable[[], Callable[[Trial], Any]],
    objectives: Sequence[str],
    constraints: Sequence[str],
) -> int:
    """Call the objective that `load` returns with the trial, print what it returned, and return
    the exit code.

    objectives, constraints: their metrics.
    """
    owner = os.getpid()
    try:
        objective = load()
        trial = Trial(json.loads(os.environ["TUNER_PARAMETERS"]), objectives, constraints)
        begin(trial)
        signal.signal(signal.SIGTERM, lambda *_: trial.stop())
        os.register_at_fork(
            before=_hold_sigterm, after_in_parent=_take_sigterm, after_in_child=_end_by_sigterm
        )
        returned = objective(trial)
        # The value is about to be printed.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        # A child that the objective forked has come back here.
        if os.getpid() != owner:
            os._exit(0)
        trial.end(returned)
    except Pruned:
        if trial.stopped:
            return _PRUNED_EXIT_CODE
        print(_PRUNED_BY_ITSELF, flush=True)
        return 1
    except Infeasible as reason:
        print(f"{reason}" or "infeasible", flush=True)
        return INFEASIBLE_EXIT_CODE
    except Exception as error:
        sys.stdout.flush()
        traceback.print_exception(type(error), error, _without_own_frames(error.__traceback__))
        return 1
    return 0


def _hold_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _take_sigterm() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def _end_by_sigterm() -> None:
    """Let SIGTERM end a process that the objective has forked, as if there were no handler.

    A handler in Python would not run if the signal came just before a call that waits.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _take_sigterm()


def _packed() -> bytes:
    """Return what `tuner.functions` pickled.

    From the archive if this module is in one, else from the experiment.
    """
    if (file := _file()) is not None:
        return file.read_bytes()
    assert __spec__ is not None
    assert isinstance(__spec__.loader, zipimporter)
    return __spec__.loader.get_data(FILE)


def _file() -> Path | None:
    """Return the file of the function; None in an archive.

    Spawned processes find it in sys.path, which multiprocessing hands to them: the objective may
    have changed the environment. The last one is the trial's own, as a search in a trial adds the
    sys.path of that trial.
    """
    if __spec__ is not None and isinstance(__spec__.loader, zipimporter):
        return None
    if __name__ == "__mp_main__":
        for path in reversed(sys.path):
            if path.endswith(FILE):
                return Path(path)
    # <experiment>/trials/<n>/<attempt>/output
    return Path(os.environ["TUNER_OUTPUT_DIR"]).parents[3] / FILE


# Any: an objective, and whatever its script defines
def _script_names(objective: Any) -> dict[str, Any]:
    """Return the names of the objective's script; none if it is in a module, which is imported."""
    for function in functions_of(objective):
        names = function.__globals__
        if names.get("__name__") == "__main__":
            return {name: value for name, value in names.items() if not name.startswith("__")}
    return {}


def functions_of(objective: Any) -> Iterator[FunctionType]:
    """Yield the functions that a call runs.

    A decorator's and the one that it wraps, and those of partials and methods.
    """
    # The type, not isinstance(): a proxy or a lazy object may load or raise
    # when its `__class__` is read.
    kind = type(objective)
    if issubclass(kind, FunctionType):
        yield objective
    elif issubclass(kind, functools.partial):
        yield from functions_of(objective.func)
    elif issubclass(kind, MethodType):
        yield from functions_of(objective.__func__)
    elif isinstance(kind.__call__, FunctionType):
        yield from functions_of(kind.__call__)
    # Set by functools.wraps.
    if (wrapped := inspect.getattr_static(objective, "__wrapped__", None)) is not None:
        yield from functions_of(wrapped)


def _install_script(names: dict[str, Any]) -> None:
    """Let pickle find functions and classes of the script under `__main__`.

    multiprocessing and torch.save find them there, too.
    """
    if names:
        script = ModuleType("__main__")
        # What spawned processes import.
        script.__spec__ = __spec__
        script.__file__ = __file__
        vars(script).update(names)
        sys.modules["__main__"] = script


def _without_own_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the objective's own frame on."""
    while trace is not None:
        names = trace.tb_frame.f_globals
        # This module runs as `__main__`, as the objective's may.
        if names is not globals() and not names.get("__name__", "").startswith("tuner."):
            break
        trace = trace.tb_next
    return trace


def run() -> NoReturn:
    """Run the trial and end the process with its exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # It is the trial's log, whatever the console of the search can show.
            stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        code = main()
    except SystemExit as end:
        code = _exit_code(end)
    except BaseException:
        # The objective may have closed stderr.
        with contextlib.suppress(Exception):
            traceback.print_exc()
        code = 1
    for stream in (sys.stdout, sys.stderr):
        # The objective may have closed or replaced it.
        with contextlib.suppress(Exception):
            stream.flush()
    # Threads that the objective left running do not keep the trial alive.
    os._exit(code)


def _exit_code(end: SystemExit) -> int:
    if end.code is None or isinstance(end.code, int):
        return (end.code or 0) & 0xFF
    print(end.code, file=sys.stderr)
    return 1


if __name__ == "__main__":
    run()
elif __name__ == "__mp_main__":
    try:
        packed = pickle.loads(_packed())
        show_in_tracebacks(packed["sources"])
        globals().update(_script_names(pickle.loads(packed["objective"])))
    except Exception as problem:
        # A pool starts a process that fails here again, forever.
        print(
            f"a spawned process cannot load the objective: {problem!r}", file=sys.stderr, flush=True
        )
