"""The fixtures of tests with the real operators. Only `make test-operators` runs them.

    fakes       all four operators beside a control plane with fake nodes; one for each process,
    started on demand real        the same with a real node, for programs that really train
    namespace   a fresh one with a TrainingRuntime, in the cluster of the test; removed afterwards
    me          `tuner` as a person runs it in that namespace
    seen        called with what a test saw, for its cell of the table of kinds and outcomes (see
    table.py)

Where the operators cannot run their tests are skipped with the make target to run; with
TUNER_TEST_OPERATORS_REQUIRED=1 they fail.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.cluster import binaries, realnode
from tests.cluster.api import CORE
from tests.cluster.controlplane import POLICIES, ControlPlane
from tests.cluster.processes import PartFailed
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher
from tests.operators import operators, trainers
from tests.operators.kinds import prepare
from tests.operators.operators import Operators
from tests.operators.table import Table

FAKE_NODES = 4
# tests that need the real node
REAL = ("/test_training.py::", "/test_optimizer_sdk.py::")
TABLE = Table()


def lacks(what: str) -> None:
    if what and os.environ.get("TUNER_TEST_OPERATORS_REQUIRED") == "1":
        pytest.fail(what, pytrace=False)
    if what:
        pytest.skip(what)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "outcome(name): the column of docs/operators.md that a test fills, kind by kind"
    )


def _is_real(nodeid: str) -> bool:
    return any(each in nodeid for each in REAL)


class ByOperators(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """All tests that need the real node run in one process, so that there is one node."""

    def _split_scope(self, nodeid: str) -> str:
        return "real" if _is_real(nodeid) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByOperators:
    return ByOperators(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    astray = [
        item.nodeid
        for item in items
        if "real" in getattr(item, "fixturenames", ()) and not _is_real(item.nodeid)
    ]
    if astray:
        raise pytest.UsageError(
            f"only tests in {' and '.join(REAL)} may need the real node: {', '.join(astray)}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report whether the cluster itself caused a failure,
    and pass on the test's cell from its process.
    """
    report = yield
    arguments = getattr(item, "funcargs", {})
    for each in arguments.values():
        if report.failed and isinstance(each, Operators):
            try:
                each.cluster.processes.check()
            except PartFailed as failed:
                report.sections.append(("a part of the cluster is gone", str(failed)))
    outcome = item.get_closest_marker("outcome")
    if outcome and report.when == "call" and not report.passed:
        report.user_properties.append(
            ("cell", [outcome.args[0], str(arguments["kind"]), "not as expected"])
        )
    return report


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    for name, value in report.user_properties:
        if name == "cell" and report.when == "call" and isinstance(value, list):
            TABLE.fill(*value)


def pytest_sessionfinish(session: pytest.Session) -> None:
    path = os.environ.get("TUNER_OPERATORS_TABLE")
    if path and not hasattr(session.config, "workerinput"):
        TABLE.write(Path(path))


@pytest.fixture(scope="session")
def fakes() -> Iterator[Operators]:
    lacks(operators.missing() or binaries.missing(binaries.LEVEL_B))
    yield from _beside(ControlPlane(fake_nodes=FAKE_NODES))


@pytest.fixture(scope="session")
def real() -> Iterator[Operators]:
    lacks(operators.missing() or realnode.missing() or trainers.missing())
    yield from _beside(RealNode(flags=POLICIES))


def _beside(cluster: ControlPlane) -> Iterator[Operators]:
    try:
        yield Operators(cluster)
    finally:
        cluster.close()


@pytest.fixture
def cluster(request: pytest.FixtureRequest) -> ControlPlane:
    """Return the cluster of the test: `fakes` or `real`, whichever it uses."""
    level = "real" if "real" in request.fixturenames else "fakes"
    beside: Operators = request.getfixturevalue(level)
    return beside.cluster


@pytest.fixture
def namespace(cluster: ControlPlane) -> Iterator[str]:
    api = cluster.api()
    name = f"test-{random.getrandbits(40):x}"
    api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
    # Pods are refused until the service account that they run as exists.
    api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)
    prepare(api, name)
    yield name
    api.delete(f"{CORE}/namespaces/{name}")


@pytest.fixture
def me(cluster: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    person = Searcher(tmp_path, cluster.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()


@pytest.fixture
def seen(
    request: pytest.FixtureRequest, record_property: Callable[[str, object], None]
) -> Callable[[str], None]:
    def say(text: str) -> None:
        outcome = request.node.get_closest_marker("outcome").args[0]
        record_property("cell", [outcome, str(request.getfixturevalue("kind")), text])

    return say
