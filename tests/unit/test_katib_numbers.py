"""The numbers of a long history are read together, as `float` and `json` read each of them, or not at all."""

import json
import struct
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from suggest.katib.experiment import read_numbers
from tests.unit.searches import examples

NUMBERS = st.builds(
    lambda sign, whole, digits, exponent: f"{sign}{whole}.{digits}{exponent}",
    st.sampled_from(["", "-"]),
    st.integers(0, 10**9),
    st.text("0123456789", min_size=1, max_size=20),
    st.one_of(
        st.just(""),
        st.builds("{}{}".format, st.sampled_from(["e", "E", "e+"]), st.integers(0, 8)),
        st.builds("e-{}".format, st.integers(0, 290)),
    ),
)
DOUBLES = st.floats(-(2.0**62), 2.0**62).map(repr)


def bits(numbers: Sequence[float]) -> list[bytes]:
    return [struct.pack("d", number) for number in numbers]


@examples(200)
@given(st.lists(st.one_of(NUMBERS, DOUBLES), min_size=1))
def test_numbers_are_the_nearest_doubles(texts: list[str]) -> None:
    assert bits(read_numbers(texts)) == bits(list(map(float, texts)))


def test_no_texts_are_no_numbers() -> None:
    assert read_numbers([]) == []


@pytest.mark.parametrize("text", ["9007199254740993.0", "0.50000000000000011102230246251565", "1.5e-320", "-0.0"])
def test_numbers_between_two_doubles_are_rounded_to_the_nearest(text: str) -> None:
    assert bits(read_numbers([text, "0.5"])) == bits([float(text), 0.5])


@pytest.mark.parametrize(
    "text", ["", ".5", "1.", "+1", "01", "1_0", "1e400", "0,5", " 1", "0x1", "nan", "inf", "½", "٥"]
)
def test_other_texts_are_left_to_the_reader_of_one_value(text: str) -> None:
    assert read_numbers(["0.5", text]) == read_numbers([text, "0.5"]) == []


@pytest.mark.parametrize("text", ["20000000000000000001", "-20000000000000000001", "9223372036854775808", "1e300"])
def test_numbers_beyond_64_bits_are_left_to_the_reader_of_one_value(text: str) -> None:
    assert read_numbers(["0.5", text]) == []


@examples(300)
@given(st.lists(st.text("0123456789+-.eE,", max_size=30), min_size=1, max_size=3))
def test_what_is_read_is_json(texts: list[str]) -> None:
    if numbers := read_numbers(texts):
        assert numbers == [json.loads(text) for text in texts]
