"""Simulation of a whole experiment: real loop, engine and stores,
with a simulated runtime and virtual time.

At any call of the loop, the simulation may refuse it, lose its reply, or kill the controller before
or after it. It checks the invariants after every call, and the outcome at the end.
"""

from __future__ import annotations

import asyncio
import re
import signal
from collections import Counter
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from controller import memory
from controller.core import breaker, budget
from controller.core.attempt import RuntimeLost
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    Experiment,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    Revision,
    StopCause,
    attempt_name,
)
from controller.core.snapshot import DesiredState
from controller.experiment_store import Changes, SqlExperimentStore, sqlite_database
from controller.folders import ExperimentFolders
from controller.loop import Loop
from controller.runtime import registry
from controller.runtime.protocol import Launch
from controller.search import study_name
from suggest.errors import FailedPrecondition, Unavailable
from suggest.storage.sqlite_store import SqliteStore as StudyStore
from suggest.studies import StudyService
from suggest.study import Direction
from suggest.trial import Trial, TrialState
from tests.sim.breaker_invariants import GOOD, BreakerInvariants, spent_since_set_aside
from tests.sim.checkpoint_invariants import SimulatedCheckpoints, waits
from tests.sim.fidelity_invariants import check_steps, is_step
from tests.sim.final_invariants import check_final_end, check_final_start
from tests.sim.invariant import InvariantViolation
from tests.sim.naming_invariants import check_named, naming
from tests.sim.simulated_runtime import (
    EPOCH,
    Script,
    SimulatedProvider,
    SimulatedRuntime,
    VirtualClock,
)
from tests.sim.spending_invariants import check_begins_within_budget, check_sum, is_used_up

T = TypeVar("T")

# the longest experiment so far took 8,044: its trials were killed at each of their fidelities
MAX_CALLS = 12_000
# Calls of the stores after which they say what they said before.
# Any other may have changed trials or attempts.
READS = frozenset(
    {
        "attempts",
        "attempts_that_change",
        "requests",
        "get_study",
        "get_trial",
        "list_trials",
        "optimal_trials",
    }
)
MAX_VIRTUAL_S = 100_000.0


PROVIDER = SimulatedProvider()


class Fault(Enum):
    """A fault of a call."""

    DIE_BEFORE = "die before"
    DIE_AFTER = "die after"
    REFUSED = "refused"
    REPLY_LOST = "reply lost"


class Killed(BaseException):
    """Simulates the death of the controller's process, so the controller must not catch it."""


@dataclass(frozen=True)
class Plan:
    """A drawn plan: the experiment, the behavior of each attempt, the faults of calls, and the
    actions of the user.

    scripts: cycled over (trial, attempt).
    finals: the behavior of each attempt of the final stage; the last one repeats.
    faults: by (method, number of the call).
    requests: of the user, with their virtual time in seconds: detach, interrupt, kill or stop.
    last_faults, last_requests: the same, counted from the first record of the final stage.
    """

    spec: ExperimentSpec
    scripts: Sequence[Script]
    finals: Sequence[Script] = ()
    faults: Mapping[tuple[str, int], Fault] = field(default_factory=dict)
    requests: Sequence[tuple[float, str]] = ()
    last_faults: Mapping[tuple[str, int], Fault] = field(default_factory=dict)
    last_requests: Sequence[tuple[float, str]] = ()
    # whether the runtime shows a started attempt at once; a cluster does not
    shows_at_once: bool = True
    retries: str = ""  # after the experiment failed: run "all" failed trials again, or only "one"
    # after it succeeded: extend it as it is ("finished"), or before its end was written ("killed")
    grows: str = ""


class Simulation:
    """The environment of one experiment, which survives its controllers.

    `run` simulates it to the end.
    """

    def __init__(
        self, plan: Plan, *, store: SqlExperimentStore, studies: StudyService, uid: str, home: Path
    ) -> None:
        self.plan = plan
        self.clock = VirtualClock()
        self.store = store
        self.studies = studies
        self._printed = {value for script in (*plan.scripts, GOOD) for value in _printed(script)}
        self.runtime = SimulatedRuntime(self.clock, self._script, shows_at_once=plan.shows_at_once)
        PROVIDER.runtimes[uid] = self.runtime
        spec = replace(plan.spec, name=f"sim{uid}", runtime="simulated", document={"uid": uid})
        self.experiment = Experiment(
            uid=uid,
            spec=spec,
            revision=1,
            directory="/",
            study="",
            start_time=EPOCH,
            state=ExperimentState.RUNNING,
        )
        SPECS[uid] = spec
        store.create_experiment(self.experiment, Revision(1, spec, "", EPOCH))
        self.calls = 0
        self.calls_of: Counter[str] = Counter()
        self.lives = 0
        self.stopped_by_user = False
        self.interrupted = False
        self.detached = False
        self.outcomes: dict[int, Trial] = {}
        # (trial, attempt) that the study advised to stop, with a reply that arrived.
        self.advised: set[tuple[int, int]] = set()
        self.faults_left = dict(plan.faults)
        self.requests_left = list(plan.requests)
        self.in_final = False
        self.finals_before = 0  # attempts of the final stage when the search was extended
        # number of trials when each attempt of the final stage started
        self.seen_by_final: dict[int, int] = {}
        self.loop: Loop | None = None
        # what the stores say, until a call may have changed it
        self._known_attempts: list[Attempt] | None = None
        self._known_trials: list[Trial] | None = None
        self._checked = False  # whether these trials have passed `check_trials`
        self.breaker = BreakerInvariants()
        self.checkpoints = SimulatedCheckpoints(ExperimentFolders(home / uid))

    # The simulation

    def run(self) -> ExperimentState:
        """Run one controller after another until the experiment has ended permanently."""
        registered = patch.dict(registry.LOADED, {"simulated": PROVIDER})
        with patch.multiple(memory, BRISK_TRIALS=1, LEARNER_PARALLEL=3), registered:
            return self._live_on()

    def _live_on(self) -> ExperimentState:
        while True:
            self.lives += 1
            if self.lives > 200:
                raise InvariantViolation("it does not end: 200 controllers were not enough")
            self.experiment = self._stored()
            self.detached = False
            self.loop = self._loop()
            try:
                # no coroutine really waits, so its order is always the same
                ended = asyncio.run(self.loop.run())
            except Killed:
                ended = self._stored()
                if not ended.state.finished:  # no controller runs a finished experiment
                    continue
            except (FailedPrecondition, Unavailable, RuntimeLost) as error:
                raise InvariantViolation(f"it gave up: {error}") from error
            if ended.state in (ExperimentState.RUNNING, ExperimentState.STOPPING):
                continue  # detached: running trials continue, and the next controller adopts them
            if ended.state is ExperimentState.PAUSED and self.detached:
                # also here: it exited before the trials beside the refused one had ended
                self._lift()
                continue
            self._check_memory(ended)
            if ended.state is ExperimentState.PAUSED:
                self._lift()
            elif ended.state is ExperimentState.STOPPED:
                self._resume()
            else:
                self._check_end(ended)
                if self.plan.retries and ended.state is ExperimentState.FAILED:
                    self._retry()
                    continue
                if not (self.plan.grows and ended.state is ExperimentState.SUCCEEDED):
                    return ended.state
                self._extend()

    def _loop(self) -> Loop:
        provider = registry.provider_of(self.experiment.spec.runtime)
        folders = ExperimentFolders(Path("/"))
        self.build = provider.launch_builder(self.experiment, folders)
        records = self.store.object_records(self.experiment.uid)
        runtime = play(provider.connect(self.experiment, folders, records)).runtime
        return Loop(
            self.experiment,
            # it stands in for it
            store=_Proxy(self, self.store, "store", Unavailable),  # type: ignore[arg-type]
            studies=_Proxy(self, _AsyncStudies(self.studies), "studies", Unavailable),  # type: ignore[arg-type]
            runtime=_Proxy(self, runtime, "runtime", RuntimeLost),  # type: ignore[arg-type]
            launcher=_Proxy(self, self, "launcher", Unavailable).launch,
            clock=self.clock,
        )

    async def launch(
        self, experiment: Experiment, trial: Trial, attempts: Sequence[Attempt]
    ) -> Launch:
        attempt = attempts[-1]
        name = attempt_name(experiment.name, experiment.uid, attempt.trial, attempt.number)
        recorded = {(known.trial, known.number) for known in self._attempts()}
        if (attempt.trial, attempt.number) not in recorded:
            raise InvariantViolation(f"{name} is started before it is recorded")
        if attempt.trial == FINAL:
            trials = self._trials()
            check_final_start(trial, trials, self._stored())
            self.seen_by_final[attempt.number] = len(trials)
        elif self._stored().ended_by:
            raise InvariantViolation(f"{name} begins after a trial has ended the search")
        elif experiment.spec.algorithm.name == "pbt":
            self.checkpoints.prepare(trial, attempt)
        return self.build(
            experiment, trial, attempts, ExperimentFolders(Path("/")).attempt(attempt.trial, 1)
        )

    def _script(self, launch: Launch) -> Script:
        number = launch.name.removeprefix(
            f"{self.experiment.name}-{self.experiment.uid[:5]}-"
        ).partition("-r")[0]
        if self.experiment.spec.algorithm.name == "pbt" and number != FINAL.value:
            self.checkpoints.begin(int(number), self._trials())
        return self._script_of(launch.name)

    def _script_of(self, attempt: str) -> Script:
        name = attempt.removeprefix(f"{self.experiment.name}-{self.experiment.uid[:5]}-")
        number, _, repeat = name.partition("-r")
        if number == "final":
            return self.plan.finals[min(int(repeat or 1), len(self.plan.finals)) - 1]
        place = (int(number) + 7 * (int(repeat or 1) - 1)) % len(self.plan.scripts)
        script = self.plan.scripts[place]
        return naming(script) if self.experiment.spec.define_by_run else script

    def _lift(self) -> None:
        """Fix the cause of a pause; with a pause by the breaker, only when it happens again."""
        self.breaker.check_pause(self._stored(), self._attempts())
        scripts = [replace(s, refused="") for s in self.plan.scripts]
        self.plan = replace(self.plan, scripts=[GOOD] if self.breaker.pauses > 1 else scripts)
        self._set_running()

    def _retry(self) -> None:
        """Run `tuner retry` for all failed trials or one of them, after fixing the cause."""
        failed = [trial.number for trial in self._trials() if trial.state is TrialState.FAILED]
        again = failed if self.plan.retries == "all" else failed[:1]
        self.plan = replace(self.plan, retries="", scripts=[GOOD])
        newest = {attempt.trial: attempt for attempt in self._attempts()}
        marked = [replace(newest[number], set_aside=True, reviewed=False) for number in again]
        self._save(Changes(attempts=marked))
        self._set_running()

    def _extend(self) -> None:
        """Run `tuner extend` with more trials."""
        spec, uid = self.experiment.spec, self.experiment.uid
        trials = None if spec.budget.trials is None else spec.budget.trials + 2
        SPECS[uid] = replace(spec, budget=replace(spec.budget, trials=trials))
        found = self._stored()
        kept = found.final if self.plan.grows == "killed" else None
        self.plan = replace(self.plan, grows="")
        self.finals_before = sum(attempt.trial == FINAL for attempt in self._attempts())
        self._save(
            Changes(
                replace(found, state=ExperimentState.RUNNING, reason="", final=kept, ended_by=""),
                final=True,
            )
        )

    def _resume(self) -> None:
        self._set_running()
        self.store.request_stop(self.experiment.uid, wanted=False)

    def _set_running(self) -> None:
        stored, attempts = self._stored(), self._attempts()
        seen = []
        if stored.state is not ExperimentState.STOPPED:
            seen = breaker.reviewed(attempts)
            self.breaker.go_on(attempts)
        running = replace(stored, state=ExperimentState.RUNNING, reason="")
        self._save(Changes(running, attempts=seen))

    def _stored(self) -> Experiment:
        found = self.store.experiment(self.experiment.namespace, self.experiment.name)
        assert found is not None
        return found

    def act_as_user(self) -> None:
        """Do the user's actions up to the present time: Ctrl-C in the loop,
        `tuner stop` in the store.
        """
        while (
            self.requests_left
            and self.requests_left[0][0] <= self.clock.elapsed_s()
            and self.loop is not None
        ):
            _, request = self.requests_left.pop(0)
            if request == "detach":
                self.loop.detach()
                self.detached = True
            elif request == "stop":
                self.stopped_by_user = True
                self.store.request_stop(self.experiment.uid)
            else:
                self.interrupted = True
                self.loop.request(DesiredState.INTERRUPT)
                if request == "kill":
                    self.loop.kill()

    def note_save(self, changes: Changes) -> None:
        """Note what is set aside at the end, and switch to the faults
        of the final stage at its first record.
        """
        ends = changes.experiment is not None and changes.experiment.state.finished
        if ends and self.runtime.conclusion is None:
            raise InvariantViolation(
                "its end is saved, and another controller could still continue it"
            )
        if ends and not self._stored().state.finished:  # a write whose reply was lost is repeated
            self.breaker.note_end(self._attempts(), self._trials())
        if not self.in_final and any(attempt.trial == FINAL for attempt in changes.attempts):
            self.in_final = True
            self.calls_of.clear()
            self.faults_left = dict(self.plan.last_faults)
            self.requests_left = [
                (self.clock.elapsed_s() + after_s, request)
                for after_s, request in self.plan.last_requests
            ]

    # The invariants

    def check_call(self) -> None:
        if self.calls > MAX_CALLS or self.clock.elapsed_s() > MAX_VIRTUAL_S:
            raise InvariantViolation("it does not end")
        running = self.runtime.running()
        if len(running) > self.experiment.spec.parallelism:
            raise InvariantViolation(
                f"{len(running)} running, parallelism is {self.experiment.spec.parallelism}: "
                f"{running}"
            )
        if any(name.partition("-r")[0].endswith("-final") for name in running) and len(running) > 1:
            raise InvariantViolation(f"beside the final stage something else runs: {running}")
        twice = [name for name, n in Counter(self.runtime.starts).items() if n > 1]
        if twice:
            raise InvariantViolation(f"started twice: {twice}")

    def check_canary(self, changes: Changes) -> None:
        """Check that no other trial begins until the first one, the canary, has proved itself."""
        recorded = {(a.trial, a.number): a for a in self._attempts()}
        begun = [
            a for a in changes.attempts if (a.trial, a.number) not in recorded and a.trial != FINAL
        ]
        if not begun or self.loop is None:
            return
        shown = self.loop.progress()
        if shown.canary and shown.running:
            raise InvariantViolation(f"the first trial does not run alone: {begun}")
        attempts = list(recorded.values())
        check_begins_within_budget(self.experiment.spec, begun, attempts, self.clock.now())
        self.breaker.check_begun(
            self.experiment.spec, shown.running, attempts, self._trials(), now=self.clock.now()
        )

    def check_trials(self) -> None:
        if self._checked:
            return
        trials = self._trials()
        limit = self.experiment.spec.budget.trials
        counting = [t for t in trials if t.state is not TrialState.CANCELLED]
        # With a budget of one trial, the first may fail alone,
        # and another one determines the reason.
        checked = self.experiment.spec.canary_s > 0 and any(
            t.state is TrialState.FAILED for t in counting[:1]
        )
        twice = any(a.set_aside for a in self._attempts()) or checked
        if limit is not None and len(counting) > (2 if limit == 1 and twice else limit):
            raise InvariantViolation(f"{len(counting)} trials count, the budget is {limit}")
        self._check_prefetch(trials)
        for trial in trials:
            known = self.outcomes.get(trial.number)
            if known is not None and known != trial and self._was_set_aside(trial.number):
                known = known if known.state is not TrialState.FAILED else None  # it was run again
            if known is not None and known != trial:
                raise InvariantViolation(f"a finished trial changed: {known} -> {trial}")
            if trial.finished:
                if self.experiment.spec.define_by_run:
                    check_named(trial)
                self.outcomes[trial.number] = trial
                self._check_outcome(trial, new=known is None)
            elif trial.value is not None and trial.state is not TrialState.PAUSED:
                raise InvariantViolation(f"{trial} has a value before its outcome")
        self._checked = True

    def _check_prefetch(self, trials: Sequence[Trial]) -> None:
        """Check that no point is requested while outcomes are missing
        from which it should have learned.
        """
        spec = self.experiment.spec
        again = {attempt.trial for attempt in self._attempts() if attempt.set_aside}
        missing = sum(
            trial.state is TrialState.RUNNING and trial.number not in again for trial in trials
        )
        learner = int(spec.parallelism >= memory.LEARNER_PARALLEL)
        prefetched = learner if spec.algorithm.name in ("tpe", "pbt") else min(2, spec.parallelism)
        if missing > spec.parallelism + prefetched:
            raise InvariantViolation(
                f"{missing} are open, {spec.parallelism} may run, and {prefetched} may wait"
            )

    def _check_outcome(self, trial: Trial, *, new: bool) -> None:
        attempts = [a for a in self._attempts() if a.trial == trial.number]
        if any(not attempt.ended for attempt in attempts):
            raise InvariantViolation(
                f"trial {trial.number} has an outcome, and an attempt that has not ended: "
                f"{attempts}"
            )
        if trial.state is TrialState.SUCCEEDED:
            if trial.value is None or trial.value not in self._printed:
                raise InvariantViolation(
                    f"succeeded with value {trial.value}, which no program prints"
                )
            if (
                attempts[-1].state is not AttemptState.SUCCEEDED
                or attempts[-1].value != trial.value
            ):
                raise InvariantViolation(
                    f"{trial} succeeded, but its newest attempt says {attempts[-1]}"
                )
        if trial.state is TrialState.FAILED:
            self._check_failure(attempts)
        if (
            new
            and trial.state is TrialState.CANCELLED
            and not (self.stopped_by_user or self._may_cancel())
        ):
            raise InvariantViolation(f"trial {trial.number} was cancelled for nothing")

    def _check_failure(self, attempts: Sequence[Attempt]) -> None:
        newest = attempts[-1]
        if newest.failure_class in (None, FailureClass.CONFIGURATION):
            raise InvariantViolation(f"no reason for a trial to fail: {newest}")
        spent = spent_since_set_aside(attempts)
        allowed = self.experiment.spec.trial.retries.get(newest.failure_class, 0)
        if spent != allowed + 1:
            raise InvariantViolation(
                f"failed after {spent} {newest.failure_class.value} failures; retries are {allowed}"
            )

    def _was_set_aside(self, number: int) -> bool:
        return any(a.set_aside for a in self._attempts() if a.trial == number)

    def _may_cancel(self) -> bool:
        """Return whether the experiment is ending in a way that cancels running trials."""
        counts = Counter(t.state for t in self._trials())
        values = [
            t.value
            for t in self._trials()
            if t.state is TrialState.SUCCEEDED and t.value is not None
        ]
        spec = self.experiment.spec
        best = (max if spec.objective.direction is Direction.MAXIMIZE else min)(
            values, default=None
        )
        ending = budget.ending(
            replace(spec, budget=replace(spec.budget, trials=None, wall_clock_s=None)),
            budget.Standing(
                counts=counts, best=best, running_s=0.0, ended_by=self._stored().ended_by
            ),
        )
        spent = (
            spec.budget.wall_clock_s is not None
            and self.clock.elapsed_s() >= spec.budget.wall_clock_s - 0.01
        )
        spent |= is_used_up(spec, self._attempts(), self.clock.now())
        return ending is not None or spent

    def check_work(self, within_s: float) -> None:
        """Check that the loop does not wait while there is a free slot and work to do."""
        loop = self.loop
        suspended = self.runtime.suspended()
        for trial in loop.progress().running if loop is not None else ():
            name = attempt_name(
                self.experiment.name, self.experiment.uid, trial.number, trial.attempt
            )
            if name in suspended and trial.state is AttemptState.RUNNING:
                raise InvariantViolation(
                    f"{name} is shown as running, and its queue has taken its place back"
                )
            if (
                trial.number,
                trial.attempt,
            ) in self.advised and trial.state is AttemptState.RUNNING:
                raise InvariantViolation(f"trial {trial.number} is hopeless, and runs on")
        if (
            loop is None
            or loop.progress().stopping
            or loop.experiment.state is not ExperimentState.RUNNING
        ):
            return
        shown, spec = loop.progress(), self.experiment.spec
        if shown.canary:
            return
        if len(shown.running) < spec.parallelism and not shown.exhausted and not self._may_cancel():
            paused = shown.counts.get(TrialState.PAUSED, 0)
            room = budget.room(spec, shown.counts, len(shown.running) + shown.queued + paused)
            asks = (room is None or room > 0) and not waits(spec, self._trials())
            if asks or shown.queued:
                raise InvariantViolation(
                    f"waits {within_s} s with {len(shown.running)} running, {shown.queued} "
                    f"queued, {room} to ask"
                )

    def _check_memory(self, ended: Experiment) -> None:
        if self.runtime.running():
            raise InvariantViolation(f"the controller left {self.runtime.running()} running")
        stored = self._stored()
        if stored.state is not ended.state:
            raise InvariantViolation(f"stored as {stored.state.value}, told as {ended.state.value}")
        check_sum(ended, self._attempts(), self.clock.now())
        self.check_trials()

    def _check_end(self, ended: Experiment) -> None:
        trials = self._trials()
        left = [t for t in trials if not t.finished]
        if left:
            raise InvariantViolation(f"the experiment ended, but these did not: {left}")
        if shown := play(self.runtime.observe()):
            raise InvariantViolation(f"left in the runtime: {sorted(shown)}")
        counts = Counter(t.state for t in trials)
        failed_limit = self.experiment.spec.budget.failed_trials
        failed = counts[TrialState.FAILED] - len(self.breaker.aside_at_end)
        too_many = failed_limit is not None and failed >= failed_limit
        without_value = counts[TrialState.SUCCEEDED] == 0
        if (too_many or without_value) is not (ended.state is ExperimentState.FAILED):
            raise InvariantViolation(
                f"{counts} with {failed_limit} allowed to fail, but it {ended.state.value}"
            )
        self.breaker.check_end(self.experiment.spec, self._attempts(), trials, ended.reason)
        if not self._may_cancel():
            counted = len(trials) - counts[TrialState.CANCELLED]
            limit = self.experiment.spec.budget.trials
            if (
                counted != limit
                and (limit, counted) != (1, 2)
                and not self._space_is_finished(trials)
            ):
                raise InvariantViolation(f"it ended after {counted} trials: {ended.reason}")
        self._check_nothing_lost(trials)
        if self.experiment.spec.fidelity is not None:
            check_steps(self.experiment.spec, self._attempts(), trials)

    def _space_is_finished(self, trials: Sequence[Trial]) -> bool:
        if self.experiment.spec.algorithm.name != "grid":
            return False
        points = [
            tuple(sorted(t.parameters.items()))
            for t in trials
            if t.state is not TrialState.CANCELLED
        ]
        if len(set(points)) != len(points):
            raise InvariantViolation("a grid point was tried twice")
        return len(points) == GRID_POINTS

    def _check_nothing_lost(self, trials: Sequence[Trial]) -> None:
        """Check that every successful attempt is a trial's outcome,
        and that every process was a recorded attempt.
        """
        everything = self._attempts()
        finals = [a for a in everything if a.trial == FINAL]
        check_final_end(
            self._stored(), finals, trials, seen=self.seen_by_final, before=self.finals_before
        )
        recorded = [a for a in everything if a.trial != FINAL]
        names = {
            attempt_name(self.experiment.name, self.experiment.uid, a.trial, a.number)
            for a in everything
        }
        if strangers := set(self.runtime.starts) - names:
            raise InvariantViolation(f"ran without a record: {strangers}")
        by_number = {t.number: t for t in trials}
        for attempt in recorded:
            outcome = by_number[attempt.trial].state.value
            ended_well = attempt.state in (
                AttemptState.SUCCEEDED,
                AttemptState.PRUNED,
                AttemptState.INFEASIBLE,
            )
            if is_step(attempt, self.experiment.spec):
                continue
            if ended_well and outcome != attempt.state.value:
                raise InvariantViolation(f"{attempt} ended so, but its trial {outcome}")
            self._check_attempt(attempt)
        if (
            any(a.failure_class is FailureClass.CONFIGURATION for a in recorded)
            and not self._script_refused_once()
        ):
            raise InvariantViolation("a configuration failure out of nothing")

    def _check_attempt(self, attempt: Attempt) -> None:
        """Check that an attempt ended because of its script, or because it was stopped."""
        # A pause withdraws attempts that wait for their start, but such an attempt may have begun
        # and ended meanwhile.
        may_be = self.interrupted or self.runtime.has_barred or self._script_refused_once()
        if attempt.stop_cause is StopCause.INTERRUPTED and not may_be:
            raise InvariantViolation(f"nobody interrupted {attempt}")
        if attempt.state is not AttemptState.FAILED:
            return
        if attempt.signal == signal.SIGTERM and attempt.failure_class is not FailureClass.TIMEOUT:
            raise InvariantViolation(f"it failed by our own signal: {attempt}")
        name = attempt_name(
            self.experiment.name, self.experiment.uid, attempt.trial, attempt.number
        )
        script = self._script_of(name)
        mended = self.plan.scripts == [GOOD]
        if "disappeared" in attempt.reason and script.vanishes_at is None and not mended:
            raise InvariantViolation(f"it vanished by our own hand: {attempt}")

    def _script_refused_once(self) -> bool:
        return any(event.kind == "paused" for event in self.store.events(self.experiment.uid))

    def _trials(self) -> list[Trial]:
        if self._known_trials is None:
            name, uid = study_name(self.experiment), self.experiment.uid
            self._known_trials = self.studies.list_trials(name, client_id=uid, limit=10_000)
        return self._known_trials

    def _attempts(self) -> list[Attempt]:
        if self._known_attempts is None:
            self._known_attempts = self.store.attempts(self.experiment.uid)
        return self._known_attempts

    def _save(self, changes: Changes) -> None:
        self.forget_what_it_said("store")
        self.store.save(self.experiment.uid, changes)

    def forget_what_it_said(self, place: str) -> None:
        """Read what this place stores again, as a call may have changed it:
        attempts, or trials, or neither.
        """
        match place:
            case "store":
                self._known_attempts = None
            case "studies":
                self._known_trials = None
            case "runtime" | "launcher":
                return
            case _:
                raise AssertionError(f"there is no place {place!r}")
        self._checked = False


class _AsyncStudies:
    """The service's object with the client's coroutines. gRPC is tested elsewhere."""

    def __init__(self, studies: StudyService) -> None:
        self._studies = studies

    def __getattr__(self, method: str) -> Any:  # any method that the loop calls
        call = {"get_study": self._studies.study, "get_trial": self._studies.trial}.get(method)
        call = call or getattr(self._studies, method)

        async def answered(*args: Any, **kwargs: Any) -> Any:
            if method == "list_trials":
                kwargs["limit"] = 10_000
            return call(*args, **kwargs)

        return answered


class _Proxy:
    """Forwards every call, unless there is a fault before or after it."""

    def __init__(
        self, simulation: Simulation, target: Any, place: str, trouble: type[Exception]
    ) -> None:
        self._simulation, self._target, self._place, self._trouble = (
            simulation,
            target,
            place,
            trouble,
        )

    def __getattr__(self, method: str) -> Any:
        call = getattr(self._target, method)
        # Nothing of these can fail.
        if method in ("slots", "shows_at_once", "wake", "restarts", "now"):
            return call
        if self._place == "store":
            return lambda *args: self._stored(method, call, *args)

        async def later(*args: Any, **kwargs: Any) -> Any:
            self._simulation.act_as_user()
            if method == "wait":
                self._simulation.check_work(args[0])
                self._simulation.check_trials()
            result = self._with_faults(method, lambda: play(call(*args, **kwargs)))
            if method == "report" and result.should_stop:
                self._simulation.advised.add((args[1], args[2][-1].attempt))
            return result

        return later

    def _stored(self, method: str, call: Any, *args: Any) -> Any:
        if method == "save":
            self._simulation.check_canary(args[1])
            self._simulation.note_save(args[1])
        return self._with_faults(method, lambda: call(*args))

    def _with_faults(self, method: str, call: Any) -> Any:
        simulation = self._simulation
        simulation.calls += 1
        simulation.calls_of[method] += 1
        fault = simulation.faults_left.pop((method, simulation.calls_of[method]), None)
        if fault is Fault.DIE_BEFORE:
            raise Killed
        if fault is Fault.REFUSED:
            raise self._trouble(f"{self._place}.{method} was refused")
        if method not in READS:
            simulation.forget_what_it_said(self._place)
        result = call()
        simulation.check_call()
        if fault is Fault.DIE_AFTER:
            raise Killed
        if fault is Fault.REPLY_LOST:
            raise self._trouble(f"{self._place}.{method}: the reply was lost")
        return result


def play(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that never really waits, as in virtual time."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]
    raise AssertionError("a simulated experiment waited in real time")


SPECS: dict[str, ExperimentSpec] = {}
"""Specs by uid. The simulation builds specs directly, without a file, so they cannot be read from the store."""
GRID_POINTS = 6


def stores(folder: Path) -> tuple[SqlExperimentStore, StudyService]:
    """Return both real stores, which all simulations of a test session share;
    each simulation has its own uid.
    """
    store = SqlExperimentStore(
        sqlite_database(folder / "controller.db"), lambda document: SPECS[str(document["uid"])]
    )
    return store, StudyService(StudyStore(folder / "studies.db"), address="")


def _printed(script: Script) -> Iterator[float]:
    """Yield the finite values that a program prints."""
    for _, line in script.lines:
        found = re.search(r"score=([0-9.]+)", line)
        if found is not None:
            yield float(found[1])
