"""Requests for parameters in a trial's log: found however the log is divided, and nothing else is."""

from __future__ import annotations

import base64
import json

import pytest

from controller.core.parameter_requests import RequestReader


def line(name: str, **more: object) -> bytes:
    text = json.dumps({"name": name, **more}).encode()
    return b"tuner.ask " + base64.urlsafe_b64encode(text).rstrip(b"=") + b"\n"


@pytest.mark.parametrize("size", [1, 2, 7, 1000])
def test_requests_are_found_however_the_log_is_divided(size: int) -> None:
    log = b"loss=1\n\n" + line("lr", domain={"min": 0}) + b"more\r\n" + line("größe?") + b"end"
    reader = RequestReader()
    for at in range(0, len(log), size):
        reader.feed(log[at : at + size])
    assert reader.open == {"lr": {"name": "lr", "domain": {"min": 0}}, "größe?": {"name": "größe?"}}


def test_a_repeated_request_is_one() -> None:
    reader = RequestReader()
    reader.feed(line("x") + line("x"))
    assert list(reader.open) == ["x"]


@pytest.mark.parametrize(
    "text",
    [
        b"tuner.ask\n",
        b"tuner.ask nonsense\n",
        b"tuner.ask W10\n",  # []
        b"tuner.ask e30\n",  # {}
        b" " + line("x"),
        b"I print " + line("x"),
        line("x")[:-1],
    ],
)
def test_other_lines_are_no_requests(text: bytes) -> None:
    reader = RequestReader()
    reader.feed(text)
    assert reader.open == {}


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_a_request_to_end_the_search_is_a_line_of_its_own(size: int) -> None:
    def ends(log: bytes) -> bool:
        reader = RequestReader()
        for start in range(0, len(log), size):
            reader.feed(log[start : start + size])
        return reader.ends_search

    assert ends(b"loss=1\ntuner.end\nmore\n")
    assert ends(b"tuner.end\r\n")
    assert not ends(b"a tuner.end\ntuner.ends\ntuner.end of it\n")
