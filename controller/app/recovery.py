"""Rebuild an experiment whose database is lost from its objects on a cluster.

Each trial whose Job still exists keeps its number and is adopted, as after any restart. Trials that
ended and were removed before are lost. They are cancelled in the new study, so that no number is
used twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import cast

from controller.app.experiment_service import Admitted, ExperimentService
from controller.app.local_experiments import LocalExperiments
from controller.app.suggestion_service import SessionClient
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Experiment,
    ExperimentSpec,
    FailureClass,
)
from controller.experiment_store import Changes
from controller.kube.client import CONFIG_MAPS, JOBS, Kind, KubernetesClient
from controller.kube.objects import Raw
from controller.phrases import command
from controller.runtime.kubernetes.kinds import kind_of
from controller.runtime.kubernetes.labels import EXPERIMENT, MANAGED_BY, PARAMETERS, UID, attempt_of
from controller.runtime.kubernetes.lease import end_on_cluster, wait_until_free
from controller.search import study_name, study_spec
from controller.spec import Document, from_document
from controller.spec.problems import Marks
from suggest.errors import AlreadyExists, FailedPrecondition, InvalidArgument, NotFound
from suggest.nesting import load_json
from suggest.space import Assignment
from suggest.trial import Outcome, TrialState

_BATCH = 100


@dataclass(frozen=True, slots=True)
class RecoveredExperiment:
    """What a cluster still has of an experiment.

    `trials` has the parameters and attempt numbers of each trial.
    """

    uid: str
    context: str
    document: Document
    trials: dict[int, tuple[Assignment, list[int]]]

    @property
    def lost(self) -> list[int]:
        return [
            number
            for number in range(max(self.trials, default=-1) + 1)
            if number not in self.trials
        ]


async def look(
    name: str,
    *,
    context: str | None,
    namespace: str | None,
    print_line: Callable[[str], None] = lambda _text: None,
) -> RecoveredExperiment:
    """Find what a cluster still has of an experiment.

    Raises:
        NotFound: The cluster has no such experiment.
        FailedPrecondition: There are several of that name, a controller still runs it, or it has
        ended.
    """
    async with await KubernetesClient.connect(context) as client:
        searched = namespace or client.default_namespace
        labels = f"{EXPERIMENT}={name},{MANAGED_BY}=tuner"
        anchors, _ = await client.list(CONFIG_MAPS, searched, labels=labels)
        if len(anchors) > 1:
            anchors = [
                each for each in anchors if not await end_on_cluster(client, searched, each)
            ] or anchors
        anchor = _only(anchors, name, searched)
        await wait_until_free(client, searched, anchor["metadata"]["name"], print_line=print_line)
        if ending := await end_on_cluster(client, searched, anchor):
            raise FailedPrecondition(
                f"{ending}. Its trials and their results are there. To run it again, choose "
                f"another metadata.name; to "
                f"delete what the cluster keeps of it: kubectl -n {searched} delete configmap "
                f"{anchor['metadata']['name']}"
            )
        uid = anchor["metadata"]["labels"][UID]
        text = anchor["data"]["experiment"]
        spec = from_document(load_json(text))
        objects, _ = await client.list(await _kind(client, spec), searched, labels=f"{UID}={uid}")
        _refuse_ended(objects, name, anchor["metadata"]["name"], searched)
        document = Document(
            f"the cluster of context {client.context}", text, spec, (), Marks({}, {})
        )
        return RecoveredExperiment(uid, client.context, document, _trials(objects))


def _only(anchors: Sequence[Raw], name: str, namespace: str) -> Raw:
    if not anchors:
        raise NotFound(
            f"namespace {namespace} has no objects of an experiment {name}; "
            f"see kubectl -n {namespace} get configmaps -l {MANAGED_BY}=tuner"
        )
    if len(anchors) > 1:
        names = ", ".join(anchor["metadata"]["name"] for anchor in anchors)
        raise FailedPrecondition(
            f"namespace {namespace} has several experiments {name} ({names}); delete the "
            f"ConfigMap of those that ended"
        )
    return anchors[0]


async def _kind(client: KubernetesClient, spec: ExperimentSpec) -> Kind:
    """Return the kind of object that the experiment's attempts are."""
    match spec.trial.cluster.get("template"):
        case {"apiVersion": str(), "kind": str()} as template:
            return await kind_of(client, cast(Raw, template))
    return JOBS


def _refuse_ended(objects: Sequence[Raw], name: str, anchor: str, namespace: str) -> None:
    """Raise FailedPrecondition if the final stage runs: the search has ended, and the values of its
    trials are lost.
    """
    for obj in objects:
        key = attempt_of(obj)
        if key is not None and key[0] is FINAL:
            running = obj["metadata"]["name"]
            raise FailedPrecondition(
                f"the search of {name} has ended, and {running} is its final stage: its trials' "
                f"outcomes are lost with "
                f"the database, so it cannot be resumed. The Job keeps running: kubectl -n "
                f"{namespace} logs -f "
                f"job/{running}. To start over, delete all its objects: kubectl -n {namespace} "
                f"delete configmap "
                f"{anchor}"
            )


def _trials(objects: Sequence[Raw]) -> dict[int, tuple[Assignment, list[int]]]:
    by_number: dict[int, tuple[Assignment, list[int]]] = {}
    for obj in objects:
        key = attempt_of(obj)
        annotation = obj["metadata"].get("annotations", {}).get(PARAMETERS)
        if key is None or annotation is None:
            continue
        trial, attempt = key
        if trial is not FINAL:
            _, attempts = by_number.setdefault(trial, (load_json(annotation), []))
            attempts.append(attempt)
    return by_number


async def rebuild(
    recovered: RecoveredExperiment,
    *,
    experiments: LocalExperiments,
    client: SessionClient,
    service: str,
    directory: Path,
) -> Admitted:
    """Rebuild the experiment with its study and attempts, as a killed controller would have left
    them.

    Raises AlreadyExists if the database still has the experiment.
    """
    spec = recovered.document.spec
    if experiments.experiment(spec.namespace, spec.name) is not None:
        raise AlreadyExists(
            f"the database has {spec.name} in {spec.namespace}: nothing is lost; continue with: "
            f"{command('resume', spec.name)}"
        )
    to = ExperimentService(experiments)
    reserved = to.reserve(spec.name, uid=recovered.uid)
    admitted = to.create(
        recovered.document, directory, reserved, service=service, context=recovered.context
    )
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
    await client.create_study(name, study_spec(experiment.spec), request_id=uid)
    initial = len(experiment.spec.initial)
    for number in range(max(recovered.trials, default=-1) + 1):
        recovered_trial = recovered.trials.get(number)
        # Initial points get the request ids that the experiment itself uses, so that they are not
        # added twice.
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
    """Return the newest attempt of each trial as recorded; how earlier attempts ended is lost with
    the database.
    """
    lost = "how it ended was lost with the database"
    now = datetime.now(UTC)
    return [
        Attempt(number, attempt_number)
        if attempt_number == max(attempts)
        else Attempt(
            number,
            attempt_number,
            AttemptState.FAILED,
            end_time=now,
            failure_class=FailureClass.INFRASTRUCTURE,
            reason=lost,
        )
        for number, (_, attempts) in sorted(recovered.trials.items())
        for attempt_number in range(1, max(attempts) + 1)
    ]
