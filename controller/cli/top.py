"""`tuner top`: what runs, what it holds, who waits for what. A cluster that does not answer hides only its own part."""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from typing import Any

from controller.cli.exits import ExitCode
from controller.cli.facts import keep_looking
from controller.cli.show import over
from controller.core.model import Experiment
from controller.report.record import ExperimentRecord
from controller.report.top import Room
from controller.report.top import top as drawn

EVERY_S = 2.0


def top(arguments: argparse.Namespace) -> ExitCode:
    again = False

    async def see(record: ExperimentRecord) -> bool:
        nonlocal again
        rooms, trouble = await _rooms(record.experiment)
        text = drawn(record, rooms=rooms, trouble=trouble, now=datetime.now(UTC))
        if arguments.watch and sys.stdout.isatty():
            text = f"\x1b[2J\x1b[H{text}"
        elif again:
            text = f"\n{text}"
        again = True
        sys.stdout.write(text)
        sys.stdout.flush()
        return not arguments.watch or over(record)

    keep_looking(arguments, see, every_s=EVERY_S)
    return ExitCode.OK


async def _rooms(experiment: Experiment) -> tuple[list[Room] | None, str]:
    """What quotas say of GPUs now; None, and why that is not known."""
    if experiment.spec.runtime == "local":
        return None, ""
    from controller.runtime.kubernetes.client import QUOTAS, Client
    from controller.runtime.kubernetes.errors import ApiError, BadKubeconfig, NotAllowed, Unreachable

    try:
        client = await Client.connect(experiment.context or None)
        try:
            quotas, _ = await client.list(QUOTAS, experiment.namespace)
        finally:
            await client.close()
    except (ApiError, BadKubeconfig, NotAllowed, Unreachable) as error:
        return None, str(error)
    return [room for quota in quotas for room in _of_gpus(quota)], ""


def _of_gpus(quota: dict[str, Any]) -> list[Room]:
    from controller.runtime.kubernetes.demand import is_gpu

    status = quota.get("status") or {}
    used = status.get("used") or {}
    return [
        Room(resource, str(used.get(key, 0)), str(allowed), quota["metadata"]["name"])
        for key, allowed in (status.get("hard") or {}).items()
        if is_gpu(resource := key.removeprefix("requests."))
    ]
