"""Who we are to an API server: the user of a kubeconfig, as kubectl reads it. Reads files and runs plugins.

A token comes before a plugin, as in client-go; ways to log in that contradict each other are refused, and so are fields
that are not known here: running trials as somebody else is worse than not running them.

A refresh token (auth-provider oidc) is never used. Identity providers replace it with each use, and the new one would
have to be written into a file that kubectl writes too; whichever of the two came second would be logged out.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import difflib
import json
import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.runtime.kubernetes.errors import BadKubeconfig, NotAllowed

USER_FIELDS = frozenset(
    ("client-certificate", "client-certificate-data", "client-key", "client-key-data", "token", "tokenFile", "as",
     "as-uid", "as-groups", "as-user-extra", "username", "password", "auth-provider", "exec", "extensions")
)  # fmt: skip
_PLUGIN_FIELDS = frozenset(
    ("command", "args", "env", "apiVersion", "installHint", "provideClusterInfo", "interactiveMode")
)
_PLUGIN_VERSIONS = ("client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1")
_INTERACTIVE_MODES = ("Never", "IfAvailable", "Always")
_PLUGIN_S = 60.0  # nobody watches it; kubectl's users press Ctrl-C
_REPLACEMENTS = {"gcp": "gke-gcloud-auth-plugin", "azure": "kubelogin"}  # what cloud providers name instead

Fields = Mapping[str, Any]  # of a YAML mapping: checked where they are read


@dataclass(frozen=True, slots=True)
class User:
    """An entry of `users`."""

    file: str
    name: str
    context: str  # the one that names it
    fields: Fields

    @property
    def place(self) -> str:
        return f"{self.file}: user {self.name!r}"

    def text(self, key: str) -> str:
        return _text(self.fields, key, self.place)

    def path(self, value: str) -> Path:
        """Relative to the file's folder."""
        return Path(self.file).absolute().parent / value


class TokenFile:
    """A token in a file that something else keeps valid. One that is unreadable for a moment keeps its last content."""

    def __init__(self, path: Path) -> None:
        """Raises OSError, and ValueError for an empty file."""
        self.path = path
        self._token, self._version = "", (0, 0, 0)
        self._token = self._read()
        if not self._token:
            raise ValueError(f"{path} is empty")

    def token(self) -> str:
        try:
            found = self._read()
        except (OSError, ValueError):
            return self._token
        self._token = found or self._token
        return self._token

    def _read(self) -> str:
        about = self.path.stat()
        version = about.st_mtime_ns, about.st_size, about.st_ino
        if version == self._version:
            return self._token
        found = self.path.read_text(encoding="utf-8").strip()
        self._version = version
        return found


@dataclass(frozen=True, slots=True)
class Credentials:
    """What requests show of who we are. `source` says to people where it is from.

    expires_at: from then on the kubeconfig is read again, or the plugin asked again. client_certificate: a plugin's
    certificate and its key, as PEM.
    """

    source: str = ""
    fixed: str = ""
    token_file: TokenFile | None = None
    expires_at: datetime | None = None
    renewable: bool = False  # a plugin gives another one then
    client_certificate: tuple[str, str] | None = None

    def authorization(self) -> str:
        """The header's value; "" without one."""
        return f"Bearer {self.token_file.token()}" if self.token_file is not None else self.fixed

    def expired(self) -> bool:
        return self.expires_at is not None and self.expires_at <= datetime.now(UTC)


async def credentials_of(user: User, cluster: Fields, *, attended: bool) -> Credentials:
    """Args:
        cluster: what a plugin is told of the cluster if it asks.
        attended: somebody who can answer a plugin's questions has just typed a command.

    Raises:
        BadKubeconfig: the entry itself is wrong, or needs what tuner does not do.
        NotAllowed: it gives no credentials now.
    """
    fields, place = user.fields, user.place
    expect_known(fields, USER_FIELDS, place)
    plugin, provider = fields.get("exec"), fields.get("auth-provider")
    token, token_file = user.text("token"), user.text("tokenFile")
    name, password = user.text("username"), user.text("password")
    if (token or token_file) and (name or password):
        raise BadKubeconfig(f"{place} has both a token and a username; remove one of them")
    if plugin and provider:
        raise BadKubeconfig(f"{place} has both exec and auth-provider; remove one of them")
    if token_file:
        path = user.path(token_file)
        try:
            return Credentials(f"the token in {path}, read again when it changes", token_file=TokenFile(path))
        except (OSError, ValueError) as error:
            raise NotAllowed(
                f"{place}: no token in tokenFile: {error}; have it written there, or log in again"
            ) from error
    if token:
        return Credentials("a token of the kubeconfig", f"Bearer {token.strip()}", expires_at=_expiry_of(token))
    if name or password:
        pair = base64.b64encode(f"{name}:{password}".encode()).decode()
        return Credentials("a username and password", f"Basic {pair}")
    if plugin:
        return await _from_plugin(user, _plugin(plugin, user), cluster, attended=attended)
    if provider:
        return _from_provider(user, provider)
    has_certificate = fields.get("client-certificate") or fields.get("client-certificate-data")
    return Credentials("a client certificate" if has_certificate else "")


def expect_known(fields: Fields, known: frozenset[str], place: str) -> None:
    """Raises BadKubeconfig for a field that says something and is not known here."""
    for key, value in fields.items():
        if key in known or value in (None, "", False, [], {}):
            continue
        alike = difflib.get_close_matches(str(key), known, n=1, cutoff=0.75)
        meant = f"did you mean {alike[0]}?" if alike else "remove it, or ask for its support in tuner"
        raise BadKubeconfig(
            f"{place}: tuner does not know the field {key!r}, which may change what is reached; {meant}"
        )


def _text(fields: Fields, key: str, place: str) -> str:
    value = fields.get(key)
    if value is None or isinstance(value, str):
        return value or ""
    raise BadKubeconfig(f"{place}: {key}: expected a string, got {type(value).__name__}; put it into quotes")


def _expiry_of(token: str) -> datetime | None:
    """Of a JWT whose claims can be read; they are not verified."""
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
            f"{user.place}: tuner does not support auth-provider {name!r}, nor does kubectl since 1.26; "
            f"use an exec plugin ({cure})"
        )
    config = fields.get("config")
    token = _text(config if isinstance(config, dict) else {}, "id-token", user.place)
    expires_at = _expiry_of(token)
    credentials = Credentials("an OpenID Connect token, which kubectl renews", f"Bearer {token}", expires_at=expires_at)
    if token and not credentials.expired():
        return credentials
    why = f"expired at {moment(expires_at)}" if token and expires_at is not None else "is missing"
    raise NotAllowed(
        f"{user.place}: the id-token of auth-provider oidc {why}, and tuner does not use refresh tokens; "
        f"run `kubectl --context {user.context} get pods`, which writes a new one there, or, for runs that last longer "
        "than a token, use the exec plugin kubelogin (kubectl oidc-login)"
    )


def moment(at: datetime) -> str:
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
    place = f"{user.place}: exec"
    if not isinstance(fields, dict):
        raise BadKubeconfig(f"{place}: expected a mapping, got {type(fields).__name__}")
    expect_known(fields, _PLUGIN_FIELDS, place)
    command, api_version = _text(fields, "command", place), _text(fields, "apiVersion", place)
    mode = _text(fields, "interactiveMode", place) or "IfAvailable"
    if not command:
        raise BadKubeconfig(f"{place}: command is missing")
    if api_version not in _PLUGIN_VERSIONS:
        raise BadKubeconfig(
            f"{place}: apiVersion: expected {' or '.join(_PLUGIN_VERSIONS)}, got {api_version!r}; "
            "have a newer version of the plugin write this entry"
        )
    if mode not in _INTERACTIVE_MODES:
        raise BadKubeconfig(f"{place}: interactiveMode: expected {', '.join(_INTERACTIVE_MODES)}, got {mode!r}")
    if "/" in command:
        command = str(user.path(command))
    return _Plugin(
        (command, *map(str, fields.get("args") or ())),
        {str(each["name"]): str(each["value"]) for each in fields.get("env") or ()},
        api_version,
        _text(fields, "installHint", place),
        fields.get("provideClusterInfo") is True,
        mode,
    )


async def _from_plugin(user: User, plugin: _Plugin, cluster: Fields, *, attended: bool) -> Credentials:
    interactive = attended and plugin.interactive_mode != "Never" and _at_a_terminal()

    def failed(why: str) -> NotAllowed:
        return NotAllowed(
            f"{user.place}: the credential plugin {plugin.name!r} gave no credentials: {why}; "
            f"run `kubectl --context {user.context} get pods` to see it by itself, or log in again"
        )

    if plugin.interactive_mode == "Always" and not interactive:
        raise failed("it asks questions (interactiveMode: Always), and there is no terminal to answer them")
    spec = {"interactive": interactive} | ({"cluster": cluster} if plugin.wants_cluster else {})
    info = {"apiVersion": plugin.api_version, "kind": "ExecCredential", "spec": spec}
    environ = {**os.environ, **plugin.environ, "KUBERNETES_EXEC_INFO": json.dumps(info)}
    try:
        printed = await _output_of(plugin.argv, environ, interactive=interactive)
        return _credentials_in(printed, plugin)
    except FileNotFoundError as error:
        raise failed(" ".join(f"it was not found. {plugin.install_hint}".split()).rstrip(".")) from error
    except (OSError, ValueError) as error:
        raise failed(" ".join(str(error).split())) from error


def _at_a_terminal() -> bool:
    """In the foreground: a process in the background that reads its terminal is stopped."""
    try:
        return os.isatty(0) and os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


async def _output_of(argv: tuple[str, ...], environ: Mapping[str, str], *, interactive: bool) -> bytes:
    """Raises OSError (TimeoutError too), and ValueError for a plugin that fails."""
    pipe, nothing = asyncio.subprocess.PIPE, asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=environ,
        stdin=None if interactive else nothing,
        stdout=pipe,
        stderr=None if interactive else pipe,
        start_new_session=not interactive,  # so that it cannot ask at our terminal, and ends with all that it started
    )
    try:
        async with asyncio.timeout(None if interactive else _PLUGIN_S):
            printed, complaint = await process.communicate()
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            process.kill() if interactive else os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        if isinstance(error, TimeoutError):
            raise TimeoutError(f"it did not end within {_PLUGIN_S:g} s") from error
        raise
    if process.returncode != 0:
        said = (complaint or b"").decode(errors="replace").strip()
        raise ValueError(f"exit code {process.returncode}" + (f": {said}" if said else ""))
    return printed


def _credentials_in(printed: bytes, plugin: _Plugin) -> Credentials:
    """Raises ValueError."""
    answer = json.loads(printed)
    status = answer.get("status") if isinstance(answer, dict) else None
    if not isinstance(status, dict) or answer.get("kind") != "ExecCredential":
        raise ValueError("its output is not an ExecCredential with a status")
    if answer.get("apiVersion") != plugin.api_version:
        raise ValueError(f"it answers in {answer.get('apiVersion')!r}, and {plugin.api_version!r} was asked for")
    token, certificate, key = (
        str(status.get(name) or "") for name in ("token", "clientCertificateData", "clientKeyData")
    )
    if bool(certificate) != bool(key):
        raise ValueError("clientCertificateData and clientKeyData only come together")
    if not token and not certificate:
        raise ValueError("its output has neither a token nor a client certificate")
    until = status.get("expirationTimestamp")
    expires_at = None if not until else datetime.fromisoformat(str(until))
    if expires_at is not None and expires_at.tzinfo is None:
        raise ValueError(f"expirationTimestamp: {until} has no time zone")
    return Credentials(
        f"the plugin {plugin.name}",
        f"Bearer {token}" if token else "",
        expires_at=expires_at,
        renewable=True,
        client_certificate=(certificate, key) if certificate else None,
    )
