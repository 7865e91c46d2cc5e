"""Finds fields of many protobuf messages at once, in their bytes: no object is made for a field that nobody reads.

The messages are read in step: each step finds the next field of every message that has one, with arrays. So the time
depends on the fields of a message more than on the number of messages. Only what encoders write for small messages is
read; `NotPlain` says that a parser has to read the others. This module knows the encoding of protobuf, and no message.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Flags: TypeAlias = npt.NDArray[np.bool_]
Indexes: TypeAlias = npt.NDArray[np.intp]
Positions: TypeAlias = npt.NDArray[np.int32]
_VARINT, _LENGTH = 0, 2  # wire types
_BETWEEN = "\0"
# Fields of a message. Each takes a step, however few messages have so many: a request could have millions of steps.
MOST_FIELDS = 1100


class NotPlain(Exception):
    """There are no bytes, or they are not messages, or these are not small.

    They have a large field number, a large or negative number, a group or many fields.
    """


def number_tag(field: int) -> int:
    """Return the tag of a field with an integer, a bool or an enum."""
    return field << 3 | _VARINT


def bytes_tag(field: int) -> int:
    """Return the tag of a field with text, bytes or a message."""
    return field << 3 | _LENGTH


class Fields(NamedTuple):
    """Fields, or messages: which message each belongs to, and where its content begins and ends."""

    owners: Positions
    starts: Positions
    ends: Positions

    @property
    def size(self) -> int:
        return len(self.owners)

    def take(self, rows: slice | Indexes) -> Fields:
        return Fields(self.owners[rows], self.starts[rows], self.ends[rows])

    def those(self, are_taken: Flags) -> Fields:
        return self if are_taken.all() else Fields(*(column[are_taken] for column in self))

    def last(self, owners: int) -> Fields:
        """Return the last field of each of so many owners; an owner without one gets an empty one."""
        starts, ends = np.zeros(owners, np.int32), np.zeros(owners, np.int32)
        starts[self.owners], ends[self.owners] = self.starts, self.ends
        return Fields(np.arange(owners, dtype=np.int32), starts, ends)

    def numbered(self) -> Fields:
        """Return the same messages, each its own owner."""
        return self._replace(owners=np.arange(self.size, dtype=np.int32))


class WireColumns:
    """The bytes of many messages. All methods raise `NotPlain`."""

    def __init__(self, messages: Sequence[bytes]) -> None:
        self._data = np.frombuffer(b"".join(messages), np.uint8)
        if not self._data.size:
            raise NotPlain  # NumPy takes nothing from an empty array, not even an empty field
        ends = np.cumsum(np.fromiter(map(len, messages), np.int32, len(messages)), dtype=np.int32)
        self.messages = Fields(np.arange(len(ends), dtype=np.int32), np.append(np.int32(0), ends[:-1]), ends)

    def fields(self, messages: Fields, *tags: int) -> list[Fields]:
        """Return the fields with each of these tags, in the order of the bytes. The owners are those of `messages`."""
        found: list[list[Fields]] = [[] for _ in tags]
        left = messages.those(messages.starts < messages.ends)
        for _ in range(MOST_FIELDS):
            if not left.size:
                return [_in_order(those) for those in found]
            tag = self._data.take(left.starts)
            starts, ends = self._contents(tag, left.starts + 1)
            if (ends > left.ends).any():
                raise NotPlain
            fields = left._replace(starts=starts, ends=ends)
            for wanted, those in zip(tags, found, strict=True):
                if (has_tag := tag == wanted).any():
                    those.append(fields.those(has_tag))
            left = left._replace(starts=ends).those(ends < left.ends)
        raise NotPlain

    def _contents(self, tag: npt.NDArray[np.uint8], at: Positions) -> tuple[Positions, Positions]:
        """Return where the contents of fields with these tags begin and end."""
        kind = tag & 7
        has_length = kind == _LENGTH
        if tag.min() < 1 << 3 or tag.max() > 127:
            raise NotPlain
        values, after = self._varints(at)
        if has_length.all():
            return after, after + values
        if not (has_length | (kind == _VARINT)).all():
            raise NotPlain
        return np.where(has_length, after, at), np.where(has_length, after + values, after)

    def _varints(self, at: Positions) -> tuple[Positions, Positions]:
        """Return the integers at these positions, and where each ends."""
        byte = self._data.take(at, mode="clip")
        values, after = byte.astype(np.int32), at + 1
        rows = np.flatnonzero(byte > 127)
        values[rows] &= 127
        for shift in (7, 14, 21):
            if not rows.size:
                break
            byte = self._data.take(after[rows], mode="clip")
            values[rows] |= (byte & 127).astype(np.int32) << shift
            after[rows] += 1
            rows = rows[byte > 127]
        if rows.size:
            raise NotPlain
        return values, after

    def integers(self, fields: Fields) -> list[int]:
        """Return the values of fields with a number; 0 if a field is empty."""
        values, _ = self._varints(fields.starts)
        values[fields.starts == fields.ends] = 0
        found: list[int] = values.tolist()
        return found

    def texts(self, fields: Fields) -> list[str]:
        """Return the texts of fields."""
        lengths = fields.ends - fields.starts + 1
        after = np.cumsum(lengths, dtype=np.int32)
        together = np.arange(lengths.sum(), dtype=np.int32)
        together += np.repeat(fields.ends + 1 - after, lengths)
        chosen = self._data.take(together, mode="clip")
        chosen[after - 1] = ord(_BETWEEN)
        try:
            texts = chosen.tobytes().decode().split(_BETWEEN)
        except UnicodeDecodeError:
            raise NotPlain from None
        if len(texts) != fields.size + 1:
            raise NotPlain
        del texts[-1]
        return texts

    def are_equal(self, fields: Fields, text: bytes) -> Flags:
        """Return which fields have this content."""
        size = len(text)
        equal: Flags = fields.ends - fields.starts == size
        if size and equal.any():
            there = np.ndarray((len(self._data) - size + 1,), f"S{size}", self._data, strides=(1,))
            equal[equal] = there[fields.starts[equal]] == text
        return equal


def _in_order(steps: Sequence[Fields]) -> Fields:
    """Return the fields of all steps in the order of the bytes."""
    if len(steps) == 1:
        return steps[0]
    none = np.zeros(0, np.int32)
    fields = Fields(*(np.concatenate(column) for column in zip(Fields(none, none, none), *steps, strict=True)))
    return fields.take(np.argsort(fields.starts, kind="stable"))
