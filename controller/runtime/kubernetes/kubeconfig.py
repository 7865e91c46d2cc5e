"""The API server of a context and how to log in there: a kubeconfig, or the service account of this pod.

The `kubernetes` package merges files and loads certificates; `credentials` and `proxy` do as kubectl does, which the
package does not. Only this module imports the package, and only the four modules of it that are needed: all of it costs
a second of CPU at every start (models, the synchronous client, requests, pydantic), these four a third of that, nearly
all of it aiohttp.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import importlib
import importlib.util
import os
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote

import yaml  # type: ignore[import-untyped]

from controller.runtime.kubernetes.credentials import Credentials, TokenFile, User, credentials_of, expect_known
from controller.runtime.kubernetes.errors import BadKubeconfig, NotAllowed
from controller.runtime.kubernetes.proxy import Proxy, proxy_for
from suggest.nesting import TooNested, check_yaml

_PACKAGE = "kubernetes"
_HALLWAYS = ("kubernetes", "kubernetes.aio", "kubernetes.aio.client", "kubernetes.aio.utils")
_DEFAULT = "~/.kube/config"
_IN_CLUSTER = "in-cluster"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_CLUSTER_FIELDS = frozenset(
    ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority", "certificate-authority-data",
     "proxy-url", "disable-compression", "extensions")
)  # fmt: skip
_TOLD_TO_PLUGINS = ("server", "tls-server-name", "insecure-skip-tls-verify", "certificate-authority-data", "proxy-url",
                    "disable-compression")  # fmt: skip
_PLUGIN_EXTENSION = "client.authentication.k8s.io/exec"
_one_at_a_time = threading.Lock()


@dataclass(frozen=True, slots=True)
class Library:
    """The rooms of the package that are used."""

    configuration: Any  # modules without types: what they hold is typed where it is read
    rest: Any
    kube_config: Any
    incluster_config: Any


_library: list[Library] = []


def library() -> Library:
    """Import them, the first time. Blocks for some 300 ms: call it in a thread."""
    with _one_at_a_time:
        if not _library:
            _library.append(_import_without_hallways())
        return _library[0]


def _import_without_hallways() -> Library:
    """The packages' `__init__` modules import everything; while ours are imported, empty ones stand in for them.

    Nothing stays in sys.modules, so that whoever imports the whole package later gets it whole.
    """
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        raise BadKubeconfig("The Python package `kubernetes` is missing; install it: pip install 'kubernetes>=37,<38'")
    root = Path(spec.submodule_search_locations[0]).parent
    before = {name: module for name, module in sys.modules.items() if _ours(name)}
    for name in before:
        del sys.modules[name]
    try:
        for name in _HALLWAYS:
            hallway = ModuleType(name)
            hallway.__path__ = [str(root / name.replace(".", os.sep))]
            sys.modules[name] = hallway
        with _no_authorities_yet():
            import aiohttp  # noqa: F401
        configuration = importlib.import_module("kubernetes.aio.client.configuration")
        hallway = sys.modules["kubernetes.aio.client"]
        # The loaders take these two names from there. ApiClient is what pulls in pydantic; only a helper that nobody
        # here calls would make one.
        hallway.__dict__.update(Configuration=configuration.Configuration, ApiClient=None)
        return Library(
            configuration,
            importlib.import_module("kubernetes.aio.client.rest"),
            importlib.import_module("kubernetes.aio.config.kube_config"),
            importlib.import_module("kubernetes.aio.config.incluster_config"),
        )
    finally:
        for name in [name for name in sys.modules if _ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)


@contextmanager
def _no_authorities_yet() -> Iterator[None]:
    """aiohttp makes two contexts for TLS while it is imported, with all authorities of the system, which takes longer
    than the rest of it. Each connection here has a context of its own."""
    importing = threading.get_ident()
    load, find = ssl.SSLContext.load_default_certs, ssl.SSLContext.set_default_verify_paths

    def load_elsewhere(context: ssl.SSLContext, purpose: ssl.Purpose = ssl.Purpose.SERVER_AUTH) -> None:
        if threading.get_ident() != importing:
            load(context, purpose)

    def find_elsewhere(context: ssl.SSLContext) -> None:
        if threading.get_ident() != importing:
            find(context)

    ssl.SSLContext.load_default_certs = load_elsewhere  # type: ignore[method-assign, assignment]  # for now
    ssl.SSLContext.set_default_verify_paths = find_elsewhere  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        ssl.SSLContext.load_default_certs = load  # type: ignore[method-assign]
        ssl.SSLContext.set_default_verify_paths = find  # type: ignore[method-assign]


def _ours(name: str) -> bool:
    return name == _PACKAGE or name.startswith(_PACKAGE + ".")


@dataclass(frozen=True, slots=True)
class Access:
    """A server and how to be let in. `configuration` is the package's; certificates are in `rest`'s TLS context."""

    context: str
    user: str
    namespace: str
    configuration: Any
    rest: Any
    transport: str  # a fingerprint of all that a connection depends on: the same one, the same connections
    credentials: Credentials
    proxy: Proxy | None = None
    impersonation: tuple[tuple[str, str], ...] = ()  # headers of each request
    compressed: bool = True  # answers may be

    @property
    def server(self) -> str:
        return str(self.configuration.host)

    @property
    def verified(self) -> bool:
        """Whether the server has to show a certificate that its authority has signed."""
        return bool(self.configuration.verify_ssl)


async def load(context: str | None, *, attended: bool = False) -> Access:
    """Reads files and may run a credential plugin; does not call the server. attended: a plugin may ask questions.

    Raises BadKubeconfig, NotAllowed.
    """
    parts = await asyncio.to_thread(library)
    paths = os.environ.get("KUBECONFIG") or _DEFAULT
    there = [path for path in paths.split(os.pathsep) if path and Path(path).expanduser().exists()]
    if not there:
        return _in_cluster(parts, context, paths)
    try:
        for path in there:
            check_yaml(Path(path).expanduser().read_bytes())
        merger = parts.kube_config.KubeConfigMerger(os.pathsep.join(there))
        merged = merger.config
        contexts = _contexts(merged)
        # The first file that names one decides, as for kubectl; the package lets the last one decide.
        name = context or next(filter(None, (file.get("current-context") for file in merger.config_files.values())), "")
    except (
        OSError,
        TooNested,
        yaml.YAMLError,
        parts.kube_config.ConfigException,
        AttributeError,
        TypeError,
        KeyError,
    ) as error:
        raise BadKubeconfig(f"{paths}: cannot be read as a kubeconfig: {_sentence(error)}") from error
    if name not in contexts:
        what = f"has no context {name!r}" if name else "has no current context"
        cure = f"choose one with --context: {', '.join(contexts)}" if contexts else "it has no contexts at all"
        raise BadKubeconfig(f"{paths}: {what}; {cure}")
    return await _from_kubeconfig(parts, merged, name=name, paths=paths, attended=attended)


def namespace_of(context: str | None) -> str:
    """The namespace of a context (None: the current one), or of the pod that this runs in; "default" where none is
    named, also by a kubeconfig that cannot be read: who connects says what is wrong with it. Reads files only."""
    current, contexts, found = context or "", dict[str, object](), False
    for path in (os.environ.get("KUBECONFIG") or _DEFAULT).split(os.pathsep):
        try:
            config = yaml.safe_load(Path(path).expanduser().read_text(encoding="utf-8")) if path else None
        except (OSError, ValueError, yaml.YAMLError):
            continue
        if not isinstance(config, dict):
            continue
        found = True
        current = current or str(config.get("current-context") or "")
        for entry in config.get("contexts") or ():
            match entry:
                case {"name": str(name), "context": {"namespace": str(namespace)}}:
                    contexts.setdefault(name, namespace)
                case {"name": str(name)}:
                    contexts.setdefault(name, "")
    if not found and _NAMESPACE_FILE.exists():
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    return str(contexts.get(current) or "default")


def _contexts(merged: Any) -> list[str]:
    return [str(entry.value["name"]) for entry in merged.value["contexts"]]


async def _from_kubeconfig(parts: Library, merged: Any, *, name: str, paths: str, attended: bool) -> Access:
    configuration = parts.configuration.Configuration()
    try:
        loader = parts.kube_config.KubeConfigLoader(merged, active_context=name, config_base_path=None)
        chosen = loader.current_context["context"]
        place = f"{loader._cluster.path}: cluster {chosen['cluster']!r}"
        cluster = _cluster(loader, place)
        _expect_a_user(loader, chosen, name=name)
        credentials = Credentials()
        if loader._user is not None and loader._user.value:
            user = User(loader._user.path, chosen["user"], name, loader._user.value)
            credentials = await credentials_of(user, _for_plugins(cluster, loader), attended=attended)
        if credentials.client_certificate is not None:
            certificate, key = credentials.client_certificate
            loader.cert_file = parts.kube_config._create_temp_file_with_content(certificate)
            loader.key_file = parts.kube_config._create_temp_file_with_content(key)
        loader._load_cluster_info()
        loader._set_config(configuration)
        proxy = proxy_for(configuration.host, cluster.get("proxy-url") or "", place, os.environ)
        access = _access(
            parts,
            configuration,
            name,
            user=chosen.get("user") or "",
            namespace=chosen.get("namespace"),
            credentials=credentials,
            proxy=proxy,
        )
        return replace(
            access,
            impersonation=_impersonation(loader, name=name, paths=paths),
            compressed=cluster.get("disable-compression") is not True,
        )
    # The package trips over a malformed file in any of these ways; so does OpenSSL over a malformed certificate.
    except (OSError, parts.kube_config.ConfigException, AttributeError, TypeError, KeyError, ValueError) as error:
        raise BadKubeconfig(f"{paths}: context {name!r} cannot be used: {_sentence(error)}") from error
    finally:
        # Keys are in the TLS context by now: leave none in files for a kill -9 to leave behind.
        parts.kube_config._cleanup_temp_files()


def _cluster(loader: Any, place: str) -> dict[str, Any]:
    """Raises BadKubeconfig for fields that are not known, missing, or contradict each other."""
    fields: dict[str, Any] = loader._cluster.value
    expect_known(fields, _CLUSTER_FIELDS, place)
    if not fields.get("server"):
        raise BadKubeconfig(f"{place} has no server")
    authority = fields.get("certificate-authority-data") or fields.get("certificate-authority")
    if fields.get("insecure-skip-tls-verify") and authority:
        raise BadKubeconfig(
            f"{place} has both insecure-skip-tls-verify and a certificate-authority; remove insecure-skip-tls-verify"
        )
    return fields


def _for_plugins(cluster: dict[str, Any], loader: Any) -> dict[str, Any]:
    """What a plugin with `provideClusterInfo` is told: the authority as data, and the extension meant for plugins."""
    told = {key: cluster[key] for key in _TOLD_TO_PLUGINS if cluster.get(key)}
    path = cluster.get("certificate-authority")
    if path and "certificate-authority-data" not in told:
        content = (Path(loader._get_base_path(loader._cluster.path)) / path).read_bytes()
        told["certificate-authority-data"] = base64.b64encode(content).decode()
    for entry in cluster.get("extensions") or ():
        if entry.get("name") == _PLUGIN_EXTENSION:
            told["config"] = entry.get("extension")
    return told


def _in_cluster(parts: Library, context: str | None, paths: str) -> Access:
    configuration = parts.configuration.Configuration()
    try:
        parts.incluster_config.load_incluster_config(client_configuration=configuration)
    except (OSError, parts.incluster_config.ConfigException) as error:
        raise BadKubeconfig(
            f"There is no kubeconfig at {paths} (from $KUBECONFIG, or the default), and this is no pod; "
            "set KUBECONFIG, or have your cluster's tool write one (kind export kubeconfig, minikube update-context, …)"
        ) from error
    if context not in (None, _IN_CLUSTER):
        raise BadKubeconfig(
            f"There is no kubeconfig at {paths}, so no context {context!r}; leave --context out to use this pod's own"
        )
    namespace = _NAMESPACE_FILE.read_text(encoding="utf-8").strip() if _NAMESPACE_FILE.exists() else None
    token = TokenFile(Path(parts.incluster_config.SERVICE_TOKEN_FILENAME))
    return _access(
        parts,
        configuration,
        _IN_CLUSTER,
        user="the pod's service account",
        namespace=namespace,
        credentials=Credentials("the pod's service account", token_file=token),
        proxy=proxy_for(configuration.host, "", "", os.environ),
    )


def _access(parts: Library, configuration: Any, context: str, *, user: str, namespace: str | None,
            credentials: Credentials, proxy: Proxy | None) -> Access:  # fmt: skip
    configuration.connection_pool_maxsize = 0  # as many at once as there are logs to follow
    configuration.proxy = None if proxy is None else proxy.url
    settings = configuration.host, configuration.proxy, configuration.tls_server_name, configuration.verify_ssl
    digest = hashlib.sha256(repr(settings).encode())
    for path in (configuration.cert_file, configuration.key_file, configuration.ssl_ca_cert):
        digest.update(Path(path).read_bytes() if path else b"")
    rest = parts.rest.RESTClientObject(configuration)
    return Access(context, user, namespace or "default", configuration, rest, digest.hexdigest(), credentials, proxy)


def _expect_a_user(loader: Any, chosen: Any, *, name: str) -> None:
    if loader._user is None and str(loader._cluster.value.get("server", "")).startswith("https"):
        user = chosen.get("user")
        why = f"its user {user!r} is not in the kubeconfig" if user else "it names no user"
        raise NotAllowed(
            f"Context {name!r} has no credentials: {why}; "
            f"log in again, or set one: kubectl config set-context {name} --user=…"
        )


def _impersonation(loader: Any, *, name: str, paths: str) -> tuple[tuple[str, str], ...]:
    """What `as` and its companions ask for, as kubectl sends it; the package knows nothing of them."""
    user = (loader._user.value if loader._user is not None else None) or {}
    who, uid, groups, extra = (user.get(key) or () for key in ("as", "as-uid", "as-groups", "as-user-extra"))
    if not who and not uid and not groups and not extra:
        return ()
    if not isinstance(who, str) or not who:
        raise BadKubeconfig(
            f"{paths}: the user of context {name!r} has as-uid, as-groups or as-user-extra without `as`"
        )
    extra = dict(extra)
    return (
        ("Impersonate-User", who),
        *([("Impersonate-Uid", str(uid))] if uid else []),
        *(("Impersonate-Group", str(group)) for group in groups),
        *((f"Impersonate-Extra-{quote(key, safe='')}", str(each)) for key, values in extra.items() for each in values),
    )


def _sentence(error: Exception) -> str:
    said = " ".join(str(error).split())
    return said or type(error).__name__
