"""Attempts made on the cluster: the anchor once, then an attempt's objects. A name that is taken is adopted or refused.

Every call may be repeated, after a crash at any point too: names are computed, and what is there already is looked at.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from controller.core.model import FailureClass
from controller.runtime.kubernetes.client import CONFIG_MAPS, Client, Kind
from controller.runtime.kubernetes.errors import ApiError, rule_for, silent_webhook
from controller.runtime.kubernetes.kinds import kind_of, preset_of
from controller.runtime.kubernetes.labels import UID, attempt_of, parameters_of
from controller.runtime.kubernetes.lease import FencingLease
from controller.runtime.kubernetes.manifests import job_for
from controller.runtime.kubernetes.resource_quota import out_of_room
from controller.runtime.protocol import CannotStart, Launch

Raw = dict[str, Any]

_FORBIDDEN, _NOT_FOUND, _CONFLICT = 403, 404, 409


class NotNow(Exception):
    """The object was refused for a reason that passes: no room in the quota, its predecessor, a silent webhook."""


class Maker:
    """anchor: the manifest of the object that owns everything of the experiment."""

    def __init__(self, client: Client, namespace: str, anchor: Raw, lease: FencingLease) -> None:
        self._client = client
        self._namespace = namespace
        self._manifest = anchor
        self._lease = lease
        self._owner: Raw | None = None
        self._owning = asyncio.Lock()

    async def make(self, launch: Launch) -> tuple[Kind, Raw]:
        """The attempt's own object, new or adopted. Raises CannotStart, NotNow, and ApiError where asking again may
        help."""
        owner = await self._anchor()
        await self._lease.check(owner)
        made: tuple[Kind, Raw] | None = None
        for manifest in job_for(launch, owner=owner):
            kind = await self._kind_of(manifest)
            made = kind, await self._create(kind, manifest)
        assert made is not None
        return made

    def forget_anchor(self) -> None:
        """It may be gone, and what is made for an owner that is gone is deleted at once. Look again before the next."""
        self._owner = None

    async def _kind_of(self, manifest: Raw) -> Kind:
        try:
            return await kind_of(self._client, manifest)
        except ApiError as error:
            if error.status != _NOT_FOUND:
                raise
            preset = preset_of(manifest)
            known = "" if preset is None else f" ({preset.api_version} is that of {preset.operator})"
            raise CannotStart(
                f"the cluster has no kind {manifest['kind']} in {manifest['apiVersion']}; install its operator{known}"
            ) from error

    async def _anchor(self) -> Raw:
        async with self._owning:  # the first of several makes it
            if self._owner is None:
                self._owner = await self._create(CONFIG_MAPS, self._manifest)
            return self._owner

    async def _create(self, kind: Kind, manifest: Raw) -> Raw:
        try:
            return await self._client.create(kind, self._namespace, manifest)
        except ApiError as error:
            return await self._adopted(kind, manifest, error)

    async def _adopted(self, kind: Kind, manifest: Raw, error: ApiError) -> Raw:
        """What stands where we wanted to create. Raises what the error means otherwise."""
        about = manifest["metadata"]
        if error.status != _CONFLICT or error.reason != "AlreadyExists":
            raise _meaning(kind, about["name"], self._namespace, error) from error
        there = await self._client.get(kind, self._namespace, about["name"])
        if "deletionTimestamp" in there["metadata"]:
            raise NotNow(f"a {kind.kind} {about['name']} is being deleted") from error
        ours = there["metadata"].get("labels", {}).get(UID) == about["labels"][UID]
        if ours and attempt_of(there) == attempt_of(manifest):
            if trouble := other_parameters(manifest, there, self._namespace):
                raise CannotStart(trouble) from error
            return there
        raise CannotStart(
            f"namespace {self._namespace} has a {kind.kind} {about['name']} that is not of this experiment; "
            f"delete it, or give the experiment another metadata.name"
        ) from error


def other_parameters(wanted: Raw, there: Raw, namespace: str) -> str:
    """Why an object that has the name of an attempt is not that attempt; "" if it is."""
    asked, has = parameters_of(wanted), parameters_of(there)
    if asked == has:
        return ""
    return (
        f"namespace {namespace} has a {there.get('kind', 'Job')} {there['metadata']['name']} with other parameters, "
        f"{json.dumps(has)} and not {json.dumps(asked)}: it was made before the trials were numbered anew; delete it"
    )


def _meaning(kind: Kind, name: str, namespace: str, error: ApiError) -> Exception:
    """What a refused create says: no room now, or something that a person must change, or nothing new."""
    if error.status == _FORBIDDEN and (full := out_of_room(error.message)) is not None:
        return NotNow(full)
    if error.status == _FORBIDDEN and "is being terminated" in error.message:
        return CannotStart(f"namespace {namespace} is being deleted")
    if rule_for(error):
        return error  # no fault of the trial's
    if error.status == _NOT_FOUND:
        return CannotStart(f"{error.message}; see kubectl get namespaces, and kubectl api-resources for its kind")
    if error.status in (400, 403, 422):
        return CannotStart(f"the cluster does not accept {kind.kind} {name}: {error.message}")
    if silent := silent_webhook(error):
        return NotNow(silent)
    if error.status >= 500 and "webhook" in error.message:
        return CannotStart(f"{error.message}", FailureClass.INFRASTRUCTURE)
    return error
