"""The fixtures of tests on a cluster. `make test-cluster` runs them; `make test` does not.

    level_b     a control plane and fake nodes, as any user; one for each process, started on first
    use level_c     a control plane and a real node, as root; likewise
    namespace   a new one in the cluster that the test uses (level_b or level_c), removed afterwards
    me          a person with all rights on level_b, and a state directory

Where a level cannot run, its tests are skipped with one line that names
what is missing; with TUNER_TEST_CLUSTER_REQUIRED=1 they fail.
`TUNER_TEST_KUBECONFIG` names a cluster to use as level_c (see existing.py).
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

from tests.cluster import binaries, realnode
from tests.cluster.api import CORE
from tests.cluster.controlplane import POLICIES, ControlPlane
from tests.cluster.existing import Existing
from tests.cluster.processes import PartFailed
from tests.cluster.realnode import RealNode
from tests.cluster.searcher import Searcher

FAKE_NODES = 4
PROCESSES = 2  # of each level
# The programs of a cluster, kubectl and helm collect garbage less often:
# a fifth of their processor time, for a third more memory.
os.environ.setdefault("GOGC", "400")
# tests that use level_c
REAL = re.compile(r"_node\.py::|/test_server_deployed\.py::|_with_real_containers")


def lacks(what: str) -> None:
    if what and os.environ.get("TUNER_TEST_CLUSTER_REQUIRED") == "1":
        pytest.fail(what, pytrace=False)
    if what:
        pytest.skip(what)


class ByCluster(LoadScopeScheduling):  # type: ignore[misc]  # xdist has no types
    """Two processes for each level, and each takes one test of its level after another: it starts
    one cluster.

    The groups of `--dist loadgroup` have no effect with the node ids of pytest 9.2: each process
    started both clusters.
    """

    def __init__(self, config: pytest.Config, log: Any) -> None:
        super().__init__(config, log)
        self._levels: dict[Any, str] = {}

    def _split_scope(self, nodeid: str) -> str:
        if not REAL.search(nodeid):
            return f"level_b {nodeid}"
        shared = "TUNER_TEST_KUBECONFIG" in os.environ  # all use that cluster and its GPUs
        return "level_c" if shared else f"level_c {nodeid}"

    def _assign_work_unit(self, node: Any) -> None:
        waiting = {scope[: len("level_x")] for scope in self.workqueue}
        if self._levels.get(node) not in waiting:
            others = [each for each in self.nodes if each is not node and not each.shutting_down]
            taken = [self._levels.get(other) for other in others]
            self._levels[node] = min(sorted(waiting), key=taken.count)
            if taken.count(self._levels[node]) >= PROCESSES:
                node.shutdown()
                return
        mine = (scope for scope in self.workqueue if scope.startswith(self._levels[node]))
        self.workqueue.move_to_end(next(mine), last=False)
        super()._assign_work_unit(node)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByCluster:
    return ByCluster(config, log)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.parent == Path(__file__).parent]
    astray = [
        item.nodeid
        for item in here
        for level, is_real in (("level_b", False), ("level_c", True))
        if level in getattr(item, "fixturenames", ()) and bool(REAL.search(item.nodeid)) != is_real
    ]
    if astray:
        raise pytest.UsageError(
            f"REAL in {__file__} does not tell the level of: {', '.join(astray)}"
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
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
        pytest.skip(
            "pods of the cluster in TUNER_TEST_KUBECONFIG cannot be told what becomes of them"
        )
    lacks(binaries.missing(binaries.LEVEL_B))
    cluster = ControlPlane(fake_nodes=FAKE_NODES, flags=POLICIES)
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
    """Yield the name of a namespace that is ready for pods;
    delete it with its contents afterwards.
    """
    level = next(
        (name for name in ("level_b", "level_c") if name in request.fixturenames), "level_b"
    )
    api = request.getfixturevalue(level).api()
    name = f"test-{random.getrandbits(40):x}"
    api.post(f"{CORE}/namespaces", {"metadata": {"name": name}})
    # Pods are refused until the service account that they run as exists.
    api.until(f"{CORE}/namespaces/{name}/serviceaccounts/default", bool)
    yield name
    api.delete(f"{CORE}/namespaces/{name}")


@pytest.fixture
def me(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Iterator[Searcher]:
    """A person with all rights on the cluster without root."""
    person = Searcher(tmp_path, level_b.kubeconfig(namespace=namespace), namespace)
    yield person
    person.close()
