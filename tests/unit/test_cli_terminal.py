"""What a terminal gets that a pipe does not: cut lines,
and output of trials without control sequences.
"""

from __future__ import annotations

import os
import sys

import pytest

from controller.cli import terminal

SEQUENCES = [
    pytest.param(b"\x1b]0;title\x07left", id="title"),
    pytest.param(b"\x1b]52;c;cGF5bG9hZA==\x1b\\left", id="clipboard"),
    pytest.param(b"\x1b[31mle\x1b[0mft", id="color"),
    pytest.param(b"\x1b[2J\x1b[1;1Hleft", id="cleared screen"),
    pytest.param(b"\x1b(0left\x1bc", id="character set and reset"),
    pytest.param(b"\x1bP1$r0m\x1b\\left", id="device control string"),
    pytest.param(b"le\x08\x07\x00ft\x7f", id="single characters"),
    pytest.param("le\x9b2Jft".encode(), id="control sequence introducer of one character"),
]


@pytest.mark.parametrize("printed", SEQUENCES)
@pytest.mark.parametrize("size", [1, 3, 100])
def test_control_sequences_do_not_reach_a_terminal_however_the_output_is_divided(
    printed: bytes, size: int
) -> None:
    stream = terminal.ControlSequences()
    parts = [printed[at : at + size] for at in range(0, len(printed), size)]
    left = b"".join(stream.strip(part) for part in parts)
    assert b"\x1b" not in left
    assert left.replace(b"2J", b"") == b"left"


def test_text_tabs_and_line_ends_remain() -> None:
    text = "naïve 日本語\tÂ£5\r\n".encode()
    assert terminal.ControlSequences().strip(text) == text


def test_an_unfinished_sequence_hides_no_other_line() -> None:
    assert terminal.ControlSequences().strip(b"\x1b]0;endless\nleft\n") == b"\nleft\n"


def test_an_endless_sequence_is_not_kept_in_memory() -> None:
    stream = terminal.ControlSequences()
    stream.strip(b"\x1b]0;" + b"x" * 10_000)
    assert stream.strip(b"left\n") == b"left\n"


def test_lines_are_cut_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "10")
    table = "short\n" + "a long reason\n"
    assert terminal.cropped(table) == table
    leader, follower = os.openpty()
    with open(follower, "w", encoding="utf-8") as tty, open(leader, "rb"):  # noqa: PTH123
        monkeypatch.setattr(sys, "stdout", tty)
        assert terminal.cropped(table) == "short\na long re…\n"
