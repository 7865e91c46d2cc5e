"""Rebuild an experiment whose database is lost from its objects on a cluster.

Each trial whose Job still exists keeps its number and is adopted, as
after any restart. Trials that ended and were removed before are lost.
They are cancelled in the new study, so that no number is used twice.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from controller.app.experiment_service import Admitted, ExperimentService
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.core.model import Attempt, AttemptState, Experiment, FailureClass
from controller.experiment_store import Changes
from controller.phrases import command
from controller.runtime.provider import RecoveredExperiment
from controller.search import study_name, study_spec
from controller.spec import Document, from_document
from controller.spec.problems import Marks
from suggest.errors import AlreadyExists, FailedPrecondition, InvalidArgument
from suggest.space import Assignment
from suggest.trial import Outcome, TrialState

_BATCH = 100


async def rebuild(
    recovered: RecoveredExperiment,
    *,
    experiments: LocalExperiments,
    client: SessionClient,
    service: str,
    directory: Path,
) -> Admitted:
    """Rebuild the experiment, its study and attempts, as a killed controller would leave them.

    Raises AlreadyExists if the database still has the experiment.
    """
    spec = from_document(recovered.document)
    source = f"the cluster of context {recovered.context}"
    document = Document(
        source, json.dumps(dict(recovered.document)), spec, (), Marks({}, {}), is_native=True
    )
    if experiments.experiment(spec.namespace, spec.name) is not None:
        raise AlreadyExists(
            f"the database has {spec.name} in {spec.namespace}: nothing is lost; continue with: "
            f"{command('resume', spec.name)}"
        )
    to = ExperimentService(experiments)
    reserved = to.reserve(spec.name, uid=recovered.uid)
    admitted = to.create(document, directory, reserved, service=service, context=recovered.context)
    try:
        await _refill(admitted.experiment, recovered, client)
        experiments.save(recovered.uid, Changes(attempts=_attempts(recovered)))
    except BaseException:
        # the cluster still has everything, so a new try can start over
        experiments.delete_experiment(recovered.uid)
        raise
    return admitted


async def _refill(
    experiment: Experiment, recovered: RecoveredExperiment, client: SessionClient
) -> None:
    uid, name = experiment.uid, study_name(experiment)
    # What was learned from other searches is lost with the database, as most likely they are.
    spec = replace(study_spec(experiment.spec), learn_from=())
    await client.create_study(name, spec, request_id=uid)
    initial = len(experiment.spec.initial)
    for number in range(max(recovered.trials, default=-1) + 1):
        recovered_trial = recovered.trials.get(number)
        # Initial points get the request ids that the experiment itself uses,
        # so that they are not added twice.
        request_id = f"{uid}-initial-{number}" if number < initial else f"{uid}-recovered-{number}"
        point: Assignment = experiment.spec.initial[number] if number < initial else {}
        if recovered_trial is not None:
            point = recovered_trial[0]
        try:
            await client.add_trial(name, point, request_id=request_id)
        except InvalidArgument as error:
            raise FailedPrecondition(
                f"trial {number} has values that the file on the cluster does not know ({error}): "
                f"{experiment.name} was extended since, and the extension is lost with the "
                f"database; "
                "restore controller.db and studies.db from a backup"
            ) from error
        if recovered_trial is None:
            lost = Outcome(TrialState.CANCELLED, reason="lost with the database")
            await client.complete(name, number, lost)
    remaining = len(recovered.trials)
    while remaining:
        count = min(remaining, _BATCH)
        await client.suggest(
            name, count, client_id=uid, request_id=f"{uid}-recovered-batch-{remaining}"
        )
        remaining -= count


def _attempts(recovered: RecoveredExperiment) -> list[Attempt]:
    """Return the newest attempt of each trial as recorded.

    How earlier attempts ended is lost with the database.
    """
    now = datetime.now(UTC)
    recorded = []
    for number, (_, attempts) in sorted(recovered.trials.items()):
        newest = max(attempts)
        for attempt_number in range(1, newest):
            lost = Attempt(
                number,
                attempt_number,
                AttemptState.FAILED,
                end_time=now,
                failure_class=FailureClass.INFRASTRUCTURE,
                reason="how it ended was lost with the database",
            )
            recorded.append(lost)
        recorded.append(Attempt(number, newest))
    return recorded
