"""The observation log of Katib's trials in SQL: stores reports
as they came, and reads them by time.

A repeated report is stored again, as in Katib, because two equal lines
with the same time stamp may be two reports.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import bindparam, delete, func, insert, select

from suggest.storage.database import Database
from suggest.storage.store import Observed
from suggest.storage.study_tables import katib_observations

_AT_A_TIME = 500  # trials in a statement
_LINES = 5000  # in a statement
# the metric of the line that marks a trial as stopped early: a report's metrics have names
_STOPPED = ""
# Built once, because a statement with the names themselves takes twice as long.
_STOPPED_OF = select(katib_observations.c.trial_name).where(
    katib_observations.c.metric == _STOPPED,
    katib_observations.c.trial_name.in_(bindparam("trials", expanding=True)),
)


class ObservationLog:
    """The reports of trials of Katib's clients, by trial name.

    They belong to no study, so writing needs no lease. The caller closes the database.
    """

    def __init__(self, database: Database) -> None:
        self.database = database

    def report(self, trial: str, lines: Sequence[Observed]) -> None:
        """Append lines to the log of a trial."""
        rows = [{"trial_name": trial, **line._asdict()} for line in lines]
        if not rows:
            return
        with self.database.writing() as connection:
            for start in range(0, len(rows), _LINES):
                connection.execute(insert(katib_observations), rows[start : start + _LINES])

    def mark_stopped(self, trial: str) -> None:
        """Record that a trial was stopped early. Repeating it changes nothing."""
        if self.stopped([trial]):
            return
        mark = Observed(0, "", _STOPPED, "")
        with self.database.writing(single=True) as connection:
            connection.execute(insert(katib_observations), {"trial_name": trial, **mark._asdict()})

    def stopped(self, trials: Sequence[str]) -> set[str]:
        """Return those of the trials that were stopped early."""
        found: set[str] = set()
        for some in (trials[k : k + _AT_A_TIME] for k in range(0, len(trials), _AT_A_TIME)):
            with self.database.reading(single=True) as connection:
                found.update(connection.execute(_STOPPED_OF, {"trials": some}).scalars())
        return found

    def count(self) -> int:
        """Count the lines of all trials. Slow for large logs."""
        with self.database.reading() as connection:
            return connection.execute(
                select(func.count()).select_from(katib_observations)
            ).scalar_one()

    def read(
        self, trial: str, *, metric: str, first_us: int | None, last_us: int | None
    ) -> list[Observed]:
        """Return lines by time, those with equal times in the order of the reports.

        An empty metric means all.
        """
        o = katib_observations.c
        query = select(o.time_us, o.time_stamp, o.metric, o.value).where(o.trial_name == trial)
        query = query.where(o.metric == metric if metric else o.metric != _STOPPED)
        if first_us is not None:
            query = query.where(o.time_us >= first_us)
        if last_us is not None:
            query = query.where(o.time_us <= last_us)
        with self.database.reading(single=True) as connection:
            return [Observed(*row) for row in connection.execute(query.order_by(o.time_us, o.id))]

    def first_values(self, trials: Sequence[str], metric: str, count: int) -> dict[str, list[str]]:
        """Return the first `count` values of a metric by trial, for those that reported it."""
        o = katib_observations.c
        place = (
            func.row_number()
            .over(partition_by=o.trial_name, order_by=(o.time_us, o.id))
            .label("place")
        )
        found: dict[str, list[str]] = {}
        for some in (trials[k : k + _AT_A_TIME] for k in range(0, len(trials), _AT_A_TIME)):
            ordered = (
                select(o.trial_name, o.value, place)
                .where(o.metric == metric, o.trial_name.in_(some))
                .subquery()
            )
            query = (
                select(ordered)
                .where(ordered.c.place <= count)
                .order_by(ordered.c.trial_name, ordered.c.place)
            )
            with self.database.reading(single=True) as connection:
                for name, value, _ in connection.execute(query):
                    found.setdefault(name, []).append(value)
        return found

    def delete(self, trial: str) -> None:
        """Delete the log of a trial. A trial without reports is not an error."""
        with self.database.writing(single=True) as connection:
            connection.execute(
                delete(katib_observations).where(katib_observations.c.trial_name == trial)
            )
