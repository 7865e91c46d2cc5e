"""Hyperparameter tuning that survives, from Python: `minimize` a function,
`run` a file, `open` what is stored.

    import tuner

    def objective(trial):
        return (trial["x"] - 2) ** 2

    study = tuner.minimize(objective, {"x": tuner.Float(-5, 5)}, trials=20, name="parabola")
    print(study.best.parameters)

Importing this package imports nothing else: each name loads its module when it is first used.
"""

from __future__ import annotations

import importlib
import sys

# Not from `typing`: Ctrl-C may come while the console script imports this package.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from suggest.client import Choice, Float, Int
    from suggest.errors import TunerError
    from tuner.experiment import Experiment
    from tuner.functions import maximize, minimize, optimize
    from tuner.opening import open as open
    from tuner.optuna_study import optimize_optuna
    from tuner.running import run
    from tuner.study import SearchFailed, Study, TrialResult, connect
    from tuner.trial import Infeasible, Pruned, Trial, current_trial

_MODULES = {
    "suggest.client": ("Choice", "Float", "Int"),
    "suggest.errors": ("TunerError",),
    "tuner.experiment": ("Experiment",),
    "tuner.functions": ("maximize", "minimize", "optimize"),
    "tuner.opening": ("open",),
    "tuner.optuna_study": ("optimize_optuna",),
    "tuner.running": ("run",),
    "tuner.study": ("SearchFailed", "Study", "TrialResult", "connect"),
    "tuner.trial": ("Infeasible", "Pruned", "Trial", "current_trial"),
}
_MODULE_OF: dict[str, str] = {}
for _module, _names in _MODULES.items():
    _MODULE_OF |= dict.fromkeys(_names, _module)

_PACKAGES = ("controller", "suggest")  # beside this one

# Names that Optuna has, and what this package has instead.
_INSTEAD = {
    "create_study": "a search begins with tuner.minimize, tuner.maximize or tuner.optimize, and an "
    "objective written for Optuna runs by tuner.optimize_optuna",
    "load_study": "use tuner.open",
    "TrialPruned": "trial.report raises tuner.Pruned when the trial should stop",
}

# Without `open`: `from tuner import *` must not replace the built-in function.
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
    "optimize",
    "optimize_optuna",
    "run",
]


# Any: a module's __getattr__ has no narrower type.
def __getattr__(name: str) -> Any:
    if name == "__version__":
        # The archive of a trial on a cluster has this package only.
        from suggest.distribution import VERSION

        return VERSION
    if name not in _MODULE_OF:
        cure = f"; {_INSTEAD[name]}" if name in _INSTEAD else ""
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{cure}")
    try:
        return getattr(importlib.import_module(_MODULE_OF[name]), name)
    except ImportError as error:
        if hidden := _hidden(error):
            raise ImportError(hidden) from None
        raise


def program() -> int:
    """Run the console script `tuner`, and return its exit code."""
    try:
        from controller import program

        return program()
    except ImportError as error:
        if hidden := _hidden(error):
            print(f"tuner: {hidden}", file=sys.stderr)
            return 2
        raise


def _hidden(error: ImportError) -> str | None:
    """Return what to say if a package of Tuner was not found because another has its name."""
    from pathlib import Path  # only here, as above

    name = (error.name or "").partition(".")[0]
    file = getattr(sys.modules.get(name), "__file__", None)
    if (
        name not in _PACKAGES
        or file is None
        or Path(file).parent == Path(__file__).parents[1] / name
    ):
        return None
    return (
        f"{file} has the name of a package that Tuner is made of, {name}, and Python finds it "
        "first; give it another name, or take its folder out of PYTHONPATH"
    )


def __dir__() -> list[str]:
    return sorted(_MODULE_OF)
