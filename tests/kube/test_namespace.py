"""Without a namespace in the file, objects are created in the same namespace as by `kubectl`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from controller.kube.kubeconfig import namespace_of
from tests.kube.console import ended, experiment, start, tuner
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.fake_kubelet import Script

SILENT = experiment().replace(", namespace: user1", "")


def test_the_contexts_namespace_is_used_where_the_file_names_none(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text(SILENT)
    file = str(tmp_path / "x.yaml")

    async def go() -> None:
        async with FakeApi() as api:
            shown = await tuner(api, tmp_path, "run", file, "--dry-run=client")
            assert "# Trial 0 of tiny as namespace user1 would get it" in shown.out
            asked = await tuner(api, tmp_path, "run", file, "--dry-run=client", "-n", "default")
            assert "# Trial 0 of tiny as namespace default would get it" in asked.out

    asyncio.run(go())


def test_an_experiment_stays_in_its_namespace_whatever_the_context_says_later(
    tmp_path: Path,
) -> None:
    (tmp_path / "x.yaml").write_text(SILENT)

    async def go() -> None:
        async with FakeApi() as api:
            api.kubelet.play(lambda job: Script(lines=("score=0.5",)))
            done = await ended(
                start(tmp_path, api.kubeconfig(namespace="default"), "run", "x.yaml")
            )
            assert done.code == 0, done.err
            asked = len(api.requests)
            again = await ended(start(tmp_path, api.kubeconfig(namespace="user1"), "run", "x.yaml"))
            assert again.code == 0, again.err
            assert not any("/namespaces/user1/" in path for _, path, _ in api.requests[asked:])

    asyncio.run(go())


@pytest.mark.parametrize(
    ("context", "namespace"), [(None, "vision"), ("a", "vision"), ("b", "default"), ("c", "audio")]
)
def test_contexts_are_read_from_all_kubeconfigs_as_kubectl_merges_them(
    context: str | None, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "1").write_text(
        "{current-context: a, contexts: [{name: a, context: {namespace: vision}}, {name: b}]}"
    )
    (tmp_path / "2").write_text(
        "{current-context: c, contexts: [{name: a, context: {namespace: x}}, {name: c, context: "
        "{namespace: audio}}]}"
    )
    (tmp_path / "3").write_text("{")
    monkeypatch.setenv(
        "KUBECONFIG", ":".join(str(tmp_path / name) for name in ("none", "1", "2", "3"))
    )
    assert namespace_of(context) == namespace
    with kubeconfig_of({}):
        assert namespace_of(context) == "default"
