"""The plugin that Hydra finds for `hydra/sweeper: tuner`: its settings,
and a class that hands over to `tuner`.

Hydra imports every module of this namespace package whenever an application starts, so nothing
large is imported here. Hydra accepts plugins of this package only.
"""

from __future__ import annotations

from typing import Any

from hydra.core.config_store import ConfigStore
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf

# The keys below `hydra.sweeper`: the direction, or those of several metrics, what to search as on
# the command line (`params: {x: "interval(0, 1)"}`), and options of `tuner.minimize`. A dict,
# because dataclasses fail in a module that is executed as Hydra does it.
SETTINGS = {
    "_target_": "hydra_plugins.tuner_sweeper.TunerSweeper",
    "direction": "minimize",
    "params": {},
    "trials": 20,
    "parallelism": 1,
    "name": None,
    "algorithm": None,
    "seed": None,
    "pruning": None,
    "constraints": None,
    "target": None,
    "timeout": None,
    "trial_timeout": None,
    "gpu": None,
    "spec": None,
    "state_dir": None,
}
ConfigStore.instance().store(group="hydra/sweeper", name="tuner", node=SETTINGS, provider="tuner")


class TunerSweeper(Sweeper):  # type: ignore[misc]  # Any, see pyproject.toml
    """Each job of the sweep is a trial, in a process of its own,
    whose value is what the application returns.
    """

    def __init__(self, params: dict[str, str] | None, **options: Any) -> None:
        self._params = params or {}
        self._options = options

    def setup(
        self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig
    ) -> None:
        self.hydra_context = hydra_context
        self.task_function = task_function
        self.config = config

    def sweep(self, arguments: list[str]) -> Any:
        from tuner.integrations.hydra import sweep

        params = [f"{name}={value}" for name, value in self._params.items()]
        options = {
            name: OmegaConf.to_container(value) if OmegaConf.is_config(value) else value
            for name, value in self._options.items()
            if value is not None
        }
        return sweep(
            self.hydra_context, self.task_function, self.config, [*params, *arguments], options
        )
