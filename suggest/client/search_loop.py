"""A study as a loop, `for trial in study.trials(50)`, run by any number of processes;
built on the blocking calls.

This module uses only public methods of the client, and keeps no state that the service does not
have. `LeaseRenewal` renews the lease of the open trial in a thread; errors there must never end a
trial or the program.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from suggest.backoff import Backoff
from suggest.client import search_space as arguments
from suggest.client.blocking_calls import BlockingCalls
from suggest.errors import LeaseExpired, TunerError
from suggest.space import Assignment
from suggest.study import Direction, Objective, Study, StudyName
from suggest.trial import IMPORTED_FROM, REUSED, Measurement, Outcome, StopAdvice, Trial, TrialState

MAX_STEP = 2**63 - 1  # the service stores steps in 64 bits
LEASE_S = 60.0  # default duration of a trial's lease
BEATS = 3  # renewals per duration of a lease, so that two may be lost
LOOKS = Backoff(first_s=0.05, longest_s=2.0)  # between two looks at trials of other processes

_COUNTED_AT_ONCE = 100  # trials per page, about as many as each look reads again in a long study

log = logging.getLogger(__name__)


def maximize(metric: str) -> Objective:
    return Objective(arguments.text("maximize", "metric", metric), Direction.MAXIMIZE)


def minimize(metric: str) -> Objective:
    return Objective(arguments.text("minimize", "metric", metric), Direction.MINIMIZE)


class Search:
    """A study in which this process runs trials, together with other processes."""

    def __init__(self, client: BlockingCalls, study: Study) -> None:
        self.client = client
        self.name = study.name
        self.spec = study.spec
        self._client_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        # (token of the first page to read, number of counting trials before it)
        self._settled = ("", 0)

    def trials(self, total: int, *, lease_s: float | None = LEASE_S) -> Iterator[OpenTrial]:
        """Yield trials to run until the study has `total` trials or its space is exhausted.

        The total is that of all processes. Finished and running trials count, cancelled and
        imported ones do not.

        A trial that the body of the loop leaves open is completed when the loop continues: as
        succeeded if a value was reported, else as failed. A trial that is open when the loop is
        left, by break or by an exception, is cancelled.

        Each trial has a lease of `lease_s` seconds, which a thread renews while the trial is open.
        If a process dies, the others run its trial: before the loop ends, it waits for the leased
        trials of other processes, and runs those whose lease expires. With None, there are no
        leases and the loop does not wait.
        """
        arguments.whole("trials", "total", total)
        # the highest number so far; None to count before requesting a trial
        highest: int | None = None
        looks = 0
        with LeaseRenewal(self.client, self.name, lease_s) as heartbeat:
            while True:
                room = (highest is not None and highest + 1 < total) or self._counting() < total
                if not room and (lease_s is None or not self._others_run()):
                    return
                suggestions = self.client.suggest(
                    self.name,
                    1,
                    client_id=self._client_id,
                    request_id=secrets.token_hex(16),
                    lease_s=lease_s,
                    expired_only=not room,
                )
                if not suggestions.trials:
                    if not suggestions.waiting and (
                        lease_s is None or (room and not self._others_run())
                    ):
                        return
                    time.sleep(LOOKS.pause_s(looks))
                    looks += 1
                    continue
                looks = 0
                trial = OpenTrial(self, suggestions.trials[0])
                highest = max(highest or 0, trial.number)
                # Decide by number, so that processes with concurrent requests agree
                # on which trial is one too many.
                if trial.number >= total and self._counting(before=trial.number) >= total:
                    trial.cancel("the study has enough trials")
                    continue
                with heartbeat.of(trial):
                    try:
                        yield trial
                    except BaseException:
                        # When Python exits, nothing can be sent any more;
                        # the lease expires, as after a kill.
                        if not sys.is_finalizing():
                            trial.cancel("the loop was exited")
                        raise
                    trial.settle()
                if trial.lost:
                    highest = None  # other processes may have run trials meanwhile

    @property
    def best(self) -> Trial | None:
        """The best succeeded trial so far, of all processes; by the first of several objectives."""
        return self.spec.criteria.first_best(self.front)

    @property
    def front(self) -> list[Trial]:
        """The Pareto front so far, of all processes, by number.

        With one objective, at most the best trial.
        """
        return self.client.optimal_trials(self.name)

    def _others_run(self) -> bool:
        """Return whether another process has a leased trial, which may still fall to this one."""
        opened = self.client.list_trials(self.name, states=(TrialState.RUNNING, TrialState.QUEUED))
        return any(
            t.expired or (t.lease_s is not None and t.client_id != self._client_id) for t in opened
        )

    def _counting(self, before: float = math.inf) -> int:
        """Return how many trials with smaller numbers count.

        `before` is infinite, or the number of an own trial.

        Counting begins with the first page that had an open trial when last read, since outcomes
        never change. A trial that was deleted from an earlier page still counts, so that there may
        be too few trials but never too many.
        """
        token, count = self._settled
        all_settled = True
        while True:
            trials, next_token = self.client.trials_page(
                self.name, token, page_size=_COUNTED_AT_ONCE
            )
            count += sum(t.number < before and _counts(t) for t in trials)
            if not next_token:
                return count
            token = next_token
            all_settled = all_settled and all(t.finished and t.number < before for t in trials)
            if all_settled:
                self._settled = token, count


class OpenTrial:
    """A trial that runs in this process.

    End it once by complete(), prune(), fail(), infeasible() or cancel().
    """

    def __init__(self, search: Search, trial: Trial) -> None:
        self._search = search
        self.number = trial.number
        self.parameters: Assignment = trial.parameters
        self.parent = trial.parent  # the trial from whose checkpoint it continues
        self.tries = trial.tries
        self.lost = False  # the lease expired, and another process runs the trial now
        self._next_step = 0
        self._missing = set(search.spec.criteria.metrics)  # metrics without a finite value
        self._open = True
        self._ending = False  # the outcome is being sent to the service

    def report(self, step: int | None = None, **metrics: float) -> StopAdvice:
        """Report metric values at a step (default: 0, 1, 2…) and return the pruner's advice.

        `should_stop` is also set if the lease has expired and another process runs the trial
        (`lost`). Then later reports and the outcome are not sent.
        """
        step = self._next_step if step is None else arguments.whole("report", "step", step)
        if abs(step) > MAX_STEP:
            raise ValueError(f"report: step: expected a number up to {MAX_STEP}, got {step}")
        values = {
            metric: arguments.measured("report", metric, value) for metric, value in metrics.items()
        }
        self._next_step = step + 1
        self._missing -= {metric for metric, value in values.items() if math.isfinite(value)}
        # A trial that another process has run before starts again,
        # so its measurements belong to a new attempt.
        attempt = max(1, self.tries)
        measurements = [
            Measurement(attempt, metric, step, value) for metric, value in values.items()
        ]
        try:
            return self._search.client.report(
                self._search.name, self.number, measurements, tries=self.tries
            )
        except LeaseExpired as error:
            self.mark_lost(str(error))
            return StopAdvice(True, str(error))

    def mark_lost(self, reason: str) -> None:
        """Mark the trial as lost to another process: this process sends no more about it."""
        if self._open and not self._ending:
            log.warning("%s", reason)
            self.lost = True
            self._open = False

    def complete(self, value: float | None = None) -> None:
        """End the trial as succeeded. Without a value, the reported one counts."""
        result = None if value is None else arguments.measured("complete", "value", value)
        self._end(Outcome(TrialState.SUCCEEDED, result))

    def prune(self, reason: str = "") -> None:
        self._end_for("prune", TrialState.PRUNED, reason)

    def fail(self, reason: str) -> None:
        self._end_for("fail", TrialState.FAILED, reason)

    def infeasible(self, reason: str) -> None:
        """End the trial because its parameters cannot be used.

        This is not a failure, and the algorithm learns it.
        """
        self._end_for("infeasible", TrialState.INFEASIBLE, reason)

    def cancel(self, reason: str = "") -> None:
        """Cancel the trial, which then does not count. No error if the trial has ended."""
        if self._open:
            self._end_for("cancel", TrialState.CANCELLED, reason)

    def settle(self) -> None:
        """End the trial if it is open: as succeeded if all values were reported, else as failed."""
        if self._open and not self._missing:
            self.complete()
        elif self._open:
            metrics = [
                metric for metric in self._search.spec.criteria.metrics if metric in self._missing
            ]
            self.fail(f"no finite {' and no finite '.join(metrics)} was reported")

    def _end_for(self, caller: str, state: TrialState, reason: str) -> None:
        self._end(Outcome(state, reason=arguments.text(caller, "reason", reason)))

    def _end(self, outcome: Outcome) -> None:
        if self.lost:
            return
        self._ending = True
        try:
            self._search.client.complete(self._search.name, self.number, outcome, tries=self.tries)
        except LeaseExpired as error:
            self._ending = False
            self.mark_lost(str(error))
        self._open = False


def _counts(trial: Trial) -> bool:
    """Return whether a trial counts toward the total: it was run, is running, or will be run."""
    was_run_elsewhere = REUSED in trial.labels or IMPORTED_FROM in trial.labels
    return trial.state is not TrialState.CANCELLED and not was_run_elsewhere


class LeaseRenewal:
    """Renews the lease of one trial at a time in a thread.

    The thread runs from the first trial until the `with` ends.
    """

    def __init__(self, client: BlockingCalls, study: StudyName, lease_s: float | None) -> None:
        self._client = client
        self._study = study
        self._lease_s = lease_s
        self._trial: OpenTrial | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LeaseRenewal:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # do not join the thread, which may be in a call

    @contextmanager
    def of(self, trial: OpenTrial) -> Iterator[None]:
        """Renew the trial's lease until the `with` ends."""
        if self._lease_s is None:
            yield
            return
        self._trial = trial
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._beat,
                args=(self._lease_s / BEATS,),
                name="lease-heartbeat",
                daemon=True,
            )
            self._thread.start()
        try:
            yield
        finally:
            self._trial = None

    def _beat(self, every_s: float) -> None:
        while not self._over.wait(every_s):
            trial = self._trial
            if trial is None:
                continue
            try:
                lost = self._client.renew_leases(self._study, {trial.number: trial.tries})
            except TunerError as error:
                log.debug(
                    "study=%s trial=%d lease not renewed: %s", self._study, trial.number, error
                )
                continue
            except ValueError:  # raised by gRPC if the client was closed meanwhile
                return
            if lost and self._trial is trial:
                trial.mark_lost(
                    f"{self._study}: trial {trial.number} has ended, or its lease expired and "
                    f"another client has it"
                )
