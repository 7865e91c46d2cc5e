"""The fixtures of tests on a cluster. `make test-cluster` runs them; `make test` does not.

    level_b     a control plane and fake nodes, as any user; one for the whole run, started on first use
    level_c     a control plane and a real node, as root; likewise
    namespace   a new one in the cluster that the test uses (level_b or level_c), removed afterwards

Where a level cannot run, its tests are skipped with one line that names what is missing; with
TUNER_TEST_CLUSTER_REQUIRED=1 they fail. `TUNER_TEST_KUBECONFIG` names a cluster to use as level_c (see existing.py).
"""

from __future__ import annotations

import os
import random
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest

from tests.cluster import binaries, realnode
from tests.cluster.api import CORE
from tests.cluster.controlplane import ControlPlane
from tests.cluster.existing import Existing
from tests.cluster.processes import PartFailed
from tests.cluster.realnode import RealNode

FAKE_NODES = 4


def lacks(what: str) -> None:
    if what and os.environ.get("TUNER_TEST_CLUSTER_REQUIRED") == "1":
        pytest.fail(what, pytrace=False)
    if what:
        pytest.skip(what)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Group the tests by cluster: the two groups run in parallel, the tests of one in sequence."""
    for item in items:
        level = "level_c" if "level_c" in getattr(item, "fixturenames", ()) else "level_b"
        item.add_marker(pytest.mark.xdist_group(level))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report whether the cluster itself caused a failure."""
    report = yield
    for cluster in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(cluster, ControlPlane):
            try:
                cluster.processes.check()
            except PartFailed as failed:
                report.sections.append(("a part of the cluster is gone", str(failed)))
    return report


@pytest.fixture(scope="session")
def level_b() -> Iterator[ControlPlane]:
    if "TUNER_TEST_KUBECONFIG" in os.environ:
        pytest.skip("pods of the cluster in TUNER_TEST_KUBECONFIG cannot be told what becomes of them")
    lacks(binaries.missing(binaries.LEVEL_B))
    cluster = ControlPlane(fake_nodes=FAKE_NODES)
    yield cluster
    cluster.close()


@pytest.fixture(scope="session")
def level_c() -> Iterator[RealNode | Existing]:
    existing = os.environ.get("TUNER_TEST_KUBECONFIG")
    if not existing:
        lacks(realnode.missing())
    cluster = Existing(Path(existing)) if existing else RealNode()
    yield cluster
    cluster.close()


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> Iterator[str]:
    """Yield the name of a namespace that is ready for pods; delete it with its contents afterwards."""
    level = next((name for name in ("level_b", "level_c") if name in request.fixturenames), "level_b")
    api = request.getfixturevalue(level).api()
    name = f"test-{random.getrandbits(40):x}"
    api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
    # Pods are refused until the service account that they run as exists.
    api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)
    yield name
    api.delete(f"{CORE}/namespaces/{name}")
