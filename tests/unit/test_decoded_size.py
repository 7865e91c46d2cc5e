"""A request is estimated at no less than what it takes once decoded,
and at little more if it is a usual one.
"""

from __future__ import annotations

import subprocess
import sys

import pytest
from google.protobuf.message import Message

from suggest.katib.v1beta1 import api_pb2 as katib
from suggest.katib.v1beta1 import frames_pb2 as frames
from suggest.server.decoded_size import DecodedSize
from suggest.v1 import suggest_pb2 as pb
from tests.service.katib_caller import DONE, a_request, a_trial, an_experiment

ITEMS = 1_000_000
MIB = 1 << 20
GROWTH = """
import importlib, re, sys
from pathlib import Path
from google.protobuf.message import DecodeError

def most_kib():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

module, kind, item, count, *tags = sys.argv[1:]
raw = bytes.fromhex(item) * int(count)
for tag in tags:
    length, left = bytearray(), len(raw)
    while left >= 128:
        length.append(left % 128 + 128)
        left //= 128
    raw = bytes((int(tag), *length, left)) + raw
parse = getattr(importlib.import_module(module), kind).FromString
before = most_kib()
try:
    message = parse(raw)
except DecodeError:
    sys.exit("refused")
print((most_kib() - before) * 1024)
"""
EMPTY = "0a00"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is read from /proc")
@pytest.mark.parametrize(
    ("kind", "item", "tags"),
    [
        (katib.GetSuggestionsRequest, "1200", []),
        (katib.ReportObservationLogRequest, EMPTY, [0x12]),
        (katib.ValidateAlgorithmSettingsRequest, EMPTY, [0x0A, 0x12, 0x0A]),
        (katib.ValidateAlgorithmSettingsRequest, "1a00", [0x1A, 0x0A, 0x0A, 0x12, 0x0A]),
        (katib.ValidateAlgorithmSettingsRequest, "01", [0x12, 0x0A, 0x3A, 0x12, 0x0A]),
        (pb.ImportTrialsRequest, "1200", []),
        (pb.ReopenTrialsRequest, "01", [0x12]),
        (katib.ValidateAlgorithmSettingsRequest, "7b787b007c7c", []),
    ],
)
def test_no_request_takes_more_than_is_estimated(
    kind: type[Message], item: str, tags: list[int]
) -> None:
    arguments = [kind.__module__, kind.__name__, item, str(ITEMS), *map(str, tags)]
    done = subprocess.run(
        [sys.executable, "-c", GROWTH, *arguments], capture_output=True, text=True, check=False
    )
    if done.stderr == "refused\n":
        pytest.skip("an older protobuf refuses this request")
    assert done.returncode == 0, done.stderr
    grown = int(done.stdout)
    raw = bytes.fromhex(item) * ITEMS
    assert 0 < grown <= DecodedSize.of(kind.DESCRIPTOR).bytes_of(raw) + MIB


def test_empty_items_count_by_what_they_become() -> None:
    size = DecodedSize.of(katib.GetSuggestionsRequest.DESCRIPTOR, framed=True)
    assert size.bytes_of(b"\x12\0" * ITEMS) > 15 * 2 * ITEMS


def test_the_longest_history_that_katibs_port_receives_is_within_the_share_of_a_caller() -> None:
    point = {f"parameter{n}": "0.123456789" for n in range(8)}
    history = [a_trial(f"search-{n:05}", point, DONE, "0.98765") for n in range(1000)]
    raw = a_request(an_experiment(), history).SerializeToString()
    size = DecodedSize.of(katib.GetSuggestionsRequest.DESCRIPTOR, framed=True)
    assert size.bytes_of(raw) * (16 * MIB / len(raw)) < 128 * MIB


def test_a_frame_has_the_bytes_of_its_request() -> None:
    frame = frames.SuggestionsFrame.FromString(
        a_request(an_experiment(), [a_trial("t", {})]).SerializeToString()
    )
    assert len(frame.trials) == 1
