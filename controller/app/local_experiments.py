"""The experiments of a state directory: rows in controller.db; texts of revisions and lock files
in folders.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from controller.app.experiments import (
    ControlledElsewhere,
    ControllerLease,
    Holder,
    Overview,
    Summarize,
)
from controller.app.local_log import LocalLog
from controller.app.state_directory import STATE_OPTION, StateDirectory
from controller.core.model import Attempt, Event, Experiment, ExperimentState, Revision, Uid
from controller.experiment_store import NO_FENCE, Fence, SqlExperimentStore, sqlite_database
from controller.experiment_tables import SCHEMA
from controller.phrases import command
from controller.report.formatting import timestamp
from controller.search import study_name
from controller.spec import from_document
from suggest.errors import NotFound, Unavailable
from suggest.replies import StudySummary
from suggest.trial import TrialState
from suggest.whole_file import replace_file

if TYPE_CHECKING:
    from controller.folders import ExperimentFolders
    from suggest.storage.database import Database
    from suggest.storage.schema import Schema


_REMAINS = {"controller.lock", "experiment.yaml"}
_SETTLED_S = 3600.0
# The states in which a controller runs, unless it was killed.
_CONTROLLED = (ExperimentState.RUNNING, ExperimentState.STOPPING)


class ControllerLock:
    """A `ControllerLease` as a lock file, which the kernel releases when its holder ends.

    The lock is held from `take` on. The content of the file is for people.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder / "controller.lock"
        self._descriptor: int | None = None

    def take(self, name: str, *, within_s: float = 0.1) -> None:
        """Take the lock. Raises ControlledElsewhere, with the holder.

        Waits a moment, because `holder` also takes the lock.
        """
        deadline = time.monotonic() + within_s
        while not self.try_take():
            if time.monotonic() >= deadline:
                holder = self.holder()
                by = f"by {holder}" if holder else "by another process"
                raise ControlledElsewhere(
                    f"{name} is being run {by}; see it with {command('describe', name)}, "
                    f"end it with {command('stop', name)}"
                )
            time.sleep(0.02)

    def try_take(self) -> bool:
        """Take the lock if it is free, and return whether it was."""
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._descriptor = descriptor
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        holder = {"pid": os.getpid(), "host": os.uname().nodename, "since": now}
        try:
            with _writing(self._path):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, json.dumps(holder).encode(), 0)
        except Unavailable:
            self.release()
            raise
        return True

    def release(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def discard(self) -> None:
        self.release()
        shutil.rmtree(self._folder, ignore_errors=True)

    def holder(self) -> Holder | None:
        """Return the process that controls the experiment now, or None, without disturbing it."""
        try:
            descriptor = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            # A shared lock, so that two processes that check
            # at once do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _written(os.pread(descriptor, 4096, 0))
        finally:
            os.close(descriptor)
        return None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """Raise Unavailable with the file's name if it cannot be written.

    The error of an open file has no name.
    """
    try:
        yield
    except OSError as error:
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        cure = "; free some space and try again" if is_full else ""
        raise Unavailable(f"{path}: {error.strerror}; nothing was lost{cure}") from error


def _shown(summary: StudySummary, running: int) -> StudySummary:
    """Return what is shown of an experiment that has so many running attempts.

    Other trials that the study calls running wait for an attempt: see `TrialRecord.state`.
    """
    counts = Counter(summary.trials)
    # The attempts were read before the study, so trials of some may have ended.
    running = min(running, counts[TrialState.RUNNING])
    counts[TrialState.QUEUED] += counts[TrialState.RUNNING] - running
    counts[TrialState.RUNNING] = running
    shown = {state: n for state in TrialState if (n := counts[state])}
    return StudySummary(shown, summary.best)


def _written(content: bytes) -> Holder:
    try:
        holder = json.loads(content)
        return Holder(holder["pid"], holder["host"], holder["since"])
    except (ValueError, KeyError, TypeError):
        return Holder(0, "this machine", "just now")  # it holds the lock but has not written yet


class TroubleFile:
    """What keeps a controller from its work, in the experiment's folder: its database may be away.

    The controller, which holds the lease, replaces the file when its trouble changes, and removes
    it when the trouble is over. One that ends with an error leaves the reason. A file that cannot
    be read or written is as good as none: it is for people.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "trouble.json"

    def write(self, message: str, *, now: datetime, ended: bool = False) -> None:
        """Replace the trouble; "" removes it."""
        with suppress(OSError):
            if not message:
                self.path.unlink(missing_ok=True)
                return
            content = {"message": message, "since": timestamp(now), "ended": ended}
            replace_file(self.path, json.dumps(content))

    def read(self, *, controlled: bool) -> str:
        """Return the running controller's trouble, or why the last one ended; "" if unknown."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            message = str(content["message"])
            since = str(content["since"])
            ended = bool(content["ended"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        if controlled:
            return "" if ended else f"{message} (since {since})"
        if ended:
            return f"{message} (its last controller ended {since})"
        return f"{message} (when its last controller ran)"


class LocalExperiments(SqlExperimentStore):
    """The experiments of one state directory, which must exist."""

    poll_s = 0.1

    def __init__(
        self,
        directory: StateDirectory,
        database: Database | None = None,
        *,
        schema: Schema = SCHEMA,
        fence: Fence = NO_FENCE,
    ) -> None:
        """Open the database; None: controller.db in the directory."""
        database = database or sqlite_database(directory.controller_db)
        super().__init__(database, from_document, schema=schema, fence=fence)
        self.directory = directory

    def folders(self, uid: Uid) -> ExperimentFolders:
        return self.directory.folders(uid)

    def lease(self, uid: Uid, name: str) -> ControllerLease:
        """Take the lease of an experiment, recorded or not. Raises ControlledElsewhere."""
        folder = self.folders(uid).root
        folder.mkdir(mode=0o700, exist_ok=True)
        lock = ControllerLock(folder)
        lock.take(name)
        return lock

    def holder(self, uid: Uid) -> Holder | None:
        return ControllerLock(self.folders(uid).root).holder()

    def trouble(self, uid: Uid) -> TroubleFile:
        return TroubleFile(self.folders(uid).root)

    def tenant_budget(self, _namespace: str) -> str:
        """Return "": what runs from this machine is not counted."""
        return ""

    def in_namespace(self, namespace: str | None) -> list[Experiment]:
        return [each for each in self.experiments() if namespace in (None, each.namespace)]

    def never_ran(self) -> tuple[()]:
        return ()

    async def overviews(
        self, listed: Sequence[Experiment], summarize: Summarize | None
    ) -> Mapping[Uid, Overview]:
        if summarize is None:
            return {}
        # The holders are read first, because a controller stores the end before it releases its
        # lease.
        holders = {each.uid: self.holder(each.uid) for each in listed}
        ended = self._just_ended(each for each in listed if holders[each.uid] is None)
        to_run_again, running = self.to_run_again(), self.running()
        plain = (each for each in listed if each.spec.criteria.is_plain)
        left_out = to_run_again | ended
        settled = {study_name(each): each for each in plain if each.uid not in left_out}
        summaries = await summarize(
            {name: each.uid for name, each in settled.items()},
            {name: each.spec.objective.direction for name, each in settled.items()},
        )
        finals = self.final_attempts([e.uid for e in settled.values() if e.final is not None])
        found: dict[Uid, Overview] = {}
        for name, experiment in settled.items():
            summary, holder = summaries[name], holders[experiment.uid]
            if summary.trials:  # without any, the study may be lost
                trouble = self.trouble(experiment.uid).read(controlled=holder is not None)
                final = finals.get(experiment.uid, ())
                found[experiment.uid] = Overview(
                    _shown(summary, running.get(experiment.uid, 0)), holder, trouble, final
                )
        return found

    def _just_ended(self, left: Iterable[Experiment]) -> set[Uid]:
        """Return those whose controller has stored another state after they were read."""
        controlled = {(e.namespace, e.name): e for e in left if e.state in _CONTROLLED}
        rows = self.rows_of(controlled.keys()) if controlled else {}
        return {
            each.uid
            for key, each in controlled.items()
            if key not in rows or rows[key]["state"] != each.state.value
        }

    def log(self, uid: Uid, attempt: Attempt) -> LocalLog:
        return LocalLog(self.folders(uid).attempt(attempt.trial, attempt.number).log)

    def revision_source(self, uid: Uid, number: int) -> str:
        """Return where people find the text of a revision."""
        return str(self.folders(uid).revision(number))

    def create_experiment(self, experiment: Experiment, revision: Revision) -> None:
        self._write_file(experiment.uid, revision)
        super().create_experiment(experiment, revision)

    def add_revision(self, experiment: Experiment, revision: Revision, event: Event) -> Experiment:
        self._write_file(experiment.uid, revision)
        return super().add_revision(experiment, revision, event)

    def remove_remains(self) -> None:
        """Remove the folders of commands that were killed before they recorded an experiment.

        A folder with anything else in it stays: its experiment may have been in a lost database.
        A new one stays, too: it is made before its lock is taken.
        """
        settled_s = time.time() - _SETTLED_S
        for folder in self.directory.experiments.iterdir():
            # Another command may remove it at the same time.
            with suppress(OSError, Unavailable):
                has_more = any(each.name not in _REMAINS for each in folder.iterdir())
                if has_more or folder.stat().st_mtime > settled_s:
                    continue
                uid, lock = Uid(folder.name), ControllerLock(folder)
                if self.revisions(uid) or not lock.try_take():
                    continue
                # It may have been recorded just before the lock was free.
                if self.revisions(uid):
                    lock.release()
                else:
                    lock.discard()

    def _write_file(self, uid: Uid, revision: Revision) -> None:
        path = self.folders(uid).revision(revision.number)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with _writing(path), os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(revision.file_text)


@contextmanager
def opened(directory: StateDirectory, *, make: bool = False) -> Iterator[LocalExperiments]:
    """Open the experiments of the directory, which is created if `make` is set.

    Raises:
        NotFound: Nothing was ever run there.
        Unavailable: The directory cannot be used as a state directory.
    """
    if make:
        directory.make()
    elif directory.exists and not directory.root.is_dir():
        raise Unavailable(
            f"the state directory {directory.root} is not a directory; name another one with "
            f"{STATE_OPTION}"
        )
    elif not directory.has_experiments:
        raise NotFound(
            f"the state directory {directory.root} has no experiments yet; name another one with "
            f"{STATE_OPTION}, or a cluster's controller with --context"
        )
    with closing(LocalExperiments(directory)) as experiments:
        if make:
            experiments.remove_remains()
        yield experiments
