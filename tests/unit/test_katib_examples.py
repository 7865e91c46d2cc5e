"""The table of Katib's own example files in docs/katib.md: each row says what becomes of the file.

KATIB_SOURCE: a checkout of Katib at the commit that the page names. Its files are not copied here.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from controller.operator.acceptance import accepted_document
from controller.operator.katib import KatibExperiments, KatibSelection
from controller.operator.policy import NO_EXCEPTIONS, Policy
from controller.operator.resource import FromCluster
from controller.spec import read
from suggest.errors import InvalidArgument

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "katib.md").read_text(encoding="utf-8")
ROWS = {
    name: (cluster, machine)
    for name, cluster, machine in re.findall(
        r"^\| `([\w/-]+\.yaml)` \| (.+) \| (.+) \|$", PAGE, re.M
    )
}
SOURCE = os.environ.get("KATIB_SOURCE", "")
FOLDER = Path(SOURCE) / "examples" / "v1beta1"
needs_source = pytest.mark.skipif(not SOURCE, reason="KATIB_SOURCE names no checkout of Katib")


def needed(cell: str) -> Policy:
    """Return the policy that a cell of the table asks for."""
    kinds = re.findall(r"`(\S+)` in `controller\.kinds`", cell)
    accounts = re.findall(r"`controller\.allowedServiceAccounts: \[(\S+)\]`", cell)
    return Policy(kinds=frozenset(kinds), service_accounts=frozenset(accounts))


def refusal(cell: str) -> str:
    """Return what the refusal says; "" for a file that runs."""
    return "" if cell.startswith("runs") else re.findall(r"`(.+)`", cell)[-1]


def config_map(_namespace: str, name: str) -> Mapping[str, str]:
    """Return the ConfigMap that Katib is installed with."""
    manifests = FOLDER.parents[1] / "manifests" / "v1beta1" / "components" / "controller"
    found: Any = yaml.safe_load((manifests / "trial-templates.yaml").read_text(encoding="utf-8"))
    assert found["metadata"]["name"] == name
    return dict(found["data"])


def in_the_cluster(text: str, policy: Policy) -> str:
    """Return why the controller refuses a file; "" if it accepts it."""
    kinds = KatibExperiments(KatibSelection.ALL)
    found = yaml.safe_load(text)
    found["metadata"]["uid"] = "5e1f"
    resource = kinds.seen(found)
    assert resource is not None
    resource["spec"] |= kinds.defaults(resource)
    try:
        accepted_document(resource, policy, FromCluster(config_map_of=config_map))
    except InvalidArgument as error:
        return str(error)
    return ""


def on_this_machine(text: str) -> str:
    try:
        read(text, source="katib.yaml")
    except InvalidArgument as error:
        return str(error)
    return ""


@needs_source
def test_every_file_has_a_row() -> None:
    files = {str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.yaml")}
    assert files == ROWS.keys()


@needs_source
@pytest.mark.parametrize("name", ROWS)
def test_a_file_has_the_verdict_of_its_row(name: str) -> None:
    text = (FOLDER / name).read_text(encoding="utf-8")
    cluster, machine = ROWS[name]
    policy = needed(cluster)
    said = in_the_cluster(text, policy)
    assert (refusal(cluster) in said, said == "") == (True, refusal(cluster) == "")
    if policy != NO_EXCEPTIONS:
        assert "the platform team can allow" in in_the_cluster(text, NO_EXCEPTIONS)
    said = on_this_machine(text)
    assert (refusal(machine) in said, said == "") == (True, refusal(machine) == "")
