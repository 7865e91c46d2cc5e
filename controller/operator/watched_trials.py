"""Watch which of Katib's Trials somebody deletes or changes.

Nothing is kept about the others: their content is in the store, and an installation may have tens
of thousands. After an interruption, `ShowsTrials` lists those of its experiments again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing
from itertools import count
from typing import Protocol

from controller.core.attempt import RuntimeLost
from controller.kube.client import KubernetesClient
from controller.kube.custom_resource import KATIB_TRIALS
from controller.kube.errors import ApiError
from controller.kube.objects import KubernetesObject
from suggest.backoff import Backoff
from suggest.errors import TunerError

_WATCH_S = 300.0
_BACKOFF = Backoff(first_s=1.0, longest_s=60.0, jitter=0.5)
_NOTHING = "metadata.name=-"  # no object has this name; its list has the present version
_log = logging.getLogger(__name__)


class ShowsTrials(Protocol):
    def trial_deleted(self, trial: KubernetesObject) -> None: ...

    def trial_changed(self, trial: KubernetesObject) -> None: ...

    def trials_missed(self) -> None:
        """Deletions will be reported from now on, and were not before."""


async def follow(client: KubernetesClient, namespace: str | None, shown: ShowsTrials) -> None:
    """Report which Trials are deleted or changed, until cancelled. namespace: None: of all."""
    logged = version = ""
    for failures in count():
        try:
            if not version:
                _, version = await client.list(KATIB_TRIALS, namespace, fields=_NOTHING)
                shown.trials_missed()
            watch = client.watch(
                KATIB_TRIALS, namespace, resource_version=version, timeout_s=_WATCH_S
            )
            async with aclosing(watch) as events:
                async for event in events:
                    _report(event["type"], event["object"], shown)
                    version = event["object"]["metadata"]["resourceVersion"]
            continue
        except (ApiError, TunerError, RuntimeLost) as error:
            if str(error) != logged:
                logged = str(error)
                _log.warning("deleted and changed trials are not noticed: %s", error)
            version = ""
        await asyncio.sleep(_BACKOFF.pause_s(failures))


def _report(event: str, trial: KubernetesObject, shown: ShowsTrials) -> None:
    if event == "DELETED":
        shown.trial_deleted(trial)
    elif event == "MODIFIED":
        shown.trial_changed(trial)
