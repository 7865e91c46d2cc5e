"""A folder and a served store of the test's own."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from suggest.client import Client
from tests.service.running import a_server


@pytest.fixture(autouse=True)
def no_credentials_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY"):
        monkeypatch.delenv(f"TUNER_{name}", raising=False)


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path, as sockets need."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as name:
        yield Path(name)


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Client]:
    with a_server(tmp_path / "studies.db") as server, Client(server.address) as client:
        yield client
