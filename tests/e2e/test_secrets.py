"""The password of a store is never printed, logged, exported or stored with a trial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, experiment

SECRETS = ("hush-1", "hush-2")


@pytest.fixture
def storage(postgres_url: str) -> str:
    """A storage URL with a password that is not required,
    and a secret parameter that is not used.
    """
    return postgres_url.replace("tuner@", f"tuner:{SECRETS[0]}@") + f"&sslpassword={SECRETS[1]}"


def test_no_command_shows_the_stores_password(cli: Cli, storage: str) -> None:
    cli.file.write_text(experiment())
    lines: list[str] = []

    def tuner(*words: str | Path) -> int:
        code, out, err = cli.tuner(*words)
        lines.extend((out, err))
        return code

    assert tuner("run", cli.file, "--storage", storage, "-v") == 0
    assert tuner("describe", "tiny") == 0
    assert "postgresql+psycopg://tuner:***@" in lines[-2], "it says where the study is"
    for words in (
        ("describe", "tiny/0"),
        ("describe", "tiny", "--storage", storage),
        ("get", "experiments", "-o", "json"),
        ("get", "trials", "tiny", "-o", "yaml"),
        ("export", "tiny", "--format", "json"),
        ("report", "tiny"),
        ("db", "check", "--storage", storage),
        ("db", "upgrade", "--storage", storage),
        ("serve", "--check", "--insecure", "--address", "localhost:0", "--storage", storage),
        ("run", str(cli.file), "--storage", "sqlite:///other.db"),
        ("run", str(cli.file), "--storage", storage.replace("/test", "/missing")),
        ("db", "check", "--storage", storage.replace("+psycopg", "")),
        ("db", "backup", "saved", "--storage", storage),
        ("import", "tiny", "--from", storage),
        ("doctor", str(cli.file), "--storage", storage),
    ):
        tuner(*words)
    kept = [
        path.read_text(errors="replace")
        for path in cli.folder.rglob("trials/**/*")
        if path.is_file()
    ]
    assert kept
    assert [text for text in (*lines, *kept) if any(secret in text for secret in SECRETS)] == []


def test_a_server_logs_its_store_without_secrets(storage: str, tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "tuner"
    address = f"unix:{tmp_path}/s.sock"
    with subprocess.Popen(
        [program, "serve", "--address", address, "--storage", storage],
        stderr=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stderr is not None
        lines = [server.stderr.readline(), server.stderr.readline()]
        server.terminate()
        lines.append(server.stderr.read())
    assert "tuner:***@" in "".join(lines)
    assert [text for text in lines if any(secret in text for secret in SECRETS)] == []
