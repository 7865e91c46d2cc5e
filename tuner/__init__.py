"""Hyperparameter tuning that survives, from Python: `minimize` a function, `run` a file, `open` what is stored.

    import tuner

    def objective(trial):
        return (trial["x"] - 2) ** 2

    study = tuner.minimize(objective, {"x": tuner.Float(-5, 5)}, trials=20, name="parabola")
    print(study.best.parameters)

Importing this imports nothing else: each name loads its module when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from suggest.client import Choice, Float, Int
    from suggest.errors import TunerError
    from tuner.experiment import Experiment
    from tuner.functions import maximize, minimize, optimize
    from tuner.pushing import push
    from tuner.running import SearchFailed, run
    from tuner.study import Study, TrialResult, connect, open  # read as tuner.open
    from tuner.trial import Infeasible, Pruned, Trial, current_trial

_MODULES = {
    "Choice": "suggest.client",
    "Experiment": "tuner.experiment",
    "Float": "suggest.client",
    "Infeasible": "tuner.trial",
    "Int": "suggest.client",
    "Pruned": "tuner.trial",
    "SearchFailed": "tuner.running",
    "Study": "tuner.study",
    "Trial": "tuner.trial",
    "TrialResult": "tuner.study",
    "TunerError": "suggest.errors",
    "connect": "tuner.study",
    "current_trial": "tuner.trial",
    "maximize": "tuner.functions",
    "minimize": "tuner.functions",
    "open": "tuner.study",
    "optimize": "tuner.functions",
    "push": "tuner.pushing",
    "run": "tuner.running",
}

__all__ = [
    "Choice",
    "Experiment",
    "Float",
    "Infeasible",
    "Int",
    "Pruned",
    "SearchFailed",
    "Study",
    "Trial",
    "TrialResult",
    "TunerError",
    "connect",
    "current_trial",
    "maximize",
    "minimize",
    "open",
    "optimize",
    "push",
    "run",
]


# Any: a module's __getattr__ has no narrower type.
def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return __all__
