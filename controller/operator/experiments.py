"""The experiments of the controller in the cluster: rows in PostgreSQL, or in its state directory.

The Lease of the controller covers them all, and the store refuses other writers by its epoch
(`experiment_store.Fence`). So no experiment needs a lock file, and the file of its resource is not
written beside the rows.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from controller import experiment_tables
from controller.app.experiments import ControlledElsewhere, Holder
from controller.app.local_experiments import LocalExperiments
from controller.app.local_log import LocalLog
from controller.app.state_directory import StateDirectory
from controller.core.model import Attempt, Revision, Uid
from controller.experiment_store import Fence
from controller.operator.postgres import BoundedPostgres
from controller.report.formatting import timestamp
from suggest.errors import Unavailable

if TYPE_CHECKING:
    from controller.operator.log_archive import Archiver

_POSTGRES_SCHEMA = replace(experiment_tables.SCHEMA, option="--storage")


AWAY_S = 5.0  # how long a leader waits for its database before it lets another one try


class StoreAway(Unavailable):
    """The leader cannot reach its database, which another one may reach."""


@dataclass(frozen=True, slots=True)
class _SessionLease:
    """A `ControllerLease` among the sessions of this process."""

    release: Callable[[], None]

    def discard(self) -> None:
        self.release()


class HostedExperiments(LocalExperiments):
    """The store of one leader. The directory has the files of attempts, and may be lost."""

    def __init__(self, directory: StateDirectory, storage: str, fence: Fence) -> None:
        """Open the store for the leader, and refuse all earlier ones from now on.

        storage: the URL of a PostgreSQL database; "": controller.db in the directory.
        """
        self._postgres = BoundedPostgres(storage) if storage else None
        self._controlled: dict[Uid, Holder] = {}
        self.archiver: Archiver | None = None
        self.budget_of: Callable[[str], str] = lambda _namespace: ""
        if self._postgres is None:
            super().__init__(directory, fence=fence)
        else:
            super().__init__(directory, self._postgres, schema=_POSTGRES_SCHEMA, fence=fence)

    @property
    def away_s(self) -> float:
        """Return for how many seconds the database has been away."""
        return 0.0 if self._postgres is None else self._postgres.away_s

    @property
    def away(self) -> str:
        """Return why the database cannot be used at present; "" if it can."""
        return "" if self._postgres is None else self._postgres.trouble

    def lease(self, uid: Uid, name: str) -> _SessionLease:
        if (holder := self.holder(uid)) is not None:
            raise ControlledElsewhere(f"{name} is being run by {holder}")
        now = timestamp(datetime.now(UTC))
        self._controlled[uid] = Holder(os.getpid(), os.uname().nodename, now)
        self.folders(uid).root.mkdir(mode=0o700, exist_ok=True)
        return _SessionLease(lambda: self._release(uid))

    def _release(self, uid: Uid) -> None:
        self._controlled.pop(uid, None)

    def holder(self, uid: Uid) -> Holder | None:
        return self._controlled.get(uid)

    def tenant_budget(self, namespace: str) -> str:
        return self.budget_of(namespace)

    @property
    def archive_is_away(self) -> bool:
        """Return whether there is a bucket, and its last use has failed."""
        return self.archiver is not None and bool(self.archiver.trouble)

    @property
    def behind(self) -> frozenset[Uid] | None:
        """Return the experiments with logs that the bucket has refused; None: not known yet."""
        return frozenset() if self.archiver is None else self.archiver.behind

    def archive_trouble(self, uid: Uid) -> str | None:
        """Return why the bucket has refused logs; "": none wait for it; None: not known yet."""
        if self.archiver is None:
            return ""
        behind = self.archiver.behind
        if behind is None:
            return None
        return self.archiver.trouble if uid in behind else ""

    async def available_log(self, uid: Uid, attempt: Attempt) -> LocalLog:
        """Return the log of an attempt, which is copied from the bucket if only that has it."""
        if self.archiver is not None:
            await self.archiver.available(uid, attempt)
        return self.log(uid, attempt)

    @asynccontextmanager
    async def with_all_files(self, uid: Uid) -> AsyncIterator[None]:
        """Have the files of all attempts in their folders, also those that only the bucket has.

        Raises Unavailable if the bucket cannot be used.
        """
        if self.archiver is None:
            yield
            return
        with self.archiver.keeping(uid):
            await self.archiver.all_available(uid, self.attempts(uid))
            yield

    def delete_experiment(self, uid: Uid) -> None:
        super().delete_experiment(uid)
        if self.archiver is not None:
            self.archiver.forget(uid)

    def revision_source(self, uid: Uid, number: int) -> str:
        return "its resource"

    def _write_file(self, uid: Uid, revision: Revision) -> None:
        """Do nothing: the resource has the text, and so do the rows."""
