"""`tuner delete` of an experiment whose cluster is unreachable or no longer configured."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.kube.console import tuner
from tests.kube.fake_api import FakeApi, Raw
from tests.kube.test_top import known


def test_local_data_is_deleted_without_the_cluster_only_with_local_only(tmp_path: Path) -> None:
    known(tmp_path)

    async def go() -> None:
        async with FakeApi() as api:
            gone: Raw = {**api.kubeconfig(), "contexts": [], "current-context": ""}
            for config in (gone, None):
                await api.stop()
                refused = await tuner(api, tmp_path, "delete", "tiny", "--yes", config=config)
                assert refused.code == 7
                cure = (
                    "tiny was not deleted; if the cluster is gone: tuner delete tiny --local-only"
                )
                assert cure in refused.err
            done = await tuner(
                api, tmp_path, "delete", "tiny", "--yes", "--local-only", config=gone
            )
            assert done.code == 0, done.err
            assert "(kubectl --context fake -n user1 delete configmap tiny-aaaaa)" in done.err
            assert api.requests == []
            assert "tiny" not in (await tuner(api, tmp_path, "get", "experiments", config=gone)).out

    asyncio.run(go())
