"""A context of the kubeconfig, or the service account of this pod: the API server and the
credentials for it.

Reads files as kubectl does and runs credential plugins. Sends no requests: some commands read only
the namespace of a context.

A token takes precedence over a plugin, as in client-go. Contradictory ways to log in are rejected,
and so are unknown fields: running trials as another user is worse than not running them.

A refresh token (auth-provider oidc) is never used. Identity providers replace it with each use, and
the new one would have to be written into a file that kubectl writes too; whichever program came
second would be logged out.

Proxies follow kubectl too: `proxy-url`, else HTTPS_PROXY and NO_PROXY. Python (urllib.request)
differs from Go: it does not support address ranges in NO_PROXY, and it sends requests to loopback
addresses, such as those of kind, through the proxy.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import difflib
import hashlib
import ipaddress
import json
import os
import signal
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import yaml  # type: ignore[import-untyped]

from controller.kube.errors import AccessDenied, BadKubeconfig
from suggest.nesting import TooNested, check_yaml

USER_FIELDS = frozenset(
    (
        "client-certificate",
        "client-certificate-data",
        "client-key",
        "client-key-data",
        "token",
        "tokenFile",
        "as",
        "as-uid",
        "as-groups",
        "as-user-extra",
        "username",
        "password",
        "auth-provider",
        "exec",
        "extensions",
    )
)
_PLUGIN_FIELDS = frozenset(
    ("command", "args", "env", "apiVersion", "installHint", "provideClusterInfo", "interactiveMode")
)
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
_PLUGIN_S = 60.0  # without a person who could press Ctrl-C, as users of kubectl do
# what cloud providers name instead
_REPLACEMENTS = {"gcp": "gke-gcloud-auth-plugin", "azure": "kubelogin"}

Fields = Mapping[str, Any]  # of a YAML mapping: checked where they are read


@dataclass(frozen=True, slots=True)
class User:
    """An entry of `users` in a kubeconfig."""

    file: str
    name: str
    context: str  # the one that names it
    fields: Fields

    @property
    def location(self) -> str:
        return f"{self.file}: user {self.name!r}"

    def text(self, key: str) -> str:
        return _text(self.fields, key, self.location)

    def path(self, value: str) -> Path:
        """Relative to the file's folder."""
        return Path(self.file).absolute().parent / value


class TokenFile:
    """A token in a file that another program renews.

    While the file is unreadable, its last content is used.
    """

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for an empty file."""
        self.path = path
        self._token, self._version = "", (0, 0, 0)
        self._token = self._read()
        if not self._token:
            raise ValueError(f"{path} is empty")

    def token(self) -> str:
        try:
            text = self._read()
        except (OSError, ValueError):
            return self._token
        self._token = text or self._token
        return self._token

    def _read(self) -> str:
        about = self.path.stat()
        version = about.st_mtime_ns, about.st_size, about.st_ino
        if version == self._version:
            return self._token
        text = self.path.read_text(encoding="utf-8").strip()
        self._version = version
        return text


@dataclass(frozen=True, slots=True)
class Credentials:
    """The credentials of requests. `source` tells people where they are from.

    expires_at: from then on the kubeconfig is read again, or the plugin run again.
    client_certificate: a plugin's certificate and its key, as PEM.
    """

    source: str = ""
    fixed: str = ""
    token_file: TokenFile | None = None
    expires_at: datetime | None = None
    renewable: bool = False  # a plugin gives another one then
    client_certificate: tuple[str, str] | None = None

    def authorization(self) -> str:
        """Return the value of the Authorization header; "" for none."""
        return f"Bearer {self.token_file.token()}" if self.token_file is not None else self.fixed

    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


async def credentials_of(user: User, cluster: Fields, *, attended: bool) -> Credentials:
    """Args:
        cluster: the description of the cluster for plugins that ask for one.
        attended: a person who can answer a plugin's questions has just typed a command.

    Raises:
        BadKubeconfig: the entry itself is wrong, or needs what tuner does not do.
        AccessDenied: it gives no credentials now.
    """
    fields, location = user.fields, user.location
    expect_known(fields, USER_FIELDS, location)
    plugin, provider = fields.get("exec"), fields.get("auth-provider")
    token, token_file = user.text("token"), user.text("tokenFile")
    name, password = user.text("username"), user.text("password")
    if (token or token_file) and (name or password):
        raise BadKubeconfig(f"{location} has both a token and a username; remove one of them")
    if plugin and provider:
        raise BadKubeconfig(f"{location} has both exec and auth-provider; remove one of them")
    if token_file:
        path = user.path(token_file)
        try:
            return Credentials(
                f"the token in {path}, read again when it changes", token_file=TokenFile(path)
            )
        except (OSError, ValueError) as error:
            raise AccessDenied(
                f"{location}: no token in tokenFile: {error}; have it written there, or log in "
                f"again"
            ) from error
    if token:
        return Credentials(
            "a token of the kubeconfig", f"Bearer {token.strip()}", expires_at=_expiry_of(token)
        )
    if name or password:
        pair = base64.b64encode(f"{name}:{password}".encode()).decode()
        return Credentials("a username and password", f"Basic {pair}")
    if plugin:
        return await _from_plugin(user, _plugin(plugin, user), cluster, attended=attended)
    if provider:
        return _from_provider(user, provider)
    has_certificate = fields.get("client-certificate") or fields.get("client-certificate-data")
    return Credentials("a client certificate" if has_certificate else "")


def expect_known(fields: Fields, known_keys: frozenset[str], location: str) -> None:
    """Raise BadKubeconfig for an unknown field that has a value."""
    for key, value in fields.items():
        if key in known_keys or value in (None, "", False, [], {}):
            continue
        alike = difflib.get_close_matches(str(key), known_keys, n=1, cutoff=0.75)
        cure = "remove it, or ask for its support in tuner"
        hint = f"did you mean {alike[0]}?" if alike else cure
        raise BadKubeconfig(f"{location}: unsupported field {key!r}; {hint}")


def _text(fields: Fields, key: str, location: str) -> str:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    raise BadKubeconfig(
        f"{location}: {key}: expected a string, got {type(value).__name__}; put it into quotes"
    )


def _expiry_of(token: str) -> datetime | None:
    """Return the expiry of a JWT, without verifying it; None if the token has none."""
    try:
        claims = token.split(".")[1]
        expires = json.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))["exp"]
        return datetime.fromtimestamp(float(expires), UTC)
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, OSError, binascii.Error):
        return None


def _from_provider(user: User, provider: object) -> Credentials:
    fields = provider if isinstance(provider, dict) else {}
    name = str(fields.get("name", ""))
    if name != "oidc":
        cure = _REPLACEMENTS.get(name, "your identity provider's own")
        raise BadKubeconfig(
            f"{user.location}: tuner does not support auth-provider {name!r}, nor does kubectl "
            f"since 1.26; use an exec plugin ({cure})"
        )
    config = fields.get("config")
    token = _text(config if isinstance(config, dict) else {}, "id-token", user.location)
    expires_at = _expiry_of(token)
    credentials = Credentials(
        "an OpenID Connect token, which kubectl renews", f"Bearer {token}", expires_at=expires_at
    )
    if token and not credentials.expired():
        return credentials
    state = "is missing"
    if token and expires_at is not None:
        state = f"expired at {format_utc(expires_at)}"
    raise AccessDenied(
        f"{user.location}: the id-token of auth-provider oidc {state}, and tuner does not use "
        f"refresh tokens; run `kubectl --context {user.context} get pods`, which writes a new one "
        "there, or, for runs that last longer than a token, use the exec plugin kubelogin "
        "(kubectl oidc-login)"
    )


def format_utc(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M} UTC"


@dataclass(frozen=True, slots=True)
class _Plugin:
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    api_version: str
    install_hint: str
    wants_cluster: bool
    interactive_mode: str

    @property
    def name(self) -> str:
        return self.argv[0]


def _plugin(fields: object, user: User) -> _Plugin:
    location = f"{user.location}: exec"
    if not isinstance(fields, dict):
        raise BadKubeconfig(f"{location}: expected a mapping, got {type(fields).__name__}")
    expect_known(fields, _PLUGIN_FIELDS, location)
    command, api_version = _text(fields, "command", location), _text(fields, "apiVersion", location)
    mode = _text(fields, "interactiveMode", location) or "IfAvailable"
    if not command:
        raise BadKubeconfig(f"{location}: command is missing")
    if api_version not in _PLUGIN_VERSIONS:
        raise BadKubeconfig(
            f"{location}: apiVersion: expected {' or '.join(_PLUGIN_VERSIONS)}, got "
            f"{api_version!r}; write this entry with a newer version of the plugin"
        )
    if mode not in _INTERACTIVE_MODES:
        raise BadKubeconfig(
            f"{location}: interactiveMode: expected {', '.join(_INTERACTIVE_MODES)}, got {mode!r}"
        )
    if "/" in command:
        command = str(user.path(command))
    return _Plugin(
        (command, *map(str, fields.get("args") or ())),
        {str(variable["name"]): str(variable["value"]) for variable in fields.get("env") or ()},
        api_version,
        _text(fields, "installHint", location),
        fields.get("provideClusterInfo") is True,
        mode,
    )


async def _from_plugin(
    user: User, plugin: _Plugin, cluster: Fields, *, attended: bool
) -> Credentials:
    interactive = attended and plugin.interactive_mode != "Never" and _at_a_terminal()

    def failed(reason: str) -> AccessDenied:
        return AccessDenied(
            f"{user.location}: the credential plugin {plugin.name!r} returned no credentials: "
            f"{reason}; run `kubectl --context {user.context} get pods` to run it alone, or log in "
            "again"
        )

    if plugin.interactive_mode == "Always" and not interactive:
        raise failed(
            "it asks questions (interactiveMode: Always), and there is no terminal to answer them"
        )
    spec = {"interactive": interactive} | ({"cluster": cluster} if plugin.wants_cluster else {})
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environ = {**os.environ, **plugin.environ, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        printed = await _output_of(plugin.argv, environ, interactive=interactive)
        return _credentials_in(printed, plugin)
    except FileNotFoundError as error:
        words = f"it was not found. {plugin.install_hint}".split()
        raise failed(" ".join(words).rstrip(".")) from error
    except (OSError, ValueError) as error:
        raise failed(_describe(error)) from error


def _at_a_terminal() -> bool:
    """Whether this process is in the foreground: others are stopped when they read the terminal."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


async def _output_of(
    argv: tuple[str, ...], environ: Mapping[str, str], *, interactive: bool
) -> bytes:
    """Raises OSError (TimeoutError too), and ValueError for a plugin that fails."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=environ,
        stdin=None if interactive else nothing,
        stdout=pipe,
        stderr=None if interactive else pipe,
        # so that it cannot ask at our terminal, and ends with all that it started
        start_new_session=not interactive,
    )
    try:
        async with asyncio.timeout(None if interactive else _PLUGIN_S):
            printed, errors = await process.communicate()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill() if interactive else os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"it did not end within {_PLUGIN_S:g} s") from error
        raise
    if process.returncode != 0:
        message = (errors or b"").decode(errors="replace").strip()
        raise ValueError(f"exit code {process.returncode}" + (f": {message}" if message else ""))
    return printed


def _credentials_in(printed: bytes, plugin: _Plugin) -> Credentials:
    """Raises ValueError."""
    answer = json.loads(printed)
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict) or answer.get("kind") != "ExecCredential":
        raise ValueError("its output is not an ExecCredential with a status")
    if answer.get("apiVersion") != plugin.api_version:
        raise ValueError(
            f"expected apiVersion {plugin.api_version!r}, got {answer.get('apiVersion')!r}"
        )
    names = ("token", "clientCertificateData", "clientKeyData")
    token, certificate, key = (str(status.get(name) or "") for name in names)
    if bool(certificate) != bool(key):
        raise ValueError("clientCertificateData and clientKeyData must be given together")
    if not token and not certificate:
        raise ValueError("its output has neither a token nor a client certificate")
    expires = status.get("expirationTimestamp")
    expires_at = None if not expires else datetime.fromisoformat(str(expires))
    if expires_at is not None and expires_at.tzinfo is None:
        raise ValueError(f"expirationTimestamp: {expires} has no time zone")
    return Credentials(
        f"the plugin {plugin.name}",
        f"Bearer {token}" if token else "",
        expires_at=expires_at,
        renewable=True,
        client_certificate=(certificate, key) if certificate else None,
    )


# The server


_DEFAULT = "~/.kube/config"
_IN_CLUSTER = "in-cluster"
_SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAMESPACE_FILE = _SERVICE_ACCOUNT / "namespace"
_CLUSTER_FIELDS = frozenset(
    (
        "server",
        "tls-server-name",
        "insecure-skip-tls-verify",
        "certificate-authority",
        "certificate-authority-data",
        "proxy-url",
        "disable-compression",
        "extensions",
    )
)
_PLUGIN_KEYS = sorted(_CLUSTER_FIELDS - {"certificate-authority", "extensions"})
_PLUGIN_EXTENSION = "client.authentication.k8s.io/exec"
_SCHEMES = ("http", "https")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Proxy:
    """A proxy. `source`: the setting that names it.

    The URL may contain a password; `address` does not.
    """

    url: str
    source: str

    @property
    def address(self) -> str:
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    """A server and the credentials for it. Certificates are in `tls`."""

    context: str
    user: str
    namespace: str
    server: str
    tls: ssl.SSLContext
    tls_server_name: str  # the name in the server's certificate, if it is not the host's
    verified: bool  # whether the server's certificate is verified
    transport: str  # a fingerprint of everything that connections depend on
    credentials: Credentials
    proxy: Proxy | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  # headers of each request
    compressed: bool = True  # whether responses may be compressed
    # The client's certificate and its key, as PEM, for who signs in with them.
    client_certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)

    @property
    def full_name(self) -> str:
        return f"{self.server} (context {self.context!r})"


@dataclass(frozen=True, slots=True)
class _Certificates:
    """PEM content, or the file with it. authority None: the system's authorities."""

    authority: bytes | Path | None = None
    certificate: bytes | Path | None = None
    key: bytes | Path | None = None

    def fingerprint(self, *settings: object) -> str:
        digest = hashlib.sha256(repr(settings).encode())
        for pem in (self.certificate, self.key, self.authority):
            digest.update(_content(pem))
        return digest.hexdigest()

    @property
    def pair(self) -> tuple[bytes, bytes] | None:
        """Return the client's certificate and its key, which may be in the same file."""
        if self.certificate is None:
            return None
        certificate = _content(self.certificate)
        return certificate, _content(self.key) or certificate

    def context(self, *, verified: bool) -> ssl.SSLContext:
        """Raises OSError (SSLError too), and ValueError for an authority that is empty."""
        # As a string: comments between certificates may hold any bytes,
        # and OpenSSL takes ASCII only.
        trusted = _content(self.authority).decode("ascii", "backslashreplace")
        if self.authority is not None and not trusted:
            # an empty one would mean the system's authorities
            raise ValueError("its certificate authority is empty")
        context = ssl.create_default_context(cadata=trusted)
        # Since 3.13 Python refuses authorities without some extensions, which kubectl accepts.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if self.certificate is not None:
            # OpenSSL reads these from files only; inline data is in temporary files for that time.
            with contextlib.ExitStack() as files:
                certificate, key = (_file(pem, files) for pem in (self.certificate, self.key))
                context.load_cert_chain(certificate, key or None)
        if not verified:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context


def _content(pem: bytes | Path | None) -> bytes:
    return pem.read_bytes() if isinstance(pem, Path) else pem or b""


def _file(pem: bytes | Path | None, files: contextlib.ExitStack) -> str:
    if not isinstance(pem, bytes):
        return "" if pem is None else str(pem)
    path = Path(files.enter_context(tempfile.TemporaryDirectory()), "pem")
    path.write_bytes(pem)
    return str(path)


@dataclass(frozen=True, slots=True)
class _Entry:
    """An entry of `clusters`, `contexts` or `users`, and the file that it is from."""

    file: Path
    fields: Fields


@dataclass(slots=True)
class _Merged:
    """All files of $KUBECONFIG merged: the first file that has an entry wins, as in kubectl."""

    current: str = ""
    contexts: dict[str, _Entry] = field(default_factory=dict)
    clusters: dict[str, _Entry] = field(default_factory=dict)
    users: dict[str, _Entry] = field(default_factory=dict)

    def add(self, file: Path) -> None:
        """Raises OSError, TooNested, YAMLError, ValueError."""
        content = file.read_bytes()
        check_yaml(content)
        config = yaml.safe_load(content)
        if not isinstance(config, dict):
            raise ValueError(f"{file}: expected a mapping, got {type(config).__name__}")
        self.current = self.current or str(config.get("current-context") or "")
        for kind, entries in (
            ("context", self.contexts),
            ("cluster", self.clusters),
            ("user", self.users),
        ):
            for entry in config.get(f"{kind}s") or ():
                fields = (
                    (entry.get(kind) or {}) if isinstance(entry, dict) and "name" in entry else None
                )
                if not isinstance(fields, dict):
                    raise ValueError(
                        f"{file}: {kind}s: expected a list of mappings with name and {kind}"
                    )
                entries.setdefault(str(entry["name"]), _Entry(file, fields))


def existing_files() -> list[Path]:
    """Return the files of the kubeconfig that this user can reach, who may have no home."""
    found = []
    for path in (os.environ.get("KUBECONFIG") or _DEFAULT).split(os.pathsep):
        with contextlib.suppress(RuntimeError):  # there is no home directory
            file = Path(path).expanduser()
            # unlike Path.exists, False in a folder of another user
            if path and os.access(file, os.F_OK):
                found.append(file)
    return found


async def load(context: str | None, *, attended: bool = False) -> ClusterAccess:
    """Reads files and may run a credential plugin; does not call the server.

    attended: a plugin may ask questions.

    Raises BadKubeconfig, AccessDenied.
    """
    paths = os.environ.get("KUBECONFIG") or _DEFAULT
    existing = existing_files()
    if not existing:
        return _in_cluster(context, paths)
    merged = _Merged()
    try:
        for file in existing:
            merged.add(file)
    except (OSError, TooNested, yaml.YAMLError, TypeError, ValueError) as error:
        raise BadKubeconfig(
            f"{paths}: cannot be read as a kubeconfig: {_describe(error)}"
        ) from error
    name = context or merged.current
    if name not in merged.contexts:
        problem = f"has no context {name!r}" if name else "has no current context"
        cure = "it has no contexts at all"
        if merged.contexts:
            cure = f"choose one with --context: {', '.join(merged.contexts)}"
        raise BadKubeconfig(f"{paths}: {problem}; {cure}")
    try:
        return await _from_kubeconfig(merged, name, attended=attended)
    # Fields of another type than expected fail in any of these ways;
    # a malformed certificate does in OpenSSL.
    except (OSError, AttributeError, TypeError, KeyError, ValueError) as error:
        raise BadKubeconfig(
            f"{paths}: context {name!r} cannot be used: {_describe(error)}"
        ) from error


def namespace_of(context: str | None) -> str:
    """Return the namespace of a context (None: the current one), or of this process's pod.

    "default" if none is named, also by a kubeconfig that cannot be read: a later connection reports
    what is wrong with it. Reads files only.
    """
    merged, exists = _Merged(), False
    for file in existing_files():
        with contextlib.suppress(OSError, ValueError, TypeError, yaml.YAMLError):
            merged.add(file)
            exists = True
    if not exists and (own := _own_namespace()):
        return own
    chosen = merged.contexts.get(context or merged.current)
    return str((chosen is not None and chosen.fields.get("namespace")) or "default")


def _own_namespace() -> str:
    """Return the namespace of this process's pod; "" if it runs in none."""
    with contextlib.suppress(FileNotFoundError):
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return ""


async def _from_kubeconfig(merged: _Merged, name: str, *, attended: bool) -> ClusterAccess:
    chosen = merged.contexts[name].fields
    named = str(chosen.get("cluster") or "")
    entry = merged.clusters.get(named)
    if entry is None:
        raise ValueError(
            f"its cluster {named!r} is not in the kubeconfig" if named else "it names no cluster"
        )
    location = f"{entry.file}: cluster {named!r}"
    cluster = _cluster(entry.fields, location)
    server = str(cluster["server"]).rstrip("/")
    user = _user(merged, chosen, name=name, required=server.startswith("https"))
    credentials = Credentials()
    if user is not None and user.fields:
        credentials = await credentials_of(
            user, _cluster_info(cluster, entry.file), attended=attended
        )
    certificates = _Certificates()
    if server.startswith("https"):
        authority = _pem(cluster, "certificate-authority", entry.file.absolute().parent)
        if credentials.client_certificate is not None:
            certificate, key = credentials.client_certificate
            certificates = _Certificates(authority, certificate.encode(), key.encode())
        elif user is not None:
            kinds, folder = ("client-certificate", "client-key"), user.path("")
            pair = (_pem(user.fields, kind, folder) for kind in kinds)
            certificates = _Certificates(authority, *pair)
    proxy = proxy_for(server, cluster.get("proxy-url") or "", location, os.environ)
    tls_server_name = cluster.get("tls-server-name") or ""
    verified = not cluster.get("insecure-skip-tls-verify")
    # Reading the system's authorities takes longer than the requests of a command,
    # and plain HTTP needs none.
    urls = [server, *([] if proxy is None else [proxy.url.lower()])]
    encrypted = any(url.startswith("https") for url in urls)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if encrypted:
        tls = certificates.context(verified=verified)
    return ClusterAccess(
        name,
        user=chosen.get("user") or "",
        namespace=chosen.get("namespace") or "default",
        server=server,
        tls=tls,
        tls_server_name=tls_server_name,
        verified=verified,
        transport=certificates.fingerprint(server, proxy, tls_server_name, verified),
        credentials=credentials,
        proxy=proxy,
        impersonation=() if user is None else _impersonation(user),
        compressed=cluster.get("disable-compression") is not True,
        client_certificate=certificates.pair,
    )


def _cluster(fields: Fields, location: str) -> Fields:
    """Raises BadKubeconfig for fields that are not known, missing, or contradict each other."""
    expect_known(fields, _CLUSTER_FIELDS, location)
    if not fields.get("server"):
        raise BadKubeconfig(f"{location} has no server")
    if not _is_http(str(fields["server"])):
        raise BadKubeconfig(
            f"{location}: server: expected http://HOST:PORT or https://HOST:PORT, got "
            f"{fields['server']!r}"
        )
    authority = fields.get("certificate-authority-data") or fields.get("certificate-authority")
    if fields.get("insecure-skip-tls-verify") and authority:
        raise BadKubeconfig(
            f"{location} has both insecure-skip-tls-verify and a certificate-authority; remove "
            f"insecure-skip-tls-verify"
        )
    return fields


def _user(merged: _Merged, chosen: Fields, *, name: str, required: bool) -> User | None:
    """Raises AccessDenied if the context has no user and the server requires one."""
    named = str(chosen.get("user") or "")
    entry = merged.users.get(named) if named else None
    if entry is not None:
        return User(str(entry.file), named, name, entry.fields)
    if required:
        problem = f"its user {named!r} is not in the kubeconfig" if named else "it names no user"
        raise AccessDenied(
            f"context {name!r} has no credentials: {problem}; log in again, or set one: kubectl "
            f"config set-context {name} --user=…"
        )
    return None


def _cluster_info(cluster: Fields, file: Path) -> Fields:
    """Return what a plugin with `provideClusterInfo` gets.

    This is the authority as data, and the extension for plugins.
    """
    info = {key: cluster[key] for key in _PLUGIN_KEYS if cluster.get(key)}
    path = cluster.get("certificate-authority")
    if path and "certificate-authority-data" not in info:
        content = (file.absolute().parent / path).read_bytes()
        info["certificate-authority-data"] = base64.b64encode(content).decode()
    for entry in cluster.get("extensions") or ():
        if entry.get("name") == _PLUGIN_EXTENSION:
            info["config"] = entry.get("extension")
    return info


def _in_cluster(context: str | None, paths: str) -> ClusterAccess:
    host, port = (os.environ.get(f"KUBERNETES_SERVICE_{part}") for part in ("HOST", "PORT"))
    try:
        if not host or not port:
            raise ValueError("KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set")
        token = TokenFile(_SERVICE_ACCOUNT / "token")
        certificates = _Certificates(_SERVICE_ACCOUNT / "ca.crt")
        tls = certificates.context(verified=True)
    except (OSError, ValueError) as error:
        raise BadKubeconfig(
            f"there is no kubeconfig at {paths} (from $KUBECONFIG, or the default), and this is "
            "not a pod; set KUBECONFIG, or have your cluster's tool write one (kind export "
            "kubeconfig, minikube update-context, …)"
        ) from error
    if context not in (None, _IN_CLUSTER):
        raise BadKubeconfig(
            f"there is no kubeconfig at {paths}, so no context {context!r}; omit --context to use "
            f"this pod's own"
        )
    server = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    proxy = proxy_for(server, "", "", os.environ)
    return ClusterAccess(
        _IN_CLUSTER,
        user="the pod's service account",
        namespace=_own_namespace() or "default",
        server=server,
        tls=tls,
        tls_server_name="",
        verified=True,
        transport=certificates.fingerprint(server, proxy),
        credentials=Credentials("the pod's service account", token_file=token),
        proxy=proxy,
    )


def _pem(fields: Fields, key: str, folder: Path) -> bytes | Path | None:
    """Return the decoded content of KEY-data, which takes precedence, or the path of the file."""
    if data := fields.get(f"{key}-data"):
        return base64.standard_b64decode(data)
    return folder / fields[key] if fields.get(key) else None


def _impersonation(user: User) -> tuple[tuple[str, str], ...]:
    """Return the impersonation headers of `as` and the related fields, as kubectl sends them."""
    user_name, uid, groups, extra = (
        user.fields.get(key) or () for key in ("as", "as-uid", "as-groups", "as-user-extra")
    )
    if not user_name and not uid and not groups and not extra:
        return ()
    if not isinstance(user_name, str) or not user_name:
        raise BadKubeconfig(f"{user.location} has as-uid, as-groups or as-user-extra without `as`")
    headers = [("Impersonate-User", user_name)]
    if uid:
        headers.append(("Impersonate-Uid", str(uid)))
    headers += [("Impersonate-Group", str(group)) for group in groups]
    for key, values in dict(extra).items():
        name = f"Impersonate-Extra-{quote(key, safe='')}"
        headers += [(name, str(value)) for value in values]
    return tuple(headers)


def proxy_for(
    server: str, proxy_url: str, location: str, environ: Mapping[str, str]
) -> Proxy | None:
    """Return the proxy for a server; None: connect directly.

    Args:
        proxy_url: of the cluster in the kubeconfig, or ""; it comes before the environment, and
            NO_PROXY has no say.
        location: the file and cluster that `proxy_url` is from.

    Raises:
        BadKubeconfig: a proxy that is not an HTTP proxy.
    """
    if proxy_url:
        return _check_proxy(Proxy(proxy_url, "proxy-url"), f"{location}: proxy-url", proxy_url)
    target = urlsplit(server)
    scheme = target.scheme.lower()
    name = f"{scheme.upper()}_PROXY"
    value = environ.get(name) or environ.get(name.lower()) or ""
    port = target.port or _PORTS.get(scheme, 0)
    no_proxy = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    if not value or _bypasses_proxy(target.hostname or "", port, no_proxy):
        return None
    return _check_proxy(Proxy(value if "://" in value else f"http://{value}", name), name, value)


def _check_proxy(proxy: Proxy, location: str, value: str) -> Proxy:
    parts = urlsplit(proxy.url)
    if _is_http(proxy.url):
        return proxy
    if parts.scheme.startswith("socks"):
        raise BadKubeconfig(
            f"{location}: {proxy.address} is a SOCKS proxy, which tuner does not support; "
            "use an http:// or https:// proxy, or run tuner where the API server can be reached "
            "directly"
        )
    address = proxy.address if parts.hostname else repr(value)
    raise BadKubeconfig(
        f"{location}: expected http://HOST:PORT or https://HOST:PORT, got {address}"
    )


def _is_http(url: str) -> bool:
    """Whether the URL is http or https, with a valid host and, if given, a valid port."""
    try:
        parts = urlsplit(url)
        host = parts.hostname or ""
        named = host if host.isascii() else host.encode("idna")
        return parts.scheme in _SCHEMES and len(named) > 0 and (parts.port or 0) >= 0
    except ValueError:
        return False


def _bypasses_proxy(host: str, port: int, no_proxy: str) -> bool:
    """Whether NO_PROXY excludes the host, by the rules of golang.org/x/net/http/httpproxy."""
    host = host.lower().rstrip(".")
    address = _address(host)
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(
        _matches(entry.strip().lower(), host, port, address) for entry in no_proxy.split(",")
    )


def _matches(
    entry: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None
) -> bool:
    if entry in ("", "*"):
        return entry == "*"
    if "/" in entry:
        try:
            return address is not None and address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            return False
    named, _, named_port = (
        entry.rpartition(":") if entry.count(":") == 1 or "]:" in entry else (entry, "", "")
    )
    if named_port and named_port != str(port):
        return False
    named = named.strip("[]")
    if address is not None:
        return address == _address(named)
    suffix = named.removeprefix("*")
    if suffix.startswith("."):
        return host.endswith(suffix)
    return host == suffix or host.endswith(f".{suffix}")


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _describe(error: Exception) -> str:
    message = " ".join(str(error).split())
    return message or type(error).__name__
