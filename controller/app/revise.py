"""Change an experiment while it runs, without stopping a trial.

The change is recorded as a revision. A controller that runs the experiment takes it up within a
second, and the next one when it begins, so a kill between any two steps loses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from controller.app.experiment_service import SET, ExperimentService, listed
from controller.app.experiments import find
from controller.app.validate import check_revision, notices
from controller.app.workspace import Workspace
from controller.core.model import Experiment
from controller.phrases import command
from controller.spec import file_text, read
from suggest.errors import InvalidArgument


async def set_values(
    workspace: Workspace,
    name: str,
    namespace: str | None,
    overrides: Sequence[str],
    *,
    print_line: Callable[[str], None],
) -> Experiment:
    """Record changes PATH=VALUE of an experiment as a revision, and return it under that revision.

    Raises NotFound, InvalidArgument (SpecErrors), Changed, FailedPrecondition.
    """
    if not overrides:
        raise InvalidArgument.at("", "specify what to change, such as spec.parallelism=8")
    with workspace.opened() as experiments:
        experiment = find(experiments, name, namespace)
        document = read(
            file_text(experiment.spec.document), source=experiment.name, overrides=list(overrides)
        )
        document = replace(
            document, text=f"# {experiment.name}{SET}\n{file_text(document.spec.document)}"
        )
        await check_revision(workspace, experiment, document)
        changes = ExperimentService(experiments).set(experiment, document)
        revised = find(experiments, name, experiment.namespace)
        runs = experiments.holder(experiment.uid) is not None
    if not changes:
        print_line(f"{name} has these values already")
        return revised
    for sentence in notices(document):
        print_line(sentence)
    when = "takes effect now" if runs else f"takes effect with: {command('resume', name)}"
    print_line(
        document.spec.words(f"revision {revised.revision} of {name} {when}:\n{listed(changes)}")
    )
    return revised
