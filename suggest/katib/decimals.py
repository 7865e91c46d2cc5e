"""Reads many decimal numbers at once, each to the nearest double, in less than half of the time that `float` takes.

Eight digits are one machine word. The digits of a number are an integer below 2**64, which is divided by a power of ten
in the CPU's extended precision. Both are exact there, so the quotient is the nearest number of 64 bits. Rounding it
again gives the nearest double, unless it lies just between two doubles; then `float` reads the text. On CPUs without
extended precision nothing is read here.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Words: TypeAlias = npt.NDArray[np.uint64]
Indexes: TypeAlias = npt.NDArray[np.intp]

# 64 bits and their exponent, in 16 bytes.
_EXTENDED = np.finfo(np.longdouble).nmant == 63 and np.longdouble().itemsize == 16 and sys.byteorder == "little"
_FEW = 60  # texts that `float` reads in less time
_DIGITS = 19  # the most of a number; any 19 of them are below 2**64
_POWERS = 10 ** np.arange(_DIGITS + 1, dtype=np.uint64)
# 10**27 is 5**27 * 2**27, and 5**27 has 63 bits.
_EXACT_POWERS = np.cumprod(np.array([1, *[10] * 27], dtype=np.longdouble))
_SHIFTS = 64 - 8 * np.array([1, *range(1, 9)], dtype=np.uint64)  # to keep so many digits of eight
_BEFORE = b"0" * 24  # before the first text, because the last 24 characters of each fraction are read


class _Other(Exception):
    """A text is another number, or no number."""


def read_decimals(texts: Sequence[str]) -> list[float]:
    """Return the numbers of texts that are all JSON numbers with a decimal point, else nothing.

    Returns nothing either if there are few texts, or if a number has nine digits or more before its point.
    """
    together = ",".join(texts).encode(errors="replace") + b","
    if not _EXTENDED or len(texts) <= _FEW or together.translate(None, b"0123456789+-.eE,"):
        return []
    try:
        return _read(np.frombuffer(_BEFORE + together, np.uint8), texts)
    except _Other:
        return []


def _read(data: npt.NDArray[np.uint8], texts: Sequence[str]) -> list[float]:
    commas, points = np.flatnonzero(data == ord(",")), np.flatnonzero(data == ord("."))
    _require(len(commas) == len(points) == len(texts))
    firsts = np.append(len(_BEFORE), commas[:-1] + 1)
    are_negative = data[firsts] == ord("-")
    firsts += are_negative
    ends, exponents = _exponents(data, points, commas)
    whole_digits, digits = points - firsts, ends - points - 1
    _require((whole_digits >= 1) & (whole_digits <= 8) & (digits >= 1))
    _require((whole_digits == 1) | (data[firsts] != ord("0")))
    whole = _integers(data, points, whole_digits)
    fraction = _integers(data, ends, digits) + _integers(data, ends - 8, digits - 8) * _POWERS[8]
    if digits.max() > 16:
        fraction += _integers(data, ends - 16, np.minimum(digits, _DIGITS) - 16) * _POWERS[16]
    powers = digits - exponents
    are_exact = (
        (np.where(whole > 0, whole_digits, 0) + digits <= _DIGITS) & (powers >= 0) & (powers < _EXACT_POWERS.size)
    )
    numerators = whole * _POWERS[np.minimum(digits, _DIGITS)] + fraction
    quotients = numerators.astype(np.longdouble) / _EXACT_POWERS[np.where(are_exact, powers, 0)]
    numbers = quotients.astype(np.float64)
    numbers[are_negative] *= -1.0
    # Of the 64 bits, 53 remain. If the others are half a step, the true quotient may be on either side.
    between = quotients.view(np.uint64)[::2] & np.uint64(0x7FF) == 0x400
    for row in np.flatnonzero(between | ~are_exact).tolist():
        try:
            numbers[row] = float(texts[row])
        except ValueError:
            raise _Other from None
    found: list[float] = numbers.tolist()
    return found


def _exponents(data: npt.NDArray[np.uint8], points: Indexes, commas: Indexes) -> tuple[Indexes, Indexes]:
    """Return where the digits of each number end, and its exponent."""
    marks = np.flatnonzero(data | 0x20 == ord("e"))
    ends, exponents = commas.copy(), np.zeros(len(commas), np.intp)
    if not marks.size:
        return ends, exponents
    rows = commas.searchsorted(marks)
    _require((points[rows] < marks) & (np.diff(rows, prepend=-1) > 0))
    after = data[marks + 1]
    are_negative = after == ord("-")
    size = commas[rows] - marks - 1 - (are_negative | (after == ord("+")))
    _require((size >= 1) & (size <= 3))
    values = _integers(data, commas[rows], size).astype(np.intp)
    ends[rows], exponents[rows] = marks, np.where(are_negative, -values, values)
    return ends, exponents


def _integers(data: npt.NDArray[np.uint8], ends: Indexes, digits: Indexes) -> Words:
    """Return the integers of the last digits before these ends: `digits`, at most eight; 0 without any."""
    words = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))[ends - 8] ^ np.uint64(0x3030303030303030)
    # The first digit is the lowest byte. A word cannot be shifted by all of its bits.
    shifts = _SHIFTS.take(digits, mode="clip")
    words = words >> shifts << shifts
    words[digits <= 0] = 0
    _require((words | words + np.uint64(0x7676767676767676)) & np.uint64(0x8080808080808080) == 0)
    words = words * np.uint64(10) + (words >> np.uint64(8))  # pairs of digits, in every other byte
    pairs = np.uint64(0x000000FF000000FF)
    high, low = words & pairs, words >> np.uint64(16) & pairs
    return high * np.uint64(100 + (1000000 << 32)) + low * np.uint64(1 + (10000 << 32)) >> np.uint64(32)


def _require(condition: bool | npt.NDArray[np.bool_]) -> None:
    if not np.all(condition):
        raise _Other
