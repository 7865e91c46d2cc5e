"""Is a namespace of a cluster fit for trials? Looks only: what it asks the server changes nothing there.

What stands in the way of everything after it ends the check-up, so that nobody is told the same thing nine times.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from controller.runtime.kubernetes.client import LIMIT_RANGES, NAMESPACES, NODES, QUOTAS, Client
from controller.runtime.kubernetes.credentials import Credentials, moment
from controller.runtime.kubernetes.demand import is_gpu, parse_quantity
from controller.runtime.kubernetes.errors import ApiError, NotAllowed, Unreachable
from controller.runtime.kubernetes.findings import Finding, fail, ok, warn
from controller.runtime.kubernetes.kubeconfig import Access
from controller.runtime.kubernetes.rehearsal import Answer, rehearse
from controller.runtime.kubernetes.rights import Right, list_allowed, missing_rights

Raw = dict[str, Any]

SKEW_S = 10.0
OLDEST_MINOR = 29  # before that podReplacementPolicy is not there
_SECURITY = "pod-security.kubernetes.io/enforce"
_PROBE: Raw = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "tuner-doctor"}}


async def check_up(client: Client, namespace: str) -> AsyncIterator[Finding]:
    """Ends early at what makes all the rest pointless; that is its last finding then."""
    for finding in _access(client.access):
        yield finding
    try:
        async for finding in _server(client):
            yield finding
        where = await _namespace(client, namespace)
        yield where
        if where.level.name != "FAIL":
            async for finding in _inside(client, namespace):
                yield finding
    except Unreachable as error:
        yield fail("server", str(error))
    except NotAllowed as error:
        yield fail("credentials", str(error), rights=True)
    except ApiError as error:
        yield fail("server", f"it answers: {error}")


def _access(access: Access) -> Iterator[Finding]:
    """What is known before the server is asked: how we log in, and on which way."""
    if access.impersonation:
        yield ok("impersonation", f"user {access.user} acts as {dict(access.impersonation)['Impersonate-User']}")
    yield _login(access.credentials)
    if access.proxy is not None:
        yield ok("proxy", f"{access.proxy.address}, from {access.proxy.source}")
    if not access.verified:
        yield warn(
            "tls",
            "the server's certificate is not verified (insecure-skip-tls-verify), so anybody in between can take the "
            "credentials; set certificate-authority-data instead",
        )


def _login(credentials: Credentials) -> Finding:
    if not credentials.source:
        return ok("login", "without credentials")
    how, expires_at = f"by {credentials.source}", credentials.expires_at
    if expires_at is None:
        return ok("login", how)
    if credentials.renewable:
        return ok("login", f"{how}, asked again at {moment(expires_at)}")
    if credentials.expired():
        return warn("login", f"{how}, which expired at {moment(expires_at)}; log in again")
    return warn(
        "login",
        f"{how}, until {moment(expires_at)}; a run that lasts longer ends then, unless the token is replaced: "
        "use tokenFile or an exec plugin",
    )


async def _server(client: Client) -> AsyncIterator[Finding]:
    before = datetime.now(UTC)
    version, there = await client.greet()
    after = datetime.now(UTC)
    yield _version(client.server, version)
    if there is not None:
        yield _clock((before + (after - before) / 2 - there).total_seconds())
    try:
        user = await client.whoami()
    except ApiError as error:
        if error.status not in (403, 404):
            raise
        yield ok("credentials", "accepted; the server does not tell whose they are")
    else:
        yield ok("credentials", user)


def _version(server: str, version: Mapping[str, Any]) -> Finding:
    name = f"{server}, Kubernetes {version.get('gitVersion', 'of unknown version')}"
    minor = "".join(filter(str.isdigit, str(version.get("minor", ""))))
    if str(version.get("major")) == "1" and minor and int(minor) < OLDEST_MINOR:
        return warn("server", f"{name}; tuner needs 1.{OLDEST_MINOR} or later")
    return ok("server", name)


def _clock(ahead_s: float) -> Finding:
    """The server tells whole seconds, cut off."""
    ahead_s -= 0.5
    if abs(ahead_s) <= SKEW_S:
        return ok("clock", "as the server's")
    where = "ahead of" if ahead_s > 0 else "behind"
    return warn(
        "clock",
        f"this machine is {abs(ahead_s):.0f}s {where} the server: logs may be read twice or in part, timeouts come "
        "early or late, tokens may look expired; set the time, by NTP",
    )


async def _namespace(client: Client, namespace: str) -> Finding:
    try:
        found = await client.get(NAMESPACES, None, namespace)
    except ApiError as error:
        if error.status == 404:
            return fail("namespace", f"there is no {namespace}; make it, or name another one with -n")
        if error.status != 403:
            raise
        (verdict,) = await rehearse(client, namespace, [_PROBE])  # most people may not look at namespaces themselves
        if verdict.answer is Answer.REFUSED:
            return fail("namespace", verdict.why)
        return ok("namespace", namespace)
    phase = found.get("status", {}).get("phase", "Active")
    if phase != "Active":
        return fail("namespace", f"{namespace} is {phase}; name another one with -n")
    level = (found["metadata"].get("labels") or {}).get(_SECURITY)
    return ok("namespace", namespace + (f", pod security {level}" if level else ""))


async def _inside(client: Client, namespace: str) -> AsyncIterator[Finding]:
    missing = await missing_rights(client, namespace)
    for right, verbs in missing:
        yield lacking(right, verbs, namespace)
    if not missing:
        yield ok("rights", f"all that trials in {namespace} need")
    quotas = await list_allowed(client, QUOTAS, namespace)
    for quota in quotas or ():
        yield _quota(quota)
    if quotas == []:
        yield ok("quota", "none")
    for limits in await list_allowed(client, LIMIT_RANGES, namespace) or ():
        yield ok(f"limits {limits['metadata']['name']}", _limits(limits))
    nodes = await list_allowed(client, NODES, None)
    if nodes is not None:
        yield _gpus(nodes)


def lacking(right: Right, verbs: tuple[str, ...], namespace: str) -> Finding:
    what = f"right {right.resource}"
    said = f"{', '.join(verbs)} denied" + (f" (lost: {right.without})" if right.without else "")
    detail = f"{said}; add to your Role in {namespace}: {right.rule(verbs)}"
    return warn(what, detail) if right.without else fail(what, detail, rights=True)


def _quota(quota: Raw) -> Finding:
    status = quota.get("status") or {}
    hard = status.get("hard") or quota.get("spec", {}).get("hard") or {}
    used = status.get("used") or {}
    what = f"quota {quota['metadata']['name']}"
    shown = ", ".join(f"{name} {used.get(name, 0)}/{most}" for name, most in hard.items())
    full = [name for name, most in hard.items() if parse_quantity(used.get(name, 0)) >= parse_quantity(most)]
    return warn(what, f"{shown}; full: {', '.join(full)}, so trials wait") if full else ok(what, shown)


def _limits(limits: Raw) -> str:
    parts = []
    for limit in limits.get("spec", {}).get("limits") or ():
        words = [
            f"{word} {', '.join(f'{name} {amount}' for name, amount in limit[key].items())}"
            for key, word in (("min", "at least"), ("max", "at most"), ("default", "else"))
            if limit.get(key)
        ]
        parts.append(f"{limit.get('type', '')} {'; '.join(words)}")
    return " / ".join(parts)


def _gpus(nodes: Sequence[Raw]) -> Finding:
    offered: dict[str, int] = {}
    having = 0
    for node in nodes:
        gpus = {name: int(amount) for name, amount in gpus_of(node).items()}
        having += any(gpus.values())
        for name, count in gpus.items():
            offered[name] = offered.get(name, 0) + count
    shown = ", ".join(f"{count} {name}" for name, count in sorted(offered.items()) if count)
    return ok(
        "nodes", f"{len(nodes)}, {having} of them with GPUs: {shown}" if shown else f"{len(nodes)}, none with GPUs"
    )


def gpus_of(node: Raw) -> dict[str, str]:
    """What a node offers of them."""
    allocatable = node.get("status", {}).get("allocatable") or {}
    return {name: amount for name, amount in allocatable.items() if is_gpu(name)}
