"""The keys under `spec.final`: the stage that runs the best parameters once more. Tables only; rules are in `rules`.

Every key may be absent: then it is as under `spec.trial`. So nothing here has a default of its own.
"""

from __future__ import annotations

from dataclasses import replace

from controller.spec.fields import ABSENT
from controller.spec.sections import Section
from controller.spec.trial_section import RESOURCES, TRIAL

AS_TRIAL = "as in `trial`"
_HELP = {
    "command": "The program and its arguments; `${name}` is a parameter of the best trial.",
    "args": "More arguments, after the command.",
    "env": "Environment variables; those of `trial` that it does not name stay.",
    "resources": "What one attempt is given; what it does not name is as in `trial`.",
    "timeout": "An attempt that runs longer is stopped and failed.",
}
_OWN_RESOURCES = replace(RESOURCES, keys=tuple(replace(key, default=ABSENT, says=AS_TRIAL) for key in RESOURCES.keys))
_ELSEWHERE = {key.name: f"spec.trial.{key.name}" for key in TRIAL.keys if key.name not in _HELP}

FINAL_STAGE = Section(
    tuple(
        replace(
            key,
            kind=_OWN_RESOURCES if key.name == "resources" else key.kind,
            help=_HELP[key.name],
            default=ABSENT,
            says=AS_TRIAL,
        )
        for key in TRIAL.keys
        if key.name in _HELP
    ),
    what="a mapping with a command",
    elsewhere=_ELSEWHERE,
)
