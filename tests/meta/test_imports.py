"""What a start-up costs: which modules each entry point imports."""

from __future__ import annotations

import graphlib
import re
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

from tests.e2e.cli import cli_in

ROOT = Path(__file__).resolve().parents[2]
HEAVY = (
    "aiohttp",
    "alembic",
    "google.protobuf",
    "grpc",
    "kubernetes",
    "numpy",
    "optuna",
    "scipy",
    "sqlalchemy",
)


def heavy_after(program: str) -> list[str]:
    """The heavy packages that a fresh Python has loaded when `program` is done."""
    ending = f"\nimport sys\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", program + ending],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split() if done.stdout.splitlines() else []


@pytest.mark.parametrize("noun", ["space", "errors", "trial", "study"])
def test_the_nouns_of_the_service_bring_no_library_with_them(noun: str) -> None:
    assert heavy_after(f"import suggest.{noun}") == []


@pytest.mark.parametrize(
    "module",
    [
        "model",
        "states",
        "observe",
        "decide",
        "metrics",
        "failures",
        "budget",
        "breaker",
        "progress",
    ],
)
def test_the_core_of_the_controller_imports_no_library(module: str) -> None:
    assert heavy_after(f"import controller.core.{module}") == []


def test_a_pruning_rule_loads_its_library_with_its_first_judgment() -> None:
    program = (
        "from dataclasses import replace\n"
        "from suggest.engine import Engine\n"
        "from suggest.pruners import rules\n"
        "from suggest.space import Float, Parameter, Space\n"
        "from suggest.study import *\n"
        "space = Space((Parameter('x', Float(0.0, 1.0)),))\n"
        "spec = StudySpec(space, (Objective('a', Direction.MAXIMIZE),), Algorithm('random'))\n"
        "for rule in rules():\n"
        "    pruned = replace(spec, pruning=Pruning(rule.name))\n"
        "    Engine(Study(StudyName('default', 's'), 'uid', pruned, 1), [], [])\n"
    )
    assert heavy_after(program) == []


def test_a_study_loads_its_own_algorithm_alone() -> None:
    program = (
        "import sys\n"
        "from suggest.engine import check_spec\n"
        "from suggest.samplers import new_sampler\n"
        "from suggest.space import Float, Parameter, Space\n"
        "from suggest.study import Algorithm, Direction, Objective, StudySpec\n"
        "space = Space((Parameter('x', Float(0.0, 1.0)),))\n"
        "spec = StudySpec(space, (Objective('accuracy', Direction.MAXIMIZE),), "
        "Algorithm('random'))\n"
        "assert check_spec(spec) == ()\n"
        "new_sampler(spec, 1)\n"
        "others = ('tpe', 'gp', 'cmaes', 'evolution', 'pbt', 'bohb', 'optuna_family', 'default', "
        "'low_discrepancy')\n"
        "assert [name for name in others if f'suggest.samplers.{name}' in sys.modules] == []\n"
        "assert 'suggest.pruners.auto' not in sys.modules\n"
    )
    assert heavy_after(program) == []


def test_a_server_has_imported_before_its_first_study_what_studies_need_except_models() -> None:
    program = (
        "import sys\n"
        "from suggest.server.process import _import_algorithms\n"
        "_import_algorithms()\n"
        "assert 'multiprocessing.connection' in sys.modules\n"
        "before = set(sys.modules)\n"
        "from suggest.pruners import new_pruner, rules\n"
        "from suggest.samplers.registry import algorithms, new_sampler\n"
        "from suggest.space import Int, Parameter, Space\n"
        "from suggest.study import Algorithm, Direction, Fidelity, Objective, Pruning, StudySpec\n"
        "space = Space((Parameter('x', Int(0, 9)), Parameter('epochs', Int(1, 9))))\n"
        "goals = (Objective('accuracy', Direction.MAXIMIZE),)\n"
        "for algorithm in algorithms():\n"
        "    for fidelity in (None, Fidelity('epochs', 1, 9)):\n"
        "        new_sampler(StudySpec(space, goals, Algorithm(algorithm.name), "
        "fidelity=fidelity), 1)\n"
        "for rule in rules():\n"
        "    if not rule.name.startswith('optuna:'):\n"
        "        new_pruner(Pruning(rule.name), goals[0])\n"
        "late = sorted(name for name in set(sys.modules) - before if name.startswith('suggest.'))\n"
        "assert [name for name in late if not name.endswith('_model')] == [], late\n"
    )
    heavy_after(program)


def test_help_loads_nothing_that_a_search_needs() -> None:
    program = (
        "import contextlib, io, sys\n"
        "from controller.cli.main import main\n"
        "sys.argv = ['tuner', '--help']\n"
        "with contextlib.redirect_stdout(io.StringIO()) as shown, "
        "contextlib.suppress(SystemExit):\n"
        "    main()\n"
        "assert 'run' in shown.getvalue()\n"
    )
    assert heavy_after(program) == []


def test_tests_of_torch_are_collected_without_it() -> None:
    """Each worker collects all tests, and torch would take three seconds in each."""
    program = (
        "import sys, pytest\n"
        "sys.modules['torch'] = None\n"
        "assert pytest.main(['--collect-only', '-q', 'tests/trial', 'tests/e2e']) == 0\n"
    )
    heavy_after(program)


def test_a_run_loads_no_reports_of_trials() -> None:
    program = (
        "import sys, controller.app.run\n"
        "modules = ('controller.app.query', 'controller.app.recovery', "
        "'controller.report.record')\n"
        "assert [name for name in modules if name in sys.modules] == []\n"
    )
    assert "sqlalchemy" in heavy_after(program)


def test_a_run_on_sqlite_loads_no_dialect_of_postgresql() -> None:
    program = (
        "import sys, controller.app.run\n"
        "from controller.experiment_store import sqlite_database\n"
        "assert 'sqlalchemy.dialects.postgresql' not in sys.modules\n"
    )
    assert "sqlalchemy" in heavy_after(program)


def test_the_client_of_a_cluster_imports_its_package_with_the_first_connection() -> None:
    program = "import controller.kube.cluster, controller.runtime.kubernetes.runtime\n"
    assert {"aiohttp", "kubernetes"}.isdisjoint(heavy_after(program))


def test_the_client_of_a_cluster_loads_no_api_and_no_model_of_its_package() -> None:
    program = (
        "import sys, controller.kube.transport\n"
        "parts = ('kubernetes.aio.client.api.', 'kubernetes.aio.client.models.', "
        "'kubernetes.client.api.', 'kubernetes.client.models.')\n"
        "assert [name for name in sys.modules if name.startswith(parts)] == []\n"
    )
    assert "kubernetes" in heavy_after(program)


def test_a_command_hardly_collects_garbage_while_it_imports(tmp_path: Path) -> None:
    program = (
        "import gc\n"
        "from controller.cli.main import main\n"
        "def collections():\n"
        "    return sum(generation['collections'] for generation in gc.get_stats())\n"
        "before = collections()\n"
        f"assert main(['get', 'experiments', '--state-dir', {str(tmp_path)!r}]) == 0\n"
        "assert collections() - before < 5\n"
    )
    assert "sqlalchemy" in heavy_after(program)


READS = (
    ("get", "experiments"),
    ("get", "studies"),
    ("get", "trials", "tiny"),
    ("describe", "tiny"),
    ("describe", "tiny/0"),
    ("report", "tiny"),
    ("export", "tiny", "--format", "json"),
    ("best", "tiny"),
)


def test_reads_of_a_store_need_no_server(tmp_path: Path) -> None:
    """Neither commands nor the page start a thread, or load gRPC or the service's writing half."""
    with cli_in(tmp_path) as cli:
        code, _, err = cli.tuner("run", cli.write(trials=2))
        assert code == 0, err
        program = (
            "import asyncio, sys, threading\n"
            "from pathlib import Path\n"
            "from controller.cli.main import main\n"
            f"for words in {READS!r}:\n"
            "    assert main(words) == 0, words\n"
            "from controller.app.state_directory import StateDirectory\n"
            "from controller.app.workspace import Workspace\n"
            "from controller.ui.board import Board\n"
            "async def show():\n"
            "    board = Board(Workspace(StateDirectory(Path(sys.argv[1]))))\n"
            "    assert len((await board.record('default', 'tiny')).trials) == 2\n"
            "    await board.close()\n"
            "asyncio.run(show())\n"
            "halves = ('suggest.server', 'suggest.studies', 'suggest.v1', 'suggest.engine', "
            "'suggest.samplers')\n"
            "print(*sorted(name for name in sys.modules if name.startswith(halves)))\n"
            "print(*sorted({'grpc', 'google.protobuf'} & set(sys.modules)), "
            "threading.active_count(), 'thread')\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", program, str(tmp_path / "state")],
            cwd=tmp_path,
            env=cli.env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    reads = "suggest.server suggest.studies suggest.studies.importances suggest.studies.reading"
    assert done.stdout.splitlines()[-2:] == [reads, "1 thread"]


@pytest.mark.parametrize("package", ["suggest", "controller", "tuner"])
def test_the_packages_under_test_are_this_checkouts(package: str) -> None:
    program = f"import {package}; print({package}.__file__)"
    # From elsewhere, so that only the installation decides.
    done = subprocess.run(
        [sys.executable, "-c", program], cwd="/", capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == str(ROOT / package / "__init__.py"), done.stderr


def test_no_module_imports_itself_through_others() -> None:
    """Imports in functions count, those for types, and `app.run` after `from controller import app`.

    A package whose modules are loaded at their first use names them for type checkers alone.
    """
    graph = grimp.build_graph("suggest", "controller", "tuner")
    uses = {name: graph.find_modules_directly_imported_by(name) for name in graph.modules}
    lazy = {name for name in graph.modules if "__getattr__ = lazily" in source_of(name)}
    for package in lazy:
        uses[package] = {name for name in uses[package] if not name.startswith(f"{package}.")}
    for name in graph.modules:
        for package in uses[name] & lazy:
            used = re.findall(rf"\b{package.rpartition('.')[2]}\.(\w+)", source_of(name))
            uses[name] |= graph.modules & {f"{package}.{module}" for module in used} - {name}
    graphlib.TopologicalSorter(uses).prepare()  # raises CycleError, with the modules


def source_of(module: str) -> str:
    path = ROOT / module.replace(".", "/")
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()
