"""A page's listening socket refuses connections over its limit, until others have closed."""

from __future__ import annotations

import socket
from contextlib import ExitStack

import pytest

from controller.ui.server import LimitedListener, listen


def test_a_listener_closes_connections_over_its_limit_at_once() -> None:
    with LimitedListener(listen("127.0.0.1", (0,), flag="--ui"), 2) as listener, ExitStack() as opened:

        def connect() -> socket.socket:
            return opened.enter_context(socket.create_connection(listener.getsockname()))

        connect(), connect()
        accepted = [opened.enter_context(listener.accept()[0]) for _ in range(2)]
        refused = connect()
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
        assert refused.recv(1) == b""
        for _ in range(2):
            accepted[0].close()
        connect()
        listener.accept()[0].close()
        connect(), connect()
        opened.enter_context(listener.accept()[0])
        with pytest.raises(ConnectionAbortedError):
            listener.accept()
