"""A real `tuner serve` on a port of this machine, over TLS and for tokens, that may be killed and started anew."""

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
    """Runs from the start, in `folder`. `address` stays when it is killed and started again.

    `command`: a `tuner serve` in words, else its own, for which `token` and `ca` are files.
    """

    def __init__(self, folder: Path, command: Sequence[str] = ()) -> None:
        self.address = "localhost:0"
        self._folder = folder
        self._errors = folder / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._command = list(command) or self._secured()
        self.start()

    def start(self, *, failpoint: str = "") -> None:
        """With a failpoint it kills itself there."""
        assert self._process is None
        # Its log is a file: nobody would empty a pipe.
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "controller.cli", *self._command, "--address", self.address],
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
        """For the programs of examples/clients."""
        return [f"--address={self.address}", f"--ca={self.ca}", f"--token={self.token}"]

    def client(self) -> Client:
        return Client(self.address, token_file=str(self.token), tls_ca=str(self.ca))

    def await_death(self) -> int:
        """Its exit code, once its failpoint has killed it."""
        process, self._process = self._process, None
        assert process is not None
        return process.wait(timeout=60)

    def kill(self) -> None:
        """As `kill -9` does it."""
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
        words = ["serve", "--storage", f"sqlite:///{self._folder}/studies.db", "--tokens", str(tokens)]
        return [*words, "--tls-cert", str(pair.certificate), "--tls-key", str(pair.key)]

    def _first_line(self) -> str:
        """The one that says where it listens, once it is whole; all there is, if the process has ended instead."""
        process = self._process
        assert process is not None
        while True:
            ended = process.poll() is not None
            text = self._errors.read_text()
            whole = (line for line in text.splitlines(keepends=True) if line.endswith("\n"))
            if (line := next((line for line in whole if line.startswith("listening on ")), "")) or ended:
                return line or text
            time.sleep(0.02)
