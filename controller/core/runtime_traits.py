"""The traits of a runtime: what code outside of it may ask without loading it.

Code that depends on where trials run asks for a trait, or asks the runtime's provider
(`controller.runtime.provider`); it never compares names. The command line imports this module even
for --help, which must not import dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class RuntimeTraits(NamedTuple):
    """What one runtime offers and requires.

    Attributes:
        in_containers: each trial runs in a container, so it needs an image, and shares no files,
            ports and processes with this machine. Other trials see the files of this machine: the
            parameters file, the output folder, relative paths.
        takes_templates: trials are objects of Kubernetes: a trial may be an object of the user's
            own, and the labels of the file are labels of objects.
        has_contexts: `--context` chooses where trials run, and a file without a namespace gets that
            of the context.
        survives_controller: trials keep running without a controller, so Ctrl-C detaches from them.
        shares_gpus: a trial may ask for a fraction of a GPU.
        assigns_gpus: the controller assigns the GPUs of `devices` to trials.
        answers_parameters: trials may name their parameters while they run (`spec.defineByRun`).
        ignores: keys of `spec.trial` that have no effect.
        patience_s: how long a run waits for a runtime that does not answer.
        brisk_s: attempts shorter than this are short trials, for which successors are started
            ahead.
    """

    in_containers: bool = False
    takes_templates: bool = False
    has_contexts: bool = False
    survives_controller: bool = False
    shares_gpus: bool = False
    assigns_gpus: bool = False
    answers_parameters: bool = False
    ignores: tuple[str, ...] = ()
    patience_s: float = 60.0
    brisk_s: float = 3.0


DEFAULT_RUNTIME: Final = "local"
# The runtimes of this project. `controller.runtime.registry` has those of installed packages too.
BUILT_IN: Final[Mapping[str, RuntimeTraits]] = {
    "local": RuntimeTraits(
        shares_gpus=True,
        assigns_gpus=True,
        answers_parameters=True,
        ignores=("image", "memory"),
    ),
    "kubernetes": RuntimeTraits(
        in_containers=True,
        takes_templates=True,
        has_contexts=True,
        survives_controller=True,
        answers_parameters=True,
        # Long enough for an upgrade of a cluster's control plane.
        patience_s=900.0,
        # Longer than here, because an outcome takes longer to arrive.
        brisk_s=15.0,
    ),
}
