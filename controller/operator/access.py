"""Who sends a request to the controller, and what Kubernetes lets them do.

The API server decides both: TokenReview says whose a token is, SubjectAccessReview whether that
person or pod has a verb on `experiments.tuner.dev` in a namespace. Answers are kept for KEPT_S, so
what is revoked has no effect after twice that at most. TokenReview alone would be later: the API
server itself keeps for 10 s that a token is valid. So a service account is also read by its name.
While the API server cannot be asked, there are no new answers.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

from controller.app.controller_api import AUDIENCE
from controller.kube import assertion
from controller.kube.client import CONFIG_MAPS, Kind, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, ApiNotFound, Unreachable
from controller.kube.objects import Raw
from controller.operator.answers import Answers
from controller.operator.resource import EXPERIMENTS
from suggest.errors import PermissionDenied, Unauthenticated, Unavailable

KEPT_S = 4.0
# A list of many namespaces asks about each; one that was granted meanwhile appears a little later.
DENIED_KEPT_S = 30.0
_CA_KEPT_S = 30.0
# Requests at a time: clients that send unknown tokens must not keep the API server busy.
_AT_ONCE = 16
_TOKEN_REVIEWS = Kind("authentication.k8s.io/v1", "tokenreviews", "TokenReview", False)
_ACCOUNTS = Kind("v1", "serviceaccounts", "ServiceAccount")
_ACCESS_REVIEWS = Kind(
    "authorization.k8s.io/v1", "subjectaccessreviews", "SubjectAccessReview", False
)
# Where the API server publishes, for servers behind it, the authorities of client certificates.
_CLIENT_CA = ("kube-system", "extension-apiserver-authentication", "client-ca-file")
_LONGEST_TOKEN = 16_384
# Before namespace and name, in the names of service accounts.
_OF_ACCOUNT = "system:serviceaccount:"
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Caller:
    """A person or pod, as the API server knows them.

    extra: further facts that an authorizer may ask for, by their names.
    """

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


class Access:
    """Asks the API server, and remembers its answers for a few seconds."""

    def __init__(
        self, client: KubernetesClient, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._client = client
        self._asking = asyncio.Semaphore(_AT_ONCE)
        self._callers = Answers[Caller | None](clock, KEPT_S)
        self._account_uids = Answers[str](clock, KEPT_S)
        self._rights = Answers[bool](clock, KEPT_S)
        self._authorities = Answers[bytes](clock, _CA_KEPT_S)

    async def by_token(self, token: str, *, of_api_server: bool = False) -> Caller:
        """Return whose token it is.

        of_api_server: accept a token for the API server as well, as people have one in their
        kubeconfig; otherwise only one whose audience is AUDIENCE.

        Raises:
            Unauthenticated: It is nobody's, has expired, or is for somebody else.
            Unavailable: The API server cannot be asked.
        """
        # Only which question is asked depends on the unverified audience, not the answer.
        audiences = [] if of_api_server and AUDIENCE not in _audiences(token) else [AUDIENCE]
        caller = None
        if 0 < len(token) <= _LONGEST_TOKEN:
            key = (hashlib.sha256(token.encode(errors="surrogateescape")).digest(), *audiences)
            caller = await self._callers.get(key, lambda: self._review(token, audiences))
        if caller is None:
            raise Unauthenticated(
                "the token is not valid here, or has expired; make one with: kubectl create token "
                f"SERVICEACCOUNT --audience {AUDIENCE}"
            )
        return caller

    async def by_certificate(self, statement: str) -> Caller:
        """Return whose certificate has signed a statement. Raises what `by_token` raises."""
        authorities = await self._authorities.get((), self._client_authorities)
        subject = assertion.verified(
            statement, authorities, audience=AUDIENCE, now=datetime.now(UTC)
        )
        # The API server adds the group to everybody whom it has authenticated.
        return Caller(subject.name, groups=(*subject.groups, "system:authenticated"))

    async def check(self, caller: Caller, verb: str, namespace: str | None) -> None:
        """Check that the caller has a verb on the experiments of a namespace; None: of all.

        Raises:
            PermissionDenied: They lack it.
            Unavailable: The API server cannot be asked.
        """
        if not await self.may(caller, verb, namespace):
            where = "in all namespaces" if namespace is None else f"in the namespace {namespace}"
            raise PermissionDenied(
                f"{caller.name} may not {verb} experiments.{_GROUP} {where}; ask for the role "
                f"{_ROLES[verb]}"
            )

    async def may(self, caller: Caller, verb: str, namespace: str | None) -> bool:
        """Return what `check` checks. Raises Unavailable."""
        return await self._rights.get(
            (caller, verb, namespace), lambda: self._allowed(caller, verb, namespace)
        )

    async def readable(self, caller: Caller, namespaces: Collection[str]) -> frozenset[str] | None:
        """Return those of the namespaces whose experiments the caller may list; None for all.

        Raises Unavailable, and PermissionDenied if there are none of them: an empty list would look
        as if there were no experiments.
        """
        if await self.may(caller, "list", None):
            return None
        keys = [(caller, "list", namespace) for namespace in namespaces]
        rights = (
            self._rights.get(key, partial(self._allowed, *key), denied_kept_s=DENIED_KEPT_S)
            for key in keys
        )
        allowed = await asyncio.gather(*rights)
        if not any(allowed):
            raise PermissionDenied(
                f"there are no experiments in the namespaces in which {caller.name} may list "
                f"experiments.{_GROUP}; to see others, ask for the role {_ROLES['list']}"
            )
        pairs = zip(namespaces, allowed, strict=True)
        return frozenset(namespace for namespace, is_allowed in pairs if is_allowed)

    async def _review(self, token: str, audiences: Sequence[str]) -> Caller | None:
        spec = {"token": token} | ({"audiences": list(audiences)} if audiences else {})
        status = await self._ask(_TOKEN_REVIEWS, spec)
        is_for_us = not audiences or set(audiences) & {*status.get("audiences", ())}
        if not status.get("authenticated") or not is_for_us:
            return None
        user = status.get("user") or {}
        extra = ((name, tuple(values)) for name, values in (user.get("extra") or {}).items())
        caller = Caller(
            user.get("username", ""),
            user.get("uid", ""),
            tuple(user.get("groups") or ()),
            tuple(sorted(extra)),
        )
        return caller if await self._still_exists(caller) else None

    async def _still_exists(self, caller: Caller) -> bool:
        """Return whether the caller's service account, if it has one, was not deleted."""
        if not caller.name.startswith(_OF_ACCOUNT):
            return True
        namespace, _, name = caller.name.removeprefix(_OF_ACCOUNT).partition(":")
        uid = await self._account_uids.get(
            (namespace, name), lambda: self._account_uid(namespace, name)
        )
        return uid == caller.uid

    async def _account_uid(self, namespace: str, name: str) -> str:
        """Return the uid of a service account; "" if it does not exist. Raises Unavailable."""
        try:
            async with self._asking:
                found = await self._client.get(_ACCOUNTS, namespace, name)
        except ApiNotFound:
            return ""
        except (ApiError, Unreachable, AccessDenied) as error:
            raise _unknown(error) from error
        return str(found["metadata"]["uid"])

    async def _allowed(self, caller: Caller, verb: str, namespace: str | None) -> bool:
        attributes = {"group": _GROUP, "resource": EXPERIMENTS.plural, "verb": verb}
        spec: Raw = {
            "user": caller.name,
            "groups": list(caller.groups),
            "resourceAttributes": attributes | ({"namespace": namespace} if namespace else {}),
        }
        spec |= {"uid": caller.uid} if caller.uid else {}
        spec |= {"extra": {name: list(values) for name, values in caller.extra}}
        status = await self._ask(_ACCESS_REVIEWS, spec)
        return bool(status.get("allowed"))

    async def _client_authorities(self) -> bytes:
        namespace, name, key = _CLIENT_CA
        with_cure = "; sign in with a token"
        try:
            published = await self._client.get(CONFIG_MAPS, namespace, name)
        except (ApiError, Unreachable, AccessDenied) as error:
            raise Unavailable(
                f"client certificates cannot be verified: {error}{with_cure}"
            ) from error
        text = (published.get("data") or {}).get(key)
        if not text:
            raise Unauthenticated(f"the API server accepts no client certificates{with_cure}")
        return str(text).encode()

    async def _ask(self, kind: Kind, spec: Raw) -> Raw:
        """Return the status of a review. Raises Unavailable."""
        body = {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {}, "spec": spec}
        try:
            async with self._asking:
                review = await self._client.create(kind, None, body)
        except (ApiError, Unreachable, AccessDenied) as error:
            raise _unknown(error) from error
        status: Raw = review.get("status") or {}
        return status


_GROUP = EXPERIMENTS.api_version.partition("/")[0]
_ROLES: Mapping[str, str] = {
    "get": "tuner-experiments-view",
    "list": "tuner-experiments-view",
    "create": "tuner-experiments-edit",
    "update": "tuner-experiments-edit",
    "patch": "tuner-experiments-edit",
    "delete": "tuner-experiments-edit",
}


def _unknown(error: Exception) -> Unavailable:
    return Unavailable(f"the API server does not say who may do what: {error}")


def _audiences(token: str) -> Sequence[str]:
    """Return whom a JSON web token says that it is for; none if it is of another kind."""
    parts = token.split(".")
    if len(parts) != 3:
        return ()
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return ()
    audience = claims.get("aud") if isinstance(claims, dict) else None
    named = audience if isinstance(audience, list) else [audience]
    return [name for name in named if isinstance(name, str)]
