"""A real `tuner serve` on a port of this machine, that may be killed and started again at the same address."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

FROM = Path(__file__).resolve().parents[2]


class Served:
    """Runs from the start. `address` stays when it is killed and started again."""

    def __init__(self, storage: Path) -> None:
        self.address = "localhost:0"
        self._storage = storage
        self._process: subprocess.Popen[str] | None = None
        self.start()

    def start(self, *, failpoint: str = "") -> None:
        """With a failpoint it kills itself there."""
        assert self._process is None
        command = [sys.executable, "-m", "controller.cli", "serve"]
        self._process = subprocess.Popen(
            [*command, "--address", self.address, "--storage", f"sqlite:///{self._storage}", "--insecure", "--quiet"],
            cwd=FROM,
            env={**os.environ, "TUNER_FAILPOINT": failpoint},
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        line = self._process.stderr.readline()
        if not line.startswith("listening on "):
            self.kill()
            raise AssertionError(f"the server did not start: {line}")
        self.address = line.split()[2].rstrip(",")

    def await_death(self) -> int:
        """Its exit code, once its failpoint has killed it."""
        process, self._process = self._process, None
        assert process is not None
        process.communicate(timeout=60)
        return process.returncode

    def kill(self) -> None:
        """As `kill -9` does it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate(timeout=60)
