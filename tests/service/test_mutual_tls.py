"""Client certificates: other clients are rejected, certificates identify clients,
and both sides can renew theirs.
"""

from __future__ import annotations

import asyncio
import logging
import os
import ssl
import urllib.request
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from suggest.client import AsyncClient, Client
from suggest.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from suggest.server import Protection, ServerOptions
from suggest.study import StudyName
from tests import forked
from tests.certificates import Authority, Certificate, replace
from tests.conditions import eventually
from tests.katib_stubs import SuggestionStub
from tests.service.granted import secret, tokens_file
from tests.service.katib_caller import a_request, an_experiment
from tests.service.running import NAME, SPEC, a_server


class Parties:
    """A server and its clients, with their certificate authorities."""

    def __init__(self, folder: Path) -> None:
        for name in ("server", "clients", "strangers"):
            (folder / name).mkdir()
        self.of_server, self.of_clients = (
            Authority(folder / "server"),
            Authority(folder / "clients"),
        )
        self.strangers = Authority(folder / "strangers")
        self.server = self.of_server.issue("server", "/CN=server", ("localhost",))
        self.alice = self.of_clients.issue("alice", "/CN=alice")
        self.ca = str(self.of_server.own.certificate)

    def protection(self, **more: str) -> Protection:
        return Protection(
            tls_cert=str(self.server.certificate),
            tls_key=str(self.server.key),
            tls_client_ca=str(self.of_clients.own.certificate),
            **more,  # type: ignore[arg-type]
        )

    def client(
        self, address: str, shown: Certificate | None, *, token: str = "", timeout_s: float = 10
    ) -> Client:
        cert, key = (str(shown.certificate), str(shown.key)) if shown else ("", "")
        return Client(
            address, tls_ca=self.ca, tls_cert=cert, tls_key=key, token=token, timeout_s=timeout_s
        )


@pytest.fixture
def parties(tmp_path: Path) -> Parties:
    return Parties(tmp_path)


def test_only_clients_with_a_certificate_are_served_and_known_by_its_name(
    tmp_path: Path, parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    with a_server(tmp_path / "s.db", protection=parties.protection()) as server:
        stranger = parties.strangers.issue("mallory", "/CN=mallory")
        for shown in (None, stranger):
            with (
                parties.client(server.address, shown, timeout_s=0.5) as client,
                pytest.raises(Unavailable),
            ):
                client.list_studies()
        with (
            caplog.at_level(logging.INFO, "suggest.audit"),
            parties.client(server.address, parties.alice) as client,
        ):
            client.create_study(NAME, SPEC, request_id="create")
        assert "who=cert:alice method=CreateStudy" in caplog.text

        async def by_the_loop() -> int:
            cert, key = str(parties.alice.certificate), str(parties.alice.key)
            async with AsyncClient(
                server.address, tls_ca=parties.ca, tls_cert=cert, tls_key=key
            ) as client:
                return len(await client.list_studies())

        assert asyncio.run(by_the_loop()) == 1


def test_katibs_ports_ask_for_a_certificate_and_for_no_token(
    tmp_path: Path, parties: Parties
) -> None:
    tokens = tokens_file(tmp_path / "tokens.yaml", me=("all", ["default"]))
    protection, options = parties.protection(tokens=str(tokens)), ServerOptions(katib=(0, 0))
    with a_server(tmp_path / "s.db", protection=protection, options=options) as server:
        authority = Path(parties.ca).read_bytes()
        key, certificate = parties.alice.key.read_bytes(), parties.alice.certificate.read_bytes()
        codes = []
        for credentials in (
            grpc.ssl_channel_credentials(authority),
            grpc.ssl_channel_credentials(authority, key, certificate),
        ):
            with grpc.secure_channel(server.katib_addresses[1], credentials) as channel:
                call = SuggestionStub(channel).GetSuggestions.future(
                    a_request(an_experiment()), timeout=5
                )
                codes.append(call.code())
    assert codes == [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.OK]


def test_tokens_authorize_clients_with_certificates(tmp_path: Path, parties: Parties) -> None:
    tokens = tokens_file(tmp_path / "tokens.yaml", me=("all", ["default"]))
    with a_server(tmp_path / "s.db", protection=parties.protection(tokens=str(tokens))) as server:
        with (
            parties.client(server.address, parties.alice) as client,
            pytest.raises(Unauthenticated),
        ):
            client.list_studies()
        with parties.client(server.address, parties.alice, token=secret("me")) as client:
            client.create_study(NAME, SPEC, request_id="create")
            with pytest.raises(PermissionDenied):
                client.get_study(StudyName("other", "parabola"))


def test_health_needs_a_client_certificate_too(tmp_path: Path, parties: Parties) -> None:
    authorities = parties.of_server.own.certificate.read_bytes()
    with a_server(tmp_path / "s.db", protection=parties.protection()) as server:
        own = grpc.ssl_channel_credentials(
            authorities, parties.alice.key.read_bytes(), parties.alice.certificate.read_bytes()
        )
        with grpc.secure_channel(server.address, own) as channel:
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=20)
        with (
            grpc.secure_channel(
                server.address, grpc.ssl_channel_credentials(authorities)
            ) as channel,
            pytest.raises(grpc.RpcError),
        ):
            health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=2)


def test_the_ca_of_clients_can_change_while_the_server_runs(
    tmp_path: Path, parties: Parties
) -> None:
    with a_server(tmp_path / "s.db", protection=parties.protection()) as server:
        newcomer = parties.strangers.issue("bob", "/CN=bob")

        def served(shown: Certificate) -> bool:
            with parties.client(server.address, shown, timeout_s=0.5) as client:
                try:
                    client.list_studies()
                except Unavailable:
                    return False
            return True

        eventually(lambda: served(parties.alice))
        assert not served(newcomer)
        beside = tmp_path / "new"
        beside.write_bytes(parties.strangers.own.certificate.read_bytes())
        beside.replace(parties.of_clients.own.certificate)
        eventually(lambda: served(newcomer))
        eventually(lambda: not served(parties.alice))


def test_a_client_uses_its_new_certificate_without_a_restart(
    tmp_path: Path, parties: Parties, caplog: pytest.LogCaptureFixture
) -> None:
    with (
        a_server(tmp_path / "s.db", protection=parties.protection()) as server,
        parties.client(server.address, parties.alice) as client,
        caplog.at_level(logging.INFO, "suggest.audit"),
    ):
        client.create_study(NAME, SPEC, request_id="create")
        replace(parties.alice, parties.of_clients.issue("renewed", "/CN=alice-2"))
        client.delete_study(NAME)
    assert "who=cert:alice method=CreateStudy" in caplog.text
    assert "who=cert:alice-2 method=DeleteStudy" in caplog.text


def test_half_a_pair_and_a_certificate_without_tls_are_refused(parties: Parties) -> None:
    cert, key = str(parties.alice.certificate), str(parties.alice.key)
    with pytest.raises(InvalidArgument, match="TUNER_TLS_CERT is set without TUNER_TLS_KEY"):
        Client("localhost:1", tls_ca=parties.ca, tls_cert=cert)
    with pytest.raises(InvalidArgument, match="a client certificate needs TLS"):
        Client("localhost:1", tls_cert=cert, tls_key=key)


def test_a_file_without_certificates_is_refused_as_ca(tmp_path: Path, parties: Parties) -> None:
    parties.of_clients.own.certificate.write_text("nothing")
    with (
        pytest.raises(InvalidArgument, match=r"ca\.crt: has no certificate in it"),
        a_server(tmp_path / "s.db", protection=parties.protection()),
    ):
        pass


def test_the_command_line_uses_a_client_certificate(tmp_path: Path, parties: Parties) -> None:
    with a_server(tmp_path / "s.db", protection=parties.protection()) as server:
        with parties.client(server.address, parties.alice) as client:
            client.create_study(NAME, SPEC, request_id="create")
        file = tmp_path / "experiment.yaml"
        file.write_text(
            "apiVersion: tuner.dev/v1\nkind: Experiment\nmetadata: {name: mutual}\nspec:\n"
            "  objective: {metric: x, direction: maximize}\n  parameters: {x: {type: float, min: "
            "0, max: 1}}\n"
            "  algorithm: {name: random}\n  budget: {trials: 1}\n"
            "  trial: {command: [sh, -c, 'echo x=0.5', '${x}']}\n"
        )
        command = ["run", str(file), "--server", server.address]
        env = {
            **os.environ,
            "TUNER_STATE_DIR": str(tmp_path / "state"),
            "TUNER_TLS_CA": parties.ca,
            "TUNER_TLS_CERT": str(parties.alice.certificate),
        }
        by_flag = [
            *command,
            "--tls-cert",
            str(parties.alice.certificate),
            "--tls-key",
            str(parties.alice.key),
        ]
        done = forked.run_tuner(by_flag, folder=tmp_path, env=env, within_s=120)
        assert done.returncode == 0, done.stderr
        missing = forked.run_tuner(command, folder=tmp_path, env=env, within_s=120)
        assert missing.returncode == 2, missing.stderr
        assert "TUNER_TLS_CERT is set without TUNER_TLS_KEY" in missing.stderr


def test_metrics_beyond_this_machine_are_encrypted_and_need_no_certificate(
    tmp_path: Path, parties: Parties
) -> None:
    options = ServerOptions(metrics_address="0.0.0.0:0")
    with a_server(tmp_path / "s.db", protection=parties.protection(), options=options) as server:
        context = ssl.create_default_context(cafile=parties.ca)
        url = f"https://localhost:{server.metrics_port}/healthz"
        with urllib.request.urlopen(url, timeout=20, context=context) as reply:
            assert reply.read() == b"ok\n"
