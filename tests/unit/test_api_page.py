"""The tables of docs/api.md agree with the code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from suggest.domain import MAX_CHOICES
from suggest.errors import InvalidArgument, NotOwner, TunerError
from suggest.grpc_status import DOMAIN, InternalError, code_of
from suggest.server import request_sizes
from suggest.server.access.caller import AccessVerb
from suggest.server.rpcs import RPCS
from suggest.server.service import DEFAULT_PAGE, MAX_PAGE
from suggest.studies import spec_rules
from suggest.v1 import suggest_pb2 as pb

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")


def table(section: str) -> list[list[str]]:
    """Return the cells of the section's first table without its header."""
    lines = PAGE.partition(f"## {section}\n")[2].partition("\n## ")[0].splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("|")
    ]
    return rows[2:]


def kinds(root: type[TunerError] = TunerError) -> Iterable[type[TunerError]]:
    for kind in root.__subclasses__():
        yield kind
        yield from kinds(kind)


def an_error(kind: type[TunerError]) -> TunerError:
    return InvalidArgument([]) if kind is InvalidArgument else kind("why")


def test_every_method_is_in_the_table() -> None:
    listed = re.findall(r"[A-Z]\w+", " ".join(row[0] for row in table("Methods")))
    assert sorted(listed) == sorted(
        pb.DESCRIPTOR.services_by_name["SuggestService"].methods_by_name
    )


def test_every_error_is_in_the_table_with_its_code() -> None:
    of_the_wire = [kind for kind in kinds() if kind.__module__.startswith("suggest.")]
    assert {NotOwner, InternalError} <= set(of_the_wire)
    assert {(row[0], row[1].strip("`")) for row in table("Errors")} == {
        (code_of(an_error(kind)).name, kind.reason) for kind in of_the_wire
    }
    assert f"`domain` is\n`{DOMAIN}`" in PAGE


def test_the_limits_are_those_of_the_code() -> None:
    limits = dict(table("Limits"))
    most = {method: f"{rpc.items.most:,}" for method, rpc in RPCS.items() if rpc.items is not None}
    assert limits["trials in a SuggestTrials request (`count`)"] == most["SuggestTrials"]
    assert (
        limits["measurements in a request"]
        == most["ReportMeasurements"]
        == f"{request_sizes.MAX_MEASUREMENTS:,}"
    )
    assert limits["items in a page"].startswith(f"{MAX_PAGE:,}; {DEFAULT_PAGE} unless ")
    assert limits["trials in an ImportTrials request"] == most["ImportTrials"]
    assert (
        limits["trials in a RenewLeases request"]
        == most["RenewLeases"]
        == f"{request_sizes.MAX_LEASES:,}"
    )
    assert spec_rules.MAX_STUDY_BYTES == 2.5 * 2**20
    assert limits["a study in a reply, with its earlier parameters"] == "2.5 MiB"
    assert limits["values of a choice"] == f"{MAX_CHOICES:,}"
    assert limits["parameters of a study, or of a point"] == f"{request_sizes.MAX_PARAMETERS:,}"
    assert limits["conditions of a parameter"] == f"{request_sizes.MAX_CONDITIONS:,}"
    assert (
        limits["values of all choices and conditions of a study"] == f"{request_sizes.MAX_VALUES:,}"
    )
    assert limits["settings of an algorithm or a pruning rule"] == f"{request_sizes.MAX_SETTINGS:,}"
    assert (
        limits["a text that has no other limit, such as a reason"]
        == f"{request_sizes.MAX_TEXT:,} characters"
    )
    assert limits["labels of a resource"].startswith(f"{request_sizes.MAX_LABELS}, ")


def test_every_verb_grants_what_the_page_says() -> None:
    shown = {row[0].strip("`"): set(row[1].split(", ")) for row in table("Tokens")}
    assert shown == {
        verb.value: {method for method, rpc in RPCS.items() if rpc.verb is verb}
        for verb in AccessVerb
    }


def test_every_state_is_named() -> None:
    named = re.findall(
        r"[A-Z]{4,}",
        PAGE.partition("## States\n")[2].partition("\n\n")[0].partition("An outcome")[0],
    )
    states = {
        state.removeprefix("TRIAL_STATE_") for state in pb.TrialState.DESCRIPTOR.values_by_name
    } - {"UNSPECIFIED"}
    assert states <= set(named)
