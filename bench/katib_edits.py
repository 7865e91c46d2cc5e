"""Which edits of Katib's SDK meet a conflict, and with whose writes: `edit_experiment_budget` of
ten experiments, each with three trials of 2 s at a time, each edited every four seconds or so, in a
cluster without MutatingAdmissionPolicy, in one with the webhook, and in one with the policy of the
chart.

Prints Markdown, from the audit log of the API server. Requires what `make test-katib` requires.
`--edits` of each experiment.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeAlias

from bench.in_cluster import KATIBS, Controller, Resources, installation, make_namespaces
from tests.cluster.controlplane import POLICIES
from tests.cluster.installed import WITH_POLICIES, Installed
from tests.cluster.test_katib_sdk import PYTHON
from tests.cluster.test_webhook import WithWebhook

Event: TypeAlias = dict[str, Any]

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
        try:
            client.edit_experiment_budget(name=f"e{number}", max_trial_count=10_000 + edit)
        except RuntimeError:
            pass  # the audit log has it
"""
_CONFLICT = 409
_USER = "admin"  # edits by the SDK


class Audit:
    """Every request for an Experiment of Katib's, as the API server logs it."""

    def __init__(self, folder: Path) -> None:
        self._log, policy = folder / "audit.log", folder / "audit.json"
        experiments = {"group": "kubeflow.org", "resources": ["experiments", "experiments/status"]}
        rules = [
            {"level": "RequestResponse", "verbs": ["get", "patch"], "resources": [experiments]},
            {"level": "None"},
        ]
        made = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "rules": rules}
        policy.write_text(json.dumps({**made, "omitStages": ["RequestReceived"]}))
        self.flags = (f"--audit-policy-file={policy}", f"--audit-log-path={self._log}")

    def events(self) -> list[Event]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=15)
    asked = parser.parse_args()
    for how, resources, install in (
        ("without both", KATIBS, Installed),
        ("with the webhook", KATIBS, WithWebhook),
        ("with the policy", replace(KATIBS, settings=(*KATIBS.settings, WITH_POLICIES)), Installed),
    ):
        print(f"{how}:", flush=True)
        print("\n".join(measured(asked.edits, resources, install)), flush=True)


def measured(edits: int, resources: Resources, install: type[Installed]) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        audit = Audit(Path(folder))
        flags = (*POLICIES, *audit.flags)
        with installation(resources, flags, install=install) as installed:
            if isinstance(installed, WithWebhook):
                installed.serve(*resources.flags)
            else:
                Controller(installed, resources)
            make_namespaces(installed, [NAMESPACE])
            api, path = installed.cluster.api(), KATIBS.path.format(namespace=NAMESPACE)
            for number in range(EXPERIMENTS):
                made = KATIBS.make(NAMESPACE, f"e{number}", {"KWOK_RUN": RUN}, 10_000, 3)
                api.post(path, made)
            time.sleep(5)
            command = [str(PYTHON), "-c", SDK, NAMESPACE, str(EXPERIMENTS), str(edits)]
            env = {**os.environ, "KUBECONFIG": str(installed.cluster.kubeconfig())}
            began = time.monotonic()
            subprocess.run(command, env=env, check=True, capture_output=True)
            took_s = time.monotonic() - began
            yield from report(audit.events(), took_s)


def report(events: Sequence[Event], took_s: float) -> Iterator[str]:
    edits = [each for each in events if is_edit(each)]
    refused = [each for each in edits if each["responseStatus"]["code"] == _CONFLICT]
    reads = [each for each in events if each["verb"] == "get" and user(each) == _USER]
    windows_s = [window_s(each, reads) for each in edits]
    own = [each for each in changes(events) if each.by != _USER]
    rate = len(own) / EXPERIMENTS / took_s
    yield "| edits | refused | median from read to edit | writes of an Experiment a second |"
    yield "| --- | --- | --- | --- |"
    yield f"| {len(edits)} | {len(refused)} | {statistics.median(windows_s):.3f} s | {rate:.2f} |"
    yield "\n| writes | by | of |\n| --- | --- | --- |"
    for (who, what), count in Counter((each.by, each.what) for each in own).most_common():
        yield f"| {count} | {who} | {what} |"
    yield "\n| conflicts | with a write of |\n| --- | --- |"
    for what, count in Counter(met(each, own) for each in refused).most_common():
        yield f"| {count} | {what} |"


def is_edit(event: Event) -> bool:
    is_status = event["objectRef"].get("subresource") == "status"
    return event["verb"] == "patch" and user(event) == _USER and not is_status


def user(event: Event) -> str:
    return str(event["user"]["username"]).rpartition(":")[2]


def at_s(event: Event) -> float:
    return datetime.fromisoformat(event["stageTimestamp"]).timestamp()


def version(found: dict[str, Any]) -> int:
    return int(found["metadata"]["resourceVersion"])


def window_s(edit: Event, reads: Sequence[Event]) -> float:
    """Return the seconds from the answer that an edit is made from to its own answer."""
    ended_s, name = at_s(edit), edit["objectRef"]["name"]
    earlier = [at_s(each) for each in reads if each["objectRef"]["name"] == name]
    return ended_s - max((each for each in earlier if each < ended_s), default=ended_s)


@dataclass(frozen=True, slots=True)
class Change:
    """A write that changed an Experiment. version: which it made. what: it changed."""

    name: str
    version: int
    by: str
    what: str


def changes(events: Sequence[Event]) -> list[Change]:
    answers = [each for each in events if each["verb"] == "patch" and "responseObject" in each]
    made = [each for each in answers if each["responseObject"].get("kind") == "Experiment"]
    before: dict[str, dict[str, Any]] = {}
    found = []
    for event in sorted(made, key=lambda each: version(each["responseObject"])):
        after, name = event["responseObject"], event["objectRef"]["name"]
        earlier = before.get(name, {})
        if not earlier or version(earlier) < version(after):
            found.append(Change(name, version(after), user(event), difference(earlier, after)))
        before[name] = after
    return found


def difference(before: dict[str, Any], after: dict[str, Any]) -> str:
    if before.get("spec") != after["spec"]:
        return "the spec"
    status = after.get("status") or {}
    if before.get("status") == status:
        return "metadata"
    is_state = (before.get("status") or {}).get("conditions") != status.get("conditions")
    return "conditions in the status" if is_state else "numbers in the status"


def met(edit: Event, writes: Sequence[Change]) -> str:
    """Return what changed the version that an edit was made from."""
    name, read = edit["objectRef"]["name"], version(edit["requestObject"])
    later = [each for each in writes if each.name == name and each.version > read]
    return min(later, key=lambda each: each.version).what


if __name__ == "__main__":
    main()
