"""A study as a loop, `for trial in study.trials(50)`, run by any number of processes; built on the blocking client.

Uses only public methods of the client, and keeps no state that the service does not have. `LeaseRenewal` renews the
lease of the open trial in a thread; it must never end a trial or the program.
"""

from __future__ import annotations

import hashlib
import logging
import math
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

from suggest.backoff import Backoff
from suggest.client import search_space as arguments
from suggest.client.search_space import Parameters
from suggest.domain import Value
from suggest.errors import LeaseExpired, TunerError
from suggest.space import Assignment, Space
from suggest.study import Algorithm, Direction, Objective, Pruning, Study, StudyName, StudySpec
from suggest.trial import REUSED, Measurement, Outcome, StopAdvice, Trial, TrialState

if TYPE_CHECKING:
    from suggest.client import Client

LEASE_S = 60.0  # of a trial, by default
LOOKS = Backoff(first_s=0.05, longest_s=2.0)  # between two looks at trials that other processes run

_COUNTED_AT_ONCE = 100  # trials a page: about what each look reads again in a long study

log = logging.getLogger(__name__)


def maximize(metric: str) -> Objective:
    return Objective(arguments.text("maximize", "metric", metric), Direction.MAXIMIZE)


def minimize(metric: str) -> Objective:
    return Objective(arguments.text("minimize", "metric", metric), Direction.MINIMIZE)


class Search:
    """One study, as this process takes part in it."""

    def __init__(self, client: Client, study: Study) -> None:
        self.client = client
        self.name = study.name
        self.spec = study.spec
        self._client_id = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(3)}"
        self._settled = ("", 0)  # the page of trials that is read first, and how many count before it

    def trials(self, total: int, *, lease_s: float | None = LEASE_S) -> Iterator[OpenTrial]:
        """Trials to run, until the study has `total` of them, finished or run by others, of all processes (cancelled
        ones do not count), or its space is exhausted.

        A trial that the loop's body left open is completed when the loop goes on: as succeeded if a value was
        reported, else as failed. One that is open when the loop is left, by break or by an exception, is cancelled.

        Each trial has a lease of `lease_s`, which a thread renews while the trial is open here. A process that dies
        leaves its trial to the others: before it ends, the loop waits for the leased trials of other processes, and
        runs those whose lease expires. None: no leases, and no waiting.
        """
        arguments.whole("trials", "total", total)
        highest: int | None = None  # number so far; None: look before asking
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
                    if lease_s is None or (room and not self._others_run()):
                        return
                    time.sleep(LOOKS.pause_s(looks))
                    looks += 1
                    continue
                looks = 0
                trial = OpenTrial(self, suggestions.trials[0])
                highest = max(highest or 0, trial.number)
                # By number, so that processes that asked at once agree on who is one too many.
                if trial.number >= total and self._counting(before=trial.number) >= total:
                    trial.cancel("the study has enough trials")
                    continue
                with heartbeat.of(trial):
                    try:
                        yield trial
                    except BaseException:
                        trial.cancel("the loop was left")
                        raise
                    trial.settle()
                if trial.lost:
                    highest = None  # the study has gone on without this process

    def best(self) -> Trial | None:
        """The best succeeded trial so far, of all processes."""
        found = self.client.optimal_trials(self.name)
        return found[0] if found else None

    def _others_run(self) -> bool:
        """Whether another process has a trial that may yet come to this one: leased, or with an expired lease."""
        opened = self.client.list_trials(self.name, states=(TrialState.RUNNING, TrialState.QUEUED))
        return any(t.expired or (t.lease_s is not None and t.client_id != self._client_id) for t in opened)

    def _counting(self, before: float = math.inf) -> int:
        """How many trials with smaller numbers count; `before` is infinite, or the number of a trial of ours.

        Begins with the first page that had an open trial when last read: an outcome never changes. A trial deleted
        from an earlier page goes on counting here, so that there may be too few trials but never too many.
        """
        token, count = self._settled
        all_settled = True
        while True:
            trials, rest = self.client.trials_page(self.name, token, page_size=_COUNTED_AT_ONCE)
            count += sum(t.number < before and _counts(t) for t in trials)
            if not rest:
                return count
            token = rest
            all_settled = all_settled and all(t.finished and t.number < before for t in trials)
            if all_settled:
                self._settled = token, count


class OpenTrial:
    """One trial while it runs here. Ended by complete(), prune(), fail(), infeasible() or cancel(), once."""

    def __init__(self, search: Search, trial: Trial) -> None:
        self._search = search
        self.number = trial.number
        self.parameters: Assignment = trial.parameters
        self.tries = trial.tries
        self.lost = False  # its lease expired, and another process runs it now
        self._next_step = 0
        self._has_value = False
        self._open = True
        self._ending = False  # the service is being told how it ended

    def report(self, step: int | None = None, **metrics: float) -> StopAdvice:
        """Metric values at a step (default: 0, 1, 2…). The answer's `should_stop` is the pruner's advice; or the lease
        has expired and another process runs the trial (`lost`): then nothing more is told of it from here."""
        step = self._next_step if step is None else arguments.whole("report", "step", step)
        values = {metric: arguments.measured("report", metric, value) for metric, value in metrics.items()}
        self._next_step = step + 1
        self._has_value |= math.isfinite(values.get(self._search.spec.objective.metric, math.nan))
        # A trial that another process has run before begins again: what it says are measurements of a new attempt.
        attempt = max(1, self.tries)
        measurements = [Measurement(attempt, metric, step, value) for metric, value in values.items()]
        try:
            return self._search.client.report(self._search.name, self.number, measurements, tries=self.tries)
        except LeaseExpired as error:
            self.lose(str(error))
            return StopAdvice(True, str(error))

    def lose(self, why: str) -> None:
        """It is another process's now: whatever becomes of it here is not told any more."""
        if self._open and not self._ending:
            log.warning("%s", why)
            self.lost = True
            self._open = False

    def complete(self, value: float | None = None) -> None:
        """It succeeded; without a value, the one that was reported counts."""
        said = None if value is None else arguments.measured("complete", "value", value)
        self._end(Outcome(TrialState.SUCCEEDED, said))

    def prune(self, reason: str = "") -> None:
        self._end(Outcome(TrialState.PRUNED, reason=arguments.text("prune", "reason", reason)))

    def fail(self, reason: str) -> None:
        self._end(Outcome(TrialState.FAILED, reason=arguments.text("fail", "reason", reason)))

    def infeasible(self, reason: str) -> None:
        """These parameters cannot be used: no failure, and the algorithm learns it."""
        self._end(Outcome(TrialState.INFEASIBLE, reason=arguments.text("infeasible", "reason", reason)))

    def cancel(self, reason: str = "") -> None:
        """It counts for nothing. No error if the trial has ended."""
        if self._open:
            self._end(Outcome(TrialState.CANCELLED, reason=arguments.text("cancel", "reason", reason)))

    def settle(self) -> None:
        """End it as its reports say, unless it has ended."""
        if self._open and self._has_value:
            self.complete()
        elif self._open:
            self.fail(f"no finite {self._search.spec.objective.metric} was reported")

    def _end(self, outcome: Outcome) -> None:
        if self.lost:
            return
        self._ending = True
        try:
            self._search.client.complete(self._search.name, self.number, outcome, tries=self.tries)
        except LeaseExpired as error:
            self._ending = False
            self.lose(str(error))
        self._open = False


def search_of(
    client: Client,
    name: StudyName,
    parameters: Parameters,
    objective: Objective,
    *,
    algorithm: str,
    settings: Mapping[str, Value],
    seed: int | None,
    pruning: Pruning | None,
) -> Search:
    """See Client.study."""
    from suggest import wire

    arguments.text("study", "name", name.study)
    arguments.text("study", "namespace", name.namespace)
    if not isinstance(objective, Objective):
        arguments.refuse("study", "objective", objective, 'maximize("METRIC") or minimize("METRIC")')
    arguments.text("study", "algorithm", algorithm)
    if not isinstance(settings, Mapping):
        arguments.refuse("study", "settings", settings, "a dict of names to values")
    if pruning is not None and not isinstance(pruning, Pruning):
        arguments.refuse("study", "pruning", pruning, "a Pruning or None")
    spec = StudySpec(
        Space(arguments.named(parameters)),
        (objective,),
        Algorithm(
            algorithm,
            None if seed is None else arguments.whole("study", "seed", seed),
            {key: arguments.json_value("study", f"settings[{key!r}]", value) for key, value in settings.items()},
        ),
        pruning,
    )
    # The same words make the same request, so that the second client is told about the first one's study.
    words = wire.write_spec(spec).SerializeToString(deterministic=True)
    study = client.create_study(name, spec, request_id=f"spec-{hashlib.sha256(words).hexdigest()}")
    return Search(client, study)


def _counts(trial: Trial) -> bool:
    """Against the total: what was run, or is to be."""
    return trial.state is not TrialState.CANCELLED and REUSED not in trial.labels


BEATS = 3  # in a lease: two may be lost


class LeasedTrial(Protocol):
    """A trial that this process runs."""

    number: int
    tries: int

    def lose(self, why: str) -> None:
        """It was handed out again."""


class LeaseRenewal:
    """Of one trial at a time. Its thread lives from the first trial until the `with` ends."""

    def __init__(self, client: Client, study: StudyName, lease_s: float | None) -> None:
        self._client = client
        self._study = study
        self._lease_s = lease_s
        self._trial: LeasedTrial | None = None
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LeaseRenewal:
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()  # the thread may be in a call; nobody waits for that

    @contextmanager
    def of(self, trial: LeasedTrial) -> Iterator[None]:
        """Renew the trial's lease until the `with` ends."""
        if self._lease_s is None or not trial.tries:  # an older server knows no leases
            yield
            return
        self._trial = trial
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._beat, args=(self._lease_s / BEATS,), name="lease-heartbeat", daemon=True
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
                log.debug("study=%s trial=%d lease not renewed: %s", self._study, trial.number, error)
                continue
            except ValueError:  # what gRPC raises where the client was closed meanwhile
                return
            if lost and self._trial is trial:
                trial.lose(
                    f"{self._study}: trial {trial.number} has ended, or its lease expired and another client has it"
                )
