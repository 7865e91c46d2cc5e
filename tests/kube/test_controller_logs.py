"""What the controller keeps of the logs of trials, whatever their experiments say."""

from __future__ import annotations

from controller.operator.policy import Policy
from tests.kube.fake_kubelet import Script
from tests.kube.operated import Installation, experiment, on_a_cluster

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
