"""Trials that name their parameters, and the invariant of what the study has of them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

from suggest.trial import Trial, TrialState
from tests.sim.invariant import InvariantViolation
from tests.sim.simulated_runtime import Script

_DOMAINS = {
    "lr": {"type": "float", "min": 0.1, "max": 1.0, "scale": "linear"},
    "b": {"type": "int", "min": 1, "max": 3, "scale": "linear", "step": 1},
}


def naming(script: Script) -> Script:
    """Return the script that first names its parameters, and waits for no answer."""
    return replace(script, lines=(*((0.0, _line(name)) for name in _DOMAINS), *script.lines))


def _line(name: str) -> str:
    request = {"name": name, "domain": _DOMAINS[name], "planned": True}
    text = base64.urlsafe_b64encode(json.dumps(request).encode()).decode().rstrip("=")
    return f"tuner.ask {text}"


def check_named(trial: Trial) -> None:
    """Check that the study has what a trial has met, at the latest with its outcome."""
    if trial.state is TrialState.SUCCEEDED and trial.parameters.keys() != _DOMAINS.keys():
        raise InvariantViolation(f"{trial} has met {sorted(_DOMAINS)}")
