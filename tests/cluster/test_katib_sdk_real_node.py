"""Katib's SDK, unmodified, with real containers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.api import CORE
from tests.cluster.conftest import lacks
from tests.cluster.installed import SYSTEM, Installed
from tests.cluster.realnode import RealNode
from tests.cluster.release import released
from tests.cluster.test_katib_sdk import ANSWERS, PYTHON, sdk

EVENTS = Path(__file__).resolve().parents[1] / "fixtures" / "collectors" / "torch"


@pytest.fixture
def installed(
    level_c: RealNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installed]:
    images.digits()
    images.collector()
    level_c.load(images.DIGITS)
    level_c.load(images.COLLECTOR)
    monkeypatch.setenv("TUNER_COLLECTOR_IMAGE", images.COLLECTOR)
    monkeypatch.setenv("IMAGE", images.DIGITS)
    made = Installed(level_c, tmp_path, "katib.enabled=true")
    try:
        made.start("--katib")
        yield made
    finally:
        made.close()


def test_the_job_of_tune_runs_its_function(
    installed: Installed, level_c: RealNode, namespace: str
) -> None:
    found = sdk(level_c, "katib_orders.py", namespace, "tuned")
    assert found == {"tuned": ANSWERS["tuned"]}


def test_metrics_come_from_wherever_katibs_collectors_read_them(
    installed: Installed, level_c: RealNode, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (events,) = EVENTS.glob("*tfevents*")
    monkeypatch.setenv("EVENTS", base64.b64encode(events.read_bytes()).decode())
    found = sdk(level_c, "katib_orders.py", namespace, "collected")["collected"]
    ways = ("StdOut", "File", "JSON", "PrometheusMetric")
    assert found == {**{way: [2, "0.5"] for way in ways}, "TensorFlowEvent": [2, "1"]}


@pytest.fixture
def sdk_of_pods(level_c: RealNode, namespace: str) -> Iterator[None]:
    """A claim with the packages of Katib's SDK, for pods whose Python is of the same version."""
    if not PYTHON.exists():
        lacks("`make .venv-katib/stamp` installs Katib's SDK")
    (packages,) = PYTHON.parents[1].glob("lib/python3*/site-packages")
    api, modes, size = level_c.api(), ["ReadOnlyMany"], {"storage": "1Gi"}
    disk = {"capacity": size, "accessModes": modes, "hostPath": {"path": str(packages)}}
    claim = {
        "accessModes": modes,
        "resources": {"requests": size},
        "storageClassName": "",
        "volumeName": f"sdk-{namespace}",
    }
    api.post(f"{CORE}/persistentvolumes", {"metadata": {"name": f"sdk-{namespace}"}, "spec": disk})
    api.post(
        f"{CORE}/namespaces/{namespace}/persistentvolumeclaims",
        {"metadata": {"name": "sdk"}, "spec": claim},
    )
    yield
    api.delete(f"{CORE}/persistentvolumes/sdk-{namespace}")


@pytest.fixture
def forwarded(level_c: RealNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Install the chart, and forward a local port to the Service of its DBManager."""
    for build, image in ((images.digits, images.DIGITS), (images.collector, images.COLLECTOR)):
        build()
        level_c.load(image)
    monkeypatch.setenv("IMAGE", images.DIGITS)
    collector = {"name": "TUNER_COLLECTOR_IMAGE", "value": images.COLLECTOR}
    with released(level_c, katib={"enabled": True}, controller={"env": [collector]}) as kubectl:
        kubectl("-n", SYSTEM, "rollout", "status", "deployment/tuner-controller", "--timeout=60s")
        with kubectl.forwarded("service/tuner", 6789, SYSTEM) as address:
            monkeypatch.setenv("DB_MANAGER", address)
            yield


def test_values_are_read_and_reported_at_the_name_of_katibs_service(
    forwarded: None,
    level_c: RealNode,
    namespace: str,
    sdk_of_pods: None,
) -> None:
    found = sdk(level_c, "katib_orders.py", namespace, "logged")["logged"]
    same = {"is_same": True, "value": True}
    assert found == {
        "Push": {"followed": ["begins", "ends"], "metrics": ["score", "loss"] * 2, **same},
        "StdOut": {
            "followed": ["score=1", "score=2", "score=3", "read"],
            "metrics": ["score"] * 3,
            **same,
        },
    }
