"""No object is created that a quota would refuse, none waits that fits,
and one that never fits is reported.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.runtime.kubernetes.resource_quota import (
    SETTLE_S,
    Demand,
    Reservations,
    charge,
    demand_of,
    never_fits,
    reason_to_wait,
    with_defaults,
)

Raw = dict[str, Any]
GPU = "requests.nvidia.com/gpu"


def quota(
    hard: dict[str, str],
    used: dict[str, str] | None = None,
    *,
    name: str = "room",
    version: int = 1,
    **spec: Any,
) -> Raw:
    used = dict.fromkeys(hard, "0") if used is None else used
    return {
        "metadata": {"name": name, "resourceVersion": str(version)},
        "spec": {"hard": hard, **spec},
        "status": {"hard": hard, "used": used},
    }


def gpus(count: int, pods: int = 1) -> Demand:
    return Demand(pods, {GPU: Decimal(count), "requests.cpu": Decimal(1)}, {"count/jobs.batch": 1})


def pod(name: str, of: str, *, asks: int = 1, version: int = 1, phase: str = "Running") -> Raw:
    resources = {"requests": {"nvidia.com/gpu": str(asks), "cpu": "1"}}
    return {
        "metadata": {
            "name": name,
            "resourceVersion": str(version),
            "labels": {"batch.kubernetes.io/job-name": of},
        },
        "spec": {"containers": [{"name": "trial", "resources": resources}]},
        "status": {"phase": phase},
    }


class ManualClock:
    """A clock that the test advances."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def waits(demand: Demand, *quotas: Raw) -> str:
    return reason_to_wait(demand, quotas, Reservations(ManualClock()))


@pytest.mark.parametrize(
    ("hard", "used", "reason"),
    [
        ({GPU: "8"}, {GPU: "7"}, ""),
        ({GPU: "8"}, {GPU: "8"}, f"QuotaExceeded: {GPU} 8/8 (quota room)"),
        ({GPU: "8"}, {GPU: "9"}, f"QuotaExceeded: {GPU} 9/8 (quota room)"),
        ({"cpu": "1500m"}, {"cpu": "600m"}, "QuotaExceeded: cpu 600m/1500m (quota room), needs 1"),
        ({"count/pods": "4"}, {"count/pods": "4"}, "QuotaExceeded: count/pods 4/4 (quota room)"),
        (
            {"count/jobs.batch": "2"},
            {"count/jobs.batch": "2"},
            "QuotaExceeded: count/jobs.batch 2/2 (quota room)",
        ),
        (
            {"requests.memory": "1Gi", "secrets": "0"},
            {"requests.memory": "2Gi", "secrets": "5"},
            "",
        ),
        ({GPU: "8"}, {}, f"QuotaUnknown: {GPU} is not counted yet (quota room)"),
    ],
)
def test_an_attempt_waits_while_a_quota_has_no_room_for_it(
    hard: dict[str, str], used: dict[str, str], reason: str
) -> None:
    assert waits(gpus(1), quota(hard, used)) == reason


def test_all_workers_of_an_attempt_are_counted_together() -> None:
    workers = Demand(2, {GPU: Decimal(1)}, others=(Demand(1, {GPU: Decimal(4)}),))
    assert charge(workers, quota({GPU: "8", "pods": "8"})) == {GPU: 6, "pods": 3}


def selector(operator: str, *values: str) -> Raw:
    return {
        "matchExpressions": [
            {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
        ]
    }


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"scopes": ["BestEffort"]}, False),
        ({"scopes": ["NotBestEffort"]}, True),
        ({"scopes": ["Terminating"]}, False),
        ({"scopes": ["NotTerminating", "NotBestEffort"]}, True),
        ({"scopes": ["NotTerminating", "BestEffort"]}, False),
        ({"scopes": ["PriorityClass"]}, True),
        ({"scopes": ["CrossNamespacePodAffinity"]}, False),
        ({"scopeSelector": selector("In", "low", "high")}, True),
        ({"scopeSelector": selector("In", "low")}, False),
        ({"scopeSelector": selector("NotIn", "low")}, True),
        ({"scopeSelector": selector("DoesNotExist")}, False),
        ({"scopeSelector": selector("Exists"), "scopes": ["NotBestEffort"]}, True),
    ],
)
def test_a_quota_counts_only_pods_in_all_its_scopes_and_no_other_objects(
    spec: Raw, counts: bool
) -> None:
    demand = Demand(1, {"requests.cpu": Decimal(1)}, {"count/jobs.batch": 1}, priority_class="high")
    taken = charge(demand, quota({"pods": "1", "count/jobs.batch": "1"}, **spec))
    assert taken == ({"pods": 1} if counts else {})


# The reservations


def test_a_launch_is_added_to_the_usage_until_the_quota_has_counted_its_pod() -> None:
    reservations = Reservations(ManualClock())
    reservations.launched("a", gpus(1))
    assert (
        reason_to_wait(gpus(1), [quota({GPU: "1"})], reservations)
        == f"QuotaExceeded: {GPU} 1/1 (quota room)"
    )
    reservations.look([pod("a-x", "a", version=7), pod("stranger", "b", version=8)])
    late = quota({GPU: "2"}, {GPU: "2"}, version=6)
    assert reason_to_wait(gpus(1), [late], reservations) == f"QuotaExceeded: {GPU} 2/2 (quota room)"
    assert reason_to_wait(gpus(1), [quota({GPU: "2"}, {GPU: "1"}, version=6)], reservations) != ""
    assert reason_to_wait(gpus(1), [quota({GPU: "2"}, {GPU: "1"}, version=7)], reservations) == ""


def test_an_unchanged_quota_is_trusted_after_a_while() -> None:
    clock = ManualClock()
    reservations = Reservations(clock)
    reservations.launched("a", gpus(1))
    reservations.look([pod("a-x", "a", version=7)])
    counted = quota(
        {GPU: "2", "count/jobs.batch": "2"}, {GPU: "1", "count/jobs.batch": "1"}, version=6
    )
    assert reason_to_wait(gpus(1), [counted], reservations) != ""
    clock.now_s += SETTLE_S
    assert reason_to_wait(gpus(1), [counted], reservations) == ""


def test_missing_pods_are_added_to_the_usage_one_by_one_until_they_appear() -> None:
    clock = ManualClock()
    reservations = Reservations(clock)
    reservations.launched("a", gpus(1, pods=3))
    clock.now_s += 600
    reservations.look([pod("a-0", "a")])
    clock.now_s += SETTLE_S
    assert reservations.on_top(quota({GPU: "8"}))[GPU] == 2
    reservations.look([pod("a-0", "a"), pod("a-1", "a"), pod("a-2", "a", phase="Succeeded")])
    clock.now_s += SETTLE_S
    assert reservations.on_top(quota({GPU: "8"})).get(GPU, 0) == 0


def test_a_live_pod_counts_even_if_the_server_has_recounted_without_it() -> None:
    clock = ManualClock()
    reservations = Reservations(clock)
    for name in ("a", "b"):
        reservations.launched(name, gpus(1))
    reservations.look([pod("a-x", "a", version=5), pod("b-x", "b", version=6)])
    clock.now_s = 100
    forgetful = quota({GPU: "2"}, used={GPU: "1"}, version=9)
    assert (
        reason_to_wait(gpus(1), [forgetful], reservations)
        == f"QuotaExceeded: {GPU} 2/2 (quota room)"
    )
    reservations.ended("a")
    assert reason_to_wait(gpus(1), [forgetful], reservations) == ""
    reservations.launched("c", gpus(1))
    reservations.forget("c")
    assert reason_to_wait(gpus(1), [forgetful], reservations) == ""


def test_a_withdrawn_reservation_no_longer_counts() -> None:
    reservations = Reservations(ManualClock())
    reservations.launched("a", gpus(1))
    reservations.forget("a")
    assert reason_to_wait(gpus(1), [quota({GPU: "1"})], reservations) == ""


class Cluster:
    """A quota as the server keeps it, seen late: versions of it, and pods, each in their order.

    Charged before a pod is stored; taken off some time after it has ended.
    """

    def __init__(self, room: int, strangers: int) -> None:
        self.version = 1
        self.room = room
        self.used = strangers
        self.strangers = strangers
        self.jobs: list[tuple[str, int]] = []  # whose pods are not made yet
        self.running: dict[str, int] = {}
        self.charged: list[int] = []  # of pods that have ended
        self.quota_events = [self.quota()]
        self.pod_events: list[Raw] = []
        self.refused = 0

    def quota(self) -> Raw:
        return quota({GPU: str(self.room)}, {GPU: str(self.used)}, version=self.version)

    def charge(self, amount: int) -> None:
        self.version += 1
        self.used += amount
        self.quota_events.append(self.quota())

    def make_pod(self) -> None:
        if self.jobs:
            name, asks = self.jobs.pop(0)
            if self.used + asks > self.room:
                self.refused += 1
                return
            self.charge(asks)
            self.version += 1
            self.running[name] = asks
            self.pod_events.append(pod(f"{name}-x", name, asks=asks, version=self.version))

    def end_pod(self) -> None:
        if self.running:
            name = next(iter(self.running))
            asks = self.running.pop(name)
            self.charged.append(asks)
            self.version += 1
            self.pod_events.append(
                pod(f"{name}-x", name, asks=asks, version=self.version, phase="Succeeded")
            )

    def take_off(self) -> None:
        if self.charged:
            self.charge(-self.charged.pop(0))


STEPS = ("launch", "make_pod", "end_pod", "take_off", "quota_events", "pod_events", "tick")


@settings(max_examples=100, deadline=None)
@given(
    room=st.integers(1, 6),
    strangers=st.integers(0, 3),
    asks=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    steps=st.lists(st.sampled_from(STEPS), min_size=60, max_size=120),
)
def test_late_events_neither_exceed_the_quota_nor_block_a_fitting_trial(
    room: int, strangers: int, asks: list[int], steps: list[str]
) -> None:
    cluster, clock = Cluster(room, min(strangers, room)), ManualClock()
    reservations, shown, pods = Reservations(clock), cluster.quota_events.pop(), dict[str, Raw]()
    queue = [
        (f"job-{number}", each)
        for number, each in enumerate(asks)
        if each <= room - cluster.strangers
    ]

    def see_quota() -> None:
        nonlocal shown
        if cluster.quota_events:
            shown = cluster.quota_events.pop(0)

    def see_pod() -> None:
        if cluster.pod_events:
            seen = cluster.pod_events.pop(0)
            pods[seen["metadata"]["name"]] = seen
            reservations.look(pods.values())
            if seen["status"]["phase"] == "Succeeded":
                reservations.ended(seen["metadata"]["labels"]["batch.kubernetes.io/job-name"])

    def launch() -> bool:
        reservations.look(pods.values())
        if queue and not reason_to_wait(gpus(queue[0][1]), [shown], reservations):
            name, each = queue.pop(0)
            cluster.jobs.append((name, each))
            reservations.launched(name, gpus(each))
            return True
        return False

    def tick() -> None:
        """Advance the time; quota events are never later than this."""
        while cluster.quota_events:
            see_quota()
        clock.now_s += SETTLE_S

    actions = {"launch": launch, "quota_events": see_quota, "pod_events": see_pod, "tick": tick}
    for step in steps:
        actions[step]() if step in actions else getattr(cluster, step)()
        assert cluster.used <= room
    for _ in range(len(asks) + 1):
        # All events have arrived, and running jobs continue: a job that still waits does not fit.
        while cluster.jobs or cluster.pod_events or cluster.quota_events or cluster.charged:
            cluster.make_pod()
            cluster.take_off()
            see_pod()
            see_quota()
        tick()
        while launch():
            pass
        if not cluster.jobs and queue:
            assert cluster.used + queue[0][1] > room
            cluster.end_pod()
    assert cluster.refused == 0


def test_when_all_attempts_have_ended_no_reservation_is_left() -> None:
    clock = ManualClock()
    reservations = Reservations(clock)
    for number in range(3):
        reservations.launched(f"job-{number}", gpus(1))
        reservations.look([pod(f"job-{number}-x", f"job-{number}")])
        clock.now_s += SETTLE_S
        reservations.look([])
    assert reservations.on_top(quota({GPU: "8", "pods": "8"})) == {}


def test_unseen_pods_of_an_ended_attempt_stop_counting() -> None:
    clock = ManualClock()
    reservations = Reservations(clock)
    # nobody waits: one of its two pods is deleted unseen
    reservations.launched("a", gpus(1, pods=2))
    clock.now_s += 600
    reservations.ended("a")
    reservations.look([pod("a-1", "a", phase="Failed")])
    empty = quota({GPU: "2"}, {GPU: "0"}, version=9)
    assert reason_to_wait(gpus(1, pods=2), [empty], reservations) != ""
    clock.now_s += SETTLE_S
    reservations.ended("a")  # told again at each look
    assert reason_to_wait(gpus(1, pods=2), [empty], reservations) == ""
    reservations.look([])
    assert reservations._launched == {}


# What can never be


def limit_range(kind: str = "Container", **rule: Raw) -> Raw:
    return {"metadata": {"name": "limits"}, "spec": {"limits": [{"type": kind, **rule}]}}


@pytest.mark.parametrize(
    ("demand", "quotas", "limits", "said"),
    [
        (gpus(8), [quota({GPU: "8"}, {GPU: "8"})], [], ""),
        (
            gpus(3, pods=3),
            [quota({GPU: "8"})],
            [],
            f"{GPU} 9 is above 8, all that quota room allows",
        ),
        (
            gpus(1),
            [quota({"limits.memory": "1Gi"})],
            [],
            "quota room counts limits.memory, so every trial must request it: set "
            "spec.trial.resources",
        ),
        (gpus(1), [quota({"limits.memory": "1Gi"})], [limit_range(default={"memory": "1Gi"})], ""),
        (
            gpus(1),
            [quota({"limits.memory": "1Gi"})],
            [limit_range(default={"memory": "2Gi"})],
            "limits.memory 2Gi is above 1Gi, all that quota room allows",
        ),
        (gpus(1), [quota({"limits.memory": "1Gi"}, scopes=["Terminating"])], [], ""),
        (
            gpus(1),
            [],
            [limit_range(max={"cpu": "500m"})],
            "cpu 1 is above 500m, the most that LimitRange limits allows a container",
        ),
        (
            gpus(1),
            [],
            [limit_range("Pod", min={"memory": "1Gi"})],
            "memory 0 is below 1Gi, the least that LimitRange limits allows a pod",
        ),
        (
            Demand(1, {"requests.cpu": Decimal(2)}, containers=2),
            [],
            [limit_range(max={"cpu": "1"})],
            "",
        ),
    ],
)
def test_a_request_above_the_whole_quota_is_reported(
    demand: Demand, quotas: list[Raw], limits: list[Raw], said: str
) -> None:
    assert never_fits(demand, quotas, limits) == said


def test_defaults_of_the_namespace_apply_to_trials_without_requests() -> None:
    bare = demand_of(
        [{"kind": "Pod", "apiVersion": "v1", "spec": {"containers": [{"name": "trial"}]}}]
    )
    filled = with_defaults(
        bare, [limit_range(default={"cpu": "2"}, defaultRequest={"cpu": "1", "memory": "1Gi"})]
    )
    assert (bare.best_effort, filled.best_effort) == (True, False)
    assert filled.per_pod == {"requests.cpu": 1, "limits.cpu": 2, "requests.memory": 2**30}
