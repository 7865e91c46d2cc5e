"""Some tests run where they are named, and not among all others. Those of a cluster
(`make test-cluster`) and of operators beside one (`make test-operators`) need programs that take
ten minutes each to build, and root; those of clients in other languages (`make test-clients`) need
Go; those of the page (`make test-ui`) a browser; those of bridges to other libraries
(`make test-integrations`) the libraries.
"""

import gc
import itertools
import logging
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres import postgres, postgres_url

__all__ = ["postgres", "postgres_url"]

# No test asserts a time, so an example that takes long on a busy machine is not a failure.
THOROUGH = "TUNER_TEST_THOROUGH" in os.environ  # as in `make soak`
settings.register_profile(
    "busy",
    deadline=None,
    # a failure in CI belongs to the change; random elsewhere
    derandomize="CI" in os.environ and not THOROUGH,
    max_examples=100 if THOROUGH else 30,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("busy")

# Several processes share the cores, and the threads of numerical libraries spin while they wait for
# each other: models with long histories took ten times the processor time. This must come before
# NumPy; programs inherit it.
for library in ("OMP", "OPENBLAS"):
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")

# Where images and shells forbid bytecode files, each of the thousand programs
# that the tests start would compile the packages again: a third of its start-up.
# The same variable is dropped in bench/harness.py.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

HERE = Path(__file__).parent
# folders whose tests start processes, or wait
LONG_FIRST = ("sim", "trial", "e2e", "service", "contract", "kube")
TRIAL = HERE / "trial"
# Like the tests of that folder, these import torch, SciPy or scikit-learn:
# seconds in each worker that runs one.
WITH_TRIAL = (
    "test_optuna_samplers.py",
    "test_cmaes.py",
    "test_pruning_as_optuna.py",
    "test_pruner_contract.py",
    "test_tpe_normal.py",
    "test_importance.py",
)
BY_NAME = (
    HERE / "cluster",
    HERE / "operators",
    HERE / "clients",
    HERE / "ui",
    HERE / "integrations",
)

# A shell that runs the tests in the background makes them ignore Ctrl-C,
# and every program that they start, too.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def log_levels() -> None:
    """Restore the log levels of a new process, because a command
    in an earlier test may have set others.
    """
    logging.getLogger().setLevel(logging.WARNING)
    for name in ("suggest", "controller"):
        logging.getLogger(name).setLevel(logging.NOTSET)


def pytest_xdist_auto_num_workers() -> int:
    """The number of workers for `-n auto`: many tests wait for processes
    and back-offs more than they compute.

    Those that do keep a worker at a quarter of a core; with two workers per core,
    a quarter of the cores was idle.
    """
    return 3 * (os.cpu_count() or 1)


@pytest.hookimpl(trylast=True)  # after `-m` has left some out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deal the files to the workers, those with long tests first,
    so that only short tests remain for the end.

    `--dist worksteal` gives each worker a contiguous part with as many tests as the others have,
    and lets workers that are done take from the ends of others.
    """
    dealt: dict[Path, list[pytest.Item]] = {}
    for item in items:
        heavy = item.path.parent == TRIAL or item.path.name in WITH_TRIAL
        dealt.setdefault(TRIAL if heavy else item.path, []).append(item)
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    parts: list[list[pytest.Item]] = [[] for _ in range(workers)]
    for where in sorted(dealt, key=lambda path: (_place(path), -len(dealt[path]))):
        min(parts, key=len).extend(dealt[where])
    items[:] = itertools.chain.from_iterable(parts)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while tests are collected, nor what that makes later:
    a fifth of the processor time.

    Collecting tests makes millions of objects that stay.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def _place(path: Path) -> int:
    folder = path.relative_to(HERE).parts[0]
    return LONG_FIRST.index(folder) if folder in LONG_FIRST else len(LONG_FIRST)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    if collection_path not in BY_NAME:
        return None
    named = [config.invocation_params.dir / argument.partition("::")[0] for argument in config.args]
    return (
        None
        if any(path == collection_path or collection_path in path.parents for path in named)
        else True
    )
