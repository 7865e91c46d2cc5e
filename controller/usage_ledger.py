"""The ledger of a cluster's controller: what the attempts of a namespace have used in each month.

An attempt is entered once, in the transaction that stores its end, or that deletes its experiment.
So the ledger outlives experiments, and neither a kill nor a write that is repeated loses or repeats
anything. What has not ended is added from the attempts themselves. Months are those of UTC.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

import sqlalchemy as sa

from controller import experiment_rows as rows
from controller import experiment_tables as tables
from controller.core.model import Attempt, Uid
from controller.core.spending import NOTHING_SPENT, Spent, month_of, spent_by_month

_ATTEMPTS = tables.attempts.c
_COUNTED = (_ATTEMPTS.gpus > 0) | (_ATTEMPTS.price_per_hour > 0)
_UNENDED = sa.select(tables.attempts, tables.experiments.c.namespace).where(
    tables.attempts.c.uid == tables.experiments.c.uid, _ATTEMPTS.end_time.is_(None), _COUNTED
)


def enter_ended(connection: sa.Connection, uid: Uid, attempts: Sequence[Attempt]) -> None:
    """Enter those of the attempts that have ended and that the store does not know to have ended.

    Call it before they are stored.
    """
    ended = [each for each in attempts if each.ended and (each.gpus or each.price_per_hour)]
    if not ended:
        return
    of_trials = _ATTEMPTS.trial.in_({rows.trial_column(each.trial) for each in ended})
    known = sa.select(_ATTEMPTS.trial, _ATTEMPTS.number).where(
        _ATTEMPTS.uid == uid, of_trials, _ATTEMPTS.end_time.is_not(None)
    )
    entered = {tuple(row) for row in connection.execute(known)}
    of_experiment = tables.experiments.c.uid == uid
    query = sa.select(tables.experiments.c.namespace).where(of_experiment)
    namespace = connection.execute(query).scalar_one()
    for each in ended:
        if (rows.trial_column(each.trial), each.number) not in entered:
            assert each.end_time is not None
            _enter(connection, namespace, spent_by_month(each, now=each.end_time))


def enter_rest(connection: sa.Connection, uid: Uid, now: datetime) -> None:
    """Enter the attempts of an experiment that have not ended. Call it before it is deleted."""
    for namespace, attempt in _unended(connection, _UNENDED.where(_ATTEMPTS.uid == uid)):
        _enter(connection, namespace, spent_by_month(attempt, now=now))


def used_in_month(connection: sa.Connection, now: datetime) -> Mapping[str, Spent]:
    """Return what each namespace has used in the month until now."""
    month = month_of(now)
    ledger = tables.usage.c
    used: defaultdict[str, Spent] = defaultdict(lambda: NOTHING_SPENT)
    for row in connection.execute(sa.select(tables.usage).where(ledger.month == month)):
        used[row.namespace] += Spent(row.gpu_hours, row.cost)
    for namespace, attempt in _unended(connection, _UNENDED):
        by_month = dict(spent_by_month(attempt, now=now))
        used[namespace] += by_month.get(month, NOTHING_SPENT)
    return used


def _unended(connection: sa.Connection, query: sa.Select[Any]) -> Iterator[tuple[str, Attempt]]:
    """Yield the namespace of each attempt that was found, and the attempt."""
    for found in connection.execute(query).mappings():
        row = dict(found)
        yield row.pop("namespace"), rows.attempt_of(row)


def _enter(connection: sa.Connection, namespace: str, spent: Iterable[tuple[str, Spent]]) -> None:
    ledger = tables.usage.c
    for month, each in spent:
        this = (ledger.namespace == namespace) & (ledger.month == month)
        added: dict[str, Any] = {
            "gpu_hours": ledger.gpu_hours + each.gpu_hours,
            "cost": ledger.cost + each.cost,
        }
        # One controller writes, so that no other one inserts the row meanwhile.
        if not connection.execute(sa.update(tables.usage).where(this).values(**added)).rowcount:
            first = {"gpu_hours": each.gpu_hours, "cost": each.cost}
            row = {"namespace": namespace, "month": month, **first}
            connection.execute(sa.insert(tables.usage).values(**row))
