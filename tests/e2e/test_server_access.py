"""`tuner` with a service that requires TLS and tokens:
everything works with a token, else the exit code is 4.
"""

from __future__ import annotations

import asyncio
import json
import os
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from controller.app.state_directory import StateDirectory
from controller.app.workspace import Workspace
from suggest.server import Protection
from tests import called
from tests.certificates import Authority
from tests.e2e.cli import experiment
from tests.service.granted import secret, tokens_file
from tests.service.running import a_server

FILE = experiment(["sh", "-c", 'echo "token=[$TUNER_TOKEN]"; echo score=${x}'])


class Closed:
    """A server over TLS with tokens of `me` and `reader`.

    `tuner` gets its credentials from the environment.
    """

    def __init__(self, folder: Path, address: str, authority: Authority) -> None:
        self.folder = folder
        self.address = address
        self.authority = authority
        (folder / "experiment.yaml").write_text(FILE)

    def tuner(self, *words: str, token: str) -> subprocess.CompletedProcess[str]:
        env = {key: value for key, value in os.environ.items() if not key.startswith("TUNER_")}
        env |= {"TUNER_STATE_DIR": str(self.folder / "state"), "TUNER_TOKEN": token}
        env["TUNER_TLS_CA"] = str(self.authority.own.certificate)
        return called.run_tuner(words, folder=self.folder, env=env)


@pytest.fixture
def closed(tmp_path: Path) -> Iterator[Closed]:
    authority = Authority(tmp_path)
    pair = authority.issue("server", "/CN=tuner", ("localhost",))
    tokens = tokens_file(
        tmp_path / "tokens.yaml", me=("all", ["default"]), reader=(["read"], "all")
    )
    protection = Protection(
        tokens=str(tokens), tls_cert=str(pair.certificate), tls_key=str(pair.key)
    )
    with a_server(tmp_path / "s.db", protection=protection) as server:
        yield Closed(tmp_path, server.address, authority)


def test_an_experiment_runs_over_tls_with_a_token_that_is_kept_nowhere(closed: Closed) -> None:
    done = closed.tuner("run", "experiment.yaml", "--server", closed.address, token=secret("me"))
    assert done.returncode == 0, done.stderr
    listed = closed.tuner("get", "trials", "tiny", "-o", "json", token=secret("me"))
    assert [trial["state"] for trial in json.loads(listed.stdout)] == ["succeeded"] * 2
    kept = [
        path
        for path in closed.folder.rglob("*")
        if path.is_file() and secret("me").encode() in path.read_bytes()
    ]
    assert kept == []
    logs = [path.read_text() for path in (closed.folder / "state").rglob("log.txt")]
    assert [log.splitlines()[0] for log in logs] == ["token=[]"] * 2, "trials have no need of it"
    assert secret("me") not in done.stdout + done.stderr


def test_a_call_without_permission_ends_with_exit_code_4(closed: Closed) -> None:
    run = ("run", "experiment.yaml", "--server", closed.address)
    denied = closed.tuner(*run, token=secret("reader"))
    assert (denied.returncode, denied.stdout) == (4, "")
    assert denied.stderr.startswith(
        "tuner: the token reader lacks the verb manage, which CreateStudy needs"
    )
    unknown = closed.tuner(
        "validate", "experiment.yaml", *run[2:], token="a-token-of-somebody-else"
    )
    assert unknown.returncode == 4
    assert unknown.stderr.startswith("tuner: unknown or revoked token")
    assert "somebody-else" not in unknown.stderr


def test_only_its_user_can_reach_the_embedded_service(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # not needed with an embedded service
    monkeypatch.setenv("TUNER_TOKEN_FILE", str(tmp_path / "missing"))
    home = StateDirectory(tmp_path)
    home.make()

    async def look() -> tuple[int, int, int]:
        async with Workspace(home).connected("") as client:
            assert await client.list_studies() == []
            path = Path(client.address.removeprefix("unix:"))
            found = path.stat()
            return (
                stat.S_IMODE(found.st_mode),
                stat.S_IMODE(path.parent.stat().st_mode),
                found.st_uid,
            )

    assert asyncio.run(look()) == (0o600, 0o700, os.getuid())
