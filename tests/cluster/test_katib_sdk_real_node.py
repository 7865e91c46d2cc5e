"""Katib's SDK, unmodified, with real containers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster import images
from tests.cluster.installed import Installed
from tests.cluster.realnode import RealNode
from tests.cluster.test_katib_sdk import ANSWERS, SETTINGS, sdk


@pytest.fixture
def installed(level_c: RealNode, tmp_path: Path) -> Iterator[Installed]:
    images.digits()
    level_c.load(images.DIGITS)
    made = Installed(level_c, tmp_path, *SETTINGS)
    try:
        made.start("--katib")
        yield made
    finally:
        made.close()


def test_the_job_of_tune_runs_its_function(
    installed: Installed, level_c: RealNode, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("IMAGE", images.DIGITS)
    found = sdk(level_c, "katib_orders.py", namespace, "tuned")
    assert found == {"tuned": ANSWERS["tuned"]}
