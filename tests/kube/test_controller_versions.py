"""A controller that meets what another version of it has written."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, Raw, experiment, on_a_cluster

FOREVER = Script(lines=("score=0.5",), forever=True)
KEY = ("experiments", NAMESPACE, "tiny")


def set_schema(installed: Installation, database: str, table: str, version: str) -> str:
    """Set the version of a database's schema, and return what it was."""
    with closing(sqlite3.connect(installed.state.root / database)) as opened, opened:
        (before,) = opened.execute(f"SELECT version_num FROM {table}").fetchone()
        opened.execute(f"UPDATE {table} SET version_num = ?", (version,))
    return str(before)


@pytest.mark.parametrize(
    ("database", "table"),
    [
        ("controller.db", "controller_schema_version"),
        ("studies.db", "study_schema_version"),
    ],
)
def test_a_store_that_a_newer_version_has_upgraded_is_left_alone_and_named(
    database: str, table: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_cluster(FOREVER)
    async def check(installed: Installation) -> None:
        installed.apply(experiment(parallelism=1))
        await installed.until(lambda: installed.status().get("running") == 1)
        await installed.stop()
        ours = set_schema(installed, database, table, "9999")
        installed.start()
        installed.apply(experiment("later", parallelism=1))
        newer = "has schema 9999, newer than"
        await installed.until(lambda: newer in installed.condition("Running").get("message", ""))
        await installed.until(lambda: newer in installed.status("later").get("reason", ""))
        assert len(installed.jobs) == 1
        set_schema(installed, database, table, ours)
        for name in ("tiny", "later"):
            await installed.until(lambda name=name: installed.status(name).get("running") == 1)
        assert len(installed.jobs) == 2

    check(tmp_path)
    assert "Traceback" not in caplog.text


@on_a_cluster(FOREVER)
async def test_a_status_of_another_version_is_replaced(installed: Installation) -> None:
    installed.apply(experiment(parallelism=1))
    await installed.until(lambda: installed.status().get("running") == 1)
    await installed.stop()

    def write(resource: Raw) -> None:
        resource["status"] = {
            "phase": ["later"],
            "state": "hibernating",
            "revision": {"number": 7},
            "best": "x=1",
            "trials": {"sleeping": 1},
            "conditions": [{"type": "Sleeping", "status": "Unknown"}, {"type": "Running"}],
        }

    installed.api.change(*KEY, write)
    installed.start()
    await installed.until(lambda: installed.status().get("state") == "running")
    await installed.until(lambda: installed.status().get("running") == 1)
    status = installed.status()
    assert status["revision"] == 1
    assert "phase" not in status
    assert {each["type"] for each in status["conditions"]} == {
        "Accepted",
        "Running",
        "Paused",
        "Succeeded",
        "Failed",
    }
    assert len(installed.jobs) == 1
