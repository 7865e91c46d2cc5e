"""A study as a loop: `for trial in study.trials(50)`, in as many processes as one likes. On top of the blocking client.

Nothing here that a program could not do with the client's methods; no state but the service's.
"""

from __future__ import annotations

import hashlib
import math
import os
import secrets
import socket
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from suggest.calling import parameters as arguments
from suggest.calling.parameters import Parameters
from suggest.domain import Value
from suggest.space import Assignment, Space
from suggest.study import Algorithm, Direction, Objective, Pruning, Study, StudyName, StudySpec
from suggest.trial import REUSED, Measurement, Outcome, StopAdvice, Trial, TrialState

if TYPE_CHECKING:
    from suggest.client import Client

_COUNTED_AT_ONCE = 100  # trials a page: about what each look reads again in a long study


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

    def trials(self, total: int) -> Iterator[OpenTrial]:
        """Trials to run, until the study has `total` of them, running or finished, by all processes (cancelled ones
        do not count), or its space is exhausted.

        A trial that the loop's body left open is completed when the loop goes on: as succeeded if a value was
        reported, else as failed. One that is open when the loop is left, by break or by an exception, is cancelled.
        """
        arguments.whole("trials", "total", total)
        newest = total  # not known yet: look before asking
        while newest + 1 < total or self._counting() < total:
            suggestions = self.client.suggest(self.name, 1, client_id=self._client_id, request_id=secrets.token_hex(16))
            if not suggestions.trials:
                return
            trial = OpenTrial(self, suggestions.trials[0])
            newest = trial.number
            # By number, so that processes that asked at once agree on who is one too many.
            if newest >= total and self._counting(before=newest) >= total:
                trial.cancel("the study has enough trials")
                return
            try:
                yield trial
            except BaseException:
                trial.cancel("its loop was left")
                raise
            trial.settle()

    def best(self) -> Trial | None:
        """The best succeeded trial so far, of all processes."""
        found = self.client.optimal_trials(self.name)
        return found[0] if found else None

    def _counting(self, before: float = math.inf) -> int:
        """How many trials with smaller numbers count; `before` is infinite, or the number of a trial of ours.

        Begins with the first page that had an open trial when last read: an outcome never changes. A trial deleted
        from an earlier page goes on counting here, so that there may be too few trials but never too many.
        """
        from suggest.calling import calls

        pages = calls.list_trials(self.name, client_id="", states=(), page_size=_COUNTED_AT_ONCE)
        token, count = self._settled
        all_settled = True
        while True:
            trials, rest = self.client._send(pages.page(token))  # no method of the client begins in the middle
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
        self._next_step = 0
        self._has_value = False
        self._open = True

    def report(self, step: int | None = None, **metrics: float) -> StopAdvice:
        """Metric values at a step (default: 0, 1, 2…). The answer's `should_stop` is the pruner's advice."""
        step = self._next_step if step is None else arguments.whole("report", "step", step)
        values = {metric: arguments.measured("report", metric, value) for metric, value in metrics.items()}
        self._next_step = step + 1
        self._has_value |= math.isfinite(values.get(self._search.spec.objective.metric, math.nan))
        measurements = [Measurement(1, metric, step, value) for metric, value in values.items()]
        return self._search.client.report(self._search.name, self.number, measurements)

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
        self._search.client.complete(self._search.name, self.number, outcome)
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
    # The same words make the same request, so that whoever comes second is told about the first one's study.
    words = wire.write_spec(spec).SerializeToString(deterministic=True)
    study = client.create_study(name, spec, request_id=f"spec-{hashlib.sha256(words).hexdigest()}")
    return Search(client, study)


def _counts(trial: Trial) -> bool:
    """Against the total: what was run, or is to be."""
    return trial.state is not TrialState.CANCELLED and REUSED not in trial.labels
