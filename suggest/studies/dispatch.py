"""Dispatch: turn proposals into trials. Most trials are handed out to run;
one with a known value ends at once.

Trials are stored in the order of their numbers, so that a crash between two writes leaves no gap.
This module makes no choice about which points to try.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from suggest.domain import NO_MEMBER, Value, compact_json
from suggest.engine import Proposed
from suggest.space import Assignment, Space
from suggest.storage.store import Addition
from suggest.storage.study_json import domain_document
from suggest.studies import request_keys
from suggest.studies.sessions import Writer
from suggest.trial import ENQUEUED, PLANNED, PROPOSED_BY, REUSED, Trial, TrialState

MAX_PLAN_BYTES = 64 << 10  # half of what a variable of the environment may have
MAX_REPLY_BYTES = 3 << 20  # gRPC clients in other languages accept 4 MiB by default


class ReplyBudget:
    """Selects the trials that fit into one reply: the first one always, others if there is room.

    `size_of` builds a message of a trial to measure it, so it is called only where a rough upper
    bound exceeds the limit.
    """

    def __init__(self, size_of: Callable[[Trial], int]) -> None:
        self._size_of = size_of
        self._taken: list[Trial] = []
        self._rough = 0
        self._exact: int | None = None
        self.full = False

    def take(self, trial: Trial) -> bool:
        """Return whether the trial fits; always False after the first trial that did not."""
        self._rough += _at_most(trial)
        if self._rough > MAX_REPLY_BYTES:
            if self._exact is None:
                self._exact = sum(map(self._size_of, self._taken))
            self._exact += self._size_of(trial)
            self.full = self.full or (self._exact > MAX_REPLY_BYTES and bool(self._taken))
        if not self.full:
            self._taken.append(trial)
        return not self.full


def _at_most(trial: Trial) -> int:
    """Return an upper bound of the trial's size in bytes: four per character, plus overhead."""
    labels = len(repr(trial.labels)) if trial.labels else 0
    return 2000 + 4 * (
        len(repr(trial.parameters)) + labels + len(trial.reason) + len(trial.failure_class)
    )


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One request for trials.

    `lease_s` is None for trials without a lease, which run until they are completed.
    """

    writer: Writer
    client_id: str
    request_id: str
    labels: Mapping[str, str]
    lease_s: float | None
    budget: ReplyBudget

    def again(self, trials: Sequence[Trial]) -> list[Trial]:
        """Return the trials that an earlier call with this request id got, and renew their leases.

        The repeated call shows that the client is alive. If not all trials fit into a reply,
        running ones come first.
        """
        by_need = sorted(trials, key=lambda trial: (trial.finished, trial.number))
        fitting = list(itertools.takewhile(self.budget.take, by_need))
        back = self.writer.revive([trial for trial in fitting if trial.expired])
        for trial in fitting:
            if trial.state is TrialState.RUNNING:
                self.writer.trial_leases.renew(trial.number)
        return sorted(
            (back.get(trial.number, trial) for trial in fitting), key=lambda trial: trial.number
        )

    def begin(self, proposed: Sequence[Proposed]) -> Iterator[list[Trial]]:
        """Store the proposed trials and yield those that run now.

        Only the first few, if the budget is `full`.

        Trials with a known value do not run: an empty list is yielded for them, so that the caller
        notes them as given. Trials are yielded as soon as they are stored, so that a later write
        that fails does not hide them.
        """
        ordered = sorted(proposed, key=lambda p: p.number)
        for to_run, group in itertools.groupby(ordered, key=lambda p: p.known is None):
            if to_run:
                these = list(group)
                fit = list(itertools.takewhile(self.budget.take, map(self._running, these)))
                if fit:
                    self.writer.hand_out(fit, queued=sum(p.queued for p in these[: len(fit)]))
                    yield fit
                if self.budget.full:
                    break
            else:
                for p in group:
                    self._take_over(p)
                yield []

    def _running(self, p: Proposed) -> Trial:
        base = Trial(p.number, TrialState.RUNNING, p.parameters, create_time=datetime.now(UTC))
        if p.queued:
            base = self.writer.engine.trial(p.number)
        parameters, planned = p.parameters, {}
        spec = self.writer.engine.study.spec
        if spec.define_by_run:
            # The trial names its parameters; those that it has met before keep their values.
            self.writer.engine.plan(p.number, p.parameters)
            parameters = base.parameters if p.queued else {}
            planned = _planned(spec.space, p.parameters, base)
        return replace(
            base,
            state=TrialState.RUNNING,
            parameters=parameters,
            client_id=self.client_id,
            request_id=self.request_id,
            labels={**base.labels, **self.labels, **_proposed_by(p), **planned},
            tries=base.tries + 1,
            lease_s=self.lease_s,
            fidelity=p.fidelity,
            parent=p.parent,
            value=None,
            step=None,
            reason="",
        )

    def _take_over(self, p: Proposed) -> None:
        """Finish a trial with a known value.

        The trial has no client id, so no client finds it among its own.
        """
        assert p.known is not None
        writer, now = self.writer, datetime.now(UTC)
        trial = Trial(
            p.number,
            TrialState.SUCCEEDED,
            p.parameters,
            value=writer.engine.trial(p.known).value,
            reason=f"not run: the value of trial {p.known}, which has the same parameters",
            labels={**self.labels, **_proposed_by(p), REUSED: str(p.known)},
            create_time=now,
            end_time=now,
        )
        with writer.changing():
            addition = Addition(trial, request_keys.value_of(p.number))
            writer.store.add_trials(writer.lease, [addition])
            writer.engine.put(trial)


def _planned(space: Space, point: Assignment, trial: Trial) -> dict[str, str]:
    """Return the label with the values of the parameters that the trial may meet.

    What a person has chosen for it takes precedence. A plan that is too long is not told: then the
    trial asks for each.
    """
    values = {**point, **json.loads(trial.labels.get(ENQUEUED, "{}"))}
    plan: dict[str, Value] = {}
    for parameter in space.parameters:
        value = parameter.domain.canonical(values.get(parameter.name, NO_MEMBER))
        if value is not NO_MEMBER:
            plan[parameter.name] = [value, domain_document(parameter.domain)]
    text = compact_json(plan)
    return {PLANNED: text if len(text) <= MAX_PLAN_BYTES else "{}"}


def _proposed_by(p: Proposed) -> dict[str, str]:
    return {PROPOSED_BY: p.proposed_by} if p.proposed_by else {}
