"""What the loop holds in memory between two turns: a cache of the study and the store, rebuilt from them at any time.

Nothing here is the truth of anything, and nothing here does I/O or decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.core.breaker import BY_ITSELF, Streak
from controller.core.metrics import LogReader, MetricReading
from controller.core.model import FINAL, Attempt, AttemptState, ExperimentSpec, FinalRun, StopCause, TrialOrFinal
from controller.core.progress import RunningTrial
from controller.core.snapshot import FinalStage, UnfinishedTrial
from suggest.trial import REUSED, Measurement, Outcome, Trial, TrialState

BRISK_TRIALS = 4  # so many attempts in a row that took less than this are short trials
BRISK_S = {"local": 3.0, "kubernetes": 15.0}  # on a cluster the way of an outcome to us and back takes longer
MAX_AHEAD = 2  # successors that wait at the runtime: a slot is filled by the next in line, not by way of us
LEARNER_AHEAD, LEARNER_PARALLEL = 1, 8  # a point that misses seven outcomes already may miss one more


@dataclass(slots=True)
class Opened:
    """A trial with something left to do, and what was read of its newest attempt's log.

    running: the study waits for its outcome. unreported: measurements that the study has not been told. The final stage
    is here too while the runtime has something of it; its trial is the one whose parameters it has.
    """

    trial: Trial
    attempts: list[Attempt]
    log: LogReader
    running: bool = True
    unreported: list[Measurement] = field(default_factory=list)
    reported_at_s: float = 0.0

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def note(self, readings: list[MetricReading]) -> None:
        if not self.running:
            return  # nobody is told any more, and the final stage's were never the study's
        attempt = self.attempts[-1].number
        self.unreported += [Measurement(attempt, r.metric, r.step, r.value) for r in readings]


class Memory:
    """Of one experiment. Trials enter by `open` or `count`, and leave by `close`."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self._spec = spec
        self.opened: dict[TrialOrFinal, Opened] = {}
        self.counts: dict[TrialState, int] = {}
        self.best: Trial | None = None
        self.front: list[Trial] = []  # the best trials where the experiment has several objectives or constraints
        self.reached = ""  # the targets of several objectives, once a trial has reached them all
        self.since_best = 0  # trials that have ended since one was the best, or joined the front
        self.trend: list[float] = []  # the best value after each succeeded trial
        self.handed_out = 0  # trials that the study has given us: the number of our next request
        self.exhausted = False
        self.independent = False  # what the study hands out next does not depend on how trials end
        self._latest_s: deque[float] = deque(maxlen=BRISK_TRIALS)  # how long attempts took
        self.canary_over = spec.canary_s <= 0
        self._shown = spec.canary_s <= 0  # some attempt has measured something, and was not to blame for its end
        self.streak = Streak()
        self._failures: dict[int, Attempt] = {}  # by the trials of the streak
        self.set_aside: set[int] = set()  # failed trials that run again on resume
        self.advised: dict[TrialOrFinal, str] = {}
        self.stops_sent: dict[TrialOrFinal, float] = {}
        self.removed: set[TrialOrFinal] = set()  # trials whose newest attempt the runtime was told to forget
        self.held: frozenset[TrialOrFinal] = (
            frozenset()
        )  # trials whose newest attempt the runtime has and does not run yet
        self.finals: list[Attempt] = []  # of the final stage since the search last ended
        self.earlier_finals = 0  # how many there were before

    def new_log(self, attempts: Sequence[Attempt]) -> LogReader:
        """Of the newest attempt. The steps of earlier ones are stored, so that a restarted controller counts alike."""
        reached = next((each.step for each in reversed(attempts[:-1]) if each.step is not None), 0)
        spec = self._spec
        return LogReader(spec.metrics, spec.objective, others=spec.other_metrics, start=reached)

    def open(self, trial: Trial, attempts: list[Attempt], *, running: bool = True) -> None:
        self.opened[trial.number] = Opened(trial, attempts, self.new_log(attempts), running)

    def take_in(self, trials: Sequence[Trial]) -> None:
        """All that were handed out to us: those whose handing out we never heard of are open too."""
        self.handed_out = len(trials)
        for trial in trials:
            if not trial.finished and trial.number not in self.opened:
                self.open(trial, [])

    def recall_finals(self, attempts: Sequence[Attempt], *, begun: FinalRun | None) -> None:
        """Of the final stage's attempts those that count now; `begun` is None: none does any more."""
        self.finals = [each for each in attempts if begun is not None and each.number >= begun.first]
        earlier = [each.number for each in attempts if each not in self.finals]
        self.earlier_finals = max([self.earlier_finals, *earlier])

    @property
    def may_choose_final(self) -> bool:
        """The best parameters of now, not those that it began with: it has not begun, or was stopped for good."""
        return not self.finals or self.finals[-1].stop_cause is StopCause.CANCELLED

    def open_final(self, trial: Trial) -> None:
        """With the parameters of that trial."""
        self.opened[FINAL] = Opened(trial, self.finals, self.new_log(self.finals), running=False)

    def final(self) -> FinalStage | None:
        if self._spec.final is None and not self.finals:
            return None
        return FinalStage(tuple(self.finals), self.earlier_finals, kept=FINAL in self.opened)

    def begin(self, known: Opened, created: Attempt, *, now_s: float) -> None:
        """A new attempt of an open trial: nothing of the last one's counts for it."""
        known.attempts.append(created)
        known.reported_at_s = now_s  # a short trial's measurements all travel with its outcome
        known.log = self.new_log(known.attempts)
        known.unreported.clear()
        self.advised.pop(created.trial, None)
        self.stops_sent.pop(created.trial, None)
        self.removed.discard(created.trial)

    def close(self, number: TrialOrFinal) -> None:
        del self.opened[number]
        self.advised.pop(number, None)
        self.stops_sent.pop(number, None)
        self.removed.discard(number)

    def count(self, trial: Trial, newest: Attempt | None = None) -> None:
        """The trial has its outcome. newest: its attempt, where it is not open."""
        self.counts[trial.state] = self.counts.get(trial.state, 0) + 1
        known = self.opened.get(trial.number)
        self._follow(trial, known.newest if known is not None else newest)
        self.since_best += trial.state is not TrialState.CANCELLED
        if trial.state is not TrialState.SUCCEEDED or trial.value is None:
            return
        if not self._spec.criteria.is_plain:
            self._join_front(trial)
            return
        so_far = self.best_value
        value = self._spec.objective.better(so_far, trial.value)
        if value is not None and value != so_far:
            self.best, self.since_best = trial, 0
        self.trend.append(trial.value if value is None else value)

    def _join_front(self, trial: Trial) -> None:
        self.front = self._spec.criteria.best([*self.front, trial])
        if any(one.number == trial.number for one in self.front):
            self.since_best = 0
            self.reached = self.reached or self._spec.targets_reached(trial)
        self.best = self._spec.criteria.first_best(self.front)
        if self.best is not None and self.best.value is not None:
            self.trend.append(self.best.value)

    def _follow(self, trial: Trial, newest: Attempt | None) -> None:
        """The streak of failures; what did not run says nothing about it."""
        if REUSED in trial.labels or newest is None:
            return
        if trial.state is TrialState.FAILED and newest.reviewed:
            self.streak = self.streak.without()
        elif trial.state is not TrialState.FAILED or newest.state is AttemptState.FAILED:
            outcome = Outcome(trial.state, trial.value, trial.reason, trial.failure_class)
            self.streak = self.streak.after(trial.number, outcome)
            self._failures[trial.number] = newest
        looked_at = {*(self.streak.first or ()), *self.streak.alike}
        if len(self._failures) > len(looked_at):
            self._failures = {number: each for number, each in self._failures.items() if number in looked_at}

    def failures(self, trials: Sequence[int]) -> list[Attempt]:
        """The newest attempts of those of these trials that are in the streak."""
        return [self._failures[number] for number in trials if number in self._failures]

    def put_aside(self, trials: Sequence[int]) -> None:
        """They run again on resume, and do not count until then."""
        self.counts[TrialState.FAILED] -= len(trials)
        self.set_aside.update(trials)
        self.streak = self.streak.without(trials)

    def recall_set_aside(self, trial: Trial) -> None:
        """It was put aside before this process began."""
        self.set_aside.add(trial.number)
        self.streak = self.streak.without()

    @property
    def ahead(self) -> int:
        """How many successors may be named before there is a slot for them: as many as cost the search nothing, where
        trials are so short that the way of an outcome to us and back would tell."""
        if len(self._latest_s) < BRISK_TRIALS or max(self._latest_s) >= BRISK_S[self._spec.runtime]:
            return 0
        if self.independent:
            return MAX_AHEAD
        return LEARNER_AHEAD if self._spec.parallelism >= LEARNER_PARALLEL else 0

    @property
    def best_value(self) -> float | None:
        return None if self.best is None else self.best.value

    def note_attempt(self, attempt: Attempt) -> None:
        if attempt.trial is FINAL:
            return
        self._shown |= attempt.step is not None and attempt.failure_class not in BY_ITSELF
        if attempt.start_time is not None and attempt.end_time is not None:
            self._latest_s.append((attempt.end_time - attempt.start_time).total_seconds())

    def longest_run_s(self, now: datetime) -> float | None:
        """How long the first of the attempts that run now has run."""
        starts = [known.newest.start_time for known in self._at_work() if known.newest and known.newest.start_time]
        return (now - min(starts)).total_seconds() if starts else None

    def judge_canary(self, now: datetime) -> None:
        """Whether more than one trial may run. The canary's time, and its metric, are those of what runs: one that
        failed has shown nothing, and the next one is alone again."""
        self.canary_over = self._shown
        if not self.canary_over:
            since_s = self.longest_run_s(now)
            measured = any(known.log.last is not None for known in self._at_work())
            self.canary_over = measured or (since_s is not None and since_s >= self._spec.canary_s)

    def _at_work(self) -> list[Opened]:
        return [
            known
            for number, known in self.opened.items()
            if number is not FINAL and known.newest is not None and not known.newest.ended
        ]

    def open_trials(self) -> list[UnfinishedTrial]:
        return [
            UnfinishedTrial(number, tuple(known.attempts), known.running)
            for number, known in self.opened.items()
            if number is not FINAL
        ]

    def running(self) -> tuple[RunningTrial, ...]:
        """The final stage too, under its own number."""
        return tuple(
            RunningTrial(
                number=number,
                attempt=newest.number,
                state=newest.state,
                start_time=newest.start_time,
                step=known.log.step,
                value=known.log.last,
                parameters=known.trial.parameters,
                waiting_for=newest.reason if newest.state is AttemptState.CREATED else "",
            )
            for number, known in self.opened.items()
            if (newest := known.newest) is not None and not newest.ended
        )

    def waiting(self) -> int:
        """Open trials that nobody runs now."""
        return sum(known.running and (known.newest is None or known.newest.ended) for known in self.opened.values())

    def counted(self) -> Mapping[TrialState, int]:
        return dict(self.counts)
