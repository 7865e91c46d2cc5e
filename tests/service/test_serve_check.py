"""`tuner serve --check` checks what a server needs, without starting or changing anything."""

from __future__ import annotations

import os
import shutil
import socket
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from suggest.client import Client
from suggest.errors import InvalidArgument
from suggest.server import Protection, Server, ServerOptions, start_check
from suggest.server.start_check import look
from suggest.storage.study_tables import SCHEMA
from tests import forked
from tests.certificates import Authority
from tests.service.granted import tokens_file
from tests.service.running import NAME, SPEC, a_server

OPEN = Protection(insecure=True)


def told(
    storage: Path | str,
    address: str = "localhost:0",
    *,
    advertise: str = "",
    protection: Protection = OPEN,
    options: ServerOptions = ServerOptions(),  # noqa: B008 - a value
) -> dict[str, tuple[bool, str]]:
    """Return by subject whether it is all right, and the message."""
    url = f"sqlite:///{storage}" if isinstance(storage, Path) else storage
    found = look(address, url, advertise=advertise, protection=protection, options=options)
    return {finding.subject: (finding.problem is None, finding.detail) for finding in found}


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.name: path.read_bytes() if path.is_file() else b""
        for path in sorted(folder.rglob("*"))
    }


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("made") / "studies.db"
    with a_server(path) as server, Client(server.address) as client:
        client.create_study(NAME, SPEC, request_id="create")
    return path


@pytest.fixture
def store(tmp_path: Path, made: Path) -> Path:
    (tmp_path / "store").mkdir()
    return Path(shutil.copy(made, tmp_path / "store" / "studies.db"))


def test_a_healthy_store_is_not_changed(store: Path) -> None:
    before = contents(store.parent)
    assert told(store) == {
        "address": (True, "localhost:0 is free; open to everybody, unencrypted"),
        "storage": (True, f"{store}: schema {SCHEMA.newest}, the newest"),
    }
    assert contents(store.parent) == before


def test_a_store_in_use_can_be_checked(tmp_path: Path) -> None:
    path = tmp_path / "studies.db"
    with a_server(path) as server, Client(server.address) as client:
        client.create_study(NAME, SPEC, request_id="create")
        assert told(path)["storage"] == (True, f"{path}: schema {SCHEMA.newest}, the newest")
        assert len(client.suggest(NAME, 3, client_id="c", request_id="r").trials) == 3


def test_a_missing_store_is_not_created(tmp_path: Path) -> None:
    path = tmp_path / "new" / "studies.db"
    assert told(path)["storage"] == (True, f"{path}: does not exist; the first start creates it")
    assert list(tmp_path.iterdir()) == []


def test_a_store_that_cannot_be_created_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    no_folder, loop = tmp_path / "file/deep/s.db", tmp_path / "loop/s.db"
    assert told(no_folder)["storage"] == (
        False,
        f"{tmp_path}/file is not a directory, and {no_folder} will be created; name another",
    )
    is_right, detail = told(loop)["storage"]
    assert (is_right, detail.partition(":///")[2].partition(" ")[0]) == (False, str(loop))
    assert detail.endswith("; give this user permission, or name another")


def _too_old(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE study_schema_version SET version_num = '0000'")


def _newer(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE study_schema_version SET version_num = '9999'")


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


def _overwritten(path: Path) -> None:
    path.write_bytes(b"no database" * 1000)


@pytest.mark.parametrize(
    ("damage", "detail"),
    [
        (_too_old, f"has schema 0000; this tuner uses {SCHEMA.newest} and upgrades no other"),
        (_newer, f"has schema 9999, newer than {SCHEMA.newest}"),
        (_cut, "the file is damaged; restore it from a backup"),
        (_overwritten, "the file is not a database"),
    ],
)
def test_problems_of_a_store_are_reported_but_not_repaired(
    store: Path, damage: Callable[[Path], None], detail: str
) -> None:
    damage(store)
    before = contents(store.parent)
    is_well, said = told(store)["storage"]
    assert not is_well
    assert detail in said
    assert contents(store.parent) == before


def test_an_older_store_is_no_problem_and_is_not_upgraded(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = replace(SCHEMA, newest="9998", older=(SCHEMA.newest,))
    monkeypatch.setattr(start_check, "SCHEMA", newer)
    before = contents(store.parent)
    expected = (
        f"schema {SCHEMA.newest}; the first start upgrades it to 9998, which older servers then "
        "refuse"
    )
    is_well, said = told(store)["storage"]
    assert is_well
    assert expected in said
    assert contents(store.parent) == before


def test_an_address_in_use_or_too_open_is_a_problem(store: Path, tmp_path: Path) -> None:
    with socket.create_server(("localhost", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
        options = ServerOptions(metrics_address=address)
        found = told(store, address, options=options)
        assert "Address already in use" in found["address"][1]
        assert found["metrics"] == (
            False,
            f"metrics-address: {address} is the address of the service; use another port",
        )
    well, said = told(store, "0.0.0.0:7117", protection=Protection())["address"]
    assert not well
    assert "name those who may with --tokens FILE" in said


def test_the_socket_of_a_dead_server_is_not_removed(store: Path, tmp_path: Path) -> None:
    path = tmp_path / "s.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    address = f"unix:{path}"
    assert told(store, address, protection=Protection())["address"] == (
        True,
        f"{address} is free; open to only its user",
    )
    assert path.exists()


def test_certificates_are_checked_for_names_dates_and_keys(store: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "/CN=tuner", ("localhost", "tuner.example.org"))
    other = authority.issue("other", "/CN=other", ("localhost",))
    tokens = str(tokens_file(tmp_path / "tokens.yaml", me=("all", "all"), you=(["read"], "all")))

    def judged(
        cert: Path, key: Path, *, advertise: str = "", address: str = "localhost:0"
    ) -> tuple[bool, str]:
        protection = Protection(tokens=tokens, tls_cert=str(cert), tls_key=str(key))
        found = told(store, address, advertise=advertise, protection=protection)
        assert found["tokens"] == (True, f"{tokens}: 2")
        return found["certificate"]

    well, said = judged(pair.certificate, pair.key)
    assert well, said
    assert said.startswith(f"{pair.certificate}: for localhost, tuner.example.org, until ")
    assert judged(
        pair.certificate, pair.key, advertise="tuner.example.org:7117", address="0.0.0.0:0"
    )[0]
    well, said = judged(pair.certificate, pair.key, advertise="tuner.example.com:7117")
    assert not well
    assert "clients that connect to tuner.example.com will refuse it" in said
    well, said = judged(pair.certificate, other.key)
    assert not well
    assert "the key does not belong to the certificate" in said
    well, said = judged(tmp_path / "none.pem", pair.key)
    assert not well
    assert "cannot be read: No such file" in said


def test_files_of_tokens_and_limits_are_checked(store: Path, tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("namespaces: {a: {trials: 5}}\nclients: {me: {rate: 5}}")
    options = ServerOptions(limits=str(limits))
    assert told(store, options=options)["limits"] == (
        True,
        f"{limits}: 1 namespaces with limits of their own",
    )
    limits.write_text("defaults: {trials: many}")
    assert told(store, options=options)["limits"][0] is False
    missing = Protection(tokens=str(tmp_path / "none.yaml"))
    assert told(store, protection=missing)["tokens"] == (
        False,
        f"{tmp_path / 'none.yaml'}: cannot be read: No such file or directory",
    )


def test_the_folder_of_checkpoints_is_checked_before_the_server_starts(
    store: Path, tmp_path: Path
) -> None:
    options = ServerOptions(katib_checkpoints=tmp_path / "not-mounted")
    is_right, message = told(store, options=options)["katib"]
    assert not is_right
    assert "not-mounted is not a folder that this user can write" in message
    with pytest.raises(InvalidArgument, match="not a folder that this user can write"):
        Server(f"sqlite:///{store}", "localhost:0", protection=OPEN, options=options)


def test_the_command_prints_a_line_per_finding_and_exits_with_its_code(
    store: Path, tmp_path: Path
) -> None:
    def check(*flags: str) -> tuple[int, list[str]]:
        words = ["serve", "--check", "--state-dir", str(tmp_path / "state"), *flags]
        done = forked.run_tuner(words, folder=tmp_path, env=os.environ)
        assert done.stderr == ""
        return done.returncode, done.stdout.splitlines()

    flags = ("--address", "localhost:0", "--insecure", "--storage", f"sqlite:///{store}")
    code, lines = check(*flags, "--metrics-address", "localhost:0")
    assert (code, lines) == (
        0,
        [
            "ok    address       localhost:0 is free; open to everybody, unencrypted",
            f"ok    storage       {store}: schema {SCHEMA.newest}, the newest",
            "ok    metrics       localhost:0 is free",
        ],
    )
    page = (Path(__file__).resolve().parents[2] / "docs" / "server.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.startswith("ok    ")]
    places = {
        "127.0.0.1:7117": "localhost:0",
        "localhost:9117": "localhost:0",
        "/var/lib/tuner/studies.db": str(store),
    }
    for place, here in places.items():
        shown = [line.replace(place, here) for line in shown]
    assert shown == lines, "as the page has it"
    _newer(store)
    assert check(*flags)[0] == 7
    code, lines = check("--address", "localhost:0", "--limits", str(tmp_path / "none.yaml"))
    assert [line.split()[:2] for line in lines] == [
        ["FAIL", "address"],
        ["ok", "storage"],
        ["FAIL", "limits"],
    ]
    assert code == 2
    assert not (tmp_path / "state").exists()
