"""The client of an API server against a small one with real HTTP: what it sends, waits for and
repeats, and what people are told when they are not let in.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import time
from collections.abc import AsyncGenerator, Coroutine
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from controller.core.attempt import RuntimeLost
from controller.kube import client as client_module
from controller.kube.client import JOBS, NAMESPACES, NODES, PODS, Kind, KubernetesClient
from controller.kube.errors import AccessDenied, ApiError, BadKubeconfig, Unreachable, rule_for
from controller.kube.objects import Raw
from controller.kube.request_limit import RequestLimit, Sender
from tests.kube.fake_api import FakeApi, kubeconfig_of
from tests.kube.small_cluster import eventually, with_a_cluster

ROOT = Path(__file__).resolve().parents[2]


def job(name: str, **labels: str) -> Raw:
    return {"metadata": {"name": name, "labels": labels}, "spec": {}}


async def taken(events: AsyncGenerator[Raw, None], count: int) -> list[Raw]:
    found: list[Raw] = []
    async with aclosing(events), asyncio.timeout(10):
        async for event in events:
            found.append(event)
            if len(found) == count:
                break
    return found


async def refused(doing: Coroutine[Any, Any, object]) -> ApiError:
    with pytest.raises(ApiError) as caught:
        await doing
    return caught.value


# What it does.


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (JOBS.path("user1"), "/apis/batch/v1/namespaces/user1/jobs"),
        (JOBS.path("user1", "a"), "/apis/batch/v1/namespaces/user1/jobs/a"),
        (JOBS.path(None), "/apis/batch/v1/jobs"),
        (PODS.path("user1", "a"), "/api/v1/namespaces/user1/pods/a"),
        (NODES.path(None, "n1"), "/api/v1/nodes/n1"),
        (NODES.path("user1"), "/api/v1/nodes"),
        (NAMESPACES.path(None, "user1"), "/api/v1/namespaces/user1"),
        (PODS.path("../x", "a?b"), "/api/v1/namespaces/..%2Fx/pods/a%3Fb"),
    ],
)
def test_an_object_has_one_place(path: str, expected: str) -> None:
    assert path == expected


@with_a_cluster
async def test_a_created_object_keeps_unknown_fields(
    api: FakeApi, client: KubernetesClient
) -> None:
    made = await client.create(
        JOBS, "user1", job("a") | {"spec": {"newField": {"deep": [1, 2.5, None]}}}
    )
    assert made == await client.get(JOBS, "user1", "a") == api.get("jobs", "user1", "a")
    assert api.requests[0] == ("POST", JOBS.path("user1"), {"fieldValidation": "Strict"})


@with_a_cluster
async def test_a_dry_run_leaves_nothing(api: FakeApi, client: KubernetesClient) -> None:
    assert (await client.create(JOBS, "user1", job("a"), dry_run=True))["metadata"]["uid"]
    assert api.all("jobs") == []


@with_a_cluster
async def test_a_second_object_of_a_name_is_refused_with_its_reason(
    api: FakeApi, client: KubernetesClient
) -> None:
    await client.create(JOBS, "user1", job("a"))
    error = await refused(client.create(JOBS, "user1", job("a")))
    assert (error.status, error.reason, str(error)) == (
        409,
        "AlreadyExists",
        'jobs.batch "a" already exists',
    )


@with_a_cluster
async def test_a_missing_object_is_not_found(api: FakeApi, client: KubernetesClient) -> None:
    assert (await refused(client.get(JOBS, "user1", "a"))).reason == "NotFound"
    assert (
        str(await refused(client.create(JOBS, "nowhere", job("a"))))
        == 'namespaces "nowhere" not found'
    )


@with_a_cluster
async def test_a_list_gathers_its_pages_and_names_kinds_as_single_objects_do(
    api: FakeApi, client: KubernetesClient
) -> None:
    for number in range(1001):
        api.put("jobs", {"metadata": {"name": f"j{number}", "namespace": "user1"}})
    items, version = await client.list(JOBS, "user1")
    assert (len(items), version) == (1001, str(api.version))
    assert items[0] == api.get("jobs", "user1", "j0")


@with_a_cluster
async def test_a_list_whose_pages_were_compacted_is_read_in_one_piece(
    api: FakeApi, client: KubernetesClient
) -> None:
    for number in range(600):
        api.put("jobs", {"metadata": {"name": f"j{number}", "namespace": "user1"}})
    api.late = True
    listing = asyncio.create_task(client.list(JOBS, "user1"))
    await eventually(lambda: bool(api.requests))
    await asyncio.sleep(0.02)
    api.put("jobs", job("one more"))
    api.compact()
    api.late = False
    items, version = await listing
    assert (len(items), version) == (600, str(api.version))


@with_a_cluster
async def test_labels_and_fields_select(api: FakeApi, client: KubernetesClient) -> None:
    api.put(
        "pods", {"metadata": {"name": "a", "labels": {"x": "1"}}, "status": {"phase": "Running"}}
    )
    api.put(
        "pods", {"metadata": {"name": "b", "labels": {"x": "2"}}, "status": {"phase": "Running"}}
    )
    api.put(
        "pods", {"metadata": {"name": "c", "labels": {"x": "1"}}, "status": {"phase": "Failed"}}
    )

    async def names(labels: str = "", fields: str = "") -> list[str]:
        return [
            pod["metadata"]["name"]
            for pod in (await client.list(PODS, None, labels=labels, fields=fields))[0]
        ]

    assert await names("x=1") == ["a", "c"]
    assert await names("x in (1,2),x!=2") == ["a", "c"]
    assert await names("!x") == []
    assert await names("x=1", "status.phase!=Failed") == ["a"]


@with_a_cluster
async def test_deleting_a_missing_or_replaced_object_is_not_an_error(
    api: FakeApi, client: KubernetesClient
) -> None:
    await client.create(JOBS, "user1", job("a"))
    await client.delete(JOBS, "user1", "a", uid="that of an earlier one")
    assert len(api.all("jobs")) == 1
    await client.delete(JOBS, "user1", "a", uid=api.get("jobs", "user1", "a")["metadata"]["uid"])
    await client.delete(JOBS, "user1", "a")
    assert api.all("jobs") == []


@pytest.mark.parametrize(("propagation", "left"), [("Background", 0), (None, 1), ("Orphan", 1)])
def test_a_jobs_pods_go_with_it_only_if_the_propagation_says_so(
    propagation: str | None, left: int
) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        await client.create(JOBS, "user1", job("a"))
        api.kubelet.make_pod("user1", "a")
        await client.delete(JOBS, "user1", "a", propagation=propagation)
        assert len(api.all("pods")) == left

    check()


@with_a_cluster
async def test_a_merge_patch_removes_keys(api: FakeApi, client: KubernetesClient) -> None:
    await client.create(JOBS, "user1", job("a", x="1", y="2"))
    patched = await client.patch(
        JOBS, "user1", "a", {"metadata": {"labels": {"x": None, "z": "3"}}}
    )
    assert patched["metadata"]["labels"] == {"y": "2", "z": "3"}


@with_a_cluster
async def test_a_watch_delivers_every_change_and_ends_when_the_server_ends_it(
    api: FakeApi, client: KubernetesClient
) -> None:
    version = str(api.version)
    large = "x" * 300_000  # in many pieces
    api.put("jobs", job("a") | {"spec": {"large": large}})
    api.remove("jobs", "default", "a")
    api.put("pods", {"metadata": {"name": "another kind"}})
    began = time.monotonic()
    events = await taken(client.watch(JOBS, None, resource_version=version, timeout_s=1), -1)
    assert [(event["type"], event["object"]["spec"]["large"] == large) for event in events] == [
        ("ADDED", True),
        ("DELETED", True),
    ]
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("form", ["event", "status"])
def test_both_forms_of_an_expired_resource_version_are_recognized(form: str) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        api.gone_as = form
        api.compact()
        error = await refused(taken(client.watch(JOBS, None, resource_version="1", timeout_s=5), 1))
        assert (error.status, error.reason) == (410, "Expired")

    check()


@with_a_cluster
async def test_a_watch_of_a_server_that_hangs_breaks_off(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.silent = True
    with pytest.raises(Unreachable, match="has not answered in time"):
        await taken(client.watch(JOBS, None, resource_version="1", timeout_s=0.1), 1)


@with_a_cluster
async def test_a_log_is_followed_to_the_containers_end(
    api: FakeApi, client: KubernetesClient
) -> None:
    await client.create(JOBS, "user1", job("a"))
    running = asyncio.create_task(
        api.kubelet.run_pod("user1", "a", lines=["one", "two"], seconds=0.1)
    )
    await eventually(lambda: [pod["status"]["phase"] for pod in api.all("pods")] == ["Running"])
    api.log_pieces = 3
    name = api.all("pods")[0]["metadata"]["name"]
    text = b"".join([piece async for piece in client.log("user1", name)])
    assert [line.split(b" ", 1)[1] for line in text.splitlines()] == [b"one", b"two"]
    again = b"".join(
        [
            piece
            async for piece in client.log("user1", name, since="2999-01-01T00:00:00Z", follow=False)
        ]
    )
    assert again == b""
    await running


@with_a_cluster
async def test_the_log_of_a_container_that_waits_is_an_error_that_says_so(
    api: FakeApi, client: KubernetesClient
) -> None:
    await client.create(JOBS, "user1", job("a"))
    pod = api.kubelet.make_pod("user1", "a")
    error = await refused(anext(client.log("user1", pod)))
    assert error.status == 400
    assert "is waiting to start" in str(error)
    assert (await refused(anext(client.log("user1", "none")))).status == 404


@with_a_cluster
async def test_a_silent_log_ends_without_an_error(api: FakeApi, client: KubernetesClient) -> None:
    await client.create(JOBS, "user1", job("a"))
    pod = api.kubelet.make_pod("user1", "a")
    api.kubelet.start(pod)
    api.silent = True
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("controller.kube.client._SILENCE_S", 0.05)
        assert [piece async for piece in client.log("user1", pod)] == []


@with_a_cluster
async def test_a_kind_that_is_not_built_in_is_looked_up(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.define("jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")
    assert await client.discover("jobset.x-k8s.io/v1alpha2", "JobSet") == Kind(
        "jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet"
    )
    for api_version in ("jobset.x-k8s.io/v1alpha2", "unknown.io/v1"):
        assert f"no kind Other in {api_version}; install" in str(
            await refused(client.discover(api_version, "Other"))
        )


@with_a_cluster
async def test_the_client_can_ask_for_permissions(api: FakeApi, client: KubernetesClient) -> None:
    api.forbid("get", "pods/log")
    assert await client.review("get", PODS, "user1")
    assert not await client.review("get", PODS, "user1", subresource="log")


# What it waits for and repeats.


@pytest.mark.parametrize("status", [429, 503])
def test_a_server_that_asks_to_retry_later_is_retried_even_for_a_create(status: int) -> None:
    @with_a_cluster
    async def check(api: FakeApi, client: KubernetesClient) -> None:
        api.answer(status, times=5, retry_after_s=0)
        await client.create(JOBS, "user1", job("a"))
        api.answer(status, times=6, retry_after_s=0)
        error = await refused(client.get(JOBS, "user1", "a"))
        assert (error.status, error.retry_after_s) == (status, 0.0)

    check()


@with_a_cluster
async def test_retry_after_is_waited_for(api: FakeApi, client: KubernetesClient) -> None:
    api.answer(429, retry_after_s=1)
    began = time.monotonic()
    await client.list(JOBS, "user1")
    assert time.monotonic() - began >= 1


@with_a_cluster
async def test_a_503_without_retry_after_is_raised(api: FakeApi, client: KubernetesClient) -> None:
    api.answer(503)
    assert (await refused(client.list(JOBS, "user1"))).status == 503


@with_a_cluster
async def test_a_read_is_repeated_on_a_new_connection(
    api: FakeApi, client: KubernetesClient
) -> None:
    for _ in range(3):
        api.requests.clear()
        api.silent = True
        reading = asyncio.create_task(client.list(JOBS, "user1"))
        await eventually(lambda: bool(api.requests))
        api.drop_connections()
        api.silent = False
        assert await reading == ([], str(api.version))


@with_a_cluster
async def test_a_create_whose_connection_breaks_is_not_sent_twice(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.silent = True
    creating = asyncio.create_task(client.create(JOBS, "user1", job("a")))
    await eventually(lambda: bool(api.requests))
    api.drop_connections()
    api.silent = False
    with pytest.raises(Unreachable, match="closed the connection"):
        await creating
    assert len(api.requests) == 1


def test_requests_have_a_common_limit_and_streams_do_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "RequestLimit", lambda per_s: RequestLimit(4, 1e6))

    async def check() -> None:
        async with FakeApi() as api, api.client() as client:
            api.hold("GET", "/jobs")
            one = client.on_behalf_of(Sender("user1", "uid"))
            lists = [asyncio.create_task(one.list(JOBS, "user1")) for _ in range(5)]
            await eventually(lambda: api.held == 2)
            api.put("pods", {"metadata": {"name": "a", "namespace": "user1"}})
            events = client.watch(PODS, "user1", resource_version="0", timeout_s=30)
            assert len(await taken(events, 1)) == 1
            assert api.held == 2
            api.release()
            assert len(await asyncio.gather(*lists)) == 5

    asyncio.run(check())


def test_a_write_that_has_waited_is_not_sent_once_the_lease_has_passed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client_module, "RequestLimit", lambda per_s: RequestLimit(2, 1e6))

    def has_passed() -> None:
        raise RuntimeLost("another controller has the lease")

    async def check() -> None:
        async with FakeApi() as api, api.client() as client:
            api.hold("POST", "/jobs")
            one = client.on_behalf_of(Sender("user1", "uid"))
            creates = [
                asyncio.create_task(one.create(JOBS, "user1", job(name))) for name in ("a", "b")
            ]
            await eventually(lambda: api.held == 1 and client.requests_waiting == 1)
            client.fence_with(has_passed)
            api.release()
            assert (await creates[0])["metadata"]["name"] == "a"
            with pytest.raises(RuntimeLost, match="another controller"):
                await creates[1]
            assert len(api.requests) == 1
            await client.create(JOBS, "user1", job("own"))

    asyncio.run(check())


@with_a_cluster
async def test_more_than_a_hundred_streams_are_open_at_once(
    api: FakeApi, client: KubernetesClient
) -> None:
    watches = [
        client.watch(JOBS, None, resource_version=str(api.version), timeout_s=60)
        for _ in range(150)
    ]
    heard = [asyncio.create_task(taken(watch, 1)) for watch in watches]
    await eventually(lambda: len(api.requests) == 150)
    api.put("jobs", job("a"))
    assert {len(events) for events in await asyncio.gather(*heard)} == {1}


# What people are told.


def config_of(api: FakeApi, **user: object) -> Raw:
    config = api.kubeconfig()
    config["users"][0]["user"] = user
    return config


async def listing(context: str | None) -> None:
    client = await KubernetesClient.connect(context)
    try:
        await client.list(JOBS, "user1")
    finally:
        await client.close()


async def login_problem(config: Raw, *, context: str | None = None) -> str:
    """Return the error of listing Jobs with this kubeconfig."""
    with kubeconfig_of(config), pytest.raises((Unreachable, AccessDenied, BadKubeconfig)) as caught:
        await listing(context)
    return f"{type(caught.value).__name__}: {caught.value}"


def test_a_missing_kubeconfig_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(
        BadKubeconfig, match=r"there is no kubeconfig at .*/none .*; set KUBECONFIG, or have"
    ):
        asyncio.run(KubernetesClient.connect())


def test_an_unknown_context_is_reported_with_the_known_ones() -> None:
    config = FakeApi().kubeconfig()
    problem = asyncio.run(login_problem(config, context="prod"))
    assert "has no context 'prod'; choose one with --context: fake" in problem


@pytest.mark.parametrize(
    "text", ["", "just words", "contexts: [", "contexts: {a: b}", "clusters: []\ncontexts: [1]"]
)
def test_an_invalid_kubeconfig_is_reported(
    text: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(BadKubeconfig, match=str(path)):
        asyncio.run(KubernetesClient.connect())


def test_a_context_with_missing_or_broken_parts_is_reported() -> None:
    config = FakeApi().kubeconfig()
    config["clusters"][0]["cluster"] = {"server": "https://127.0.0.1:1"}
    config["users"] = []
    assert (
        "AccessDenied: context 'fake' has no credentials: its user 'tester' is not in"
        in asyncio.run(login_problem(config))
    )
    config["users"] = [
        {"name": "tester", "user": {"client-certificate": "/none/such", "client-key": "/none/such"}}
    ]
    assert "No such file or directory" in asyncio.run(login_problem(config))
    config["users"] = [
        {
            "name": "tester",
            "user": {"client-certificate-data": "bm9uZQ==", "client-key-data": "bm9uZQ=="},
        }
    ]
    assert "context 'fake' cannot be used: [SSL]" in asyncio.run(login_problem(config))
    config["clusters"] = []
    assert "context 'fake' cannot be used" in asyncio.run(login_problem(config))


def test_the_default_namespace_is_that_of_the_context() -> None:
    async def check() -> None:
        async with FakeApi() as api, api.client(namespace="gpu-team") as client:
            assert (client.context, client.server, client.default_namespace) == (
                "fake",
                api.url,
                "gpu-team",
            )

    asyncio.run(check())


def test_a_context_with_impersonation_sends_it_with_every_request() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            config = api.kubeconfig()
            config["users"][0]["user"] = {
                "as": "ana",
                "as-uid": "7",
                "as-groups": ["vision", "audio"],
                "as-user-extra": {"example.dev/Reason": ["on call"]},
            }
            with kubeconfig_of(config):
                client = await KubernetesClient.connect()
            await client.list(JOBS, "user1")
            assert api.impersonated == [
                ("Impersonate-User", "ana"),
                ("Impersonate-Uid", "7"),
                ("Impersonate-Group", "vision"),
                ("Impersonate-Group", "audio"),
                ("Impersonate-Extra-example.dev%2FReason", "on call"),
            ]
            await client.close()

    asyncio.run(check())


def test_groups_without_a_user_to_impersonate_are_refused() -> None:
    config = FakeApi().kubeconfig()
    config["users"][0]["user"] = {"as-groups": ["vision"]}
    problem = asyncio.run(login_problem(config))
    assert "BadKubeconfig: " in problem
    assert "user 'tester' has as-uid, as-groups or as-user-extra without `as`" in problem


def test_wrong_or_expired_credentials_are_reported() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = "right"
            problem = await login_problem(config_of(api, token="wrong"))
            assert "AccessDenied: " in problem
            assert "does not accept the credentials of context 'fake' (user 'tester')" in problem
            assert "wrong or have expired; log in again" in problem

    asyncio.run(check())


def test_credentials_that_were_renewed_in_the_meantime_are_found() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = "old"
            with kubeconfig_of(config_of(api, token="old")) as path:
                client = await KubernetesClient.connect()
                await client.list(JOBS, "user1")
                path.write_text(json.dumps(config_of(api, token="new")))
                api.token = "new"
                both = asyncio.gather(client.list(JOBS, "user1"), client.list(PODS, "user1"))
                assert [items for items, _ in await both] == [[], []]
                await client.close()

    asyncio.run(check())


def test_an_unreachable_server_is_reported() -> None:
    problem = asyncio.run(login_problem(FakeApi().kubeconfig()))  # port 0: nobody listens
    assert "Unreachable: http://127.0.0.1:0 (context 'fake') cannot be reached" in problem
    assert "is the cluster up, and this the right context?" in problem
    assert issubclass(Unreachable, RuntimeLost)


def test_a_host_that_does_not_exist_is_reported() -> None:
    config = FakeApi().kubeconfig()
    config["clusters"][0]["cluster"]["server"] = "http://nowhere.invalid:6443"
    assert "cannot be found: no such host" in asyncio.run(login_problem(config))


def test_a_proxy_that_does_not_answer_is_reported() -> None:
    config = FakeApi().kubeconfig()
    config["clusters"][0]["cluster"] |= {
        "server": "http://example.invalid",
        "proxy-url": "http://127.0.0.1:1",
    }
    assert "cannot be reached through its proxy" in asyncio.run(login_problem(config))


def test_the_environment_names_a_proxy_and_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    config = FakeApi().kubeconfig()
    config["clusters"][0]["cluster"]["server"] = "http://nowhere.invalid:6443"
    for name in ("http_proxy", "HTTP_PROXY", "no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert "cannot be reached through its proxy" in asyncio.run(login_problem(config))
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    assert "cannot be found: no such host" in asyncio.run(login_problem(config))


def test_a_server_that_is_not_an_api_server_is_reported() -> None:
    async def check() -> None:
        async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n<html")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(page, "127.0.0.1", 0)
        config = FakeApi().kubeconfig()
        config["clusters"][0]["cluster"]["server"] = (
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        )
        assert "is it an API server or a login page?" in await login_problem(config)
        server.close()
        await server.wait_closed()

    asyncio.run(check())


def test_a_server_that_redirects_is_not_followed() -> None:
    async def check() -> None:
        followed = False

        async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal followed
            followed = b"/login" in await reader.readuntil(b"\r\n\r\n") or followed
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: /login\r\nContent-Length: 0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(page, "127.0.0.1", 0)
        config = FakeApi().kubeconfig()
        config["clusters"][0]["cluster"]["server"] = (
            f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        )
        assert "redirects to /login; is it an API server or a login page?" in await login_problem(
            config
        )
        assert not followed
        server.close()
        await server.wait_closed()

    asyncio.run(check())


@pytest.fixture
def speaks_tls(tmp_path: Path) -> tuple[ssl.SSLContext, bytes]:
    """Return a TLS context for a server at 127.0.0.1, and its certificate."""
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-days",
        "2",
    ]
    key, certificate = tmp_path / "key", tmp_path / "certificate"
    try:
        subprocess.run(
            [
                *made,
                "-keyout",
                key,
                "-out",
                certificate,
                "-subj",
                "/CN=x",
                "-addext",
                "subjectAltName=IP:127.0.0.1",
            ],
            check=True,
            capture_output=True,
        )
    except FileNotFoundError:
        pytest.skip("needs openssl")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    return context, certificate.read_bytes()


def test_an_untrusted_certificate_is_refused(speaks_tls: tuple[ssl.SSLContext, bytes]) -> None:
    async def check() -> None:
        server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0, ssl=speaks_tls[0])
        config = FakeApi().kubeconfig()
        config["clusters"][0]["cluster"]["server"] = (
            f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        )
        problem = await login_problem(config)
        assert "is not trusted: [SSL: CERTIFICATE_VERIFY_FAILED]" in problem
        assert "check its cluster's certificate-authority-data" in problem
        server.close()
        await server.wait_closed()

    asyncio.run(check())


@with_a_cluster
async def test_a_forbidden_verb_names_the_missing_rule(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.forbid("create", "jobs")
    api.forbid("get", "pods/log")
    error = await refused(client.create(JOBS, "user1", job("a")))
    assert rule_for(error) == "- {apiGroups: [batch], resources: [jobs], verbs: [create]}"
    assert error.refusal is not None
    assert (error.refusal.user, error.refusal.namespace) == (
        "system:serviceaccount:user1:tuner",
        "user1",
    )
    api.put("pods", {"metadata": {"name": "p", "namespace": "user1"}})
    error = await refused(anext(client.log("user1", "p")))
    assert rule_for(error) == '- {apiGroups: [""], resources: [pods/log], verbs: [get]}'


@with_a_cluster
async def test_a_refusal_by_quota_or_admission_is_not_a_missing_rule(
    api: FakeApi, client: KubernetesClient
) -> None:
    api.refuse = lambda plural, obj: "exceeded quota: q, requested: count/jobs.batch=1"
    error = await refused(client.create(JOBS, "user1", job("a")))
    assert (error.status, rule_for(error), error.refusal) == (403, "", None)
    assert "exceeded quota" in str(error)


# What it costs and leaves behind.


def test_an_empty_authority_is_refused_rather_than_replaced_by_those_of_the_system(
    tmp_path: Path,
) -> None:
    (tmp_path / "empty").touch()
    config = FakeApi().kubeconfig()
    config["clusters"][0]["cluster"] = {
        "server": "https://127.0.0.1:1",
        "certificate-authority": str(tmp_path / "empty"),
    }
    assert "its certificate authority is empty" in asyncio.run(login_problem(config))


def test_a_key_is_not_left_in_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    config = FakeApi().kubeconfig()
    config["clusters"][0]["cluster"] = {
        "server": "https://127.0.0.1:1",
        "certificate-authority-data": "bm9uZQ==",
    }
    with kubeconfig_of(config):
        assert list(tmp_path.rglob("*"))  # the kubeconfig itself
        with pytest.raises(BadKubeconfig, match="cannot be used"):
            asyncio.run(KubernetesClient.connect())
    assert list(tmp_path.iterdir()) == []
