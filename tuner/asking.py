"""Ask the controller for a parameter that the trial meets while it runs.

Used in the trial's own process; standard library only. The answer is stored before it comes, so a
trial that runs again gets the same. While no controller runs, the trial waits for the next one.
"""

from __future__ import annotations

import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# `controller.runtime.trial_variables.PARAMETER_REQUESTS`; this module imports only the standard
# library. `controller.app.parameter_requests` documents the messages.
VARIABLE = "TUNER_PARAMETER_REQUESTS"
_FIRST_S, _LONGEST_S = 0.01, 1.0


def ask(name: str, domain: Mapping[str, object], *, trial: int, attempt: int) -> Any:  # JSON
    """Return the value of the parameter.

    domain: As an experiment's file describes it, with its scale and step.

    Raises:
        RuntimeError: This process is not a trial that names its parameters.
        ValueError: The range is wrong, or the parameter was of another kind in an earlier trial.
    """
    if VARIABLE not in os.environ:
        raise RuntimeError(
            f"trial has no parameter {name!r}: give it to the search, or run the search without "
            "parameters, as in tuner.minimize(objective), so that trials name them"
        )
    file = Path(os.environ[VARIABLE])
    request = {"trial": trial, "attempt": attempt, "name": name, "domain": dict(domain)}
    line = json.dumps(request).encode() + b"\n"
    pause_s = _FIRST_S
    while True:
        try:
            answer = _exchanged(file, line)
        except (OSError, EOFError):
            # No controller is running.
            answer = {"later": ""}
        if "value" in answer:
            return answer["value"]
        if "refused" in answer:
            raise ValueError(answer["refused"])
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_S)


def _exchanged(file: Path, line: bytes) -> dict[str, Any]:
    """Return the answer to a request. Raises OSError, EOFError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(file.read_text(encoding="utf-8"))
        connection.sendall(line)
        received = b""
        while not received.endswith(b"\n"):
            part = connection.recv(1 << 16)
            if not part:
                raise EOFError
            received += part
    answer: dict[str, Any] = json.loads(received)
    return answer
