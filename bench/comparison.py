"""One experiment in a namespace with a large quota and in one with a small quota, at the same time, on fake nodes."""

from __future__ import annotations

from cluster_probe import Watcher, ends_of_pods
from harness import Harness, Run, experiment
from record import table

from tests.cluster.api import CORE, Object
from tests.cluster.objects import pods, quota

CPUS = {"wide": 18, "narrow": 6}
TRIALS = 48


def compared(harness: Harness) -> str:
    """Run trials of one CPU and one to five seconds, with parallelism equal to the number of trials."""
    spaces = [harness.namespace(("resourcequotas", quota("cpus", **{"requests.cpu": str(n)}))) for n in CPUS.values()]
    given = {"KWOK_RUN": "${seconds}s", "KWOK_LOG": "accuracy=0.5"}
    trial = {"image": "tiny:1", "command": ["train"], "env": given, "resources": {"cpu": 1}}
    files = [
        experiment(space, trials=TRIALS, parallelism=TRIALS, trial=trial,
                   parameters={"seconds": {"type": "int", "min": 1, "max": 5}})
        for space in spaces
    ]  # fmt: skip
    quotas = [Watcher(harness.api, f"{CORE}/namespaces/{space}/resourcequotas") for space in spaces]
    ends = [Watcher(harness.api, pods(space)) for space in spaces]
    run = harness.ours(files, apart=True)
    rows = [
        [name, str(cpus), *_row(run, used, ended)]
        for (name, cpus), used, ended in zip(CPUS.items(), quotas, ends, strict=True)
    ]
    header = ["namespace", "CPUs allowed", "most that its quota ever said is used",
              f"seconds from the command to a quarter of {TRIALS} trials", "half", "three quarters", "all"]  # fmt: skip
    return (
        f"Two namespaces, the same experiment at once, {TRIALS} trials of 1 CPU and 1 to 5 s each (fake nodes):\n\n"
        f"{table(header, rows)}"
    )


def _row(run: Run, quota_seen: Watcher, pods_seen: Watcher) -> list[str]:
    most = max(_used(event["object"]) for _, event in quota_seen.stop())
    ended = [moment - run.began for moment in ends_of_pods(pods_seen.stop())]
    return [f"{most}", *(f"{ended[len(ended) * part // 4 - 1]:.1f}" for part in (1, 2, 3, 4))]


def _used(shown: Object) -> int:
    return int(shown.get("status", {}).get("used", {}).get("requests.cpu", 0))
