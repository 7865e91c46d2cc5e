"""The normal distribution of `tpe`, compared with SciPy's."""

import math

import numpy as np
import scipy  # it imports scipy.special when a test uses that, not in each process of the tests

from suggest.samplers.normal import central_mass, log_mass, scaled_erfc, tails, truncated

FAR = 1e6  # beyond this, the probability is below the smallest double


def test_the_scaled_complementary_error_function_is_exact_everywhere() -> None:
    special = scipy.special
    t = np.concatenate([np.linspace(0, 12, 5001), np.logspace(-12, 9, 5001), [0.0]])
    np.testing.assert_allclose(scaled_erfc(t), special.erfcx(t), rtol=1e-14)
    standard = [math.erfc(x) * math.exp(x * x) for x in t[:5001:50]]
    np.testing.assert_allclose(scaled_erfc(t[:5001:50]), standard, rtol=1e-13)


def test_a_mass_from_far_below_is_the_log_of_the_distribution_from_one_tail_to_the_other() -> None:
    special = scipy.special
    x = np.concatenate(
        [np.linspace(-1e3, 10, 20_001), np.linspace(-6, 6, 4001), [-1e-300, 0.0, 1e-300]]
    )
    np.testing.assert_allclose(log_mass(np.full_like(x, -FAR), x), special.log_ndtr(x), rtol=1e-9)
    np.testing.assert_allclose(log_mass(-x, np.full_like(x, FAR)), special.log_ndtr(x), rtol=1e-9)


def test_the_mass_of_an_interval_is_exact_wherever_it_lies() -> None:
    special = scipy.special
    a = np.linspace(-40, 40, 3201)
    for width in (0.01, 0.5, 3.0, 100.0):
        b = a + width
        left, right = np.where(a + b > 0, -b, a), np.where(a + b > 0, -a, b)
        expected = special.log_ndtr(right) + np.log1p(
            -np.exp(special.log_ndtr(left) - special.log_ndtr(right))
        )
        np.testing.assert_allclose(log_mass(a, b), expected, rtol=1e-9, atol=1e-12)


def test_the_mass_around_the_centre_is_exact() -> None:
    special = scipy.special
    a, b = (
        each.ravel() for each in np.meshgrid(-np.linspace(0, 60, 301), np.linspace(0.01, 60, 301))
    )
    np.testing.assert_allclose(central_mass(a, b), special.ndtr(b) - special.ndtr(a), rtol=1e-12)


def test_a_truncated_normal_is_inverted_and_never_left() -> None:
    special = scipy.special
    rng = np.random.default_rng(1)
    q, a, b = rng.random(5000), -50 * rng.random(5000), 50 * rng.random(5000)
    z = truncated(q, a, b, tails(a, b))
    np.testing.assert_allclose(
        (special.ndtr(z) - special.ndtr(a)) / (special.ndtr(b) - special.ndtr(a)),
        q,
        rtol=0,
        atol=1e-12,
    )
    low, high = np.array([-3.0, -3.0]), np.array([2.0, 2.0])
    ends = truncated(np.array([0.0, 1 - 2**-53]), low, high, tails(low, high))
    np.testing.assert_allclose(ends, [-3, 2], atol=1e-9)
    assert ((a <= z) & (z <= b)).all()
    deep = 10.0 ** np.linspace(-15, -1, 200)
    wide = np.full_like(deep, 50.0)
    np.testing.assert_allclose(
        truncated(deep, -wide, wide, tails(-wide, wide)), special.ndtri(deep), rtol=1e-9
    )
