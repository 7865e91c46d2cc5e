"""Clients wait for a service until their timeout, unless waiting cannot help."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from suggest.client import AsyncClient, Client
from suggest.client.retries import LONGEST_PAUSE_S, Attempts
from suggest.errors import InvalidArgument, NotFound, Unauthenticated, Unavailable
from suggest.grpc_status import status_of
from suggest.server import Protection
from tests.certificates import Authority
from tests.conditions import eventually
from tests.service.granted import secret, tokens_file
from tests.service.running import NAME, SPEC, a_process, a_server

HOUR_S = 3600.0  # a timeout that no test reaches, so an error that is raised came at once


class Failure(grpc.RpcError):
    """The error that gRPC itself raises without a connection."""

    def __init__(
        self, code: grpc.StatusCode, details: str, metadata: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        self._status = code, details, metadata

    def code(self) -> grpc.StatusCode:
        return self._status[0]

    def details(self) -> str:
        return self._status[1]

    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        return self._status[2]


REFUSED = Failure(
    grpc.StatusCode.UNAVAILABLE, "failed to connect to all addresses: Connection refused"
)
DROPPED = Failure(grpc.StatusCode.UNAVAILABLE, "Socket closed")
UNKNOWN_HOST = Failure(
    grpc.StatusCode.UNAVAILABLE, "errors resolving h:1: [field:hostname lookup error:not found]"
)
NO_TRUST = Failure(
    grpc.StatusCode.UNAVAILABLE, "failed to connect: CERTIFICATE_VERIFY_FAILED: no issuer"
)


def test_only_the_deadline_ends_attempts_to_reach_an_absent_service() -> None:
    attempts = Attempts(["localhost:1"], HOUR_S)
    pauses = [attempts.pause_or_raise(REFUSED) for _ in range(200)]
    assert all(0 < pause <= LONGEST_PAUSE_S for pause in pauses)
    assert len(set(pauses)) > 100, (
        "with jitter: clients that lost a server together do not come back together"
    )


def test_each_of_several_addresses_is_tried_until_the_deadline() -> None:
    attempts = Attempts(["a:1", "b:1"], HOUR_S)
    tried = []
    for _ in range(20):
        tried.append(attempts.address)
        attempts.pause_or_raise(REFUSED)
    assert tried == ["a:1", "b:1"] * 10


def test_with_an_untrusted_address_the_others_are_still_tried() -> None:
    attempts = Attempts(["a:1", "b:1"], HOUR_S)
    attempts.pause_or_raise(NO_TRUST)
    attempts.pause_or_raise(REFUSED)
    attempts.pause_or_raise(NO_TRUST)
    assert attempts.address == "b:1"
    with pytest.raises(Unavailable, match="do not agree on TLS"):
        attempts.pause_or_raise(NO_TRUST)


def test_only_a_lost_connection_leaves_a_call_uncertain() -> None:
    attempts = Attempts(["a:1", "b:1"], HOUR_S)
    for failure in (REFUSED, UNKNOWN_HOST, NO_TRUST):
        attempts.pause_or_raise(failure)
        assert not attempts.is_uncertain
    attempts.pause_or_raise(DROPPED)
    assert attempts.is_uncertain


def test_deleting_what_never_existed_fails_also_after_a_refused_connection(folder: Path) -> None:
    with (
        a_server(folder / "s.db") as server,
        Client(f"unix:{folder}/absent.sock,{server.address}") as client,
        pytest.raises(NotFound),
    ):
        client.delete_study(NAME)


def test_a_failed_attempt_leaves_no_channel_to_the_garbage_collector(folder: Path) -> None:
    async def call(address: str) -> list[object]:
        async with AsyncClient(f"unix:{folder}/absent.sock,{address}") as client:
            with suppress(NotFound):
                await client.get_study(NAME)
        del client
        # isinstance would ask objects of torch for their class, and they warn.
        return [each for each in gc.get_objects() if issubclass(type(each), grpc.aio.Channel)]

    with a_server(folder / "s.db") as server:
        gc.collect()
        gc.disable()
        try:
            assert asyncio.run(call(server.address)) == []
        finally:
            gc.enable()


def test_final_errors_are_raised_at_once() -> None:
    for error, code in (
        (InvalidArgument([]), grpc.StatusCode.INVALID_ARGUMENT),
        (Unauthenticated("who are you"), grpc.StatusCode.UNAUTHENTICATED),
    ):
        with pytest.raises(type(error)):
            Attempts(["localhost:1"], HOUR_S).pause_or_raise(Failure(code, *status_of(error)))


def test_a_call_during_an_outage_is_answered_when_the_server_is_back(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"unix:{folder}/s.sock"
    with a_process(folder / "s.db", address), Client(address) as client:
        client.create_study(NAME, SPEC, request_id="create")
    with Client(address) as client, ThreadPoolExecutor(1) as pool, caplog.at_level(logging.WARNING):
        asked = pool.submit(client.get_study, NAME)
        eventually(
            lambda: f"no suggestion service answers at {address}; retrying for" in caplog.text
        )
        with a_process(folder / "s.db", address):
            assert asked.result(60).name == NAME


@pytest.mark.parametrize(
    "address", ["localhost:1", "no-such-host.invalid:7117", "unix:/tmp/tuner-no-such.sock"]
)
def test_an_address_without_a_server_gives_a_clear_error(address: str) -> None:
    with Client(address, timeout_s=1.5) as client, pytest.raises(Unavailable) as raised:
        client.list_studies()
    assert str(raised.value).startswith(
        f"no suggestion service answers at {address}, tried for 1.5 s; check that"
    )


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


def protected(folder: Path, authority: Authority, name: str) -> Protection:
    pair = authority.issue(name, "/CN=server", (name,))
    tokens = tokens_file(folder / "tokens.yaml", me=("all", ["default"]))
    return Protection(tokens=str(tokens), tls_cert=str(pair.certificate), tls_key=str(pair.key))


def test_an_untrusted_server_is_reported_at_once(folder: Path, authority: Authority) -> None:
    stranger = Authority(folder)
    with a_server(folder / "s.db", protection=protected(folder, authority, "localhost")) as server:
        for ca, address in (
            (stranger.own.certificate, server.address),
            (authority.own.certificate, server.address.replace("localhost", "127.0.0.1")),
        ):
            with (
                Client(address, token=secret("me"), tls_ca=str(ca), timeout_s=HOUR_S) as client,
                pytest.raises(
                    Unavailable, match=f"no connection to {address}: client and server do not agree"
                ),
            ):
                client.list_studies()


def test_a_server_without_tls_is_reported_at_once(folder: Path, authority: Authority) -> None:
    ca = str(authority.own.certificate)
    with (
        a_server(folder / "s.db") as server,
        Client(server.address, tls_ca=ca, timeout_s=HOUR_S) as client,
        pytest.raises(Unavailable, match="or omit it if the server does not use TLS"),
    ):
        client.list_studies()


@contextmanager
def slow_to_connect(to: str, *, after_s: float) -> Iterator[str]:
    """An address that accepts connections at once and forwards them after a while."""
    host, _, port = to.rpartition(":")
    over = threading.Event()

    def carry(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def serve(near: socket.socket) -> None:
        with near, suppress(OSError):
            if not over.wait(after_s):
                with socket.create_connection((host, int(port))) as far:
                    back = threading.Thread(target=carry, args=(far, near))
                    back.start()
                    carry(near, far)
                    back.join()

    def listen(listening: socket.socket) -> None:
        threads: list[threading.Thread] = []
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                threads.append(threading.Thread(target=serve, args=(near,)))
                threads[-1].start()
        for thread in threads:
            thread.join()

    with socket.create_server(("localhost", 0)) as listening:
        accepting = threading.Thread(target=listen, args=(listening,))
        accepting.start()
        try:
            yield f"localhost:{listening.getsockname()[1]}"
        finally:
            over.set()
            listening.shutdown(socket.SHUT_RDWR)
            accepting.join()


def test_a_handshake_may_take_longer_than_the_longest_pause(folder: Path) -> None:
    """This happens on a busy machine."""
    with (
        a_server(folder / "s.db") as server,
        slow_to_connect(server.address, after_s=2 * LONGEST_PAUSE_S) as address,
        Client(address) as client,
    ):
        assert client.list_studies() == []
