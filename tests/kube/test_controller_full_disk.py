"""A controller in the cluster whose volume becomes full, and has space again later."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, Installation, Raw, experiment, on_a_cluster
from tests.small_disk import fill, small_disk

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or sys.platform != "linux", reason="only root of Linux may mount a small disk"
)
TRIALS = 3
SCORED, FOREVER = Script(lines=("score=0.5",)), Script(lines=("score=0.5",), forever=True)
FULL = ("the disk is full", "No space left on device")


def is_told(installed: Installation, name: str) -> bool:
    """Return whether the status says that the disk is full."""
    status = installed.status(name)
    return any(words in str(status.get("conditions")) for words in FULL)


def end_pods(installed: Installation) -> None:
    for pod in installed.api.all("pods", NAMESPACE):
        installed.api.kubelet.end(pod["metadata"]["name"])
    for job in installed.jobs:
        installed.api.kubelet.finish_job(NAMESPACE, job["metadata"]["name"])


@pytest.mark.parametrize("restarted", [False, True], ids=["runs on", "restarted"])
def test_a_volume_that_is_full_for_a_while_loses_nothing(
    restarted: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @on_a_cluster(FOREVER)
    async def check(installed: Installation) -> None:
        installed.apply(experiment("before", parallelism=1, budget={"trials": TRIALS}))
        await installed.until(lambda: installed.status("before").get("running") == 1)
        filler = installed.state.root / "filler"
        fill(filler)
        started = Counter([job["metadata"]["name"] for job in installed.jobs])

        def plan(job: Raw) -> Script:
            started[job["metadata"]["name"]] += 1
            return SCORED

        installed.api.kubelet.play(plan)
        if restarted:
            await installed.stop()
            installed.start()
        end_pods(installed)
        installed.apply(experiment("later", budget={"trials": TRIALS}))
        for name in ("before", "later"):
            await installed.until(lambda name=name: is_told(installed, name))
        filler.unlink()
        for name in ("before", "later"):
            await installed.until_state("succeeded", name, within_s=40)
            assert installed.status(name)["trials"] == {"succeeded": TRIALS}
        assert set(started.values()) == {1}
        assert len(started) == 2 * TRIALS

    with small_disk(tmp_path / "state", "4m"), caplog.at_level("INFO"):
        check(tmp_path)
    assert "Traceback" not in caplog.text


def test_a_volume_that_is_full_at_the_first_start_is_waited_for(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    filler = tmp_path / "state" / "filler"

    @on_a_cluster(SCORED)
    async def check(installed: Installation) -> None:
        installed.apply(experiment())
        await installed.until(lambda: is_told(installed, "tiny"))
        filler.unlink()
        await installed.until_state("succeeded")

    with small_disk(tmp_path / "state", "1m"):
        fill(filler)
        check(tmp_path)
    assert "Traceback" not in caplog.text
