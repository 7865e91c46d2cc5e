"""Enqueue a point: a person's own parameters, which the search tries next."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from controller.app.csv_source import read_value
from controller.core.model import Experiment
from controller.phrases import command
from controller.search import study_name
from suggest.client import AsyncClient, StudyName
from suggest.errors import FailedPrecondition, InvalidArgument, Problem
from suggest.space import Parameter, Value
from suggest.trial import Trial


async def enqueue(client: AsyncClient, experiment: Experiment, texts: Mapping[str, str]) -> Trial:
    """Enqueue a point of an experiment, given as texts by parameter.

    It counts in the budget like any other trial.

    Raises InvalidArgument, and FailedPrecondition if the experiment has ended.
    """
    if experiment.state.finished:
        raise FailedPrecondition(
            f"{experiment.name} has ended; add trials first: "
            f"{command('extend', experiment.name, '--trials', '+1')}"
        )
    return await enqueue_in_study(
        client, study_name(experiment), experiment.spec.space.parameters, texts
    )


async def enqueue_in_study(
    client: AsyncClient, study: StudyName, parameters: Sequence[Parameter], texts: Mapping[str, str]
) -> Trial:
    """Enqueue a point of a study.

    Parameters with an empty text are left to the search. Raises InvalidArgument.
    """
    by_name = {parameter.name: parameter for parameter in parameters}
    point: dict[str, Value] = {}
    problems = [Problem(name, "unknown parameter") for name in texts if name not in by_name]
    for name, text in texts.items():
        if name in by_name and text.strip():
            try:
                point[name] = read_value(by_name[name], text.strip())
            except ValueError as error:
                problems.append(Problem("", str(error)))
    if not point and not problems:
        problems.append(Problem("", "a point needs a value for at least one parameter"))
    if problems:
        raise InvalidArgument(problems)
    return await client.add_trial(study, point, request_id=f"enqueued-{uuid.uuid4().hex}")
