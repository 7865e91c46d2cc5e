"""Katib's Experiment, Trial and Suggestion as other forms of the same experiments.

An Experiment runs as Katib's file does. Trials and the Suggestion only show it to Katib's clients:
nothing is read from them but what an earlier controller has written. Tuner's own status is below
`status.tuner`, where it has the same form as in a resource of Tuner's.
"""

from __future__ import annotations

import enum
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, cast

from controller.core.attempt import ObjectRecord
from controller.core.model import (
    FINAL,
    KATIB_EXPERIMENT_LABEL,
    KATIB_SUFFIX,
    Attempt,
    AttemptKey,
    Experiment,
    Uid,
    attempt_name,
    by_trial,
    trial_name,
    uid_of_resource,
)
from controller.kube.client import CLAIMS, Kind, KubernetesClient
from controller.kube.custom_resource import (
    KATIB_EXPERIMENTS,
    KATIB_SUGGESTIONS,
    KATIB_TRIALS,
    OWN_STATUS,
)
from controller.kube.errors import ApiConflict, ApiError, ApiNotFound, NotServed
from controller.kube.objects import AnyObject, KubernetesObject, ObjectMeta, Raw
from controller.operator import events
from controller.operator.experiment_kind import ExperimentKind
from controller.operator.katib_defaults import with_defaults
from controller.operator.katib_status import (
    TrialClass,
    TrialsOverview,
    assignments,
    class_of,
    class_said,
    experiment_status,
    listed_unfinished,
    mapping_of,
    observation,
    observed_text,
    says_the_end,
    sound_status,
    suggestion_status,
    trial_status,
)
from controller.operator.katib_volume import claim_of
from controller.operator.resource import (
    FINALIZER,
    ExperimentResource,
    is_deleted,
    object_name,
    owner_of,
    uid_of,
)
from controller.operator.status import Observation, Status
from controller.runtime.kubernetes.kinds import kind_of
from controller.runtime.kubernetes.labels import annotation, attempt_named, owner_reference
from controller.runtime.kubernetes.launch import katib_trial_name, retains
from controller.runtime.launch import fidelity
from controller.search import study_name
from controller.spec import SUSPEND
from suggest.errors import AlreadyExists
from suggest.space import Assignment
from suggest.trial import Trial

if TYPE_CHECKING:
    from controller.app.suggestion_service import SessionClient
    from controller.operator.hosting import HostedWorkspace

# Whether Tuner runs an Experiment: "true" or "false"; otherwise it does unless Katib has begun it.
CONTROLLED = "tuner.dev/controlled"
_KATIB_FINALIZER = "update-prometheus-metrics"
_PARALLEL = "parallelTrialCount"
# In the part of the status that is Tuner's: the next leader shall try again, too.
_LACKS_OBJECTS = "lacksObjects"
# Keys of its template that a Trial has, too.
_OF_TEMPLATE = ("primaryPodLabels", "primaryContainerName", "successCondition", "failureCondition")
# By a quota, by admission, for a right or a definition that is missing.
_REFUSED = (400, 403, 404, 422)
_AGAIN_S = 30.0  # between two tries of an object that was refused
# How often an object of the same name, but another owner, is waited for, each time for longer.
_WAITS = 5


class KatibSelection(enum.Enum):
    """Which Experiments are run, of those that do not say so by CONTROLLED."""

    ALL = "all"  # unless Katib has begun them
    ANNOTATED = "annotated"  # none


@dataclass(slots=True)
class _Written:
    """What the clients of one experiment have been shown.

    stem: the common prefix of the names of its Trials.
    trials: by number, the class that its Trial says, and the name and the status of the object.
    deleted: the numbers of trials whose Trials somebody has deleted since.
    restored: those that were in `deleted` before.
    doubtful: trials whose Trials said another class when they were last changed.
    optimal: `currentOptimalTrial` of the best trial, by its number.
    first_open: trials with lower numbers have ended, and are shown so.
    basis: what the last result was made from; it holds as long as that is the same, and until
    again_s, when an object that was refused is tried again.
    taken: how often an object could not be created because another one has its name.
    lacks_claim: the claim, if the experiment has one, is not known to be there.
    """

    stem: str
    trials: dict[int, TrialClass] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    statuses: dict[int, Raw] = field(default_factory=dict)
    uids: dict[int, str] = field(default_factory=dict)
    deleted: set[int] = field(default_factory=set)
    restored: set[int] = field(default_factory=set)
    doubtful: dict[int, TrialClass | None] = field(default_factory=dict)
    optimal: dict[int, Raw] = field(default_factory=dict)
    first_open: int = 0
    basis: object = None
    again_s: float = math.inf
    taken: int = 0
    lacks_claim: bool = True
    suggestion: Raw | None = None
    result: TrialsOverview = field(default_factory=lambda: TrialsOverview({}, {}))

    @property
    def is_behind(self) -> bool:
        """Whether the last try has failed, which leaves no basis, or an object was refused."""
        return self.basis is None or self.again_s < math.inf


class KatibExperiments(ExperimentKind):
    """Katib's kind, for one leader."""

    kind = KATIB_EXPERIMENTS
    suffix = KATIB_SUFFIX

    def __init__(self, selection: KatibSelection) -> None:
        self._takes_all = selection is KatibSelection.ALL
        self._shown: dict[Uid, _Written] = {}
        # Experiments that were behind when the record of what was shown was forgotten.
        self._behind: set[Uid] = set()

    def seen(self, found: KubernetesObject) -> ExperimentResource | None:
        given = cast(ExperimentResource, found)
        about, spec = given["metadata"], mapping_of(given.get("spec"))
        whole = sound_status(mapping_of(given.get("status")))
        if not self._takes(given, whole):
            if FINALIZER not in (about.get("finalizers") or ()):
                return None
            # Tuner has run it so far: what runs ends first.
            spec = {**spec, SUSPEND: True}
        if spec.get(_PARALLEL) == 0:
            # Katib's clients have no other way to suspend an experiment.
            spec = {**spec, _PARALLEL: 1, **_parallel_in_force(whole), SUSPEND: True}
        return {
            "apiVersion": KATIB_EXPERIMENTS.api_version,
            "kind": KATIB_EXPERIMENTS.kind,
            "metadata": cast(ObjectMeta, {**about, "name": f"{about['name']}{KATIB_SUFFIX}"}),
            "spec": spec,
            "status": whole.get(OWN_STATUS) or {},
            "whole": whole,
        }

    def _takes(self, resource: ExperimentResource, whole: Raw) -> bool:
        """Return whether Tuner runs the experiment: two controllers never do."""
        decided = annotation(resource, CONTROLLED)
        if decided is not None:
            return decided.lower() == "true"
        finalizers = resource["metadata"].get("finalizers") or ()
        if OWN_STATUS in whole or FINALIZER in finalizers:
            return True
        begun_by_katib = _KATIB_FINALIZER in finalizers
        return self._takes_all and not begun_by_katib and not whole.get("conditions")

    def defaults(self, resource: ExperimentResource) -> Raw:
        spec = {key: value for key, value in resource["spec"].items() if key != SUSPEND}
        if not spec:
            return {}
        complete = with_defaults({**_parallel_in_force(resource["whole"]), **spec})
        return {key: value for key, value in complete.items() if spec.get(key) != value}

    def whole(self, resource: ExperimentResource, status: Status) -> Raw:
        return {**resource["whole"], OWN_STATUS: dict(status)}

    async def shown(
        self,
        client: KubernetesClient,
        workspace: HostedWorkspace,
        resource: ExperimentResource,
        seen: Observation,
        status: Status,
    ) -> Raw:
        now, whole = datetime.now(UTC), resource["whole"]
        trials = TrialsOverview({}, {})
        experiment = seen.experiment
        if is_deleted(resource):
            return self.whole(resource, status)
        if experiment is not None and not whole.get("conditions"):
            # The condition Created comes before the first Trial, which the next look brings.
            seen = replace(seen, experiment=None, refusal=None)
        elif experiment is not None:
            is_told = status == resource["status"] and says_the_end(whole["conditions"])
            if experiment.state.finished and is_told and not self.is_behind(resource):
                self._shown.pop(experiment.uid, None)
                return dict(whole)
            if seen.progress is None or not seen.progress.known:
                return self.whole(resource, self._own(resource, status))
            trials = await self._trials(client, workspace, resource, seen, experiment)
        own = self._own(resource, status)
        return {**experiment_status(seen, trials, whole, now), OWN_STATUS: own}

    def _own(self, resource: ExperimentResource, status: Status) -> Raw:
        return {**status, **({_LACKS_OBJECTS: True} if self.is_behind(resource) else {})}

    def is_behind(self, resource: ExperimentResource) -> bool:
        uid = uid_of(resource)
        if (shown := self._shown.get(uid)) is not None:
            return shown.is_behind
        return uid in self._behind or _LACKS_OBJECTS in resource["status"]

    def trial_deleted(self, trial: KubernetesObject) -> None:
        """Note that somebody has deleted a Trial. The experiment is looked at each second."""
        for owner in trial["metadata"].get("ownerReferences") or ():
            shown = self._shown.get(uid_of_resource(owner["uid"]))
            known = {} if shown is None else shown.uids
            numbers = [n for n, uid in known.items() if uid == trial["metadata"]["uid"]]
            if shown is not None:
                shown.deleted.update(numbers)

    def trial_changed(self, trial: KubernetesObject) -> None:
        """Note what a Trial says now: somebody may have edited its status."""
        name = trial["metadata"]["name"]
        for owner in trial["metadata"].get("ownerReferences") or ():
            shown = self._shown.get(uid_of_resource(owner["uid"]))
            if shown is None or (number := _number_in(name, shown.stem)) is None:
                continue
            said = class_said(sound_status(mapping_of(trial.get("status"))))
            if said is shown.trials.get(number):
                shown.doubtful.pop(number, None)
            else:
                shown.doubtful[number] = said

    def trials_missed(self) -> None:
        """Note that Trials may have been deleted unseen: what exists is read again."""
        self._behind |= {uid for uid, shown in self._shown.items() if shown.is_behind}
        self._shown = {}

    async def hide(self, client: KubernetesClient, resource: ExperimentResource) -> None:
        """Delete the Trials first: their clients expect that a Trial has its Job."""
        self._behind.discard(uid_of(resource))
        shown = self._shown.pop(uid_of(resource), None)
        if shown is None:
            shown = await _already_shown(client, resource)
        # A status that is being written may show another one, which goes with its owner.
        for name in list(shown.names.values()):
            with suppress(NotServed):  # they are gone with their definition
                await client.delete(KATIB_TRIALS, resource["metadata"]["namespace"], name)

    async def _trials(
        self,
        client: KubernetesClient,
        workspace: HostedWorkspace,
        resource: ExperimentResource,
        seen: Observation,
        experiment: Experiment,
    ) -> TrialsOverview:
        """Bring the Trials up to date, and return what the Experiment's status says of them."""
        known = self._shown
        shown = known.get(experiment.uid)
        if shown is None:
            shown = await _already_shown(client, resource)
            known[experiment.uid] = shown
            self._behind.discard(experiment.uid)
        progress = seen.progress
        assert progress is not None
        objects = workspace.experiments.object_records(experiment.uid).load()
        gone = progress.without_objects if retains(experiment) else frozenset()
        writer = _Writer(client, workspace, resource, experiment, shown, gone)
        if shown.deleted:
            await writer.run_again(objects)
            return shown.result
        if shown.doubtful:
            await writer.look_again()
        basis = experiment.state, progress.counts, progress.running, frozenset(objects), gone
        if basis == shown.basis and time.monotonic() < shown.again_s:
            return shown.result
        # If this fails, it is done again, even if nothing changes.
        shown.basis, shown.again_s = None, math.inf
        await writer.hide_gone()
        await writer.write(frozenset(objects), progress.best)
        await writer.write_suggestion(seen)
        shown.basis = basis
        return shown.result


def _parallel_in_force(whole: Raw) -> Raw:
    """Return `parallelTrialCount` of the experiment as it ran last; {} if it never has."""
    count = whole.get(_PARALLEL)
    return {_PARALLEL: count} if isinstance(count, int) and count > 0 else {}


async def _already_shown(client: KubernetesClient, resource: ExperimentResource) -> _Written:
    """Return what an earlier controller has written.

    A Trial that its Experiment says runs, and that is not there, was deleted while nobody watched.
    """
    namespace, name = resource["metadata"]["namespace"], object_name(resource)
    selector = f"{KATIB_EXPERIMENT_LABEL}={name}"
    try:
        found, _ = await client.list(KATIB_TRIALS, namespace, labels=selector)
    except ApiNotFound:
        found = []  # their definition is missing, which the first one to be created tells
    stem = trial_name(name, uid_of(resource), 0).removesuffix("0")
    shown = _Written(stem)
    for trial in sorted(found, key=lambda each: each["metadata"]["name"]):
        number = _number_in(trial["metadata"]["name"], stem)
        # If there are two Trials of a number, the earlier one was to be deleted.
        if number is None or number in shown.uids:
            continue
        status = sound_status(mapping_of(trial.get("status")))
        shown.uids[number] = trial["metadata"]["uid"]
        shown.names[number] = trial["metadata"]["name"]
        shown.statuses[number] = status
        if (said := class_said(status)) is not None:
            shown.trials[number] = said
    for trial_listed in listed_unfinished(resource["whole"]):
        number = _number_in(trial_listed, stem)
        if number is not None and number not in shown.uids:
            shown.deleted.add(number)
    return shown


def _number_in(name: str, stem: str) -> int | None:
    """Return the number of the trial whose Trial has this name."""
    named = attempt_named(name, stem)
    return named[0] if named is not None and isinstance(named[0], int) else None


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes the Trials and the Suggestion of one experiment.

    gone: attempts whose objects have been deleted, if clients look for the objects of Trials.
    """

    client: KubernetesClient
    workspace: HostedWorkspace
    resource: ExperimentResource
    experiment: Experiment
    shown: _Written
    gone: frozenset[AttemptKey]

    @property
    def _namespace(self) -> str:
        return self.experiment.namespace

    @property
    def _metrics(self) -> Sequence[str]:
        others = mapping_of(self.resource["spec"].get("objective")).get("additionalMetricNames")
        named = others if isinstance(others, list) else ()
        objective = self.experiment.spec.objective.metric
        return [objective, *(each for each in named if isinstance(each, str) and each != objective)]

    def _name_by(self, number: int, newest: Attempt | None) -> str:
        return katib_trial_name(self.experiment, number, 1 if newest is None else newest.number)

    def _has_object(self, newest: Attempt | None, objects: frozenset[AttemptKey]) -> bool:
        if newest is None or (newest.trial, newest.number) in self.gone:
            return False
        return newest.ended or (newest.trial, newest.number) in objects

    async def hide_gone(self) -> None:
        """Delete the Trials of the attempts in `gone`: they come back with the next attempts."""
        for trial, attempt in self.gone:
            name = katib_trial_name(self.experiment, trial, attempt)
            if trial is not FINAL and self.shown.names.get(trial) == name:
                # What is deleted here was not deleted by anybody else.
                self.shown.uids.pop(trial, None)
                await self.client.delete(KATIB_TRIALS, self._namespace, name)
                self._forget(trial)

    async def write(self, objects: frozenset[AttemptKey], best: Trial | None) -> None:
        """Write the Trials that have changed. objects: the attempts whose objects exist."""
        shown, uid = self.shown, self.experiment.uid
        study = study_name(self.experiment)
        async with self.workspace.connected("") as studies:
            trials = await studies.list_trials(study, first_number=shown.first_open)
            numbers = [trial.number for trial in trials] or [shown.first_open]
            stored = self.workspace.experiments.attempts_between(uid, numbers[0], numbers[-1])
            attempts = by_trial((attempt.trial, attempt) for attempt in stored)
            unfinished = {number for number, each in shown.trials.items() if not each.ended}
            postponed: set[int] = set()
            most = self.experiment.spec.parallelism
            # Begin with trials that are shown: their ends make room. Then finished ones.
            for trial in sorted(trials, key=lambda t: (t.number not in shown.uids, not t.finished)):
                tried = attempts.get(trial.number)
                newest = tried[-1] if tried else None
                each = class_of(trial, newest, has_object=self._has_object(newest, objects))
                name = self._name_by(trial.number, newest)
                said = shown.names.get(trial.number), shown.trials.get(trial.number)
                if each is None or said == (name, each):
                    continue
                if name != said[0] and shown.again_s < math.inf:
                    continue  # the one before was refused
                # The successor of a trial begins before the end of that one is known. To clients,
                # no more run than the experiment says, and a new Trial has no status yet.
                is_restored = each.ended and trial.number in shown.restored
                is_new = trial.number not in shown.uids and not is_restored
                if is_new and len(unfinished) >= most:
                    postponed.add(trial.number)
                    continue
                observed = await self._observed(studies, trial, newest) if each.ended else {}
                await self._write_trial(trial, newest, each, observed)
                if trial.number in shown.uids and not each.ended:
                    unfinished.add(trial.number)
                else:
                    unfinished.discard(trial.number)
            if best is not None and best.number not in shown.optimal:
                shown.optimal = {best.number: await self._optimal(studies, best)}
        for trial in trials:
            if not trial.finished or trial.number in postponed or shown.again_s < math.inf:
                break
            shown.first_open = trial.number + 1
        names: dict[TrialClass, list[str]] = {}
        for number, each in sorted(shown.trials.items()):
            names.setdefault(each, []).append(shown.names[number])
        shown.result = TrialsOverview(names, {} if best is None else shown.optimal[best.number])

    async def run_again(self, objects: Mapping[AttemptKey, ObjectRecord]) -> None:
        """Delete the objects of the trials whose Trials were deleted, as Katib's owner would.

        A trial that runs is run again, and all are shown again.
        """
        shown = self.shown
        numbers = shown.deleted
        template = self.experiment.spec.trial.cluster["template"]
        kind = await kind_of(self.client, cast(AnyObject, template))
        for (trial, attempt), record in objects.items():
            if trial in numbers:
                name = attempt_name(self.experiment.name, self.experiment.uid, trial, attempt)
                await self.client.delete(kind, self._namespace, name, uid=record.uid)
        for number in numbers:
            self._forget(number)
        shown.restored |= numbers
        shown.deleted = set()
        shown.basis = None

    def _forget(self, number: int) -> None:
        """Forget the Trial of a trial, so that it is created again when it is due."""
        shown = self.shown
        for known in (shown.uids, shown.names, shown.trials, shown.statuses):
            known.pop(number, None)
        shown.first_open = min(shown.first_open, number)

    async def look_again(self) -> None:
        """Read the Trials that said what was not written. Those that still do are written again."""
        shown = self.shown
        for number in sorted(shown.doubtful):
            said = shown.doubtful.pop(number)
            # What is told late of Tuner's own writes has been overtaken by now, as a rule.
            if number not in shown.uids or said is shown.trials.get(number):
                continue
            try:
                found = await self.client.get(KATIB_TRIALS, self._namespace, shown.names[number])
            except ApiNotFound:
                continue  # its deletion is told as well
            except ApiError:
                shown.doubtful[number] = said
                raise
            status = sound_status(mapping_of(found.get("status")))
            if class_said(status) is not shown.trials.get(number):
                shown.trials.pop(number, None)
                shown.statuses[number] = status
                shown.first_open = min(shown.first_open, number)
                shown.basis = None

    async def _observed(self, studies: SessionClient, trial: Trial, newest: Attempt | None) -> Raw:
        """Return what a trial has measured, {} without a value of the objective."""
        objective = self.experiment.spec.objective
        if objective.text:
            return observed_text(objective.metric, "" if newest is None else newest.reason)
        measured = await studies.list_measurements(study_name(self.experiment), trial.number)
        return observation(trial, [measurement for _, measurement in measured], self._metrics)

    async def _optimal(self, studies: SessionClient, best: Trial) -> Raw:
        """Return `currentOptimalTrial`, which clients expect whole; {} if it is not."""
        number = best.number
        tried = self.workspace.experiments.attempts_between(self.experiment.uid, number, number)
        newest = tried[-1] if tried else None
        observed = await self._observed(studies, best, newest)
        if not observed:
            return {}
        return {
            "bestTrialName": self._name_by(number, newest),
            "parameterAssignments": self._assignments(best, newest),
            "observation": observed,
        }

    def _assignments(self, trial: Trial, newest: Attempt | None) -> list[dict[str, str]]:
        """Return the parameters, in the order of Katib's file, with the texts of the program.

        Those of a network are two texts, and hyperband's resource is that of the latest attempt.
        """
        spec, point = self.experiment.spec, trial.parameters
        given: Assignment = {
            each.name: point[each.name] for each in spec.space.parameters if each.name in point
        }
        if spec.network is not None and not spec.space.missing(point):
            given = spec.network.texts(point)
        resource = {} if newest is None else fidelity(self.experiment, newest)
        return assignments({**given, **resource})

    async def _write_trial(
        self, trial: Trial, newest: Attempt | None, each: TrialClass, observed: Raw
    ) -> None:
        shown, number = self.shown, trial.number
        name, earlier = self._name_by(number, newest), shown.names.get(number)
        if number not in shown.uids or name != earlier:
            made = await self._try_create(KATIB_TRIALS, self._trial(name, trial, newest))
            if made is None:
                return
            if earlier not in (None, name):
                # What is deleted here was not deleted by anybody else.
                shown.uids.pop(number, None)
                await self.client.delete(KATIB_TRIALS, self._namespace, earlier)
            shown.uids[number], shown.names[number] = made, name
        elif each.ended and self.experiment.spec.fidelity is not None:
            reached = {"spec": {"parameterAssignments": self._assignments(trial, newest)}}
            await self.client.patch(KATIB_TRIALS, self._namespace, name, reached)
        began = None if newest is None else newest.start_time
        before = shown.statuses.get(number, {})
        status = trial_status(trial, each, began, observed, before, datetime.now(UTC))
        try:
            await self.client.replace_status(
                KATIB_TRIALS, self._namespace, name, status, uid=shown.uids[number]
            )
        except NotServed:  # their definition is missing
            raise
        except (ApiConflict, ApiNotFound):  # somebody has deleted it, which the watch tells, too
            shown.deleted.add(number)
            raise
        shown.trials[number], shown.statuses[number] = each, status
        if each.ended:
            del shown.statuses[number]
            await self._tell(number, each, status["conditions"][-1])

    async def _tell(self, number: int, each: TrialClass, condition: Mapping[str, str]) -> None:
        about = {
            "name": self.shown.names[number],
            "namespace": self._namespace,
            "uid": self.shown.uids[number],
        }
        trial = {"apiVersion": KATIB_TRIALS.api_version, "kind": KATIB_TRIALS.kind}
        await events.record(
            self.client,
            {**trial, "metadata": about},
            kind="Warning" if each.is_failure else "Normal",
            reason=condition["reason"],
            message=condition["message"],
        )

    def _trial(self, name: str, trial: Trial, newest: Attempt | None) -> Raw:
        spec = self.resource["spec"]
        template = mapping_of(spec.get("trialTemplate"))
        kept = {key: template[key] for key in _OF_TEMPLATE if key in template}
        about = {"name": name, "labels": self._labels}
        return {
            "metadata": about,
            "spec": {
                "objective": spec.get("objective"),
                "parameterAssignments": self._assignments(trial, newest),
                "retainRun": bool(template.get("retain")),
                **kept,
            },
        }

    @property
    def _labels(self) -> dict[str, str]:
        return {**self.experiment.spec.labels, KATIB_EXPERIMENT_LABEL: object_name(self.resource)}

    async def write_suggestion(self, seen: Observation) -> None:
        """Write the claim, and the Suggestion, which counts the trials."""
        before = self.shown.suggestion
        spec, name = self.resource["spec"], object_name(self.resource)
        if self.shown.lacks_claim:
            claim = claim_of(name, spec)
            self.shown.lacks_claim = claim is not None and not await self._try_create(CLAIMS, claim)
        if before is None:
            written = {
                "algorithm": spec.get("algorithm"),
                "resumePolicy": spec.get("resumePolicy", "Never"),
            }
            if "earlyStopping" in spec:
                written["earlyStopping"] = spec["earlyStopping"]
            made = {"metadata": {"name": name}, "spec": written}
            uid = await self._try_create(KATIB_SUGGESTIONS, made)
            if uid is None:
                return
            before = {"uid": uid, "basis": None, "status": {}}
        state, count = self.experiment.state, len(self.shown.trials)
        basis = state, count
        if before["basis"] == basis:
            self.shown.suggestion = before
            return
        # The number of trials that are asked for: after the end, those that were needed.
        requests = count if state.finished else spec.get("maxTrialCount")
        policy = spec.get("resumePolicy")
        status = suggestion_status(seen, count, policy, before["status"], datetime.now(UTC))
        try:
            if "requests" not in before or before["requests"] != requests:
                asked = {"spec": {"requests": requests}}
                await self.client.patch(KATIB_SUGGESTIONS, self._namespace, name, asked)
            await self.client.replace_status(
                KATIB_SUGGESTIONS, self._namespace, name, status, uid=before["uid"]
            )
        except (ApiConflict, ApiNotFound):  # somebody has deleted it
            self.shown.suggestion = None
            raise
        self.shown.suggestion = {
            "uid": before["uid"],
            "basis": basis,
            "requests": requests,
            "status": status,
        }

    async def _try_create(self, kind: Kind, body: Raw) -> str | None:
        """Create an object, and return its uid; None: it is refused, which an Event tells.

        The experiment goes on without it, and it is tried again later.
        """
        try:
            return await self._create(kind, body)
        except ApiError as error:
            if error.status not in _REFUSED:
                raise
            message = str(error)
        except AlreadyExists as error:
            message = str(error)
        self.shown.again_s = time.monotonic() + _AGAIN_S
        about, reason = owner_of(self.resource), f"{kind.kind}Refused"
        await events.record(self.client, about, kind="Warning", reason=reason, message=message)
        return None

    async def _create(self, kind: Kind, body: Raw) -> str:
        """Create an object that the Experiment owns, and return its uid, also if it is there.

        Raises ApiError, at first also if one of the name has another owner: that of a deleted
        experiment goes with it. Later raises AlreadyExists.
        """
        owner = {**owner_reference(owner_of(self.resource)), "controller": True}
        about = {**body["metadata"], "namespace": self._namespace, "ownerReferences": [owner]}
        whole = {**body, "apiVersion": kind.api_version, "kind": kind.kind, "metadata": about}
        try:
            made = await self.client.create(kind, self._namespace, whole)
        except ApiConflict:
            made = await self.client.get(kind, self._namespace, about["name"])
            owners = made["metadata"].get("ownerReferences") or ()
            if owners and all(each["uid"] != owner["uid"] for each in owners):
                self.shown.taken += 1
                if self.shown.taken < _WAITS:
                    raise
                other = f"{owners[0]['kind']} {owners[0]['name']}"
                raise AlreadyExists(
                    f"{kind.kind} {about['name']} belongs to {other}; delete it, or use another "
                    "name for the experiment"
                ) from None
            if kind != CLAIMS:  # a volume that somebody has made is not deleted with the experiment
                # Somebody has made it with this name, or it was created and the answer got lost.
                whole = {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}
                await self.client.patch(kind, self._namespace, about["name"], whole)
        return str(made["metadata"]["uid"])
