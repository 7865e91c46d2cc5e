"""The running trial as its program sees it: parameters, `report`, folders.

Used in the trial's own process.

Metrics are lines on standard output, which the controller reads from the trial's log; so they
survive whatever happens to either process. Those of an objective function are `tuner.NAME=VALUE`;
nothing else that it prints is a metric. Those of a script that `tuner run` starts are `NAME=VALUE`,
as if the script had printed them.
"""

from __future__ import annotations

import builtins
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from tuner.asking import ask

NAME = r"[A-Za-z_][\w./-]*"
PATTERN = rf"tuner\.({NAME})=(\S+)"
STEP = "step"
_STOP_COMES_WITHIN_S = 1.0

# Names that Optuna's trials have, and what a trial has instead.
_INSTEAD = {
    "params": "use trial.parameters",
    "should_prune": "trial.report(step, loss=0.3) raises tuner.Pruned when the trial should stop",
    "set_user_attr": "report numbers, as in trial.report(accuracy=0.9), and write other results to "
    "trial.output_dir",
}


class Pruned(Exception):  # what happened, not an error
    """The trial was asked to stop: it was pruned, cancelled, or the search was interrupted.

    Do not catch it.
    """


class Infeasible(Exception):  # what happened, not an error
    """Raise this if the parameters cannot be used.

    It is not a failure, and the search learns from it.

    The message is the reason.
    """


class Trial(Mapping[str, Any]):
    """The running trial: a mapping of its active parameters."""

    def __init__(
        self,
        parameters: Mapping[str, Any],
        objectives: Sequence[str] | None,
        constraints: Sequence[str] = (),
    ) -> None:
        """objectives, constraints: their metrics.

        None in a script, which prints metrics under their own names.
        """
        self.parameters = dict(parameters)
        self.number = (
            int(os.environ["TUNER_TRIAL_NUMBER"]) if "TUNER_TRIAL_NUMBER" in os.environ else 0
        )
        self.attempt = int(os.environ.get("TUNER_ATTEMPT", "1"))
        self._objectives = objectives
        self.needed = (*(objectives or ()), *constraints)
        self._step = -1
        # Values that parameters have to have when they are named.
        self.given: dict[str, object] = {}
        # The ranges of the parameters that it has named.
        self._named: dict[str, dict[str, object]] = {}
        self._reported: set[str] = set()
        self.stopped = False
        # Whether the objective asks if it should stop, and must not be interrupted for that.
        self.polls = False

    def __getitem__(self, name: str) -> Any:
        try:
            return self.parameters[name]
        except KeyError:
            names = ", ".join(self.parameters)
            raise KeyError(
                f"trial {self.number} has no parameter {name!r}; it has {names}"
            ) from None

    # Type checkers refuse unknown names by themselves.
    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            """Explain how to read parameters, which other libraries do by methods.

            Raises AttributeError.
            """
            if name in self.__dict__.get("parameters", ()):
                cure = f"its parameters are items: trial[{name!r}]"
            elif name.startswith("suggest_"):
                cure = (
                    "an objective written for Optuna runs by tuner.optimize_optuna(objective); "
                    "here it is trial.float('x', 0, 1), trial.int or trial.choice"
                )
            elif name in _INSTEAD:
                cure = _INSTEAD[name]
            else:
                # Raises again what a property raised.
                return object.__getattribute__(self, name)
            raise AttributeError(f"a trial has no attribute {name!r}; {cure}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.parameters)

    def __len__(self) -> builtins.int:
        return len(self.parameters)

    def float(
        self,
        name: str,
        min: builtins.float,  # as in `tuner.Float`
        max: builtins.float,
        *,
        log: bool = False,
        step: builtins.float | None = None,
    ) -> builtins.float:
        """Return the parameter, a real number from `min` to `max`.

        In a search without parameters, this is how it gets them: the value is decided now, by what
        earlier trials have shown. It is stored, so a retry of the trial gets the same. A name twice
        in a trial is the same parameter. In a search with parameters it is the one of this name.

        Args:
            name: Of the parameter.
            min: The lowest value.
            max: The highest value. Both may differ from those of earlier trials.
            log: Search on a log scale.
            step: If given, the values are min + k * step only.

        Raises:
            ValueError: the range is wrong, or an earlier trial had another kind of parameter.
        """
        shape = {"min": as_number("min", min), "max": as_number("max", max)}
        domain = {"type": "float", **shape, "scale": "log" if log else "linear"}
        if step is not None:
            domain["step"] = as_number("step", step)
        return builtins.float(self._parameter(name, domain))

    def int(
        self,
        name: str,
        min: builtins.int,  # as in `tuner.Int`
        max: builtins.int,
        *,
        log: bool = False,
        step: builtins.int = 1,
    ) -> builtins.int:
        """Return the parameter, a whole number min + k * step, at most `max`; see `float`."""
        shape = {"min": _whole("min", min), "max": _whole("max", max), "step": _whole("step", step)}
        domain = {"type": "int", **shape, "scale": "log" if log else "linear"}
        return builtins.int(self._parameter(name, domain))

    def choice(self, name: str, values: Sequence[Any]) -> Any:
        """Return the parameter, one of the values, which are the same in each trial; see `float`.

        The values are text, numbers, booleans, None, and lists and dicts of these.
        """
        given = choices(name, values)
        value = self._parameter(name, {"type": "choice", "values": given})
        # The objective's own: JSON makes lists of its tuples.
        own = next((each for each in given if _as_json(each) == _as_json(value)), value)
        self.parameters[name] = own
        return own

    def _parameter(self, name: str, domain: dict[str, Any]) -> Any:
        named = self._named.get(name, domain)
        if named["type"] != domain["type"]:
            raise ValueError(
                f"parameter {name!r} is {named['type']} and {domain['type']} in one trial; use "
                "another name for one of them"
            )
        if name not in self.parameters:
            self.parameters[name] = ask(
                name, domain, trial=self.number, attempt=self.attempt, given=self.given
            )
        # Only now: one that was refused may be named with another range.
        self._named.setdefault(name, domain)
        return self.parameters[name]

    @property
    def output_dir(self) -> Path:
        """For files of this attempt; it is kept with the experiment.

        Raises RuntimeError: see `checkpoint_dir`.
        """
        return _folder("TUNER_OUTPUT_DIR")

    @property
    def checkpoint_dir(self) -> Path:
        """Survives retries and interruptions: look here for a checkpoint before training starts.

        Raises RuntimeError: this process was started by hand, not as a trial.
        """
        return _folder("TUNER_CHECKPOINT_DIR")

    def report(
        self, step: builtins.int | None = None, *unnamed: Never, **metrics: builtins.float
    ) -> None:
        """Report metric values at a step (default: one after the highest so far).

        In an objective function, a single metric under a name that the search does not know is the
        objective's, if there is one objective.

        Raises:
            Pruned: the trial is to stop. A script is ended instead, unless it handles SIGTERM.
            TypeError: a value is not a number or has no name, or there is none.
            ValueError: a name cannot be that of a metric.
        """
        if unnamed or not metrics:
            arguments = [excerpt(value) for value in (step, *unnamed) if value is not None]
            arguments += [f"{name}={excerpt(value)}" for name, value in metrics.items()]
            raise TypeError(
                "expected a step, and metrics by name, as in trial.report(3, loss=0.25), got "
                f"trial.report({', '.join(arguments)})"
            )
        at = self._step + 1 if step is None else _whole("step", step)
        self._step = max(self._step, at)
        values = {metric_name(name): as_number(name, value) for name, value in metrics.items()}
        if len(values) == 1 and self._objectives is not None and len(self._objectives) == 1:
            (name,) = values
            values |= {} if name in self.needed else {self._objectives[0]: values[name]}
        self._reported |= values.keys()
        self._print({STEP: at, **values})
        if self.stopped and not self.polls:
            raise Pruned

    def end(self, returned: object) -> None:
        """Print what the objective returned.

        A value, a mapping of metrics, or None if it has reported them.

        Raises:
            TypeError: It is something else, or a metric of an objective or a constraint is missing.
        """
        assert self._objectives is not None, "a script has no return value"
        single = len(self._objectives) == 1
        if isinstance(returned, Mapping):
            values = {metric_name(name): as_number(name, value) for name, value in returned.items()}
        elif returned is None:
            values = {}
        elif single:
            values = {self._objectives[0]: as_number("the objective's return value", returned)}
        else:
            raise TypeError(
                f"the objective returned {returned!r}; return a mapping of {', '.join(self.needed)}"
            )
        absent = [name for name in self.needed if name not in self._reported and name not in values]
        if absent and returned is None and single and absent == list(self._objectives):
            raise TypeError(f"the objective returned None and {self._missing_value()}")
        if absent:
            raise TypeError(f"the objective neither reported nor returned {', '.join(absent)}")
        if values:
            self._print({STEP: self._step + 1, **values})

    def _missing_value(self) -> str:
        """Return what the objective reported instead of its value, and the cure."""
        assert self._objectives is not None, "a script has no return value"
        if not self._reported:
            return "reported nothing; return a number"
        names = sorted(self._reported)
        return (
            f"reported {', '.join(names)}, not {self._objectives[0]}; return a number, or say "
            f"which of them is the objective: metric={names[0]!r}"
        )

    def stop(self) -> None:
        """Raise Pruned now, in the main thread, and again at each report, unless it `polls`."""
        self.stopped = True
        if not self.polls:
            raise Pruned

    def wait_for_stop(self) -> None:
        """Wait for SIGTERM, which the controller is about to send, and which `polls` lets pass.

        The main thread handles it. If that is busy, the trial goes on after a second.
        """
        end_s = time.monotonic() + _STOP_COMES_WITHIN_S
        while not self.stopped and time.monotonic() < end_s:
            time.sleep(0.001)

    def _print(self, values: Mapping[str, builtins.float | builtins.int]) -> None:
        """One write to the descriptor, whatever the program does to sys.stdout."""
        prefix = "" if self._objectives is None else "tuner."
        line = " ".join(f"{prefix}{name}={value!r}" for name, value in values.items())
        os.write(1, f"\n{line}\n".encode())


_running: list[Trial] = []  # at most one: a process runs one trial


def begin(trial: Trial) -> None:
    """Make this the trial that `current_trial` returns."""
    _running[:] = [trial]


def current_trial(defaults: Mapping[str, Any] | None = None) -> Trial:
    """Return the trial that this process runs.

    It is that of an objective function, or of a script that `tuner run` started.

    defaults: Parameters that the experiment does not search. With them, the script can also be run
        by hand.
    """
    if not _running:
        parameters = json.loads(os.environ.get("TUNER_PARAMETERS", "{}"))
        begin(Trial({**(defaults or {}), **parameters}, None))
    return _running[0]


def as_number(name: str, value: object) -> float:
    """Return a number of Python or NumPy, or a tensor with one element, as a float.

    Raises TypeError.

    `suggest.client.search_space.measured` does the same;
    importing it would bring asyncio into every trial.
    """
    if not isinstance(value, str | bytes):
        try:
            return float(value)  # type: ignore[arg-type]  # what it cannot take is refused
        except (TypeError, ValueError, RuntimeError):
            # RuntimeError: of a tensor of PyTorch with several elements.
            pass
    raise TypeError(f"{name}: expected a number, got {excerpt(value)} ({type(value).__name__})")


def choices(name: str, values: Sequence[Any]) -> list[Any]:
    """Return the values, without NumPy's types. Raises TypeError if one cannot be a choice."""
    given = [plain(value) for value in values]
    for value in given:
        try:
            _as_json(value)
        except (TypeError, ValueError) as error:
            raise TypeError(
                f"parameter {name!r}: {excerpt(value)} cannot be a choice ({error}); choose among "
                "names, and look the object up by its name"
            ) from None
    return given


# Any: a value of a parameter; a number may be one of NumPy, which is none of JSON
def plain(value: Any) -> Any:
    is_scalar = getattr(value, "shape", None) == ()
    return value.item() if is_scalar else value


def _as_json(value: object) -> str:
    return json.dumps(value, sort_keys=True)


def excerpt(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _folder(variable: str) -> Path:
    if variable not in os.environ:
        raise RuntimeError(
            f"{variable} is not set; only a trial that tuner started has this folder"
        )
    return Path(os.environ[variable])


def metric_name(name: str) -> str:
    """Return the name of a metric. Raises ValueError if no line of a log could have it."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError(
            f"metric {name!r}: expected letters, digits and _ . / -, beginning with a letter or _"
        )
    return name


def _whole(name: str, value: object) -> int:
    number = as_number(name, value)
    if not math.isfinite(number) or number != int(number):
        raise TypeError(f"{name}: expected a whole number, got {value!r}")
    return int(number)
