"""How many edits of Katib's SDK meet a conflict: `edit_experiment_budget` of ten experiments, each
with three trials of 2 s at a time, each edited every four seconds or so.

Prints Markdown. Requires what `make test-katib` requires. `--edits` of each experiment.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import time

from bench.in_cluster import KATIBS, Controller, installation, make_namespaces
from tests.cluster.test_katib_sdk import PYTHON

NAMESPACE, EXPERIMENTS, RUN = "edited", 10, "2s"
# Trials are so many that no edit ends the search.
SDK = """
import sys, time
from kubeflow.katib import KatibClient

namespace, experiments, edits = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
client = KatibClient(namespace=namespace)
for edit in range(edits):
    time.sleep(3)
    for number in range(experiments):
        began = time.monotonic()
        try:
            client.edit_experiment_budget(name=f"e{number}", max_trial_count=10_000 + edit)
            answer = "taken"
        except RuntimeError:
            answer = "refused"
        print(answer, time.monotonic() - began)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=30)
    asked = parser.parse_args()
    with installation(KATIBS) as installed:
        Controller(installed, KATIBS)
        make_namespaces(installed, [NAMESPACE])
        api, path = installed.cluster.api(), KATIBS.path.format(namespace=NAMESPACE)
        for number in range(EXPERIMENTS):
            api.post(path, KATIBS.make(NAMESPACE, f"e{number}", {"KWOK_RUN": RUN}, 10_000, 3))
        time.sleep(5)
        command = [PYTHON, "-c", SDK, NAMESPACE, str(EXPERIMENTS), str(asked.edits)]
        env = {**os.environ, "KUBECONFIG": str(installed.cluster.kubeconfig())}
        done = subprocess.run(command, env=env, check=True, capture_output=True, text=True)
    rows = [
        line.split() for line in done.stdout.splitlines() if line.startswith(("taken ", "refused "))
    ]
    refused = sum(answer == "refused" for answer, _ in rows)
    median_s = statistics.median(float(seconds) for _, seconds in rows)
    print(
        f"| edits | refused | median of an edit |\n| --- | --- | --- |\n"
        f"| {len(rows)} | {refused} | {median_s:.3f} s |"
    )


if __name__ == "__main__":
    main()
