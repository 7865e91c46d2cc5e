"""The ports of the controller: HTTPS for the command line and the page, and gRPC."""

from __future__ import annotations

import ssl

import httpx
import pytest

from controller.kube.client import KubernetesClient
from controller.operator.leader_label import leader_label, mark
from suggest.client import AsyncClient
from suggest.errors import PermissionDenied, Unauthenticated
from suggest.study import StudyName
from tests.kube.operated import NAMESPACE, Installation, experiment, on_a_cluster

PERSON, POD = "token-of-a-person", "token-of-a-pod"


def http(installed: Installation) -> httpx.AsyncClient:
    """Return a client that verifies the controller's own certificate."""
    trusted = ssl.create_default_context(cafile=str(installed.state.root / "tls" / "tls.crt"))
    return httpx.AsyncClient(base_url=f"https://localhost:{installed.http_port}", verify=trusted)


def grpc(installed: Installation, token: str) -> AsyncClient:
    certificate = installed.state.root / "tls" / "tls.crt"
    address = f"localhost:{installed.grpc_port}"
    return AsyncClient(address, token=token, tls_ca=str(certificate))


async def admit(installed: Installation) -> None:
    """Let a person and a pod read one namespace, and wait until the controller serves."""
    installed.api.people = {(PERSON, ""): "ann", (POD, "tuner"): "pod"}
    installed.api.grants = {
        (user, verb, NAMESPACE) for user in ("ann", "pod") for verb in ("get", "list")
    }
    installed.apply(experiment())
    await installed.until_state("succeeded")


@on_a_cluster()
async def test_the_api_knows_who_asks(installed: Installation) -> None:
    await admit(installed)
    async with http(installed) as client:
        for header in ("Authorization", "X-Tuner-Authorization"):
            reply = await client.get("/api/v1/whoami", headers={header: f"Bearer {PERSON}"})
            assert reply.json() == {"name": "ann", "groups": []}


@on_a_cluster()
async def test_the_api_refuses_whom_it_does_not_know(installed: Installation) -> None:
    await admit(installed)
    refused = [{}, {"Authorization": "Bearer x"}, {"Authorization": PERSON}, {"Cookie": PERSON}]
    async with http(installed) as client:
        for headers in refused:
            reply = await client.get("/api/v1/whoami", headers=headers)
            assert (reply.status_code, reply.json()["code"]) == (401, "unauthenticated"), headers


@on_a_cluster()
async def test_a_pod_reads_the_studies_of_its_namespace(installed: Installation) -> None:
    await admit(installed)
    client = grpc(installed, POD)
    studies = await client.study_summaries()
    assert [study.name.namespace for study, _ in studies] == [NAMESPACE]
    with pytest.raises(PermissionDenied, match="pod may not delete"):
        await client.delete_study(studies[0][0].name)
    with pytest.raises(PermissionDenied, match="in the namespace user2"):
        await client.get_study(StudyName("user2", "other"))
    await client.close()


@on_a_cluster()
async def test_grpc_takes_no_token_for_the_api_server(installed: Installation) -> None:
    await admit(installed)
    client = grpc(installed, PERSON)
    with pytest.raises(Unauthenticated, match="--audience tuner"):
        await client.study_summaries()
    await client.close()


@on_a_cluster()
async def test_the_certificate_of_the_controller_outlives_it(installed: Installation) -> None:
    await admit(installed)
    async with http(installed) as before:
        await installed.stop()
        installed.start()
        await installed.until_state("succeeded")
        before.base_url = httpx.URL(f"https://localhost:{installed.http_port}")
        await installed.until(lambda: installed.serves)
        reply = await before.get("/api/v1/whoami", headers={"Authorization": f"Bearer {PERSON}"})
        assert reply.status_code == 200


@on_a_cluster()
async def test_only_the_pod_of_the_leader_is_marked(installed: Installation) -> None:
    labels = {"app.kubernetes.io/name": "tuner-controller"}
    for name in ("one", "two"):
        role = {"tuner.dev/role": "leader"} if name == "two" else {}
        pod = {"metadata": {"name": name, "namespace": "default", "labels": labels | role}}
        installed.api.put("pods", pod)

    def marked() -> list[str]:
        found = installed.api.all("pods", "default")
        return [
            pod["metadata"]["name"]
            for pod in found
            if pod["metadata"]["labels"].get("tuner.dev/role") == "leader"
        ]

    async with (
        await KubernetesClient.connect() as client,
        leader_label(client, "default", "one"),
    ):
        await installed.until(lambda: marked() == ["one"])


@on_a_cluster()
async def test_a_process_without_a_pod_asks_for_its_label_once(installed: Installation) -> None:
    async with await KubernetesClient.connect() as client:
        await mark(client, "default", "absent")
    patched = [path for method, path, _ in installed.api.requests if method == "PATCH"]
    assert sum(path.endswith("/pods/absent") for path in patched) == 1
