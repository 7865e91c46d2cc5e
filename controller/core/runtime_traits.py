"""The traits of each runtime: what code outside a runtime needs to know about the place where
trials run.

Only this table knows runtimes by name. Code that depends on the place asks for a trait, so that a
new runtime is a row of the table, a module that implements `controller.runtime.protocol.Runtime`,
and its constructor in `controller.app.runtimes`.
The command line imports this module even for --help, which must not import dataclasses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple


class RuntimeTraits(NamedTuple):
    """What one runtime offers and requires.

    Attributes:
        on_cluster: trials are objects on a Kubernetes cluster, reached by a context of the
            kubeconfig and created in a namespace; otherwise they are processes on this machine.
        survives_controller: trials keep running without a controller, so Ctrl-C detaches from them.
        needs_image: a trial with a command needs the image of a container.
        shares_files: trials see the files of this machine: the parameters file, the output folder,
            relative paths.
        shares_gpus: a trial may ask for a fraction of a GPU.
        assigns_gpus: the controller assigns the GPUs of `devices` to trials.
        takes_templates: a trial may be a Kubernetes object of the user's own.
        patience_s: how long a run waits for a runtime that does not answer.
        brisk_s: attempts shorter than this are short trials, for which successors are started
            ahead.
    """

    on_cluster: bool
    survives_controller: bool
    needs_image: bool
    shares_files: bool
    shares_gpus: bool
    assigns_gpus: bool
    takes_templates: bool
    patience_s: float
    brisk_s: float


DEFAULT_RUNTIME: Final = "local"
RUNTIMES: Final[Mapping[str, RuntimeTraits]] = {
    "local": RuntimeTraits(
        on_cluster=False,
        survives_controller=False,
        needs_image=False,
        shares_files=True,
        shares_gpus=True,
        assigns_gpus=True,
        takes_templates=False,
        patience_s=60.0,
        brisk_s=3.0,
    ),
    "kubernetes": RuntimeTraits(
        on_cluster=True,
        survives_controller=True,
        needs_image=True,
        shares_files=False,
        shares_gpus=False,
        assigns_gpus=False,
        takes_templates=True,
        # Long enough for an upgrade of a cluster's control plane.
        patience_s=900.0,
        # Longer on a cluster, where an outcome takes longer to arrive.
        brisk_s=15.0,
    ),
}


def is_on_cluster(name: object) -> bool:
    """Return whether the runtime of that name runs trials on a cluster.

    The name may be unchecked input.
    """
    return isinstance(name, str) and name in RUNTIMES and RUNTIMES[name].on_cluster
