"""Optuna's trial as an objective sees it, on top of a trial of ours. Used in the trial's process.

What only Optuna's results have is kept in a file of the attempt, which `tuner.optuna_study` reads;
in a container, whose files go with it, in the last line of the log.
Optuna is imported when the objective raises its exception or reads a distribution.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import importlib
import io
import json
import logging
import math
import os
import pickle
import sys
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from fractions import Fraction
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import tuner.optuna_kept as kept
from tuner.asking import ANSWERS, end_search, is_advised_to_stop
from tuner.trial import Infeasible, Pruned, Trial, as_number, excerpt, plain
from tuner.trial import choices as named_choices

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution
    from optuna.study import StudyDirection
    from optuna.trial import FrozenTrial

# What a trial knows of its study, and what it reads of the stored search if it can.
OF_STUDY = ("direction", "directions", "metric_names", "stop", "study_name", "user_attrs")
OF_RESULTS = (
    "best_params",
    "best_trial",
    "best_trials",
    "best_value",
    "best_values",
    "get_trials",
    "trials",
    "trials_dataframe",
)
LIMITS = (
    f"a trial is a process that knows only {', '.join(OF_STUDY)} of its study, and where it shares "
    f"files with its search {', '.join(OF_RESULTS)}; pass what the objective needs as a value"
)

# Threads of an objective may set attributes. Not of a trial, which may be pickled.
_WRITING = threading.Lock()


class OptunaStudy:
    """What a trial knows of its study."""

    # PyTorchLightningPruningCallback looks for Optuna's own database there, as it does without DDP.
    _storage = None

    def __init__(
        self,
        directions: Sequence[str],
        user_attrs: Mapping[str, Any],
        metric_names: list[str] | None = None,
        *,
        state_dir: str | None = None,
        namespace: str | None = None,
        pruner: optuna.pruners.BasePruner | None = None,
        has_objects: bool = False,
    ) -> None:
        """user_attrs: those that the study had before the search.

        state_dir, namespace: where the search is stored; None if trials cannot read it.
        pruner: one that a trial asks by itself, because the search has no such rule.
        has_objects: user attributes may be any objects, as in a study without a storage.
        """
        self._directions = directions
        self.user_attrs = dict(user_attrs)
        self.metric_names = metric_names
        self._state_dir = state_dir
        self._namespace = namespace
        self._pruner = pruner
        self._has_objects = has_objects
        # The one that this process runs.
        self.trial: OptunaTrial | None = None

    @property
    def study_name(self) -> str:
        return os.environ.get("TUNER_EXPERIMENT", "")

    @property
    def directions(self) -> list[StudyDirection]:
        # Here, because it takes long, and few objectives ask for it.
        from optuna.study import StudyDirection

        return [StudyDirection[direction.upper()] for direction in self._directions]

    @property
    def direction(self) -> StudyDirection:
        """The direction of the only objective. Raises RuntimeError if there are several."""
        if len(self._directions) > 1:
            raise RuntimeError("a study of several objectives has study.directions")
        return self.directions[0]

    def stop(self) -> None:
        """End the search: no more trials start, and those that run finish."""
        end_search()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            if name in OF_RESULTS and self._state_dir is not None:
                return getattr(self._so_far(), name)
            raise AttributeError(f"the study of a trial has no {name!r}: {LIMITS}")

    def prunes(self, trial: OptunaTrial) -> bool:
        """Return whether the study's pruner, if trials have to ask it, stops this one."""
        if self._pruner is None:
            return False
        if self._state_dir is None:
            # Of a pruner that reads only the trial.
            stops = self._pruner.prune(cast("optuna.Study", self), trial.frozen())
        else:
            study = self._so_far()
            # Optuna's `trials` is a copy of all of them.
            stops = self._pruner.prune(study, study.get_trials(deepcopy=False)[trial.number])
            # Successive halving keeps its rungs there.
            for key, value in study.get_trials(deepcopy=False)[trial.number].system_attrs.items():
                trial.set_system_attr(key, value)
        trial.stopped_by = f"{type(self._pruner).__name__}.prune() returned true" if stops else ""
        return stops

    def _so_far(self) -> optuna.Study:
        """Return a study of Optuna with all trials of the search so far."""
        # Here, because it takes long, and few objectives ask for it.
        from tuner.optuna_results import Results
        from tuner.study import Study, workspace_of

        workspace = workspace_of(self._state_dir)
        ran = Study(workspace, self.study_name, self._namespace)
        about = SimpleNamespace(
            directions=self.directions,
            user_attrs=self.user_attrs,
            metric_names=self.metric_names,
            sampler=None,
            pruner=self._pruner,
        )
        # What it has reported is stored a little later.
        running = None if self.trial is None else self.trial.frozen()
        return Results(about, workspace, (), None).of(ran, running)


class _Storage:
    """The part of a storage that `optuna.artifacts` and `report_cross_validation_scores` use."""

    def __init__(self, trial: OptunaTrial) -> None:
        self._trial = trial

    def set_trial_system_attr(self, _trial_id: int, key: str, value: Any) -> None:
        self._trial.set_system_attr(key, value)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            raise AttributeError(
                f"the storage of a trial has no {name!r}, only set_trial_system_attr: a trial is a "
                "process of its own, and its search is stored by tuner"
            )


class OptunaTrial:
    """The part of `optuna.Trial` that an objective uses."""

    if not TYPE_CHECKING:

        @property
        def __class__(self) -> type:
            """An `optuna.Trial` for `isinstance`, as `optuna.artifacts` asks."""
            optuna = sys.modules.get("optuna")
            return OptunaTrial if optuna is None else optuna.Trial

        def __reduce_ex__(self, _protocol: object) -> tuple[object, ...]:
            """Copy and pickle it as what it is."""
            return object.__new__, (OptunaTrial,), vars(self)

    def __init__(self, trial: Trial, study: OptunaStudy, attributes: Mapping[str, Any]) -> None:
        self._trial = trial
        self._metrics = trial.needed[: len(study._directions)]
        self.study = study
        # For the same callback.
        self._trial_id = trial.number
        self._domains: dict[str, dict[str, Any]] = {}
        self._kept: dict[str, Any] = {
            "user_attrs": {},
            "system_attrs": {},
            "constraints": {},
        }
        self._objects: dict[str, bytes] = {}
        self._choices: dict[str, list[Any]] = {}
        self._reported: dict[int, float] = {}
        # As in Optuna, no rule judges a trial that does not ask, so it does not see its reports.
        self._unsent: list[tuple[int, float]] = []
        self._is_judged = True  # whether the rule has seen all that it has sent
        # Why `should_prune` returned true, if the controller has not asked for it.
        self.stopped_by = ""
        self.storage = _Storage(self)
        self.number = trial.number
        self.datetime_start = datetime.now()
        self._kept["datetime_start"] = self.datetime_start.astimezone().isoformat()
        for key, value in attributes.items():
            self.set_user_attr(key, value)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        """See `optuna.Trial.suggest_float`."""
        low, high = _as_float("low", low), _as_float("high", high)
        if step is not None and log:
            raise ValueError("the parameter `step` is not supported when `log` is true")
        step = None if step is None else as_number("step", step)
        _check_range(name, low, high, log=log, step=step)
        high = float(_last_on_grid(name, low, high, step))
        value = self._trial.float(name, low, high, log=log, step=step)
        self._note(name, "FloatDistribution", low=low, high=high, log=log, step=step)
        return value

    def suggest_uniform(self, name: str, low: float, high: float) -> float:
        """Deprecated in Optuna: `suggest_float`."""
        return self.suggest_float(name, low, high)

    def suggest_loguniform(self, name: str, low: float, high: float) -> float:
        """Deprecated in Optuna: `suggest_float` with `log=True`."""
        return self.suggest_float(name, low, high, log=True)

    def suggest_discrete_uniform(self, name: str, low: float, high: float, q: float) -> float:
        """Deprecated in Optuna: `suggest_float` with `step=q`."""
        return self.suggest_float(name, low, high, step=q)

    def suggest_int(
        self, name: str, low: int, high: int, *, step: int = 1, log: bool = False
    ) -> int:
        """See `optuna.Trial.suggest_int`."""
        low, high, step = int(low), int(high), int(step)
        if step != 1 and log:
            raise ValueError("the parameter `step != 1` is not supported when `log` is true")
        _check_range(name, low, high, log=log, step=step)
        high = int(_last_on_grid(name, low, high, step))
        value = self._trial.int(name, low, high, log=log, step=step)
        self._note(name, "IntDistribution", low=low, high=high, log=log, step=step)
        return value

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        """See `optuna.Trial.suggest_categorical`."""
        # An array has no truth value.
        if len(choices) == 0:
            raise ValueError(f"parameter {name!r}: the `choices` must contain one or more elements")
        own = [plain(each) for each in choices]
        has_objects = self.study._has_objects
        named = named_choices(name, [*map(kept.stored_choice, own)] if has_objects else own)
        # Optuna takes a choice twice.
        once = {json.dumps(each, sort_keys=True): each for each in named}
        stored = self._trial.choice(name, list(once.values()))
        self._note(name, "CategoricalDistribution", choices=named)
        if has_objects and name not in self._choices and not _is_json(own):
            self._choices[name] = own
            self._keep_objects()
        return kept.own_choice(self._choices.get(name, ()), stored)

    # Any: the type of a choice or a number
    def _suggest(self, name: str, distribution: Any) -> Any:
        """Optuna's own method, which code with a mapping of distributions calls."""
        if hasattr(distribution, "choices"):
            return self.suggest_categorical(name, distribution.choices)
        suggest = self.suggest_int if isinstance(distribution.high, int) else self.suggest_float
        shape = {"log": distribution.log, "step": distribution.step}
        return suggest(name, distribution.low, distribution.high, **shape)

    def _note(self, name: str, kind: str, **shape: Any) -> None:
        """Keep the domain of a parameter that the trial has got; one that is refused is none."""
        domain = {"name": kind, "attributes": shape}
        before = self._domains.setdefault(name, domain)
        if before["name"] == kind == "CategoricalDistribution" and before != domain:
            raise ValueError(
                f"parameter {name!r} has other choices in one trial: {before['attributes']}; use "
                "another name for one of them"
            )
        if before["name"] == kind and before != domain:
            warnings.warn(
                f"parameter {name!r} has two ranges in one trial; the first one counts: "
                f"{before['attributes']}",
                RuntimeWarning,
                stacklevel=3,
            )
        elif before is domain:
            self._keep()

    @property
    def params(self) -> dict[str, Any]:
        return {
            name: kept.own_choice(self._choices.get(name, ()), self._trial.parameters[name])
            for name in self._domains
        }

    @property
    def distributions(self) -> dict[str, BaseDistribution]:
        return kept.read_distributions(self._domains, self._choices)

    @property
    def relative_params(self) -> dict[str, Any]:
        """None are known before the objective asks: see `suggest_float`."""
        return {}

    @property
    def user_attrs(self) -> dict[str, Any]:
        objects = {key: pickle.loads(value) for key, value in self._objects.items()}
        return {**copy.deepcopy(self._kept["user_attrs"]), **objects}

    @property
    def system_attrs(self) -> dict[str, Any]:
        return dict(self._kept["system_attrs"])

    @property
    def constraints(self) -> dict[str, float]:
        return dict(self._kept["constraints"])

    def set_user_attr(self, key: str, value: Any) -> None:
        """Keep a value that can be JSON with the trial, or any object that can be pickled, if its
        study takes them; warn of any other.
        """
        before = self._objects.pop(key, None)
        if self.study._has_objects and not _is_json(value):
            # What cannot be pickled may be JSON all the same.
            with contextlib.suppress(Exception):
                self._objects[key] = _pickled(value)
        if key in self._objects or before is not None:
            self._keep_objects()
        if key in self._objects:
            # The order of the attributes is that of this file.
            value = None
        self._set("user_attrs", key, value)

    def set_system_attr(self, key: str, value: Any) -> None:
        """Keep a value that can be JSON with the trial; warn of any other."""
        self._set("system_attrs", key, value)

    def set_constraint(self, key: str, value: float) -> None:
        """Report the value of a constraint: at most 0 if the trial is feasible."""
        if not isinstance(key, str):
            raise TypeError(f"the constraint's key is {key!r}, and must be text, as in 'weight'")
        number = _as_float(key, value)
        if math.isnan(number):
            raise ValueError(f"constraint {key!r} is NaN")
        if key in self._kept["constraints"]:
            warnings.warn(
                f"constraint {key!r} was set before; the first value counts", stacklevel=2
            )
            return
        metric = kept.CONSTRAINT + key
        if not {metric, kept.CONSTRAINT + kept.SET_CONSTRAINT} & {*self._trial.needed}:
            raise ValueError(
                f"constraint {key!r} is not known to the search: name it, as in "
                f"tuner.optimize_optuna(objective, constraints={{{key!r}: {{'max': 0}}}})"
            )
        self._set("constraints", key, number)
        if metric in self._trial.needed:
            self._trial.report(None, **{metric: number})

    def _set(self, kind: str, key: str, value: Any) -> None:
        try:
            self._kept[kind][key] = json.loads(json.dumps(value, default=_plain))
        except (TypeError, ValueError) as error:
            omitted = (
                f"attribute {key!r} is not kept: {error}; write it to a file, and keep its path"
            )
            warnings.warn(omitted, stacklevel=3)
            # The log of a trial is not where a script's callbacks look for it.
            self._kept["omitted"] = [*self._kept.get("omitted", ()), omitted]
        self._keep()

    def keep_values(self, values: Sequence[float]) -> None:
        """Keep values that the search does not take."""
        self._kept["values"] = list(values)
        self._keep()

    def _keep(self) -> None:
        with _WRITING:
            self._write(kept.FILE, self._text.encode())

    def _keep_objects(self) -> None:
        with _WRITING:
            objects = {"user_attrs": self._objects, "choices": self._choices}
            self._write(kept.OBJECTS_FILE, pickle.dumps(objects))

    def _write(self, name: str, content: bytes) -> None:
        file = self._trial.output_dir / name
        temporary = file.with_suffix(".new")
        temporary.write_bytes(content)
        temporary.replace(file)

    @property
    def _text(self) -> str:
        return json.dumps({**self._kept, "distributions": self._domains})

    def end(self) -> None:
        """Print what it has reported; what was kept, too, if the file goes with its container."""
        self._trial.polls = True
        self._send()
        if ANSWERS in os.environ:
            # In base64, which no rule for metrics matches.
            os.write(1, b"\n" + kept.PRINTED + base64.b64encode(self._text.encode()) + b"\n")

    def report(self, value: float, step: int) -> None:
        """Report the objective's value at a step. See `optuna.Trial.report`."""
        if len(self._metrics) > 1:
            raise NotImplementedError("Trial.report is not supported for multiple objectives")
        number = _as_float("value", value)
        # Optuna cuts off fractions.
        whole = int(as_number("step", step))
        if whole < 0:
            raise ValueError(f"the `step` is {step}, and must not be negative")
        if whole in self._reported:
            warnings.warn(f"step {step} was reported before; the first value counts", stacklevel=2)
            return
        self._reported[whole] = number
        self._unsent.append((whole, number))
        if self._trial.polls:
            self._send()

    def should_prune(self) -> bool:
        """Return whether the trial was asked to stop, by the pruning rule or by a person.

        The rule has judged all reports so far, if a controller on this machine answers.
        """
        if len(self._metrics) > 1:
            raise NotImplementedError("Trial.should_prune is not supported for several objectives")
        self._trial.polls = True
        self._send()
        if not (self._is_judged or self._trial.stopped):
            self._is_judged = True
            if is_advised_to_stop(trial=self.number, attempt=self._trial.attempt):
                self._trial.wait_for_stop()
        return self._trial.stopped or self.study.prunes(self)

    def _send(self) -> None:
        for step, value in self._unsent:
            self._trial.report(step, **{self._metrics[0]: value})
            self._is_judged = False
        self._unsent.clear()

    def frozen(self, values: Sequence[float] | None = None) -> FrozenTrial:
        """Return the trial as Optuna shows it: complete if it has values, and otherwise running."""
        from optuna.trial import FrozenTrial, TrialState

        return FrozenTrial(
            number=self.number,
            trial_id=self._trial_id,
            state=TrialState.RUNNING if values is None else TrialState.COMPLETE,
            value=None,
            values=values,
            datetime_start=self.datetime_start,
            datetime_complete=None if values is None else datetime.now(),
            params=self.params,
            distributions=self.distributions,
            user_attrs=self.user_attrs,
            system_attrs=self.system_attrs,
            intermediate_values=dict(self._reported),
        )

    def constrain(
        self,
        function: Callable[[FrozenTrial], Sequence[float]] | None,
        values: Sequence[float],
    ) -> None:
        """Report the constraints that it has not reported: 0 for those that it has not set.

        function: that of the study's sampler, which computes more of them. How many there are is
        not known in advance, so the search sees the largest one, and only its result has them all.
        """
        constraints = self._kept["constraints"]
        found = kept.with_largest(constraints, self._trial.needed)
        if function is not None:
            trial = self.frozen(list(values))
            computed = [_as_float("a value of the constraints_func", v) for v in function(trial)]
            if any(map(math.isnan, computed)):
                raise ValueError(f"the constraints_func returned NaN: {computed}")
            self.set_system_attr(kept.CONSTRAINTS, computed)
            found[kept.CONSTRAINTS_FUNC] = max(computed, default=0.0)
        names = [each.removeprefix(kept.CONSTRAINT) for each in self._trial.needed]
        unsent = [name for name in names[len(self._metrics) :] if name not in constraints]
        if unsent:
            values_of = {kept.CONSTRAINT + name: found.get(name, 0.0) for name in unsent}
            self._trial.report(None, **values_of)


def log_at(levels: Mapping[str, int]) -> None:
    """Write what the objective logs to the trial's log, at the levels of its script's loggers."""
    if levels:
        logging.basicConfig()
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)


# Any: a value of a variable
def set_variables(variables: Mapping[tuple[str, str], Any]) -> None:
    """Set variables of modules, which are imported anew in each trial, to those of the script."""
    for (module, name), value in variables.items():
        setattr(importlib.import_module(module), name, value)


def run(
    objective: Callable[[Any], Any],
    trial: Trial,
    study: OptunaStudy,
    attributes: Sequence[Mapping[str, Any]],
    constraints_func: Callable[[FrozenTrial], Sequence[float]] | None,
    fixed: Mapping[str, object] | None,
) -> Any:
    """Call an objective of Optuna with the trial, and return what ours returns.

    attributes: of the points that are tried first, which are the first trials. constraints_func,
    fixed: those of the study's sampler.
    """
    directions = study._directions
    objectives = len(directions)
    metrics = trial.needed[:objectives]
    own = attributes[trial.number] if trial.number < len(attributes) else {}
    trial.given.update(fixed or {})
    seen = study.trial = OptunaTrial(trial, study, own)
    try:
        returned = objective(seen)
        # A list of one value is a value, as in Optuna.
        listed = returned if isinstance(returned, Sequence) else [returned]
        values = []
        with contextlib.suppress(TypeError):
            values = [_as_float("value", value) for value in listed]
        # Optuna calls it failed, and searches on.
        if len(values) != objectives:
            rule = f"one number for each direction of the study: {', '.join(directions)}"
            raise Infeasible(f"the objective returned {excerpt(returned)}; return {rule}")
        if any(map(math.isnan, values)):
            raise Infeasible(f"the objective returned {returned!r}")
        seen.constrain(constraints_func, values)
        if any(map(math.isinf, values)):
            # Optuna keeps such a value; a model cannot learn from it.
            seen.keep_values(values)
            raise Infeasible(f"the objective returned {returned!r}")
        return dict(zip(metrics, values, strict=True))
    except Exception as error:
        if not _is_pruned(error):
            raise
        if trial.stopped:
            raise Pruned from None
        why = str(error) or seen.stopped_by
        raise Infeasible(f"{kept.PRUNED}: {why}" if why else kept.PRUNED) from None
    finally:
        seen.end()


class _AttributePickler(pickle.Pickler):
    # Any: whatever is pickled
    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj.__module__ == "__main__":
            # The script has it, but the objective uses it by no name that it sends.
            vars(sys.modules["__main__"]).setdefault(obj.__qualname__, obj)
        return NotImplemented


def _pickled(value: object) -> bytes:
    pickled = io.BytesIO()
    _AttributePickler(pickled).dump(value)
    return pickled.getvalue()


def _is_json(value: object) -> bool:
    """Return whether JSON has the same value: no tuple, infinity, value of NumPy, or key
    that is no text.
    """
    try:
        # Equal values may be of other types.
        return repr(json.loads(json.dumps(value, allow_nan=False))) == repr(value)
    except (TypeError, ValueError):
        return False


def _plain(value: Any) -> object:
    """Return an array, a tensor or one number of these for JSON. Raises TypeError.

    Any: of libraries that are not imported here.
    """
    if not hasattr(value, "tolist"):
        raise TypeError(f"an object of type {type(value).__name__} cannot be JSON")
    return value.tolist()


def _as_float(name: str, value: object) -> float:
    """Return a number, or a text that says one, as Optuna does. Raises TypeError."""
    if isinstance(value, str):
        with contextlib.suppress(ValueError):
            value = float(value)
    return as_number(name, value)


def _is_pruned(error: Exception) -> bool:
    optuna = sys.modules.get("optuna")
    return optuna is not None and isinstance(error, optuna.TrialPruned)


def _check_range(name: str, low: float, high: float, *, log: bool, step: float | None) -> None:
    if low > high:
        raise ValueError(f"parameter {name!r}: `low <= high` must hold, got {low} and {high}")
    if log and low <= 0:
        raise ValueError(f"parameter {name!r}: `low > 0` must hold for `log=True`, got {low}")
    if step is not None and step <= 0:
        raise ValueError(f"parameter {name!r}: `step > 0` must hold, got {step}")


def _last_on_grid(name: str, low: float, high: float, step: float | None) -> float:
    """Return the highest low + k * step up to `high`, where Optuna ends a range, and warn."""
    if step is None or not all(map(math.isfinite, (low, high, step))):
        return high
    # Of the decimal digits, since 0.9 is no multiple of 0.1 in binary.
    start, end, width = (Fraction(str(number)) for number in (low, high, step))
    last = start + (end - start) // width * width
    if last == end:
        return high
    shortened = int(last) if isinstance(high, int) else float(last)
    warnings.warn(
        f"parameter {name!r}: `high` ({high}) is not `low` ({low}) plus a multiple of `step` "
        f"({step}); the highest value is {shortened}",
        stacklevel=3,
    )
    return shortened
