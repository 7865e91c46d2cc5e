"""The body of an HTTP answer: what it carries, out of what comes after its head. Pure.

h11 reads bodies, too, but takes 4 µs for a chunk: a log has one for each line.
"""

from __future__ import annotations

import re
import zlib
from typing import Protocol

_LINE_BYTES = 1 << 14  # of a chunk's size, and of a whole trailer
_GUNZIPPED_BYTES = 1 << 16
_CHUNK_SIZE = re.compile(rb"([0-9A-Fa-f]{1,15})[ \t]*(?:;[^\r\n]*)?\r\n")
_GZIP = 16 + zlib.MAX_WBITS


class Body(Protocol):
    """`ended`: all of it has been taken; `excess`: and more. Raises ValueError for what is no such body."""

    ended: bool
    excess: bool

    def take(self, data: bytes) -> bytes:
        """What that carries, which may be nothing."""

    def end(self) -> None:
        """The connection has ended."""


def body_of(status: int, transfer_encoding: str | None, content_length: str | None) -> Body:
    """Of an answer with these headers, which h11 has checked (RFC 9112, 6.3)."""
    if status in (204, 304):
        return _Sized(0)
    if transfer_encoding is not None:
        return _Chunked()
    return UntilTheEnd() if content_length is None else _Sized(int(content_length))


class _Sized:
    def __init__(self, size: int) -> None:
        self._left = size
        self.ended = size == 0
        self.excess = False

    def take(self, data: bytes) -> bytes:
        found = data if len(data) <= self._left else data[: self._left]
        self._left -= len(found)
        self.ended = self._left == 0
        self.excess = len(found) < len(data)
        return found

    def end(self) -> None:
        raise ValueError(f"the connection ended {self._left} bytes before the end of the answer")


class UntilTheEnd:
    """As long as the connection."""

    def __init__(self) -> None:
        self.ended = self.excess = False

    def take(self, data: bytes) -> bytes:
        return data

    def end(self) -> None:
        self.ended = True


class _Chunked:
    def __init__(self) -> None:
        self._rest = b""  # the beginning of a line
        self._left = 0  # of a chunk that has begun, with the CRLF after it
        self._trailer: int | None = None  # its bytes so far, after the last chunk
        self.ended = self.excess = False

    def take(self, data: bytes) -> bytes:
        if self._rest and b"\n" not in data:  # not searched again for each byte that comes
            return self._keep(self._rest + data)
        data, self._rest = self._rest + data, b""
        found: list[bytes] = []
        at = self._continued(data, found)
        while not self._left and self._trailer is None and (line := _CHUNK_SIZE.match(data, at)):
            start, size = line.end(), int(line[1], 16)
            at = start + size
            if size and data.startswith(b"\r\n", at):  # all of it is here, which is so for nearly all
                found.append(data[start:at])
                at += 2
            elif size:
                self._left = size + 2
                at = start + self._continued(data[start:], found)
            else:
                self._trailer = 0
        if self._trailer is not None:
            at = self._end_in(data, at, self._trailer)
        elif not self._left and b"\n" in data[at:]:
            raise ValueError(f"expected the size of a chunk, got {data[at : at + 40]!r}")
        if not self.ended:
            self._keep(data[at:])
        return found[0] if len(found) == 1 else b"".join(found)

    def _keep(self, rest: bytes) -> bytes:
        if len(rest) > _LINE_BYTES:
            raise ValueError("a line between the chunks of the answer has no end")
        self._rest = rest
        return b""

    def _continued(self, data: bytes, found: list[bytes]) -> int:
        """Takes the chunk that has begun; how many bytes of data that was."""
        inside = max(0, self._left - 2)
        if inside and data:
            found.append(data[:inside])
        at = min(inside, len(data))
        self._left -= at
        if 0 < self._left <= 2 and at < len(data):
            mark = data[at : at + self._left]
            if mark != b"\r\n"[2 - self._left :][: len(mark)]:
                raise ValueError("a chunk of the answer is longer than its size")
            at += len(mark)
            self._left -= len(mark)
        return at

    def _end_in(self, data: bytes, at: int, trailer_bytes: int) -> int:
        """Reads lines up to an empty one; up to where."""
        while not self.ended and (until := data.find(b"\r\n", at)) >= 0:
            trailer_bytes += until - at
            self.ended = until == at
            at = until + 2
        self._trailer = trailer_bytes
        if trailer_bytes > _LINE_BYTES:
            raise ValueError("the trailer of the answer is too long")
        self.excess = self.ended and at < len(data)
        return at

    def end(self) -> None:
        raise ValueError("the connection ended in the middle of the answer")


class Gunzip:
    """In pieces of a bounded size, however much there is in a piece of the body."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP)
        self._begun = False
        self._rest = b""

    def take(self, data: bytes = b"") -> bytes:
        """b"": there is no more in what it was given. Raises ValueError."""
        self._rest += data
        self._begun = self._begun or bool(data)
        while self._rest:
            if self._stream.eof:  # another member
                self._stream = zlib.decompressobj(_GZIP)
            try:
                found = self._stream.decompress(self._rest, _GUNZIPPED_BYTES)
            except zlib.error as error:
                raise ValueError(f"the answer is not the gzip that it says it is: {error}") from error
            self._rest = self._stream.unused_data if self._stream.eof else self._stream.unconsumed_tail
            if found:
                return found
        return b""

    def end(self) -> None:
        """Raises ValueError. An empty body is one that nobody has compressed."""
        if self._begun and not self._stream.eof:
            raise ValueError("the compressed answer is not whole")
