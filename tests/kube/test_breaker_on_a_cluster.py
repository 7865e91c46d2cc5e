"""A broken script on a fake cluster: two Jobs, a pause with the output of the pod,
and both run again on resume.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.kube.console import ended, experiment
from tests.kube.fake_kubelet import Script
from tests.kube.test_final_on_a_cluster import Cluster, beside_a_cluster


def broken(job: dict[str, Any]) -> Script:
    """Let the first attempts fail and all later ones succeed."""
    name = job["metadata"]["name"]
    if "-r2" in name or name.endswith("-2"):
        return Script(lines=("score=0.5",), seconds=0.05)
    return Script(
        lines=("Traceback (most recent call last):", f"KeyError: '{name}'"),
        seconds=0.05,
        exit_code=1,
    )


def test_a_broken_script_pauses_after_two_jobs_and_both_run_again(tmp_path: Path) -> None:
    async def play(cluster: Cluster) -> None:
        (cluster.folder / "x.yaml").write_text(experiment(more="parallelism: 3"))
        cluster.kubelet.play(broken)

        paused = await ended(cluster.start("run", "x.yaml"))
        assert paused.code == 8, paused.err
        assert "tiny is paused: the first 2 trials failed: exit code 1: KeyError: " in paused.err
        assert "    Traceback (most recent call last):\n    KeyError: 'tiny-" in paused.err
        assert cluster.jobs() == []
        done = await ended(cluster.start("resume", "tiny"))
        assert done.code == 0, done.err
        shown = json.loads(await cluster.told("get", "trials", "tiny", "-o", "json"))
        assert [(one["state"], len(one["attempts"])) for one in shown] == [
            ("succeeded", 2),
            ("succeeded", 2),
            ("succeeded", 1),
        ]

    beside_a_cluster(tmp_path, play)
