"""Whose a token or a certificate is, and what its owner may: as a real API server says it, asked
with the rights of the chart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import pytest

from controller.app.controller_api import AUDIENCE
from controller.kube.assertion import signed
from controller.kube.client import KubernetesClient
from controller.operator.access import KEPT_S, Access, Caller
from suggest.errors import PermissionDenied, Unauthenticated, Unavailable
from tests.cluster.api import CORE, Object
from tests.cluster.controlplane import ControlPlane
from tests.cluster.installed import ROOT, Installed

RBAC = "/apis/rbac.authorization.k8s.io/v1"
ACCOUNT = "reader"
Result = TypeVar("Result")


@pytest.fixture
def installed(
    level_b: ControlPlane, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Installed]:
    installation = Installed(level_b, tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(installation.kubeconfig))
    yield installation
    installation.close()


def account(installed: Installed, namespace: str) -> None:
    body: Object = {"metadata": {"name": ACCOUNT}}
    installed.cluster.api().post(f"{CORE}/namespaces/{namespace}/serviceaccounts", body)


def token(installed: Installed, namespace: str, *audiences: str) -> str:
    words = [word for audience in audiences for word in ("--audience", audience)]
    return installed.kubectl("create", "token", ACCOUNT, "-n", namespace, *words).strip()


def bind(installed: Installed, namespace: str, role: str, user: str) -> str:
    """Bind a ClusterRole to a user, and return the name of the binding."""
    words = ("--clusterrole", role, "--user", user, "-n", namespace)
    installed.kubectl("create", "rolebinding", role, *words)
    return role


def asked(
    ask: Callable[[Access], Awaitable[Result]], clock: Callable[[], float] = lambda: 0.0
) -> Result:
    """Return what the controller is told. clock: in seconds, of how long answers are kept."""

    async def main() -> Result:
        async with await KubernetesClient.connect() as client:
            return await ask(Access(client, clock=clock))

    return asyncio.run(main())


def name_of(namespace: str) -> str:
    return f"system:serviceaccount:{namespace}:{ACCOUNT}"


def test_a_token_for_the_controller_names_its_account(installed: Installed, namespace: str) -> None:
    account(installed, namespace)
    own = token(installed, namespace, AUDIENCE)
    caller = asked(lambda access: access.by_token(own))
    assert caller.name == name_of(namespace)
    assert f"system:serviceaccounts:{namespace}" in caller.groups
    assert caller.uid


def test_a_token_for_the_api_server_is_accepted_only_where_people_sign_in(
    installed: Installed, namespace: str
) -> None:
    account(installed, namespace)
    usual = token(installed, namespace)
    of_person = asked(lambda access: access.by_token(usual, of_api_server=True))
    assert of_person.name == name_of(namespace)
    with pytest.raises(Unauthenticated, match="--audience tuner"):
        asked(lambda access: access.by_token(usual))


@pytest.mark.parametrize("of_api_server", [False, True])
@pytest.mark.parametrize("wrong", ["", "x", "a.b.c", "token-\udcff", "x" * 20_000])
def test_what_is_no_token_is_refused(
    installed: Installed, wrong: str, *, of_api_server: bool
) -> None:
    with pytest.raises(Unauthenticated):
        asked(lambda access: access.by_token(wrong, of_api_server=of_api_server))


@pytest.mark.parametrize("of_api_server", [False, True])
def test_a_token_for_others_is_refused(
    installed: Installed, namespace: str, *, of_api_server: bool
) -> None:
    account(installed, namespace)
    for_vault = token(installed, namespace, "vault")
    with pytest.raises(Unauthenticated):
        asked(lambda access: access.by_token(for_vault, of_api_server=of_api_server))


def test_a_client_certificate_names_its_user(installed: Installed) -> None:
    issued = installed.cluster.authority.issue("person", "/O=vision/CN=person")
    statement = signed(
        issued.certificate.read_bytes(),
        issued.key.read_bytes(),
        audience=AUDIENCE,
        now=datetime.now(UTC),
    )
    caller = asked(lambda access: access.by_certificate(statement))
    assert caller == Caller("person", groups=("vision", "system:authenticated"))


def test_the_roles_say_who_may_what(installed: Installed, namespace: str) -> None:
    bind(installed, namespace, "tuner-experiments-view", "viewer")
    bind(installed, namespace, "edit", "editor")
    viewer, editor, nobody = Caller("viewer"), Caller("editor"), Caller("nobody")
    expected = {
        (viewer, "get", namespace): True,
        (viewer, "delete", namespace): False,
        (viewer, "get", "default"): False,
        (viewer, "list", None): False,
        (editor, "get", namespace): True,
        (editor, "delete", namespace): True,
        (editor, "delete", "default"): False,
        (nobody, "get", namespace): False,
        (Caller("root", groups=("system:masters",)), "delete", None): True,
    }

    async def ask(access: Access) -> dict[tuple[Caller, str, str | None], bool]:
        return {question: await access.may(*question) for question in expected}

    assert asked(ask) == expected


def test_a_refusal_names_the_role_to_ask_for(installed: Installed, namespace: str) -> None:
    with pytest.raises(PermissionDenied) as refused:
        asked(lambda access: access.check(Caller("viewer"), "delete", namespace))
    assert str(refused.value) == (
        f"viewer may not delete experiments.tuner.dev in the namespace {namespace}; ask for the "
        "role tuner-experiments-edit"
    )


def test_a_right_that_is_revoked_has_no_effect_after_a_few_seconds(
    installed: Installed, namespace: str
) -> None:
    binding = bind(installed, namespace, "tuner-experiments-view", "leaver")
    now_s = 0.0

    async def ask(access: Access) -> list[bool]:
        nonlocal now_s
        answers = [await access.may(Caller("leaver"), "get", namespace)]
        installed.kubectl("delete", "rolebinding", binding, "-n", namespace)
        answers.append(await access.may(Caller("leaver"), "get", namespace))
        now_s = KEPT_S
        while await access.may(Caller("leaver"), "get", namespace):
            now_s += KEPT_S  # the authorizer of the API server sees the change a moment later
        return [*answers, await access.may(Caller("leaver"), "get", namespace)]

    assert asked(ask, lambda: now_s) == [True, True, False]


def test_a_deleted_account_has_no_effect_even_while_the_api_server_accepts_its_token(
    installed: Installed, namespace: str
) -> None:
    account(installed, namespace)
    own = token(installed, namespace, AUDIENCE)
    now_s = 0.0

    def review() -> bool:
        body = {"spec": {"token": own, "audiences": [AUDIENCE]}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        return bool(installed.cluster.api().post(path, body)["status"].get("authenticated"))

    async def ask(access: Access) -> bool:
        nonlocal now_s
        await access.by_token(own)
        installed.kubectl("delete", "serviceaccount", ACCOUNT, "-n", namespace)
        now_s = KEPT_S
        with pytest.raises(Unauthenticated):
            await access.by_token(own)
        return await asyncio.to_thread(review)

    assert asked(ask, lambda: now_s), "the API server has kept that the token is valid"


def test_a_new_account_of_the_name_does_not_revive_an_earlier_token(
    installed: Installed, namespace: str
) -> None:
    account(installed, namespace)
    own = token(installed, namespace, AUDIENCE)
    now_s = 0.0

    async def ask(access: Access) -> str:
        nonlocal now_s
        await access.by_token(own)
        installed.kubectl("delete", "serviceaccount", ACCOUNT, "-n", namespace)
        account(installed, namespace)
        now_s = KEPT_S
        with pytest.raises(Unauthenticated) as refused:
            await access.by_token(own)
        return str(refused.value)

    assert "has expired" in asked(ask, lambda: now_s)


def test_equal_questions_at_once_are_asked_once(installed: Installed, namespace: str) -> None:
    account(installed, namespace)
    own = token(installed, namespace, AUDIENCE)

    async def main() -> int:
        async with await KubernetesClient.connect() as client:
            asked_times = 0
            create = client.create

            async def counted(*arguments: object, **settings: object) -> Object:
                nonlocal asked_times
                asked_times += 1
                return await create(*arguments, **settings)  # type: ignore[arg-type]

            client.create = counted  # type: ignore[method-assign]
            access = Access(client)
            await asyncio.gather(*(access.by_token(own) for _ in range(50)))
            return asked_times

    assert asyncio.run(main()) == 1


def test_without_an_api_server_nobody_is_known(
    installed: Installed, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = installed.kubeconfig.read_text().replace(installed.cluster.server, "https://127.0.0.1:1")
    elsewhere = installed.kubeconfig.with_name("elsewhere.kubeconfig")
    elsewhere.write_text(text)
    monkeypatch.setenv("KUBECONFIG", str(elsewhere))
    with pytest.raises(Unavailable, match="does not say who may do what"):
        asked(lambda access: access.by_token("some-token"))


def test_the_commands_of_the_page_for_tenants_make_a_token_that_reads(
    installed: Installed, namespace: str
) -> None:
    text = (ROOT / "docs" / "tenants.md").read_text(encoding="utf-8")
    section = text.partition("## Open the page")[2].partition("## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("kubectl create ")]
    for line in lines:
        words = line.replace("vision", namespace).split()[1:]
        printed = installed.kubectl(*words).strip()

    async def may_read(access: Access) -> bool:
        return await access.may(await access.by_token(printed), "get", namespace)

    assert len(lines) == 3
    assert asked(may_read)
