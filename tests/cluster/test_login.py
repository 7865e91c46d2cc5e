"""The renewal of tokens as in docs/kubernetes.md, with the real kubectl on a real API server."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.cluster import binaries
from tests.cluster.controlplane import ControlPlane
from tests.cluster.searcher import Searcher
from tests.cluster.tenant import tenant

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")


@pytest.fixture
def me(level_b: ControlPlane, namespace: str, tmp_path: Path) -> Searcher:
    """An administrator's kubeconfig, with a context kind-kind, and kubectl on the PATH."""
    tenant(level_b, namespace)
    config = json.loads(level_b.kubeconfig(namespace=namespace).read_text())
    config["contexts"][0]["name"] = "kind-kind"
    config["contexts"][0]["context"]["cluster"] = config["clusters"][0]["name"] = "kind-kind"
    config["current-context"] = "kind-kind"
    (tmp_path / "config").write_text(json.dumps(config))
    person = Searcher(tmp_path, tmp_path / "config", namespace)
    person.env["PATH"] = (
        f"{binaries.program('kubectl').parent}{os.pathsep}{person.env.get('PATH', os.defpath)}"
    )
    return person


def logged_in_as(me: Searcher, context: str) -> dict[str, str]:
    """Return the lines of doctor by subject."""
    code, out, err = me.tuner("doctor", "--context", context, "--namespace", me.namespace)
    assert code == 0, out + err
    return {line[6:].split("  ")[0]: line for line in out.splitlines()}


def test_a_plugin_renews_the_token(me: Searcher) -> None:
    written = (
        (ROOT / "deploy" / "kubeconfig.yaml")
        .read_text(encoding="utf-8")
        .replace("user1", me.namespace)
    )
    (me.folder / "added").write_text(written)
    me.env["KUBECONFIG"] += f"{os.pathsep}{me.folder / 'added'}"
    said = logged_in_as(me, f"tuner-{me.namespace}")
    assert said["login"].startswith(
        "ok    login                 by the plugin kubectl, which runs again at 20"
    )
    assert said["credentials"].endswith(f"system:serviceaccount:{me.namespace}:tuner")


def test_a_token_file_is_kept_fresh(me: Searcher) -> None:
    """Run the commands of the page in a shell."""
    block = next(
        text
        for text in re.findall(r"^```\w*\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
        if "tokenFile" in text
    )
    (me.folder / ".kube").mkdir()
    commands = block.replace("vision", me.namespace).replace("~/", f"{me.folder}/")
    commands = "\n".join(line for line in commands.splitlines() if not line.startswith("tuner "))
    subprocess.run(
        ["bash", "-euc", commands],
        env=me.env,
        cwd=me.folder,
        check=True,
        timeout=60,
        capture_output=True,
    )
    said = logged_in_as(me, me.namespace)
    assert "read again when it changes" in said["login"]
    assert said["credentials"].endswith(f"system:serviceaccount:{me.namespace}:tuner")
