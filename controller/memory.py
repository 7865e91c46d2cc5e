"""What the loop holds in memory between two turns: a cache of the study and the store, rebuilt from them at any time.

Nothing here is the truth of anything, and nothing here does I/O or decides.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from controller.decide import better
from controller.metrics import LogReader, Reading
from controller.model import FINAL, Attempt, AttemptState, ExperimentSpec, FinalRun, StopCause
from controller.progress import RunningTrial
from controller.snapshot import FinalStage, OpenTrial
from suggest.trial import Measurement, Trial, TrialState

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

    def note(self, readings: list[Reading]) -> None:
        if not self.running:
            return  # nobody is told any more, and the final stage's were never the study's
        attempt = self.attempts[-1].number
        self.unreported += [Measurement(attempt, r.metric, r.step, r.value) for r in readings]


class Memory:
    """Of one experiment. Trials enter by `open` or `count`, and leave by `close`."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self._spec = spec
        self.opened: dict[int, Opened] = {}
        self.counts: dict[TrialState, int] = {}
        self.best: Trial | None = None
        self.trend: list[float] = []  # the best value after each succeeded trial
        self.handed_out = 0  # trials that the study has given us: the number of our next request
        self.exhausted = False
        self.independent = False  # what the study hands out next does not depend on how trials end
        self._latest_s: deque[float] = deque(maxlen=BRISK_TRIALS)  # how long attempts took
        self.canary_over = spec.canary_s <= 0
        self.first_start: datetime | None = None
        self.advised: dict[int, str] = {}
        self.stops_sent: dict[int, float] = {}
        self.removed: set[int] = set()  # trials whose newest attempt the runtime was told to forget
        self.held: frozenset[int] = frozenset()  # trials whose newest attempt the runtime has and does not run yet
        self.finals: list[Attempt] = []  # of the final stage since the search last ended
        self.earlier_finals = 0  # how many there were before

    def new_log(self) -> LogReader:
        return LogReader(self._spec.metrics, self._spec.objective)

    def open(self, trial: Trial, attempts: list[Attempt], *, running: bool = True) -> None:
        self.opened[trial.number] = Opened(trial, attempts, self.new_log(), running)

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
        self.opened[FINAL] = Opened(trial, self.finals, self.new_log(), running=False)

    def final(self) -> FinalStage | None:
        if self._spec.final is None and not self.finals:
            return None
        return FinalStage(tuple(self.finals), self.earlier_finals, kept=FINAL in self.opened)

    def begin(self, known: Opened, created: Attempt, *, now_s: float) -> None:
        """A new attempt of an open trial: nothing of the last one's stands for it."""
        known.attempts.append(created)
        known.reported_at_s = now_s  # a short trial's measurements all travel with its outcome
        known.log = self.new_log()
        known.unreported.clear()
        self.advised.pop(created.trial, None)
        self.stops_sent.pop(created.trial, None)
        self.removed.discard(created.trial)

    def close(self, number: int) -> None:
        del self.opened[number]
        self.advised.pop(number, None)
        self.stops_sent.pop(number, None)
        self.removed.discard(number)

    def count(self, trial: Trial) -> None:
        """The trial has its outcome."""
        self.counts[trial.state] = self.counts.get(trial.state, 0) + 1
        if trial.state is not TrialState.SUCCEEDED or trial.value is None:
            return
        so_far = self.best_value
        value = better(so_far, trial.value, maximize=self._spec.objective.maximize)
        if value is not None and value != so_far:
            self.best = trial
        self.trend.append(trial.value if value is None else value)

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
        if attempt.trial == FINAL:
            return
        # The canary's time is that of what runs: one that ended without a metric has shown nothing, and after a pause
        # the next one is alone again.
        if attempt.start_time is not None and not attempt.ended:
            self.first_start = min(self.first_start or attempt.start_time, attempt.start_time)
        self.canary_over |= attempt.step is not None
        if attempt.start_time is not None and attempt.end_time is not None:
            self._latest_s.append((attempt.end_time - attempt.start_time).total_seconds())

    def since_first_start_s(self, now: datetime) -> float | None:
        return None if self.first_start is None else (now - self.first_start).total_seconds()

    def let_canary_go(self, now: datetime) -> None:
        """Its time is over."""
        since_s = self.since_first_start_s(now)
        self.canary_over |= since_s is not None and since_s >= self._spec.canary_s

    def open_trials(self) -> list[OpenTrial]:
        return [
            OpenTrial(number, tuple(known.attempts), known.running)
            for number, known in self.opened.items()
            if number != FINAL
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
