"""How much memory a request takes once it is decoded, estimated from its bytes before it is.

Two bytes on the wire may become an object of eighty, so the size of a message says little. What
multiplies is the items of lists and maps, and each item begins with the tag of its field. A tag is
one byte, so the number of bytes that equal such a tag is at least the number of items. Text seldom
contains these bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from google.protobuf.descriptor import Descriptor, FieldDescriptor

# of an item of a list, and of the growth of the list: the largest message here takes 77
_ITEM_BYTES = 80
_FRAMED_ITEM_BYTES = 32  # of an item that is kept as bytes, or as a text once its message is freed
_NUMBER_BYTES = 16  # of a number in a list, which takes one byte on the wire
_COPIES = 3  # of the bytes: as received, as decoded, and as read from the decoded message
_SLICE = 1 << 20  # counting holds the GIL


@dataclass(frozen=True, slots=True)
class DecodedSize:
    """How the size of one kind of request is estimated.

    Each byte counts, and in addition each byte that is one of `tags`.
    """

    tags: bytes
    item_bytes: int
    byte_bytes: int

    @classmethod
    def of(cls, kind: Descriptor, *, framed: bool = False) -> DecodedSize:
        """`framed`: decoding leaves the items as bytes, and they are read one by one."""
        seen: dict[str, Descriptor] = {}
        _collect(kind, seen)
        tags: set[int] = set()
        has_numbers = False
        for message in seen.values():
            tags.update(_list_tags(message))
            has_numbers |= any(map(_is_list_of_numbers, message.fields))
        return cls(
            bytes(sorted(tags)),
            _FRAMED_ITEM_BYTES if framed else _ITEM_BYTES,
            _NUMBER_BYTES if has_numbers and not framed else _COPIES,
        )

    def bytes_of(self, serialized: bytes) -> int:
        """Return the most bytes that a request with these bytes takes."""
        view = memoryview(serialized)
        items = 0
        for start in range(0, len(view), _SLICE):
            part = bytes(view[start : start + _SLICE])
            items += len(part) - len(part.translate(None, self.tags))
        return len(view) * self.byte_bytes + items * self.item_bytes


def _collect(kind: Descriptor, seen: dict[str, Descriptor]) -> None:
    if kind.full_name in seen:
        return
    seen[kind.full_name] = kind
    for field in kind.fields:
        if field.message_type is not None:
            _collect(field.message_type, seen)


def _is_list_of_numbers(field: FieldDescriptor) -> bool:
    is_text = field.type in (field.TYPE_STRING, field.TYPE_BYTES)
    return field.is_repeated and field.message_type is None and not is_text


def _list_tags(message: Descriptor) -> Iterator[int]:
    """Yield the first byte of the tag of each list and map, and of each key and value of a map."""
    for field in message.fields:
        if field.is_repeated or message.GetOptions().map_entry:
            tag = field.number << 3 | 2
            yield tag if tag < 128 else tag & 127 | 128
