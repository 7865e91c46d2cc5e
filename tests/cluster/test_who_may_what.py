"""Every RPC and every HTTP route, for every kind of caller, as a real API server decides it.

The rows follow from the tables of RPCs and of routes: what has no rule here fails.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import httpx
import pytest
from google.protobuf import descriptor_pool, message_factory

from controller.app.controller_api import AUDIENCE
from controller.operator.http_api import HttpApi
from controller.operator.page import PageAuthenticator, page
from suggest.katib import NAMESPACE as KATIB
from suggest.server.grpc_servers import SERVICE
from suggest.server.katib_service import SERVICES as KATIB_SERVICES
from suggest.server.rpcs import KATIB_RPCS, RPCS, Form, Rpc
from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import Installed
from tests.cluster.waiting import eventually
from tests.ports import free_port

OURS, THEIRS = "matrix-ours", "matrix-theirs"
RBAC = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{OURS}"
REVOKED_WITHIN_S = 10.0
UNKNOWN, DENIED, ALLOWED = "unauthenticated", "denied", "allowed"
VIEW = frozenset({"get", "list"})
EDIT = VIEW | {"create", "update", "patch", "delete"}
NOTHING: frozenset[str] = frozenset()
# The verbs that each caller has in OURS; None: it is not known who that is.
CALLERS: Mapping[str, frozenset[str] | None] = {
    "none": None,
    "garbage": None,
    "wrong-audience": None,
    "other-namespace": NOTHING,
    "no-role": NOTHING,
    "view": VIEW,
    "edit": EDIT,
    "admin": EDIT,
    "only-create": frozenset({"create"}),
    "only-update": frozenset({"update"}),
    "only-delete": frozenset({"delete"}),
    "pod": VIEW,
    "pod-that-is-gone": None,
    "revoked": NOTHING,
}
# The verb on experiments of the namespace that each method needs; "": to be somebody.
METHODS: Mapping[str, str] = {
    "CreateStudy": "create",
    "GetStudy": "get",
    "ListStudies": "list",
    "UpdateStudy": "update",
    "DeleteStudy": "delete",
    "ValidateStudy": "",
    "ListAlgorithms": "",
    "AddTrial": "update",
    "ImportTrials": "update",
    "GetTrial": "get",
    "ListTrials": "get",
    "UpdateTrial": "update",
    "DeleteTrial": "delete",
    "SuggestTrials": "update",
    "ReportMeasurements": "update",
    "DecideParameter": "update",
    "RenewLeases": "update",
    "CompleteTrial": "update",
    "ReopenTrials": "update",
    "ListMeasurements": "get",
    "ListOptimalTrials": "get",
    "EstimateStudy": "get",
}
# What a visitor needs for each route: nothing, to be somebody, or the verb get in the namespace.
# The last: the verb list in some namespace that has experiments. None has any here.
OPEN, SOMEBODY, GET, LIST_SOME = "open", "somebody", "get", "list some"
_EXPERIMENT = "/api/experiments/{namespace}/{name}"
_TRIAL = f"{_EXPERIMENT}/trials/{{number:int}}"
ROUTES: Mapping[str, str] = {
    "/": SOMEBODY,
    "/static/vega.js": OPEN,
    "/static/{name}": OPEN,
    "/api/stream": SOMEBODY,
    "/api/sign-in": OPEN,
    "/api/sign-out": SOMEBODY,
    f"{_EXPERIMENT}/stream": GET,
    f"{_EXPERIMENT}/file": GET,
    f"{_EXPERIMENT}/figures/{{figure}}.json": GET,
    _TRIAL: GET,
    f"{_TRIAL}/log": GET,
    f"{_TRIAL}/artifacts/{{attempt:int}}/{{path:path}}": GET,
}
_API = "/api/v1/namespaces/{namespace}/experiments/{name}"
_LOG = f"{_API}/trials/{{trial}}/attempts/{{attempt:int}}/log"
_READING = f"/{SERVICE}/{{method}}"  # the methods that read, by POST
API_ROUTES: Mapping[str, str] = {
    "/api/v1/whoami": SOMEBODY,
    "/api/v1/experiments": LIST_SOME,
    "/api/v1/names": SOMEBODY,
    _API: GET,
    f"{_API}/attempts": GET,
    f"{_API}/events": GET,
    f"{_API}/pack": GET,
    _LOG: GET,
    f"{_LOG}/start": GET,
}


@dataclass(frozen=True, slots=True)
class Installation:
    installed: Installed
    tokens: Mapping[str, str]
    http: str
    grpc: str

    @property
    def certificate(self) -> Path:
        return self.installed.state / "tls" / "tls.crt"

    def browser(self) -> httpx.Client:
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        return httpx.Client(base_url=self.http, verify=trusted, timeout=20)

    def channel(self) -> grpc.Channel:
        trusted = grpc.ssl_channel_credentials(self.certificate.read_bytes())
        return grpc.secure_channel(self.grpc, trusted)


def account(
    cluster: ControlPlane, namespace: str, name: str, role: str = "", *, kind: str = "ClusterRole"
) -> None:
    """Make a service account, with a role in the namespace if there is one."""
    api = cluster.api()
    api.post(f"{CORE}/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    if role:
        binding: Object = {
            "metadata": {"name": name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
            "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": namespace}],
        }
        api.post(f"{RBAC.replace(OURS, namespace)}/rolebindings", binding)


def token(
    cluster: ControlPlane, namespace: str, name: str, audience: str, pod: Object | None = None
) -> str:
    spec: Object = {"audiences": [audience]}
    if pod is not None:
        about = pod["metadata"]
        spec["boundObjectRef"] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": about["name"],
            "uid": about["uid"],
        }
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = f"{CORE}/namespaces/{namespace}/serviceaccounts/{name}/token"
    return str(cluster.api().post(path, body)["status"]["token"])


def pod(cluster: ControlPlane, namespace: str, name: str, service_account: str) -> Object:
    spec = {"serviceAccountName": service_account, "containers": [{"name": "a", "image": "a:1"}]}
    return cluster.api().post(
        f"{CORE}/namespaces/{namespace}/pods", {"metadata": {"name": name}, "spec": spec}
    )


def remove(cluster: ControlPlane, path: str) -> None:
    cluster.api().delete(path, gracePeriodSeconds="0")
    eventually(lambda: cluster.api().find(path) is None)


@pytest.fixture(scope="module")
def running(
    level_b: ControlPlane, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Installation]:
    """Yield a controller, and the tokens of all callers."""
    installed = Installed(level_b, tmp_path_factory.mktemp("matrix"))
    for namespace in (OURS, THEIRS):
        level_b.api().post(f"{CORE}/namespaces", {"metadata": {"name": namespace}})
        for name, role in (("view", "view"), ("edit", "edit"), ("admin", "admin")):
            account(level_b, namespace, name, role)
        account(level_b, namespace, "no-role")
    account(level_b, OURS, "revoked", "edit")
    for verb in ("create", "update", "delete"):
        rule = {"apiGroups": ["tuner.dev"], "resources": ["experiments"], "verbs": [verb]}
        role = {"metadata": {"name": f"only-{verb}"}, "rules": [rule]}
        level_b.api().post(f"{RBAC}/roles", role)
        account(level_b, OURS, f"only-{verb}", f"only-{verb}", kind="Role")
    pods = [pod(level_b, OURS, name, "view") for name in ("stays", "goes")]
    tokens = {
        "none": "",
        "garbage": "a.b.c",
        "wrong-audience": token(level_b, OURS, "admin", "vault"),
        "other-namespace": token(level_b, THEIRS, "admin", AUDIENCE),
        "pod": token(level_b, OURS, "view", AUDIENCE, pods[0]),
        "pod-that-is-gone": token(level_b, OURS, "view", AUDIENCE, pods[1]),
    }
    for name in CALLERS.keys() - tokens.keys():
        tokens[name] = token(level_b, OURS, name, AUDIENCE)
    remove(level_b, f"{CORE}/namespaces/{OURS}/pods/goes")
    remove(level_b, f"{RBAC}/rolebindings/revoked")
    http, rpc = free_port(), free_port()
    installed.start(f"--http-port={http}", f"--grpc-port={rpc}")
    running = Installation(installed, tokens, f"https://localhost:{http}", f"localhost:{rpc}")
    eventually(lambda: answers(running), within_s=60)
    yield running
    installed.close()
    for namespace in (OURS, THEIRS):
        level_b.api().delete(f"{CORE}/namespaces/{namespace}")


def answers(running: Installation) -> bool:
    try:
        with running.browser() as browser:
            return browser.get("/static/page.css").status_code == 200
    except (OSError, httpx.TransportError):
        return False


# gRPC


def methods() -> Mapping[str, Rpc]:
    """Return the rows of all methods of the services, by their paths."""
    pool = descriptor_pool.Default()
    found = {}
    for service in (SERVICE, *KATIB_SERVICES):
        for method in pool.FindServiceByName(service).methods:
            found[f"/{service}/{method.name}"] = {**RPCS, **KATIB_RPCS}[method.name]
    return found


def request(path: str, rpc: Rpc, namespace: str) -> Any:
    """Return a request about something in the namespace that does not exist."""
    service, _, name = path.removeprefix("/").partition("/")
    method = descriptor_pool.Default().FindServiceByName(service).methods_by_name[name]
    message = message_factory.GetMessageClass(method.input_type)()
    names = {
        Form.NAMESPACE: f"namespaces/{namespace}",
        Form.NAMESPACES: f"namespaces/{namespace}",
        Form.STUDY: f"namespaces/{namespace}/studies/none",
        Form.TRIAL: f"namespaces/{namespace}/studies/none/trials/7",
        Form.TRIALS: f"namespaces/{namespace}/studies/none/trials/7",
        Form.KATIB: "",
    }
    *parents, field = rpc.field.split(".")
    place = message
    for parent in parents:
        place = getattr(place, parent)
    if names[rpc.form] and field:
        setattr(place, field, names[rpc.form])
    return message


def called(channel: grpc.Channel, path: str, message: Any, secret: str) -> str:
    call = channel.unary_unary(
        path, request_serializer=lambda each: each.SerializeToString(), response_deserializer=bytes
    )
    metadata = (("authorization", f"Bearer {secret}"),) if secret else ()
    try:
        call(message, metadata=metadata, timeout=20)
    except grpc.RpcError as error:
        code = error.code()
    else:
        return ALLOWED
    assert code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED), path
    refusals = {
        grpc.StatusCode.UNAUTHENTICATED: UNKNOWN,
        grpc.StatusCode.PERMISSION_DENIED: DENIED,
    }
    return refusals.get(code, ALLOWED)


def rpc_outcome(verbs: frozenset[str] | None, path: str) -> str:
    if verbs is None:
        return UNKNOWN
    name = path.rpartition("/")[2]
    if name in KATIB_RPCS:
        return DENIED  # all of Katib's is in a namespace of its own
    return ALLOWED if not METHODS[name] or METHODS[name] in verbs else DENIED


def test_every_rpc_for_every_caller(running: Installation) -> None:
    assert KATIB not in (OURS, THEIRS)
    found, expected = {}, {}
    with running.channel() as channel:
        for caller, verbs in CALLERS.items():
            for path, rpc in methods().items():
                message = request(path, rpc, OURS)
                found[caller, path] = called(channel, path, message, running.tokens[caller])
                expected[caller, path] = rpc_outcome(verbs, path)
    assert found == expected
    assert len(expected) == len(CALLERS) * (len(RPCS) + len(KATIB_RPCS))


# HTTP


def routes(listed: Any) -> set[str]:
    return {route.path for route in listed}


def test_every_route_has_a_rule() -> None:
    nothing: Any = None  # no route is called
    authenticator = PageAuthenticator(nothing, nothing, None, port=0, stored=nothing)
    shown = page(authenticator, nothing, sign_in="token")
    assert routes(shown.routes) == set(ROUTES)
    api = HttpApi(nothing, nothing, nothing, nothing, nothing, storage="")
    assert routes(api.routes) == {*API_ROUTES, _READING}


def filled(route: str) -> str:
    values = {
        "{namespace}": OURS,
        "{name}": "none" if route.startswith("/api") else "page.js",
        "{number:int}": "7",
        "{figure}": "history",
        "{trial}": "7",
        "{attempt:int}": "1",
        "{path:path}": "x",
    }
    for place, value in values.items():
        route = route.replace(place, value)
    return route


def route_outcome(verbs: frozenset[str] | None, rule: str) -> str:
    if rule == OPEN:
        return ALLOWED
    if verbs is None:
        return UNKNOWN
    return ALLOWED if rule == SOMEBODY or rule in verbs else DENIED


def read(browser: httpx.Client, path: str, headers: Mapping[str, str]) -> str:
    """Return the outcome of a request; of a stream, that of its first event."""
    with browser.stream("GET", path, headers=dict(headers)) as reply:
        if reply.status_code in (401, 403):
            return UNKNOWN if reply.status_code == 401 else DENIED
        assert reply.status_code in (200, 404, 405), (path, reply.status_code)
        if "event-stream" not in reply.headers.get("content-type", ""):
            return ALLOWED
        said = next(line for line in reply.iter_lines() if line.startswith("data: "))
        return DENIED if "may not get" in said else ALLOWED


def credentials(secret: str) -> Mapping[str, str]:
    return {"X-Tuner-Authorization": f"Bearer {secret}"} if secret else {}


def test_every_rpc_by_http_for_every_caller(running: Installation) -> None:
    """Nothing is changed this way, whatever rights there are."""
    found, expected = {}, {}
    with running.browser() as browser:
        for caller, verbs in CALLERS.items():
            for name, rpc in RPCS.items():
                path = _READING.replace("{method}", name)
                body = request(path, rpc, OURS).SerializeToString()
                headers = {
                    **credentials(running.tokens[caller]),
                    "content-type": "application/proto",
                }
                reply = browser.post(path, content=body, headers=headers)
                found[caller, name] = reply.json()["code"] if reply.is_error else "ok"
                expected[caller, name] = reading_outcome(verbs, name)
    assert found == expected


def reading_outcome(verbs: frozenset[str] | None, name: str) -> str:
    if verbs is None:
        return "unauthenticated"
    if rule_of_reading(name) is None:
        return "not_found"
    if METHODS[name] not in verbs:
        return "permission_denied"
    return "ok" if name == "ListStudies" else "not_found"


def rule_of_reading(name: str) -> str | None:
    """Return the verb that a reading method needs; None if there is no such method by HTTP."""
    return METHODS[name] if METHODS[name] in VIEW else None


def test_every_route_for_every_caller(running: Installation) -> None:
    found, expected = {}, {}
    for caller, verbs in CALLERS.items():
        secret = running.tokens[caller]
        with running.browser() as browser:
            for route, rule in API_ROUTES.items():
                headers = credentials(secret)
                found[caller, route] = read(browser, filled(route), headers)
                expected[caller, route] = route_outcome(verbs, rule)
            signed_in = browser.post("/api/sign-in", json={"token": secret}).status_code == 200
            assert signed_in == (verbs is not None), caller
            for route, rule in ROUTES.items():
                found[caller, route] = read(browser, filled(route), {})
                expected[caller, route] = route_outcome(verbs, rule)
    assert found == expected


# Revocation


def test_what_is_revoked_ends_within_ten_seconds(running: Installation) -> None:
    cluster = running.installed.cluster
    account(cluster, OURS, "leaving", "edit")
    secret = token(cluster, OURS, "leaving", AUDIENCE)
    path, file = f"/{SERVICE}/GetStudy", f"/api/experiments/{OURS}/none/file"
    message = request(path, RPCS["GetStudy"], OURS)
    with running.channel() as channel, running.browser() as browser:

        def outcomes() -> set[str]:
            return {called(channel, path, message, secret), read(browser, file, {})}

        assert browser.post("/api/sign-in", json={"token": secret}).status_code == 200
        eventually(lambda: outcomes() == {ALLOWED})
        remove(cluster, f"{RBAC}/rolebindings/leaving")
        eventually(lambda: outcomes() == {DENIED}, within_s=REVOKED_WITHIN_S)


def test_a_deleted_account_ends_within_ten_seconds(running: Installation) -> None:
    cluster = running.installed.cluster
    account(cluster, OURS, "deleted", "edit")
    secret = token(cluster, OURS, "deleted", AUDIENCE)
    path = f"/{SERVICE}/GetStudy"
    message = request(path, RPCS["GetStudy"], OURS)
    with running.channel() as channel:
        eventually(lambda: called(channel, path, message, secret) == ALLOWED)
        remove(cluster, f"{CORE}/namespaces/{OURS}/serviceaccounts/deleted")
        eventually(
            lambda: called(channel, path, message, secret) == UNKNOWN, within_s=REVOKED_WITHIN_S
        )


def test_a_list_of_nothing_that_one_may_see_names_the_missing_right(running: Installation) -> None:
    headers = {"Authorization": f"Bearer {running.tokens['no-role']}"}
    with running.browser() as browser:
        reply = browser.get("/api/v1/experiments", headers=headers)
        named = browser.get("/api/v1/names", headers=headers)
    assert (reply.status_code, reply.json()["code"]) == (403, "permission_denied")
    assert reply.json()["message"] == (
        f"there are no experiments in the namespaces in which system:serviceaccount:{OURS}:no-role "
        "may list experiments.tuner.dev; to see others, ask for the role tuner-experiments-view"
    )
    assert named.json() == {"names": []}
