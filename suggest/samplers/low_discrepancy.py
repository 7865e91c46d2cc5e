"""`sobol` and `halton`: points that fill a space more evenly than independent ones,
scrambled by the study's seed.

Trial n gets the n-th point of a sequence that depends only on the study's seed, so parallel trials
and restarts need no extra care. Each parameter is one dimension. The values of inactive parameters
are dropped from a point. Pure Python on integers, without NumPy or SciPy. A coordinate is a word of
BITS bits, as a fraction of 2^BITS.

Sobol': Joe and Kuo 2008 (direction numbers in joe_kuo.txt, the beginning of their file
new-joe-kuo-6.21201). Points come in Gray code order (Antonov and Saleev 1979), scrambled by a
random lower triangular matrix and a digital shift (Matousek 1998). Halton: Owen 2017 ("A randomized
Halton algorithm in R"), with a random permutation of the digits at each place.
"""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path

from suggest import deadline
from suggest.errors import Problem
from suggest.proposal import PointRequest, generator
from suggest.samplers.family import DrawSettings, Family
from suggest.samplers.sampler import Sampler
from suggest.samplers.uniform import BITS, at_fraction
from suggest.space import Assignment, Choice, Space
from suggest.study import StudySpec
from suggest.trial import Trial

# Sobol has the first dimension, and the rows of joe_kuo.txt.
MOST_DIMENSIONS = 64


def sobol_problems(spec: StudySpec) -> Iterator[Problem]:
    found = len(spec.space.parameters)
    if found > MOST_DIMENSIONS:
        yield Problem(
            "",
            f"{found} parameters; sobol has {MOST_DIMENSIONS} dimensions, use halton or random for "
            "more parameters",
        )


class SequenceSampler(Sampler):
    """A sampler of a scrambled sequence.

    `dimension` creates one dimension, from its index and a random source.
    """

    def __init__(
        self,
        spec: StudySpec,
        seed: int,
        name: str,
        dimension: Callable[[int, random.Random], Coordinates],
    ) -> None:
        self._space = spec.space
        self._seed = seed
        self._name = name
        self._dimension = dimension
        self._sequences: dict[int, list[Coordinates]] = {}

    def put(self, trial: Trial) -> None:
        """Proposals do not depend on trials."""

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        points: list[Assignment] = []
        for one in wanted:
            deadline.check()
            points.append(self._point(one))
        return points

    def _point(self, one: PointRequest) -> Assignment:
        words = [dimension(one.number) for dimension in self._sequence(one.again)]
        return point_at(self._space, words, one.fixed)

    def _sequence(self, again: int) -> list[Coordinates]:
        """Return the sequence for a repeated draw: the same sequence, scrambled in another way."""
        if again not in self._sequences:
            purpose = f"{self._name} again {again}" if again else self._name
            self._sequences[again] = [
                self._dimension(k, generator(self._seed, k, purpose))
                for k in range(len(self._space.parameters))
            ]
        return self._sequences[again]


def sobol(spec: StudySpec, seed: int, settings: DrawSettings) -> SequenceSampler:
    return SequenceSampler(spec, seed, "sobol", ScrambledSobol)


def halton(spec: StudySpec, seed: int, settings: DrawSettings) -> SequenceSampler:
    return SequenceSampler(spec, seed, "halton", ScrambledHalton)


def spread(spec: StudySpec, seed: int) -> SequenceSampler:
    """Return a sampler whose points fill the space evenly, with numbers drawn toward the middle.

    Numbers have the distribution Beta(2, 2): if nothing is known of an optimum but that it is
    somewhere in the space, the best of a few points near the middle is nearer to it (Cauwet et al.
    2020, Fully parallel hyperparameter search: reshaped space-filling). A choice and a number with
    conditions are spread evenly.
    """
    parameters = spec.space.parameters

    def dimension(k: int, rng: random.Random) -> Coordinates:
        even: Coordinates = (
            ScrambledSobol(k, rng) if k < MOST_DIMENSIONS else ScrambledHalton(k, rng)
        )
        if isinstance(parameters[k].domain, Choice) or parameters[k].when:
            return even
        return lambda number: toward_middle(even(number))

    return SequenceSampler(spec, seed, "spread", dimension)


def toward_middle(word: int) -> int:
    """Return the quantile of Beta(2, 2) at a fraction; both are words."""
    fraction = word / 2.0**BITS
    found = 0.5 - math.sin(math.asin(1.0 - 2.0 * fraction) / 3.0)
    return min(max(int(found * 2.0**BITS), 0), (1 << BITS) - 1)


def point_at(space: Space, words: Sequence[int], fixed: Assignment) -> Assignment:
    """Return the point at these coordinates: one word per parameter, in the order of the space."""
    of = dict(zip((p.name for p in space.parameters), words, strict=True))
    return space.point(
        lambda p: fixed[p.name] if p.name in fixed else at_fraction(p.domain, of[p.name])
    )


# Returns the n-th point's coordinate in one dimension.
Coordinates = Callable[[int], int]


class ScrambledSobol:
    """One dimension of a Sobol' sequence, not scrambled if `rng` is None."""

    def __init__(self, index: int, rng: random.Random | None) -> None:
        self._directions = directions(index)
        self._shift = 0
        if rng is not None:
            rows = [
                (1 << (BITS - 1 - k)) | (rng.getrandbits(k) << (BITS - k) if k else 0)
                for k in range(BITS)
            ]
            self._directions = [_product(rows, direction) for direction in self._directions]
            self._shift = rng.getrandbits(BITS)

    def __call__(self, number: int) -> int:
        word = self._shift
        gray = number ^ (number >> 1)
        for direction in self._directions:
            if not gray:
                break
            if gray & 1:
                word ^= direction
            gray >>= 1
        return word


@functools.cache
def _joe_kuo() -> list[tuple[int, list[int]]]:
    """Return a row for each later dimension.

    It has the inner coefficients of the dimension's primitive polynomial as bits, and its m_i.
    """
    lines = Path(__file__).with_name("joe_kuo.txt").read_text(encoding="ascii").splitlines()
    rows = [list(map(int, line.split())) for line in lines[1:]]
    return [(inner, first) for _, _, inner, *first in rows]


def directions(index: int) -> list[int]:
    """Return v_1, v_2, ... of a dimension as words (Joe and Kuo 2008, equation 2)."""
    if index == 0:
        return [1 << (BITS - 1 - k) for k in range(BITS)]
    inner, first = _joe_kuo()[index - 1]
    degree = len(first)
    found = [m << (BITS - 1 - k) for k, m in enumerate(first)]
    for k in range(degree, BITS):
        word = found[k - degree] ^ (found[k - degree] >> degree)
        for i in range(1, degree):
            if (inner >> (degree - 1 - i)) & 1:
                word ^= found[k - i]
        found.append(word)
    return found


def _product(rows: Sequence[int], word: int) -> int:
    """Return a matrix over GF(2), given by its rows, times a word.

    The most significant bit comes first.
    """
    result = 0
    for row in rows:
        result = (result << 1) | ((row & word).bit_count() & 1)
    return result


class ScrambledHalton:
    """One dimension of a Halton sequence: the radical inverse in the index-th prime.

    Not scrambled if `rng` is None.
    """

    def __init__(self, index: int, rng: random.Random | None) -> None:
        self._base = base = prime(index)
        self._places = 1  # how many digits a word can resolve
        self._span = base
        while self._span < 1 << BITS:
            self._span *= base
            self._places += 1
        self._permutations: list[list[int]] | None = None
        if rng is not None:
            self._permutations = [rng.sample(range(base), base) for _ in range(self._places)]

    def __call__(self, number: int) -> int:
        base, numerator = self._base, 0
        for place in range(self._places):
            number, digit = divmod(number, base)
            numerator = numerator * base + (
                digit if self._permutations is None else self._permutations[place][digit]
            )
        return (numerator << BITS) // self._span


def prime(index: int) -> int:
    """Return the prime with this index, from 0: 2, 3, 5, ..."""
    found: list[int] = []
    odd = (k for k in count(2) if all(k % p for p in found if p * p <= k))
    for k in islice(odd, index + 1):
        found.append(k)
    return found[index]


ENTRIES = (
    Family(
        "sobol",
        "Points that fill the space evenly: a scrambled Sobol' sequence.",
        DrawSettings,
        sobol,
        learns=False,
        space_problems=sobol_problems,
    ),
    Family(
        "halton",
        "Points that fill the space evenly: a scrambled Halton sequence.",
        DrawSettings,
        halton,
        learns=False,
    ),
)
