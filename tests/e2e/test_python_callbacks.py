"""Callbacks are called in the script with stored trials, can end a search,
and their exceptions reach the caller.
"""

from __future__ import annotations

from tests.e2e.test_python_api import Scripts, scripts

__all__ = ["scripts"]  # a fixture


def test_a_callback_sees_each_trial_once_as_it_is_stored(scripts: Scripts) -> None:
    out = scripts.output("""
seen = []

def objective(trial):
    if trial.number == 2:
        raise tuner.Infeasible("too large")
    return trial["x"]

def callback(study, result):
    assert result == study.result(result.number)
    seen.append((result.number, result.state, os.getpid() == here))

here = os.getpid()
study = tuner.minimize(objective, X, trials=5, parallelism=2, progress=False, callbacks=[callback])
print(sorted(seen) == [(n, "infeasible" if n == 2 else "succeeded", True) for n in range(5)], len(study.results()))
""")
    assert out == "True 5\n"


def test_a_callback_ends_the_search_and_running_trials_with_it(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    if trial.number == 1:
        time.sleep(1000)
    return 1.0

def callback(study, result):
    study.stop()

study = tuner.minimize(objective, X, trials=9, parallelism=2, progress=False, callbacks=[callback])
print(study.state, [result.state for result in study.results()][:2])
""")
    assert out == "stopped ['succeeded', 'cancelled']\n"


def test_an_exception_of_a_callback_is_raised_with_its_traceback_and_the_search_goes_on_when_called_again(
    scripts: Scripts,
) -> None:
    body = """
import traceback

def objective(trial):
    started(trial)
    return 1.0

def callback(study, result):
    if result.number == 1:
        raise ZeroDivisionError("mine")

try:
    tuner.minimize(objective, X, trials=4, name="calls", progress=False, callbacks=[callback])
except ZeroDivisionError:
    print(traceback.format_exc().count("in callback"), tuner.open("calls").state)
"""
    assert scripts.output(body) == "1 stopped\n"
    again = body.replace("raise ZeroDivisionError", "print")
    assert scripts.output(again + "\nprint(tuner.open('calls').state)") == "succeeded\n"
    assert {line.split()[0] for line in scripts.starts()} == {"0", "1", "2", "3"}
