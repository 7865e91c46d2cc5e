"""Ask the controller for a parameter that the trial meets while it runs, what the pruning rule says
of its reports, or to end the search.

Used in the trial's own process; standard library only. The answer is stored before it comes, so a
trial that runs again gets the same. While no controller runs, the trial waits for the next one.

A trial on the machine of its controller asks at a socket. One elsewhere prints its request, as it
prints its metrics, and waits for the answer in a file: it needs no network, no address and no
secret.
"""

from __future__ import annotations

import base64
import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

# As in `controller.runtime.trial_variables`; this module imports only the standard library.
# `controller.parameter_requests` documents the messages.
SOCKET, ANSWERS = "TUNER_PARAMETER_REQUESTS", "TUNER_PARAMETER_ANSWERS"
PLAN = "TUNER_PARAMETER_PLAN"
_FIRST_S = 0.01
_LONGEST_AT_SOCKET_S, _LONGEST_IN_FILE_S = 1.0, 0.05
# The rule judges within milliseconds. A trial trains on when no controller runs, or it has trouble,
# and is asked to stop later.
_JUDGED_WITHIN_S = 1.0
# A request whose line was lost, as by the rotation of a log, is printed again.
_PRINTED_AGAIN_S = 60.0


def ask(
    name: str,
    domain: Mapping[str, object],
    *,
    trial: int,
    attempt: int,
    given: Mapping[str, object],
) -> Any:  # JSON
    """Return the value of the parameter.

    domain: As an experiment's file describes it, with its scale and step. given: The values that
        parameters have to have, by name.

    Raises:
        RuntimeError: This process is not a trial that names its parameters.
        ValueError: The range is wrong, or the parameter was of another kind before.
    """
    request = {"trial": trial, "attempt": attempt, "name": name, "domain": dict(domain)}
    if name in given:
        request["given"] = given[name]
    line = json.dumps(request).encode()
    if ANSWERS in os.environ:
        value, planned = json.loads(os.environ.get(PLAN, "{}")).get(name, (None, None))
        if planned is not None and _text(planned) == _text(domain) and name not in given:
            # The study says the same: it only has to learn that the trial has met it.
            _print(json.dumps({**request, "planned": True}).encode())
            return value
        longest_s = _LONGEST_IN_FILE_S
        answers = _answers_in_file(name, line, Path(os.environ[ANSWERS]))
    elif SOCKET in os.environ:
        longest_s = _LONGEST_AT_SOCKET_S
        answers = _answers_at_socket(line + b"\n", Path(os.environ[SOCKET]))
    else:
        raise RuntimeError(
            f"trial has no parameter {name!r}: give it to the search, or run the search without "
            "parameters, as in tuner.minimize(objective), so that trials name them"
        )
    pause_s = _FIRST_S
    for answer in answers:
        if "value" in answer:
            return answer["value"]
        if "refused" in answer:
            raise ValueError(answer["refused"])
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
    raise AssertionError("unreachable")


def is_advised_to_stop(*, trial: int, attempt: int) -> bool:
    """Return what the pruning rule says of all that the trial has printed.

    False if that is not known within a second, or the trial has no socket. If it is true, SIGTERM
    follows.
    """
    if SOCKET not in os.environ:
        return False
    request = json.dumps({"trial": trial, "attempt": attempt, "judge": True}).encode() + b"\n"
    try:
        answer = _exchanged(Path(os.environ[SOCKET]), request, within_s=_JUDGED_WITHIN_S)
    except (OSError, EOFError):
        return False
    # One of an older controller refuses the question.
    return answer.get("stop", False) is True


def end_search() -> None:
    """Ask the controller to start no more trials, and to let those that run finish."""
    os.write(1, b"\ntuner.end\n")


def _answers_in_file(name: str, request: bytes, file: Path) -> Iterator[dict[str, Any]]:
    """Print the request, and yield what the file says at each look; {} as long as it says nothing.

    Of a file that is being replaced, a look may find nothing.
    """
    printed_s = None
    while True:
        if printed_s is None or time.monotonic() - printed_s >= _PRINTED_AGAIN_S:
            if printed_s is not None:
                _say_that_it_waits(name)
            printed_s = time.monotonic()
            _print(request)
        try:
            yield json.loads(file.read_bytes()).get(name, {})
        except (OSError, ValueError):
            yield {}


def _say_that_it_waits(name: str) -> None:
    print(
        f"tuner: still waits for parameter {name!r}. No controller runs, or this is one of several "
        "workers: they get the parameters that the first one asks for",
        file=sys.stderr,
        flush=True,
    )


def _print(request: bytes) -> None:
    os.write(1, b"\ntuner.ask " + base64.urlsafe_b64encode(request).rstrip(b"=") + b"\n")


def _text(domain: Mapping[str, object]) -> str:
    """Return the same text for the same domain, whether or not it has keys without a value."""
    return json.dumps({key: domain[key] for key in sorted(domain) if domain[key] is not None})


def _answers_at_socket(line: bytes, file: Path) -> Iterator[dict[str, Any]]:
    """Yield the answer of each try; {} while no controller runs."""
    while True:
        try:
            yield _exchanged(file, line)
        except (OSError, EOFError):
            yield {}


def _exchanged(file: Path, line: bytes, *, within_s: float | None = None) -> dict[str, Any]:
    """Return the answer to a request. Raises OSError, EOFError."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(within_s)
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
