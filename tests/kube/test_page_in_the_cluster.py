"""The page of the controller: who sees what of two tenants."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import httpx
import pytest

from controller.operator.page import PageProxy, ProxyCertificate
from tests.cluster.pki import Authority, Certificate
from tests.kube.operated import NAMESPACE, Installation, experiment, on_a_cluster
from tests.kube.test_controller_serves import PERSON, http

OTHER, SECRET = "user2", "unannounced"
THEIRS = f"/api/experiments/{OTHER}/{SECRET}"
OURS = f"/api/experiments/{NAMESPACE}/tiny"
READING = ("/stream", "/file", "/figures/history.json", "/trials/0", "/trials/0/log")


async def two_tenants(installed: Installation) -> None:
    """Run an experiment in each of two namespaces. Ann may see the first."""
    installed.api.people = {(PERSON, ""): "ann"}
    installed.api.grants = {("ann", verb, NAMESPACE) for verb in ("get", "list")}
    installed.api.put("namespaces", {"metadata": {"name": OTHER}})
    theirs = experiment(SECRET)
    theirs["metadata"]["namespace"] = OTHER
    installed.apply(experiment())
    installed.apply(theirs)
    await installed.until_state("succeeded")
    found = lambda: installed.api.get("experiments", OTHER, SECRET)  # noqa: E731
    await installed.until(lambda: found().get("status", {}).get("state") == "succeeded")


@asynccontextmanager
async def signed_in(installed: Installation) -> AsyncIterator[httpx.AsyncClient]:
    """Yield Ann's browser."""
    async with http(installed) as client:
        reply = await client.post("/api/sign-in", json={"token": PERSON})
        assert reply.status_code == 200, reply.text
        yield client


async def events(
    client: httpx.AsyncClient, path: str, most: int, found: list[tuple[str, Any]] | None = None
) -> list[tuple[str, Any]]:
    """Return the first events of a stream, or those until it ends. found: has them meanwhile."""
    found = [] if found is None else found
    name = ""
    async with client.stream("GET", path) as stream:
        assert stream.status_code == 200, stream.status_code
        async for line in stream.aiter_lines():
            field, _, value = line.partition(": ")
            if field == "event":
                name = value
            elif field == "data":
                found.append((name, json.loads(value)))
            if len(found) == most:
                break
    return found


@on_a_cluster()
async def test_the_list_has_the_experiments_of_visible_namespaces(installed: Installation) -> None:
    await two_tenants(installed)
    async with signed_in(installed) as client:
        ((name, data),) = await events(client, "/api/stream", 1)
        assert name == "list"
        (entry,) = data["searches"]
        assert (entry["namespace"], entry["name"], entry["state"]) == (
            NAMESPACE,
            "tiny",
            "succeeded",
        )
        assert (entry["done"], entry["trials"]) == (3, {"succeeded": 3})
        assert SECRET not in json.dumps(data)
        assert OTHER not in json.dumps(data)


@on_a_cluster()
async def test_a_visitor_reads_all_of_their_experiment(installed: Installation) -> None:
    await two_tenants(installed)
    async with signed_in(installed) as client:
        ((name, data),) = await events(client, f"{OURS}/stream", 1)
        assert (name, data["summary"]["state"]) == ("reset", "succeeded")
        assert data["summary"]["actions"] == {}
        for path in ("/file", "/figures/history.json", "/trials/0"):
            assert (await client.get(f"{OURS}{path}")).status_code == 200, path
        log = await events(client, f"{OURS}/trials/0/log", 1)
        assert "score=0.5" in log[0][1]["text"]


@on_a_cluster()
async def test_nothing_is_read_of_the_namespaces_of_others(installed: Installation) -> None:
    await two_tenants(installed)
    async with signed_in(installed) as client:
        told = await events(client, f"{THEIRS}/stream", 9)
        assert [name for name, _ in told] == ["gone"]
        for path in READING[1:]:
            exists = await client.get(f"{THEIRS}{path}")
            does_not = await client.get(f"{THEIRS}x{path}")
            assert exists.status_code == does_not.status_code == 403
            assert exists.text == does_not.text


@on_a_cluster()
async def test_a_stream_ends_with_the_right_to_it(installed: Installation) -> None:
    await two_tenants(installed)
    async with signed_in(installed) as client:
        await events(client, "/api/stream", 1)
        installed.api.grants.clear()
        found = await events(client, "/api/stream", 2)
        assert [len(data["searches"]) for _, data in found] == [1, 0]


@on_a_cluster()
async def test_a_quiet_stream_ends_with_the_right_to_it(installed: Installation) -> None:
    await two_tenants(installed)
    async with signed_in(installed) as client:
        found: list[tuple[str, Any]] = []
        following = asyncio.create_task(events(client, f"{OURS}/stream", 2, found))
        await installed.until(lambda: [name for name, _ in found] == ["reset"])
        installed.api.grants.clear()
        await following
        name, data = found[1]
        assert (name, "ann may not get" in data["message"]) == ("gone", True)


@on_a_cluster()
async def test_nobody_reads_without_signing_in(installed: Installation) -> None:
    await two_tenants(installed)
    async with http(installed) as client:
        for path in ("/", "/api/stream", *(f"{OURS}{path}" for path in READING)):
            for headers in ({}, {"Authorization": f"Bearer {PERSON}"}, {"X-User": "ann"}):
                reply = await client.get(path, headers=headers)
                assert reply.status_code == 401, path
                assert "tiny" not in reply.text
        wrong = await client.post("/api/sign-in", json={"token": "x"})
        assert (wrong.status_code, "kubectl create token" in wrong.text) == (403, True)


@on_a_cluster()
async def test_the_page_of_a_cluster_changes_nothing(installed: Installation) -> None:
    await two_tenants(installed)
    async with signed_in(installed) as client:
        for change in ("stop", "delete", "enqueue", "set", "trials/0/labels", "trials/0/retry"):
            reply = await client.post(f"{OURS}/{change}", json={})
            assert reply.status_code in (403, 404), change


@on_a_cluster()
async def test_the_proxy_says_who_looks(installed: Installation) -> None:
    await two_tenants(installed)
    await installed.stop()
    installed.page_proxy = PageProxy((ip_network("127.0.0.1/32"),), "X-User", "X-Groups")
    installed.start()
    await installed.until(lambda: installed.serves)
    async with http(installed) as client:
        ((_, seen),) = await events_as(client, {"X-User": "ann"})
        assert [entry["name"] for entry in seen["searches"]] == ["tiny"]
        ((_, seen),) = await events_as(client, {"X-User": "eve"})
        assert seen["searches"] == []
        for user in ("", "system:admin"):
            reply = await client.get("/", headers={"X-User": user})
            assert reply.status_code == 503, user


async def events_as(client: httpx.AsyncClient, headers: dict[str, str]) -> list[tuple[str, Any]]:
    client.headers.update(headers)
    return await events(client, "/api/stream", 1)


@on_a_cluster()
async def test_only_the_named_proxy_is_believed(installed: Installation) -> None:
    await two_tenants(installed)
    await installed.stop()
    installed.page_proxy = PageProxy((ip_network("10.9.9.9/32"),), "X-User")
    installed.start()
    await installed.until(lambda: installed.serves)
    async with http(installed) as client:
        reply = await client.get("/api/stream", headers={"X-User": "ann"})
        assert reply.status_code == 401


def of_authority(folder: Path) -> Authority:
    folder.mkdir()
    return Authority(folder)


def showing(installed: Installation, shown: Certificate | None, *user: str) -> httpx.AsyncClient:
    """Return a client with a client certificate that sends the header of the user."""
    trusted = ssl.create_default_context(cafile=str(installed.state.root / "tls" / "tls.crt"))
    if shown is not None:
        trusted.load_cert_chain(shown.certificate, shown.key)
    return httpx.AsyncClient(
        base_url=f"https://localhost:{installed.http_port}",
        verify=trusted,
        headers=[("X-User", name) for name in user],
    )


async def behind_a_certificate(installed: Installation, *networks: str) -> Authority:
    """Start the controller again, which believes the certificate of `the-proxy`."""
    await two_tenants(installed)
    await installed.stop()
    authority = of_authority(installed.state.root.parent / "proxy-ca")
    certificate = ProxyCertificate(authority.own.certificate.read_text(), frozenset({"the-proxy"}))
    installed.page_proxy = PageProxy(
        tuple(map(ip_network, networks)), "X-User", "X-Groups", certificate
    )
    installed.start()
    await installed.until(lambda: installed.serves)
    return authority


@on_a_cluster()
async def test_a_proxy_is_known_by_its_client_certificate(installed: Installation) -> None:
    authority = await behind_a_certificate(installed)
    proxy = authority.issue("proxy", "/O=system:masters/CN=the-proxy")
    named_otherwise = authority.issue("other", "/CN=the-proxy.evil")
    named_twice = authority.issue("twice", "/CN=other/CN=the-proxy")
    every_route = ["/", "/api/stream", OURS, *(OURS + path for path in READING)]
    async with showing(installed, proxy, "ann") as client:
        assert [name for name, _ in await events(client, "/api/stream", 1)] == ["list"]
        assert (await client.get(f"{OURS}/trials/0")).status_code == 200
        assert (await client.get(f"{THEIRS}/trials/0")).status_code in (403, 404)
        # The API is for kubeconfigs: the proxy's word is none there.
        assert (await client.get("/api/v1/whoami")).status_code == 401
    for shown in (None, named_otherwise, named_twice):
        async with showing(installed, None) as client:
            as_nobody = {path: (await client.get(path)).status_code for path in every_route}
        async with showing(installed, shown, "ann") as client:
            as_ann = {path: (await client.get(path)).status_code for path in every_route}
        assert as_ann == as_nobody
        assert set(as_ann.values()) - {200} == {401}
        assert as_ann["/api/stream"] == 401


@on_a_cluster()
async def test_a_certificate_of_another_authority_does_not_connect(installed: Installation) -> None:
    await behind_a_certificate(installed)
    foreign = of_authority(installed.state.root.parent / "foreign-ca").issue("x", "/CN=the-proxy")
    async with showing(installed, foreign, "ann") as client:
        with pytest.raises(httpx.TransportError):
            await client.get("/api/stream")


@on_a_cluster()
async def test_the_proxys_certificate_names_one_user_once(installed: Installation) -> None:
    authority = await behind_a_certificate(installed)
    proxy = authority.issue("proxy", "/CN=the-proxy")
    for users in ((), ("",), ("ann", "ann"), ("system:admin",), ("system:serviceaccount:a:b",)):
        async with showing(installed, proxy, *users) as client:
            for path in ("/", "/api/stream", f"{OURS}/trials/0"):
                assert (await client.get(path)).status_code == 503, (users, path)
    async with showing(installed, proxy) as client:
        for smuggled in ([("X_User", "ann")], [("x-user", "ann"), ("X-USER", "eve")]):
            reply = await client.get(f"{OURS}/trials/0", headers=smuggled)
            assert reply.status_code == 503, smuggled
        both = [("X_User", "ann"), ("x-uSER", "eve"), ("X-Groups", "system:masters")]
        assert (await client.get(f"{OURS}/trials/0", headers=both)).status_code == 403


@on_a_cluster()
async def test_a_certificate_from_another_address_is_not_believed(installed: Installation) -> None:
    authority = await behind_a_certificate(installed, "10.9.9.9/32")
    async with showing(installed, authority.issue("proxy", "/CN=the-proxy"), "ann") as client:
        assert (await client.get("/api/stream")).status_code == 401
