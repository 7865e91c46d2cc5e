"""Take experiments over from a real Katib while they run, and give them back.

Katib's controller acts on every Experiment of its kind, and knows no annotation of ours, so a
search that is taken over goes on as an Experiment of Tuner's with the same name. What keeps Katib
from acting on its own is a condition Failed, with a reason of ours, in its status: Katib begins no
trial of an Experiment that has ended, and lets the Trials that run end. The order keeps the two
controllers apart: Tuner's Experiment is accepted while it is suspended, then Katib stops and says
that it has, and only then the other one begins. Each step may be repeated after a kill.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

from controller.app import cluster_changes
from controller.app.cluster_changes import Resource
from controller.app.experiment_file import config_map_data
from controller.app.katib_trials import KatibTrials, is_true, trials_of_katib
from controller.core.model import ExperimentSpec
from controller.kube.client import NAMESPACES, Kind, KubernetesClient
from controller.kube.custom_resource import (
    FROM_KATIB,
    KATIB_EXPERIMENTS,
    KATIB_SUGGESTIONS,
    KATIB_TRIALS,
)
from controller.kube.errors import ApiConflict, ApiError, ApiForbidden, ApiNotFound, line_of_role
from controller.kube.objects import Raw
from controller.phrases import quantity
from controller.report.formatting import timestamp
from controller.spec import Document, file_text, read, written
from controller.spec.problems import SpecErrors
from suggest.errors import (
    FailedPrecondition,
    NotFound,
    PermissionDenied,
    TunerError,
    Unavailable,
)
from suggest.server import admin

# The reason of the condition Failed of an Experiment that Tuner has taken over.
TAKEN_OVER = "TakenOverByTuner"
_OURS = "tuner"  # the key of a status that Tuner's own controller has written
# What a search of these has learned is not in its trials' parameters.
_NOT_CARRIED = {
    "darts": "a trial of darts is a whole search",
    "enas": "its networks are not read back from the trials",
    "hyperband": "how far each trial ran is not read back from the trials",
    "pbt": "its checkpoints belong to Katib's volume",
}
_TRIES = 10
_POLL_S = 0.25
_NOTICED_S = 15.0  # Katib's controller has a second for it when it is busy
_UNCOUNTED_S = 3.0  # the same for an Experiment without Trials, for which it gives no sign


@dataclass(frozen=True, slots=True)
class Found:
    """An Experiment of Katib's, its Trials, and Tuner's Experiment that goes on with it, if any.

    blocked: why it cannot be taken over; "" if it can.
    """

    experiment: Raw
    trials: KatibTrials
    ours: Resource | None = None
    document: Document | None = None
    blocked: str = ""

    @property
    def namespace(self) -> str:
        return str(self.experiment["metadata"]["namespace"])

    @property
    def name(self) -> str:
        return str(self.experiment["metadata"]["name"])

    @property
    def uid(self) -> str:
        return str(self.experiment["metadata"]["uid"])

    @property
    def is_stopped(self) -> bool:
        """Return whether Katib has been kept from acting on it."""
        return _is_stopped(self.experiment)

    @property
    def has_ended(self) -> bool:
        return _is_over(self.experiment)

    @property
    def is_taken_over(self) -> bool:
        ours = self.ours
        return self.is_stopped and ours is not None and not ours["spec"].get("suspend")

    @property
    def is_ready(self) -> bool:
        """Return whether it can be taken over, as far as its objects say."""
        return self.document is not None

    @property
    def left(self) -> int | None:
        """Return how many trials of its budget Katib has not begun; None without a limit."""
        limit = self.experiment["spec"].get("maxTrialCount")
        return None if limit is None else max(int(limit) - self.trials.begun, 0)

    @property
    def state(self) -> str:
        if self.is_taken_over:
            return "taken over"
        if self.has_ended:
            return "succeeded" if is_true(self.experiment, "Succeeded") else "failed"
        return "refused" if self.blocked else "to take over"


def _conditions(resource: Raw) -> Sequence[Mapping[str, Any]]:
    return (resource.get("status") or {}).get("conditions") or ()


def _is_stopped(experiment: Raw) -> bool:
    return any(
        each.get("type") == "Failed" and each.get("reason") == TAKEN_OVER
        for each in _conditions(experiment)
    )


def _is_over(experiment: Raw) -> bool:
    """Return whether Katib itself has ended it."""
    has_ended = is_true(experiment, "Succeeded") or is_true(experiment, "Failed")
    return has_ended and not _is_stopped(experiment)


# Look


async def look(
    client: KubernetesClient, namespace: str | None, names: Sequence[str], *, ended: bool
) -> list[Found]:
    """Return the Experiments that Katib runs, with `ended` has run as well, or those of names.

    namespace: None means all that the person may read.
    Raises NotFound, PermissionDenied.
    """
    found = []
    for experiment in await _experiments(client, namespace):
        about = experiment["metadata"]
        is_wanted = about["name"] in names if names else ended or not _is_over(experiment)
        is_ours = _OURS in (experiment.get("status") or {})
        if is_wanted and not is_ours and "deletionTimestamp" not in about:
            found.append(await _found(client, experiment))
    lacking = sorted({*names} - {each.name for each in found})
    if lacking:
        raise NotFound(f"Katib runs no experiment {lacking[0]} in {namespace}")
    return found


async def _experiments(client: KubernetesClient, namespace: str | None) -> list[Raw]:
    try:
        return (await client.list(KATIB_EXPERIMENTS, namespace))[0]
    except ApiError as error:
        if not isinstance(error, ApiForbidden) or namespace is not None:
            raise _explained(error, KATIB_EXPERIMENTS, "list") from error
        refused = error
    experiments: list[Raw] = []
    try:
        namespaces, _ = await client.list(NAMESPACES, None)
    except ApiError as error:
        raise PermissionDenied(f"{refused}; name a namespace with -n") from error
    for each in namespaces:
        with contextlib.suppress(ApiForbidden):
            experiments += (await client.list(KATIB_EXPERIMENTS, each["metadata"]["name"]))[0]
    return experiments


async def _found(client: KubernetesClient, experiment: Raw) -> Found:
    about = experiment["metadata"]
    namespace, name = about["namespace"], about["name"]
    trials = await _trials(client, experiment)
    ours = await cluster_changes.found(client, namespace, name)
    is_from_it = ours is not None and _came_from(ours) == about["uid"]
    found = Found(experiment, trials, ours if is_from_it else None)
    if found.has_ended or found.is_taken_over:
        return found
    document: Document | None = None
    try:
        if ours is not None and not is_from_it:
            raise FailedPrecondition(
                f"{namespace} has an experiments.tuner.dev {name} already; delete it first"
            )
        document = _document(found, client.context)
    except (FailedPrecondition, SpecErrors) as error:
        return Found(experiment, trials, found.ours, blocked=str(error))
    return Found(experiment, trials, found.ours, document)


async def _trials(client: KubernetesClient, experiment: Raw) -> KatibTrials:
    about = experiment["metadata"]
    try:
        return await trials_of_katib(client, about["namespace"], about["name"], about["uid"])
    except ApiError as error:
        raise _explained(error, KATIB_TRIALS, "list") from error


def _came_from(ours: Resource) -> str:
    return str((ours["metadata"].get("annotations") or {}).get(FROM_KATIB, ""))


def _document(found: Found, context: str) -> Document:
    """Return the experiment that goes on with what is left of Katib's budget.

    Raises SpecErrors, FailedPrecondition.
    """
    spec, about = found.experiment["spec"], found.experiment["metadata"]
    algorithm = str((spec.get("algorithm") or {}).get("algorithmName", ""))
    if algorithm in _NOT_CARRIED:
        raise FailedPrecondition(
            f"spec.algorithm.algorithmName: {algorithm} cannot be taken over, because "
            f"{_NOT_CARRIED[algorithm]}; let it end"
        )
    if found.left == 0:
        raise FailedPrecondition(
            f"spec.maxTrialCount: Katib has begun all {spec['maxTrialCount']} trials; let it end"
        )
    whole = cluster_changes.file_of(KATIB_EXPERIMENTS, about["name"], about, spec)
    source = f"experiments.kubeflow.org {found.namespace}/{found.name}"
    document = read(
        json.dumps(whole),
        source=source,
        is_file=False,
        service=lambda study: admin.check(study, runs_here=False),
        config_map_of=lambda namespace, name: config_map_data(namespace, name, context),
    )
    overrides = _rest_of_budget(document.spec, found.trials)
    rest: Any = written(file_text(document.spec.document), source, overrides)
    return read(file_text(rest), source=source, is_file=False)


def _rest_of_budget(spec: ExperimentSpec, trials: KatibTrials) -> list[str]:
    """Return the `--set` of what Katib has not used. What still runs there counts as used."""
    budget = spec.budget
    rest: list[str] = []
    if budget.trials is not None:
        rest.append(f"spec.budget.trials={budget.trials - trials.begun}")
    if budget.failed_trials is not None:
        rest.append(f"spec.budget.failedTrials={max(budget.failed_trials - trials.failed, 1)}")
    return rest


# Take over


async def take_over(client: KubernetesClient, found: Found) -> Found:
    """Let Tuner go on with an experiment in Katib's place, and return it as it is then.

    Raises:
        InvalidArgument, Changed: Tuner's controller refuses it, and Katib still runs it.
        FailedPrecondition: It has ended, or begun its last trials, meanwhile.
        Unavailable: One of the controllers does not answer, and Katib still runs it.
        PermissionDenied: A right is missing.
    """
    await _apply(client, found, is_suspended=True)
    try:
        ours = await cluster_changes.get(client, found.namespace, found.name)
        await cluster_changes.accepted(client, ours)
        await _stop(client, found)
        found = await _found(client, await _experiment(client, found))
        if found.is_taken_over:  # by another command at the same time
            return found
        if found.blocked:
            raise FailedPrecondition(found.blocked)
        if found.is_stopped:
            await _apply(client, found, is_suspended=False)
            found = await _found(client, await _experiment(client, found))
        if not found.is_stopped:
            raise FailedPrecondition(f"{found.name} was given back meanwhile by another command")
    except (TunerError, ApiError):
        if not await _is_taken_over(client, found):  # by another command, which goes on with it
            await give_back(client, found)
        raise
    return found


async def _is_taken_over(client: KubernetesClient, found: Found) -> bool:
    with contextlib.suppress(TunerError, ApiError):
        return (await _found(client, await _experiment(client, found))).is_taken_over
    return False


async def _apply(client: KubernetesClient, found: Found, *, is_suspended: bool) -> None:
    assert found.document is not None, "what is blocked is not taken over"
    await cluster_changes.apply(
        client,
        found.document,
        (),
        None,
        annotations={FROM_KATIB: found.uid},
        is_suspended=is_suspended,
        dry_run=False,
    )


async def checked(client: KubernetesClient, found: Found) -> Found:
    """Return it with why the cluster does not accept Tuner's experiment. Changes nothing."""
    assert found.document is not None, "what is blocked is not taken over"
    try:
        await cluster_changes.apply(client, found.document, (), None, dry_run=True)
    except TunerError as error:
        return replace(found, document=None, blocked=str(error))
    return found


async def _experiment(client: KubernetesClient, found: Found) -> Raw:
    """Return Katib's Experiment as it is now. Raises NotFound."""
    try:
        experiment = await client.get(KATIB_EXPERIMENTS, found.namespace, found.name)
    except ApiError as error:
        raise _explained(error, KATIB_EXPERIMENTS, "get") from error
    if experiment["metadata"]["uid"] != found.uid:
        raise NotFound(f"{found.name} was deleted meanwhile, and created again")
    return experiment


async def _stop(client: KubernetesClient, found: Found) -> None:
    """Keep Katib from beginning trials, and return when its controller has noticed.

    A wrong count is the question: Katib counts the Trials of an Experiment that has ended as long
    as some of them run, and corrects it. Its controller looks at one Experiment at a time, so what
    it does after that is done with the condition known.
    """
    asked = 0

    def stopped(experiment: Raw) -> Raw | None:
        nonlocal asked
        if _is_over(experiment):
            raise FailedPrecondition(f"{found.name} has ended meanwhile: nothing was taken over")
        fields: Raw = {}
        if not _is_stopped(experiment):
            now = timestamp(datetime.now(UTC))
            fields["conditions"] = [*_stopped(experiment, now)]
        if found.trials.begun:
            asked = 1 + int(experiment["status"].get("trialsRunning") or 0)
            fields["trialsRunning"] = asked
        return fields or None

    await _edit_status(client, KATIB_EXPERIMENTS, found, stopped)
    if not found.trials.begun:
        await asyncio.sleep(_UNCOUNTED_S)
    deadline_s = time.monotonic() + _NOTICED_S
    while asked and time.monotonic() < deadline_s:
        experiment = await _experiment(client, found)
        if int(experiment["status"].get("trialsRunning") or 0) != asked:
            return
        await asyncio.sleep(_POLL_S)
    if not asked:
        return
    running = len(found.trials.running)
    if running:
        raise Unavailable(
            f"Katib's controller has not noticed within {_NOTICED_S:g} s that {found.name} is "
            f"taken over; without it, {quantity(running, 'running Trial')} would never end: start "
            "it, and try again"
        )
    await _edit_status(client, KATIB_EXPERIMENTS, found, lambda _: {"trialsRunning": 0})


def _stopped(experiment: Raw, now: str) -> Iterator[Mapping[str, Any]]:
    for each in _conditions(experiment):
        if each.get("type") != "Running":
            yield each
    about = experiment["metadata"]
    times = {"lastUpdateTime": now, "lastTransitionTime": now}
    ended = {"reason": "ExperimentRunning", "message": "Experiment is running"}
    yield {"type": "Running", "status": "False", **ended, **times}
    message = (
        f"Tuner goes on with this search as experiments.tuner.dev {about['name']}; the Trials that "
        f"run are left to end. Give it back: tuner migrate katib {about['name']} --undo --yes"
    )
    yield {"type": "Failed", "status": "True", "reason": TAKEN_OVER, "message": message, **times}


# Undo


async def give_back(client: KubernetesClient, found: Found) -> None:
    """Delete Tuner's experiment, and then let Katib go on as it did. Idempotent.

    Its study is kept in the controller's store.
    """
    ours = await cluster_changes.found(client, found.namespace, found.name)
    if ours is not None and _came_from(ours) == found.uid:
        await cluster_changes.delete(client, found.namespace, found.name, keep_study=True)
    await _edit_status(client, KATIB_EXPERIMENTS, found, partial(_restored, found))
    now = Found(await _experiment(client, found), found.trials)
    if not now.has_ended:
        # After that, or Katib's controller would end it again.
        await _edit_status(client, KATIB_SUGGESTIONS, found, _suggesting)


def _restored(found: Found, experiment: Raw) -> Raw | None:
    if not Found(experiment, found.trials).is_stopped:
        return None
    kept = [each for each in _conditions(experiment) if each["type"] not in ("Failed", "Running")]
    now = timestamp(datetime.now(UTC))
    runs = {
        "type": "Running",
        "status": "True",
        "reason": "ExperimentRunning",
        "message": "Experiment is running",
        "lastUpdateTime": now,
        "lastTransitionTime": now,
    }
    return {"conditions": [*kept, runs], "trialsRunning": len(found.trials.running)}


def _suggesting(suggestion: Raw) -> Raw | None:
    """Let the service of suggestions start again, which Katib ends with an Experiment."""
    if not is_true(suggestion, "Succeeded"):
        return None
    dropped = ("Succeeded", "Running", "DeploymentReady")
    return {"conditions": [each for each in _conditions(suggestion) if each["type"] not in dropped]}


async def _edit_status(
    client: KubernetesClient, kind: Kind, found: Found, change: Callable[[Raw], Raw | None]
) -> None:
    """Write the fields of the status that `change` returns for the present object; None: none."""
    for _ in range(_TRIES):
        try:
            resource = await client.get(kind, found.namespace, found.name)
            fields = change(resource)
            if fields is None:
                return
            version = {"resourceVersion": resource["metadata"]["resourceVersion"]}
            body = {"metadata": version, "status": fields}
            await client.patch(kind, found.namespace, found.name, body, subresource="status")
        except ApiError as error:
            # Katib's Suggestion may not exist yet.
            if isinstance(error, ApiNotFound) and kind is KATIB_SUGGESTIONS:
                return
            if not isinstance(error, ApiConflict):
                raise _explained(error, kind, "patch", "status") from error
        else:
            return
    raise FailedPrecondition(f"{found.name} changes all the time; try again")


def _explained(error: ApiError, kind: Kind, verb: str, subresource: str = "") -> Exception:
    """Return what an error of the API server means to a person."""
    if isinstance(error, ApiForbidden) and error.refusal is not None:
        of = f"{kind.plural}/{subresource}" if subresource else kind.plural
        line = line_of_role(kind.api_version.partition("/")[0], of, [verb])
        return PermissionDenied(f"{error}; to take an experiment over, a Role must have: {line}")
    if isinstance(error, ApiNotFound):
        return NotFound(f"the cluster has no {kind.plural}.kubeflow.org: {error}")
    return error
