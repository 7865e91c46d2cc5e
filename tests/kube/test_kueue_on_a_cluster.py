"""A queue that cannot admit a trial: `tuner run` with a FakeApi and a simulated Kueue."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.kube.console import ended, experiment, start
from tests.kube.fake_api import FakeApi
from tests.kube.fake_kueue import QUEUE, FakeKueue

Raw = dict[str, Any]

FILE = experiment(trial=f"queue: {QUEUE}\n    resources: {{gpu: 1}}").replace(
    "trials: 3", "trials: 1"
)


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (
            True,
            "LocalQueue team-a is not in user1; create it, or name another one in "
            "spec.trial.queue: team-b",
        ),
        (False, "the cluster has no Kueue"),
    ],
)
def test_a_queue_that_cannot_admit_anything_is_refused_before_anything_is_made(
    tmp_path: Path, installed: bool, said: str
) -> None:
    (tmp_path / "x.yaml").write_text(FILE)

    async def go() -> None:
        async with FakeApi() as api:
            if installed:
                FakeKueue(api).queue("team-b")
            version = api.version
            run = start(tmp_path, api.kubeconfig(), "run", "x.yaml")
            refused = await ended(run)
            assert refused.code == 2, refused.err
            assert said in refused.err
            assert "spec.trial.queue" in refused.err
            assert api.version == version

    asyncio.run(go())
