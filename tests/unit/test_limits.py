"""The file of limits, and how often a client may call under it."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from suggest.errors import InvalidArgument, LimitReached, RateLimited
from suggest.grpc_status import status_of
from suggest.server.limits_file import Limits, Quota, RateLimit, read_limits
from suggest.server.quota import QuotaStore, QuotaTracker
from suggest.server.rate_limits import RateLimiter
from suggest.storage.sqlite_store import SqliteStore
from suggest.storage.store import Counts

PAGE = Path(__file__).parents[2] / "docs" / "server.md"


def read(text: str) -> Limits:
    return read_limits(text.encode(), place="limits.yaml")


def test_the_most_specific_limit_applies_and_others_have_defaults() -> None:
    limits = read(
        """
        defaults: {rate: 50, trials: 1000, measurements: unlimited}
        namespaces:
          vision: {trials: 5, studies: 2}
        clients:
          nightly: {rate: unlimited}
          10.0.0.7: {burst: 7}
        """
    )
    assert limits.rate_of("somebody") == RateLimit(50, RateLimit().burst)
    assert limits.rate_of("nightly") == RateLimit(None, RateLimit().burst)
    assert limits.rate_of("10.0.0.7") == RateLimit(50, 7)
    assert limits.quota_of("default") == Quota(Quota().studies, 1000, None)
    assert limits.quota_of("vision") == Quota(2, 5, None)
    assert read("") == Limits()


def test_the_operators_page_shows_the_defaults() -> None:
    _, _, section = PAGE.read_text(encoding="utf-8").partition("\n## Limits\n")
    shown = read(section.partition("```yaml\n")[2].partition("```")[0])
    assert (shown.rate, shown.quota) == (RateLimit(), Quota())
    assert shown.quota_of("team-a") == Quota(50, 100_000, Quota().measurements)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("- 1", "limits.yaml: must have at least one of defaults, namespaces, clients below it"),
        ("default: {}", "limits.yaml: unknown key default.*did you mean defaults"),
        ("defaults: {trails: 5}", "limits.yaml: defaults: unknown key trails.*did you mean trials"),
        (
            "defaults: {trials: many}",
            "limits.yaml: defaults.trials: many is not a limit; use a whole number or unlimited",
        ),
        ("defaults: {trials: 1.5}", "defaults.trials: 1.5 is not a limit"),
        ("defaults: {trials: -1}", "defaults.trials: -1 is not a limit"),
        ("defaults: {trials: true}", "defaults.trials: True is not a limit"),
        ("defaults: {rate: 0}", "defaults.rate: 0 would lock everyone out"),
        ("defaults: {burst: 0.5}", "defaults.burst: must be at least 1"),
        ("defaults: {rate: .nan}", "defaults.rate: nan is not a limit"),
        ("namespaces: {Vision: {trials: 1}}", "namespaces.Vision: 'Vision' is not a name"),
        (
            "namespaces: {vision: {rate: 1}}",
            "namespaces.vision: unknown key rate; use studies, trials",
        ),
        ("namespaces: [vision]", "namespaces: must have names below it"),
        ("clients: {a: 7}", "clients.a: must have at least one of rate, burst below it"),
        (
            "clients: {a: {rate: 1}, a: {rate: 2}}",
            "limits.yaml:1: cannot be read as YAML, or has a name twice",
        ),
        ("defaults: {rate: [", "limits.yaml:.*cannot be read as YAML"),
        ("\0", "limits.yaml.*cannot be read as YAML"),
    ],
)
def test_an_invalid_file_of_limits_is_refused_with_its_place(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        read(text)


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def calls(rates: RateLimiter, client: str) -> int:
    """Return how many calls are admitted now."""
    done = 0
    try:
        while done < 1000:
            rates.take(client)
            done += 1
    except RateLimited:
        pass
    return done


def test_a_client_may_send_a_burst_and_then_its_rate() -> None:
    clock = Clock()
    limits = Limits(
        RateLimit(10, 20), rates={"nightly": RateLimit(None, 5), "slow": RateLimit(0.5, 1)}
    )
    rates = RateLimiter(lambda: limits, clock)
    assert calls(rates, "a") == 20
    assert calls(rates, "b") == 20, "each has its own"
    clock.now += 0.5
    assert calls(rates, "a") == 5
    clock.now += 1000
    assert calls(rates, "a") == 20
    assert calls(rates, "nightly") == 1000
    assert calls(rates, "slow") == 1
    with pytest.raises(RateLimited, match=r"slow sends more than 0\.5 calls a second") as refused:
        rates.take("slow")
    assert refused.value.retry_s == pytest.approx(2.0)
    clock.now += refused.value.retry_s
    assert calls(rates, "slow") == 1, "who waits as long as told is let in"


@pytest.mark.parametrize(
    ("retry_s", "milliseconds"), [(1e-9, 1), (0.0004, 1), (0.0241, 25), (2.0, 2000)]
)
def test_a_status_never_says_to_retry_too_early(retry_s: float, milliseconds: int) -> None:
    _, metadata = status_of(RateLimited("too many calls", retry_s=retry_s))
    retry = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(metadata[0][1]).details:
        detail.Unpack(retry)
    assert retry.retry_delay.ToMilliseconds() == milliseconds


def test_a_changed_rate_applies_at_once() -> None:
    clock, limits = Clock(), [Limits(RateLimit(10, 20))]
    rates = RateLimiter(lambda: limits[0], clock)
    assert calls(rates, "a") == 20
    limits[0] = Limits(RateLimit(1000, 20))
    clock.now += 0.01
    assert calls(rates, "a") == 10


def test_unknown_clients_cannot_fill_the_memory() -> None:
    clock = Clock()
    rates = RateLimiter(lambda: Limits(RateLimit(10, 20)), clock)
    for number in range(25_000):
        rates.take(f"2001:db8::{number:x}")
        clock.now += 0.001
    assert len(rates._buckets) <= 10_000


def test_room_that_was_made_is_found_before_the_next_refusal() -> None:
    counts = [Counts(studies=2)]
    tracker = QuotaTracker(
        lambda _: counts[0], lambda: read("namespaces: {team: {studies: 2}}"), Clock()
    )

    def create() -> None:
        with tracker.reserving("team", Counts(studies=1)):
            pass

    try:
        with pytest.raises(LimitReached, match="has 2 of the 2 studies"):
            create()
        counts[0] = Counts(studies=1)
        with pytest.raises(LimitReached):
            create()  # it was counted a moment ago
        tracker.deleted("team")
        create()
    finally:
        tracker.close()


def test_a_count_that_ran_during_a_deletion_is_repeated_before_a_refusal() -> None:
    clock, counts = Clock(), [2, 2, 1]

    def count(_: str) -> Counts:
        studies = counts.pop(0)
        clock.now += 1.0
        if len(counts) == 1:
            tracker.deleted("team")
        return Counts(studies=studies)

    def create() -> None:
        with tracker.reserving("team", Counts(studies=1)):
            pass

    tracker = QuotaTracker(count, lambda: read("namespaces: {team: {studies: 2}}"), clock)
    try:
        with pytest.raises(LimitReached):
            create()
        clock.now += 1000.0
        create()
        assert counts == []
    finally:
        tracker.close()


# Methods of a store that add no study, trial or measurement.
UNCOUNTED = frozenset(
    {
        "best_trials",
        "check",
        "contents",
        "copy_study",
        "counts",
        "curves",
        "latest_measurements",
        "measurements",
        "numbers_added_by",
        "page_sessions",
        "pages_of_trials",
        "decide",
        "relabel_trial",
        "release",
        "reopen_trials",
        "requeue",
        "still_held",
        "studies",
        "study",
        "take",
        "trial",
        "trial_added_by",
        "trial_counts",
        "trials",
        "update_study",
    }
)


def public(names: Iterable[str]) -> set[str]:
    return {name for name in names if not name.startswith("_")}


def test_every_method_of_a_store_reserves_quota_or_is_listed_as_adding_nothing(
    tmp_path: Path,
) -> None:
    with closing(QuotaStore(SqliteStore(tmp_path / "studies.db"), Limits)) as limited:
        reserving = public([*vars(QuotaStore), "observations"])
        assert reserving | UNCOUNTED == public(dir(limited))
        assert reserving & UNCOUNTED == set()


def test_every_method_of_the_observation_log_reserves_quota_or_only_reads(tmp_path: Path) -> None:
    with closing(QuotaStore(SqliteStore(tmp_path / "studies.db"), Limits)) as limited:
        log = limited.observations
        assert public(dir(log)) - public(vars(type(log))) == {
            "count",
            "database",
            "first_values",
            "read",
            "stopped",
        }
