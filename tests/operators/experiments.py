"""Experiments whose trials are objects of a kind, and accessors of their state on the cluster."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.cluster.api import Api, Object
from tests.cluster.kwok import uid_number
from tests.cluster.objects import pods
from tests.cluster.searcher import Searcher
from tests.cluster.waiting import eventually
from tests.operators.kinds import Behavior, Kind

NAME = "tiny"
MAIN: Behavior = {"KWOK_LOG": "score=${x}", "KWOK_RUN": "1s"}
WORKER: Behavior = {"KWOK_LOG": "score=99", "KWOK_RUN": "1s"}
LONG: Behavior = {**MAIN, "KWOK_RUN": "600s"}
LONG_WORKER: Behavior = {**WORKER, "KWOK_RUN": "600s"}
WITHIN_S = 120.0


def experiment(
    me: Searcher,
    kind: Kind,
    main: Behavior = MAIN,
    worker: Behavior = WORKER,
    *,
    trials: int = 1,
    parallelism: int = 1,
    restart: str = "Never",
    labels: Mapping[str, str] | None = None,
    **trial: object,
) -> Path:
    template = {"metadata": {"labels": dict(labels or {})}, **kind.template(main, worker, restart)}
    return me.file_of_objects(template, name=NAME, trials=trials, parallelism=parallelism, **trial)


def until_message(me: Searcher, message: str, *, state: str) -> None:
    """Wait until a trial is in this state with this text in its reason.

    The state must not end by itself.
    """

    def is_said() -> bool:
        code, out, _ = me.tuner("get", "trials", NAME, "-o", "json")
        trials = json.loads(out) if code == 0 else []  # the experiment does not exist yet
        return any(
            trial["state"] == state and message in (trial["reason"] or "") for trial in trials
        )

    eventually(is_said, within_s=WITHIN_S, shows=lambda: me.tuner("describe", NAME))


def main_pods(api: Api, me: Searcher, kind: Kind, phase: str = "Running") -> list[Object]:
    found = api.items(pods(me.namespace))
    return [pod for pod in found if kind.is_main(pod) and pod["status"]["phase"] == phase]


def running_main(api: Api, me: Searcher, kind: Kind) -> Object:
    (pod,) = eventually(lambda: main_pods(api, me, kind), within_s=WITHIN_S)
    return pod


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, err = process.communicate(timeout=WITHIN_S)
    return process.returncode, err


def last_main_value(api: Api, me: Searcher, kind: Kind, process: subprocess.Popen[str]) -> int:
    """Return what the newest main pod prints for {uid};
    look for newer pods until the process ends.
    """
    newest: dict[str, str] = {}

    def over() -> bool:
        for pod in api.items(pods(me.namespace)):
            if kind.is_main(pod):
                newest[pod["metadata"]["creationTimestamp"]] = pod["metadata"]["uid"]
        return process.poll() is not None

    eventually(over, within_s=WITHIN_S)
    return uid_number(newest[max(newest)])


def nothing_left(api: Api, me: Searcher, kind: Kind) -> bool:
    """Check that no object is left, and soon no pod."""
    return not api.items(kind.objects(me.namespace)) and eventually(
        lambda: not api.items(pods(me.namespace))
    )


def verdict(trial: dict[str, Any]) -> str:
    """Return the cell of the table: the state, its reason and the attempt."""
    attempts = trial["attempts"]
    why = attempts[-1].get("failureClass")
    which = f", attempt {len(attempts)}" if len(attempts) > 1 else ""
    return f"{trial['state']} ({why}){which}" if why else f"{trial['state']}{which}"
