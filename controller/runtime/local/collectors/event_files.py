"""Read the scalars of TensorBoard's event files, without TensorFlow.

An event file is a sequence of records: the length (8 bytes, little-endian), the masked
CRC-32C of these bytes, the data, and the masked CRC-32C of the data. The data is an
`Event` of TensorFlow's event.proto. Only the fields that a scalar needs are read;
images, graphs and histograms are skipped unread.
"""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from google.protobuf.message import DecodeError

from controller.runtime import log_file
from controller.runtime.local.collectors.collected import CollectedLines, Collector, json_line
from controller.runtime.local.collectors.tensorboard.event_pb2 import Event, Summary, Tensor

MAX_RECORD = 1 << 20  # bytes; a scalar's record has less than a hundred
_HEAD, _TAIL = 12, 4  # bytes around a record's data
_PORTION = 1 << 20
_LOOK_FOR_FILES_S = 0.2
_MASK = 0xA282EAD8


class BadRecord(Exception):
    """The bytes are not an event file from here on."""


class Scalars(NamedTuple):
    """The scalars of one event."""

    step: int
    values: dict[str, float]


# Records


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)


_CRC = _crc_table()


def masked_crc(data: bytes) -> int:
    """Return the masked CRC-32C of TFRecord files."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _CRC[(crc ^ byte) & 0xFF]
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + _MASK) & 0xFFFFFFFF


# Events


def scalars(data: bytes) -> Scalars:
    """Return the scalars of an Event. Raises BadRecord if the data is not an Event."""
    try:
        event = Event.FromString(data)
    except DecodeError as error:
        raise BadRecord(str(error)) from error
    numbers = (
        (value.tag.decode("utf-8", "replace"), _number(value)) for value in event.summary.value
    )
    return Scalars(
        event.step, {tag: number for tag, number in numbers if tag and number is not None}
    )


def _number(value: Summary.Value) -> float | None:
    if value.HasField("tensor"):
        return _element(value.tensor)
    return _shortest(value.simple_value) if value.HasField("simple_value") else None


# By the type of a tensor: the format of one element, and the field that has the elements
# in place of `tensor_content`.
_FLOAT, _DOUBLE, _INT32, _INT64 = 1, 2, 3, 9
_ELEMENTS = {
    _FLOAT: ("<f", "float_val"),
    _DOUBLE: ("<d", "double_val"),
    _INT32: ("<i", "int_val"),
    _INT64: ("<q", "int64_val"),
}


def _element(tensor: Tensor) -> float | None:
    """Return the only element of a tensor; None if it has several, or a type without numbers."""
    if tensor.dtype not in _ELEMENTS:
        return None
    form, field = _ELEMENTS[tensor.dtype]
    content = tensor.tensor_content
    if content:
        elements = struct.unpack(form, content) if len(content) == struct.calcsize(form) else ()
    else:  # a shape without dimensions is empty, and then a missing element is 0
        elements = getattr(tensor, field) or (() if tensor.tensor_shape else (0.0,))
    if len(elements) != 1:
        return None
    return _shortest(elements[0]) if tensor.dtype == _FLOAT else float(elements[0])


def _shortest(value: float) -> float:
    """Return a float32 as its shortest decimal number: 0.9 instead of 0.8999999761581421."""
    data = struct.pack("<f", value)
    for digits in range(6, 9):
        shorter = float(f"{value:.{digits}g}")
        try:
            if struct.pack("<f", shorter) == data:
                return shorter
        except OverflowError:
            continue
    return float(f"{value:.9g}")


# A directory of event files


@dataclass(slots=True)
class _EventFile:
    """A file and how far it was read.

    prefix: put before the tags of a file in a subdirectory, as TensorBoard does with the name of a
    run.
    skip_to: the end of a record that is too large to be a scalar's; 0 if there is none.
    """

    path: Path
    prefix: str
    offset: int = 0
    seen: int = 0
    broken: bool = False
    skip_to: int = 0


class EventFiles(Collector):
    """Collects a directory of event files, which are read again from the start after a restart."""

    def __init__(self, folder: Path, names: Sequence[str], lines: CollectedLines) -> None:
        """Collect from the files whose names contain `tfevents`, as TensorBoard does.

        Args:
            folder: The directory, which need not exist yet. Subdirectories count.
            names: The metrics that the experiment needs. A tag in a subdirectory that is one of
                them needs no prefix.
            lines: Where the lines go.
        """
        self._folder = folder
        self._names = frozenset(names)
        self._lines = lines
        self._lines.clear()
        self._files: dict[Path, _EventFile] = {}
        self._looked_s = float("-inf")

    def finish(self) -> None:
        self._looked_s = float("-inf")

    def grew(self) -> bool:
        now = time.monotonic()
        if now - self._looked_s >= _LOOK_FOR_FILES_S:
            self._look_for_files()
            self._looked_s = now
        grew = False
        for file in self._files.values():
            size = log_file.size(file.path)
            grew |= size > file.seen
            file.seen = size
        return grew

    def collect(self, until: int) -> None:
        self._look_for_files()
        for file in self._files.values():
            while not file.broken and self._lines.size < until and self._read(file):
                pass

    def _look_for_files(self) -> None:
        for parent, folders, names in os.walk(self._folder):
            folders.sort()
            under = Path(parent).relative_to(self._folder).as_posix()
            for path in (Path(parent, name) for name in sorted(names) if "tfevents" in name):
                if path not in self._files:
                    self._files[path] = _EventFile(path, "" if under == "." else f"{under}/")

    def _read(self, file: _EventFile) -> bool:
        """Read the next portion of complete records; return whether there may be more."""
        try:
            with file.path.open("rb", buffering=0) as opened:
                if file.skip_to:
                    if os.fstat(opened.fileno()).st_size < file.skip_to:
                        return False
                    file.offset, file.skip_to = file.skip_to, 0
                data = os.pread(opened.fileno(), _PORTION + _HEAD + _TAIL, file.offset)
        except OSError:
            return False  # deleted, or not readable yet
        out: list[bytes] = []
        at = 0
        try:
            while (size := self._size_of_record(file, data, at)) is not None:
                out += self._lines_of(file, data[at + _HEAD : at + _HEAD + size + _TAIL])
                at += _HEAD + size + _TAIL
        except BadRecord as error:
            file.broken = True
            self._lines.note(f"{file.path}: {error}; the rest of the file is not read")
        if out:
            self._lines.append(b"".join(out))
        file.offset += at
        file.seen = max(file.seen, file.offset)
        return at > 0 or file.skip_to > 0

    def _size_of_record(self, file: _EventFile, data: bytes, at: int) -> int | None:
        """Return the size of the record at this offset; None if it is not complete."""
        if at + _HEAD > len(data):
            return None
        size, crc = struct.unpack_from("<QI", data, at)
        if masked_crc(data[at : at + 8]) != crc:
            raise BadRecord(f"a damaged record at byte {file.offset + at}")
        if size > MAX_RECORD:
            file.skip_to = file.offset + at + _HEAD + size + _TAIL
            return None
        return int(size) if at + _HEAD + size + _TAIL <= len(data) else None

    def _lines_of(self, file: _EventFile, data: bytes) -> list[bytes]:
        record, crc = data[:-_TAIL], data[-_TAIL:]
        try:
            event = scalars(record)
        except BadRecord:
            event = None
        if event is not None and not event.values:
            return []
        # Only records that count are checked: the sum over a picture would take
        # as long as a thousand scalars.
        if event is None or masked_crc(record) != int.from_bytes(crc, "little"):
            self._lines.note(f"{file.path}: a damaged record is skipped")
            return []
        values = {
            tag if tag in self._names else f"{file.prefix}{tag}": value
            for tag, value in event.values.items()
        }
        return [json_line(values, event.step if event.step >= 0 else None)]
