"""The control loop around the core: reconcile, observe, save, decide and act, turn after turn,
until all is done.

The durable state is elsewhere: trials in the study, attempts in the store, processes in the
runtime. `open` rebuilds the state in memory, so the process may be killed between any two lines.
The order of writes matters:

- Start: the trial in the study, the attempt in the store, the process in the runtime.
- End: the ended attempt in the store, the outcome in the study (unless the trial runs again),
  removal from the runtime.
- End of the experiment: in the runtime, then in the store.

The loop makes no decisions; `controller.core` does.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Protocol, assert_never

from controller.clock import Clock
from controller.core import budget
from controller.core import decide as core
from controller.core import snapshot as wanted
from controller.core.attempt import AttemptStatus, RuntimeLost
from controller.core.forecast import Forecast
from controller.core.metrics import LogReader
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptKey,
    AttemptState,
    Event,
    Experiment,
    ExperimentState,
    FinalRun,
    Overrun,
    ReasonCode,
    TrialOrFinal,
    by_trial,
)
from controller.core.observe import event_for
from controller.core.progress import Progress
from controller.core.snapshot import DesiredState, Snapshot
from controller.core.spending import NOTHING_SPENT, Spent, spent_by_all
from controller.core.states import AttemptEvent, Ended, StopAsked, step
from controller.experiment_store import NewerRevision, SqlExperimentStore
from controller.journal import LOG_LIMIT, Journal
from controller.measurement_upload import MAX_REPORT, MeasurementUploader
from controller.memory import Memory, Opened
from controller.parameter_requests import answer_to
from controller.runtime.launch import ParametersRefused
from controller.runtime.protocol import CannotStart, Conclusion, Launch, Runtime
from controller.search import LOST, ExperimentStudy, times_handed_out
from controller.spec.quantities import format_bytes
from suggest import failpoints
from suggest.backoff import Backoff
from suggest.domain import NoMember
from suggest.errors import FailedPrecondition, LimitReached, NotFound, Unavailable
from suggest.space import Parameter, Value
from suggest.trial import Outcome, Trial, TrialState

if TYPE_CHECKING:
    from suggest.client import AsyncClient

logger = logging.getLogger(__name__)

# Interval of checking for requests of other processes, and for log lines that no pruner waits for.
POLL_S = 0.5
# The same interval where a process runs hundreds of loops, and passes all requests to them.
SELDOM_S = 2.0
# with a shorter wait, rounding could keep the clock from reaching the deadline
SHORTEST_WAIT_S = 0.001
SAVE_RUNNING_S = 5.0  # how much of the wall clock spent a kill may lose
BACKOFF = Backoff(first_s=0.1, longest_s=5.0)
GIVE_UP_S = 60.0
GIVE_UP_OPENING_S = 10.0  # shorter, because no trial is running yet
GIVE_UP_KILLING_S = 1.0  # for a user who has interrupted twice; the call in progress ends first
LOG_PORTION = 1 << 20
MAX_PORTIONS = 8  # per attempt and turn: a trial that prints endlessly must not delay the others
THREAD_PORTION = 64 << 10  # larger portions are parsed in a thread

_START = failpoints.register("runtime.start")
_STOP = failpoints.register("runtime.stop")
_REMOVE = failpoints.register("runtime.remove")

EARLIEST = datetime.min.replace(tzinfo=UTC)
NO_TRIAL = "the suggestion service gave no trial, though its search is not exhausted"
OTHERS_RUN = "the next trial waits for trials of the study that other clients run"

Launcher = Callable[[Experiment, Trial, Sequence[Attempt]], Awaitable[Launch]]
"""Creates the folder of the trial's newest attempt and returns what to execute there.

Idempotent: it is called again if the process is killed before the attempt starts.
Raises CannotStart.
"""


class ReadPortion(Protocol):
    """`read_log` or `read_metrics` of one attempt: at most `limit` bytes from byte `offset`."""

    async def __call__(self, offset: int, *, limit: int) -> bytes: ...


class _OthersRun(Exception):
    """The next trial waits for trials of the study that other clients run.

    That is no trouble and may take days.
    """


OnTrial = Callable[[Trial], DesiredState]
"""Called with a trial once the study has its outcome.

The loop treats the returned state as a request.
"""


class Loop:
    """The controller of one experiment. Belongs to one event loop; call `run` once."""

    def __init__(
        self,
        experiment: Experiment,
        *,
        store: SqlExperimentStore,
        studies: AsyncClient,
        runtime: Runtime,
        launcher: Launcher,
        clock: Clock,
        on_event: Callable[[Event], None] = lambda _event: None,
        on_trial: OnTrial = lambda _trial: DesiredState.RUN,
        on_trouble: Callable[[str], None] = lambda _trouble: None,
        on_acted: Callable[[], None] = lambda: None,
        patience_s: float = GIVE_UP_S,
        polls_requests: bool = True,
    ) -> None:
        """Create the loop without starting anything.

        Args:
            on_trouble: Called when what keeps the loop from its work changes; "" means that nothing
                does.
            on_acted: Called in each turn when what is due was started.
            patience_s: How many seconds the runtime, the store or the service may be unreachable
                before `run` gives up. Running trials continue then.
            polls_requests: Look in the store for what other processes ask of this loop. False:
                requests come only by `request` and `detach`, which take effect at once.
        """
        self._store = store
        self._search = ExperimentStudy(experiment, studies)
        self._uploads = MeasurementUploader(
            self._search, at_once=experiment.spec.pruning is not None
        )
        self._runtime = runtime
        self._on_trial = on_trial
        self._on_trouble = on_trouble
        self._on_acted = on_acted
        self._launcher = launcher
        self._clock = clock
        self._patience_for_trouble_s = patience_s
        self._poll_s = POLL_S if polls_requests else SELDOM_S
        self._polls_requests = polls_requests
        self._journal = Journal(experiment, store, on_event)
        self._memory = Memory(experiment.spec)
        self._desired = DesiredState.RUN
        self._without_grace = False
        self._detached = False
        self._stop_poll_at_s = float("-inf")
        self._unjudged: list[asyncio.Future[None]] = []  # of trials that wait for the rule
        self._is_behind = False  # whether logs have more than the last turn has read
        self._turned_at_s: float | None = None
        self._opened = False
        self._seen_restarts = store.restarts
        self._trouble = ""
        self._elsewhere = 0
        self._imported = False  # whether the study may have imported trials that memory lacks
        self._told_trouble: str | None = None  # None: an earlier controller may have left its own
        self._trouble_since_s: float | None = None

    @property
    def experiment(self) -> Experiment:
        return self._journal.experiment

    def request(self, desired: DesiredState) -> None:
        """Set what the loop has to do from now on, unless a stronger request was made before."""
        by_strength = [DesiredState.RUN, DesiredState.INTERRUPT, DesiredState.STOP]
        self._desired = max(self._desired, desired, key=by_strength.index)
        self._runtime.wake()

    def detach(self) -> None:
        """Make `run` return and leave the running trials to the next controller.

        A request to stop takes precedence.
        """
        self._detached = True
        self._runtime.wake()

    def count_elsewhere(self, running: int, *, imported: bool = False) -> None:
        """Count trials of the search that another controller runs until they end.

        imported: the study has got more finished trials from there.
        """
        self._elsewhere = running
        self._imported = self._imported or imported
        self._runtime.wake()

    def kill(self) -> None:
        """Kill without a grace period whatever is stopped, now or later.

        Interrupts, unless a stop was requested.
        """
        self._without_grace = True
        self.request(DesiredState.INTERRUPT)

    async def decide(
        self, number: int, attempt: int, parameter: Parameter, given: Value | NoMember
    ) -> Value:
        """Return the value of a parameter that an attempt meets, once the study has stored it.

        Raises:
            Unavailable: the experiment is being opened, or the service does not answer; ask again.
            FailedPrecondition: another attempt of the trial runs, or the trial has ended.
            InvalidArgument: see `ExperimentStudy.decide`.
        """
        if not self._opened:
            raise Unavailable("the experiment is being opened")
        opened = self._memory.opened.get(number)
        newest = None if opened is None else opened.newest
        if opened is None or newest is None or newest.number != attempt or newest.ended:
            raise FailedPrecondition(f"attempt {attempt} of trial {number} does not run any more")
        return await self._decide(opened, parameter, given)

    async def judge(self, number: int) -> bool:
        """Return whether the rule advises a trial to stop, by all that it has printed so far.

        Returns after the next turn that reads its log and uploads what it has reported.
        """
        if self.experiment.spec.pruning is None:
            return False
        judged = asyncio.get_running_loop().create_future()
        self._unjudged.append(judged)
        self._runtime.wake()
        await judged
        return number in self._memory.advised

    async def _decide(self, opened: Opened, parameter: Parameter, given: Value | NoMember) -> Value:
        value = await self._search.decide(opened.trial.number, parameter, given)
        parameters = {**opened.trial.parameters, parameter.name: value}
        opened.trial = replace(opened.trial, parameters=parameters)
        return value

    @property
    def without_objects(self) -> frozenset[AttemptKey]:
        """Return the attempts of open trials whose objects have been deleted."""
        return self._memory.without_objects()

    def progress(self) -> Progress:
        """Return the current progress for the views."""
        memory = self._memory
        has_front = len(self.experiment.spec.criteria.objectives) > 1
        return Progress(
            experiment=self.experiment,
            counts=memory.counted(),
            queued=memory.waiting(),
            running=memory.running(),
            best=memory.best_with_imported,
            trend=tuple(memory.trend),
            canary=not memory.canary_over,
            exhausted=memory.exhausted,
            trouble=self._trouble,
            stopping=self._desired is not DesiredState.RUN,
            elsewhere=self._elsewhere,
            optimal=len(memory.optimal) if has_front else None,
            known=self._opened,
            forecast=self._forecast(),
            without_objects=self.without_objects,
        )

    def _forecast(self) -> Forecast | None:
        experiment = self.experiment
        if not experiment.spec.is_metered or experiment.state.finished or not self._opened:
            return None
        return self._memory.forecast(self._runtime.now())

    async def run(self) -> Experiment:
        """Run until finished, paused, stopped or detached from, and return the final record.

        Raises:
            NotOwner: another process holds the study.
            StoreBroken: the study no longer exists.
            Unavailable: the service or the store did not answer for too long; running trials
                continue, unless they were to be killed.
            RuntimeLost: the same of the runtime; running trials continue, even if they were to be
            killed.
        """
        failures = 0
        while True:
            try:
                self._notice_restart()
                if not self._opened or self._journal.in_doubt:
                    await self._open_again()
                is_done = await self.turn()
                failures = 0
                self._trouble_since_s = None
                self._note_trouble("")
                if is_done:
                    return self.experiment
            except _OthersRun as waiting:
                self._trouble_since_s = None
                self._note_trouble(str(waiting))
                await self._clock.sleep(BACKOFF.pause_s(failures))
                failures += 1
            except (Unavailable, RuntimeLost) as error:
                await self._back_off(error, failures)
                failures += 1
            except NewerRevision:  # decide again under it
                self._journal.in_doubt = True
            # the study's database was emptied or set back: look what it still has
            except NotFound as error:
                self._journal.in_doubt = True
                await self._back_off(error, failures)
                failures += 1
            # Also in trouble: the next controller observes the runtime.
            if self._detached and self._desired is DesiredState.RUN:
                return self.experiment

    def _notice_restart(self) -> None:
        """Read everything again once the store has restarted: it may have lost the last writes.

        Imported trials are read again, too.
        """
        if self._imported:
            self._imported, self._journal.in_doubt = False, True
        if (restarts := self._store.restarts) != self._seen_restarts:
            self._seen_restarts = restarts
            self._journal.in_doubt = True

    async def _open_again(self) -> None:
        """Open the experiment. If it was open before, first read its record again."""
        if self._opened:
            self._reload()
        await self.open()
        self._opened, self._journal.in_doubt = True, False

    def _reload(self) -> None:
        """Read the experiment again, also under a newer revision."""
        before = self.experiment.revision
        self._journal.reload()
        if self.experiment.revision > before:
            self._search.revise(self.experiment.spec)
            self._uploads = MeasurementUploader(
                self._search, at_once=self.experiment.spec.pruning is not None
            )
            self._journal.revision_applied(now=self._clock.now())

    def _note_trouble(self, trouble: str) -> None:
        self._trouble = trouble
        if trouble != self._told_trouble:
            self._told_trouble = trouble
            self._on_trouble(trouble)

    async def _back_off(self, error: Exception, failures: int) -> None:
        """Wait before the next turn.

        Nothing is lost, because every turn decides from durable state.
        """
        now_s = self._clock.elapsed_s()
        if self._trouble_since_s is None:
            self._trouble_since_s = now_s
            logger.warning("experiment=%s waiting: %s", self.experiment.name, error)
        self._note_trouble(str(error))
        patience_s = self._patience_for_trouble_s if self._opened else GIVE_UP_OPENING_S
        if self._without_grace:
            patience_s = min(patience_s, GIVE_UP_KILLING_S)
        if now_s - self._trouble_since_s > patience_s:
            if self._without_grace:
                await self._kill_all()
            raise error
        await self._clock.sleep(BACKOFF.pause_s(failures))

    async def _kill_all(self) -> None:
        """Kill what runs although that cannot be recorded.

        The next controller finds attempts without a known end, and runs their trials again. Raises
        RuntimeLost if some could not be killed.
        """
        statuses: Mapping[str, AttemptStatus] = {}
        lost: RuntimeLost | None = None
        try:
            statuses = await self._runtime.observe()
        except RuntimeLost as error:
            lost = error
        for name, status in statuses.items():
            if status.exit is None:
                try:
                    await self._runtime.stop(name, grace_s=0.0)
                except RuntimeLost as error:
                    lost = error
        if lost is not None:
            raise RuntimeLost(
                f"{lost}; running trials continue, because they could not be killed"
            ) from lost

    # A turn

    async def open(self) -> None:
        """Create the study if needed, and rebuild the memory from the study and the store."""
        memory = Memory(self.experiment.spec)
        stored = self._store.attempts(self.experiment.uid)
        await self._search.make(begun=bool(stored))
        attempts = by_trial((attempt.trial, attempt) for attempt in stored)
        for attempt in stored:
            memory.note_attempt(attempt)
        memory.recall_finals(attempts.get(FINAL, []), begun=self.experiment.final)
        trials = await self._cancel_reissued(await self._search.trials(), attempts)
        trials = await self._reopened(trials, attempts)
        # The circuit breaker judges trials in the order in which they ended.
        ended = [trial for trial in trials if trial.finished]
        for trial in sorted(ended, key=lambda t: (t.end_time or EARLIEST, t.number)):
            of_trial = attempts.get(trial.number, [])
            if _runs_again(trial, of_trial):
                memory.recall_set_aside(trial, of_trial[-1])
            else:
                memory.count(trial, of_trial[-1] if of_trial else None)
        for trial in trials:
            memory.handed_out += times_handed_out(trial)
            of_trial = attempts.get(trial.number, [])
            is_open = not trial.finished and trial.state is not TrialState.PAUSED
            if trial.state is TrialState.PAUSED:
                memory.pause(trial, of_trial)
            if is_open or (of_trial and not of_trial[-1].ended):
                memory.open(trial, of_trial, running=is_open)
        if self.experiment.final is not None and memory.finals and not memory.finals[-1].ended:
            memory.open_final(await self._search.trial(self.experiment.final.trial))
        memory.imported = await self._search.imported()
        # not before, so that what is known stays known while the service does not answer
        self._memory = memory
        await self._cancel_lost({trial.number for trial in trials}, attempts)
        await self._sweep()
        running = ExperimentState.RUNNING
        if self.experiment.state not in (running, ExperimentState.PAUSED):
            self._journal.experiment_changed(running, "", None, now=self._clock.now())

    async def _cancel_reissued(
        self, trials: list[Trial], attempts: Mapping[TrialOrFinal, list[Attempt]]
    ) -> list[Trial]:
        """Cancel the open trials whose attempts belong to a lost trial of the same number.

        A controller does this when it gets such a trial (`_suggest`), but may be killed before.
        """
        again = [number for number in self._search.reissued_trials(trials) if number in attempts]
        cancelled = {number: await self._search.complete(number, LOST, []) for number in again}
        return [cancelled.get(trial.number, trial) for trial in trials]

    async def _cancel_lost(
        self, known: Set[int], attempts: Mapping[TrialOrFinal, list[Attempt]]
    ) -> None:
        """Cancel trials with attempts that the study does not know, and end those that run."""
        lost = sorted(number for number in attempts if number is not FINAL and number not in known)
        if not lost:
            return
        self._journal.trials_lost(lost, now=self._clock.now())
        for trial in await self._search.cancel_lost(lost[-1]):
            of_trial = attempts.get(trial.number)
            if of_trial and not of_trial[-1].ended:
                self._memory.open(trial, of_trial, running=False)

    async def _reopened(
        self, trials: list[Trial], attempts: Mapping[TrialOrFinal, list[Attempt]]
    ) -> list[Trial]:
        """Reopen the failed trials to run again, unless the experiment ends without them."""
        marked = {
            trial.number for trial in trials if _runs_again(trial, attempts.get(trial.number, []))
        }
        experiment = self.experiment
        goes_on = experiment.state is ExperimentState.RUNNING and not experiment.ended_by
        if not marked or not goes_on or experiment.stop_requested:
            return trials
        rest_of_study = Memory(experiment.spec)
        for trial in trials:
            if trial.finished and trial.number not in marked:
                rest_of_study.count(trial)
        # Those that seem to run may have ended: the runtime was not observed yet.
        ended = (each for each in chain.from_iterable(attempts.values()) if each.ended)
        standing = budget.Standing(
            counts=rest_of_study.counts,
            best=rest_of_study.best_value,
            reached=rest_of_study.reached,
            running_s=experiment.running_s,
            spent=spent_by_all(ended, now=self._clock.now()),
        )
        if budget.ending(experiment.spec, standing, suspended=True) is not None:
            return trials
        reopened = {trial.number: trial for trial in await self._search.reopen(sorted(marked))}
        return [reopened.get(trial.number, trial) for trial in trials]

    async def _sweep(self) -> None:
        """Remove attempts that a kill kept from being removed from the runtime.

        The study has their outcomes, or a later attempt of their trial exists.
        """
        newest = (opened.newest for opened in self._memory.opened.values())
        open_names = {self._journal.name(attempt) for attempt in newest if attempt is not None}
        for name in await self._runtime.observe():
            if name not in open_names:
                await self._runtime.remove(name)

    async def turn(self) -> bool:
        """Take one turn, and return True when nothing is left to do.

        Waits if there is nothing to do now. Measurements of running trials are uploaded last: only
        the pruner's advice depends on them, while free slots wait for the actions.
        """
        self._spend_time()
        await self._runtime.reconcile()
        # Later ones may have printed after this turn has read their logs.
        asked = len(self._unjudged)
        await self._look()
        await self._answer_requests()
        if self.experiment.spec.is_metered:
            self._journal.note_spent(self._spent())
        actions = core.decide(self._snapshot())
        asks = any(isinstance(action, wanted.Suggest) for action in actions)
        if self._search.unanswered and not asks:
            # No later request repeats this id: take in the trials
            # that the lost reply handed out now or never.
            trials = await self._search.trials()
            if any(map(self._memory.belongs_to_another_client, trials)):
                self._journal.in_doubt = True
                return False
            self._memory.take_in(trials)
            actions = core.decide(self._snapshot())
        acted = bool(actions)
        ended_by = self.experiment.ended_by
        while actions:
            for action in actions:
                if await self._act(action):
                    return True
                if self.experiment.ended_by != ended_by:
                    # Decide again, before another trial begins.
                    return False
            actions = [] if self._runtime.shows_at_once else core.follow_ups(self._snapshot())
        self._on_acted()
        is_decided = await self._uploads.send_due(self._memory, now_s=self._clock.elapsed_s())
        for judged in self._unjudged[:asked]:
            judged.set_result(None)
        del self._unjudged[:asked]
        if not is_decided and not (acted and self._runtime.shows_at_once):
            spec = self.experiment.spec
            watches_logs = spec.pruning is not None or spec.define_by_run
            watches_logs |= not self._memory.canary_over
            await self._runtime.wait(self._patience_s(), log_growth=watches_logs)
        else:
            # lets signal handlers run even if every call returns without waiting
            await self._clock.sleep(0)
        return False

    def _spend_time(self) -> None:
        now_s = self._clock.elapsed_s()
        passed_s = 0.0 if self._turned_at_s is None else now_s - self._turned_at_s
        # set first: a write that fails below must not count the same seconds twice
        self._turned_at_s = now_s
        if self._spends_time:
            self._journal.spend(passed_s, save_every_s=SAVE_RUNNING_S)
        if now_s - self._stop_poll_at_s >= self._poll_s:
            self._stop_poll_at_s = now_s
            self._take_requests()

    @property
    def _spends_time(self) -> bool:
        """Return whether the time that passes counts for `budget.wallClock`."""
        is_running = self.experiment.state is ExperimentState.RUNNING
        return is_running and FINAL not in self._memory.opened

    def _take_requests(self) -> None:
        """Look what other processes ask for. Raises NewerRevision if one has stored a revision."""
        if not self._polls_requests:
            return
        requests = self._store.requests(self.experiment.uid)
        if requests.stop:
            self.request(DesiredState.STOP)
        if requests.revision > self.experiment.revision:
            raise NewerRevision(
                f"revision {requests.revision} of {self.experiment.name} is not in effect yet"
            )

    def _snapshot(self) -> Snapshot:
        memory, spec = self._memory, self.experiment.spec
        memory.judge_canary(self._clock.elapsed_s())
        return Snapshot(
            spec=spec,
            state=self.experiment.state,
            trials=memory.open_trials(),
            counts=memory.counts,
            desired=self._desired,
            without_grace=self._without_grace,
            best=memory.best_value,
            since_best=memory.since_best,
            reached=memory.reached,
            exhausted=memory.exhausted,
            running_s=self.experiment.running_s,
            slots=self._runtime.slots(spec.trial.resources.gpu, spec.trial.workers),
            canary_over=memory.canary_over,
            advised=memory.advised,
            stops_sent=memory.stops_sent,
            removed=memory.removed,
            held=memory.held,
            barred=memory.barred,
            prefetch=memory.prefetch,
            final=memory.final(),
            streak=memory.streak,
            set_aside=frozenset(memory.set_aside),
            paused={n: opened.trial.fidelity or 0.0 for n, opened in memory.paused.items()},
            none_goes_on=memory.none_goes_on,
            none_begins=memory.none_begins,
            regret_bound=memory.regret_bound,
            estimated=memory.estimated,
            elsewhere=self._elsewhere,
            spent=self._spent(),
            ended_by=self.experiment.ended_by,
        )

    def _spent(self) -> Spent:
        """Return what all attempts have used.

        What runs is counted until now. Without `overrun: stop` the next turn corrects that once the
        runtime shows an earlier end, and the search goes on if the limit is not reached yet.

        With `overrun: stop`, a limit that was reached stays so until it is raised, because attempts
        have been stopped for it: their ends, which pods tell in whole seconds, lie before what was
        counted. Others would begin, only to be stopped.
        """
        experiment = self.experiment
        if not experiment.spec.is_metered:
            return NOTHING_SPENT
        counted = self._memory.spent(self._runtime.now())
        if experiment.spec.budget.overrun is not Overrun.STOP:
            return counted
        known = Spent(experiment.gpu_hours, experiment.cost)
        return known.at_least(counted) if budget.is_used_up(experiment.spec, known) else counted

    def _patience_s(self) -> float:
        """Return the seconds until something is due that no wakeup announces."""
        waits = [POLL_S if self._is_behind else self._poll_s]
        spec = self.experiment.spec
        # Otherwise what is left stays as it is, and may be next to nothing for hours.
        if spec.budget.wall_clock_s is not None and self._spends_time:
            waits.append(spec.budget.wall_clock_s - self.experiment.running_s)
        if spec.is_metered:
            rate = self._memory.spending_rate()
            left_s = budget.until_used_up_s(spec, self._spent(), rate)
            waits += [] if left_s is None else [left_s]
        since_s = self._memory.longest_run_s(self._clock.elapsed_s())
        if not self._memory.canary_over and since_s is not None:
            waits.append(spec.canary_s - since_s)
        return max(SHORTEST_WAIT_S, min(wait for wait in waits if wait > 0))

    # Looking

    async def _look(self) -> None:
        statuses = await self._runtime.observe()
        changes: list[tuple[Opened, Attempt]] = []
        held: set[TrialOrFinal] = set()
        barred: dict[TrialOrFinal, str] = {}
        self._is_behind = False
        for number, opened in self._memory.opened.items():
            newest = opened.newest
            if newest is None:
                continue
            status = statuses.get(self._journal.name(newest))
            if status is not None and status.start_time is None:
                held.add(number)
            if status is not None and status.barred:
                barred[number] = status.barred
            event = await self._look_at(opened, newest, status)
            if event is not None:
                changes.append((opened, step(self._priced(newest, status), event)))
        self._memory.held = frozenset(held)
        self._memory.barred = barred
        self._save(changes)

    async def _look_at(
        self, opened: Opened, newest: Attempt, status: AttemptStatus | None
    ) -> AttemptEvent | None:
        """Read what the newest attempt of a trial has printed, and return what happened to it.

        status: None if the runtime does not show it.
        """
        seen_exit = None if status is None else status.exit
        opened.exit_time = None if seen_exit is None else seen_exit.time
        if status is None:
            # The log of a vanished attempt still counts.
            ended = newest.state is not AttemptState.CREATED
        else:
            ended = seen_exit is not None
        if status is not None or ended:
            is_whole = await self._read_log(opened, ended=ended)
            self._is_behind |= not is_whole
            self._note_end_asked(opened)
            if ended and not is_whole:
                return None  # its end is judged only once its whole log is read
        if newest.ended:
            return None
        opened.note_object(is_there=not ended if status is None else not status.orphaned)
        event = event_for(
            newest,
            status,
            opened.log,
            self.experiment.spec,
            metrics=opened.metrics,
            now=self._clock.now(),
        )
        if isinstance(event, Ended) and opened.metrics.skipped:
            source = self.experiment.spec.metrics.source
            self._journal.lines_skipped(
                newest, opened.metrics.skipped, str(source), now=self._clock.now()
            )
        return event

    def _note_end_asked(self, opened: Opened) -> None:
        """Record, once and before its own end, that a trial has asked to end the search.

        The final stage and reruns repeat what a trial did, and end nothing.
        """
        number, experiment = opened.attempts[-1].trial, self.experiment
        if number is FINAL or experiment.spec.rerun is not None:
            return
        if opened.requests.ends_search and not experiment.ended_by:
            self._journal.end_asked(f"trial {number}", number, now=self._clock.now())

    def _priced(self, attempt: Attempt, status: AttemptStatus | None) -> Attempt:
        """Return an attempt that has begun on a node with prices of its own at these prices."""
        if status is None or not status.prices or attempt.start_time is not None:
            return attempt
        price = self._memory.price_on_node(attempt.trial, status.prices)
        return replace(attempt, price_per_hour=price)

    async def _read_log(self, opened: Opened, *, ended: bool) -> bool:
        """Read the next part of the log and of the measurements; True if that is all for now."""
        name = self._journal.name(opened.attempts[-1])
        read_portion = partial(self._runtime.read_log, name)
        is_whole = await self._feed(opened, opened.log, read_portion, ended=ended)
        if opened.metrics is not opened.log:
            read_portion = partial(self._runtime.read_metrics, name)
            is_whole &= await self._feed(opened, opened.metrics, read_portion, ended=ended)
        template = self.experiment.spec.template_of(opened.attempts[-1].trial)
        if opened.log.offset > template.log_limit_bytes:
            limit = f"spec.trial.logLimit ({format_bytes(template.log_limit_bytes)})"
            remark = f"logs exceed {limit}: of each the beginning and the end are kept"
            self._journal.remark(LOG_LIMIT, remark, now=self._clock.now())
        for kind, remark in opened.metrics.remarks.items():
            self._journal.remark(kind, remark, now=self._clock.now())
        return is_whole

    async def _feed(
        self, opened: Opened, reader: LogReader, read_portion: ReadPortion, *, ended: bool
    ) -> bool:
        for _ in range(MAX_PORTIONS):
            data = await read_portion(reader.offset, limit=LOG_PORTION)
            if len(data) >= THREAD_PORTION:
                readings = await asyncio.to_thread(reader.feed, data)
            else:
                readings = reader.feed(data) if data else []
            if ended and len(data) < LOG_PORTION:
                readings += reader.finish()
            if reader is opened.metrics:
                opened.note(readings)
            if reader is opened.log and self.experiment.spec.define_by_run:
                opened.requests.feed(data)
            if len(data) < LOG_PORTION:
                return True
        return False

    async def _answer_requests(self) -> None:
        """Answer the requests for parameters that trials have printed.

        A turn that fails leaves its requests to the next one, and a killed controller leaves them
        to the next controller: a value is stored before it is shown, and the log is read again.
        """
        for kind, remark in self._search.remarks.items():
            self._journal.remark(kind, remark, now=self._clock.now())
        for number, opened in self._memory.opened.items():
            newest, requests = opened.newest, opened.requests.open
            if newest is None or number is FINAL or not opened.running or not requests:
                continue
            # The request is for the trial whose log has it, whatever trial the line names.
            decide = partial(self._decide, opened)
            for name, request in requests.items():
                opened.answers[name] = await answer_to(request, decide)
            # No trial waits for a planned value, or once it has ended.
            if not newest.ended and not all(each.get("planned") for each in requests.values()):
                await self._runtime.answer(self._journal.name(newest), json.dumps(opened.answers))
            requests.clear()

    # Acting

    async def _act(self, action: wanted.Action) -> bool:
        opened = self._memory.opened
        match action:
            case wanted.Suggest(count, paused_only):
                await self._suggest(count, paused_only=paused_only)
                for begin in core.beginnings(self._snapshot()):
                    await self._act(begin)
            case wanted.CreateAttempt(number, attempt):
                await self._create(number, attempt)
            case wanted.StartAttempt(number, _):
                await self._start(opened[number])
            case wanted.AskStop(number, cause, reason):
                self._change(opened[number], StopAsked(cause, reason))
            case wanted.SendStop(number, grace_s):
                name = self._journal.name(opened[number].attempts[-1])
                with _STOP:
                    await self._runtime.stop(name, grace_s=grace_s)
                self._memory.stops_sent[number] = grace_s
            case wanted.RemoveAttempt(number):
                await self._remove(opened[number].attempts[-1])
                self._memory.removed.add(number)
            case wanted.Complete(number, outcome):
                await self._complete(number, outcome)
            case wanted.Forget(number):
                await self._close(number)
            case wanted.OutdateFinal():
                self._journal.final_outdated()
                self._memory.recall_finals(self._memory.finals, begun=None)
            case wanted.BoundRegret(ended):
                self._memory.regret_bound = await self._search.regret_bound()
                self._memory.estimated = ended
            case wanted.OpenBreaker(trials, reason):
                failures = self._memory.failures(trials)
                if len(failures) < len(trials):
                    return False  # another client has completed one of them: decide again
                self._journal.broken(failures, reason, now=self._clock.now())
                self._memory.put_aside(trials)
            case wanted.ChangeState():
                await self._change_state(action)
                return action.done
            case _:
                assert_never(action)
        return False

    async def _create(self, number: TrialOrFinal, attempt: int) -> None:
        """Record a new attempt, then start it."""
        rate = self._memory.rate_of_next(number)
        opened = self._memory.opened
        created = Attempt(
            number,
            attempt,
            fidelity=None if number is FINAL else opened[number].trial.fidelity,
            gpus=rate.gpu_hours,
            price_per_hour=rate.cost,
        )
        begun = self.experiment.final
        of = await self._open_final(begun) if number is FINAL else None
        self._journal.attempt_created(created, now=self._clock.now(), of=of)
        self._memory.begin(opened[number], created, now_s=self._clock.elapsed_s())
        await self._start(opened[number])

    async def _change_state(self, change: wanted.ChangeState) -> None:
        state, reason, code = change.state, change.reason, change.code
        if not reason:
            reason, code = self.experiment.reason, self.experiment.reason_code
        if state.finished:
            self._take_requests()  # before others learn of the end
        if state.finished or (change.done and state is ExperimentState.STOPPED):
            await self._runtime.conclude(self._conclusion(state, reason))
        now = self._clock.now()
        if state.finished:
            self._journal.experiment_finished(
                state, reason, code, [*self._memory.set_aside.values()], now=now
            )
        else:
            end = change.done and state is not ExperimentState.PAUSED
            self._journal.experiment_changed(state, reason, code, now=now, end=end)

    def _conclusion(self, state: ExperimentState, reason: str) -> Conclusion:
        best, criteria = self._memory.best_with_imported, self.experiment.spec.criteria
        if best is None:
            return Conclusion(state, reason)
        metrics = [objective.metric for objective in criteria.objectives]
        values = dict(zip(metrics, best.values, strict=False))  # the first one alone may be known
        shown = {"trial": best.number, "values": values, "parameters": dict(best.parameters)}
        return Conclusion(state, reason, shown)

    async def _open_final(self, begun: FinalRun | None) -> int | None:
        """Open the final stage in memory, and return the trial whose parameters it has from now on.

        Returns None if it continues with the recorded parameters of `begun`. The parameters are
        chosen when the stage begins, and a restart, a retry or a resume keeps them. If the stage
        was stopped for good, or the search has continued since, it starts over with the best
        parameters of that time.
        """
        memory = self._memory
        again = begun is not None and not memory.may_choose_final
        trial = await (
            self._search.trial(begun.trial) if begun is not None and again else self._search.best()
        )
        if not again and (begun is None or trial.number != begun.trial):
            memory.recall_finals(memory.finals, begun=None)
        memory.open_final(trial)
        return None if memory.finals else trial.number

    async def _suggest(self, count: int, *, paused_only: bool) -> None:
        memory = self._memory
        try:
            suggestions = await self._search.suggest(
                count, handed_out=memory.handed_out, paused_only=paused_only
            )
        except LimitReached as full:
            # Running trials still finish. Once a person has freed space, `tuner resume` continues.
            state, code = ExperimentState.PAUSED, ReasonCode.LIMIT_REACHED
            self._journal.experiment_changed(state, str(full), code, now=self._clock.now())
            return
        for trial in suggestions.trials:
            memory.handed_out += 1
            if trial.finished:  # a repeated reply may have trials that were completed long ago
                memory.count(trial)
            elif memory.belongs_to_another_client(trial):
                await self._search.complete(trial.number, LOST, [])
                self._journal.in_doubt = True
            else:
                memory.take_suggested(trial)
        if paused_only:
            memory.none_goes_on = not suggestions.trials
            return
        memory.exhausted = suggestions.exhausted
        memory.independent, memory.none_begins = suggestions.independent, suggestions.waiting
        if not suggestions.trials and not suggestions.exhausted:
            if not suggestions.waiting:
                raise Unavailable(NO_TRIAL)
            if not any(opened.running for opened in memory.opened.values()):
                raise _OthersRun(OTHERS_RUN)

    async def _start(self, opened: Opened) -> None:
        try:
            launch = await self._launcher(self.experiment, opened.trial, opened.attempts)
            if why := launch.starts_over:
                self._journal.starts_over(opened.attempts[-1], why, now=self._clock.now())
            # the final stage; trials were checked earlier
            if self._runtime.slots(launch.gpu, launch.workers) == 0:
                raise CannotStart(f"it asks for more GPUs ({launch.gpu:g}) than this machine has")
            with _START:
                await self._runtime.start(launch)
        except CannotStart as error:
            verdict = AttemptState.FAILED
            if isinstance(error, ParametersRefused) and opened.attempts[-1].trial is not FINAL:
                # ends the trial: another attempt would be refused, too
                verdict = AttemptState.INFEASIBLE
            refused = Ended(
                verdict, self._clock.now(), reason=str(error), failure_class=error.failure_class
            )
            self._change(opened, refused)

    async def _complete(self, number: int, outcome: Outcome) -> None:
        opened = self._memory.opened.get(number)
        if opened is None:  # it was paused
            trial = await self._search.complete(number, outcome, [])
            self._memory.count(trial)
            self._tell(trial)
            return
        await self._uploads.send(self._memory, number, leave=MAX_REPORT)
        if opened.running:
            trial = await self._search.complete(number, outcome, opened.unreported)
            opened.running = False  # the next turn forgets it, after filling its slot
            if trial.state is TrialState.PAUSED:
                self._memory.pause(trial, opened.attempts)
                return
            self._memory.count(trial)
            self._tell(trial)

    def _tell(self, trial: Trial) -> None:
        desired = self._on_trial(trial)
        if desired is not DesiredState.FINISH:
            self.request(desired)
        elif not self.experiment.ended_by:
            # The next controller has to know it, too.
            by = f"a callback of trial {trial.number}"
            self._journal.end_asked(by, trial.number, now=self._clock.now())

    async def _close(self, number: TrialOrFinal) -> None:
        for attempt in self._memory.opened[number].attempts:
            await self._remove(attempt)
        self._memory.close(number)

    async def _remove(self, attempt: Attempt) -> None:
        with _REMOVE:
            await self._runtime.remove(self._journal.name(attempt))

    def _change(self, opened: Opened, event: AttemptEvent) -> None:
        self._save([(opened, step(opened.attempts[-1], event))])

    def _save(self, changes: list[tuple[Opened, Attempt]]) -> None:
        """Store the changes first, then apply them in memory.

        A change that is not stored has not happened.
        """
        changed = [(opened, after) for opened, after in changes if after != opened.attempts[-1]]
        pairs = [(opened.attempts[-1], after) for opened, after in changed]
        self._journal.attempts_changed(pairs, now=self._clock.now())
        for opened, after in changed:
            opened.attempts[-1] = after
            self._memory.note_attempt(after)


def _runs_again(trial: Trial, attempts: Sequence[Attempt]) -> bool:
    """Return whether the trial failed and its newest attempt is set aside."""
    return trial.state is TrialState.FAILED and bool(attempts) and attempts[-1].set_aside
