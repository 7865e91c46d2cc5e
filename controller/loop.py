"""The shell around the core: look, fold, save, decide, act; turn after turn, until nothing is left to do.

All state that matters is elsewhere: trials in the study, attempts in the store, processes in the runtime. What this
holds in memory is rebuilt by `open`; it may be killed between any two lines. Order of writes. Start: study row, attempt
row, runtime. End: attempt ended, outcome to the study, removed from the runtime. No decision is made here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Protocol, assert_never

from controller import decide as core
from controller.clock import Clock
from controller.decide import OpenTrial, Snapshot, Wish
from controller.metrics import LogReader
from controller.model import (
    Attempt,
    AttemptState,
    Event,
    Experiment,
    ExperimentState,
    FailureClass,
    attempt_name,
)
from controller.observe import event_for
from controller.progress import Progress, RunningTrial
from controller.runtime.protocol import CannotStart, Launch, Runtime, RuntimeLost
from controller.search import pruning, study_name, study_spec
from controller.states import AttemptEvent, Ended, StopAsked, step
from controller.store import Changes, Store
from suggest import failpoints
from suggest.client import Suggestions
from suggest.errors import FailedPrecondition, NotFound, NotOwner, Unavailable
from suggest.space import Assignment
from suggest.study import Pruning, Study, StudyName, StudySpec
from suggest.trial import Measurement, Outcome, StopAdvice, Trial, TrialState

logger = logging.getLogger(__name__)

POLL_S = 0.5  # how often a stop request, and log lines that nobody waits for, are looked at
SAVE_RUNNING_S = 5.0  # what a kill may lose of the wall clock spent
BACK_OFF_S = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
GIVE_UP_S = 60.0
MAX_REPORT = 5000  # measurements of one call
LOG_PORTION = 1 << 20
MAX_PORTIONS = 8  # of one running attempt's log in one turn: a trial that prints without end must not stop the others
THREAD_PORTION = 64 << 10  # a larger portion is parsed off the loop

BEFORE_CREATE, AFTER_CREATE = failpoints.register("study.create")
BEFORE_ADD, AFTER_ADD = failpoints.register("study.add_trial")

BEFORE_START, AFTER_START = failpoints.register("runtime.start")
BEFORE_STOP, AFTER_STOP = failpoints.register("runtime.stop")
BEFORE_REMOVE, AFTER_REMOVE = failpoints.register("runtime.remove")
BEFORE_SUGGEST, AFTER_SUGGEST = failpoints.register("study.suggest")
BEFORE_REPORT, AFTER_REPORT = failpoints.register("study.report")
BEFORE_COMPLETE, AFTER_COMPLETE = failpoints.register("study.complete")


class Studies(Protocol):
    """What the loop asks of the suggestion service; `suggest.client.AsyncClient` is one. See there for the contract."""

    async def create_study(self, name: StudyName, spec: StudySpec, *, request_id: str) -> Study: ...

    async def get_study(self, name: StudyName) -> Study: ...

    async def update_study(self, name: StudyName, *, pruning: Pruning | None) -> Study: ...

    async def add_trial(self, name: StudyName, parameters: Assignment, *, request_id: str) -> Trial: ...

    async def list_trials(self, name: StudyName, *, client_id: str = "") -> list[Trial]: ...

    async def get_trial(self, name: StudyName, number: int) -> Trial: ...

    async def suggest(self, name: StudyName, count: int, *, client_id: str, request_id: str) -> Suggestions: ...

    async def report(self, name: StudyName, number: int, measurements: list[Measurement]) -> StopAdvice: ...

    async def complete(
        self, name: StudyName, number: int, outcome: Outcome, *, measurements: list[Measurement]
    ) -> Trial: ...


Launcher = Callable[[Experiment, Trial, Attempt], Launch]
"""Makes the attempt's folder and says what to execute there. Raises CannotStart."""


@dataclass(slots=True)
class _Open:
    """A trial with something left to do, and what was read of its newest attempt's log."""

    trial: Trial
    attempts: list[Attempt]
    log: LogReader
    running: bool = True
    unreported: list[Measurement] = field(default_factory=list)
    reported_at_s: float = 0.0

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None


class Loop:
    """One experiment's controller. Belongs to one event loop; `run` once."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        store: Store,
        studies: Studies,
        runtime: Runtime,
        launcher: Launcher,
        clock: Clock,
        on_event: Callable[[Event], None] = lambda _event: None,
    ) -> None:
        self.experiment = experiment
        self._store = store
        self._studies = studies
        self._runtime = runtime
        self._launcher = launcher
        self._clock = clock
        self._on_event = on_event
        self._study = study_name(experiment)
        self._wish = Wish.RUN
        self._stop_poll_at_s = float("-inf")
        self._turned_at_s: float | None = None
        self._saved_running_s = experiment.running_s
        self._trouble = ""
        self._trouble_since_s: float | None = None
        self._forget()

    def _forget(self) -> None:
        """All that `open` rebuilds."""
        self._open: dict[int, _Open] = {}
        self._counts: dict[TrialState, int] = {}
        self._best: Trial | None = None
        self._trend: list[float] = []  # the best value after each succeeded trial
        self._known = 0  # trials handed out to us so far: the number of our next request
        self._exhausted = False
        self._canary_over = False
        self._first_start: datetime | None = None
        self._advised: dict[int, str] = {}
        self._stops_sent: dict[int, float] = {}

    # Controls

    def wish(self, wish: Wish) -> None:
        """What the person wants from now on; stronger wishes stand."""
        order = [Wish.RUN, Wish.INTERRUPT, Wish.KILL, Wish.STOP]
        if order.index(wish) > order.index(self._wish):
            self._wish = wish

    async def run(self) -> Experiment:
        """Until the experiment is finished, paused or stopped; the experiment as it stands then.

        Raises:
            NotOwner: another process holds the study.
            Unavailable: the service or the store did not answer for GIVE_UP_S; what runs goes on running.
        """
        failures = 0
        opened = False
        while True:
            try:
                if not opened:
                    await self.open()
                    opened = True
                if await self.turn():
                    return self.experiment
                failures = 0
                self._trouble, self._trouble_since_s = "", None
            except (Unavailable, RuntimeLost) as error:
                await self._back_off(error, failures)
                failures += 1

    async def _back_off(self, error: Exception, failures: int) -> None:
        """Look again a little later: every turn decides anew from what is durable, so nothing is lost by waiting."""
        now_s = self._clock.elapsed_s()
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
            logger.warning("experiment=%s waiting: %s", self.experiment.name, error)
        self._trouble = str(error)
        if now_s - self._trouble_since_s > GIVE_UP_S:
            raise error
        await self._clock.sleep(BACK_OFF_S[min(failures, len(BACK_OFF_S) - 1)])

    # A turn

    async def open(self) -> None:
        """Make the study, if it is not there; rebuild what is held in memory from it and from the store."""
        self._forget()
        await self._make_study()
        attempts: dict[int, list[Attempt]] = {}
        for attempt in self._store.attempts(self.experiment.uid):
            attempts.setdefault(attempt.trial, []).append(attempt)
            if attempt.start_time is not None:
                self._first_start = min(self._first_start or attempt.start_time, attempt.start_time)
            self._canary_over |= attempt.step is not None
        for trial in await self._studies.list_trials(self._study, client_id=self.experiment.uid):
            self._known += 1
            own = attempts.pop(trial.number, [])
            if not trial.finished:
                self._open[trial.number] = self._opened(trial, own)
                continue
            self._count(trial)
            if own and not own[-1].ended:
                self._open[trial.number] = replace(self._opened(trial, own), running=False)
        await self._sweep()
        if self.experiment.state not in (ExperimentState.RUNNING, ExperimentState.PAUSED):
            self._save(Changes(experiment=replace(self.experiment, state=ExperimentState.RUNNING, reason="")))

    async def _make_study(self) -> None:
        spec = self.experiment.spec
        try:
            study = await self._studies.get_study(self._study)
        except NotFound:
            failpoints.reach(BEFORE_CREATE)
            study = await self._studies.create_study(self._study, study_spec(spec), request_id=self.experiment.uid)
            failpoints.reach(AFTER_CREATE)
        if study.spec.pruning != pruning(spec.pruning):
            await self._studies.update_study(self._study, pruning=pruning(spec.pruning))
        for index, point in enumerate(spec.initial):
            failpoints.reach(BEFORE_ADD)
            await self._studies.add_trial(self._study, point, request_id=f"{self.experiment.uid}-initial-{index}")
            failpoints.reach(AFTER_ADD)

    async def _sweep(self) -> None:
        """Remove from the runtime what ended, was told to the study, and was not removed before a kill."""
        kept = {
            attempt_name(self.experiment.name, self.experiment.uid, attempt.trial, attempt.number)
            for known in self._open.values()
            for attempt in known.attempts
        }
        for name in await self._runtime.observe():
            if name not in kept:
                await self._runtime.remove(name)

    async def turn(self) -> bool:
        """One round; True when nothing is left to do. Waits, if there was nothing to do at once."""
        self._spend_time()
        await self._look()
        actions = core.decide(self._snapshot())
        for action in actions:
            if await self._act(action):
                return True
        if not actions:
            await self._runtime.wait(self._patience_s(), log_growth=self._watches_logs())
        return False

    def _spend_time(self) -> None:
        now_s = self._clock.elapsed_s()
        if self._turned_at_s is not None and self.experiment.state is ExperimentState.RUNNING:
            running_s = self.experiment.running_s + now_s - self._turned_at_s
            self.experiment = replace(self.experiment, running_s=running_s)
        self._turned_at_s = now_s
        if now_s - self._stop_poll_at_s >= POLL_S:
            self._stop_poll_at_s = now_s
            if self._store.stop_requested(self.experiment.uid):
                self.wish(Wish.STOP)
            if self.experiment.running_s - self._saved_running_s >= SAVE_RUNNING_S:
                self._save(Changes(experiment=self.experiment))

    async def _look(self) -> None:
        sightings = await self._runtime.observe()
        changes: list[tuple[_Open, Attempt]] = []
        for known in self._open.values():
            newest = known.newest
            if newest is None:
                continue
            name = self._name(newest)
            sighting = sightings.get(name)
            # What a vanished attempt has said still counts.
            if newest.state is not AttemptState.CREATED or sighting is not None:
                await self._read_log(known, name, ended=sighting is None or sighting.exit is not None)
            if newest.ended:
                continue
            event = event_for(newest, sighting, known.log, self.experiment.spec, now=self._clock.now())
            if event is not None:
                changes.append((known, step(newest, event)))
        self._save_attempts(changes)
        await self._report()

    def _save_attempts(self, changes: list[tuple[_Open, Attempt]]) -> None:
        """Store first, then remember: what is not stored has not happened."""
        changed = [(known, after) for known, after in changes if after != known.newest]
        events = [
            self._transition(before, after)
            for known, after in changed
            if (before := known.newest) is not None and before.state is not after.state
        ]
        self._save(self._with_pause([after for _, after in changed], events))
        for known, after in changed:
            known.attempts[-1] = after
            if after.start_time is not None:
                self._first_start = min(self._first_start or after.start_time, after.start_time)

    def _with_pause(self, changed: list[Attempt], events: list[Event]) -> Changes:
        """A configuration failure pauses the experiment in the same write that records it."""
        for attempt in changed:
            if attempt.failure_class is FailureClass.CONFIGURATION and attempt.state is AttemptState.FAILED:
                reason = f"trial {attempt.trial} cannot run: {attempt.reason}"
                paused = replace(self.experiment, state=ExperimentState.PAUSED, reason=reason)
                events.append(Event(self._clock.now(), "paused", reason))
                return Changes(paused, changed, events)
        return Changes(None, changed, events)

    async def _read_log(self, known: _Open, name: str, *, ended: bool) -> None:
        attempt = known.attempts[-1].number
        portions = 0
        while ended or portions < MAX_PORTIONS:
            data = await self._runtime.read_log(name, known.log.offset, limit=LOG_PORTION)
            if len(data) < THREAD_PORTION:
                readings = known.log.feed(data)
            else:
                readings = await asyncio.to_thread(known.log.feed, data)
            known.unreported += [Measurement(attempt, r.metric, r.step, r.value) for r in readings]
            portions += 1
            if len(data) < LOG_PORTION:
                break
        if ended:
            known.unreported += [Measurement(attempt, r.metric, r.step, r.value) for r in known.log.finish()]
        self._canary_over |= known.log.last is not None

    async def _report(self) -> None:
        """Send what was measured; with pruning at once, else a few times a second. An ended attempt's last measurements
        travel with its outcome."""
        now_s = self._clock.elapsed_s()
        for number, known in self._open.items():
            newest = known.newest
            if newest is None or not known.unreported or not known.running:
                continue
            hurry = self.experiment.spec.pruning is not None or now_s - known.reported_at_s >= POLL_S
            if len(known.unreported) <= MAX_REPORT and (newest.ended or not hurry):
                continue
            while known.unreported:
                batch = known.unreported[:MAX_REPORT]
                failpoints.reach(BEFORE_REPORT)
                try:
                    advice = await self._studies.report(self._study, number, batch)
                except NotOwner:
                    raise
                except FailedPrecondition:
                    await self._learn_outcome(number)
                    break
                failpoints.reach(AFTER_REPORT)
                del known.unreported[: len(batch)]
                if advice.should_stop:
                    self._advised[number] = advice.reason
            known.reported_at_s = now_s

    # Acting

    async def _act(self, action: core.Action) -> bool:
        match action:
            case core.Suggest(count):
                await self._suggest(count)
            case core.CreateAttempt(number, attempt):
                known = self._open[number]
                created = Attempt(number, attempt)
                self._save(Changes(None, [created], [self._created(created)]))
                known.attempts.append(created)
                known.log = self._new_log()
                known.unreported.clear()
                self._advised.pop(number, None)
                self._stops_sent.pop(number, None)
                await self._start(known)
            case core.StartAttempt(number, _):
                await self._start(self._open[number])
            case core.AskStop(number, cause, reason):
                self._change(self._open[number], StopAsked(cause, reason))
            case core.SendStop(number, grace_s):
                failpoints.reach(BEFORE_STOP)
                await self._runtime.stop(self._name(self._open[number].attempts[-1]), grace_s=grace_s)
                failpoints.reach(AFTER_STOP)
                self._stops_sent[number] = grace_s
            case core.Complete(number, outcome):
                await self._complete(number, outcome)
            case core.Forget(number):
                await self._close(number)
            case core.ChangeState(state, reason, done):
                self._change_state(state, reason, done=done)
                return done
            case _:
                assert_never(action)
        return False

    async def _suggest(self, count: int) -> None:
        # The number of trials that we know makes the id: a request whose reply was lost is repeated under the same id,
        # by this process or the next.
        request_id = f"{self.experiment.uid}-{self._known}"
        failpoints.reach(BEFORE_SUGGEST)
        suggestions = await self._studies.suggest(
            self._study, count, client_id=self.experiment.uid, request_id=request_id
        )
        failpoints.reach(AFTER_SUGGEST)
        for trial in suggestions.trials:
            self._known += 1
            if trial.finished:
                self._count(trial)
            else:
                self._open[trial.number] = self._opened(trial, [])
        self._exhausted = suggestions.exhausted
        if not suggestions.trials and not suggestions.exhausted:
            raise Unavailable("the suggestion service gave no trial, though its search is not exhausted")

    async def _start(self, known: _Open) -> None:
        attempt = known.attempts[-1]
        try:
            launch = self._launcher(self.experiment, known.trial, attempt)
            failpoints.reach(BEFORE_START)
            await self._runtime.start(launch)
            failpoints.reach(AFTER_START)
        except CannotStart as error:
            refused = Ended(
                AttemptState.FAILED, self._clock.now(), reason=str(error), failure_class=error.failure_class
            )
            self._change(known, refused)

    async def _complete(self, number: int, outcome: Outcome) -> None:
        known = self._open[number]
        failpoints.reach(BEFORE_COMPLETE)
        try:
            trial = await self._studies.complete(self._study, number, outcome, measurements=known.unreported)
        except NotOwner:
            raise
        except FailedPrecondition:
            # Another client completed it in another way: the study is the truth about trials.
            trial = await self._studies.get_trial(self._study, number)
            if not trial.finished:
                raise
        failpoints.reach(AFTER_COMPLETE)
        self._count(trial)
        known.running = False  # from here on it is only forgotten: counted once, however often the runtime fails us
        await self._close(number)

    async def _learn_outcome(self, number: int) -> None:
        """The study takes no more measurements of a trial: somebody else has completed it."""
        trial = await self._studies.get_trial(self._study, number)
        if trial.finished and self._open[number].running:
            self._count(trial)
            self._open[number].running = False

    async def _close(self, number: int) -> None:
        for attempt in self._open[number].attempts:
            failpoints.reach(BEFORE_REMOVE)
            await self._runtime.remove(self._name(attempt))
            failpoints.reach(AFTER_REMOVE)
        del self._open[number]
        self._advised.pop(number, None)
        self._stops_sent.pop(number, None)

    def _change(self, known: _Open, event: AttemptEvent) -> None:
        self._save_attempts([(known, step(known.attempts[-1], event))])

    def _change_state(self, state: ExperimentState, reason: str, *, done: bool) -> None:
        now = self._clock.now()
        ended = now if done and state is not ExperimentState.PAUSED else None
        changed = replace(self.experiment, state=state, reason=reason or self.experiment.reason, end_time=ended)
        events = [] if state is self.experiment.state else [Event(now, state.value, changed.reason)]
        self._save(Changes(changed, (), events))

    # Bookkeeping

    def _save(self, changes: Changes) -> None:
        if not changes:
            return
        self._store.save(self.experiment.uid, changes)
        if changes.experiment is not None:
            self.experiment = changes.experiment
            self._saved_running_s = self.experiment.running_s
        for event in changes.events:
            logger.info("%s", event.message)
            self._on_event(event)

    def _opened(self, trial: Trial, attempts: list[Attempt]) -> _Open:
        return _Open(trial, attempts, self._new_log())

    def _new_log(self) -> LogReader:
        return LogReader(self.experiment.spec.metrics, self.experiment.spec.objective)

    def _count(self, trial: Trial) -> None:
        self._counts[trial.state] = self._counts.get(trial.state, 0) + 1
        if trial.state is not TrialState.SUCCEEDED or trial.value is None:
            return
        maximize = self.experiment.spec.objective.maximize
        best = None if self._best is None else self._best.value
        if best is None or (trial.value > best if maximize else trial.value < best):
            self._best = trial
        self._trend.append(core.better(best, trial.value, maximize=maximize) or 0.0)

    def _name(self, attempt: Attempt) -> str:
        return attempt_name(self.experiment.name, self.experiment.uid, attempt.trial, attempt.number)

    def _created(self, attempt: Attempt) -> Event:
        message = f"trial={self._name(attempt)} attempt={attempt.number} created"
        return Event(self._clock.now(), "created", message, attempt.trial, attempt.number)

    def _transition(self, before: Attempt, after: Attempt) -> Event:
        words = [f"trial={self._name(after)} attempt={after.number} {before.state.value}->{after.state.value}"]
        if after.failure_class is not None:
            words.append(f"class={after.failure_class.value}")
        if after.value is not None:
            words.append(f"value={after.value:g}")
        if after.reason and after.state is not AttemptState.RUNNING:
            words.append(f'reason="{after.reason}"')
        return Event(self._clock.now(), after.state.value, " ".join(words), after.trial, after.number)

    def _snapshot(self) -> Snapshot:
        now = self._clock.now()
        canary_s = self.experiment.spec.canary_s
        waited = self._first_start is not None and (now - self._first_start).total_seconds() >= canary_s
        self._canary_over |= waited or canary_s <= 0
        best = None if self._best is None else self._best.value
        return Snapshot(
            spec=self.experiment.spec,
            state=self.experiment.state,
            trials=[OpenTrial(number, tuple(known.attempts), known.running) for number, known in self._open.items()],
            counts=self._counts,
            wish=self._wish,
            best=best,
            exhausted=self._exhausted,
            running_s=self.experiment.running_s,
            slots=self._runtime.slots(self.experiment.spec.trial.resources.gpu),
            canary_over=self._canary_over,
            advised=self._advised,
            stops_sent=self._stops_sent,
        )

    def _watches_logs(self) -> bool:
        return self.experiment.spec.pruning is not None or not self._canary_over

    def _patience_s(self) -> float:
        """Until something is due that no wake-up announces."""
        waits = [POLL_S]
        spec = self.experiment.spec
        if spec.budget.wall_clock_s is not None:
            waits.append(spec.budget.wall_clock_s - self.experiment.running_s)
        if not self._canary_over and self._first_start is not None:
            waits.append(spec.canary_s - (self._clock.now() - self._first_start).total_seconds())
        return min(wait for wait in waits if wait > 0)

    def progress(self) -> Progress:
        """What a person wants to see, now."""
        running = [
            RunningTrial(
                number=number,
                attempt=newest.number,
                state=newest.state,
                start_time=newest.start_time,
                step=known.log.step,
                value=known.log.last,
                parameters=known.trial.parameters,
            )
            for number, known in self._open.items()
            if (newest := known.newest) is not None and not newest.ended
        ]
        return Progress(
            experiment=self.experiment,
            counts=dict(self._counts),
            queued=len(self._open) - len(running),
            running=tuple(running),
            best=self._best,
            trend=tuple(self._trend),
            canary=not self._canary_over,
            exhausted=self._exhausted,
            trouble=self._trouble,
            stopping=self._wish is not Wish.RUN,
        )


__all__ = ["Launcher", "Loop", "Studies"]
