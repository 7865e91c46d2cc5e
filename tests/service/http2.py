"""A minimal HTTP/2 client for attacks on a gRPC server, which client libraries do not allow."""

from __future__ import annotations

import socket
import struct
from collections.abc import Sequence

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE = 0, 1, 3, 4, 6, 8
END_STREAM, END_HEADERS, ACK = 1, 4, 1
LARGEST_WINDOW = 2**31 - 1
CANCEL = 8
_FRAME = 16 << 10


class RawConnection:
    """One connection, which reads only on request.

    `window` is how much the server may send on each stream.
    """

    def __init__(
        self, address: str, *, window: int = 65535, timeout_s: float = 20.0, source: str = ""
    ) -> None:
        """`source` is the local address, "" for any."""
        host, _, port = address.rpartition(":")
        self.socket = socket.create_connection(
            (host, int(port)), timeout=timeout_s, source_address=(source, 0) if source else None
        )
        self._next = 1
        self._window = 65535  # how much may be sent on the connection
        self._windows: dict[int, int] = {}  # how much may be sent on each stream
        self._initial = 65535
        self._read = b""
        self._ended: set[int] = set()  # streams
        settings = struct.pack("!HI", 4, window)
        self.socket.sendall(PREFACE + _frame(SETTINGS, 0, 0, settings))
        if window > 65535:
            self.socket.sendall(_frame(WINDOW_UPDATE, 0, 0, struct.pack("!I", window - 65535)))

    def open(self, path: str, metadata: Sequence[tuple[str, str]] = ()) -> int:
        """Open a stream for a call of this method and return its number.

        The request has still to be sent.
        """
        stream, self._next = self._next, self._next + 2
        headers = [
            (":method", "POST"),
            (":scheme", "http"),
            (":path", path),
            (":authority", "server"),
            ("content-type", "application/grpc"),
            ("te", "trailers"),
            *metadata,
        ]
        self.socket.sendall(
            _frame(HEADERS, END_HEADERS, stream, b"".join(_literal(*each) for each in headers))
        )
        self._windows[stream] = self._initial
        return stream

    def request(self, path: str, message: bytes, metadata: Sequence[tuple[str, str]] = ()) -> None:
        """Send a complete call that is small enough for any window."""
        stream = self.open(path, metadata)
        self.socket.sendall(
            _frame(DATA, END_STREAM, stream, struct.pack("!BI", 0, len(message)) + message)
        )

    def reset(self, stream: int) -> None:
        """Cancel a call. It no longer counts as one of the connection's concurrent streams."""
        self.socket.sendall(_frame(RST_STREAM, 0, stream, struct.pack("!I", CANCEL)))

    def end(self, stream: int) -> None:
        """End the request of a call."""
        self.socket.sendall(_frame(DATA, END_STREAM, stream, b""))

    def ended(self, stream: int) -> bool:
        """Return whether the server has ended the call, as far as its frames were read."""
        return stream in self._ended

    def send(self, stream: int, content: bytes | memoryview) -> int:
        """Send as many bytes as the windows allow now, and return their number."""
        sent = 0
        while sent < len(content):
            room = min(self._window, self._windows.get(stream, 0), _FRAME, len(content) - sent)
            if room <= 0:
                break
            self.socket.sendall(_frame(DATA, 0, stream, content[sent : sent + room]))
            self._window -= room
            self._windows[stream] -= room
            sent += room
        return sent

    def look(self, within_s: float) -> bool:
        """Read what has arrived and update the windows.

        Return False if the server has closed the connection.
        """
        self.socket.settimeout(within_s)
        try:
            got = self.socket.recv(1 << 20)
        except TimeoutError:
            return True
        except OSError:
            return False
        finally:
            self.socket.settimeout(20.0)
        if not got:
            return False
        self._read += got
        while len(self._read) >= 9:
            length = int.from_bytes(self._read[:3])
            if len(self._read) < 9 + length:
                break
            kind, flags = self._read[3], self._read[4]
            stream = int.from_bytes(self._read[5:9])
            payload, self._read = self._read[9 : 9 + length], self._read[9 + length :]
            self._take(kind, flags, stream, payload)
        return True

    def close(self) -> None:
        self.socket.close()

    def _take(self, kind: int, flags: int, stream: int, payload: bytes) -> None:
        if kind == RST_STREAM or (kind in (DATA, HEADERS) and flags & END_STREAM):
            self._ended.add(stream)
        if kind == WINDOW_UPDATE:
            (more,) = struct.unpack("!I", payload)
            if stream:
                self._windows[stream] = self._windows.get(stream, 0) + more
            else:
                self._window += more
        elif kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack_from("!HI", payload, at)
                if name == 4:
                    self._initial = value
            self.socket.sendall(_frame(SETTINGS, ACK, 0, b""))
        elif kind == PING and not flags & ACK:
            self.socket.sendall(_frame(PING, ACK, 0, payload))


def _frame(kind: int, flags: int, stream: int, payload: bytes | memoryview) -> bytes:
    return b"".join((len(payload).to_bytes(3), bytes((kind, flags)), stream.to_bytes(4), payload))


def _literal(name: str, value: str) -> bytes:
    """Encode a header without compression."""
    return b"\x00" + _text(name) + _text(value)


def _text(text: str) -> bytes:
    data = text.encode()
    if len(data) < 127:
        return bytes((len(data),)) + data
    rest, size = len(data) - 127, bytearray((127,))
    while rest >= 128:
        size.append(rest % 128 + 128)
        rest //= 128
    return bytes((*size, rest)) + data
