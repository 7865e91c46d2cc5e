"""What a trial hears of the pruning rule, and what it does if it hears nothing."""

import socket
import threading
from pathlib import Path

import pytest

from tuner import asking


def _asked() -> bool:
    return asking.is_advised_to_stop(trial=3, attempt=1)


def test_without_a_socket_no_rule_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(asking.SOCKET, raising=False)
    assert not _asked()


@pytest.mark.parametrize(
    ("answer", "advised"),
    [
        (b'{"stop": true}\n', True),
        (b'{"stop": false}\n', False),
        (b'{"refused": "not a request for a parameter"}\n', False),
        (b"", False),
    ],
    ids=["stops", "goes on", "an older controller", "a controller that ends"],
)
def test_a_trial_stops_only_if_the_controller_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, answer: bytes, advised: bool
) -> None:
    path, file = tmp_path / "socket", tmp_path / "file"
    file.write_text(str(path))
    monkeypatch.setenv(asking.SOCKET, str(file))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()

        def reply() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1 << 16)
                connection.sendall(answer)

        controller = threading.Thread(target=reply)
        controller.start()
        assert _asked() is advised
        controller.join()


def test_a_trial_trains_on_while_its_controller_is_frozen_or_gone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, file = tmp_path / "socket", tmp_path / "file"
    monkeypatch.setenv(asking.SOCKET, str(file))
    assert not _asked()
    file.write_text(str(path))
    assert not _asked()
    monkeypatch.setattr(asking, "_JUDGED_WITHIN_S", 0.05)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen()
        assert not _asked()
