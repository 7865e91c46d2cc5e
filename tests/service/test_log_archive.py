"""Logs of ended attempts in a bucket, over HTTP."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from obstore.exceptions import BaseError

from controller.app.state_directory import StateDirectory
from controller.core.model import Attempt, AttemptState, Revision
from controller.experiment_store import NO_FENCE, Changes
from controller.operator import log_archive
from controller.operator.experiments import HostedExperiments
from controller.operator.log_archive import UPLOADED, Archiver, LogArchive, Retention
from controller.runtime.log_limit import trim
from tests.service.small_bucket import SmallBucket, small_bucket
from tests.unit.builders import a_spec, an_experiment, at, attempt

UID = "x7k2qaaaaaaaaaaa"
KEYS = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}


@pytest.fixture
def bucket() -> Iterator[SmallBucket]:
    with small_bucket() as bucket:
        yield bucket


def archive_in(bucket: SmallBucket) -> LogArchive:
    return LogArchive("s3://logs/team", config={**KEYS, "endpoint": bucket.url})


def sizes(bucket: SmallBucket) -> dict[str, int]:
    return {key: len(data) for key, data in bucket.content.items()}


@pytest.fixture
def experiments(tmp_path: Path) -> Iterator[HostedExperiments]:
    state = StateDirectory(tmp_path / "state")
    state.make()
    with closing(HostedExperiments(state, "", NO_FENCE)) as experiments:
        experiment = an_experiment(a_spec(), uid=UID)
        experiments.create_experiment(experiment, Revision(1, experiment.spec, "", at(0)))
        yield experiments


def logged(
    experiments: HostedExperiments, text: str, *, ended: bool = True, trial: int = 0
) -> Attempt:
    """Record the first attempt of a trial with this log."""
    recorded = replace(attempt(1), trial=trial)
    if ended:
        recorded = replace(recorded, state=AttemptState.SUCCEEDED, end_time=at(1))
    experiments.save(UID, Changes(attempts=[recorded]))
    log = experiments.folders(UID).attempt(trial, 1).log
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text(text)
    return recorded


def test_a_log_is_uploaded_when_its_attempt_has_ended_and_found_without_the_directory(
    bucket: SmallBucket, experiments: HostedExperiments
) -> None:
    archiver = Archiver(archive_in(bucket), experiments, Retention())
    logged(experiments, "score=0.5\n", ended=False)
    asyncio.run(archiver.turn())
    assert sizes(bucket) == {}
    ended = logged(experiments, "score=0.5\n")
    asyncio.run(archiver.turn())
    assert sizes(bucket) == {f"team/{UID}/0/1/log.txt": 10}
    log = experiments.folders(UID).attempt(0, 1).log
    log.unlink()
    asyncio.run(archiver.available(UID, ended))
    assert log.read_text() == "score=0.5\n"


def test_a_bucket_that_is_away_delays_nothing_and_gets_the_log_later(
    bucket: SmallBucket, experiments: HostedExperiments
) -> None:
    logged(experiments, "score=0.5\n")
    archiver = Archiver(archive_in(bucket), experiments, Retention())
    bucket.refuses = True
    with pytest.raises(BaseError, match="503"):
        asyncio.run(archiver.turn())
    assert not (experiments.folders(UID).attempt(0, 1).root / UPLOADED).exists()
    bucket.refuses = False
    asyncio.run(archiver.turn())
    assert list(bucket.content) == [f"team/{UID}/0/1/log.txt"]


def test_a_log_that_is_refused_does_not_keep_the_others_back(
    bucket: SmallBucket, experiments: HostedExperiments
) -> None:
    for trial in range(3):
        logged(experiments, "score=0.5\n", trial=trial)
    archiver = Archiver(archive_in(bucket), experiments, Retention())
    bucket.refused_key = f"{UID}/1/"
    for _ in range(2):
        with pytest.raises(BaseError, match="503"):
            asyncio.run(archiver.turn())
    assert set(bucket.content) == {f"team/{UID}/{trial}/1/log.txt" for trial in (0, 2)}
    assert archiver.behind == {UID}


def test_only_experiments_with_ended_attempts_are_behind(
    bucket: SmallBucket, experiments: HostedExperiments
) -> None:
    archiver = Archiver(archive_in(bucket), experiments, Retention())
    assert archiver.behind is None
    bucket.refuses = True
    logged(experiments, "score=0.5\n", ended=False)
    with pytest.raises(BaseError):  # of the retention
        asyncio.run(archiver.turn())
    assert archiver.behind == frozenset()


def test_files_that_are_needed_together_are_all_in_the_directory_meanwhile(
    bucket: SmallBucket, experiments: HostedExperiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "KEPT_BYTES", 0)
    experiments.archiver = archiver = Archiver(archive_in(bucket), experiments, Retention())
    for trial in range(2):
        logged(experiments, f"score=0.{trial}\n", trial=trial)
    folder = experiments.folders(UID).root

    async def claim() -> None:
        await archiver.turn()
        assert not [*folder.rglob("log.txt")]
        async with experiments.with_all_files(UID):
            await archiver.turn()
            assert len([*folder.rglob("log.txt")]) == 2
        await archiver.turn()
        assert {path.name for path in folder.rglob("*") if path.is_file()} == {UPLOADED}

    asyncio.run(claim())


def test_files_are_downloaded_several_at_a_time(
    bucket: SmallBucket, experiments: HostedExperiments, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_archive, "_DOWNLOADS", 3)
    restore, at_once = LogArchive.restore, [0]
    running = 0

    async def counted(archive: LogArchive, uid: str, one: Attempt, folder: Path, name: str) -> None:
        nonlocal running
        running += 1
        at_once.append(running)
        try:
            await restore(archive, uid, one, folder, name)
        finally:
            running -= 1

    monkeypatch.setattr(LogArchive, "restore", counted)
    experiments.archiver = archiver = Archiver(archive_in(bucket), experiments, Retention())
    for trial in range(9):
        logged(experiments, f"score=0.{trial}\n", trial=trial)

    async def claim() -> None:
        await archiver.turn()
        shutil.rmtree(experiments.folders(UID).root / "trials")
        async with experiments.with_all_files(UID):
            assert len([*experiments.folders(UID).root.rglob("log.txt")]) == 9

    asyncio.run(claim())
    assert max(at_once) == 3


def test_the_hole_of_a_capped_log_is_not_uploaded(
    bucket: SmallBucket, experiments: HostedExperiments
) -> None:
    logged(experiments, "#" * 1023 * 8192 + "\n")
    log = experiments.folders(UID).attempt(0, 1).log
    trim(str(log), 1 << 20, 0)
    asyncio.run(Archiver(archive_in(bucket), experiments, Retention()).turn())
    assert sizes(bucket)[f"team/{UID}/0/1/log.txt"] < 1.2 * (1 << 20)


def test_an_experiment_takes_its_logs_with_it(
    bucket: SmallBucket, experiments: HostedExperiments
) -> None:
    logged(experiments, "score=0.5\n")
    archiver = Archiver(archive_in(bucket), experiments, Retention())
    asyncio.run(archiver.turn())
    archiver.forget(UID)
    asyncio.run(archiver.turn())
    assert sizes(bucket) == {}


@pytest.mark.parametrize(
    ("retention", "later", "kept"),
    [
        (Retention(age_s=3600), timedelta(hours=2), []),
        (Retention(age_s=3600), timedelta(minutes=1), ["log"]),
        (Retention(size_bytes=5), timedelta(), []),
        (Retention(size_bytes=50), timedelta(), ["log"]),
    ],
)
def test_retention_is_by_age_and_by_size(
    bucket: SmallBucket,
    experiments: HostedExperiments,
    retention: Retention,
    later: timedelta,
    kept: list[str],
) -> None:
    ended = logged(experiments, "score=0.5\n")
    archive = archive_in(bucket)

    async def expire() -> None:
        await archive.upload(UID, ended, experiments.folders(UID).attempt(0, 1).root)
        await archive.expire(retention, datetime.now(UTC) + later)

    asyncio.run(expire())
    assert [Path(key).stem for key in bucket.content] == kept
