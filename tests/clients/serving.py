"""A real `tuner serve` on a port of this machine, with TLS and tokens,
that can be killed and restarted.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from suggest.client import Client
from tests.cluster.pki import Authority
from tests.service.granted import secret, tokens_file

FROM = Path(__file__).resolve().parents[2]


class Served:
    """A running server in `folder`. It keeps its `address` after a restart.

    `command`: the words of a `tuner serve`; by default its own command,
    for which `token` and `ca` are files.
    """

    def __init__(self, folder: Path, command: Sequence[str] = ()) -> None:
        self.address = "localhost:0"
        self._folder = folder
        self._errors = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._command = list(command) or self._secured()
        self.start()

    def start(self, *, failpoint: str = "") -> None:
        """Start it. At a failpoint it kills itself."""
        assert self._process is None
        # Its log is a file, because no process would read a pipe.
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "controller", *self._command, "--address", self.address],
                cwd=self._folder,
                env={**os.environ, "PYTHONPATH": str(FROM), "TUNER_FAILPOINT": failpoint},
                stderr=errors,
            )
        line = self._first_line()
        if not line.startswith("listening on "):
            self.kill()
            raise AssertionError(f"the server did not start: {line}")
        self.address = line.split()[2].rstrip(",")

    @property
    def flags(self) -> list[str]:
        """Return the environment of the programs of examples/clients."""
        return [f"--address={self.address}", f"--ca={self.ca}", f"--token={self.token}"]

    def client(self) -> Client:
        return Client(self.address, token_file=str(self.token), tls_ca=str(self.ca))

    def await_death(self) -> int:
        """Return its exit code once its failpoint has killed it."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(timeout=60)

    def kill(self) -> None:
        """Kill it with SIGKILL."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait(timeout=60)

    def _secured(self) -> list[str]:
        authority = Authority(self._folder)
        pair = authority.issue("server", "/CN=tuner", ("localhost",))
        self.ca, self.token = authority.own.certificate, self._folder / "token"
        self.token.write_text(secret("go") + "\n")
        tokens = tokens_file(self._folder / "tokens.yaml", go=("all", ["default"]))
        words = [
            "serve",
            "--storage",
            f"sqlite:///{self._folder}/studies.db",
            "--tokens",
            str(tokens),
        ]
        return [*words, "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]

    def _first_line(self) -> str:
        """Return the complete line with its address,
        or the whole output if the process has ended.
        """
        process = self._process
        assert process is not None
        while True:
            ended = process.poll() is not None
            text = self._errors.read_text()
            whole = (line for line in text.splitlines(keepends=True) if line.endswith("\n"))
            if (
                line := next((line for line in whole if line.startswith("listening on ")), "")
            ) or ended:
                return line or text
            time.sleep(0.02)
