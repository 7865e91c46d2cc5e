"""Check whether an experiment could run, by the rules of tuner, of the service and of its runtime.

Creates nothing. An obstacle is raised as an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from controller.app.experiment_file import FileOptions, check_rules, directory_of, read_document
from controller.app.workspace import Workspace
from controller.core.budget import most_trials
from controller.core.model import END_BY_THEMSELVES, Experiment, ExperimentSpec
from controller.core.spending import HOUR_S
from controller.phrases import quantity
from controller.report.formatting import duration
from controller.report.spending import amount, of_limit
from controller.runtime.registry import provider_of, traits_of
from controller.runtime.requested import attempt_rate
from controller.search import study_spec
from controller.spec import Document
from suggest.errors import InvalidArgument
from suggest.grid import grid_points
from suggest.imports import MAX_ROWS
from suggest.server import admin

# Trials at a time, without a warning.
MOST_AT_ONCE = 10_000


async def validate(path: str, options: FileOptions, workspace: Workspace) -> Document:
    """Read the file and check it, also by the rules of the service. Raises SpecErrors."""
    document = read_document(path, options, workspace.state)
    check_rules(document, directory_of(path))
    try:
        if options.checked_by_server:
            async with workspace.connected(workspace.service) as client:
                await client.validate(study_spec(document.spec))
        else:
            admin.check(study_spec(document.spec), runs_here=False)
    except InvalidArgument as error:
        raise document.locate(error.problems) from error
    return document


async def check_revision(
    workspace: Workspace, experiment: Experiment | None, document: Document
) -> None:
    """Check the changed file of an experiment by the rules of its service.

    A recorded revision that the service refuses would keep the experiment from running. Raises
    SpecErrors.
    """
    revised = study_spec(document.spec)
    if experiment is None or study_spec(experiment.spec) == revised:
        return
    async with workspace.connected(workspace.service_of(experiment)) as client:
        try:
            await client.validate(revised)
        except InvalidArgument as error:
            raise document.locate(error.problems) from error


def warnings(document: Document) -> Iterator[str]:
    """Yield warnings about values that are seldom intended, for the file and its runtime."""
    yield from document.warnings
    yield from _far_too_many(document)
    for problem in provider_of(document.spec.runtime).warnings(document.spec):
        located = document.marks.locate(f"{problem.path}: {problem.message}")
        yield located if problem.path else problem.message


def _far_too_many(document: Document) -> Iterator[str]:
    """Warn of more trials at a time than can run, and of a grid that is never finished."""
    spec = document.spec
    if spec.parallelism > MOST_AT_ONCE:
        trials = spec.budget.trials
        limit = ""
        if trials is not None and trials < spec.parallelism:
            limit = f" (the budget is {trials:,})"
        yield document.marks.locate(
            f"spec.parallelism: {spec.parallelism:,} trials at a time{limit} are chosen without "
            "the results of each other, and need room to run at once; write as many as there is "
            "room for"
        )
    if spec.algorithm.name not in END_BY_THEMSELVES or spec.budget.trials is not None:
        return
    points = grid_points(spec.space)
    if points is not None and points > MAX_ROWS:
        shown = f"{points:,}" if points < 10**15 else f"{Decimal(points):.0e}"
        yield document.marks.locate(
            f"spec.algorithm.name: the grid has {shown} points, and all of them would be tried; "
            "set spec.budget.trials, give the parameters fewer points, or use another algorithm"
        )


def guess(spec: ExperimentSpec) -> Iterator[str]:
    """Yield what a search may use of its GPU-hours and money before a trial has run."""
    count = most_trials(spec)
    if not spec.is_metered or count is None:
        return
    rate, trials = attempt_rate(spec, spec.trial), quantity(count, "trial")
    timeout_s = spec.trial.timeout_s
    each = "an hour" if timeout_s is None else f"its timeout of {duration(timeout_s)}"
    total = rate.times(count * (timeout_s or HOUR_S) / HOUR_S)
    amounts = []
    if spec.budget.gpu_hours is not None:
        amounts.append(f"{amount(total.gpu_hours)} of {spec.budget.gpu_hours:g} GPU-hours")
    if spec.prices:
        amounts.append(f"cost {amount(total.cost)}{of_limit(spec.budget.cost)}")
    yield f"a guess before the first trial: {' and '.join(amounts)} if each of {trials} runs {each}"


def not_installed(document: Document) -> Iterator[str]:
    """Yield a warning if this machine lacks a package that the algorithm needs to search."""
    if message := admin.not_installed(document.spec.algorithm):
        yield document.marks.locate(f"spec.algorithm.name: {message}")


def notices(document: Document) -> Iterator[str]:
    """Yield notices for the start: warnings, and limits that the runtime does not enforce."""
    for warning in warnings(document):
        yield f"warning: {warning}"
    trial = document.spec.trial
    is_set = {"image": trial.image, "memory": trial.resources.memory_bytes}
    ignored = [key for key in traits_of(document.spec.runtime).ignores if is_set[key]]
    if ignored:
        yield f"note: {' and '.join(ignored)}: not enforced when trials run on this machine"
