"""The user and cluster of a kubeconfig: renewed tokens, plugins,
proxies and TLS; and what is refused.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import pty
import shutil
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from controller.kube import client as client_module
from controller.kube import kubeconfig
from controller.kube.client import JOBS, KubernetesClient
from controller.kube.errors import AccessDenied, BadKubeconfig, Unreachable
from controller.kube.kubeconfig import load, proxy_for
from controller.kube.objects import Raw
from tests.certificates import Authority
from tests.kube.fake_api import FakeApi, kubeconfig_of

ROOT = Path(__file__).resolve().parents[2]
V1 = "client.authentication.k8s.io/v1"


def config_of(api: FakeApi, *, cluster: Raw | None = None, **user: object) -> Raw:
    config = api.kubeconfig()
    config["users"][0]["user"] = user
    config["clusters"][0]["cluster"] |= cluster or {}
    return config


def refused(config: Raw) -> str:
    """Return the error of connecting with this kubeconfig."""
    with kubeconfig_of(config) as path, pytest.raises((BadKubeconfig, AccessDenied)) as caught:
        asyncio.run(load(None))
    return f"{type(caught.value).__name__}: {caught.value}".replace(str(path), "CONFIG")


async def works(config: Raw) -> bool:
    with kubeconfig_of(config):
        client = await KubernetesClient.connect()
    try:
        return (await client.list(JOBS, "user1"))[0] == []
    finally:
        await client.close()


def in_seconds(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


def jwt(expires_at: datetime) -> str:
    """Return an unsigned token with characters that only base64url has."""
    claims = json.dumps({"exp": int(expires_at.timestamp()), "sub": "ana?>~"}).encode()
    return f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.x"


class Plugin:
    """A credential plugin whose reply tests can change, and which records its calls."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.program = folder / "sign-in"
        self.program.write_text(
            f'#!/bin/sh\nprintf "%s\\n" "$KUBERNETES_EXEC_INFO" >> {folder}/calls\ncat '
            f"{folder}/answer || exit 3\n"
        )
        self.program.chmod(0o755)

    def answers(
        self, *, expires_at: datetime | None = None, api_version: str = V1, **status: str
    ) -> None:
        until = {} if expires_at is None else {"expirationTimestamp": expires_at.isoformat()}
        answer = {"apiVersion": api_version, "kind": "ExecCredential", "status": status | until}
        (self._folder / "answer").write_text(json.dumps(answer))

    def fails(self) -> None:
        (self._folder / "answer").unlink(missing_ok=True)

    def entry(self, **fields: object) -> Raw:
        return {"apiVersion": V1, "command": str(self.program), "interactiveMode": "Never"} | fields

    @property
    def calls(self) -> list[Raw]:
        path = self._folder / "calls"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@pytest.fixture
def plugin(tmp_path: Path) -> Plugin:
    return Plugin(tmp_path)


@asynccontextmanager
async def signed_in(api: FakeApi, **user: object) -> AsyncIterator[KubernetesClient]:
    with kubeconfig_of(config_of(api, **user)):
        client = await KubernetesClient.connect()
        try:
            yield client
        finally:
            await client.close()


# Tokens.


def test_a_token_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")

    async def check() -> None:
        async with FakeApi() as api, signed_in(api, tokenFile=str(path)) as client:
            for token in ("first", "second", "a third"):
                beside = tmp_path / "new"
                beside.write_text(f"{token}\n")
                beside.replace(path)
                api.token = token
                api.requests.clear()
                await client.list(JOBS, "user1")
                assert len(api.requests) == 1, "it was refused first"
            path.unlink()  # for a moment
            await client.list(JOBS, "user1")

    asyncio.run(check())


def test_a_token_file_takes_precedence_and_is_relative_to_the_kubeconfig() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = "right"
            with kubeconfig_of(config_of(api, token="wrong", tokenFile="token")) as path:
                (path.parent / "token").write_text("right")
                client = await KubernetesClient.connect()
                await client.list(JOBS, "user1")
                await client.close()

    asyncio.run(check())


@pytest.mark.parametrize("content", [None, ""])
def test_a_token_file_without_a_token_is_refused(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_text(content)
    message = refused(config_of(FakeApi(), tokenFile=str(path)))
    assert message.startswith("AccessDenied: CONFIG: user 'tester': no token in tokenFile: ")
    assert str(path) in message


def test_the_kubeconfig_is_read_again_when_its_token_expires() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = jwt(in_seconds(-5))
            with kubeconfig_of(config_of(api, token=api.token)) as path:
                client = await KubernetesClient.connect()
                api.token = jwt(in_seconds(600))
                path.write_text(json.dumps(config_of(api, token=api.token)))
                await client.list(JOBS, "user1")
                assert len(api.requests) == 1, "the expired one was sent"
                await client.close()

    asyncio.run(check())


# Plugins.


def test_a_plugin_is_asked_again_when_its_token_expires(plugin: Plugin) -> None:
    async def check() -> None:
        async with FakeApi() as api:
            plugin.answers(token="first", expires_at=in_seconds(600))
            async with signed_in(api, exec=plugin.entry()) as client:
                api.token = "first"
                for _ in range(3):
                    await client.list(JOBS, "user1")
                assert len(plugin.calls) == 1
            plugin.answers(token="old", expires_at=in_seconds(-1))
            async with signed_in(api, exec=plugin.entry()) as client:
                plugin.answers(token="new", expires_at=in_seconds(600))
                api.token = "new"
                api.requests.clear()
                await asyncio.gather(*(client.list(JOBS, "user1") for _ in range(5)))
                assert (len(plugin.calls), len(api.requests)) == (3, 5), (
                    "once for all, and before anything is sent"
                )

    asyncio.run(check())


def test_a_plugin_is_asked_again_when_its_token_is_refused(plugin: Plugin) -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = "first"
            plugin.answers(token="first", expires_at=in_seconds(600))
            async with signed_in(api, exec=plugin.entry()) as client:
                await client.list(JOBS, "user1")
                for token in ("second", "third"):
                    api.token = token
                    plugin.answers(token=token)
                    await client.list(JOBS, "user1")
                assert len(plugin.calls) == 3

    asyncio.run(check())


def test_while_a_plugin_fails_the_server_counts_as_unreachable(
    plugin: Plugin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Trials keep running, and the controller retries for a while."""

    async def check(*, calls: int) -> None:
        async with FakeApi() as api:
            plugin.answers(token="old", expires_at=in_seconds(-1))
            before = len(plugin.calls)
            async with signed_in(api, exec=plugin.entry()) as client:
                plugin.fails()
                for _ in range(3):
                    with pytest.raises(
                        Unreachable,
                        match=r"the credential plugin .* returned no credentials: exit code 3",
                    ):
                        await client.whoami()
                assert (len(plugin.calls) - before, api.requests) == (1 + calls, [])
                plugin.answers(token="new", expires_at=in_seconds(600))
                if calls == 3:
                    api.token = "new"
                    await client.list(JOBS, "user1")

    asyncio.run(check(calls=1))  # not for each request
    monkeypatch.setattr(client_module, "_RENEWAL_PAUSE_S", 0.0)
    asyncio.run(check(calls=3))


def test_a_plugin_gets_the_cluster_info_on_request(plugin: Plugin, tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("an authority")
    plugin.answers(token="x")
    settings = {"audience": "vision"}
    cluster = {
        "server": "http://127.0.0.1:1",
        "certificate-authority": str(tmp_path / "ca.crt"),
        "tls-server-name": "api.example",
        "extensions": [
            {"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": settings},
        ],
    }
    for entry in (
        plugin.entry(provideClusterInfo=True),
        plugin.entry(provideClusterInfo=False),
        plugin.entry(),
    ):
        with kubeconfig_of(config_of(FakeApi(), cluster=cluster, exec=entry)):
            asyncio.run(load(None))
    cluster = {
        "server": "http://127.0.0.1:1",
        "tls-server-name": "api.example",
        "certificate-authority-data": base64.b64encode(b"an authority").decode(),
        "config": settings,
    }
    credential = {"apiVersion": V1, "kind": "ExecCredential", "spec": {"interactive": False}}
    assert plugin.calls == [
        credential | {"spec": {"interactive": False, "cluster": cluster}},
        credential,
        credential,
    ]


def test_a_plugin_beside_the_kubeconfig_gets_its_arguments_and_environment(tmp_path: Path) -> None:
    answer = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "one two"}}
    entry = {
        "apiVersion": V1,
        "command": "./sign-in",
        "args": ["one"],
        "env": [{"name": "MORE", "value": "two"}],
    }
    with kubeconfig_of(config_of(FakeApi(), exec=entry)) as path:
        program = path.parent / "sign-in"
        program.write_text(
            f"#!/bin/sh\necho '{json.dumps(answer)}' | sed \"s/one two/$1 $MORE/\"\n"
        )
        program.chmod(0o755)
        found = asyncio.run(load(None)).credentials
    assert (found.authorization(), found.expires_at) == ("Bearer one two", None)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (
            {"args": ["-c", "echo no login >&2; exit 3"]},
            "exit code 3: no login; run `kubectl --context fake get pods`",
        ),
        ({"args": ["-c", "echo hello"]}, "Expecting value"),
        ({"args": ["-c", "echo '{}'"]}, "its output is not an ExecCredential with a status"),
        (
            {
                "args": [
                    "-c",
                    f'echo \'{{"apiVersion": "{V1}beta1", "kind": "ExecCredential", "status": '
                    f"{{}}}}'",
                ]
            },
            f"expected apiVersion '{V1}', got '{V1}beta1'",
        ),
        (
            {
                "args": [
                    "-c",
                    f'echo \'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{}}}}\'',
                ]
            },
            "neither a token nor a client certificate",
        ),
        (
            {"command": "no-such-plugin", "installHint": "Get it from your administrator."},
            "it was not found. Get it from your administrator; run",
        ),
        (
            {"interactiveMode": "Always"},
            "it asks questions (interactiveMode: Always), and there is no terminal",
        ),
    ],
)
def test_a_plugin_without_credentials_is_quoted(
    entry: Raw, why: str, capfd: pytest.CaptureFixture[str]
) -> None:
    message = refused(config_of(FakeApi(), exec={"apiVersion": V1, "command": "sh"} | entry))
    assert message.startswith("AccessDenied: CONFIG: user 'tester': the credential plugin ")
    assert why in message
    assert capfd.readouterr() == ("", "")


def test_a_plugin_that_does_not_end_is_killed_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubeconfig, "_PLUGIN_S", 0.3)
    script = f"sleep 600 & echo $! > {tmp_path}/child; wait"
    message = refused(
        config_of(FakeApi(), exec={"apiVersion": V1, "command": "sh", "args": ["-c", script]})
    )
    assert "it did not end within 0.3 s" in message
    state = Path("/proc", (tmp_path / "child").read_text().strip(), "stat")
    assert not state.exists() or state.read_text().split()[2] == "Z"


def test_a_plugin_may_use_the_terminal_during_a_command(tmp_path: Path) -> None:
    answer = {"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "TYPED"}}
    ask = f"echo Password: >&2; read -r typed; echo '{json.dumps(answer)}' | sed s/TYPED/$typed/"
    config = config_of(
        FakeApi(),
        exec={"apiVersion": V1, "command": "sh", "args": ["-c", ask], "interactiveMode": "Always"},
    )
    program = (
        "import asyncio, fcntl, termios\n"
        "from controller.kube.kubeconfig import load\n"
        "fcntl.ioctl(0, termios.TIOCSCTTY, 0)\n"
        "print(asyncio.run(load(None, attended=True)).credentials.authorization(), flush=True)\n"
        "try:\n"
        "    asyncio.run(load(None))\n"
        "except Exception as error:\n"
        "    print(error)\n"
    )
    ours, theirs = pty.openpty()
    with kubeconfig_of(config), os.fdopen(ours, "r+b", buffering=0) as terminal:
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            cwd=ROOT,
            stdin=theirs,
            stdout=subprocess.PIPE,
            stderr=theirs,
            start_new_session=True,
            text=True,
        )
        os.close(theirs)
        shown = b""
        while b"Password:" not in shown:
            shown += terminal.read(1000)
        terminal.write(b"sesame\n")
        printed, _ = process.communicate(timeout=60)
    assert printed.startswith("Bearer sesame\n")
    assert "there is no terminal to answer" in printed, "a renewal has nobody to ask"


# What is refused.


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ({"tokenfile": "x"}, "unsupported field 'tokenfile'; did you mean tokenFile?"),
        ({"as-role": "admin"}, "unsupported field 'as-role'; remove it"),
        ({"token": 7}, "token: expected a string, got int"),
        ({"token": "a", "username": "b"}, "has both a token and a username"),
        (
            {"exec": {"command": "x"}, "auth-provider": {"name": "oidc"}},
            "has both exec and auth-provider",
        ),
        ({"exec": {"apiVersion": V1}}, "exec: command is missing"),
        (
            {"exec": {"apiVersion": V1 + "alpha1", "command": "x"}},
            f"exec: apiVersion: expected {V1} or {V1}beta1, got",
        ),
        (
            {"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Sometimes"}},
            "expected Never, IfAvailable",
        ),
        (
            {"exec": {"apiVersion": V1, "command": "x", "provideClusterinfo": True}},
            "did you mean provideClusterInfo?",
        ),
        (
            {"auth-provider": {"name": "gcp"}},
            "does not support auth-provider 'gcp', nor does kubectl since 1.26; "
            "use an exec plugin (gke-gcloud-auth-plugin)",
        ),
        ({"auth-provider": {"name": "azure"}}, "use an exec plugin (kubelogin)"),
    ],
)
def test_unsupported_fields_of_a_user_are_refused(user: Raw, said: str) -> None:
    problem = refused(config_of(FakeApi(), **user))
    assert problem.startswith("BadKubeconfig: CONFIG: user 'tester'")
    assert said in problem


@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ({"tls-servername": "x"}, "did you mean tls-server-name?"),
        ({"server": ""}, "has no server"),
        (
            {"proxy-url": "socks5://127.0.0.1:1080"},
            "proxy-url: socks5://127.0.0.1:1080 is a SOCKS proxy, which tuner "
            "does not support; use an http:// or https:// proxy",
        ),
        (
            {"server": "127.0.0.1:6443"},
            "server: expected http://HOST:PORT or https://HOST:PORT, got '127.0.0.1:6443'",
        ),
        (
            {"server": "https://api.example:port"},
            "server: expected http://HOST:PORT or https://HOST:PORT",
        ),
        (
            {"proxy-url": "ftp://me:secret@proxy"},
            "proxy-url: expected http://HOST:PORT or https://HOST:PORT, got ftp://proxy",
        ),
        (
            {"insecure-skip-tls-verify": True, "certificate-authority-data": "eA=="},
            "has both insecure-skip-tls-verify",
        ),
    ],
)
def test_an_entry_that_kubectl_might_read_differently_is_refused(cluster: Raw, said: str) -> None:
    problem = refused(config_of(FakeApi(), cluster=cluster))
    assert problem.startswith("BadKubeconfig: CONFIG: cluster 'fake'")
    assert said in problem


def test_a_valid_id_token_is_used() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = jwt(in_seconds(60))
            provider = {"name": "oidc", "config": {"id-token": api.token, "refresh-token": "r"}}
            assert await works(config_of(api, **{"auth-provider": provider}))

    asyncio.run(check())


def test_an_expired_id_token_is_not_refreshed_and_the_cure_is_named() -> None:
    config = {
        "id-token": jwt(in_seconds(-60)),
        "refresh-token": "r",
        "idp-issuer-url": "http://127.0.0.1:1",
    }
    message = refused(config_of(FakeApi(), **{"auth-provider": {"name": "oidc", "config": config}}))
    assert message.startswith(
        "AccessDenied: CONFIG: user 'tester': the id-token of auth-provider oidc expired at 20"
    )
    assert "run `kubectl --context fake get pods`, which writes a new one there" in message
    assert "use the exec plugin kubelogin" in message
    del config["id-token"]
    assert "oidc is missing" in refused(
        config_of(FakeApi(), **{"auth-provider": {"name": "oidc", "config": config}})
    )


def test_an_id_token_that_kubectl_has_renewed_meanwhile_is_found() -> None:
    async def check() -> None:
        async with FakeApi() as api:

            def config() -> Raw:
                return config_of(
                    api, **{"auth-provider": {"name": "oidc", "config": {"id-token": api.token}}}
                )

            api.token = jwt(in_seconds(60))
            with kubeconfig_of(config()) as path:
                client = await KubernetesClient.connect()
                await client.list(JOBS, "user1")
                api.token = jwt(in_seconds(120))
                path.write_text(json.dumps(config()))
                await client.list(JOBS, "user1")
                await client.close()

    asyncio.run(check())


def test_a_token_takes_precedence_over_a_plugin_as_in_kubectl(plugin: Plugin) -> None:
    async def check() -> None:
        async with FakeApi() as api:
            api.token = "right"
            plugin.answers(token="wrong")
            assert await works(config_of(api, token="right", exec=plugin.entry()))
            assert plugin.calls == []

    asyncio.run(check())


def test_the_first_file_that_names_a_current_context_decides_as_for_kubectl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for name, current in (("one", ""), ("two", "two"), ("three", "three")):
        config: Any = FakeApi().kubeconfig(namespace=f"of-{name}")
        config["contexts"][0]["name"] = name
        config["current-context"] = current
        paths.append(tmp_path / name)
        paths[-1].write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", os.pathsep.join(map(str, paths)))
    access = asyncio.run(load(None))
    assert (access.context, access.namespace) == ("two", "of-two")


# The way to the server.


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    if not shutil.which("openssl"):
        pytest.skip("needs openssl")
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def serving(authority: Authority) -> ssl.SSLContext:
    """The TLS context of a server that verifies a client certificate if the client sends one."""
    context = authority.server_context()
    context.verify_mode = ssl.CERT_OPTIONAL
    return context


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


class Relay:
    """Forwards connections to a port; with `serving` they use TLS,
    and as a `proxy` they begin with CONNECT.
    """

    def __init__(
        self, to: int, *, serving: ssl.SSLContext | None = None, proxy: bool = False
    ) -> None:
        self._to = to
        self._serving = serving
        self._proxy = proxy
        # to where, of a proxy; else whose certificate the client showed
        self.connected: list[str] = []
        self.asked_for: list[str] = []  # header lines of a proxy's clients

    async def __aenter__(self) -> Relay:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._serving)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._proxy:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().splitlines()
            self.connected.append(head[0].split()[1])
            self.asked_for += head[1:]
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        else:
            shown = writer.get_extra_info("peercert") or {}
            self.connected.append(
                str(dict(*(part for part in shown.get("subject", ((),)))).get("commonName", ""))
            )
        there, back = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(_pipe(reader, back), _pipe(there, writer))


@asynccontextmanager
async def served_by_tls(serving: ssl.SSLContext) -> AsyncIterator[tuple[FakeApi, Relay]]:
    async with FakeApi() as api, Relay(int(api.url.rpartition(":")[2]), serving=serving) as relay:
        yield api, relay


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


def test_the_servers_name_for_tls_may_differ_from_its_address(
    authority: Authority, serving: ssl.SSLContext
) -> None:
    async def check() -> None:
        async with served_by_tls(serving) as (api, relay):
            where = {
                "server": f"https://localhost:{relay.port}",
                "certificate-authority": str(authority.own.certificate),
            }
            with pytest.raises(Unreachable, match="is not trusted"):
                await works(config_of(api, cluster=where))
            assert await works(config_of(api, cluster=where | {"tls-server-name": "api.example"}))
            with pytest.raises(Unreachable, match="is not trusted"):
                await works(config_of(api, cluster=where | {"tls-server-name": "other.example"}))

    asyncio.run(check())


def test_a_server_is_only_unverified_where_the_kubeconfig_says_so(serving: ssl.SSLContext) -> None:
    async def check() -> None:
        async with served_by_tls(serving) as (api, relay):
            where = {"server": f"https://localhost:{relay.port}"}
            with pytest.raises(Unreachable, match="is not trusted"):
                await works(config_of(api, cluster=where))
            assert await works(config_of(api, cluster=where | {"insecure-skip-tls-verify": True}))

    asyncio.run(check())


def test_a_plugins_certificate_is_shown_and_replaced(
    authority: Authority, serving: ssl.SSLContext, plugin: Plugin
) -> None:
    def signs_in_as(name: str, expires_at: datetime) -> None:
        issued = authority.issue(name, f"/CN={name}")
        plugin.answers(
            clientCertificateData=issued.certificate.read_text(),
            clientKeyData=issued.key.read_text(),
            token=name,
            expires_at=expires_at,
        )

    async def check() -> None:
        async with served_by_tls(serving) as (api, relay):
            where = {
                "server": f"https://127.0.0.1:{relay.port}",
                "certificate-authority": str(authority.own.certificate),
            }
            signs_in_as("ana", in_seconds(-1))
            with kubeconfig_of(config_of(api, cluster=where, exec=plugin.entry())):
                client = await KubernetesClient.connect()
                signs_in_as("bob", in_seconds(600))
                api.token = "bob"
                await client.list(JOBS, "user1")
                await client.close()
            assert relay.connected == ["bob"]

    asyncio.run(check())


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_gets_the_name_of_the_server(
    authority: Authority, serving: ssl.SSLContext, scheme: str
) -> None:
    """An https:// proxy needs a certificate of the cluster's authority, as with kubectl."""

    async def check() -> None:
        async with (
            served_by_tls(serving) as (api, relay),
            Relay(relay.port, serving=serving if scheme == "https" else None, proxy=True) as proxy,
        ):
            where = {
                "server": "https://api.example:6443",
                "certificate-authority": str(authority.own.certificate),
                "proxy-url": f"{scheme}://me:secret@127.0.0.1:{proxy.port}",
            }
            assert await works(config_of(api, cluster=where))
            assert proxy.connected == ["api.example:6443"]
            shown = base64.b64encode(b"me:secret").decode()
            assert f"Proxy-Authorization: Basic {shown}" in proxy.asked_for

    asyncio.run(check())


def test_answers_are_only_compressed_where_the_kubeconfig_lets_them() -> None:
    async def check() -> None:
        async with FakeApi() as api:
            messages = []
            for off in (False, True):
                assert await works(config_of(api, cluster={"disable-compression": off}))
                messages.append(api.headers.get("Accept-Encoding"))
            assert "gzip" in messages[0]
            assert messages[1] == "identity"

    asyncio.run(check())


SERVER = "https://api.example:6443"
ENVIRON = {"HTTPS_PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("server", "environ", "proxied"),
    [
        (SERVER, ENVIRON, True),
        (SERVER, {"https_proxy": "proxy:3128"}, True),
        (SERVER, {"HTTP_PROXY": "http://proxy"}, False),
        (SERVER, ENVIRON | {"NO_PROXY": "*"}, False),
        (SERVER, ENVIRON | {"NO_PROXY": "other.example, example"}, False),
        (SERVER, ENVIRON | {"no_proxy": "ample"}, True),
        (SERVER, ENVIRON | {"NO_PROXY": ".api.example"}, True),
        (SERVER, ENVIRON | {"NO_PROXY": "*.example"}, False),
        (SERVER, ENVIRON | {"NO_PROXY": "api.example:443"}, True),
        (SERVER, ENVIRON | {"NO_PROXY": "api.example:6443"}, False),
        ("https://10.96.0.1:443", ENVIRON | {"NO_PROXY": "10.96.0.0/12"}, False),
        ("https://10.96.0.1:443", ENVIRON | {"NO_PROXY": "10.0.0.0/16,nonsense/x"}, True),
        ("https://10.96.0.1", ENVIRON | {"NO_PROXY": "10.96.0.1:443"}, False),
        ("https://[fd00::1]:6443", ENVIRON | {"NO_PROXY": "fd00::/8"}, False),
        ("https://[fd00::1]:6443", ENVIRON | {"NO_PROXY": "[fd00::1]:6443"}, False),
        ("https://127.0.0.1:6443", ENVIRON, False),
        ("https://localhost:6443", ENVIRON, False),
    ],
)
def test_the_environments_proxy_is_used_as_by_kubectl(
    server: str, environ: dict[str, str], proxied: bool
) -> None:
    proxy = proxy_for(server, "", "", environ)
    assert (proxy is not None and proxy.url) == (proxied and "http://proxy:3128")


def test_a_proxy_of_the_kubeconfig_has_no_exceptions() -> None:
    proxy = proxy_for(
        "https://127.0.0.1", "http://me:secret@near:1", "", ENVIRON | {"NO_PROXY": "*"}
    )
    assert proxy is not None
    assert (proxy.url, proxy.address) == ("http://me:secret@near:1", "http://near:1")


def test_a_socks_proxy_of_the_environment_is_refused_by_its_variable() -> None:
    with pytest.raises(BadKubeconfig, match=r"^HTTPS_PROXY: socks5h://me is a SOCKS proxy"):
        proxy_for(SERVER, "", "", {"HTTPS_PROXY": "socks5h://me"})
