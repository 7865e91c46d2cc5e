"""The experiment of a script that was written for Optuna: what its calls of `create_study` and
`study.optimize` say, as the text of a native file. The script is not run.

A value is known if `ScriptValues` knows it.
"""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from controller.core.model import MAX_NAME_LENGTH
from controller.optuna_script import OF_STUDY, OptunaScript, objective_of
from controller.script_values import UNKNOWN, ScriptValues, argument
from controller.spec.problems import LocatedProblem, Mark, SpecErrors
from controller.spec.writing import file_text

WORKER = "tuner.optuna_worker"
# As those of functions: see `tuner.trial`.
_METRICS = {"step": "step", "pattern": r"tuner\.([A-Za-z_][\w./-]*)=(\S+)"}
CONSTRAINED = (
    'only Optuna calls it; report each by trial.set_constraint("weight", value) in the objective, '
    'and call tuner.optimize_optuna(objective, study, constraints={"weight": {"max": 0}})'
)
# The defaults of Optuna's MedianPruner, and the names of its settings here.
_MEDIAN = {
    "n_startup_trials": ("nStartupTrials", 5),
    "n_warmup_steps": ("nWarmupSteps", 0),
    "interval_steps": ("intervalSteps", 1),
    "n_min_trials": ("nMinTrials", 1),
}
FIXED_VALUES = (
    "the sampler says which values are tried, and only Optuna reads that; write them in the "
    'objective, as in trial.suggest_categorical("x", [1, 2])'
)


def experiment_text(
    text: str, source: str, overrides: Sequence[str] = ()
) -> tuple[str, tuple[str, ...]]:
    """Return the file of the script's search, and warnings.

    overrides: the arguments of `--set`, which may say what the script leaves open.

    Raises:
        SpecErrors: the script has no search, several, or says something that is not known.
    """
    try:
        script = OptunaScript.read(text, source)
    except SyntaxError as error:
        mark = Mark(error.lineno or 1, error.offset or 1)
        raise SpecErrors(
            source, [LocatedProblem(mark, "", f"is not Python: {error.msg}")]
        ) from None
    reader = _Reader(script, source, overrides)
    return file_text(reader.experiment()), tuple(reader.warnings)


class _Reader:
    def __init__(self, script: OptunaScript, source: str, overrides: Sequence[str]) -> None:
        self._script = script
        self._source = source
        parts = [override.partition("=") for override in overrides]
        self._given = {path: value for path, _, value in parts}
        self.warnings: list[str] = []
        self._problems: list[LocatedProblem] = []
        self._added: list[ast.Call] = []  # calls whose point is tried
        self._values = ScriptValues(script.module)
        self._instead = (
            "call tuner.optimize_optuna(objective, study, trials=…) in the place of "
            f"study.optimize, and run python {source}"
        )

    def experiment(self) -> dict[str, Any]:
        """Return the native data. Raises SpecErrors."""
        search = self._search()
        objective = self._objective()
        spec: dict[str, Any] = {
            **objective,
            "defineByRun": True,
            **(self._pruning() if "objective" in objective else {}),
            **self._initial(),
            **self._constraints(),
            **self._breaker(search),
            "parallelism": self._parallelism(search),
            "budget": self._budget(search),
            "metrics": dict(_METRICS),
            "trial": {
                "command": ["python", "-m", WORKER, Path(self._source).name, *self._attributes()],
                "env": {"PYTHONUNBUFFERED": "1"},
            },
        }
        callbacks = argument(search, 5, "callbacks")
        if callbacks is not None and self._values.value(callbacks) not in (None, [], ()):
            self._problem(
                callbacks,
                "callbacks are called in a process that has the study; call "
                "tuner.optimize_optuna(objective, study, trials=…, callbacks=[…]) in its place, "
                f"and run python {self._source}",
            )
        self._check_what_is_lost(search)
        if self._problems:
            raise SpecErrors(self._source, self._problems)
        if later := self._script.after(search):
            self.warnings.append(
                f"{self._source}:{later.lineno}: what follows the search is not run, such as "
                f"printing or writing its results; to run it, {self._instead}"
            )
        return {
            "apiVersion": "tuner.dev/v1",
            "kind": "Experiment",
            "metadata": {"name": self._name()},
            "spec": spec,
        }

    def _check_what_is_lost(self, search: ast.Call) -> None:
        """Refuse what the script says and its trials would never see."""
        objective = objective_of(search)
        assert objective is not None, "a search has an objective"
        if names := self._script.undefined(objective):
            self._problem(
                objective,
                f"{', '.join(names)} is not defined at the top level of the script, which is what "
                "each trial runs; move it there, outside of functions and of if __name__ == "
                f'"__main__", or {self._instead}',
            )
        # Each once, at its first use.
        uses = {ast.unparse(used): used for used in self._script.of_the_search(objective)[::-1]}
        for used in reversed(uses.values()):
            self._problem(used, _why_unknown(used))
        for call in (search, *self._script.studies, *self._script.enqueued):
            if any(each.arg is None for each in call.keywords) or any(
                isinstance(each, ast.Starred) for each in call.args
            ):
                self._problem(
                    call,
                    "has arguments behind * or **, which are known only when the script runs; "
                    "write each by its name",
                )
        if self._script.repeats(search):
            self._problem(
                search,
                "calls study.optimize in a loop, or in a function that is called twice or passed "
                "on, and the search would do it once; call it once, with n_trials of all and "
                f"n_jobs for how many run at a time, or, for one search each, {self._instead}",
            )
        for call in self._script.added:
            self._problem(
                call,
                "adds trials that the search would not know; remove it, and import them from a "
                "stored study with tuner import, or enqueue their points with study.enqueue_trial",
            )
        for call in self._script.storing:
            self._problem(
                call,
                "stores in the database of Optuna, which no trial has; keep values with "
                "trial.set_user_attr, and files in the folder that TUNER_OUTPUT_DIR names",
            )
        for call in self._script.constrained:
            self._problem(call, f"has a constraints_func; {CONSTRAINED}")
        for call in self._script.fixing:
            if not self._is_given("spec.algorithm.name"):
                self._problem(
                    call, f"{FIXED_VALUES}; to search without it, add --set spec.algorithm.name=tpe"
                )

    def _search(self) -> ast.Call:
        match [each for each in self._script.searches if objective_of(each) is not None]:
            case [search]:
                return search
            case [] if (passed := self._script.passed_on()) is not None:
                self._problem(
                    passed,
                    "is passed on instead of called; call study.optimize(objective, …) once, with "
                    "n_trials of all and n_jobs for how many run at a time",
                )
            case []:
                message = (
                    "calls no study.optimize(objective, …), and so is not the search of an "
                    "objective that was written for Optuna; write what stands between study.ask() "
                    "and study.tell() as an objective. A script that calls tuner.minimize or "
                    f"tuner.optimize_optuna runs by itself: python {self._source}"
                )
                raise SpecErrors(self._source, [LocatedProblem(Mark(1, 1), "", message)])
            case [_, second, *_]:
                self._problem(
                    second,
                    "calls study.optimize again; call it once, with n_trials of all, or, for one "
                    f"search each, {self._instead}",
                )
        raise SpecErrors(self._source, self._problems)

    def _objective(self) -> dict[str, Any]:
        if self._is_given("spec.objectives"):
            return {}
        if self._is_given("spec.objective.direction"):
            direction = self._given.get("spec.objective.direction", "minimize")
            return {"objective": {"metric": "value", "direction": direction}}
        if self._script.loads and not self._script.studies:
            self._problem(
                self._script.loads[0],
                "loads a study whose direction is not in the script; say it: --set "
                "spec.objective.direction=minimize",
            )
        found = {tuple(self._directions(each)): each for each in self._script.studies}
        if len(found) > 1:
            self._problem(
                list(found.values())[1],
                "makes a study of other directions; say which: --set "
                "spec.objective.direction=minimize",
            )
        directions = next(iter(found), ("minimize",))
        if len(directions) == 1:
            return {"objective": {"metric": "value", "direction": directions[0]}}
        return {
            "objectives": [
                {"metric": f"value_{place}", "direction": direction}
                for place, direction in enumerate(directions)
            ]
        }

    def _directions(self, study: ast.Call) -> list[str]:
        nodes = [argument(study, None, "direction")]
        several = argument(study, None, "directions")
        match several and self._values.expression(several):
            case ast.List(elements) | ast.Tuple(elements):
                nodes = list(elements)
            case None | ast.Constant(None):
                pass
            case unknown:
                nodes = [unknown]
        return [self._direction(node) for node in nodes]

    def _direction(self, node: ast.expr | None) -> str:
        if node is None or self._values.value(node) is None:
            return "minimize"
        match self._values.expression(node):
            case ast.Attribute(attr=name):  # StudyDirection.MAXIMIZE
                value: object = name.lower()
            case found:
                value = self._values.value(found)
        if isinstance(value, str) and value in ("minimize", "maximize"):
            return value
        self._problem(
            node,
            'is not "minimize" or "maximize"; write it, or add --set '
            "spec.objective.direction=maximize",
        )
        return "minimize"

    def _pruning(self) -> dict[str, Any]:
        if self._is_given("spec.pruning.name"):
            return {}
        pruners = [self._unless_none(argument(x, None, "pruner")) for x in self._script.studies]
        given = next((pruner for pruner in pruners if pruner is not None), None)
        node = given and self._values.expression(given)
        settings = dict(_MEDIAN.values())
        match node:
            case None:
                pass
            case ast.Call(ast.Attribute(attr="NopPruner") | ast.Name("NopPruner")):
                return {}
            case ast.Call(ast.Attribute(attr="MedianPruner") | ast.Name("MedianPruner")):
                for place, (name, (here, _)) in enumerate(_MEDIAN.items()):
                    at = place if name != "n_min_trials" else None
                    if (value := argument(node, at, name)) is not None:
                        settings[here] = self._number(value, f"spec.pruning.{here}")
            case ast.Call():
                self._problem(
                    node,
                    f"{ast.unparse(node)} is not the median rule; name the rule, as in --set "
                    "spec.pruning.name=asha",
                )
            case _:
                self._problem(
                    node,
                    f"{ast.unparse(node)} is known only when the script runs; name the rule, as in "
                    "--set spec.pruning.name=median",
                )
        return {"pruning": {"name": "optuna:median", **settings}}

    def _initial(self) -> dict[str, Any]:
        points: list[object] = []
        for call in self._script.enqueued:
            node = argument(call, 0, "params")
            value = UNKNOWN if node is None else self._values.value(node)
            once = argument(call, 2, "skip_if_exists")
            if once is not None and self._values.value(once) is True and value in points:
                continue
            if isinstance(value, dict):
                points.append(value)
                self._added.append(call)
            elif not self._is_given("spec.initial"):
                self._problem(
                    call,
                    "enqueues a point that is not written there; write it as a dict of literals",
                )
        return {"initial": points} if points else {}

    def _attributes(self) -> list[str]:
        """Return what the worker needs to give enqueued trials their attributes, if they have any.

        Called after `_initial`.
        """
        if self._is_given("spec.initial"):
            return []
        attributes: list[object] = []
        for call in self._added:
            node = self._unless_none(argument(call, 1, "user_attrs"))
            value = {} if node is None else self._values.value(node)
            try:
                json.dumps(value)
            except (TypeError, ValueError):
                self._problem(
                    call,
                    "gives a point attributes that are not written there; write them as a dict of "
                    "literals that can be JSON",
                )
            attributes.append(value)
        # A `${` would be a parameter's value in a command.
        return [json.dumps(attributes, default=str).replace("${", "$${")] if any(attributes) else []

    def _constraints(self) -> dict[str, Any]:
        for call in self._script.constraints:
            key = argument(call, 0, "key")
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                continue
            self._problem(
                call,
                "names a constraint that is known only when the script runs, or by a value that is "
                "not text; write its name there as text, or call tuner.optimize_optuna(objective, "
                'study, constraints={"weight": {"max": 0}})',
            )
        # As `tuner.optuna_trial.CONSTRAINT`.
        bounds = [
            {"metric": f"constraint.{name}", "max": 0} for name in self._script.constraint_names()
        ]
        return {"constraints": bounds} if bounds else {}

    def _breaker(self, search: ast.Call) -> dict[str, Any]:
        """Let trials fail that the script lets fail: `catch` names exceptions."""
        catch = argument(search, 4, "catch")
        if catch is None or self._values.value(catch) == () or self._is_given("spec.breaker"):
            return {}
        return {"breaker": "off"}

    def _parallelism(self, search: ast.Call) -> int:
        node = argument(search, 3, "n_jobs")
        if node is None or self._is_given("spec.parallelism"):
            return 1
        jobs = int(self._number(node, "spec.parallelism"))
        if jobs == -1:
            # All processors of this machine, as in Optuna.
            return os.cpu_count() or 1
        if jobs < 1:
            self._problem(node, f"{jobs} says no number; add --set spec.parallelism=4")
        return jobs

    def _budget(self, search: ast.Call) -> dict[str, Any]:
        trials = self._unless_none(argument(search, 1, "n_trials"))
        seconds = self._unless_none(argument(search, 2, "timeout"))
        budget: dict[str, Any] = {}
        if seconds is not None:
            budget["wallClock"] = f"{self._number(seconds, 'spec.budget.wallClock')}s"
        if self._is_given("spec.budget.trials"):
            return budget
        if trials is not None:
            budget["trials"] = self._number(trials, "spec.budget.trials")
        elif budget:
            budget["trials"] = "none"
        else:
            self._problem(search, "has no n_trials; write it, or add --set spec.budget.trials=100")
        return budget

    def _unless_none(self, node: ast.expr | None) -> ast.expr | None:
        return None if node is None or self._values.value(node) is None else node

    def _number(self, node: ast.expr, key: str) -> Any:
        if self._is_given(key):
            return 1
        value = self._values.value(node)
        if isinstance(value, int | float) and not isinstance(value, bool):
            return value
        self._problem(
            node,
            f"{ast.unparse(node)} is known only when the script runs; write a number, or add "
            f"--set {key}=…",
        )
        return 1

    def _name(self) -> str:
        found = [argument(each, None, "study_name") for each in self._script.studies]
        values = [self._values.value(node) for node in found if node]
        named = [value for value in values if isinstance(value, str)]
        name = named[0] if len(named) == 1 else Path(self._source).stem
        letters = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
        return letters[:MAX_NAME_LENGTH].rstrip("-") or "search"

    def _is_given(self, key: str) -> bool:
        """Return whether `--set` says the value of the key, or of one above it."""
        return any(f"{key}.".startswith(f"{given}.") for given in self._given)

    def _problem(self, node: ast.expr, message: str) -> None:
        mark = Mark(node.lineno, node.col_offset + 1)
        self._problems.append(LocatedProblem(mark, "", message))


def _why_unknown(used: ast.expr) -> str:
    text = ast.unparse(used)
    if isinstance(used, ast.Name):
        return (
            f"{text} is assigned where the script makes its study, runs it or uses its results, "
            "which no trial does; assign it at the top level, outside of functions and of if "
            f'__name__ == "__main__"; of the study, a trial knows {", ".join(OF_STUDY)} only'
        )
    return (
        f"{text} is of the study, and each trial is a process that knows only "
        f"{', '.join(OF_STUDY)} of it; pass what the objective needs as a value"
    )
