"""An experiment's file under the flags of the command line. Reads; starts and stores nothing."""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from controller.spec import Document, read_path
from suggest.errors import InvalidArgument, Problem

if TYPE_CHECKING:
    from suggest.study import StudySpec


@dataclass(frozen=True, slots=True)
class File:
    """Read, and where relative paths in it begin."""

    document: Document
    directory: Path

    @classmethod
    def read(cls, path: str, arguments: argparse.Namespace) -> File:
        document = read_document(path, arguments)
        if arguments.context and document.spec.runtime == "local":
            raise InvalidArgument(
                [Problem("--context", "is of a cluster, and trials run here; add --runtime kubernetes")]
            )
        return cls(document, Path.cwd() if path == "-" else Path(path).absolute().parent)


def read_document(path: str, arguments: argparse.Namespace) -> Document:
    """The file under the flags. Raises SpecErrors."""
    overrides = list(arguments.set)
    if arguments.namespace:
        overrides.append(f"metadata.namespace={arguments.namespace}")
    if arguments.runtime:
        overrides.append(f"spec.runtime={arguments.runtime}")
    return read_path(
        path,
        overrides=overrides,
        service=None if arguments.server else _check,
        namespace_of=lambda name: _namespace_of(name, arguments),
    )


def _namespace_of(name: str, arguments: argparse.Namespace) -> str:
    """That of the context, as kubectl has it; but an experiment that is there already stays where it is.

    "": the default.
    """
    from controller.cli.facts import opened
    from controller.cli.home import Home
    from controller.runtime.kubernetes.kubeconfig import namespace_of

    of_context = namespace_of(getattr(arguments, "context", None) or None)
    home = Home.find(getattr(arguments, "state_dir", None))
    if of_context == "default" or not home.controller_db.exists():
        return of_context
    with opened(home) as store:
        having = {experiment.namespace for experiment in store.experiments() if experiment.name == name}
    return having.pop() if len(having) == 1 else of_context


def _check(spec: StudySpec) -> None:
    """By the rules of the service in this process; another one is not asked about files that cannot be run anyway."""
    from suggest.server.admin import check  # here: only files with problems need it before the service is there

    check(spec)
