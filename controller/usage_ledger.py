"""The ledger of a cluster's controller: what the attempts of a namespace have used in each month.

An attempt is entered once, in the transaction that stores its end, or that deletes its experiment;
one whose queue takes its place back, for the time until then, in the transaction that stores that.
So the ledger outlives experiments, and neither a kill nor a write that is repeated loses or repeats
anything. What runs is added from the attempts themselves. Months are those of UTC.

It also keeps the highest limits of each month for which running attempts were stopped.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from controller import experiment_rows as rows
from controller import experiment_tables as tables
from controller.core.model import Attempt, Uid
from controller.core.spending import (
    HOUR_S,
    NOTHING_SPENT,
    Spent,
    month_begin,
    month_of,
    spent_by,
    spent_by_month,
)

_ATTEMPTS, _EXPERIMENTS = tables.attempts.c, tables.experiments.c
_NONE = sa.cast(0.0, sa.Float)
# Since their latest start: what they used before is in the ledger.
_UNENDED = sa.select(
    _EXPERIMENTS.namespace,
    _ATTEMPTS.start_time,
    _NONE.label("earlier_s"),
    _ATTEMPTS.gpus,
    _ATTEMPTS.price_per_hour,
).where(
    _ATTEMPTS.uid == _EXPERIMENTS.uid,
    _ATTEMPTS.end_time.is_(None),
    (_ATTEMPTS.gpus > 0) | (_ATTEMPTS.price_per_hour > 0),
)
_UNENDED_OF = _UNENDED.where(_ATTEMPTS.uid == sa.bindparam("of_uid"))
_THIS = (
    (_ATTEMPTS.uid == _EXPERIMENTS.uid)
    & (_ATTEMPTS.trial == sa.bindparam("of_trial"))
    & (_ATTEMPTS.number == sa.bindparam("of_number"))
)
# One row, if there is the experiment. The attempt need not be stored yet.
_KNOWN = (
    sa.select(_EXPERIMENTS.namespace, _ATTEMPTS.start_time, _ATTEMPTS.end_time, _ATTEMPTS.earlier_s)
    .select_from(tables.experiments.outerjoin(tables.attempts, _THIS))
    .where(_EXPERIMENTS.uid == sa.bindparam("of_uid"))
)
_LEDGER = tables.usage.c
_ADD = (
    sa.update(tables.usage)
    .where(_LEDGER.namespace == sa.bindparam("of_namespace"))
    .where(_LEDGER.month == sa.bindparam("of_month"))
    .values(
        gpu_hours=_LEDGER.gpu_hours + sa.bindparam("more_gpu_hours"),
        cost=_LEDGER.cost + sa.bindparam("more_cost"),
    )
)
_BEGIN = sa.insert(tables.usage)
_STOPPED = (
    sa.select(_LEDGER.stopped_gpu_hours, _LEDGER.stopped_cost)
    .where(_LEDGER.namespace == sa.bindparam("of_namespace"))
    .where(_LEDGER.month == sa.bindparam("of_month"))
)
# One statement, because writers go on meanwhile: in PostgreSQL, each statement sees what is stored
# when it begins. An attempt that ended between two would be in neither. The row of a month is as
# what has run an hour and waits.
_USED = sa.union_all(
    sa.select(
        _LEDGER.namespace,
        sa.cast(sa.null(), sa.Text).label("start_time"),
        sa.cast(HOUR_S, sa.Float).label("earlier_s"),
        _LEDGER.gpu_hours.label("gpus"),
        _LEDGER.cost.label("price_per_hour"),
        _LEDGER.stopped_gpu_hours,
        _LEDGER.stopped_cost,
    ).where(_LEDGER.month == sa.bindparam("of_month")),
    _UNENDED.add_columns(_NONE, _NONE),
)


@dataclass(frozen=True, slots=True)
class MonthUsage:
    """What a namespace has used in a month, and the highest limits that stopped attempts then."""

    used: Spent = NOTHING_SPENT
    stopped: Spent = NOTHING_SPENT


def enter(connection: sa.Connection, uid: Uid, attempts: Sequence[Attempt]) -> None:
    """Enter what the attempts have used, up to their end or until they began to wait again.

    What the store knows already is left out. Call it before the attempts are stored.
    """
    for each in attempts:
        is_due = each.end_time is not None or each.earlier_s > 0
        if not is_due or not (each.gpus or each.price_per_hour):
            continue
        key = {"of_uid": uid, "of_trial": rows.trial_column(each.trial), "of_number": each.number}
        stored = connection.execute(_KNOWN, key).first()
        if stored is None or stored.end_time is not None:
            continue
        more_s = each.earlier_s - (stored.earlier_s or 0.0)
        if more_s > 0:
            began = _time(stored.start_time) or each.start_time or each.end_time
            assert began is not None  # of one that has run
            until = began + timedelta(seconds=more_s)
            before = replace(each, start_time=began, end_time=until)
            _enter(connection, stored.namespace, spent_by_month(before, now=until))
        if each.end_time is not None:
            _enter(connection, stored.namespace, spent_by_month(each, now=each.end_time))


def enter_rest(connection: sa.Connection, uid: Uid, now: datetime) -> None:
    """Enter the attempts of an experiment that have not ended. Call it before it is deleted."""
    for row in connection.execute(_UNENDED_OF, {"of_uid": uid}):
        _enter(connection, row.namespace, spent_by_month(_counted(row), now=now))


def usage_in_month(connection: sa.Connection, now: datetime) -> Mapping[str, MonthUsage]:
    """Return what each namespace has used in the month until now."""
    month, began = month_of(now), month_begin(now)
    found: defaultdict[str, MonthUsage] = defaultdict(MonthUsage)
    for row in connection.execute(_USED, {"of_month": month}):
        attempt = _counted(row)
        if attempt.start_time is None or attempt.start_time >= began:
            more = spent_by(attempt, now=now)
        else:
            more = dict(spent_by_month(attempt, now=now)).get(month, NOTHING_SPENT)
        before = found[row.namespace]
        stopped = before.stopped.at_least(Spent(row.stopped_gpu_hours, row.stopped_cost))
        found[row.namespace] = MonthUsage(before.used + more, stopped)
    return found


def note_limits_that_stop(
    connection: sa.Connection, namespace: str, limits: Spent, now: datetime
) -> None:
    """Note that running attempts of the namespace are to be stopped for these limits."""
    month = month_of(now)
    _enter(connection, namespace, [(month, NOTHING_SPENT)])
    key = {"of_namespace": namespace, "of_month": month}
    highest = limits.at_least(Spent(*connection.execute(_STOPPED, key).one()))
    this_row = (_LEDGER.namespace == namespace) & (_LEDGER.month == month)
    columns = {"stopped_gpu_hours": highest.gpu_hours, "stopped_cost": highest.cost}
    connection.execute(sa.update(tables.usage).where(this_row).values(columns))


def _counted(row: sa.Row[*tuple[Any, ...]]) -> Attempt:
    """Return of a row's attempt what counts."""
    return Attempt(
        0,
        0,
        start_time=_time(row.start_time),
        earlier_s=row.earlier_s,
        gpus=row.gpus,
        price_per_hour=row.price_per_hour,
    )


def _time(stored: str | None) -> datetime | None:
    return None if stored is None else datetime.fromisoformat(stored)


def _enter(connection: sa.Connection, namespace: str, spent: Iterable[tuple[str, Spent]]) -> None:
    for month, each in spent:
        key = {"of_namespace": namespace, "of_month": month}
        more = {"more_gpu_hours": each.gpu_hours, "more_cost": each.cost}
        # One controller writes, so that no other one inserts the row meanwhile.
        if not connection.execute(_ADD, key | more).rowcount:
            first = {"gpu_hours": each.gpu_hours, "cost": each.cost}
            connection.execute(_BEGIN, {"namespace": namespace, "month": month, **first})
