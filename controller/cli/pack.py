"""`tuner pack` and `tuner unpack`: a search as one file."""

from __future__ import annotations

import argparse
from functools import partial

from controller import app
from controller.cli.exits import ExitCode
from controller.cli.options import cluster_of, workspace_of
from controller.cli.terminal import say
from controller.core.model import ExperimentState
from controller.phrases import command, quantity
from suggest import paths


def pack(arguments: argparse.Namespace) -> ExitCode:
    target = paths.absolute(arguments.to or f"{arguments.name}.tar.gz")
    if arguments.cluster is None:
        packed = app.pack.pack(workspace_of(arguments), arguments.name, arguments.namespace, target)
    else:
        api = cluster_of(arguments)
        packed = app.pack.pack_of_cluster(api, arguments.name, arguments.namespace, target)
    for note in packed.notes:
        say(arguments, note)
    attempts = quantity(packed.attempts, "attempt")
    size = f"{packed.size / 1e6:.1f} MB" if packed.size >= 1e6 else f"{packed.size / 1e3:.1f} kB"
    print(f"{packed.path}: {arguments.name} with {attempts}, {size}")
    return ExitCode.OK


def unpack(arguments: argparse.Namespace) -> ExitCode:
    source = paths.absolute(arguments.source)
    unpacked = app.pack.unpack(workspace_of(arguments), source)
    experiment = unpacked.experiment
    print_line = partial(say, arguments)
    state = experiment.state
    alone = " (no controller)" if state is ExperimentState.RUNNING else ""
    print(f"{experiment.name} is unpacked: {state.value}{alone}", flush=True)
    for note in unpacked.notes:
        print_line(note)
    goes_on = command("resume", experiment.name)
    if state.finished:
        goes_on = command("extend", experiment.name, "--trials", "+20")
    # Reruns that have ended are complete.
    if experiment.spec.rerun is None or not state.finished:
        print_line(f"Continue: {goes_on}")
    return ExitCode.OK
