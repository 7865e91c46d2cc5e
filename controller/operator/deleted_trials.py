"""Which Trials of Katib's resources somebody has deleted, as a watch tells.

Nothing is kept of the others: their content is in the store, and an installation may have tens of
thousands. What is deleted while the watch is interrupted is not told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing
from itertools import count

from controller.core.attempt import RuntimeLost
from controller.kube.client import KubernetesClient
from controller.kube.custom_resource import KATIB_TRIALS
from controller.kube.errors import ApiError
from controller.kube.objects import KubernetesObject
from suggest.backoff import Backoff
from suggest.errors import TunerError

_WATCH_S = 300.0
_BACKOFF = Backoff(first_s=1.0, longest_s=60.0, jitter=0.5)
_NOTHING = "metadata.name=-"  # no name is so; a list of it has the present version
_log = logging.getLogger(__name__)


async def follow(
    client: KubernetesClient, namespace: str | None, deleted: Callable[[KubernetesObject], None]
) -> None:
    """Call `deleted` with each Trial that is deleted, until cancelled. namespace None: of all."""
    told = ""
    for failures in count():
        try:
            _, version = await client.list(KATIB_TRIALS, namespace, fields=_NOTHING)
            watch = client.watch(
                KATIB_TRIALS, namespace, resource_version=version, timeout_s=_WATCH_S
            )
            async with aclosing(watch) as events:
                async for event in events:
                    if event["type"] == "DELETED":
                        deleted(event["object"])
            continue
        except (ApiError, TunerError, RuntimeLost) as error:
            if str(error) != told:
                told = str(error)
                _log.warning("deleted trials are not noticed: %s", error)
        await asyncio.sleep(_BACKOFF.pause_s(failures))
