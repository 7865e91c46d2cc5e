"""The optional webhooks: one refuses at `kubectl apply` what the condition Accepted would refuse a
second later, by the same code and in the same words. The other gives edits of Katib's SDK the
stored version where only the status has changed, on clusters that cannot do so by a policy.

They decide nothing else: the API server ignores them when they do not answer in time. The leader
keeps its own certificate in their configurations, and the path of its own process, which nobody
else knows: so only the API server can make it read an object. A new leader writes its own, so
replicas share no secret.
"""

from __future__ import annotations

import asyncio
import base64
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import orjson
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from yarl import URL

from controller.background_tasks import meanwhile
from controller.kube.client import Kind, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, ApiNotFound, Unreachable
from controller.kube.objects import KubernetesObject, Raw
from controller.operator.acceptance import accepted_changes, accepted_document
from controller.operator.experiment_kind import ExperimentKind, ExperimentKinds
from controller.operator.experiments import HostedExperiments
from controller.operator.policy import Policy
from controller.operator.resource import FromCluster, is_deleted, uid_of
from controller.operator.trial_templates import config_map_of
from suggest.errors import FailedPrecondition, InvalidArgument

_REGISTRATION = "admissionregistration.k8s.io/v1"
CONFIGURATIONS = Kind(
    _REGISTRATION,
    "validatingwebhookconfigurations",
    "ValidatingWebhookConfiguration",
    namespaced=False,
)
EDITS = Kind(
    _REGISTRATION,
    "mutatingwebhookconfigurations",
    "MutatingWebhookConfiguration",
    namespaced=False,
)
_MANAGER = "tuner-webhook"  # of the fields that the leader sets
# Bytes of a request: the API server's objects have at most 1.5 MB, and it sends two.
_LONGEST = 4 << 20
_CHECK_S = 30.0  # between two looks at the configuration, and at the certificate
# Answers a request for admission, without its uid.
Answer: TypeAlias = Callable[[Mapping[str, Any]], Awaitable[Raw]]
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """The webhooks of one leader.

    name: of their configurations; "": there are none. That for edits is there if it is needed.
    certificate: the file of that of the HTTP port.
    """

    client: KubernetesClient
    name: str
    certificate: Path
    policy: Policy
    kinds: ExperimentKinds
    experiments: HostedExperiments
    # The API server takes lower case only in the path of a Service.
    path: str = field(default_factory=lambda: f"/webhook/{secrets.token_hex(24)}")

    @property
    def routes(self) -> Sequence[Route]:
        if not self.name:
            return []
        return [
            Route(self._paths[kind], partial(self._review, answer=answer), methods=["POST"])
            for kind, answer in ((CONFIGURATIONS, self._checked), (EDITS, _at_stored_version))
        ]

    @property
    def _paths(self) -> Mapping[Kind, str]:
        return {CONFIGURATIONS: self.path, EDITS: f"{self.path}/edits"}

    async def keep_registered(self) -> None:
        """Keep path and certificate in the configuration, until it is cancelled."""
        told = ""
        while True:
            trouble = ""
            try:
                await self._register(CONFIGURATIONS)
                await self._register(EDITS)
            except (ApiError, Unreachable, AccessDenied, OSError) as error:
                trouble = str(error)
            if trouble and trouble != told:
                _log.warning("webhook %s cannot be registered: %s", self.name, trouble)
            told = trouble
            await asyncio.sleep(_CHECK_S)

    async def _register(self, kind: Kind) -> None:
        try:
            found = await self.client.get(kind, None, self.name)
        except ApiNotFound:
            if kind is EDITS:
                return
            raise
        bundle = base64.b64encode(self.certificate.read_bytes()).decode()
        known = found.get("webhooks") or []
        hooks = [_registered(hook, bundle, self._paths[kind]) for hook in known]
        if all(_has(hook, ours) for hook, ours in zip(known, hooks, strict=True)):
            return
        fields = {"webhooks": hooks}
        await self.client.apply(kind, None, self.name, fields, manager=_MANAGER, force=True)
        _log.info("event=webhook name=%s kind=%s registered", self.name, kind.kind)

    async def _review(self, request: Request, *, answer: Answer) -> Response:
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LONGEST:
                return Response(status_code=413)
        try:
            asked = orjson.loads(body)["request"]
            response = {"uid": asked["uid"], **await answer(asked)}
        except (ValueError, KeyError, TypeError):
            return Response(status_code=400)
        kind = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        return JSONResponse({**kind, "response": response})

    async def _checked(self, asked: Mapping[str, Any]) -> Raw:
        refused = await self._refusal(asked)
        if not refused:
            return {"allowed": True}
        status = {"code": 422, "reason": "Invalid", "message": refused}
        return {"allowed": False, "status": status}

    async def _refusal(self, asked: Mapping[str, Any]) -> str:
        """Return why the object is refused; "" if it is not."""
        kind = self.kinds.named(asked["object"])
        resource = None if kind is None else kind.seen(asked["object"])
        before = asked.get("oldObject")
        if kind is None or resource is None or is_deleted(resource):
            return ""
        if before is not None and _says(before, kind) == _says(asked["object"], kind):
            return ""  # what the controller itself changes must never be refused
        added = FromCluster(config_map_of=await config_map_of(self.client, resource))
        try:
            document = accepted_document(resource, self.policy, added)
            stored = self.experiments.experiment(asked["namespace"], resource["metadata"]["name"])
            if stored is not None and stored.uid == uid_of(resource):
                accepted_changes(self.experiments, stored, document)
        except (InvalidArgument, FailedPrecondition) as error:
            return str(error)
        return ""


async def _at_stored_version(asked: Mapping[str, Any]) -> Raw:
    """Give an edit the stored version; the configuration says which edits may have it."""
    stored = asked["oldObject"]["metadata"]
    kept = {
        "resourceVersion": stored["resourceVersion"],
        "finalizers": stored.get("finalizers", []),
    }
    patch = [
        {"op": "add", "path": f"/metadata/{key}", "value": value} for key, value in kept.items()
    ]
    written = base64.b64encode(orjson.dumps(patch)).decode()
    return {"allowed": True, "patchType": "JSONPatch", "patch": written}


def _registered(hook: Raw, bundle: str, path: str) -> Raw:
    """Return what the leader sets of one webhook of a configuration."""
    client = hook["clientConfig"]
    place: Raw = {"service": {"path": path}}
    if "url" in client:
        place = {"url": str(URL(client["url"]).with_path(path))}
    return {"name": hook["name"], "clientConfig": {**place, "caBundle": bundle}}


@asynccontextmanager
async def registered(webhook: Webhook) -> AsyncIterator[None]:
    """Keep the webhook registered while the context is open, if there is one."""
    async with meanwhile(*([webhook.keep_registered()] if webhook.name else [])):
        yield


def _says(found: Raw, kind: ExperimentKind) -> tuple[object, object]:
    """Return what an object says of its experiment, with the defaults that are written back."""
    resource = kind.seen(cast(KubernetesObject, found))
    if resource is None:
        return None, None
    return resource["spec"] | kind.defaults(resource), found["metadata"].get("labels")


def _has(found: object, part: object) -> bool:
    """Return whether an object of the cluster has these fields already."""
    if isinstance(part, Mapping):
        if not isinstance(found, Mapping):
            return False
        return all(_has(found.get(key), value) for key, value in part.items())
    return found == part
