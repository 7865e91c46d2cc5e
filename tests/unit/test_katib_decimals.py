"""Many decimal numbers are read at once as `float` reads each of them, or not at all."""

import json
import math
import struct
from collections.abc import Sequence
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.katib import decimals
from suggest.katib.decimals import read_decimals
from tests.unit.searches import examples

PLAIN = ["0.5"] * 100  # enough to be read together

DIGITS = st.text("0123456789", min_size=1, max_size=25)
NUMBERS = st.builds(
    lambda sign, whole, digits, exponent: f"{sign}{whole}.{digits}{exponent}",
    st.sampled_from(["", "-"]),
    st.integers(0, 99_999_999),
    DIGITS,
    st.one_of(st.just(""), st.builds("{}{}".format, st.sampled_from(["e", "E", "e-", "e+"]), st.integers(0, 340))),
)
WRITTEN = st.floats(-99_999_999, 99_999_999).map(repr).filter(lambda text: "." in text)
# Between two doubles, where the digits that follow decide.
MIDDLES = st.builds(
    lambda x, digits: f"{(Decimal(x) + Decimal(math.nextafter(x, 2.0))) / 2:.{digits}f}",
    st.floats(1e-4, 1.0),
    st.integers(15, 20),
)

pytestmark = pytest.mark.skipif(not decimals._EXTENDED, reason="this CPU has no extended precision")


def bits(numbers: Sequence[float]) -> list[bytes]:
    return [struct.pack("d", number) for number in numbers]


@examples(200)
@given(st.lists(st.one_of(NUMBERS, WRITTEN, MIDDLES), min_size=1, max_size=200))
def test_numbers_are_the_nearest_doubles(texts: list[str]) -> None:
    texts = PLAIN + texts
    assert bits(read_decimals(texts)) == bits(list(map(float, texts)))


@pytest.mark.parametrize(
    "text",
    ["0.0", "-0.0", "1e-05".replace("e", ".0e"), "0." + "0" * 30 + "1", "0.9999999999999999999", "99999999." + "9" * 11,
     "0." + "9" * 400, "1.5e300", "1.5e-320", "9.007199254740993", "0.50000000000000011102230246251565"],
)  # fmt: skip
def test_numbers_at_the_ends_of_what_is_exact_are_the_nearest_doubles(text: str) -> None:
    assert bits(read_decimals([*PLAIN, text])[-1:]) == bits([float(text)])


@pytest.mark.parametrize(
    "text",
    ["", "1", ".5", "1.", "+0.5", "-.5", "--0.5", "0.5-", "00.5", "01.5", "1.2.3", "1.5e", "1.5e+", "1.5e1e1", "e1.5",
     "1e5.0", "1.5e0001", "0.5,0.5", "0,5", "0. 5", " 0.5", "0.5\n", "0x1.8p1", "1_0.5", "0.1_5", "nan", "inf", "½.5",
     "0.٥", "\udc80.5", "123456789.5", "0.5-0000000000000000000000", "0.0000000000-0000000000000", "1.+", "1.5e-+1",
     "+123456789.5"],
)  # fmt: skip
def test_other_texts_are_left_to_the_parser_of_json(text: str) -> None:
    assert read_decimals([*PLAIN, text]) == []
    assert read_decimals([text, *PLAIN]) == []


@examples(300)
@given(st.lists(st.text("0123456789+-.eE,", max_size=30), min_size=1, max_size=3))
def test_what_is_read_is_json(texts: list[str]) -> None:
    texts = PLAIN + texts
    if found := read_decimals(texts):
        assert bits(found) == bits([json.loads(text) for text in texts])
