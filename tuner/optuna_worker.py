"""The program of a trial of a script that was written for Optuna:
`python -m tuner.optuna_worker SCRIPT`, the command of the trials of `tuner run SCRIPT`.

Runs the script without its search, and calls the objective that it gives to `study.optimize`. The
module has the name of the script's file, so what the script does as a program
(`if __name__ == "__main__"`) is not done.
"""

from __future__ import annotations

import ast
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import tuner.optuna_trial as inside
from controller.optuna_script import OptunaScript, objective_of
from tuner.trial import Trial
from tuner.worker import run, run_trial


def main() -> int:
    """Run the trial and return its exit code."""
    path = sys.argv[1]
    # By metric: its direction, as `--set` or a later revision of the file may say it.
    objectives = json.loads(os.environ["TUNER_OBJECTIVES"])
    # Of enqueued points, by the trial's number.
    attributes = json.loads(sys.argv[2]) if len(sys.argv) > 2 else []
    # The script may parse them.
    sys.argv = [path]

    script = OptunaScript.read(Path(path).read_text(encoding="utf-8"), path)

    def load() -> Callable[[Trial], Any]:
        directions = list(objectives.values())
        objective = _objective(script, Path(path), inside.OptunaStudy(directions))
        return lambda trial: inside.run(objective, trial, directions, attributes)

    constraints = [inside.CONSTRAINT + name for name in script.constraint_names()]
    return run_trial(load, list(objectives), constraints)


# Any: what Optuna's objectives take and return
def _objective(script: OptunaScript, path: Path, study: inside.OptunaStudy) -> Callable[[Any], Any]:
    """Return the objective of the script, whose module can be imported from now on.

    study: what its own studies are in a trial.
    """
    module = ModuleType(path.stem)
    module.__file__ = str(path.absolute())
    sys.modules[path.stem] = module
    exec(compile(script.without_search(), module.__file__, "exec"), vars(module))
    vars(module).update(dict.fromkeys(script.study_names(), study))
    named = next(node for each in script.searches if (node := objective_of(each)) is not None)
    code = compile(ast.Expression(named), module.__file__, "eval")
    objective: Callable[[Any], Any] = eval(code, vars(module))
    return objective


if __name__ == "__main__":
    run(main)
