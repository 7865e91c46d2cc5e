"""The fixtures of tests of clients in other languages.
`make test-clients` runs them; `make test` does not.

Without Go they are skipped with one line; with TUNER_TEST_CLIENTS_REQUIRED=1 they fail. Go's own
cache keeps what is built: the first run takes a minute or two, the next ones a second.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.serving import Served
from tests.clients.toolchain import EXAMPLE, GRPCURL, go


@pytest.fixture(scope="session")
def tune() -> Iterator[Path]:
    """Build and return the example's program."""
    with tempfile.TemporaryDirectory(prefix="tuner-") as folder:
        go("build", "-o", folder, ".", folder=EXAMPLE)
        (program,) = Path(folder).iterdir()
        yield program


@pytest.fixture(scope="session")
def grpcurl() -> Path:
    return Path(go("tool", "-n", "grpcurl", folder=GRPCURL).strip())


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    server = Served(tmp_path)
    try:
        yield server
    finally:
        server.kill()
