"""A page's listening socket refuses connections over its limit, until others have closed."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from controller.ui.server import LimitedListener, listen

ELSEWHERE = ("127.0.0.9", 0)


def test_a_listener_closes_connections_over_its_limit_at_once() -> None:
    with (
        LimitedListener(listen("127.0.0.1", (0,), flag="--ui"), 2) as listener,
        ExitStack() as opened,
    ):

        def connect(source: tuple[str, int] | None = None) -> socket.socket:
            return opened.enter_context(
                socket.create_connection(listener.getsockname(), source_address=source)
            )

        connect(), connect(ELSEWHERE)
        accepted = [opened.enter_context(listener.accept()[0]) for _ in range(2)]
        refused = connect(("127.0.0.8", 0))
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert refused.recv(1) == b""
        for each in accepted:
            each.close()
        connect()
        listener.accept()[0].close()
        connect()
        opened.enter_context(listener.accept()[0])


def test_a_host_has_at_most_half_of_the_connections() -> None:
    with (
        LimitedListener(listen("127.0.0.1", (0,), flag="--ui"), 4) as listener,
        ExitStack() as opened,
    ):

        def accept(source: tuple[str, int] | None = None) -> None:
            opened.enter_context(
                socket.create_connection(listener.getsockname(), source_address=source)
            )
            opened.enter_context(listener.accept()[0])

        accept(), accept()
        with pytest.raises(ConnectionAbortedError):
            accept()
        accept(ELSEWHERE)
