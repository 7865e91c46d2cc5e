"""The experiment of one custom resource: what the controller does about it after every change.

A step compares the resource with the stored experiment and with what runs, and does what is due. It
is level-triggered: a step that fails is repeated, and a step does nothing if nothing is due. An
experiment runs in a `Session` of `controller.app`, as with `tuner run` and `tuner resume`. To
change a running experiment, its session detaches (the Jobs keep running), the change is recorded,
and another session continues.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import json
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from controller.app.delete import delete
from controller.app.experiment_file import ExperimentFile
from controller.app.experiment_service import ExperimentService
from controller.app.experiments import ControlledElsewhere
from controller.app.extend import Extension, extend
from controller.app.import_trials import import_source
from controller.app.katib_trials import trials_of_katib
from controller.app.query import gather
from controller.app.rerun import asked_by_file
from controller.app.retry import RetrySelection, retry
from controller.app.run import RunResult, Session
from controller.core.attempt import RuntimeLost
from controller.core.model import AttemptKey, Experiment, ExperimentState, ReasonCode
from controller.core.progress import Progress
from controller.core.snapshot import UNCOUNTED, DesiredState
from controller.kube.client import KubernetesClient
from controller.kube.custom_resource import ALL_FAILED, FROM_KATIB
from controller.kube.errors import ApiConflict, ApiError, ApiNotFound
from controller.kube.objects import Raw
from controller.kube.request_limit import Sender
from controller.loop import Loop
from controller.operator.acceptance import accepted_changes, accepted_document
from controller.operator.experiment_kind import ExperimentKinds
from controller.operator.experiments import HostedExperiments
from controller.operator.hosting import HostedWorkspace
from controller.operator.katib_values import reported
from controller.operator.policy import check_policy
from controller.operator.resource import (
    EXPERIMENTS,
    FINALIZER,
    RECOVER,
    RESUME,
    RETRY,
    ExperimentResource,
    FromCluster,
    asks_the_same,
    is_deleted,
    is_suspended,
    keeps_study,
    kind_of,
    object_name,
    owner_of,
    says_it_runs,
    uid_of,
)
from controller.operator.status import (
    CHANGE_REFUSED,
    INVALID,
    STATE_LOST,
    Observation,
    SpecRefusal,
    is_accepted,
)
from controller.operator.trial_templates import config_map_of
from controller.report.confirmation import confirmation_name
from controller.report.lines import EventView
from controller.runtime.kubernetes.labels import annotation, owned
from controller.runtime.kubernetes.recovery import trials_on_cluster
from controller.runtime.provider import RecoveredExperiment
from controller.spec import Change, Document, allowed_in_revision
from suggest.backoff import Backoff
from suggest.errors import (
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    StoreBroken,
    TunerError,
)

_log = logging.getLogger(__name__)

_BACKOFF = Backoff(first_s=1.0, longest_s=60.0, jitter=0.5)
_RESYNC_S = 30.0
# Interval of reading the Trials that Katib runs, and, before the first reading, of checking whether
# the session has opened its study, into which they are imported.
_KATIB_S, _READ_S = 3.0, 0.25
_DETACH_S = 60.0  # in which a session must end after it was asked to detach
_AGAIN_S = 60.0  # until a refused spec is tried again
# A session that begins keeps its place until it has started its first trials, at most this long.
_FIRST_TURN_S = 3.0
_FRESH_S = 3.0  # in which a session that begins usually starts its first trials
_REVISION_S = 1.0  # between two changes that take effect, because each begins another session
_OTHERS_BEGIN = "waits until experiments that were applied before it have begun"
_OTHERS_RUN = (
    "waits until another experiment has ended: at most {total} run at a time, and of a namespace "
    "at most as many as there is room for besides"
)
_LOST = SpecRefusal(
    STATE_LOST,
    "the controller's state has nothing of this experiment, which it has run: its volume or "
    "database was lost or replaced. Jobs that run are left alone. Restore a backup; or set the "
    f"annotation {RECOVER} to continue with the trials whose Jobs still exist (the others count "
    "as cancelled); or delete the experiment",
)


@dataclass(slots=True)
class _Controls:
    """Implements `controller.app.run.Controls`. Keeps requests until the session has a loop.

    elsewhere: how many Trials of a search that was taken over from Katib still run there.
    learned: the names of those that have ended and are in the study.
    """

    on_attached: Callable[[], None]
    on_acted: Callable[[], None]
    hurry: Callable[[], None]
    loop: Loop | None = None
    elsewhere: int = 0
    learned: set[str] = field(default_factory=set)
    _without_objects: frozenset[AttemptKey] = frozenset()
    _detaches: bool = False
    _desired: DesiredState = DesiredState.RUN

    @property
    def are_all(self) -> bool:
        return True  # people change the resource, and the watch notifies us

    def connected(self, hurry: Callable[[], None]) -> None:
        pass

    def attach(self, loop: Loop, *, detaches: bool) -> None:
        self.loop = loop
        loop.count_elsewhere(self.elsewhere)
        self._pass_on(loop)
        self.on_attached()

    def acted(self) -> None:
        self.on_acted()
        # Katib's clients look for the object of a Trial, so they must soon see that it is gone.
        if self.loop is not None and self.loop.without_objects != self._without_objects:
            self._without_objects = self.loop.without_objects
            self.hurry()

    def request(self, desired: DesiredState) -> None:
        self._desired = desired
        if self.loop is not None:
            self._pass_on(self.loop)

    def detach(self) -> None:
        self._detaches = True
        if self.loop is not None:
            self._pass_on(self.loop)

    def _pass_on(self, loop: Loop) -> None:
        loop.request(self._desired)
        if self._detaches:
            loop.detach()


@dataclass(slots=True)
class _Running:
    """A session that runs in the background.

    spec: the resource's spec when the session began.
    brings_spec: the session runs by that spec, and ends if it is refused. False: by the stored one.
    """

    task: asyncio.Task[RunResult]
    controls: _Controls
    spec: str
    brings_spec: bool


class _Phase(enum.Enum):
    """What the experiment does now: a step, or what it waits for after the last step."""

    STEP = enum.auto()  # a step is in progress
    WAITS_FOR_PLACE = enum.auto()  # to begin a session
    WAITS_TO_REVISE = enum.auto()  # a change must wait until _revise_at_s
    WAITS = enum.auto()  # for the next step, which is due in a while
    RESTS = enum.auto()  # until a notification
    PARKED = enum.auto()  # rests, and has forgotten what can be read again


@dataclass(slots=True)
class ManagedExperiment:
    """The experiment of the resource of one namespace and name. `run` ends when both are gone.

    changed: called when the status may have changed.
    hurry: the same, if clients must see the change at once.
    """

    namespace: str
    name: str
    workspace: HostedWorkspace
    kinds: ExperimentKinds
    experiments: HostedExperiments
    changed: Callable[[], None]
    hurry: Callable[[], None]
    trouble: str = ""
    refusal: SpecRefusal | None = None
    _experiment: Experiment | None = None
    # Whether it has run, according to its status, but was not in the store at the last look.
    _is_lost: bool = False
    _progress: Progress | None = None  # of the last session
    _running: _Running | None = None
    _resource: ExperimentResource | None = None  # as it was at the last look
    # The refused spec, which is tried again only at _retry_at_s.
    _refused: str = ""
    _retry_at_s: float = 0.0
    # The spec that was read last, and the document that it gave.
    _read: tuple[str, Document] | None = None
    _looked_at: int = 0  # the generation of the resource at the last step
    _failures: int = 0
    _revise_at_s: float = 0.0  # the earliest time of the next change
    _begins_since_s: float = -math.inf  # since when a session begins, or began last
    _phase: _Phase = _Phase.STEP
    # Takes a place among the sessions that run, and one among those that begin.
    _place: asyncio.Task[None] | None = None
    _waits_for: str = ""  # what that waits for, in words
    _wake: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        """Look again: a session has begun or ended, or the store is back."""
        self._wake.set()

    def resource_changed(self) -> None:
        """Look again, unless it runs and only its status has changed, as happens each second."""
        before, now = self._resource, self.workspace.find(self.namespace, self.name)
        is_asked = before is None or now is None or not asks_the_same(before, now)
        if is_asked or not self.is_running:
            self.notify()

    @property
    def is_running(self) -> bool:
        return self._running is not None and not self._running.task.done()

    @property
    def has_just_begun(self) -> bool:
        """Return whether a session begins, or has begun and may bring its first trials now."""
        is_fresh = time.monotonic() < self._begins_since_s + _FRESH_S
        return is_fresh and (self.is_running or self._phase is _Phase.WAITS_FOR_PLACE)

    @property
    def says_more_soon(self) -> bool:
        """Return whether the observation will change in a moment."""
        if self._resource is None or self.trouble:
            return False
        if self._phase is _Phase.STEP and self._experiment is None:
            return True
        is_looked_at = self._looked_at == self._resource["metadata"].get("generation", 0)
        return self.has_just_begun and not (is_looked_at and self._is_settled)

    def observation(self, resource: ExperimentResource) -> Observation | None:
        """Return what is known of the resource; None: nothing new, or no step has looked at it."""
        if self._phase is _Phase.PARKED:
            return None
        if self._resource is None or uid_of(self._resource) != uid_of(resource):
            if not self.trouble:
                return None
            return Observation(
                generation=int(resource["metadata"].get("generation", 0)),
                trouble=self.trouble,
                before=resource.get("status") or {},
            )
        running = self._running
        if running is not None and running.controls.loop is not None:
            self._progress = running.controls.loop.progress()
            self._experiment = self._progress.experiment
            if self._progress.known:
                self._failures, self.trouble = 0, ""
        progress = self._progress
        before = resource.get("status") or {}
        waits = self._waits_for if self._phase is _Phase.WAITS_FOR_PLACE else ""
        looked_at = self._looked_at or int(before.get("observedGeneration", 0))
        # Before the first place, nothing is in force, so this generation is the observed one.
        waits_first = bool(waits) and self._experiment is None and self._read is not None
        return Observation(
            generation=int(resource["metadata"]["generation"]) if waits_first else looked_at,
            is_valid=waits_first,
            experiment=self._experiment,
            progress=progress,
            refusal=_LOST if self._is_lost and not self.is_running else self.refusal,
            trouble=self.trouble or waits or ("" if progress is None else progress.trouble),
            archive_trouble=self.experiments.archive_trouble(uid_of(resource)),
            suspended=is_suspended(resource),
            before=before,
        )

    def park(self) -> None:
        """Forget what can be read again, if nothing is due.

        The status has it all. Most experiments of an installation have ended or are suspended.
        """
        if self._phase is _Phase.RESTS:
            self._phase = _Phase.PARKED
            self._experiment = self._progress = self._read = None

    async def run(self) -> None:
        """Look after every notification, until the resource and its experiment are gone."""
        while True:
            await self.workspace.cluster.client.turns.next(Sender(self.namespace, self.name))
            self._wake.clear()
            self._phase = _Phase.STEP
            try:
                if await self._step():
                    self._leave_place()
                    return
                if self._is_settled:
                    self._failures, self.trouble = 0, ""
                is_idle = self._running is None and not self._refused and not self._is_behind
                pause_s = None if is_idle else self._resync_s
            except (TunerError, RuntimeLost, ApiError, OSError) as error:
                pause_s = self._failed(str(error))
            except Exception as error:  # one experiment's bug must not end all others
                _log.exception("experiment=%s/%s", self.namespace, self.name)
                pause_s = self._failed(f"{type(error).__name__}: {error}; this is a bug")
            if self._phase is not _Phase.WAITS_FOR_PLACE:
                self._leave_place()
            # Until a session has a loop, the spec that it began with is not in force.
            begins = self._begins or self._phase in (_Phase.WAITS_TO_REVISE, _Phase.WAITS_FOR_PLACE)
            if self._resource is not None and not begins:
                self._looked_at = int(self._resource["metadata"].get("generation", 0))
            if self._phase is _Phase.STEP:
                self._phase = _Phase.RESTS if pause_s is None else _Phase.WAITS
            self.changed()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause_s):
                    await self._wake.wait()

    @property
    def _is_behind(self) -> bool:
        """Return whether objects beside the resource must be written again."""
        resource = self._resource
        return resource is not None and self.kinds.of(resource).is_behind(resource)

    @property
    def _resync_s(self) -> float:
        elsewhere = 0 if self._running is None else self._running.controls.elsewhere
        if elsewhere == UNCOUNTED:
            return _READ_S
        return _KATIB_S if elsewhere else _RESYNC_S

    def _failed(self, trouble: str) -> float:
        """Note why a step or a session has failed, and return the seconds to wait."""
        self.trouble = trouble
        pause_s = _BACKOFF.pause_s(self._failures)
        self._failures += 1
        return pause_s

    @property
    def _begins(self) -> bool:
        """Return whether a session has begun, and has no loop yet."""
        return self.is_running and self._running is not None and self._running.controls.loop is None

    @property
    def _is_settled(self) -> bool:
        """Return whether nothing runs, or what runs has read its trials."""
        running = self._running
        if running is None:
            return True
        loop = running.controls.loop
        return loop is not None and loop.progress().known

    async def detach(self) -> None:
        """End the session; its Jobs keep running. Raises RuntimeLost if it does not end in time."""
        if (running := self._running) is not None:
            running.controls.detach()
            await asyncio.wait([running.task], timeout=_DETACH_S)
            if not running.task.done():
                raise RuntimeLost(f"its controller has not let go of it for {_DETACH_S:g} s")

    def abandon(self) -> None:
        """End the session as a kill would, if it has not ended."""
        self._leave_place()
        if self._running is not None:
            self._running.task.cancel()

    # One step

    async def _step(self) -> bool:
        """Do the next thing that is due. Return True once resource and experiment are gone."""
        resource = self.workspace.find(self.namespace, self.name)
        if resource is None:
            return await self._gone()
        # An earlier controller ran it. Take a place before reading it, so that after a restart the
        # first experiments get their next trials before the last ones are read.
        is_resumed = self._resource is None and says_it_runs(resource)
        if is_resumed and not await self._has_place(runs=True):
            return False
        stored = await self._forget_earlier(resource)
        self._take_result()
        self._take_acceptance()
        is_over = stored is not None and self._is_over(resource, stored)
        if stored is not None and not is_over:
            await self._recall(stored)
        self._resource, self._experiment = resource, stored
        self._is_lost = stored is None and "revision" in (resource.get("status") or {})
        if is_deleted(resource):
            await self._delete(resource, stored)
            return False
        if is_over:
            return False
        defaults = self.kinds.of(resource).defaults(resource)
        document = await self._accepted(_with_spec(resource, defaults))
        is_wanted = document is not None and not (self._is_lost or is_suspended(resource))
        begins = is_wanted and stored is None and self._running is None and await self._has_place()
        if document is not None and begins:
            await self._create(resource, document, defaults)
            return False
        if defaults:
            if not await self._patch(resource, {}, spec=defaults):
                return False
            resource = self._current()
        if self._is_lost and not self.is_running:
            await self._recover_lost(resource, document)
        elif is_suspended(resource):
            await self._suspend(resource, stored, document)
        elif stored is not None:
            await self._go_on(resource, stored, document)
        await self._follow_katib(resource)
        return False

    async def _follow_katib(self, resource: ExperimentResource) -> None:
        """Import the Trials of the Katib Experiment that this search continues, until all ended.

        No trial begins before the first import, because it would repeat one of them.
        """
        running, uid = self._running, annotation(resource, FROM_KATIB)
        if uid is None or running is None or not running.controls.elsewhere:
            return
        loop = running.controls.loop
        if loop is None or not loop.progress().known:
            return
        name, experiment = object_name(resource), loop.experiment
        found = await trials_of_katib(self._client_of(resource), self.namespace, name, uid)
        new = found.without(running.controls.learned)
        values = await reported(new.names, experiment.spec.objective.metric)
        source = new.source(experiment.spec, uid, values)
        async with self.workspace.connected(self.workspace.service) as client:
            tally = await import_source(client, experiment, source)
        for refused in tally.refused:
            _log.warning("experiment=%s/%s trial of Katib's %s", self.namespace, name, refused)
        running.controls.learned.update(new.names)
        running.controls.elsewhere = len(found.running)
        loop.count_elsewhere(running.controls.elsewhere, imported=tally.new > 0)

    async def _forget_earlier(self, resource: ExperimentResource) -> Experiment | None:
        """Forget the experiment of an earlier resource of that name, and what is known of it.

        Returns the stored experiment of the resource.
        """
        before = self._resource
        is_replaced = before is not None and uid_of(before) != uid_of(resource)
        if is_replaced:
            await self.detach()
        loop = None if self._running is None else self._running.controls.loop
        if loop is not None and self.is_running and not is_replaced:
            return loop.experiment
        stored = self.experiments.experiment(self.namespace, self.name)
        if stored is not None and stored.uid != uid_of(resource):
            # While no controller ran, its resource may have disappeared without a deletion.
            is_known = before is not None and uid_of(before) == stored.uid
            await self._forget(keep_study=before is None or not is_known or keeps_study(before))
            stored = None
        if is_replaced:
            self._resource = self._running = self._experiment = self._progress = self._read = None
            self.refusal, self._refused, self.trouble = None, "", ""
        return stored

    async def _accepted(self, resource: ExperimentResource) -> Document | None:
        """Return the resource's experiment; None if it is refused, now or before."""
        spec = _spec_of(resource)
        if spec == self._refused and time.monotonic() < self._retry_at_s:
            return None
        if self._read is not None and self._read[0] == spec:
            return self._read[1]
        try:
            added = FromCluster(
                queue=await self.workspace.queues.of(self.namespace),
                config_map_of=await config_map_of(self._client_of(resource), resource),
            )
            document = accepted_document(resource, self.workspace.policy, added)
        except InvalidArgument as error:
            self._refuse(spec, INVALID, str(error))
            return None
        if spec != self._refused:
            self.refusal, self._refused = None, ""
        self._read = spec, document
        return document

    def _is_over(self, resource: ExperimentResource, stored: Experiment) -> bool:
        """Return whether the experiment has ended, and the status says so for this spec.

        Most experiments of an installation have ended, and their specs need not be read.
        """
        status = resource.get("status") or {}
        metadata = resource["metadata"]
        before = self._resource
        return (
            stored.state.finished
            and (before is None or before.get("status") == resource.get("status"))
            and status.get("state") == stored.state.value
            and status.get("observedGeneration") == metadata.get("generation")
            and is_accepted(status)
            and not metadata.get("finalizers")
            and not self.kinds.of(resource).is_behind(resource)
            and annotation(resource, RESUME) is None
            and annotation(resource, RETRY) is None
        )

    def _refuse(self, spec: str, reason: str, message: str) -> None:
        """Note why the spec is not in force. The cluster may accept the same spec later."""
        self._refused, self.refusal = spec, SpecRefusal(reason, message)
        self._retry_at_s = time.monotonic() + _AGAIN_S

    def _take_result(self) -> None:
        """Forget a session that has ended, and raise what ended it."""
        running = self._running
        if running is None or not running.task.done():
            return
        self._running = None
        if running.controls.loop is not None:
            self._progress = running.controls.loop.progress()
        if running.task.cancelled():
            raise RuntimeLost("its controller was cancelled; this is a bug")
        error = running.task.exception()
        # Without a loop, the experiment was refused before it began.
        refuses = isinstance(error, InvalidArgument | FailedPrecondition)
        is_refusal = running.controls.loop is None and refuses
        if isinstance(error, ControlledElsewhere) or (error is not None and not is_refusal):
            raise error
        if error is not None:
            self._refuse(running.spec, INVALID, str(error))
        elif self._experiment is not None:
            self.refusal, self._refused = None, ""

    def _take_acceptance(self) -> None:
        """Forget the refusal of a spec by which a session runs now: it was accepted."""
        running = self._running
        if running is None or not running.brings_spec or running.controls.loop is None:
            return
        if running.spec == self._refused:
            self.refusal, self._refused = None, ""

    async def _create(
        self, resource: ExperimentResource, document: Document, defaults: Raw
    ) -> None:
        """Begin, once one patch has added the finalizer and the defaults of the spec."""
        file = ExperimentFile(document, self.workspace.state.root)
        if await self._protect(resource, spec=defaults):
            uid, whole = uid_of(resource), _with_spec(resource, defaults)
            self._begin(whole, lambda session: session.run(file, uid=uid), brings_spec=True)

    async def _recover_lost(self, resource: ExperimentResource, document: Document | None) -> None:
        """Rebuild an experiment that has run and is not in the store, once a person asks for it.

        Do not begin a new search: it would repeat trials, its Jobs would have the names of running
        ones, and a backup could not be restored any more.
        """
        asked = annotation(resource, RECOVER) is not None
        if not asked or document is None or is_suspended(resource):
            return
        if await self._protect(resource):
            self._begin(resource, lambda session: self._rebuild(session, resource, document))

    async def _rebuild(
        self, session: Session, resource: ExperimentResource, document: Document
    ) -> RunResult:
        uid, stored = uid_of(resource), document.spec.document
        client = self._client_of(resource)
        trials = await trials_on_cluster(client, self.namespace, uid, stored)
        recovered = RecoveredExperiment(uid, client.context, stored, trials)
        return await session.rebuild(self.name, recovered)

    async def _suspend(
        self, resource: ExperimentResource, stored: Experiment | None, document: Document | None
    ) -> None:
        """Stop what runs, has just begun, or was left running by an earlier controller.

        Changes of the spec are checked now, and take effect when the experiment continues.
        """
        if stored is not None:
            self._changes(resource, stored, document)
        at_work = (ExperimentState.RUNNING, ExperimentState.STOPPING)
        left_running = stored is not None and stored.state in at_work
        left_alone = stored is not None and left_running and self._running is None
        if stored is not None and left_alone and await self._protect(resource):
            self._begin(resource, self._resumed(stored))
        if self._running is not None:
            self._running.controls.request(DesiredState.INTERRUPT)
        elif not left_running:
            await self._unprotect(resource)

    async def _go_on(
        self, resource: ExperimentResource, stored: Experiment, document: Document | None
    ) -> None:
        document, changes = self._changes(resource, stored, document)
        if document is not None and changes:
            if (early_s := self._revise_at_s - time.monotonic()) > 0:
                self._phase = _Phase.WAITS_TO_REVISE
                asyncio.get_running_loop().call_later(early_s, self.notify)
                return
            self._revise_at_s = time.monotonic() + _REVISION_S
            await self.detach()
            await self._revise(resource, document, changes)
            return
        if annotation(resource, RETRY) is not None:
            await self._retry(resource)
            return
        asked = annotation(resource, RESUME) is not None
        recovered = annotation(resource, RECOVER) is not None
        if self._running is None and (asked or _goes_on(stored)):
            # The policy may be stricter than when the experiment was accepted.
            check_policy(stored.spec, self.workspace.policy)
            runs = stored.state is ExperimentState.RUNNING
            if await self._has_place(runs=runs) and await self._protect(resource):
                self._begin(resource, self._resumed(stored))
        elif self._running is None:
            await self._confirm(resource, stored)
            await self._unprotect(resource)
        else:
            await self._protect(resource)  # somebody may have removed its finalizer
        if (asked or recovered) and self._running is not None:
            await self._patch(resource, {"annotations": {RESUME: None, RECOVER: None}})

    async def _confirm(self, resource: ExperimentResource, stored: Experiment) -> None:
        """Create the experiment with the reruns that `spec.confirm` asks for.

        Leave an existing one as it is, and do not create one again that was deleted.
        """
        name = confirmation_name(self.name)
        if stored.spec.confirm is None or self.workspace.find(self.namespace, name) is not None:
            return
        try:
            reruns = await asked_by_file(self.workspace, stored)
        except FailedPrecondition as error:
            _log.warning("experiment=%s/%s not confirmed: %s", self.namespace, self.name, error)
            return
        if reruns is None:
            return
        await self.workspace.guard.check()
        manifest = owned(dict(reruns.file.document.spec.document), owner_of(resource))
        with contextlib.suppress(ApiConflict):
            await self._client_of(resource).create(EXPERIMENTS, self.namespace, manifest)

    def _resumed(self, stored: Experiment) -> Callable[[Session], Awaitable[RunResult]]:
        """Return what continues the experiment in a session, with the file as last accepted."""
        service = ExperimentService(self.experiments)

        async def go_on(session: Session) -> RunResult:
            return await session.go_on(service.resume_known(stored))

        return go_on

    def _changes(
        self, resource: ExperimentResource, stored: Experiment, document: Document | None
    ) -> tuple[Document | None, list[Change]]:
        """Return the completed document and its changes; no changes if they are refused."""
        if document is None:
            return None, []
        try:
            return accepted_changes(self.experiments, stored, document)
        except FailedPrecondition as error:
            self._refuse(_spec_of(resource), CHANGE_REFUSED, str(error))
            return document, []

    async def _retry(self, resource: ExperimentResource) -> None:
        """Run failed trials again, as `tuner retry` does. Remove the annotation in any case."""
        value = annotation(resource, RETRY) or ""
        await self.detach()
        self._take_result()
        # Before the retry, so that one that always fails is not repeated forever.
        patch: dict[str, object] = {"annotations": {RETRY: None}}
        if not await self._protect(resource) or not await self._patch(self._current(), patch):
            return
        numbers = () if value == ALL_FAILED else value.split(",")
        admitted = await retry(
            self.workspace,
            self.experiments,
            self.name,
            RetrySelection.parse(numbers, failed=value == ALL_FAILED, reason=""),
            namespace=self.namespace,
            print_line=lambda _text: None,
        )
        self._begin(self._current(), lambda session: session.go_on(admitted))

    def _current(self) -> ExperimentResource:
        """Return the resource that was just patched. Raises NotFound if it has been deleted."""
        resource = self.workspace.find(self.namespace, self.name)
        if resource is None:
            raise NotFound(f"{self.namespace}/{self.name} has just been deleted")
        return resource

    async def _revise(
        self, resource: ExperimentResource, document: Document, changes: list[Change]
    ) -> None:
        """Record the changes and continue; or refuse them, and continue by the stored revision."""
        self._take_result()
        file = ExperimentFile(document, self.workspace.state.root)
        if not await self._protect(resource):
            return
        try:
            if all(map(allowed_in_revision, changes)):
                ExperimentService(self.experiments).allowed_changes(self._stored(), document)
                self._begin(
                    resource,
                    lambda session: session.resume(file, self.namespace),
                    brings_spec=True,
                )
                return
            admitted = await extend(
                self.workspace,
                self.experiments,
                file,
                Extension(),
                namespace=self.namespace,
                print_line=lambda _text: None,
            )
        except (InvalidArgument, FailedPrecondition) as error:
            self._refuse(_spec_of(resource), CHANGE_REFUSED, str(error))
            self.notify()
        else:
            self._begin(resource, lambda session: session.go_on(admitted))

    def _stored(self) -> Experiment:
        stored = self.experiments.experiment(self.namespace, self.name)
        assert stored is not None
        return stored

    async def _recall(self, stored: Experiment) -> None:
        """Read the results of an experiment that is at rest and has not run in this process.

        The last status may be missing, because an earlier controller ended before it wrote it.
        """
        is_at_rest = stored.state not in (ExperimentState.RUNNING, ExperimentState.STOPPING)
        if self._progress is not None or self._running is not None or not is_at_rest:
            return
        with contextlib.suppress(NotFound, StoreBroken):
            async with self.workspace.connected(self.workspace.service) as client:
                record = await gather(self.experiments, stored, client)
            self._progress = Progress(
                experiment=stored,
                counts=record.counts,
                queued=0,
                running=(),
                best=record.best,
                trend=(),
            )

    async def _has_place(self, *, runs: bool = False) -> bool:
        """Return whether a session may begin now. If not, another step follows when it may.

        The number of sessions that begin at a time is limited, because each slows down the others:
        of 2,000 experiments that were applied at once, none would have a trial for minutes. The
        number of those that run is limited, because each takes memory.

        runs: the experiment ran before and has Jobs, so it does not wait for others to end.
        """
        if self._place is None:
            self._begins_since_s = time.monotonic()
            self._place = asyncio.create_task(self._take_places(runs=runs))
            self._place.add_done_callback(lambda _place: self.notify())
            await asyncio.sleep(0)  # lets the task take a place that is free
        if self._place.done():
            return True
        self._phase = _Phase.WAITS_FOR_PLACE
        return False

    async def _take_places(self, *, runs: bool) -> None:
        running = self.workspace.running
        if runs:
            running.add(self.namespace)
        else:
            self._wait_for(_OTHERS_RUN.format(total=running.total))
            await running.take(self.namespace)
        self._wait_for(_OTHERS_BEGIN)
        try:
            await self.workspace.beginnings.take(self.namespace)
        except BaseException:
            running.give(self.namespace)
            raise

    def _wait_for(self, others: str) -> None:
        self._waits_for = others
        self.changed()

    def _leave_place(self) -> None:
        place, self._place = self._place, None
        if place is not None and not place.cancel():
            self.workspace.beginnings.give(self.namespace)
            self.workspace.running.give(self.namespace)

    def _begin(
        self,
        resource: ExperimentResource,
        start: Callable[[Session], Awaitable[RunResult]],
        *,
        brings_spec: bool = False,
    ) -> None:
        if self._place is not None and self._place.done():
            begins, self._place = True, None
        else:  # no place is needed: the session ends soon, or replaces one that ran until now
            begins = False
            self._leave_place()
            self.workspace.running.add(self.namespace)
        self._begins_since_s = time.monotonic()

        def leave_place() -> None:
            nonlocal begins
            if begins:
                begins = False
                self.workspace.beginnings.give(self.namespace)

        def is_attached() -> None:
            asyncio.get_running_loop().call_later(_FIRST_TURN_S, leave_place)
            self.notify()

        def has_ended(_task: asyncio.Task[RunResult]) -> None:
            leave_place()
            self.workspace.running.give(self.namespace)
            self.notify()

        follows = annotation(resource, FROM_KATIB) is not None
        elsewhere = UNCOUNTED if follows else 0
        controls = _Controls(is_attached, leave_place, self.hurry, elsewhere=elsewhere)
        view = EventView(self.workspace.on_event)
        session = Session(self.workspace, self.experiments, view=view, controls=controls)

        async def run() -> RunResult:
            return await start(session)

        task = asyncio.create_task(run())
        task.add_done_callback(has_ended)
        self._running = _Running(task, controls, _spec_of(resource), brings_spec)

    # The end

    async def _delete(self, resource: ExperimentResource, stored: Experiment | None) -> None:
        """End what runs, delete the study, and remove the finalizer."""
        await self.kinds.of(resource).hide(self.workspace.cluster.client, resource)
        if self._running is not None:  # its end comes with a notification
            self._running.controls.request(DesiredState.STOP)
            return
        if stored is not None:
            await self._forget(keep_study=keeps_study(resource))
        await self._unprotect(resource)

    async def _gone(self) -> bool:
        """End what runs without a resource. The cluster deletes its Jobs, as their owner is gone.

        The experiment is kept if another controller has taken it over, or if this process never
        saw its resource: that may be missing for another reason, such as a removed definition.
        """
        await self.detach()
        stored = self.experiments.experiment(self.namespace, self.name)
        is_left = self.workspace.is_left(self.namespace, self.name)
        if stored is not None and self._resource is not None and not is_left:
            await self._forget(keep_study=keeps_study(self._resource))
        return self.workspace.find(self.namespace, self.name) is None

    async def _forget(self, *, keep_study: bool) -> None:
        await delete(
            self.workspace,
            [self.name],
            self.namespace,
            confirm=lambda _what: True,
            keep_studies=keep_study,
        )
        self._experiment = self._progress = None

    # The resource

    async def _protect(self, resource: ExperimentResource, *, spec: Raw | None = None) -> bool:
        """Add the finalizer, after which something may run, and these keys of the spec.

        Returns False if the resource has changed meanwhile; then nothing may run yet.
        """
        finalizers = resource["metadata"].get("finalizers") or []
        added: dict[str, object] = {}
        if FINALIZER not in finalizers:
            added["finalizers"] = [*finalizers, FINALIZER]
        if not added and not spec:
            return True
        return await self._patch(resource, added, **({"spec": spec} if spec else {}))

    async def _unprotect(self, resource: ExperimentResource) -> None:
        finalizers = resource["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            rest = [each for each in finalizers if each != FINALIZER]
            await self._patch(resource, {"finalizers": rest})

    def _client_of(self, resource: ExperimentResource) -> KubernetesClient:
        return self.workspace.cluster.client.on_behalf_of(Sender(self.namespace, uid_of(resource)))

    async def _patch(
        self, resource: ExperimentResource, metadata: dict[str, object], **fields: object
    ) -> bool:
        """Change this version of the resource. Return False if there is a later one.

        fields: the top-level fields beside metadata.
        """
        await self.workspace.guard.check()
        version = {"resourceVersion": resource["metadata"]["resourceVersion"]}
        client = self._client_of(resource)
        try:
            patched = await client.patch(
                kind_of(resource),
                self.namespace,
                object_name(resource),
                {"metadata": metadata | version, **fields},
            )
        except (ApiConflict, ApiNotFound):
            self.notify()
            return False
        self.workspace.put(kind_of(resource), patched)
        return True


def _spec_of(resource: ExperimentResource) -> str:
    return json.dumps([resource.get("spec"), resource["metadata"].get("labels")], sort_keys=True)


def _with_spec(resource: ExperimentResource, added: Raw) -> ExperimentResource:
    return {**resource, "spec": {**resource.get("spec", {}), **added}} if added else resource


def _goes_on(stored: Experiment) -> bool:
    """Return whether the experiment runs unless somebody has stopped it."""
    if stored.state is ExperimentState.STOPPED:
        return stored.reason_code is ReasonCode.INTERRUPTED  # it was suspended
    return stored.state in (ExperimentState.RUNNING, ExperimentState.STOPPING)
