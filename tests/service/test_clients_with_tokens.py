"""Clients with tokens: over TLS, from the environment, after a rotation,
and never unencrypted to another machine.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from suggest.client import AsyncClient, Client
from suggest.errors import InvalidArgument, PermissionDenied, Unauthenticated, Unavailable
from suggest.server import Protection
from suggest.study import StudyName
from tests.certificates import Authority
from tests.conditions import eventually
from tests.service.granted import secret, tokens_file
from tests.service.running import NAME, SPEC, a_server

FAR = "tuner.example:7117"


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def protection(tmp_path_factory: pytest.TempPathFactory, authority: Authority) -> Protection:
    pair = authority.issue("server", "/CN=server", ("localhost",))
    file = tokens_file(
        tmp_path_factory.mktemp("tokens") / "tokens.yaml",
        me=("all", ["default"]),
        reader=(["read"], "all"),
    )
    return Protection(tokens=str(file), tls_cert=str(pair.certificate), tls_key=str(pair.key))


def test_both_clients_send_a_token_over_tls(
    tmp_path: Path, authority: Authority, protection: Protection
) -> None:
    ca = str(authority.own.certificate)
    with a_server(tmp_path / "s.db", protection=protection) as server:
        with Client(server.address, token=secret("me"), tls_ca=ca) as client:
            client.create_study(NAME, SPEC, request_id="create")
            with pytest.raises(PermissionDenied, match="me is not valid in the namespace other"):
                client.get_study(StudyName("other", "parabola"))

        async def by_the_loop() -> int:
            async with AsyncClient(server.address, token=secret("me"), tls_ca=ca) as client:
                return len(await client.list_studies())

        assert asyncio.run(by_the_loop()) == 1
        with Client(server.address, token=secret("reader"), tls_ca=ca) as client:
            assert client.get_study(NAME).name == NAME
            with pytest.raises(
                PermissionDenied, match="reader lacks the verb manage, which DeleteStudy needs"
            ):
                client.delete_study(NAME)
        with (
            Client(server.address, token="none-that-it-knows", tls_ca=ca) as client,
            pytest.raises(Unauthenticated),
        ):
            client.get_study(NAME)


def test_credentials_default_to_the_environment(
    tmp_path: Path, authority: Authority, protection: Protection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNER_TLS_CA", str(authority.own.certificate))
    file = tmp_path / "token"
    with a_server(tmp_path / "s.db", protection=protection) as server:
        with (
            Client(server.address) as client,
            pytest.raises(Unauthenticated, match="TUNER_TOKEN_FILE"),
        ):
            client.list_studies()
        file.write_text(secret("me") + "\n")
        monkeypatch.setenv("TUNER_TOKEN_FILE", str(file))
        with Client(server.address) as client:
            assert client.list_studies() == []
            # The next call uses the new token in the file.
            file.write_text("a-token-that-was-withdrawn")
            with pytest.raises(Unauthenticated):
                client.list_studies()
        monkeypatch.setenv("TUNER_TOKEN", secret("me"))
        with Client(server.address) as client:
            assert client.list_studies() == []


def test_a_server_with_an_untrusted_certificate_gets_no_call(
    tmp_path: Path, protection: Protection
) -> None:
    stranger = Authority(tmp_path)
    with (
        a_server(tmp_path / "s.db", protection=protection) as server,
        Client(
            server.address, token=secret("me"), tls_ca=str(stranger.own.certificate), timeout_s=0.5
        ) as client,
        pytest.raises(Unavailable, match="certificate"),
    ):
        client.list_studies()


def test_a_token_is_never_sent_unencrypted_to_another_machine() -> None:
    for kind in (Client, AsyncClient):
        with pytest.raises(
            InvalidArgument,
            match=r"would be sent to tuner\.example:7117 unencrypted; .*TUNER_TLS_CA",
        ):
            kind(FAR, token=secret("me"))


def test_a_token_is_not_sent_unencrypted_to_a_named_owner(folder: Path) -> None:
    tokens = tokens_file(folder / "tokens.yaml", me=("all", "all"))
    protection = Protection(tokens=str(tokens))
    first = a_server(folder / "s.db", protection=protection, advertise=FAR)
    with first as owner, a_server(folder / "s.db", protection=protection) as other:
        with Client(owner.address, token=secret("me")) as client:
            client.create_study(NAME, SPEC, request_id="create")
            client.suggest(NAME, 1, client_id="c", request_id="1")
        with (
            Client(other.address, token=secret("me")) as client,
            pytest.raises(
                InvalidArgument, match=r"would be sent to tuner\.example:7117 unencrypted"
            ),
        ):
            client.suggest(NAME, 1, client_id="c", request_id="2")


def test_a_token_is_sent_to_the_owner_of_a_study(
    folder: Path, authority: Authority, protection: Protection
) -> None:
    def client(address: str) -> Client:
        return Client(address, token=secret("me"), tls_ca=str(authority.own.certificate))

    with (
        a_server(folder / "s.db", protection=protection) as owner,
        a_server(folder / "s.db", protection=protection) as b,
    ):
        with client(owner.address) as first:
            first.create_study(NAME, SPEC, request_id="create")
            first.suggest(NAME, 1, client_id="c", request_id="1")
        with client(b.address) as second:
            assert [
                t.number for t in second.suggest(NAME, 1, client_id="c", request_id="2").trials
            ] == [1]


def test_a_socket_needs_no_token_and_gets_none(folder: Path) -> None:
    # An invalid token does not matter where none is needed.
    with (
        a_server(folder / "s.db", f"unix:{folder}/s.sock") as server,
        Client(server.address, token_file=str(folder / "missing")) as client,
    ):
        assert client.list_studies() == []


@pytest.mark.parametrize("content", ["", "two words", "füür"])
def test_an_error_about_a_bad_token_does_not_show_it(tmp_path: Path, content: str) -> None:
    file = tmp_path / "token"
    file.write_text(content)
    with pytest.raises(InvalidArgument) as raised:
        Client("localhost:1", token_file=str(file))
    assert (
        str(raised.value) == f"{file}: has no token in it; write one line of ASCII without spaces"
    )


def test_a_token_is_in_no_repr() -> None:
    client = Client("localhost:1", token=secret("me"))
    assert secret("me") not in repr(vars(client))


def test_tokens_change_while_the_server_runs_and_a_bad_file_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tokens_file(tmp_path / "tokens.yaml", me=("all", "all"))
    with (
        a_server(tmp_path / "s.db", protection=Protection(tokens=str(file))) as server,
        Client(server.address, token=secret("me")) as mine,
        Client(server.address, token=secret("new")) as new,
    ):

        def refused(client: Client) -> bool:
            try:
                client.list_studies()
            except Unauthenticated:
                return True
            return False

        assert (refused(mine), refused(new)) == (False, True)
        file.write_text("tokens: {me: {sha256: ")
        eventually(lambda: "cannot be used" in caplog.text)
        assert (refused(mine), refused(new)) == (False, True)
        tokens_file(file, new=("all", "all"))
        eventually(lambda: not refused(new))
        assert refused(mine)
    assert secret("me") not in caplog.text
