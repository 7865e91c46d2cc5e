"""Katib's SDK, unmodified, with real containers."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.installed import Installed
from tests.cluster.realnode import RealNode
from tests.cluster.test_katib_sdk import ANSWERS, SETTINGS, sdk

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
    made = Installed(level_c, tmp_path, *SETTINGS)
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
    assert found == {**{way: [2, "0.5"] for way in ways}, "TensorFlowEvent": [2, "1.0"]}
