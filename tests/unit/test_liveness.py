"""Which servers are silent, by the clock of the observer, as tables."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from suggest.storage.postgres_store import GAP_S, SILENCE_S, FailureDetector, Liveness

HOUR_US = 3600 * 10**6
ALIVE, SILENT, UNKNOWN = Liveness.ALIVE, Liveness.SILENT, Liveness.UNKNOWN
Looks = Iterable[tuple[float, int | None]]


def verdict(looks: Looks) -> Liveness:
    """Return the verdict of the last observation. A failed observation has no value."""
    detector, last = FailureDetector(), UNKNOWN
    for at, value in looks:
        if value is None:
            detector.interrupted()
        else:
            last = detector.look_at("other", value, began=at, ended=at)
    return last


def every_half_second(*values: int | None) -> Looks:
    return [(number / 2, value) for number, value in enumerate(values)]


@pytest.mark.parametrize(
    ("what", "looks", "expected"),
    [
        ("one look tells nothing", every_half_second(7), UNKNOWN),
        ("a heartbeat that changes is one", every_half_second(7, 8), ALIVE),
        ("so is one that goes back an hour", every_half_second(HOUR_US, 7), ALIVE),
        ("or forward", every_half_second(7, HOUR_US), ALIVE),
        ("nothing for a second", every_half_second(7, 7, 7), UNKNOWN),
        ("nothing for a second and a half", every_half_second(7, 7, 7, 7), SILENT),
        (
            "nothing, an hour in the future",
            every_half_second(HOUR_US, HOUR_US, HOUR_US, HOUR_US),
            SILENT,
        ),
        ("an old heartbeat may be a clock that jumped", every_half_second(0), UNKNOWN),
        ("silence is measured from the last change", every_half_second(7, 7, 7, 8, 8, 8), ALIVE),
        ("and ends a life that was seen", every_half_second(7, 8, 8, 8, 8), SILENT),
        ("two looks far apart", [(0.0, 7), (60.0, 7)], UNKNOWN),
        (
            "two looks far apart, and regular ones after",
            [(0.0, 7), (60.0, 7), (60.9, 7), (61.5, 7)],
            SILENT,
        ),
        ("the database was away", every_half_second(7, 7, None, None, None, 7), UNKNOWN),
        ("the database was away for a moment", every_half_second(7, 7, 7, None, 7), UNKNOWN),
        (
            "the database was away, and nobody came back",
            every_half_second(7, None, 7, 7, 7, 7),
            SILENT,
        ),
    ],
)
def test_a_server_is_silent_after_regular_looks_at_one_heartbeat(
    what: str, looks: Looks, expected: Liveness
) -> None:
    assert verdict(looks) is expected, what


def test_a_slow_look_does_not_lengthen_the_silence() -> None:
    detector = FailureDetector()
    detector.look({"other": 7}, began=0.0, ended=0.9)
    assert detector.look_at("other", 7, began=1.0, ended=1.8) is UNKNOWN
    assert detector.look_at("other", 7, began=0.9 + SILENCE_S, ended=2.5) is SILENT


def test_a_server_that_is_gone_is_forgotten() -> None:
    detector = FailureDetector()
    detector.look({"other": 7}, began=0.0, ended=0.0)
    detector.look({}, began=GAP_S, ended=GAP_S)
    assert detector.silent_for(0.0, 100.0) == {}
