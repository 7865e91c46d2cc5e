"""Whom the page in the cluster believes about who looks."""

from __future__ import annotations

import asyncio
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request

from controller.cli.arguments import parse
from controller.cli.operator import page_proxy
from controller.operator.access import Caller
from controller.operator.page import PageAuthenticator, PageProxy
from suggest.errors import InvalidArgument

PROXY = PageProxy((ip_network("10.0.0.0/24"), ip_network("fd00::7/128")), "X-User", "X-Groups")
EVERYBODY = "system:authenticated"


def request(*headers: tuple[str, str], host: str = "10.0.0.7") -> Request:
    sent = [(name.lower().encode(), value.encode()) for name, value in headers]
    return Request({"type": "http", "client": (host, 4711), "headers": sent, "path": "/"})


@pytest.mark.parametrize(
    ("host", "is_believed"),
    [
        ("10.0.0.7", True),
        ("::ffff:10.0.0.7", True),
        ("fd00::7", True),
        ("10.0.1.7", False),
        ("fd00::8", False),
        ("::ffff:10.0.1.7", False),
    ],
)
def test_the_proxy_is_known_by_its_address(host: str, is_believed: bool) -> None:
    assert PROXY.sends(request(host=host)) == is_believed


@pytest.mark.parametrize(
    ("headers", "caller"),
    [
        ([("X-User", "ann")], Caller("ann", groups=(EVERYBODY,))),
        (
            [("X-User", "ann"), ("X-Groups", "vision, nlp"), ("X-Groups", "ml")],
            Caller("ann", groups=("vision", "nlp", "ml", EVERYBODY)),
        ),
        (
            [("X-User", "ann"), ("X-Groups", "system:masters,,vision")],
            Caller("ann", groups=("vision", EVERYBODY)),
        ),
        ([("X-User", "system:admin")], None),
        ([("X-User", "ann"), ("X-User", "eve")], None),
        ([("X-User", "")], None),
        ([("X-Groups", "vision")], None),
    ],
)
def test_it_names_one_user_who_is_not_the_clusters_own(
    headers: list[tuple[str, str]], caller: Caller | None
) -> None:
    assert PROXY.caller(request(*headers)) == caller


def test_all_pages_of_a_user_share_their_limits() -> None:
    nothing: Any = None  # no board is read
    pages = PageAuthenticator(nothing, nothing, PROXY, port=0, stored=nothing)

    def limits_of(user: str) -> object:
        asked = request(("X-User", user))
        asyncio.run(pages.page_token(asked))
        return pages.board(asked).limits

    assert limits_of("ann") is limits_of("ann")
    assert limits_of("ann") is not limits_of("eve")


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        ("--page-proxy-client-ca {ca}", "belongs to --page-proxy-allowed-name"),
        ("--page-proxy-allowed-name p", "belongs to --page-proxy-allowed-name"),
        ("--page-proxy 10.0.0.7/32", "belong to --page-user-header"),
        (
            "--page-proxy-client-ca {ca} --page-proxy-allowed-name p --page-user-header X-User",
            "cannot be read as certificates in PEM",
        ),
        ("--page-user-header X-User", "belong to --page-user-header"),
    ],
)
def test_an_incomplete_certificate_of_a_proxy_is_refused(
    flags: str, problem: str, tmp_path: Path
) -> None:
    broken = tmp_path / "ca.crt"
    broken.write_text("-----BEGIN CERTIFICATE-----", encoding="ascii")
    with pytest.raises(InvalidArgument, match=problem):
        page_proxy(parse(["controller", *flags.format(ca=broken).split()]))
