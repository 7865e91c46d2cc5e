"""Patterns of people: Go's syntax, two groups wherever they stand, and time linear in the line."""

from __future__ import annotations

import pytest

from controller.core.line_pattern import LinePattern

KATIB = r"([\w|-]+)\s*=\s*([+-]?\d*(\.\d+)?([Ee][+-]?\d+)?)"


@pytest.mark.parametrize(
    ("pattern", "line", "pairs"),
    [
        (KATIB, "accuracy = 0.93 ; loss = -7.5e-05", [("accuracy", "0.93"), ("loss", "-7.5e-05")]),
        (KATIB, "val/loss=0.3", [("loss", "0.3")]),
        (KATIB, "loss=nan", []),
        (r"(?P<name>\w+) = (?P<value>[\d.]+)", "acc = 0.5", [("acc", "0.5")]),
        (r"(?<name>\w+) = (?<value>[\d.]+)", "acc = 0.5", [("acc", "0.5")]),
        (
            r"(?:INFO .* - )?(?i:(accuracy) = ([\d.]+))",
            "INFO 12:00 - Accuracy = 0.93",
            [("Accuracy", "0.93")],
        ),
        (r"\Q[(\E(\w+)\Q)]\E=([\d.]+)", "[(acc)]=0.5", [("acc", "0.5")]),
        (r"(\pL+)=([\d.]+)\z", "précision=0.5", [("précision", "0.5")]),
        (r"([[:alpha:]_]+)[])]=([[:digit:].]+)", "a_b]=0.5", [("a_b", "0.5")]),
        (r"((?:a)(b)?c) (\d)", "abc 3", [("abc", "3")]),
        (r"(.{5})=(.{6})", "  acc=  0.5 ", [("acc", "0.5")]),
    ],
)
def test_a_pattern_reads_what_go_reads(
    pattern: str, line: str, pairs: list[tuple[str, str]]
) -> None:
    assert list(LinePattern(pattern).pairs(line)) == pairs


@pytest.mark.parametrize("line", ["accuracy = 0,9731", "accuracy=1,234.5"])
def test_a_decimal_comma_is_not_read_as_its_integer_part(line: str) -> None:
    [(name, value)] = LinePattern(KATIB).pairs(line)
    assert name == "accuracy"
    with pytest.raises(ValueError, match="could not convert"):
        float(value)


@pytest.mark.parametrize(
    ("pattern", "told"),
    [
        (
            r"(\w+)=(\d+)(?=;)",
            "look-around such as (?=…) and (?<!…) is not supported; match the text around the two",
        ),
        (r"(?<!x)(\w+)=(\d+)", "look-around"),
        (r"(\w)\1=(\d+)", "references to groups"),
        (r"(\w++)=(\d+)", "in the syntax of RE2"),
        ("(a", "missing )"),
        ("(a)", "has 1 groups where two are needed, name and value; (?:…) groups without one"),
        ("(a)(b)(c)", "has 3 groups"),
        ("((a)(b))", "has 1 groups"),
    ],
)
def test_what_cannot_be_matched_in_linear_time_or_has_other_groups_is_refused(
    pattern: str, told: str
) -> None:
    with pytest.raises(ValueError, match=r"where two|not a regular expression") as refused:
        LinePattern(pattern)
    assert told in str(refused.value)


@pytest.mark.timeout(20)  # with backtracking: minutes
@pytest.mark.parametrize("pattern", [KATIB, r"((?:a+)+)=(\d)", r"(\w*\w*\w*)=(\d)", "(.*)=(.*)"])
def test_a_long_line_takes_time_in_proportion(pattern: str) -> None:
    for line in ("ab0" * 20_000, "a" * 60_000):
        assert list(LinePattern(pattern).pairs(line)) == []
