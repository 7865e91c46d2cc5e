"""Addresses on which a server may listen, and its errors."""

from __future__ import annotations

import socket
import stat
from contextlib import closing
from pathlib import Path

import pytest

from suggest.address import parse_address
from suggest.client import Client
from suggest.errors import InvalidArgument, Unavailable
from suggest.server import Server
from tests.service.running import a_server

STORAGE = "sqlite:///unused.db"


@pytest.mark.parametrize(
    ("text", "meant", "private"),
    [
        ("localhost:8765", "localhost:8765", True),
        ("127.0.0.1:0", "127.0.0.1:0", True),
        ("127.8.8.8:1", "127.8.8.8:1", True),
        ("[::1]:8765", "[::1]:8765", True),
        ("0.0.0.0:8765", "0.0.0.0:8765", False),
        ("[::]:8765", "[::]:8765", False),
        ("tuner.example:8765", "tuner.example:8765", False),
        ("unix:/tmp/a.sock", "unix:/tmp/a.sock", True),
        ("unix:///tmp/a.sock", "unix:/tmp/a.sock", True),
    ],
)
def test_addresses_are_read_and_known_to_be_private_or_not(
    text: str, meant: str, private: bool
) -> None:
    address = parse_address(text)
    assert (str(address), address.private) == (meant, private)


@pytest.mark.parametrize(
    "text", ["", "localhost", ":8765", "localhost:", "localhost:http", "localhost:99999", "unix:"]
)
def test_an_invalid_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"use (HOST:PORT|unix:PATH)"):
        parse_address(text)


def test_a_long_socket_path_is_refused_with_the_cure() -> None:
    with pytest.raises(
        InvalidArgument, match="may have 100 bytes, this has 104; use a shorter one"
    ):
        Server(STORAGE, "unix:/" + "x" * 103)


def test_a_second_server_on_a_port_fails_and_says_why(folder: Path) -> None:
    with a_server(folder / "a.db") as first:
        with (
            pytest.raises(Unavailable, match="Address already in use; use another port"),
            a_server(folder / "b.db", first.address),
        ):
            pass
        with Client(first.address) as client:
            assert client.algorithms()


def test_a_second_server_on_a_socket_fails_and_the_first_keeps_it(folder: Path) -> None:
    address = f"unix:{folder}/s.sock"
    with a_server(folder / "a.db", address):
        with (
            pytest.raises(Unavailable, match="another server already does"),
            a_server(folder / "b.db", address),
        ):
            pass
        with Client(address) as client:
            assert client.algorithms()


def test_a_socket_is_accessible_to_its_owner_only_and_is_removed_at_the_end(folder: Path) -> None:
    path = folder / "s.sock"
    with a_server(folder / "a.db", f"unix:{path}"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert not path.exists()


def test_a_socket_left_by_a_killed_server_is_replaced(folder: Path) -> None:
    path = folder / "s.sock"
    with closing(socket.socket(socket.AF_UNIX)) as dead:
        dead.bind(str(path))
    with a_server(folder / "a.db", f"unix:{path}") as server, Client(server.address) as client:
        assert client.algorithms()


def test_a_file_that_is_not_a_socket_is_left_alone(folder: Path) -> None:
    path = folder / "notes.txt"
    path.write_text("mine")
    with (
        pytest.raises(Unavailable, match="another file is there"),
        a_server(folder / "a.db", f"unix:{path}"),
    ):
        pass
    assert path.read_text() == "mine"


def test_a_missing_folder_is_named(folder: Path) -> None:
    with (
        pytest.raises(Unavailable, match=f"there is no folder {folder}/no"),
        a_server(folder / "a.db", f"unix:{folder}/no/s.sock"),
    ):
        pass


def test_a_socket_that_others_could_replace_is_refused(folder: Path) -> None:
    folder.chmod(0o777)
    with (
        pytest.raises(Unavailable, match="any user could replace the socket"),
        a_server(folder / "a.db", f"unix:{folder}/s.sock"),
    ):
        pass
    folder.chmod(0o1777)  # as /tmp
    with (
        a_server(folder / "a.db", f"unix:{folder}/s.sock") as server,
        Client(server.address) as client,
    ):
        assert client.list_studies() == []
