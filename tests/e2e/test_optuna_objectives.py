"""Objectives that were written for Optuna, unchanged, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.test_python_api import Scripts, scripts

__all__ = ["scripts"]

OBJECTIVES = Path(__file__).parents[2] / "bench"
QUIET = "import optuna\noptuna.logging.disable_default_handler()\n"


def test_twenty_objectives_run_as_they_are(scripts: Scripts) -> None:
    body = f"""
sys.path.insert(0, {str(OBJECTIVES)!r})
from optuna_objectives import OTHERS, SINGLE

for name, objective in (SINGLE | OTHERS).items():
    study = optuna.create_study(directions=["minimize"] * (1 + (name == "several")))
    study = tuner.optimize_optuna(
        objective, study, trials=4, parallelism=4, name=name.replace("_", "-"), progress=False,
        constraints={{"circle": {{"max": 0}}}} if name == "constrained" else None)
    done = {{"COMPLETE", "PRUNED"}}
    print(name, len(study.trials), {{trial.state.name for trial in study.trials}} <= done)
"""
    lines = scripts.output(QUIET + body).splitlines()
    assert len(lines) == 20
    assert {line.split(" ", 1)[1] for line in lines} == {"4 True"}


def test_the_result_is_a_study_of_optuna_with_what_trials_set(scripts: Scripts) -> None:
    body = """
def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("note", [x, "text"])
    trial.set_system_attr("host", "here")
    trial.report(x, 0)
    if trial.number == 1:
        raise optuna.TrialPruned("by its own rule")
    if trial.suggest_categorical("kind", ["a", None]) is None:
        return x + trial.suggest_int("n", 1, 9, step=2)
    return x

study = optuna.create_study(direction="maximize")
study.enqueue_trial({"x": 0.25, "kind": None, "n": 7})
study = tuner.optimize_optuna(objective, study, trials=2, name="both", progress=False)
first, second = study.trials
print(first.params, first.value, first.intermediate_values, first.system_attrs["host"])
print(first.user_attrs, sorted(first.distributions), study.best_trial.number)
print(second.state.name, second.intermediate_values == {0: second.params["x"]})
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "{'x': 0.25, 'kind': None, 'n': 7} 7.25 {0: 0.25} here",
        "{'note': [0.25, 'text']} ['kind', 'n', 'x'] 0",
        "PRUNED True",
    ]


def test_an_objective_that_asks_is_pruned_by_the_rule(scripts: Scripts) -> None:
    body = """
def objective(trial):
    trial.suggest_float("x", 0, 1)
    bad = trial.number > 0
    for step in range(2000):
        trial.report(step + 1000 * bad, step)
        if trial.should_prune():
            (HERE / "pruned").touch()
            raise optuna.TrialPruned
        if bad:
            time.sleep(0.01)
        elif step == 99:
            return 1.0

pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
study = optuna.create_study(pruner=pruner)
study = tuner.optimize_optuna(objective, study, trials=2, name="late", progress=False)
print([trial.state.name for trial in study.trials], (HERE / "pruned").exists())
"""
    assert scripts.output(QUIET + body) == "['COMPLETE', 'PRUNED'] True\n"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("study.tell(study.ask(), 1.0)", "has run trials; pass a new study"),
        (
            "study.pruner = optuna.pruners.HyperbandPruner()",
            "the study has a HyperbandPruner; name",
        ),
        ("options['n_trials'] = 3", "unknown argument 'n_trials'; use trials"),
        ("options['initial'] = []", "initial is what the study of Optuna says; omit it"),
    ],
)
def test_what_a_study_cannot_bring_is_refused_with_the_cure(
    scripts: Scripts, call: str, message: str
) -> None:
    body = f"""
study, options = optuna.create_study(), {{}}
{call}
tuner.optimize_optuna(lambda trial: 1.0, study, **options)
"""
    process = scripts.start(QUIET + body)
    assert message in process.communicate(timeout=60)[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('trial.suggest_uniform("x", 0, 1)', "use trial.suggest_float(name, low, high)"),
        ('trial.suggest_float("x", 1, 0)', "`low <= high` must hold"),
        (
            'trial.suggest_float("x", 0.1, 1, log=True, step=0.1)',
            "not supported when `log` is true",
        ),
        ('trial.suggest_categorical("x", [])', "must contain one or more elements"),
        ('trial.set_constraint("c", 1)', "constraint 'c' is not known to the search"),
        ("trial.study", "a trial is a process of its own"),
    ],
)
def test_a_wrong_call_fails_the_trial_with_the_rule_and_the_cure(
    scripts: Scripts, line: str, message: str
) -> None:
    body = f"""
def objective(trial):
    return {line}

tuner.optimize_optuna(objective, trials=1, name="wrong", progress=False)
"""
    process = scripts.start(QUIET + body)
    assert message in process.communicate(timeout=60)[1]
