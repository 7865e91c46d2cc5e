"""Hydra: a multirun whose jobs are trials of `tuner.minimize`.
hydra_plugins/tuner_sweeper.py is what Hydra finds.

The launcher that is configured runs in the trial's process and gets one job.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

from suggest.client.search_space import Choice, Float, Int
from suggest.domain import Domain
from suggest.space import Parameter
from tuner.functions import maximize, minimize, optimize
from tuner.integrations import needed
from tuner.study import Study
from tuner.trial import Trial

with needed("hydra"):
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.core.override_parser.types import (
        IntervalSweep,
        Override,
        QuotedString,
        RangeSweep,
        Transformer,
    )
    from hydra.core.plugins import Plugins
    from hydra.core.singleton import Singleton
    from hydra.types import HydraContext, TaskFunction
    from omegaconf import DictConfig, OmegaConf

Search = Callable[..., Study]
RESULTS = "optimization_results.yaml"  # the name that other sweepers use


def sweep(
    context: HydraContext,
    task: TaskFunction,
    config: DictConfig,
    arguments: Sequence[str],
    options: dict[str, Any],
) -> Study:
    """Run the jobs, and write the best one to the sweep's folder.

    Args:
        arguments: Overrides; a later one replaces an earlier one of the same key.
        options: The direction, and those of `tuner.minimize`.

    Raises:
        ValueError: There is nothing to search, or the direction is unknown.
        SearchFailed: Jobs failed.
    """
    search = _search(direction := options.pop("direction"))
    parsed = OverridesParser.create(config_loader=context.config_loader).parse_overrides(
        list(arguments)
    )
    by_key = {override.get_key_element(): override for override in parsed}
    swept = {
        _parameter(key): _Swept(override)
        for key, override in by_key.items()
        if override.is_sweep_override()
    }
    fixed = [
        override.input_line for override in by_key.values() if not override.is_sweep_override()
    ]
    if not swept:
        raise ValueError(
            "nothing to search: give a parameter a range, such as lr=interval(0.001,0.1)"
        )
    for ours in ("suggest", "controller"):
        # Hydra has set the level of all loggers to INFO.
        logging.getLogger(ours).setLevel(logging.WARNING)
    # The time in it is now fixed for all jobs.
    folder = Path(config.hydra.sweep.dir)
    folder.mkdir(parents=True, exist_ok=True)
    OmegaConf.save(config, folder / "multirun.yaml")
    singletons = Singleton.get_state()

    def objective(trial: Trial) -> object:
        Singleton.set_state(singletons)
        launcher = Plugins.instance().instantiate_launcher(context, task, config)
        chosen = [swept[name].override(value) for name, value in trial.parameters.items()]
        (job,) = launcher.launch([[*fixed, *chosen]], initial_job_idx=trial.number)
        # Raises what the job raised.
        return job.return_value

    objective.__name__ = config.hydra.job.name
    study = search(
        objective, {name: sweep_of_key.domain for name, sweep_of_key in swept.items()}, **options
    )
    if results := _results(study, None if isinstance(direction, str) else list(direction)):
        OmegaConf.save(
            OmegaConf.create({"name": "tuner", "search": study.name, **results}), folder / RESULTS
        )
    return study


def _search(direction: object) -> Search:
    """Return what searches in this direction, or in those of several objectives.

    Raises ValueError.
    """
    match direction:
        case "minimize":
            return minimize
        case "maximize":
            return maximize
        case Mapping() if direction and set(direction.values()) <= {"minimize", "maximize"}:
            return partial(optimize, objectives={str(name): way for name, way in direction.items()})
    raise ValueError(
        "hydra.sweeper.direction: expected minimize, maximize, or a mapping of metrics to these, "
        "such as "
        f"{{loss: minimize, accuracy: maximize}}, got {direction!r}"
    )


def _results(study: Study, objectives: Sequence[str] | None) -> dict[str, object]:
    """Return the best job, or with several objectives those of the Pareto front.

    Empty if no job has succeeded.
    """
    front = study.front
    if not front:
        return {}
    if objectives is None:
        return {
            "best_evaluated_params": front[0].parameters,
            "best_evaluated_result": front[0].value,
        }
    solutions = [
        {"params": result.parameters, "values": {name: result.metrics[name] for name in objectives}}
        for result in front
    ]
    return {"solutions": solutions}


def _parameter(key: str) -> str:
    """A name that a parameter may have: `+db/kind@target` is `db.kind.target`."""
    return key.lstrip("+").replace("/", ".").replace("@", ".")


class _Swept:
    """A parameter of the sweep: what the search knows of it, and the override of a value."""

    def __init__(self, override: Override) -> None:
        """Raises ValueError: a range that cannot be searched."""
        self._key = override.get_key_element()
        self._texts: dict[tuple[type, object], str] = {}
        if override.is_choice_sweep():
            self._texts = {
                _plain(choice): str(Transformer.str(choice)) for choice in override.sweep_iterator()
            }
            self.domain: Domain | Parameter = Choice(tuple(value for _, value in self._texts))
        else:
            self.domain = _numbers(override)

    def override(self, value: object) -> str:
        return f"{self._key}={self._texts.get((type(value), value), value)}"


def _plain(element: object) -> tuple[type, str | int | float | bool]:
    """The type and the value of a choice.

    Its text if it is a list, a mapping or null. 1 and true are different.
    """
    if isinstance(element, QuotedString):
        element = element.text
    value = (
        element if isinstance(element, str | int | float | bool) else str(Transformer.str(element))
    )
    return type(value), value


def _numbers(override: Override) -> Domain | Parameter:
    """A range or an interval; `tag(log, ...)` searches it on a logarithmic scale.

    Raises ValueError.
    """
    value = override.value()
    assert isinstance(value, IntervalSweep | RangeSweep)
    log = "log" in value.tags
    if isinstance(value, RangeSweep):
        return _range(override.input_line, value, log=log)
    if value.start is None or value.end is None:
        raise ValueError(f"{override.input_line}: expected a start and an end")
    if isinstance(value.start, int) and isinstance(value.end, int):
        return Int(value.start, value.end, log=log)
    return Float(float(value.start), float(value.end), log=log)


def _range(line: str | None, value: RangeSweep, *, log: bool) -> Domain | Parameter:
    """The values of Python's `range`, which has no stop.

    Here also those of real numbers, as they were written.
    """
    if not all(
        isinstance(number, int | float) and math.isfinite(number)
        for number in (value.start, value.stop, value.step)
    ):
        raise ValueError(f"{line}: expected finite numbers")
    start, stop, step = (Fraction(repr(number)) for number in (value.start, value.stop, value.step))
    if step == 0:
        raise ValueError(f"{line}: a step of 0 never reaches the stop")
    count = math.ceil((stop - start) / step)
    if count < 1:
        raise ValueError(f"{line}: the range is empty; to count down, write a negative step")
    first, last = sorted((start, start + (count - 1) * step))
    if isinstance(value.start, int) and isinstance(value.stop, int) and isinstance(value.step, int):
        return Int(int(first), int(last), step=abs(int(step)), log=log)
    return Float(float(first), float(last), step=float(abs(step)), log=log)
