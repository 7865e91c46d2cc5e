"""examples/platform with Kueue in place of the quotas: the teams share what it has."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.cluster.installed import ROOT, Installed, Kubectl
from tests.operators.operators import Operators

PLATFORM = ROOT / "examples" / "platform"
TEAMS = ("vision", "speech")
CPUS = 24  # of both teams


@pytest.fixture
def platform(fakes: Operators, tmp_path: Path) -> Iterator[Installed]:
    cluster = fakes.cluster
    kubectl = Kubectl(cluster.kubeconfig())
    tenants = yaml.safe_load_all((PLATFORM / "tenants.yaml").read_text("utf-8"))
    kubectl.apply([each for each in tenants if each["kind"] != "ResourceQuota"])
    kubectl("apply", "-f", str(PLATFORM / "kueue.yaml"))
    values = f"--values={PLATFORM / 'values.yaml'}"
    installation = Installed(cluster, tmp_path, values, "controller.kueue=true")
    yield installation
    for team in TEAMS:
        kubectl("delete", "texp", "--all", "-n", team, "--timeout=60s")
    installation.close()
    kubectl("delete", "-f", str(PLATFORM / "kueue.yaml"))
    kubectl("delete", "namespace", *TEAMS)


def test_a_team_borrows_what_the_other_does_not_use(platform: Installed) -> None:
    platform.start("--watch-namespace=vision", "--watch-namespace=speech")
    search = yaml.safe_load((PLATFORM / "experiment.yaml").read_text("utf-8"))
    search["spec"] |= {"parallelism": CPUS + 4, "canary": "0s"}
    search["spec"]["trial"] |= {"queue": "trials", "env": {"KWOK_RUN": "600s"}}
    platform.kubectl.apply([search | {"metadata": {"name": "digits", "namespace": "vision"}}])
    platform.until(
        "vision",
        lambda status: (
            (status.get("running"), status.get("queued")) == (CPUS, 4)
            and "insufficient unused quota for cpu" in status.get("reason", "")
        ),
        name="digits",
    )
