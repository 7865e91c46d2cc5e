"""Logs and provenance of ended attempts, in a bucket.

Nothing waits for the bucket: files stay in the directory until they are uploaded, and are tried
again while it is away. An uploaded log is read again from the bucket when somebody asks for it.
Experiments whose logs it does not take say so in their statuses (`Archiver.behind`).
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING

from obstore import delete_async, get_async, put_async
from obstore import list as list_objects
from obstore.exceptions import BaseError
from obstore.store import S3Store

from controller.core.model import FINAL, Attempt, TrialOrFinal, Uid, trial_label
from controller.runtime.log_limit import kept_part
from suggest.backoff import Backoff
from suggest.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from obstore.store import S3Config

    from controller.app.local_experiments import LocalExperiments

_log = logging.getLogger(__name__)

FILES = ("log.txt", "metrics.txt", "provenance.json")
UPLOADED = "archived"  # an empty file in an attempt's folder
TURN_S = 10.0
EXPIRE_S = 3600.0
KEPT_BYTES = 1 << 30  # of uploaded logs, in the directory
_PART_BYTES = 5 << 20  # the least part of S3; two are in memory
_DOWNLOADS = 16  # at a time
_BACKOFF = Backoff(first_s=1.0, longest_s=60.0, jitter=0.5)


@dataclass(frozen=True, slots=True)
class Retention:
    """What the bucket keeps: objects up to this age, and the newest up to this size; None: all."""

    age_s: float | None = None
    size_bytes: int | None = None


class LogArchive:
    """The bucket. Methods raise obstore's BaseError if it cannot be used, and OSError."""

    def __init__(self, url: str, *, config: S3Config | None = None) -> None:
        """url: s3://BUCKET/PREFIX. The environment has what `config` lacks, as AWS_*."""
        if not url.startswith("s3://"):
            raise InvalidArgument.at(
                "--archive", f"{url!r} is not a bucket; write s3://BUCKET/PREFIX"
            )
        try:
            self._store = S3Store.from_url(
                url,
                config=config,
                client_options={"connect_timeout": "5s", "timeout": "60s", "allow_http": True},
                retry_config={"max_retries": 1, "retry_timeout": timedelta(seconds=10)},
            )
        except (BaseError, ValueError) as error:
            raise InvalidArgument.at("--archive", str(error)) from error

    async def upload(self, uid: Uid, attempt: Attempt, folder: Path) -> None:
        """Copy the files of an attempt that has ended. Repeated uploads replace each other."""
        for name in FILES:
            path = folder / name
            if path.exists():
                with path.open("rb") as file:
                    await put_async(
                        self._store,
                        f"{_prefix(uid, attempt.trial, attempt.number)}/{name}",
                        _kept(file.fileno()),
                        chunk_size=_PART_BYTES,
                        max_concurrency=1,
                    )

    async def restore(self, uid: Uid, attempt: Attempt, folder: Path, name: str) -> None:
        """Copy a file of the attempt back. Raises FileNotFoundError if the bucket has none."""
        found = await get_async(
            self._store, f"{_prefix(uid, attempt.trial, attempt.number)}/{name}"
        )
        folder.mkdir(parents=True, exist_ok=True)
        # A name of its own, since several may ask for it.
        partial = folder / f"{name}.{secrets.token_hex(4)}.partial"
        try:
            with partial.open("wb") as file:
                async for chunk in found.stream(min_chunk_size=1 << 20):
                    file.write(chunk)
            partial.rename(folder / name)
        finally:
            partial.unlink(missing_ok=True)

    async def delete(self, uid: Uid) -> None:
        """Delete everything of an experiment."""
        async for objects in list_objects(self._store, prefix=uid):
            await delete_async(self._store, [each["path"] for each in objects])

    async def expire(self, retention: Retention, now: datetime) -> None:
        """Delete what is older than the retention, then the oldest beyond its size."""
        found: list[tuple[datetime, int, str]] = []
        async for objects in list_objects(self._store):
            found += [(each["last_modified"], each["size"], each["path"]) for each in objects]
        total, surplus = 0, list[str]()
        for modified, size, path in sorted(found, reverse=True):
            total += size
            is_old = (
                retention.age_s is not None and (now - modified).total_seconds() > retention.age_s
            )
            is_beyond = retention.size_bytes is not None and total > retention.size_bytes
            if is_old or is_beyond:
                surplus.append(path)
        if surplus:
            await delete_async(self._store, surplus)


def _prefix(uid: Uid, trial: TrialOrFinal, number: int) -> str:
    return f"{uid}/{trial_label(trial)}/{number}"


def _kept(file: int) -> Iterator[bytes]:
    """Yield what spec.trial.logLimit has kept of a log, without the hole in it."""
    offset = 0
    while True:
        begin, end = kept_part(file, offset)
        data = os.pread(file, min(_PART_BYTES, end - begin), begin)
        if not data:
            return
        yield data
        offset = begin + len(data)


class Archiver:
    """Uploads what has ended, and deletes what is no longer kept, until it is cancelled.

    trouble: why the bucket cannot be used at present; "" if it can.
    behind: the experiments with logs that it has refused; None: not known yet.
    """

    def __init__(
        self, archive: LogArchive, experiments: LocalExperiments, retention: Retention
    ) -> None:
        self.trouble = ""
        self.behind: frozenset[Uid] | None = None
        self._archive = archive
        self._experiments = experiments
        self._retention = retention
        self._deleted: set[Uid] = set()
        self._kept: set[Uid] = set()  # whose files stay in the directory meanwhile
        # Folders that the bucket has refused. They come last, so that none keeps the others back.
        self._refused: set[Path] = set()
        self._expired_at_s: float | None = None

    def forget(self, uid: Uid) -> None:
        """Delete the logs of an experiment when the bucket can be used."""
        self._deleted.add(uid)

    async def available(self, uid: Uid, attempt: Attempt, *, whole: bool = False) -> None:
        """Make the log of an attempt a file again, if only the bucket has it.

        whole: and all its other files.
        """
        folder = self._experiments.folders(uid).attempt(attempt.trial, attempt.number).root
        if not attempt.ended:
            return
        for name in FILES if whole else FILES[:1]:
            if (folder / name).exists():
                continue
            try:
                await self._archive.restore(uid, attempt, folder, name)
            except FileNotFoundError:
                continue
            except (BaseError, OSError) as error:
                self._note(error)
                return
            (folder / UPLOADED).touch()

    async def all_available(self, uid: Uid, attempts: Iterable[Attempt]) -> None:
        """Make all files of attempts files again, several at a time.

        Raises Unavailable if the bucket cannot be used.
        """
        waiting = iter(attempts)

        async def download() -> None:
            for attempt in waiting:
                await self.available(uid, attempt, whole=True)
                if self.trouble:
                    raise Unavailable(f"the bucket with the logs is away: {self.trouble}")

        try:
            async with asyncio.TaskGroup() as downloads:
                for _ in range(_DOWNLOADS):
                    downloads.create_task(download())
        except* Unavailable as failed:
            raise failed.exceptions[0] from None

    @contextmanager
    def keeping(self, uid: Uid) -> Iterator[None]:
        """Leave the files of an experiment in the directory meanwhile. One caller at a time."""
        self._kept.add(uid)
        try:
            yield
        finally:
            self._kept.discard(uid)

    async def run(self) -> None:
        failures = 0
        while True:
            pause_s = TURN_S
            try:
                await self.turn()
                failures = 0
                self._note(None)
            except (BaseError, OSError) as error:
                self._note(error)
                pause_s = _BACKOFF.pause_s(failures)
                failures += 1
            await asyncio.sleep(pause_s)

    async def turn(self) -> None:
        """Do what is due. Raises BaseError and OSError."""
        waiting = deque(await asyncio.to_thread(self._not_uploaded))
        self._refused.intersection_update(folder for _, folder in waiting)
        try:
            while waiting:
                await self._upload(*waiting[0])
                waiting.popleft()
        finally:
            self.behind = self._with_ended(waiting)
        await asyncio.to_thread(self._drop_copies)
        for uid in list(self._deleted):
            await self._archive.delete(uid)
            self._deleted.discard(uid)
        now_s = asyncio.get_running_loop().time()
        if self._expired_at_s is None or now_s - self._expired_at_s >= EXPIRE_S:
            await self._archive.expire(self._retention, datetime.now(UTC))
            self._expired_at_s = now_s

    def _with_ended(self, waiting: Iterable[tuple[Uid, Path]]) -> frozenset[Uid]:
        """Return the experiments of the folders whose attempts have ended."""
        found: set[Uid] = set()
        for uid, folder in waiting:
            if uid not in found and self._ended(uid, folder):
                found.add(uid)
        return frozenset(found)

    async def _upload(self, uid: Uid, folder: Path) -> None:
        try:
            for attempt in self._ended(uid, folder):
                await self._archive.upload(uid, attempt, folder)
                if folder.exists():  # it may have been deleted meanwhile
                    (folder / UPLOADED).touch()
        except (BaseError, OSError):
            self._refused.add(folder)
            raise

    def _not_uploaded(self) -> list[tuple[Uid, Path]]:
        """Return the folders of attempts with logs that the bucket may not have."""
        root = self._experiments.directory.experiments
        found = [*root.glob("*/trials/*/*/log.txt"), *root.glob("*/final/*/log.txt")]
        folders = [log.parent for log in found if not (log.parent / UPLOADED).exists()]
        folders.sort(key=self._refused.__contains__)
        return [(folder.relative_to(root).parts[0], folder) for folder in folders]

    def _ended(self, uid: Uid, folder: Path) -> list[Attempt]:
        """Return the attempt of the folder, if it has ended."""
        label, number = folder.parent.name, folder.name
        attempts = self._experiments.attempts(
            uid, FINAL if label == trial_label(FINAL) else int(label)
        )
        return [each for each in attempts if each.ended and str(each.number) == number]

    def _drop_copies(self) -> None:
        """Delete the oldest uploaded logs of the directory beyond KEPT_BYTES."""
        root, total = self._experiments.directory.experiments, 0
        uploaded = [path.parent / FILES[0] for path in root.glob(f"**/{UPLOADED}")]
        uploaded = [each for each in uploaded if each.relative_to(root).parts[0] not in self._kept]
        stats = [(path.stat(), path) for path in uploaded if path.exists()]
        for stat, path in sorted(stats, key=lambda each: -each[0].st_mtime):
            total += stat.st_blocks * 512
            if total > KEPT_BYTES:
                path.unlink(missing_ok=True)

    def _note(self, error: Exception | None) -> None:
        if error is None:
            if self.trouble:
                _log.info("event=archiveBack")
            self.trouble = ""
            return
        if not self.trouble:
            sentence = str(error).partition("\n")[0]
            _log.warning("event=archiveAway error=%s; logs stay in the directory", sentence)
        self.trouble = _for_tenants(error)


def _for_tenants(error: Exception) -> str:
    """Return why a request failed, without its address, which may be of another tenant's log."""
    sentence = str(error).partition("\n")[0]
    cause = sentence.rpartition("  - ")[2]
    return cause.partition(": <")[0]  # what the server has sent as XML
