"""What the controller keeps of the logs of trials, whatever their experiments say."""

from __future__ import annotations

import os
from unittest import mock

from controller.operator.policy import Policy
from tests.kube.fake_kubelet import Script
from tests.kube.operated import NAMESPACE, SCORED, Installation, experiment, on_a_cluster
from tests.kube.test_controller_metrics import scraped_from
from tests.service.small_bucket import SmallBucket, small_bucket


def variables_of(bucket: SmallBucket) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": bucket.url,
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "us-east-1",
    }


MIB = 1 << 20
LONG = Script(lines=("#" * 1023,) * 4096, forever=True)


@on_a_cluster(LONG)
async def test_the_platform_team_caps_every_log(installed: Installation) -> None:
    await installed.stop()
    installed.policy = Policy(log_limit_bytes=MIB)
    installed.start()
    installed.apply(experiment(parallelism=1))

    def sizes() -> list[tuple[int, int]]:
        found = installed.state.experiments.glob("*/trials/*/1/log.txt")
        stats = [path.stat() for path in found]
        return [(stat.st_size, stat.st_blocks * 512) for stat in stats]

    await installed.until(lambda: any(size == 4 * MIB for size, _ in sizes()), within_s=60)
    ((_, kept),) = sizes()
    assert kept < 1.25 * MIB


@on_a_cluster(SCORED)
async def test_a_bucket_that_refuses_is_told_where_logs_wait_for_it_and_nothing_else_stops(
    installed: Installation,
) -> None:
    def away(name: str) -> str:
        return str(installed.condition("ArchiveAway", name).get("status", ""))

    def told(reason: str) -> list[str]:
        events = installed.api.all("events", NAMESPACE)
        return [each["involvedObject"]["name"] for each in events if each.get("reason") == reason]

    await installed.stop()
    with small_bucket() as bucket, mock.patch.dict(os.environ, variables_of(bucket)):
        installed.archive = "s3://logs/team"
        installed.start()
        installed.apply(experiment("before"))
        await installed.until(lambda: len(bucket.content) == 6, within_s=60)
        bucket.refuses = True
        installed.apply(experiment())
        await installed.until_state("succeeded")
        await installed.until(lambda: away("tiny") == "True", within_s=60)
        assert "503 Service Unavailable; the" in installed.condition("ArchiveAway")["message"]
        found = await scraped_from(installed)
        assert found["tuner_controller_archive_away", ()] == 1
        assert found["tuner_controller_archive_experiments_behind", ()] == 1
        await installed.stop()  # the next controller has not looked at the bucket yet
        installed.start()
        bucket.refuses = False
        await installed.until(lambda: away("tiny") == "False", within_s=90)
        assert len(bucket.content) == 12
        assert installed.status()["state"] == "succeeded"
        await installed.until(lambda: told("NoLogsWait"))
        assert (told("LogsWait"), told("NoLogsWait")) == (["tiny"], ["tiny"])
        assert away("before") == ""
        found = await scraped_from(installed)
        assert found["tuner_controller_archive_away", ()] == 0
        await installed.stop()


@on_a_cluster(SCORED)
async def test_logs_are_copied_to_the_bucket_and_go_with_their_experiment(
    installed: Installation,
) -> None:
    await installed.stop()
    with small_bucket() as bucket:
        installed.archive = "s3://logs/team"
        bucket.refuses = True
        with mock.patch.dict(os.environ, variables_of(bucket)):
            installed.start()
            installed.apply(experiment(budget={"trials": 1}))
            await installed.until_state("succeeded")
            bucket.refuses = False
            await installed.until(lambda: bucket.content, within_s=60)
            assert bytes(next(iter(bucket.content.values()))).strip() == b"score=0.5"
            installed.delete()
            await installed.until(lambda: not bucket.content, within_s=60)
            await installed.stop()
