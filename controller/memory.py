"""The state that the loop holds in memory between turns:
a cache that can be rebuilt from the study and the store.

Nothing in this module is authoritative, does I/O or makes decisions.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from itertools import islice

from controller.core.breaker import BY_ITSELF, Streak
from controller.core.budget import most_trials
from controller.core.forecast import MOST_TRIALS, Forecast, forecast, trials_left
from controller.core.metrics import LogReader, MetricReading
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptKey,
    AttemptState,
    ExperimentSpec,
    FinalRun,
    MetricsRule,
    StopCause,
    TrialOrFinal,
)
from controller.core.parameter_requests import RequestReader
from controller.core.progress import RunningTrial
from controller.core.snapshot import FinalStage, UnfinishedTrial
from controller.core.spending import NOTHING_SPENT, Spent, rate_of, spent_by
from controller.runtime.registry import traits_of
from controller.runtime.requested import attempt_rate
from controller.search import times_handed_out
from suggest.trial import REUSED, Measurement, Outcome, Trial, TrialState

# trials are short if this many attempts in a row took less than the runtime's `brisk_s`
BRISK_TRIALS = 4
# successors that wait in the runtime, so that a free slot is filled without the controller
MAX_PREFETCH = 2
# a point chosen without seven outcomes may lack an eighth
LEARNER_PREFETCH, LEARNER_PARALLEL = 1, 8


@dataclass(slots=True)
class Opened:
    """A trial that the controller is not done with, and the readers of its newest attempt.

    The final stage is kept like a trial while the runtime holds objects of it; `trial` is then the
    one whose parameters it has.

    log: the reader of the standard output.
    metrics: the reader of the measurements; the same one unless a collector reads them elsewhere.
    running: the study waits for its outcome.
    unreported: measurements that have not been uploaded to the study.
    seen_running: the start time of the newest attempt, if it runs, and when this controller first
        saw it, by the monotonic clock: start times are by the clock of another machine, or by a
        wall clock that may be set later.
    exit_time: when the newest attempt ended, from the moment that the runtime shows it; the attempt
        itself ends once its whole log is read.
    requests, answers: for parameters that the newest attempt has asked for in its log, and by name.
    without_object: the attempts whose objects have been deleted.
    """

    trial: Trial
    attempts: list[Attempt]
    log: LogReader
    metrics: LogReader
    running: bool = True
    unreported: list[Measurement] = field(default_factory=list)
    reported_at_s: float = 0.0
    seen_running: tuple[datetime, float] | None = None
    exit_time: datetime | None = None
    requests: RequestReader = field(default_factory=RequestReader)
    answers: dict[str, Mapping[str, object]] = field(default_factory=dict)
    without_object: set[int] = field(default_factory=set)

    @property
    def newest(self) -> Attempt | None:
        return self.attempts[-1] if self.attempts else None

    def note_object(self, *, is_there: bool) -> None:
        """Note whether the object of the newest attempt exists, where a runtime makes objects."""
        newest = self.attempts[-1].number
        if is_there:
            self.without_object.discard(newest)
        else:
            self.without_object.add(newest)

    def note_running(self, now_s: float) -> None:
        """Note whether the newest attempt runs.

        One that is preempted waits, and starts again at another time.
        """
        start = None if self.newest is None else self.newest.start_time
        if start is None:
            self.seen_running = None
        elif self.seen_running is None or self.seen_running[0] != start:
            self.seen_running = start, now_s

    def note(self, readings: list[MetricReading]) -> None:
        if not self.running:
            return  # the study takes no measurements of a completed trial or of the final stage
        attempt = self.attempts[-1].number
        self.unreported += [Measurement(attempt, r.metric, r.step, r.value) for r in readings]


class Memory:
    """The memory of one experiment. Trials enter by `open` or `count` and leave by `close`."""

    def __init__(self, spec: ExperimentSpec) -> None:
        self._spec = spec
        self.opened: dict[TrialOrFinal, Opened] = {}
        self.counts: dict[TrialState, int] = {}
        self.best: Trial | None = None
        self.imported: list[Trial] = []  # those among the best when the memory was built
        # the best trials where the experiment has several objectives or constraints
        self.front: list[Trial] = []
        self.reached = ""  # the targets of several objectives, once a trial has reached them all
        # trials that have ended since the last one that was the best or joined the front
        self.since_best = 0
        self.trend: list[float] = []  # the best value after each succeeded trial
        # how many times the study has handed out trials; also the number of the next request
        self.handed_out = 0
        self.exhausted = False
        self.paused: dict[int, Opened] = {}  # trials that wait for a larger fidelity
        # the study lets none of them continue as long as no other trial ends
        self.none_goes_on = False
        self.none_begins = False  # the study begins no new trial as long as no running one ends
        # how much better than the best trial another point may still be
        self.regret_bound: float | None = None
        self.estimated = 0  # trials that had ended when it was last bounded
        # the next suggestions do not depend on the outcomes of open trials
        self.independent = False
        self._begun: set[int] = set()  # trials with an attempt
        # durations of the latest attempts
        self._latest_s: deque[float] = deque(maxlen=BRISK_TRIALS)
        self.canary_over = spec.canary_s <= 0
        # an attempt has measured something and did not fail by itself
        self._shown = spec.canary_s <= 0
        self.streak = Streak()
        self._failures: dict[int, Attempt] = {}  # the failed attempts of the streak, by trial
        # failed trials that run again on resume: their newest attempts
        self.set_aside: dict[int, Attempt] = {}
        self.advised: dict[TrialOrFinal, str] = {}
        self.stops_sent: dict[TrialOrFinal, float] = {}
        # trials whose newest attempt was removed from the runtime
        self.removed: set[TrialOrFinal] = set()
        # Trials whose newest attempt the runtime has accepted but does not run yet.
        self.held: frozenset[TrialOrFinal] = frozenset()
        # Trials whose newest attempt may not run at present, with the reason.
        self.barred: Mapping[TrialOrFinal, str] = {}
        self.finals: list[Attempt] = []  # attempts of the final stage since the search last ended
        self.earlier_finals = 0  # attempts of the final stage before that
        self._spent_by_ended = NOTHING_SPENT
        # how long each trial ran, if the budget limits what attempts use
        self._ran_s: dict[int, float] = {}
        self._rates: dict[bool, Spent] = {}  # of an attempt; True: of the final stage

    def new_readers(self, trial: Trial, attempts: Sequence[Attempt]) -> tuple[LogReader, LogReader]:
        """Return the readers of the newest attempt's log and of its measurements.

        They count on from the stored steps of earlier attempts, so that a restarted controller
        counts in the same way.
        """
        steps = (attempt.step for attempt in reversed(attempts[:-1]))
        reached = next((step for step in steps if step is not None), 0)
        spec = self._spec
        metrics = LogReader(
            spec.metrics,
            spec.objective,
            other_metrics=spec.other_metrics,
            parameters=trial.parameters,
            start=reached,
        )
        log = metrics if spec.collection is None else LogReader(MetricsRule(), spec.objective)
        return log, metrics

    def open(self, trial: Trial, attempts: list[Attempt], *, running: bool = True) -> None:
        self.opened[trial.number] = Opened(
            trial, attempts, *self.new_readers(trial, attempts), running
        )

    def take_in(self, trials: Sequence[Trial]) -> None:
        """Take in all trials handed out to this experiment, also those of a lost reply."""
        self.handed_out = sum(map(times_handed_out, trials))
        for trial in trials:
            self.take_suggested(trial)

    def take_suggested(self, trial: Trial) -> None:
        """Open a trial that the study has handed out, unless it is open or has ended.

        One that was paused keeps its attempts. It may not even be closed yet:
        then it continues as it is.
        """
        opened = self.opened.get(trial.number)
        is_open = opened is not None and opened.running
        if is_open or trial.finished or trial.state is TrialState.PAUSED:
            return
        before = self.paused.pop(trial.number, opened)
        self.open(trial, [] if before is None else before.attempts)

    def belongs_to_another_client(self, trial: Trial) -> bool:
        """Return whether this number's attempts belong to another trial, which the study has lost.

        The study was set back to an older state, and hands out the number again. An attempt that
        still runs may be taken for the new trial only if both have the same parameters.
        """
        if trial.finished or trial.number not in self._begun or times_handed_out(trial) != 1:
            return False
        held = self.opened.get(trial.number) or self.paused.get(trial.number)
        return held is None or held.trial.parameters != trial.parameters

    def pause(self, trial: Trial, attempts: list[Attempt]) -> None:
        """Note that the study has paused the trial."""
        self.paused[trial.number] = Opened(
            trial, attempts, *self.new_readers(trial, attempts), running=False
        )
        self.none_goes_on = False

    def recall_finals(self, attempts: Sequence[Attempt], *, begun: FinalRun | None) -> None:
        """Keep the final stage's attempts that belong to `begun`; if it is None, none counts."""
        first = math.inf if begun is None else begun.first
        self.finals = [attempt for attempt in attempts if attempt.number >= first]
        earlier = [attempt.number for attempt in attempts if attempt not in self.finals]
        self.earlier_finals = max([self.earlier_finals, *earlier])

    @property
    def may_choose_final(self) -> bool:
        """Return whether the final stage takes the parameters that are best now.

        It does if no run of it continues.
        """
        return not self.finals or self.finals[-1].stop_cause is StopCause.CANCELLED

    def open_final(self, trial: Trial) -> None:
        """Open the final stage with the parameters of `trial`."""
        self.opened[FINAL] = Opened(
            trial, self.finals, *self.new_readers(trial, self.finals), running=False
        )

    def final(self) -> FinalStage | None:
        if self._spec.final is None and not self.finals:
            return None
        return FinalStage(tuple(self.finals), self.earlier_finals, kept=FINAL in self.opened)

    def begin(self, opened: Opened, created: Attempt, *, now_s: float) -> None:
        """Begin a new attempt of an open trial, without any notes on the attempt before."""
        opened.attempts.append(created)
        if created.trial is not FINAL:
            self._begun.add(created.trial)
        opened.seen_running = None
        opened.reported_at_s = now_s  # a short trial sends all its measurements with its outcome
        opened.log, opened.metrics = self.new_readers(opened.trial, opened.attempts)
        opened.unreported.clear()
        opened.requests, opened.answers = RequestReader(), {}
        self.advised.pop(created.trial, None)
        self.stops_sent.pop(created.trial, None)
        self.removed.discard(created.trial)

    def close(self, number: TrialOrFinal) -> None:
        del self.opened[number]
        self.advised.pop(number, None)
        self.stops_sent.pop(number, None)
        self.removed.discard(number)

    def count(self, trial: Trial, newest: Attempt | None = None) -> None:
        """Count a trial that has its outcome.

        `newest` is its newest attempt if the trial is not open.
        """
        self.counts[trial.state] = self.counts.get(trial.state, 0) + 1
        self.paused.pop(trial.number, None)
        self.none_goes_on = self.none_begins = False
        opened = self.opened.get(trial.number)
        self._follow(trial, opened.newest if opened is not None else newest)
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

    @property
    def best_with_imported(self) -> Trial | None:
        """The best trial as people see it.

        Imported trials reach no target, so `best` is one of the experiment.
        """
        own = [self.best] if self.best is not None else []
        return self._spec.criteria.first_best(self._spec.criteria.best([*self.imported, *own]))

    @property
    def optimal(self) -> Sequence[Trial]:
        """The trials that no other is better than in all objectives, the imported ones as well."""
        return self._spec.criteria.best([*self.imported, *self.front])

    def _join_front(self, trial: Trial) -> None:
        self.front = self._spec.criteria.best([*self.front, trial])
        if any(trial_of_front.number == trial.number for trial_of_front in self.front):
            self.since_best = 0
            self.reached = self.reached or self._spec.targets_reached(trial)
        self.best = self._spec.criteria.first_best(self.front)
        if self.best is not None and self.best.value is not None:
            self.trend.append(self.best.value)

    def _follow(self, trial: Trial, newest: Attempt | None) -> None:
        """Update the streak of failures.

        Trials that did not run in this experiment do not change it.
        """
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
            self._failures = {
                number: streak for number, streak in self._failures.items() if number in looked_at
            }

    def failures(self, trials: Sequence[int]) -> list[Attempt]:
        """Return the newest attempts of those of these trials that belong to the streak."""
        return [self._failures[number] for number in trials if number in self._failures]

    def put_aside(self, trials: Sequence[int]) -> None:
        """Set these failed trials aside: they run again on resume and do not count until then."""
        self.counts[TrialState.FAILED] -= len(trials)
        self.set_aside.update((number, self._failures[number]) for number in trials)
        self.streak = self.streak.without(trials)

    def recall_set_aside(self, trial: Trial, newest: Attempt) -> None:
        """Note a failed trial that was set aside before this process began."""
        self.set_aside[trial.number] = newest
        self.streak = self.streak.without()

    @property
    def prefetch(self) -> int:
        """Return how many successors may be created before there is a slot for them.

        Successors are created early only if trials are so short that waiting for the controller
        would cost a notable share of their time, and only as many as do not harm the search.
        """
        if (
            len(self._latest_s) < BRISK_TRIALS
            or max(self._latest_s) >= traits_of(self._spec.runtime).brisk_s
        ):
            return 0
        if self.independent:
            return MAX_PREFETCH
        return LEARNER_PREFETCH if self._spec.parallelism >= LEARNER_PARALLEL else 0

    @property
    def best_value(self) -> float | None:
        return None if self.best is None else self.best.value

    def price_on_node(self, trial: TrialOrFinal, prices: Mapping[str, float]) -> float:
        """Return the price of an hour of an attempt of the trial, with these prices of its node."""
        spec = replace(self._spec, prices={**self._spec.prices, **prices})
        opened = self.opened.get(trial)
        parameters = None if opened is None else opened.trial.parameters
        return attempt_rate(spec, spec.template_of(trial), parameters).cost

    def rate_of_next(self, trial: TrialOrFinal) -> Spent:
        """Return what an hour of the next attempt of the trial uses."""
        is_final = trial is FINAL
        if is_final not in self._rates:
            self._rates[is_final] = attempt_rate(self._spec, self._spec.template_of(trial))
        rate, opened = self._rates[is_final], self.opened.get(trial)
        if rate == NOTHING_SPENT and opened is not None and "template" in self._spec.trial.cluster:
            # A parameter may determine what the trial requests.
            rate = attempt_rate(self._spec, self._spec.trial, opened.trial.parameters)
        return rate

    def spent(self, now: datetime) -> Spent:
        """Return what all attempts have used."""
        return sum(
            (spent_by(attempt, now=until or now) for attempt, until in self._unended()),
            self._spent_by_ended,
        )

    def spending_rate(self) -> Spent:
        """Return what the running attempts use in an hour."""
        unended = (attempt for attempt, until in self._unended() if until is None)
        running = (attempt for attempt in unended if attempt.start_time is not None)
        return sum(map(rate_of, running), NOTHING_SPENT)

    @cached_property
    def _most_trials(self) -> int | None:
        # To count the points of a grid with many conditions takes milliseconds.
        return most_trials(self._spec)

    def forecast(self, now: datetime) -> Forecast | None:
        """Return what the search will have used when all its trials are done."""
        running = (each for each in self._unended() if each[0].trial is not FINAL)
        return forecast(
            self._spec,
            [*islice(reversed(self._ran_s.values()), MOST_TRIALS)],
            seen=len(self._ran_s),
            left=trials_left(self._most_trials, self.counted()),
            running_s=[attempt.ran_s(until or now) for attempt, until in running],
            rate=self.rate_of_next(0),
            spent=self.spent(now),
        )

    def _unended(self) -> Iterator[tuple[Attempt, datetime | None]]:
        """Yield each attempt that has not ended, and until when it ran if that is known."""
        for opened in self.opened.values():
            if opened.newest is not None and not opened.newest.ended:
                yield opened.newest, opened.exit_time

    def note_attempt(self, attempt: Attempt) -> None:
        """Note an attempt as it is stored: once as it was found, and after each change."""
        if attempt.end_time is not None:
            self._spent_by_ended += spent_by(attempt, now=attempt.end_time)
        if attempt.trial is FINAL:
            return
        self._begun.add(attempt.trial)
        if attempt.end_time is not None and self._spec.is_metered:
            before_s = self._ran_s.get(attempt.trial, 0.0)
            self._ran_s[attempt.trial] = before_s + attempt.ran_s(attempt.end_time)
        self._shown |= attempt.step is not None and attempt.failure_class not in BY_ITSELF
        if attempt.start_time is not None and attempt.end_time is not None:
            self._latest_s.append((attempt.end_time - attempt.start_time).total_seconds())

    def longest_run_s(self, now_s: float) -> float | None:
        """Return how many seconds the oldest running attempt has run; None if none runs.

        Only the time under this controller counts.
        """
        seen_s = [
            opened.seen_running[1] for opened in self._at_work() if opened.seen_running is not None
        ]
        return now_s - min(seen_s) if seen_s else None

    def judge_canary(self, now_s: float) -> None:
        """Decide whether more than one trial may run, and keep the verdict in `canary_over`.

        Only running attempts count for the canary's time and metric: a failed one has shown
        nothing, so the next trial runs alone again.
        """
        self.canary_over = self._shown
        if not self.canary_over:
            for opened in self._at_work():
                opened.note_running(now_s)
            since_s = self.longest_run_s(now_s)
            measured = any(opened.metrics.last is not None for opened in self._at_work())
            self.canary_over = measured or (since_s is not None and since_s >= self._spec.canary_s)

    def _at_work(self) -> list[Opened]:
        of_trials = (opened for number, opened in self.opened.items() if number is not FINAL)
        return [each for each in of_trials if each.newest is not None and not each.newest.ended]

    def open_trials(self) -> list[UnfinishedTrial]:
        return [
            UnfinishedTrial(number, tuple(opened.attempts), opened.running, opened.trial.fidelity)
            for number, opened in self.opened.items()
            if number is not FINAL
        ]

    def running(self) -> tuple[RunningTrial, ...]:
        """Return the trials with an open attempt, and the final stage under its own number."""
        return tuple(
            RunningTrial(
                number=number,
                attempt=newest.number,
                state=newest.state,
                start_time=newest.start_time,
                step=opened.metrics.step,
                value=opened.metrics.last,
                parameters=opened.trial.parameters,
                waiting_for=newest.reason if newest.state is AttemptState.CREATED else "",
            )
            for number, opened in self.opened.items()
            if (newest := opened.newest) is not None and not newest.ended
        )

    def without_objects(self) -> frozenset[AttemptKey]:
        """Return the attempts of open trials whose objects have been deleted."""
        keys: set[AttemptKey] = set()
        for number, opened in self.opened.items():
            keys.update((number, attempt) for attempt in opened.without_object)
        return frozenset(keys)

    def waiting(self) -> int:
        """Return how many open trials have no open attempt."""
        return sum(
            opened.running and (opened.newest is None or opened.newest.ended)
            for opened in self.opened.values()
        )

    def counted(self) -> Mapping[TrialState, int]:
        if self.paused:
            return {**self.counts, TrialState.PAUSED: len(self.paused)}
        return dict(self.counts)
