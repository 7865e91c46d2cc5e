"""Objectives that were written for Optuna, unchanged, with real processes."""

from __future__ import annotations

from pathlib import Path

import pytest

import tuner
from controller import app
from tests.e2e.cli import eventually
from tests.e2e.test_python_api import Scripts, scripts
from tuner.study import workspace_of

__all__ = ["scripts"]

OBJECTIVES = Path(__file__).parents[2] / "bench"
QUIET = "import optuna\noptuna.logging.disable_default_handler()\n"
STARTED = """
def started(trial):
    with (HERE / "starts.txt").open("a") as file:
        file.write(f"{trial.number}\\n")
"""


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
    trial.set_system_attr("began", str(trial.datetime_start))
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
print(second.state.name, second.intermediate_values == {0: second.params["x"]} == {0: second.value})
print([str(trial.datetime_start) == trial.system_attrs["began"] for trial in study.trials])
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "{'x': 0.25, 'kind': None, 'n': 7} 7.25 {0: 0.25} here",
        "{'note': [0.25, 'text']} ['kind', 'n', 'x'] 0",
        "PRUNED True",
        "[True, True]",
    ]


def test_an_objective_continues_without_a_parameter_that_was_refused(scripts: Scripts) -> None:
    """As in Optuna, it is not among the trial's parameters, and may be named in another way."""
    body = """
def objective(trial):
    trial.suggest_categorical("kind", ["a", "b"])
    if trial.number == 0:
        trial.suggest_float("x", 1, 2)
        return 1.0
    for suggest in (lambda: trial.suggest_int("x", 1, 2), lambda: trial.suggest_float("y", 2, 1)):
        try:
            suggest()
        except ValueError as error:
            trial.set_user_attr("refused", str(error))
    seen = [sorted(trial.params), sorted(trial.distributions)]
    trial.set_user_attr("seen", [seen, 1 <= trial.suggest_float("x", 1, 2) <= 2])
    return 1.0

study = tuner.optimize_optuna(objective, trials=2, name="refused", progress=False)
_, second = study.trials
print(second.state.name, second.user_attrs["seen"], sorted(second.params))
"""
    seen = "[[['kind'], ['kind']], True]"
    assert scripts.output(QUIET + body) == f"COMPLETE {seen} ['kind', 'x']\n"


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


def test_the_trials_and_steps_that_are_pruned_are_those_of_optuna(scripts: Scripts) -> None:
    """One at a time, and though no step takes any time: `should_prune` waits for the rule."""
    body = """
def objective(trial):
    x = trial.suggest_float("x", 0, 10)
    for step in range(6):
        trial.report(x + (step * 7 + trial.number * 5) % 11, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return x

optuna.logging.set_verbosity(optuna.logging.ERROR)
pruners = {
    "median": optuna.pruners.MedianPruner(n_startup_trials=2),
    "halving": optuna.pruners.SuccessiveHalvingPruner(min_resource=1, reduction_factor=2),
}
for name, pruner in pruners.items():
    ends = []
    for optimize in (optuna.Study.optimize, None):
        study = optuna.create_study(pruner=pruner)
        for number in range(14):
            study.enqueue_trial({"x": number * 3.7 % 10})
        if optimize:
            optimize(study, objective, n_trials=14)
        else:
            study = tuner.optimize_optuna(objective, study, trials=14, name=name, progress=False)
        ends.append([(t.state.name, len(t.intermediate_values)) for t in study.trials])
    pruned = sum(state == "PRUNED" for state, _ in ends[0])
    print(name, 3 < pruned < 14, ends[0] == ends[1])
"""
    assert scripts.output(QUIET + body) == "median True True\nhalving True True\n"


def test_an_objective_that_never_asks_is_not_pruned(scripts: Scripts) -> None:
    body = """
def objective(trial):
    trial.suggest_float("x", 0, 1)
    for step in range(20):
        trial.report(step + 1000 * trial.number, step)
        time.sleep(0.1 * trial.number)
    if trial.number == 2:
        raise ValueError("late")
    return 1.0

pruner = optuna.pruners.MedianPruner(n_startup_trials=1)
study = optuna.create_study(pruner=pruner)
study = tuner.optimize_optuna(objective, study, trials=3, name="calm", progress=False)
print([trial.state.name for trial in study.trials])
print([len(trial.intermediate_values) for trial in study.trials])
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "['COMPLETE', 'COMPLETE', 'FAIL']",
        "[20, 20, 20]",
    ]


def test_steps_of_reports_may_go_backwards(scripts: Scripts) -> None:
    body = """
def objective(trial):
    for step in (10, 3, 5):
        trial.report(step / 10, step)
    return 2.0

study = tuner.optimize_optuna(objective, trials=1, name="back", progress=False)
print(study.best_value, study.best_trial.intermediate_values)
"""
    assert scripts.output(QUIET + body) == "2.0 {10: 1.0, 3: 0.3, 5: 0.5}\n"


def test_a_pruner_of_another_class_is_asked_in_each_trial(scripts: Scripts) -> None:
    """It sees what running trials have reported; successive halving keeps its rungs in trials."""
    body = """
class WorseThanAll(optuna.pruners.BasePruner):
    def prune(self, study, trial):
        others = [each.intermediate_values for each in study.trials if each.number != trial.number]
        seen = [each[0] for each in others if each]
        assert 0 in trial.intermediate_values and trial.params, trial
        return bool(seen) and trial.intermediate_values[0] > max(seen)

class Halving(optuna.pruners.SuccessiveHalvingPruner):
    pass

def objective(trial):
    for step in range(10):
        trial.report(trial.number, step)
        if trial.should_prune():
            raise optuna.TrialPruned
    return trial.suggest_float("x", 0, 1)

def waits(trial):
    x = trial.suggest_float("x", 0, 1)
    if trial.number:
        trial.report(1, 0)
        while not trial.should_prune():
            time.sleep(0.01)
        (HERE / "pruned").touch()
        raise optuna.TrialPruned
    trial.report(0, 0)
    assert not trial.should_prune()
    while not (HERE / "pruned").exists():
        time.sleep(0.01)
    return x

for pruner, run, at_once in ((WorseThanAll(), waits, 2), (Halving(1, 2), objective, 1)):
    study, name = optuna.create_study(pruner=pruner), run.__name__
    study = tuner.optimize_optuna(
        run, study, trials=2, parallelism=at_once, name=name, progress=False)
    print([trial.state.name for trial in study.trials], tuner.open(name).results()[1].reason)
print([key for key in study.trials[1].system_attrs if key.startswith("completed")])
"""
    reason = "the objective raised optuna.TrialPruned: {}.prune() returned true"
    assert scripts.output(QUIET + body).splitlines() == [
        f"['COMPLETE', 'PRUNED'] {reason.format('WorseThanAll')}",
        f"['COMPLETE', 'PRUNED'] {reason.format('Halving')}",
        "['completed_rung_0']",
    ]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            "study.tell(study.ask(), 1.0); options |= {'runtime': 'cluster', 'image': 'i'}",
            "has trials, of which a search in the cluster cannot learn; pass a new study, and enqueue",
        ),
        (
            "study.pruner = type('Mine', (optuna.pruners.MedianPruner,), {})(); "
            "options |= {'runtime': 'kubernetes', 'image': 'i'}",
            "the study has a Mine, which trials in containers cannot ask, because it reads other",
        ),
        (
            "study.pruner = optuna.pruners.PatientPruner("
            "type('Mine', (optuna.pruners.WilcoxonPruner,), {})(), 1); "
            "options |= {'runtime': 'kubernetes', 'image': 'i'}",
            "the study has a PatientPruner, which trials in containers cannot ask, because it reads",
        ),
        ("options['n_trials'] = 3", "unknown argument 'n_trials'; use trials"),
        (
            "study.sampler = optuna.samplers.GridSampler({'x': range(10**4), 'y': [1, 2]})",
            "the study's GridSampler has 20,000 points, and at most 10,000 are taken over",
        ),
        (
            "study.sampler = optuna.samplers.BruteForceSampler()",
            "the study has a BruteForceSampler, which is not taken over: no search here tries each",
        ),
        ("options['constraints'] = ['c']", "constraints: expected a dict such as {'weight'"),
        ("options['callbacks'] = print", "callbacks: expected a list of functions, got"),
        ("objective = 3", "objective: expected a function of one argument, the trial, got 3"),
        ("options['initial'] = []", "initial is what the study of Optuna says; omit it"),
    ],
)
def test_what_a_study_cannot_bring_is_refused_with_the_cure(
    scripts: Scripts, call: str, message: str
) -> None:
    body = f"""
study, options, objective = optuna.create_study(), {{}}, lambda trial: 1.0
{call}
tuner.optimize_optuna(objective, study, **options)
"""
    process = scripts.start(QUIET + body)
    assert message in process.communicate(timeout=60)[1]


def test_callbacks_are_called_as_by_optuna(scripts: Scripts) -> None:
    body = """
from tuner.integrations.trial_log import TrialLog

class Log(TrialLog):
    def copied(self, search):
        return set()
    def copy(self, search, result, measurements):
        seen.append((result.number, result.state))

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    trial.set_user_attr("twice", 2 * x)
    if trial.number == 1:
        raise optuna.TrialPruned
    return x

def told(study, trial):
    attributes = {"twice": 2 * trial.params["x"]}
    assert trial.user_attrs == attributes and trial.intermediate_values, trial
    seen.append((trial.number, trial.state.name, len(study.trials), dict(study.user_attrs)))
    if study.best_trial.number == trial.number:
        study.set_user_attr("best", trial.number)

seen = []
study = tuner.optimize_optuna(
    objective, trials=9, name="told", progress=False, spec={"canary": "0s"},
    callbacks=[told, optuna.study.MaxTrialsCallback(2), Log()])
print(seen[:5])
print(study.user_attrs == {"best": study.best_trial.number}, tuner.open("told").state)
"""
    called, ended = scripts.output(QUIET + body).splitlines()
    logged = "(0, 'succeeded'), (0, 'COMPLETE', 1, {}), (1, 'infeasible'), "
    pruned = "(1, 'PRUNED', 2, {'best': 0}), (2, 'succeeded')"
    assert (called, ended) == (f"[{logged}{pruned}]", "True succeeded")


def test_a_search_is_continued_with_the_study_of_its_first_call_or_the_returned_one(
    scripts: Scripts,
) -> None:
    body = """
def objective(trial):
    return trial.suggest_float("x", 0, 1)

study = optuna.create_study()
study.enqueue_trial({"x": 0.5})
found = tuner.optimize_optuna(objective, study, trials=1, name="more", progress=False)
found = tuner.optimize_optuna(objective, study, trials=2, name="more", progress=False)
print(len(found.trials), found.trials[0].params)
found = tuner.optimize_optuna(objective, found, trials=3, name="more", progress=False)
print(len(found.trials))
found.enqueue_trial({"x": 0.25})
for _ in range(2):
    again = tuner.optimize_optuna(objective, found, trials=4, name="more", progress=False)
    print([trial.params["x"] for trial in again.trials if trial.number in (0, 3)])
found.enqueue_trial({"x": 0}, user_attrs={"from": "me"})
try:
    tuner.optimize_optuna(objective, found, trials=5, name="more", progress=False)
except tuner.TunerError as error:
    print(error)
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "2 {'x': 0.5}",
        "3",
        "[0.5, 0.25]",
        "[0.5, 0.25]",
        "tuner.optimize_optuna: a point that was enqueued after the search had begun has user_attrs, "
        "which only its first trials can get; enqueue it without them",
    ]


def test_a_search_without_a_value_raises_only_if_trials_have_failed(scripts: Scripts) -> None:
    body = """
def pruned(trial):
    raise optuna.TrialPruned

def failing(trial):
    raise ValueError("no")

def either(trial):
    raise ValueError("no") if trial.number else optuna.TrialPruned

def searched(objective, name, **options):
    try:
        study = tuner.optimize_optuna(objective, trials=2, name=name, progress=False, **options)
        print([trial.state.name for trial in study.trials])
    except tuner.SearchFailed as error:
        print(str(error).splitlines()[0])

searched(pruned, "pruned")
searched(pruned, "stopped", callbacks=[lambda study, trial: study.stop()])
searched(failing, "caught", spec={"breaker": "off"})
searched(either, "failed")
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "['PRUNED', 'PRUNED']",
        "['PRUNED']",
        "['FAIL', 'FAIL']",
        "failed failed: all 2 trials are done; no trial succeeded",
    ]


def test_an_infinite_value_is_that_of_its_trial(scripts: Scripts) -> None:
    body = """
def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    return float("inf") if trial.number == 1 else x

found = tuner.optimize_optuna(objective, trials=3, name="infinite", progress=False)
infinite = found.trials[1]
print([trial.state.name for trial in found.trials], infinite.value)
print(found.best_trial.number != 1, infinite.intermediate_values == {0: infinite.params["x"]})
print([(each.state, each.reason) for each in tuner.open("infinite").results()][1])
"""
    assert scripts.output(QUIET + body).splitlines() == [
        f"{['COMPLETE'] * 3} inf",
        "True True",
        "('infeasible', 'the objective returned inf')",
    ]


def test_a_trial_that_returns_nan_is_failed_for_optuna_and_the_search_goes_on(
    scripts: Scripts,
) -> None:
    body = """
def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    return x if trial.number == 3 else float("nan")

found = tuner.optimize_optuna(objective, trials=4, name="nan", progress=False)
print([trial.state.name for trial in found.trials], found.best_trial.number)
print(found.trials[0].value, tuner.open("nan").results()[0].reason)
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "['FAIL', 'FAIL', 'FAIL', 'COMPLETE'] 3",
        "None the objective returned nan",
    ]


def test_what_is_no_value_is_failed_for_optuna_and_the_search_goes_on(scripts: Scripts) -> None:
    body = """
def objective(trial):
    trial.report(1, 0)
    return [None, "one", (1, 2), {"a": 1}, [], 7][trial.number]

study = tuner.optimize_optuna(objective, trials=6, name="none", progress=False)
print([trial.state.name for trial in study.trials], study.best_value)
print({each.state for each in tuner.open("none").results()[:5]})
print(tuner.open("none").results()[2].reason)
study = tuner.optimize_optuna(lambda trial: None, trials=3, name="never", progress=False)
print([(trial.state.name, trial.values) for trial in study.trials])
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "['FAIL', 'FAIL', 'FAIL', 'FAIL', 'FAIL', 'COMPLETE'] 7.0",
        "{'infeasible'}",
        "the objective returned (1, 2); return one number for each direction of the study: minimize",
        "[('FAIL', None), ('FAIL', None), ('FAIL', None)]",
    ]


def test_what_a_callback_cannot_do_with_its_study_is_refused(scripts: Scripts) -> None:
    body = """
def more(study, trial):
    study.enqueue_trial({"x": 0.5})

objective = lambda trial: trial.suggest_float("x", 0, 1)
tuner.optimize_optuna(objective, trials=3, progress=False, callbacks=[more])
"""
    process = scripts.start(QUIET + body)
    message = "RuntimeError: study.enqueue_trial() in a callback has no effect on the search"
    assert message in process.communicate(timeout=60)[1]


def test_a_search_of_a_function_with_a_long_name_has_a_name_of_its_own(scripts: Scripts) -> None:
    body = """
def train_and_evaluate_the_model_of_this_trial(trial):
    return trial.suggest_float("x", 0, 1)

objective = train_and_evaluate_the_model_of_this_trial
print(tuner.optimize_optuna(objective, trials=1, progress=False).study_name)
"""
    name = scripts.output(QUIET + body).strip()
    assert name.startswith("train-and-evaluate-")


STOPS = """
study = optuna.create_study()

def stop_by_alias(trial):
    known = trial.study
    known.stop()

def objective(trial):
    started(trial)
    x = trial.suggest_float("x", 0, 1)
    if trial.number == 2:
        {stop}
    return x

def main():
    found = tuner.optimize_optuna(objective, study, trials=4, {options} progress=False)
    print([trial.state.name for trial in found.trials], tuner.open("stops").reason)

main()
"""


@pytest.mark.parametrize("stop", ["trial.study.stop()", "study.stop()", "stop_by_alias(trial)"])
def test_an_objective_ends_the_search(scripts: Scripts, stop: str) -> None:
    said = scripts.output(QUIET + STARTED + STOPS.format(stop=stop, options='name="stops",'))
    assert said == f"{['COMPLETE'] * 3} trial 2 called study.stop()\n"
    assert scripts.starts() == ["0", "1", "2"]


def test_a_search_that_an_objective_has_ended_can_be_extended_and_confirmed(
    scripts: Scripts,
) -> None:
    options = 'name="stops", spec={"confirm": {"top": 2, "seeds": 2}},'
    body = QUIET + STARTED + STOPS.format(stop="trial.study.stop()", options=options)
    more = """
print(len(tuner.open("stops-confirm").results()))
study = tuner.open("stops").extend(trials=1, progress=False)
print(len(study.results()), study.reason_code)
"""
    assert scripts.output(QUIET + body + more).splitlines()[1:] == ["4", "5 TrialsDone"]


@pytest.mark.parametrize("asked_by", [1, 0])
def test_running_trials_finish_after_the_end_of_the_search_also_of_a_killed_one(
    scripts: Scripts, asked_by: int
) -> None:
    """Trial 1 has ended before the kill, and trial 0 runs on."""
    body = f"""{STARTED}
def objective(trial):
    started(trial)
    trial.report(0.5, 0)
    while len((HERE / "starts.txt").read_text()) < 4:
        time.sleep(0.01)
    if trial.number == {asked_by}:
        trial.study.stop()
    while trial.number == 0 and not (HERE / "killed").exists():
        time.sleep(0.01)
    while trial.number == 1 and not (HERE / "asked").exists():
        time.sleep(0.01)
    return float(trial.number)

found = tuner.optimize_optuna(objective, trials=9, parallelism=2, name="ends", progress=False)
print([(trial.state.name, trial.value) for trial in found.trials], tuner.open("ends").reason)
"""
    first = scripts.start(QUIET + body)
    eventually(lambda: len(scripts.starts()) == 2, within_s=60)
    stored = tuner.open("ends", state_dir=scripts.folder / "state")
    (scripts.folder / "asked").touch()
    eventually(lambda: stored.results()[1].state == "succeeded", within_s=60)
    first.kill()
    first.communicate()
    (scripts.folder / "killed").touch()
    said = scripts.output(QUIET + body)
    ended = "[('COMPLETE', 0.0), ('COMPLETE', 1.0)]"
    assert said == f"{ended} trial {asked_by} called study.stop()\n"
    assert scripts.starts() == ["0", "1"]


def test_running_trials_finish_after_a_callback_has_ended_the_search_also_of_a_killed_one(
    scripts: Scripts,
) -> None:
    body = f"""{STARTED}
def objective(trial):
    started(trial)
    while trial.number != 1 and not (HERE / "killed").exists():
        time.sleep(0.01)
    return float(trial.number)

def stop(study, trial):
    assert trial.number == 1 or (HERE / "killed").exists()
    study.stop()

found = tuner.optimize_optuna(
    objective, trials=9, parallelism=3, name="ends", progress=False, callbacks=[stop],
    spec={{"canary": "0s"}})
print([(trial.state.name, trial.value) for trial in found.trials], tuner.open("ends").reason)
"""
    first = scripts.start(QUIET + body)
    eventually(lambda: len(scripts.starts()) == 3, within_s=60)

    def recorded() -> str:
        with workspace_of(scripts.folder / "state").opened() as experiments:
            return app.experiments.find(experiments, "ends", None).ended_by

    eventually(recorded, within_s=60)
    first.kill()
    first.communicate()
    (scripts.folder / "killed").touch()
    said = scripts.output(QUIET + body)
    ended = [("COMPLETE", float(number)) for number in range(3)]
    assert said == f"{ended} a callback of trial 1 called study.stop()\n"
    assert sorted(scripts.starts()) == ["0", "1", "2"]


@pytest.mark.parametrize(
    "objective",
    [
        "asks",
        "Asking()",
        "functools.partial(asks)",
        "lambda trial: study.trials",
        "Holding().objective",
    ],
)
def test_an_objective_in_containers_that_uses_results_of_its_study_is_refused_before_it_runs(
    scripts: Scripts, objective: str
) -> None:
    body = f"""
import functools

def asks(trial):
    def inner():
        return trial.study.trials
    return inner()

class Asking:
    study = "mine"
    def __call__(self, trial):
        self.study.upper()
        trial.study.trials

class Holding:
    def __init__(self):
        self.made = study
    def objective(self, trial):
        return self.made.trials

study = optuna.create_study(direction="minimize")
try:
    tuner.optimize_optuna(
        {objective}, study, name="asks", trials=2, runtime="kubernetes", image="i", progress=False)
except tuner.TunerError as error:
    print(error)
study.set_user_attr("data", "digits")
study.set_metric_names(["loss"])
def knows(trial):
    return float(study.direction.name == "MINIMIZE" and len(trial.study.study_name))
study = tuner.optimize_optuna(knows, study, name="asks", trials=1, progress=False)
print(study.best_value, study.user_attrs, study.metric_names)
"""
    refused, ran = scripts.output(QUIET + body).splitlines()
    assert "the objective uses study.trials: a trial is a process that knows only" in refused
    assert ran == "4.0 {'data': 'digits'} ['loss']"


def test_an_objective_sees_the_results_of_its_study_so_far(scripts: Scripts) -> None:
    body = """
def objective(trial):
    import optuna
    known = trial.study.get_trials(states=(optuna.trial.TrialState.COMPLETE,))
    assert study.user_attrs == {"data": "digits"}, study.user_attrs
    try:
        best = study.best_value
    except ValueError:
        best = None
    numbers = [each.number for each in trial.study.trials]
    trial.report(2.5, 3)
    assert trial.study.trials[-1].intermediate_values == {3: 2.5}, "its own, at once"
    trial.set_user_attr("seen", [best, numbers, [each.value for each in known]])
    return trial.suggest_float("x", 0, 1)

study = optuna.create_study(direction="maximize")
study.set_user_attr("data", "digits")
study.set_user_attr("model", object())
study.enqueue_trial({"x": 0.5})
study.enqueue_trial({"x": 0.25})
study = tuner.optimize_optuna(objective, study, trials=3, name="sees", progress=False)
for trial in study.trials:
    print(trial.user_attrs["seen"])
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "[None, [0], []]",
        "[0.5, [0, 1], [0.5]]",
        "[0.5, [0, 1, 2], [0.5, 0.25]]",
    ]


@pytest.mark.parametrize("use", ["trial.study.enqueue_trial({})", "study.set_user_attr('a', 1)"])
def test_an_objective_that_changes_its_study_is_refused_before_it_runs(
    scripts: Scripts, use: str
) -> None:
    body = f"""
def objective(trial):
    with_another = optuna.study.create_study()
    {use}

study = optuna.create_study()
tuner.optimize_optuna(objective, study, trials=2, progress=False)
"""
    process = scripts.start(QUIET + body)
    named = use.split("(")[0].split(".")[-1]
    assert f"the objective uses study.{named}: a trial is" in process.communicate(timeout=60)[1]


def test_the_constraints_func_of_a_sampler_decides_which_trial_is_best(scripts: Scripts) -> None:
    body = """
def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.report(x, 0)
    trial.set_user_attr("weights", [trial.number - 1.0, -3])
    return -x

def constraints(trial):
    assert -trial.value == trial.params["x"] == trial.intermediate_values[0], trial
    assert trial.distributions["x"].high == 1, trial
    return (*trial.user_attrs["weights"], trial.number - 1.5)

sampler = optuna.samplers.TPESampler(constraints_func=constraints)
study = optuna.create_study(sampler=sampler)
for x in (0.1, 0.3, 0.9, 0.5):
    study.enqueue_trial({"x": x})
study = tuner.optimize_optuna(objective, study, trials=4, name="bound", progress=False)
print(study.best_trial.number, study.trials[2].constraints)
found = tuner.open("bound")
print(found.best.number, [result.metrics["constraint.constraints_func"] for result in found.results()])
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "1 {'0': 1.0, '1': -3.0, '2': 0.5}",
        "1 [-1.0, 0.0, 1.0, 2.0]",
    ]


def test_each_point_of_a_grid_sampler_is_tried_once(scripts: Scripts) -> None:
    body = """
import numpy

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    y = trial.suggest_categorical("y", ["a", None])
    return x + trial.suggest_int("z", 0, 9) + (y is None)

space = {"x": numpy.linspace(0, 1, 3), "y": ["a", None], "z": numpy.arange(2)}
found = []
for trials in ({"trials": 5}, {"trials": 90}, {}):
    study = optuna.create_study(sampler=optuna.samplers.GridSampler(space))
    study = tuner.optimize_optuna(objective, study, parallelism=2, progress=False, **trials)
    found.append([tuple(trial.params.items()) for trial in study.trials])
print([len(each) for each in found], [len({*each}) for each in found], study.best_params)
"""
    best = {"x": 0.0, "y": "a", "z": 0}
    assert scripts.output(QUIET + body) == f"[5, 12, 12] [5, 12, 12] {best}\n"


def test_the_values_of_a_partial_fixed_sampler_are_those_of_each_trial(scripts: Scripts) -> None:
    """Also in a search that has varied them, and beside points that were enqueued."""
    body = """
import numpy

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    count = trial.suggest_int("count", 0, 100)
    return x + count + (trial.suggest_categorical("kind", ["a", None]) is None)

def searched(trials):
    return tuner.optimize_optuna(objective, study, trials=trials, name="fixed", progress=False)

study = optuna.create_study()
study.enqueue_trial({"count": 99})
searched(2)
fixed = optuna.samplers.PartialFixedSampler
within = fixed({"kind": None, "count": 5, "no": 1}, study.sampler)
study.sampler = fixed({"count": numpy.int64(7)}, within)
found = searched(6)
chosen = {(trial.params["count"], trial.params["kind"]) for trial in found.trials[2:]}
print(found.trials[0].params["count"], chosen)
print(len({t.params["x"] for t in found.trials}), found.trials[5].distributions["count"])
study.sampler = fixed({"x": 3.5}, study.sampler)
print(searched(7).trials[6].params["x"])
study.sampler = fixed({"kind": "c"}, study.sampler)
print(searched(8).trials[7].state.name, tuner.open("fixed").log(7).splitlines()[-1])
"""
    whole = "IntDistribution(high=100, log=False, low=0, step=1)"
    *ran, failed = scripts.output(QUIET + body).splitlines()
    assert ran == ["99 {(7, None)}", f"6 {whole}", "1.0"]
    assert failed.startswith("FAIL ValueError: parameter.kind: a value was chosen for the trial: ")


def test_a_search_learns_from_the_trials_of_its_study(scripts: Scripts) -> None:
    """Also from those of an earlier search; a second call that continues one has them already."""
    body = """
import warnings
floats = optuna.distributions.FloatDistribution(0, 1)

def known(x, constraint=-1.0, state="COMPLETE"):
    return optuna.trial.create_trial(
        params={"x": x}, distributions={"x": floats}, values=[abs(x - 0.7)], state=optuna.trial.TrialState[state],
        constraints={"c": constraint},
    )

def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    trial.set_constraint("c", -1)
    return abs(x - 0.7)

study = optuna.create_study()
study.add_trials([known(x / 20 + 0.02) for x in range(20)])
study.add_trial(known(0.7, constraint=1.0))
study.add_trial(known(0.7, constraint=float("inf")))
options = {"constraints": {"c": {"max": 0}}, "progress": False, "seed": 1}
with warnings.catch_warnings(record=True) as warned:
    found = tuner.optimize_optuna(objective, study, trials=4, name="more", **options)
print([str(each.message) for each in warned], len(study.trials))
print(len(found.trials), found.best_trial.params["x"] in [t.params["x"] for t in study.trials])
print(sum(abs(trial.params["x"] - 0.7) < 0.1 for trial in found.trials[21:]))
again = tuner.optimize_optuna(objective, found, trials=5, name="more", **options)
print(len(again.trials), len(tuner.open("more").results()))
another = tuner.optimize_optuna(objective, again, trials=1, **options)
print(len(another.trials))
"""
    warned, trials, near, again, another = scripts.output(QUIET + body).splitlines()
    assert "study: 1 trial of study no-name" in warned
    assert "constraint.c: an objective or a user attribute of this name is inf" in warned
    assert warned.endswith(" 22")
    assert trials == "25 False", "21 known ones, and a better one here"
    assert int(near) >= 3
    assert (again, another) == ("26 26", "27")


def test_a_study_with_several_objectives_and_all_kinds_of_trials_is_continued(
    scripts: Scripts,
) -> None:
    body = """
def objective(trial):
    x = trial.suggest_float("x", 0, 1)
    if trial.number == 1:
        raise optuna.TrialPruned
    if trial.number == 2:
        raise ValueError
    trial.set_user_attr("over", x - 0.5)
    return x, 1 - x

sampler = optuna.samplers.NSGAIISampler(constraints_func=lambda trial: [trial.user_attrs.get("over", 1)])
study = optuna.create_study(directions=["minimize", "maximize"], sampler=sampler, pruner=optuna.pruners.NopPruner())
study.optimize(objective, n_trials=5, catch=ValueError)
before = study.trials
found = tuner.optimize_optuna(objective, study, trials=2, name="both", progress=False)
print(found.trials[:5] == before, len(found.trials))
found = tuner.optimize_optuna(objective, found, trials=3, name="both", progress=False)
print(found.trials[:5] == before, [trial.state.name for trial in found.trials])
shown = tuner.open("both").results()
print([trial.state for trial in shown[:5]], "over" in found.trials[7].user_attrs)
"""
    complete = ["COMPLETE"] * 5
    assert scripts.output(QUIET + body).splitlines() == [
        "True 7",
        f"True {['COMPLETE', 'PRUNED', 'FAIL', *complete]}",
        "['succeeded', 'pruned', 'failed', 'succeeded', 'succeeded'] True",
    ]


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("[float('nan')]", "the constraints_func returned NaN"),
        ("['heavy']", "a value of the constraints_func: expected a number, got 'heavy'"),
        ("trial.study.trials", "'FrozenTrial' object has no attribute 'study'"),
    ],
)
def test_a_constraints_func_that_fails_fails_the_trial(
    scripts: Scripts, returned: str, message: str
) -> None:
    body = f"""
sampler = optuna.samplers.NSGAIISampler(constraints_func=lambda trial: {returned})
study = optuna.create_study(sampler=sampler)
tuner.optimize_optuna(lambda trial: 1.0, study, trials=1, name="fails", progress=False)
"""
    assert message in scripts.start(QUIET + body).communicate(timeout=60)[1]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("trial.storage.get_trial(0)", "its search is stored by tuner"),
        ('trial.suggest_float("x", 1, 0)', "`low <= high` must hold"),
        (
            'trial.suggest_float("x", 0.1, 1, log=True, step=0.1)',
            "not supported when `log` is true",
        ),
        ('trial.suggest_categorical("x", [])', "must contain one or more elements"),
        ('trial.set_constraint("c", 1)', "constraint 'c' is not known to the search"),
        (
            'trial.suggest_categorical("x", [lambda: 1])',
            "parameter 'x': <function objective.<locals>.<lambda> at",
        ),
        ("getattr(trial.study, 'tell')", "no 'tell': a trial is a process that knows only"),
        ("trial.set_constraint(1, 1)", "the constraint's key is 1, and must be text"),
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


# What differs between an objective of Optuna and its native copy, besides the names of the methods.
NATIVE = {
    "trial.suggest_float(": "trial.float(",
    "trial.suggest_int(": "trial.int(",
    "trial.suggest_categorical(": "trial.choice(",
    "trial.report(loss, epoch)": "trial.report(epoch, loss=loss)",
    "trial.should_prune()": "trial.stopped",
    'trial.set_constraint("circle", x**2 + y**2 - 2)': "trial.report(circle=x**2 + y**2 - 2)",
    "return 4 * x**2 + 4 * y**2, (x - 5) ** 2 + (y - 5) ** 2": (
        'return {"a": 4 * x**2 + 4 * y**2, "b": (x - 5) ** 2 + (y - 5) ** 2}'
    ),
}


@pytest.mark.parametrize("half", [0, 1])
def test_a_native_copy_has_the_same_points_space_and_values(scripts: Scripts, half: int) -> None:
    source = (OBJECTIVES / "optuna_objectives.py").read_text(encoding="utf-8")
    for optunas, ours in NATIVE.items():
        assert optunas in source
        source = source.replace(optunas, ours)
    assert "suggest_" not in source
    (scripts.folder / "native_objectives.py").write_text(source, encoding="utf-8")
    body = f"""
sys.path[:0] = [{str(OBJECTIVES)!r}, str(HERE)]
import native_objectives, optuna_objectives

theirs = optuna_objectives.SINGLE | optuna_objectives.OTHERS
ours = native_objectives.SINGLE | native_objectives.OTHERS
options = {{"trials": 3, "seed": 5, "progress": False}}

def within(trial):
    return all(
        distribution._contains(distribution.to_internal_repr(trial.params[name]))
        for name, distribution in trial.distributions.items())

for name in list(theirs)[{half}::2]:
    bounds = {{"circle": {{"max": 0}}}} if name == "constrained" else None
    plain = name.replace("_", "-")
    study = optuna.create_study(directions=["minimize"] * (1 + (name == "several")))
    study = tuner.optimize_optuna(
        theirs[name], study, name=plain + "-optuna", constraints=bounds, pruning=None, **options)
    native = options | {{"name": plain + "-native", "constraints": bounds}}
    if name == "several":
        found = tuner.optimize(ours[name], None, {{"a": "minimize", "b": "minimize"}}, **native)
    else:
        found = tuner.minimize(ours[name], **native)
    points = [result.parameters for result in found.results()]
    print(
        name,
        points == [trial.params for trial in study.trials],
        name == "several" or [r.value for r in found.results()] == [t.value for t in study.trials],
        all(map(within, study.trials)))
"""
    lines = scripts.output(QUIET + body).splitlines()
    assert len(lines) == 10
    assert {line.split(" ", 1)[1] for line in lines} == {"True True True"}


def test_attributes_that_cannot_be_stored_fail_no_trial(scripts: Scripts) -> None:
    body = """
import numpy as np

def objective(trial):
    trial.set_user_attr("model", object())
    trial.set_user_attr("accuracy", np.float32(0.5))
    trial.set_user_attr("curve", {"loss": np.array([1, 2])})
    return 1.0

study = optuna.create_study(storage="sqlite://")
study = tuner.optimize_optuna(objective, study, trials=2, name="kept", progress=False)
print(study.trials[0].user_attrs)
print("attribute 'model' is not kept: an object of type object" in tuner.open("kept").log(0))
"""
    process = scripts.start(QUIET + body)
    out, err = process.communicate(timeout=60)
    assert out.splitlines() == ["{'accuracy': 0.5, 'curve': {'loss': [1, 2]}}", "True"]
    assert err.count("attribute 'model' is not kept: an object of type object") == 1, "said once"


def test_attributes_are_any_objects_in_a_study_without_a_storage(scripts: Scripts) -> None:
    body = """
import pickle
import numpy as np

class Model:
    def __init__(self, x):
        self.weights = np.array([x, x])

class Unnamed:
    pass

def objective(trial, unnamed=Unnamed()):
    x = trial.suggest_float("x", 0, 1)
    trial.set_user_attr("model", Model(x))
    trial.set_user_attr("pair", (1, {2: "b"}))
    trial.set_user_attr("scores", {"mean": np.float64(x), "nan": [float("nan")]})
    trial.set_user_attr("last", Model(x))
    trial.set_user_attr("last", 3)
    trial.set_user_attr("unnamed", [unnamed])
    trial.set_user_attr("stream", open("/dev/null"))
    assert isinstance(trial.user_attrs["model"], Model) and trial.user_attrs["pair"] == (1, {2: "b"})
    return x

def keep_best(study, trial):
    if study.best_trial.number == trial.number:
        study.set_user_attr("best", trial.user_attrs["model"])

study = tuner.optimize_optuna(
    objective, trials=3, name="objects", progress=False, callbacks=[keep_best])
best = study.user_attrs["best"]
print(isinstance(best, Model), best.weights[0] == study.best_value)
print([trial.user_attrs["pair"] for trial in study.trials], list(study.trials[0].user_attrs))
print([trial.user_attrs["last"] for trial in study.trials])
print(type(study.best_trial.user_attrs["scores"]["mean"]) is np.float64)
print(isinstance(study.best_trial.user_attrs["unnamed"][0], Unnamed))
"""
    process = scripts.start(QUIET + body)
    out, err = process.communicate(timeout=60)
    pairs = [(1, {2: "b"})] * 3
    assert out.splitlines() == [
        "True True",
        f"{pairs} ['model', 'pair', 'scores', 'last', 'unnamed']",
        "[3, 3, 3]",
        "True",
        "True",
    ], err
    assert "attribute 'stream' is not kept: an object of type TextIOWrapper" in err


def test_choices_are_any_objects_with_a_name_in_a_study_without_a_storage(
    scripts: Scripts,
) -> None:
    body = """
import enum

class Unit:
    pass

class Kind(enum.Enum):
    ONE, TWO = 1, 2

def double(x):
    return 2 * x

def objective(trial):
    function = trial.suggest_categorical("function", [abs, double])
    unit = trial.suggest_categorical("unit", [Unit, None])
    kind = trial.suggest_categorical("kind", list(Kind))
    assert trial.suggest_categorical("kind", list(Kind)) is kind
    assert trial.params == {"function": function, "unit": unit, "kind": kind}
    return function(-1) + (unit is Unit) + kind.value

sampler = optuna.samplers.PartialFixedSampler({"unit": Unit}, optuna.samplers.RandomSampler())
study = optuna.create_study(sampler=sampler)
study.enqueue_trial({"function": double, "kind": Kind.TWO})
study = tuner.optimize_optuna(objective, study, trials=4, name="named", progress=False)
print(study.trials[0].params == {"function": double, "unit": Unit, "kind": Kind.TWO})
print({trial.state.name for trial in study.trials}, objective(study.best_trial) == study.best_value)
print(tuner.open("named").results()[0].parameters)
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "True",
        "{'COMPLETE'} True",
        "{'function': '__main__.double', 'unit': '__main__.Unit', 'kind': '<Kind.TWO: 2>'}",
    ]


def test_attributes_of_enqueued_points_are_those_of_their_trials(scripts: Scripts) -> None:
    body = """
import numpy

def objective(trial):
    if trial.number == 1:
        trial.set_user_attr("more", trial.user_attrs["from"] + "!")
    return 1.0

study = optuna.create_study()
study.enqueue_trial({}, user_attrs={"from": "paper"})
study.enqueue_trial({"x": 2}, user_attrs={"from": "friend"})
study.enqueue_trial({}, user_attrs={"array": numpy.array([1, 2])})
found = tuner.optimize_optuna(objective, study, trials=3, name="told", progress=False)
print([trial.user_attrs for trial in found.trials])
study.add_trial(optuna.trial.create_trial(value=7))
found = tuner.optimize_optuna(objective, study, trials=4, name="learns", progress=False)
print([trial.user_attrs.get("from") for trial in found.trials], found.trials[3].value)
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "[{'from': 'paper'}, {'from': 'friend', 'more': 'friend!'}, {'array': array([1, 2])}]",
        "['paper', 'friend', None, None, None] 7.0",
    ]


def test_an_enqueued_point_is_used_or_the_nearest_one(scripts: Scripts) -> None:
    body = """
import numpy

def objective(trial):
    trial.suggest_float("x", 10, 20)
    trial.suggest_int("n", 2, 8, step=2)
    trial.suggest_categorical("width", numpy.array([1, 2]))
    kind = trial.suggest_categorical("kind", ((1, 2), "a"))
    assert trial.study.trials[trial.number].params["kind"] == kind
    return len(kind) + isinstance(trial.params["kind"], tuple)

study = optuna.create_study()
study.enqueue_trial({"x": 1, "n": 9, "width": 1, "kind": (1, 2)})
study.enqueue_trial({"x": 15, "n": 4, "kind": "b"})
study = tuner.optimize_optuna(objective, study, trials=3, name="chosen", progress=False)
first, second, third = study.trials
print(first.params, first.value, second.state.name, third.state.name)
"""
    assert scripts.output(QUIET + body).splitlines() == [
        "{'x': 10.0, 'n': 8, 'width': 1, 'kind': (1, 2)} 3.0 FAIL COMPLETE"
    ]


def test_what_optuna_takes_for_a_number_or_a_step_is_one(scripts: Scripts) -> None:
    body = """
import math, numpy, warnings

def refused(error, call, *arguments):
    try:
        call(*arguments)
    except error as raised:
        return type(raised) is error
    return False

def objective(trial):
    held = {
        "deprecated names": [
            0 <= trial.suggest_uniform("a", 0, 1) <= 1,
            1 <= trial.suggest_loguniform("b", 1, 2) <= 2,
            trial.suggest_discrete_uniform("c", 0, 1, 0.5) in (0, 0.5, 1)],
        "their ranges": [
            trial.suggest_float("b", 1, 2, log=True) == trial.params["b"],
            trial.distributions["c"] == optuna.distributions.FloatDistribution(0, 1, step=0.5)],
        "choices": [
            trial.suggest_categorical("d", (1, 2)) in (1, 2),
            trial.suggest_categorical("twice", (1, 2, 1)) in (1, 2),
            math.isnan(trial.suggest_categorical("nan", [math.nan])),
            trial.suggest_categorical("infinite", (math.inf,)) == trial.params["infinite"],
            refused(ValueError, trial.suggest_categorical, "d", (1, 2, 3))],
        "steps of other types": [
            trial.suggest_int("e", 1, 5, step=numpy.int64(2)) in (1, 3, 5),
            trial.suggest_float("f", 0, 1, step=numpy.float32(0.5)) in (0, 0.5, 1)],
        "numbers in texts": [
            0 <= trial.suggest_float("j", "0", "0.5") <= 0.5, trial.suggest_int("k", "2", "2") == 2],
        "distributions": [
            trial._suggest("g", optuna.distributions.FloatDistribution(0, 1, step=0.5)) in (0, 0.5, 1),
            trial._suggest("h", optuna.distributions.IntDistribution(2, 3, log=True)) in (2, 3),
            trial._suggest("i", optuna.distributions.CategoricalDistribution(["a"])) == "a",
            trial.distributions["g"] == optuna.distributions.FloatDistribution(0, 1, step=0.5)],
        "what is no value": [
            refused(TypeError, trial.report, value, step)
            for value, step in [(None, 1), ("one", 1), ([1, 2], 1), ("one", -1), (1, None),
                                (1, "one"), (1, [1])]],
        "a negative step": [refused(ValueError, trial.report, 1, -1)],
    }
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for value, step in [(1.5, 1), ("2.5", 2.9), (math.nan, 3), ("inf", 4), (9, 2)]:
            trial.report(value, step)
        trial.set_constraint("weight", "-1.5")
        trial.set_constraint("weight", 2)
        held["said once"] = [len(seen) == 2]
    held["a constraint is kept"] = [trial.constraints == {"weight": -1.5}]
    trial.set_user_attr("broken", [claim for claim, holds in held.items() if not all(holds)])
    return [(1.25,), 2, ["0.5"]][trial.number]

study = tuner.optimize_optuna(
    objective, trials=3, name="taken", constraints={"weight": {"max": 0}}, progress=False)
print([(trial.values, trial.user_attrs["broken"]) for trial in study.trials])
"""
    assert scripts.output(QUIET + body) == "[([1.25], []), ([2.0], []), ([0.5], [])]\n"


def test_suggest_methods_do_what_optuna_documents(scripts: Scripts) -> None:
    body = """
def objective(trial):
    import warnings
    suggest = trial.suggest_float, trial.suggest_int, trial.suggest_categorical
    real, whole, choice = suggest
    held = {
        "a float of integers": isinstance(real("a", 1, 2), float),
        "a step": round(real("b", 0, 1, step=0.25) / 0.25, 9).is_integer(),
        "a log": 1e-9 <= real("d", 1e-9, 1e-3, log=True) <= 1e-3,
        "one real": real("e", 0.7, 0.7) == 0.7,
        "one real on a log": real("f", 0.7, 0.7, log=True) == 0.7,
        "an int": type(whole("h", -3, 3)) is int,
        "an int's step": whole("i", 1, 9, step=4) in (1, 5, 9),
        "an int's log": whole("j", 1, 1000, log=True) in range(1, 1001),
        "one int": whole("k", 3, 3) == 3,
        "one int on a log": whole("l", 3, 3, log=True) == 3,
        "one choice": choice("m", ["only"]) == "only",
        "a name again": real("a", 1, 2) == trial.params["a"],
    }
    mixed = [None, True, 2, 0.5, "2"]
    got = choice("n", mixed)
    held["mixed choices"] = any(got is v or (type(got) is type(v) and got == v) for v in mixed)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        held["a high off the grid"] = round(real("c", 0, 1, step=0.3) / 0.3, 9) in (0, 1, 2, 3)
        held["an int's high off the grid"] = whole("v", 1, 10, step=4) in (1, 5, 9)
        held["a step above the range"] = real("g", 1, 2, step=5) == 1
        held["each says so"] = [str(w.message).split("; ")[-1] for w in seen] == [
            f"the highest value is {high}" for high in (0.9, 9, 1.0)]
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        held["another range"] = real("a", 5, 6) == trial.params["a"] and len(seen) == 1
    held["distributions"] = sorted(trial.distributions) == sorted(trial.params)
    for claim, call in {
        "another kind": lambda: whole("a", 1, 2),
        "low above high": lambda: real("o", 2, 1),
        "a log of 0": lambda: real("p", 0, 1, log=True),
        "an int's log of 0": lambda: whole("q", 0, 1, log=True),
        "a step and a log": lambda: real("r", 1, 2, step=1, log=True),
        "an int's step and log": lambda: whole("s", 1, 2, step=2, log=True),
        "no step": lambda: real("t", 0, 1, step=0),
        "no choices": lambda: choice("u", []),
    }.items():
        try:
            call()
            held[claim] = False
        except ValueError:
            held[claim] = True
    trial.set_user_attr("broken", [claim for claim, holds in held.items() if not holds])
    trial.set_user_attr("claims", len(held))
    return 0.0

study = tuner.optimize_optuna(objective, trials=4, name="claims", progress=False)
print([(trial.user_attrs["claims"], trial.user_attrs["broken"]) for trial in study.trials])
"""
    assert scripts.output(QUIET + body) == f"{[(27, [])] * 4}\n"
