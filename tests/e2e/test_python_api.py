"""The Python API with real processes: the search of a function survives kills,
repeats nothing, and reports errors.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import forked
from tests.e2e.cli import eventually, processes_of

PRELUDE = """
import os, sys, time, pathlib, tuner
HERE = pathlib.Path(__file__).parent
X = {"x": tuner.Float(-5, 5), "kind": ["a", "b"]}

def started(trial):
    with (HERE / "starts.txt").open("a") as file:
        file.write(f"{trial.number} {trial.attempt}\\n")
"""


class Scripts:
    """Runs scripts in a folder with one state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
        self.env |= {"TUNER_STATE_DIR": str(folder / "state")}
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, body: str, name: str = "script.py") -> subprocess.Popen[str]:
        (self.folder / name).write_text(PRELUDE + body)
        process = forked.script(self.folder / name, env=self.env)
        self.begun.append(process)
        return process

    def output(self, body: str) -> str:
        """Run a script that must succeed, and return its stdout."""
        process = self.start(body)
        out, err = process.communicate(timeout=100)
        assert process.returncode == 0, err
        return out

    def starts(self) -> list[str]:
        file = self.folder / "starts.txt"
        return file.read_text().split("\n")[:-1] if file.exists() else []


@pytest.fixture
def scripts(tmp_path: Path) -> Iterator[Scripts]:
    scripts = Scripts(tmp_path)
    yield scripts
    for process in scripts.begun:
        process.kill()
        process.communicate()
    (tmp_path / "go").touch()
    try:
        eventually(lambda: not processes_of(tmp_path), within_s=15)
    finally:
        for pid in processes_of(tmp_path):
            os.kill(int(pid), signal.SIGKILL)


SEARCH = """
def objective(trial):
    started(trial)
    trial.report(0, loss=abs(trial["x"]) + 1)
    print("value=-99 is not what the objective returned")
    return abs(trial["x"])

study = tuner.minimize(objective, X, trials=6, parallelism=2, name="abs", seed=1, progress=False)
print(study.state, len(study.results()), study.best.value == min(abs(r.parameters["x"]) for r in study.results()))
print(study.measurements(study.best.number)[0][:2], study.best.metrics.keys(), list(study.best.parameters))
"""


def test_trials_of_a_function_run_again_and_elsewhere_as_it_is_stored(scripts: Scripts) -> None:
    def tuner(*words: str, state: str = "state", code: int = 0) -> str:
        env = {**scripts.env, "TUNER_STATE_DIR": str(scripts.folder / state)}
        process = forked.tuner(words, folder=scripts.folder, env=env)
        out, err = process.communicate(timeout=60)
        assert process.returncode == code, err
        return out + err

    body = SEARCH.replace("seed=1,", 'seed=1, spec={"confirm": {"top": 2, "seeds": 2}},')
    scripts.output(body)
    assert len(scripts.starts()) == 6 + 4
    (scripts.folder / "script.py").unlink()
    assert "Reruns of abs, with 2 new seeds" in tuner("report", "abs")
    again = tuner("reproduce", "abs/3")
    assert "the recorded value is reproduced exactly" in again
    assert "the function as it was last stored with the search" in again
    tuner("pack", "abs")
    tuner("unpack", "abs.tar.gz", state="elsewhere")
    tuner("extend", "abs", "--trials", "+2", state="elsewhere")
    assert len(scripts.starts()) == 6 + 4 + 1 + 2 + 4
    for stored in scripts.folder.glob("state/experiments/*/objective.pickle"):
        stored.unlink()
    gone = tuner("reproduce", "abs/4", code=6)
    assert "the function of abs is gone; make the call of the search again with name='abs'" in gone
    assert "abs-reproduce-4" not in tuner("get", "experiments")


def test_a_function_is_searched_and_a_finished_named_search_does_not_run_again(
    scripts: Scripts,
) -> None:
    expected = "succeeded 6 True\n(0, 'loss') dict_keys(['value', 'loss']) ['x', 'kind']\n"
    assert scripts.output(SEARCH) == expected
    assert scripts.output(SEARCH) == expected
    assert sorted(scripts.starts()) == [f"{number} 1" for number in range(6)]


def test_a_killed_script_continues_when_started_again(scripts: Scripts) -> None:
    body = SEARCH.replace(
        "started(trial)",
        "started(trial)\n    while not (HERE / 'go').exists() and trial.number > 1: "
        "time.sleep(0.01)",
    )
    first = scripts.start(body)
    eventually(lambda: len(scripts.starts()) == 4)  # two trials have ended and two run
    first.kill()
    first.communicate()
    (scripts.folder / "go").touch()
    assert scripts.output(body).startswith("succeeded 6 True")
    assert sorted(scripts.starts()) == [f"{number} 1" for number in range(6)]


def test_ctrl_c_ends_trials_and_raises_keyboard_interrupt(scripts: Scripts) -> None:
    body = """
def objective(trial):
    started(trial)
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return 1.0

try:
    print(tuner.minimize(objective, X, trials=2, name="waits", progress=False).state)
except KeyboardInterrupt:
    print("interrupted", tuner.open("waits").state)
"""
    first = scripts.start(body)
    eventually(lambda: scripts.starts() == ["0 1"])
    first.send_signal(signal.SIGINT)
    assert first.communicate(timeout=60)[0] == "interrupted stopped\n"
    (scripts.folder / "go").touch()
    assert scripts.output(body) == "succeeded\n"
    assert scripts.starts() == ["0 1", "0 2", "1 1"]


def test_a_changed_function_under_the_name_of_a_search_with_results_is_warned_of(
    scripts: Scripts,
) -> None:
    body = """
def helper(x):
    return abs(x)

def objective(trial):
    return helper(trial["x"])

tuner.minimize(objective, X, trials=2, name="mixed", progress=False)
"""

    def warned(body: str) -> str:
        process = scripts.start(body)
        return process.communicate(timeout=100)[1]

    changed = body.replace("abs(x)", "100 + abs(x)")
    warning = (
        "script.py:16: UserWarning: tuner.minimize: the code of the objective has changed since "
        "mixed ran trials 0-1, "
        "and the results so far are kept; if they no longer apply, use another name, or first run "
        "`tuner delete mixed`"
    )
    assert warned(body) == ""
    assert warning in warned(changed)  # it has ended
    assert warning in warned(changed.replace("trials=2", "trials=3"))  # and continues
    # its newest results are of this function
    assert warned(changed.replace("trials=2", "trials=3")) == ""
    assert (
        warned(
            changed.replace("return 100", "# a comment\n    return 100").replace(
                "trials=2", "trials=3"
            )
        )
        == ""
    )


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ("return None", "the objective returned None and reported nothing; return a number"),
        (
            "trial.report(loss=1, accuracy=2)",
            "returned None and reported accuracy, loss, not value; return a number, or say which "
            "of them is the "
            "objective: metric='accuracy'",
        ),
        ("os.close(1), os.close(2)", "exit code 1, and nothing in its log"),
        (
            "raise tuner.Pruned",
            "the objective raised tuner.Pruned, and nothing had asked the trial to stop",
        ),
        ("return 'abc'", "the objective's return value: expected a number, got 'abc' (str)"),
        ("return float('nan')", 'the last "value" was nan, not a finite number'),
        ("return trial['y']", "trial 1 has no parameter 'y'; it has x, kind"),
        ("os.kill(os.getpid(), 9)", "killed by SIGKILL, which tuner did not send"),
        ("trial.report(0.5, loss=1)", "step: expected a whole number, got 0.5"),
        ("trial.report(0, loss='low')", "loss: expected a number, got 'low' (str)"),
    ],
)
def test_an_objective_without_a_number_stops_the_search_with_a_reason(
    scripts: Scripts, objective: str, said: str
) -> None:
    out = scripts.output(f"""
def objective(trial):
    {objective}

try:
    tuner.minimize(objective, X, trials=9, progress=False)
except tuner.SearchFailed as error:
    print(error)
""")
    assert said in out
    assert "is paused" in out


def test_wrong_arguments_are_refused_before_the_search_begins(scripts: Scripts) -> None:
    out = scripts.output("""
def f(trial):
    started(trial)
    return trial["x"]

def told(call):
    try:
        call()
    except (TypeError, tuner.TunerError) as error:
        print(str(error).replace("\\n", " "))

told(lambda: tuner.minimize(f, X, callbacks=print, progress=False))
told(lambda: tuner.minimize(f, X, callbacks=[3], progress=False))
told(lambda: tuner.minimize(f, X, initial={"x": 0.5}, progress=False))
told(lambda: tuner.minimize(f, X, trials=0, progress=False))
told(lambda: tuner.minimize(f, X, metric="val loss"))
told(lambda: tuner.optimize(f, X, {"loss": "minimize"}, constraints={"size in MB": {"max": 3}}))
told(lambda: tuner.minimize(f, {"norm": [1, float("inf")]}))
told(lambda: tuner.minimize(f, X, settings={"startupTrials": [object]}))
short = tuner.minimize(f, X, trials=1, name="short", progress=False)
told(lambda: short.extend(-1))
told(lambda: short.extend("5"))
told(lambda: short.extend(overrides="spec.parallelism=2"))
told(lambda: tuner.run("echo.yaml", overrides="spec.parallelism=2"))
for read in (short.result, short.log, short.measurements):
    told(lambda: read(99))
""")
    callbacks, one, initial, trials, metric, constraint, choice, settings, *of_study = (
        out.splitlines()
    )
    assert (
        callbacks
        == "tuner.minimize: callbacks: expected a list of functions, got <built-in function print>"
    )
    assert one == "tuner.minimize: callbacks: expected a list of functions, got [3]"
    assert (
        initial
        == "tuner.minimize: initial: expected a list of points, such as [{'lr': 0.1}], got {'x': 0.5}"
    )
    assert (
        trials == "tuner.minimize: trials: expected a whole number of at least 1, got the number 0"
    )
    assert metric == (
        "tuner.minimize: metric 'val loss': expected letters, digits and _ . / -, beginning with a "
        "letter or _"
    )
    assert constraint.startswith("tuner.optimize: metric 'size in MB': expected letters")
    assert choice == "Choice: values[1]: expected a finite number, got inf (float)"
    assert settings.startswith(
        "tuner.minimize: spec.algorithm.settings.startupTrials[0]: expected text, a number,"
    )
    for extend, given in zip(of_study[:2], ("-1", "'5'"), strict=True):
        assert extend.startswith("extend: expected trials above 0, or overrides")
        assert extend.endswith(f", got {given}")
    assert of_study[2:] == [
        "extend: overrides: expected a list, such as ['spec.budget.trials=10'], got "
        "'spec.parallelism=2'",
        "run: overrides: expected a list, such as ['spec.budget.trials=10'], got "
        "'spec.parallelism=2'",
        *["short has no trial 99"] * 3,
    ]
    assert scripts.starts() == ["0 1"]


def test_a_search_in_a_deleted_folder_is_told_what_to_do(scripts: Scripts) -> None:
    out = scripts.output("""
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
try:
    tuner.minimize(lambda trial: trial["x"], X, progress=False)
except tuner.TunerError as error:
    print(error)
""")
    assert out == "the working directory was deleted; change to one that exists, and repeat this\n"


def test_an_exception_is_shown_once_with_the_traceback_of_the_objective_and_a_corrected_script_goes_on(
    scripts: Scripts,
) -> None:
    body = """
def helper():
    raise ValueError("bad data")

def objective(trial):
    started(trial)
    helper()

try:
    print(tuner.maximize(objective, X, trials=3, name="broken", progress=False).best.value)
except tuner.SearchFailed as error:
    print(error, error.study.results()[0].state)
"""
    out = scripts.output(body)
    assert out.count("Traceback") == out.count("in helper") == out.count("in objective") == 1
    assert "worker.py" not in out
    again = (
        "correct the function, then run the search again under the name 'broken' (or `tuner "
        "resume broken`, if "
    )
    assert again in out
    assert scripts.output(body.replace("    helper()", "    return 7")) == "7.0\n"
    assert scripts.starts() == ["0 1", "1 1", "0 2", "1 2", "2 1"]


def test_a_search_that_failed_says_how_to_go_on_with_the_corrected_function(
    scripts: Scripts,
) -> None:
    body = """
def objective(trial):
    if trial.number:
        raise ValueError("bad data")
    return 1

budget = {"budget": {"failedTrials": 1}}
try:
    print(tuner.minimize(objective, X, trials=3, name="limited", progress=False, spec=budget).state)
except tuner.TunerError as error:
    print(error)
"""
    assert scripts.output(body).splitlines()[-1] == (
        "correct the function, then run the search again under the name 'limited' and a larger "
        "spec={'budget': {'failedTrials': N}}"
    )
    corrected = body.replace("if trial.number", "if False").replace(
        '"failedTrials": 1', '"failedTrials": 2'
    )
    assert scripts.output(corrected) == "succeeded\n"


def test_unusable_arguments_of_minimize_are_named(scripts: Scripts) -> None:
    out = scripts.output("""
numbers = (each for each in range(9))

def objective(trial):
    return next(numbers)

for given, options in ((objective, {}), (7, {}), (objective, {"trails": 3}), (objective, {"direction": "maximize"})):
    try:
        tuner.minimize(given, X, **options)
    except TypeError as error:
        print(error)
""")
    first, second, third, fourth = out.splitlines()
    assert first.startswith(
        "tuner.minimize: the objective cannot be sent to another process: it uses numbers, which "
        "cannot be pickled"
    )
    assert second == "tuner.minimize: expected a function of one argument, the trial, got 7"
    assert third == "tuner.minimize: unknown argument 'trails'; did you mean trials?"
    assert fourth == (
        "tuner.minimize: unknown argument 'direction'; call tuner.maximize for the largest value, "
        "or tuner.minimize "
        "for the smallest"
    )


def test_an_attribute_that_cannot_be_sent_is_named(scripts: Scripts) -> None:
    out = scripts.output("""
import functools

class Objective:
    def __init__(self):
        self.scale, self.numbers = 1, (each for each in range(9))
    def __call__(self, trial):
        return self.scale
    def method(self, trial):
        return self.scale

def function(trial, numbers):
    return 1

numbers = (each for each in range(9))
for given in (Objective(), Objective().method, functools.partial(Objective()), functools.partial(function, numbers=numbers)):
    try:
        tuner.minimize(given, X)
    except TypeError as error:
        print(str(error).split(": ")[2].partition(",")[0])
""")
    assert out.splitlines() == ["it uses self.numbers"] * 3 + ["it uses numbers"]


def test_locks_of_threads_are_those_of_each_trial(scripts: Scripts) -> None:
    out = scripts.output("""
import queue, threading, warnings

class Objective:
    def __init__(self):
        self.lock, self.again, self.done = threading.Lock(), threading.RLock(), threading.Event()
        self.queue, self.local = queue.Queue(), threading.local()
        self.queue.put(2)
        self.lock.acquire()
        self.same = self.lock
    def __call__(self, trial):
        assert self.same is self.lock
        # The script has it.
        with self.lock, self.again:
            self.local.value = self.queue.get()
            self.queue.task_done()
        self.queue.join()
        self.done.set()
        return self.local.value

for parallelism in (1, 2):
    with warnings.catch_warnings(record=True) as caught:
        study = tuner.minimize(Objective(), X, trials=2, parallelism=parallelism, progress=False)
    print([each.value for each in study.results()], *(each.message for each in caught))
""")
    assert out.splitlines() == [
        "[2.0, 2.0]",
        "[2.0, 2.0] tuner.minimize: the objective has a lock of threads, and each trial, a process, "
        "has its own: it keeps no other trial waiting; write what trials write to files of their own",
    ]


def test_a_function_for_each_type_is_sent(scripts: Scripts) -> None:
    out = scripts.output("""
import functools

@functools.singledispatch
def cost(value):
    return 0.0

@cost.register
def _(value: float):
    return 1.0

@cost.register(list)
def of_list(value):
    return sum(map(cost, value))

class Objective:
    @functools.singledispatchmethod
    def of(self, value):
        return cost(value)
    @of.register
    def _(self, value: str):
        return len(value)
    def __call__(self, trial):
        return self.of("four") + self.of([0.5, None, [0.5]])

print(cost(1.5))
print(tuner.minimize(Objective(), X, trials=1, progress=False).best.value)
""")
    assert out == "1.0\n6.0\n"


def test_cached_functions_and_properties_of_a_script_are_sent(scripts: Scripts) -> None:
    out = scripts.output("""
import functools

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Data:
    @functools.cached_property
    def rows(self):
        return [1, 2, 3]
    @functools.lru_cache(maxsize=2, typed=True)
    def scaled(self, by):
        return by * len(self.rows)

def objective(trial):
    data = Data()
    assert data.rows is data.rows
    assert Data.scaled.cache_parameters() == {"maxsize": 2, "typed": True}
    return fibonacci(60) + data.scaled(1000) + fibonacci.cache_info().currsize

fibonacci(7)
study = tuner.minimize(objective, X, trials=1, progress=False)
print(study.best.value)
""")
    assert out == f"{float(1548008755920 + 3000 + 61)}\n"


def test_a_traceback_quotes_a_cell_of_a_notebook_which_no_trial_can_read(scripts: Scripts) -> None:
    out = scripts.output("""
import linecache

CELL = '''def helper(x):
    return 1 / (x - x)  # divides

def objective(trial):
    return helper(trial["x"])
'''
linecache.cache["/tmp/ipykernel_7/8.py"] = (len(CELL), None, CELL.splitlines(keepends=True), "/tmp/ipykernel_7/8.py")
exec(compile(CELL, "/tmp/ipykernel_7/8.py", "exec"))
try:
    tuner.minimize(objective, X, trials=2, progress=False)
except tuner.SearchFailed as failed:
    print(failed)
""")
    assert (
        'File "/tmp/ipykernel_7/8.py", line 5, in objective\n    return helper(trial["x"])\n' in out
    )
    assert (
        'File "/tmp/ipykernel_7/8.py", line 2, in helper\n    return 1 / (x - x)  # divides\n'
        in out
    )


def test_an_accuracy_that_is_minimized_is_warned_of_at_the_callers_line(scripts: Scripts) -> None:
    out = scripts.output("""
import warnings

with warnings.catch_warnings(record=True) as caught:
    tuner.minimize(lambda trial: 1.0, X, trials=1, metric="accuracy", progress=False)
    tuner.minimize(lambda trial: 1.0, X, trials=1, metric="loss", progress=False)
for warning in caught:
    print(warning.filename == __file__, warning.message)
""")
    assert out == (
        "True tuner.minimize: accuracy is minimized, and of metrics with such a name larger "
        "values are usually better; "
        "if so, call tuner.maximize\n"
    )


def test_an_objective_may_print_what_the_console_of_the_search_cannot_show(
    scripts: Scripts,
) -> None:
    scripts.env["PYTHONIOENCODING"] = "ascii"
    out = scripts.output("""
import json

def objective(trial):
    print("\u65e5")
    if trial.number == 0:
        raise tuner.Infeasible("\u672c")
    return 1.0

study = tuner.minimize(objective, X, trials=2, name="x", progress=False)
print(json.dumps([[result.state, result.reason] for result in study.results()] + [study.log(0)]))
""")
    assert json.loads(out) == [["infeasible", "\u672c"], ["succeeded", ""], "\u65e5\n\u672c\n"]


def test_a_search_that_is_not_stored_is_named_with_a_similar_one_and_a_short_traceback(
    scripts: Scripts,
) -> None:
    out = scripts.output("""
import traceback

tuner.minimize(lambda trial: 1.0, X, trials=1, name="digits", progress=False)
try:
    tuner.open("digit")
except tuner.TunerError as error:
    print(error, len(traceback.extract_tb(error.__traceback__)) < 6)
""")
    assert out == "there is no experiment digit; did you mean digits? True\n"


def test_finished_trials_are_imported_before_the_first_trial(scripts: Scripts) -> None:
    (scripts.folder / "old.csv").write_text(
        "x,kind,value,State\n0.5,a,0.25,finished\n0.5,b,0,crashed\n?,a,1,finished\n"
    )
    out = scripts.output("""
import warnings

def objective(trial):
    started(trial)
    return 1.0

with warnings.catch_warnings(record=True) as caught:
    for _ in range(2):
        study = tuner.minimize(objective, X, trials=1, name="x", import_from=HERE / "old.csv", progress=False)
print([(result.state, result.value) for result in study.results()], study.best.number)
print(caught[0].message)
""")
    trials, warning = out.splitlines()
    assert trials == "[('succeeded', 0.25), ('failed', None), ('succeeded', 1.0)] 0"
    assert "old.csv not imported: line 4: x: '?' is not a number" in warning
    assert scripts.starts() == ["2 1"]


def test_objectives_that_fork_or_leave_threads_end_like_others(scripts: Scripts) -> None:
    out = scripts.output("""
import threading

def objective(trial):
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        threading.Thread(target=time.sleep, args=(1000,)).start()
    return trial["x"]

study = tuner.minimize(objective, X, trials=2, progress=False)
print([(r.state, len(study.measurements(r.number))) for r in study.results()])
""")
    assert out == "[('succeeded', 1), ('succeeded', 1)]\n"


def test_what_the_script_defines_can_be_pickled_and_sent_to_processes_of_the_objective(
    scripts: Scripts,
) -> None:
    out = scripts.output("""
import functools, multiprocessing, pickle

class Net:
    def __init__(self, weight):
        self.weight = weight

def squared(net):
    return Net(net.weight ** 2)

def objective(trial):
    nets = [Net(trial["x"]), pickle.loads(pickle.dumps(Net(2)))]
    for method in ("fork", "spawn"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            nets = pool.map(squared, nets)
    return nets[1].weight

for given in (objective, functools.partial(objective)):
    print(tuner.minimize(given, X, trials=1, trial_timeout=60, progress=False).best.value)
""")
    assert out == "16.0\n16.0\n"


def test_spawned_processes_find_the_script_after_the_objective_cleared_its_environment(
    scripts: Scripts,
) -> None:
    out = scripts.output("""
import multiprocessing

def squared(x):
    return x ** 2

def objective(trial):
    os.environ.clear()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(squared, [2.0])[0]

print(tuner.minimize(objective, X, trials=1, trial_timeout=60, progress=False).best.value)
""")
    assert out == "4.0\n"


def test_spawned_processes_that_cannot_load_the_objective_do_work_of_modules(
    scripts: Scripts,
) -> None:
    out = scripts.output("""
import math, multiprocessing

class OfTheTrial:
    def __reduce__(self):
        return eval, ("{'MainProcess': 7}[__import__('multiprocessing').current_process().name]",)

only = OfTheTrial()

def objective(trial):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return only * pool.map(math.sqrt, [4.0])[0]

study = tuner.minimize(objective, X, trials=1, trial_timeout=60, progress=False)
print(study.best.value)
print(study.log(0))
""")
    assert out.startswith("14.0\n")
    assert "a spawned process cannot load the objective: KeyError('SpawnPoolWorker-1')" in out


def test_an_objective_decorated_by_a_module_finds_its_script(scripts: Scripts) -> None:
    (scripts.folder / "decorators.py").write_text("""
import functools

def logged(function):
    @functools.wraps(function)
    def logging(*arguments):
        print("called")
        return function(*arguments)
    return logging
""")
    out = scripts.output("""
import functools, multiprocessing
from decorators import logged

class Net:
    def __init__(self, weight):
        self.weight = weight

def squared(net):
    return Net(net.weight ** 2)

@logged
def objective(trial):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.map(squared, [Net(3)])[0].weight

class Objective:
    @logged
    def __call__(self, trial):
        return objective(trial)

for given in (objective, functools.partial(logged(objective)), Objective()):
    print(tuner.minimize(given, X, trials=1, trial_timeout=60, progress=False).best.value)
""")
    assert out == "9.0\n9.0\n9.0\n"


def test_processes_that_the_objective_forks_end_by_sigterm_without_a_traceback(
    scripts: Scripts,
) -> None:
    out = scripts.output("""
import multiprocessing

def wait(started):
    started.set()
    time.sleep(1000)

def objective(trial):
    fork = multiprocessing.get_context("fork")
    started = fork.Event()
    process = fork.Process(target=wait, args=(started,))
    process.start()
    started.wait()
    process.terminate()
    process.join()
    return process.exitcode

study = tuner.minimize(objective, X, trials=1, trial_timeout=60, progress=False)
print(study.best.value, study.log(0).split())
""")
    assert out == "-15.0 ['tuner.step=0', 'tuner.value=-15.0']\n"


def test_options_may_be_numbers_of_numpy(scripts: Scripts) -> None:
    out = scripts.output("""
import numpy as np
study = tuner.minimize(
    lambda trial: trial["n"], {"n": tuner.Int(np.int64(1), np.int64(9))}, trials=np.int64(2), seed=np.int64(7),
    initial=[{"n": np.int32(3)}], target=np.float32(-1), progress=False,
)
print([result.value for result in study.results()][0], len(study.results()))
""")
    assert out == "3.0 2\n"


def test_an_objective_that_is_killed_or_reads_parameters_as_elsewhere_is_told_why(
    scripts: Scripts,
) -> None:
    out = scripts.output("""
import signal
ONCE = {"trial": {"retries": {"infrastructure": 0}}}

for objective in (
    lambda trial: os.kill(os.getpid(), signal.SIGSEGV),
    lambda trial: trial.x,
    lambda trial: trial.suggest_float("x", 0, 1),
):
    try:
        tuner.minimize(objective, X, trials=1, spec=ONCE, progress=False)
    except tuner.SearchFailed as error:
        print(str(error).replace("\\n", " "))
""")
    killed, item, elsewhere = out.splitlines()
    assert "SIGSEGV" in killed
    assert (
        "AttributeError: a trial has no attribute 'x'; its parameters are items: trial['x']" in item
    )
    assert "runs by tuner.optimize_optuna(objective)" in elsewhere


def test_a_search_leaves_the_random_state_of_the_script_alone(scripts: Scripts) -> None:
    out = scripts.output("""
import random, numpy

def objective(trial):
    random.seed(7)
    numpy.random.seed(7)
    return random.random()

random.seed(1)
numpy.random.seed(1)
tuner.minimize(objective, X, trials=3, seed=2, progress=False)
print(random.random() == random.Random(1).random(), numpy.random.rand() == numpy.random.RandomState(1).rand())
""")
    assert out == "True True\n"


def test_infeasible_parameters_are_no_failure(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    if trial["x"] == 2:
        raise tuner.Infeasible("x is even")
    return trial["x"]

study = tuner.minimize(objective, {"x": [1, 2, 3]}, algorithm="grid", trials=3, progress=False)
print([(r.state, r.reason) for r in study.results()])
""")
    assert out == "[('succeeded', ''), ('infeasible', 'x is even'), ('succeeded', '')]\n"


def test_a_pruned_objective_gets_pruned_and_may_clean_up(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    try:
        for step in range(3 if trial["x"] < 2 else 1000):
            trial.report(step, loss=trial["x"])
            time.sleep(0.02)
    except tuner.Pruned:
        (HERE / "cleaned").touch()
        raise
    return trial["x"]

study = tuner.minimize(
    objective, {"x": [0, 2]}, algorithm="grid", trials=2, progress=False,
    pruning={"name": "median", "minTrials": 1},
)
print([r.state for r in study.results()], (HERE / "cleaned").exists())
""")
    assert out == "['succeeded', 'pruned'] True\n"


def test_minimize_works_within_an_event_loop_and_in_a_thread(scripts: Scripts) -> None:
    out = scripts.output("""
import asyncio, threading

def search():
    study = tuner.minimize(lambda trial: trial["x"], {"x": [1, 2]}, trials=2, progress=False)
    print(study.best is not None, study.name.startswith("lambda-"))

async def cell():
    search()

asyncio.run(cell())
thread = threading.Thread(target=search)
thread.start()
thread.join()
""")
    assert out == "True True\nTrue True\n"


def test_a_stored_study_is_extended_stopped_and_deleted(scripts: Scripts) -> None:
    out = scripts.output("""
study = tuner.minimize(lambda trial: trial["x"], {"x": tuner.Int(1, 9)}, trials=2, name="grows", progress=False)
study.extend(2, progress=False)
again = tuner.open("grows")
print(len(again.results()), again.state, again.reason, again.reason_code, repr(again))
again.stop()
again.delete()
try:
    tuner.open("grows")
except tuner.TunerError as error:
    print(type(error).__name__)
""")
    assert out == "4 succeeded all 4 trials are done TrialsDone <tuner.Study 'grows'>\nNotFound\n"


def test_only_one_script_runs_a_name_and_its_search_space_is_kept(scripts: Scripts) -> None:
    body = """
def objective(trial):
    started(trial)
    while not (HERE / "go").exists():
        time.sleep(0.01)
    return 1.0

try:
    print(tuner.minimize(objective, X, trials=2, name="shared", progress=False).state)
except tuner.TunerError as error:
    print(error)
"""
    first = scripts.start(body)
    eventually(lambda: scripts.starts() == ["0 1"])
    assert "shared is being run by process" in scripts.output(body)
    (scripts.folder / "go").touch()
    assert first.communicate(timeout=60)[0] == "succeeded\n"
    changed = scripts.output(body.replace("X, trials", "{'x': tuner.Float(-5, 6)}, trials"))
    assert "tuner.minimize differs from the existing experiment shared" in changed
    assert "tuner extend shared --set spec.parameters.x.max=6" in changed


def test_a_call_with_more_trials_under_the_same_name_goes_on(scripts: Scripts) -> None:
    assert (
        scripts.output(SEARCH)
        == "succeeded 6 True\n(0, 'loss') dict_keys(['value', 'loss']) ['x', 'kind']\n"
    )
    more = SEARCH.replace("trials=6, parallelism=2", "trials=8, parallelism=1")
    assert scripts.output(more).startswith("succeeded 8 True")
    assert sorted(scripts.starts()) == [f"{number} 1" for number in range(8)]


def test_an_experiment_is_built_in_python_or_read_from_a_file(scripts: Scripts) -> None:
    out = scripts.output("""
built = tuner.Experiment(
    "built",
    {"x": tuner.Float(0.1, 1, log=True), "n": tuner.Int(2, 8, step=2, when={"kind": "a"}), "kind": ["a", "b"]},
    ["sh", "-c", "echo score=$0", "${x}"],
    metric="score", direction="maximize", trials=2, spec={"algorithm": {"name": "random", "seed": 1}},
)
(HERE / "built.yaml").write_text(built.to_yaml())
print(tuner.run(built, progress=False).best.value)
print(tuner.run("built.yaml", progress=False).best.value)
print(tuner.run("built.yaml", progress=False, overrides=["metadata.name=other"]).name)
try:
    tuner.run(tuner.Experiment("Bad Name", {"x": tuner.Float(2, 1)}, ["true"], metric="m", direction="up"))
except tuner.TunerError as error:
    print(error)
""")
    first, second, other, *wrong = out.splitlines()
    assert (float(first), other) == (float(second), "other")
    assert wrong[0] == "experiment Bad Name: 3 problems"
    paths = [line.split()[0] for line in wrong[1:]]
    assert paths == ["name:", "direction:", "parameters['x'].min:"]


def test_pandas_gets_a_table(scripts: Scripts) -> None:
    (scripts.folder / "pandas.py").write_text("def DataFrame(rows): return rows\n")
    out = scripts.output("""
study = tuner.minimize(lambda trial: trial["x"], {"x": [1, 2]}, trials=1, seed=1, progress=False)
print(list(study.trials()[0])[:4])
""")
    assert out == "['number', 'state', 'value', 'x']\n"


def test_a_notebooks_interrupt_ends_trials_and_is_raised(scripts: Scripts) -> None:
    process = scripts.start("""
import asyncio

def objective(trial):
    started(trial)
    time.sleep(1000)

async def cell():
    try:
        tuner.minimize(objective, X, trials=2, name="cell", progress=False)
    except KeyboardInterrupt:
        print("interrupted", tuner.open("cell").state)

asyncio.get_event_loop_policy().new_event_loop().run_until_complete(cell())
""")
    eventually(lambda: scripts.starts() == ["0 1"])
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == "interrupted stopped\n"


@pytest.mark.parametrize("page", ["README.md", "docs/python.md", "docs/optuna.md", "docs/peers.md"])
def test_the_shown_programs_run(scripts: Scripts, page: str) -> None:
    shown = (Path(__file__).parents[2] / page).read_text(encoding="utf-8")
    programs = [
        block
        for block in re.findall(r"```python\n(.*?)```", shown, re.DOTALL)
        # Those on a cluster: tests/kube/test_trial_files.py, test_python_in_the_cluster.py
        if "suggest.client" not in block and not re.search("runtime=.(kubernetes|cluster)", block)
    ]
    assert programs
    scripts.output("\n".join(programs))


@pytest.mark.parametrize(
    ("imported", "absent"),
    [
        (
            "import tuner",
            {"numpy", "grpc", "google.protobuf", "sqlalchemy", "rich", "asyncio", "pandas"},
        ),
        (
            "import tuner; tuner.minimize, tuner.Float",
            {"numpy", "grpc", "google.protobuf", "sqlalchemy", "rich"},
        ),
        # The supervisor imports this module, and each trial is a fork of the supervisor.
        (
            "import tuner.worker",
            {"numpy", "grpc", "google.protobuf", "sqlalchemy", "rich", "asyncio"},
        ),
    ],
)
def test_importing_tuner_loads_nothing_large(imported: str, absent: set[str]) -> None:
    code = (
        f"{imported}\nimport sys, threading; print(*sys.modules, "
        f"f'threads={{threading.active_count()}}')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & absent
    assert "threads=1" in loaded


def test_tensors_with_one_element_are_numbers_and_others_are_named(scripts: Scripts) -> None:
    out = scripts.output("""
class Tensor:
    def __init__(self, *values):
        self.values = values

    def __float__(self):
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]

    def __repr__(self):
        return f"tensor({list(self.values)})"

def one(trial):
    trial.report(0, loss=Tensor(0.5))
    return Tensor(0.25)

def two(trial):
    return Tensor(1.0, 2.0)

print(tuner.minimize(one, X, trials=1, progress=False).best.value)
try:
    tuner.minimize(two, X, trials=3, progress=False)
except tuner.SearchFailed as error:
    print(error)
""")
    assert out.startswith("0.25\n")
    assert "the objective's return value: expected a number, got tensor([1.0, 2.0]) (Tensor)" in out


def test_an_objective_that_prints_endlessly_is_ended_by_its_timeout(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    while trial.number == 1:
        print("x" * 10000)
        time.sleep(0.001)
    return 1.0

spec = {"trial": {"gracePeriod": "1s"}}
study = tuner.minimize(objective, X, trials=4, parallelism=2, trial_timeout=2, spec=spec, progress=False)
print([r.state for r in study.results()], "timeout" in study.results()[1].reason, len(study.log(1)) > 10000)
""")
    assert out == "['succeeded', 'failed', 'succeeded', 'succeeded'] True True\n"


def test_several_objectives_under_a_constraint(scripts: Scripts) -> None:
    out = scripts.output("""
def objective(trial):
    x = trial["x"]
    trial.report(0, latency_ms=10 * x)      # not taken for an objective
    return {"loss": (5 - x) ** 2, "size": x}

study = tuner.optimize(objective, {"x": tuner.Float(0, 5)}, {"loss": "minimize", "size": "minimize"}, trials=12,
                       constraints={"latency_ms": {"max": 40}}, seed=1, name="two", progress=False)
front = study.front
print([one.number for one in front] == [one.number for one in sorted(front, key=lambda one: one.value)])
print(all(one.metrics["latency_ms"] <= 40 for one in front), study.best == front[0])
print(len(front) == sum(one.metrics["latency_ms"] <= 40 for one in study.results()))
print(tuner.optimize(objective, {"x": tuner.Float(0, 5)}, {"loss": "minimize", "size": "minimize"}, trials=12,
                     constraints={"latency_ms": {"max": 40}}, seed=1, name="two", progress=False).front == front)
""")
    assert out.splitlines() == ["True", "True True", "True", "True"]


def test_a_metric_that_is_missing_is_named(scripts: Scripts) -> None:
    out = scripts.output("""
GOALS = {"loss": "minimize", "size": "minimize"}
for returned in ({"loss": 1.0}, 1.0, None, {"loss": 1.0, "size": "large"}):
    try:
        tuner.optimize(lambda trial: returned, X, GOALS, trials=2, progress=False)
    except tuner.SearchFailed as error:
        print(str(error)[str(error).index("TypeError"):].splitlines()[0])
try:
    tuner.minimize(lambda trial: 1.0, X, trials=2, constraints={"size": {"max": 3}}, progress=False)
except tuner.SearchFailed as error:
    print(str(error)[str(error).index("TypeError"):].splitlines()[0])
try:
    tuner.optimize(lambda trial: 1.0, X, GOALS, trials=2, target=3.0)
except TypeError as error:
    print(error)
""")
    assert out.splitlines() == [
        "TypeError: the objective neither reported nor returned size",
        "TypeError: the objective returned 1.0; return a mapping of loss, size",
        "TypeError: the objective neither reported nor returned loss, size",
        "TypeError: size: expected a number, got 'large' (str)",
        "TypeError: the objective neither reported nor returned size",
        "tuner.optimize: target belongs to one objective; use minimize or maximize",
    ]


def test_a_function_goes_on_from_the_checkpoint_of_its_parent(scripts: Scripts) -> None:
    body = """
import json
def objective(trial):
    kept = trial.checkpoint_dir / "past.json"
    past = json.loads(kept.read_text()) if kept.exists() else []
    kept.write_text(json.dumps([*past, trial["x"]]))
    return len(past)

study = tuner.maximize(objective, X, trials=9, algorithm="pbt", settings={"population": 3}, seed=1, progress=False)
print(study.best.value)
"""
    assert scripts.output(body) == "2.0\n"
