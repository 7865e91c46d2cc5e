"""What attempts use: GPU-hours and money, counted over retries, preemptions and the final stage."""

from __future__ import annotations

from dataclasses import replace

import pytest

from controller.core.budget import until_used_up_s
from controller.core.model import (
    FINAL,
    Attempt,
    Budget,
    ExperimentSpec,
    Resources,
)
from controller.core.spending import Spent, price_per_hour, spent_by, spent_by_all
from controller.core.states import Ended, ObservedRunning, Waits, step
from controller.memory import Memory
from controller.runtime.requested import attempt_rate, gpus_of, is_gpu, requested
from tests.unit.builders import FAILED, PRUNED, RUNNING, SUCCEEDED, a_spec, a_template, a_trial, at

PRICES = {"nvidia.com/gpu": 2.5, "cpu": 0.04, "memory": 0.005}
RESOURCES = Resources(cpu=4.0, memory_bytes=16 << 30, gpu=2.0)
SPEC = replace(
    a_spec(trial=replace(a_template(), resources=RESOURCES)),
    budget=Budget(gpu_hours=10.0, cost=30.0),
    prices=PRICES,
)
RATE = Spent(2.0, 2 * 2.5 + 4 * 0.04 + 16 * 0.005)
NEW = Attempt(0, 1, gpus=RATE.gpu_hours, price_per_hour=RATE.cost)
HOUR = 3600


def ran(
    hours: float,
    state: object = SUCCEEDED,
    *,
    trial: object = 0,
    number: int = 1,
    from_s: float = 0,
) -> Attempt:
    times = {"start_time": at(from_s), "end_time": at(from_s + hours * HOUR)}
    return replace(NEW, trial=trial, number=number, state=state, **times)  # type: ignore[arg-type]


def test_the_price_of_an_hour_counts_each_resource_and_each_gib_of_memory() -> None:
    assert price_per_hour(PRICES, requested(SPEC.trial)) == pytest.approx(5.24)


def test_a_resource_without_a_price_costs_nothing() -> None:
    assert price_per_hour({"cpu": 1.0}, {"cpu": 3.0, "nvidia.com/gpu": 8.0}) == 3.0


def test_every_worker_of_an_attempt_is_counted() -> None:
    cluster = {"distributed": {"workers": 4}}
    assert requested(replace(SPEC.trial, cluster=cluster)) == {
        "cpu": 16.0,
        "memory": 64 << 30,
        "nvidia.com/gpu": 8.0,
    }


def test_other_vendors_have_gpus_too() -> None:
    amd = Resources(extended={"amd.com/gpu": 2, "example.com/license": 1})
    assert gpus_of(replace(SPEC.trial, resources=amd)) == 2


def test_a_template_with_a_resource_that_a_parameter_sets_cannot_be_counted() -> None:
    container = {"resources": {"requests": {"cpu": "${cores}"}}}
    manifest = {"kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}
    with pytest.raises(ValueError, match="is not a quantity"):
        requested(replace(SPEC.trial, cluster={"template": manifest}))


def test_what_a_parameter_sets_is_counted_by_the_parameters_of_the_trial() -> None:
    container = {"resources": {"requests": {"cpu": "${cores}", "nvidia.com/gpu": "${gpus}"}}}
    manifest = {"kind": "Job", "spec": {"template": {"spec": {"containers": [container]}}}}
    template = replace(SPEC.trial, cluster={"template": manifest})
    assert attempt_rate(SPEC, template) == Spent()
    memory = Memory(replace(SPEC, trial=template))
    memory.open(replace(a_trial(0), parameters={"cores": 4, "gpus": 2}), [])
    assert memory.rate_of_next(0) == Spent(2, 2 * 2.5 + 4 * 0.04)


@pytest.mark.parametrize("state", [SUCCEEDED, FAILED, PRUNED])
def test_an_attempt_uses_what_it_requests_until_its_end_whatever_that_is(state: object) -> None:
    assert spent_by(ran(1.5, state), now=at(99 * HOUR)) == RATE.times(1.5)


def test_a_running_attempt_has_used_what_it_ran_so_far() -> None:
    running = replace(NEW, state=RUNNING, start_time=at(0))
    assert spent_by(running, now=at(HOUR)) == RATE


def test_an_attempt_that_waits_uses_nothing() -> None:
    assert spent_by(NEW, now=at(HOUR)) == Spent()


def test_an_attempt_counts_nothing_between_its_preemption_and_its_next_start() -> None:
    attempt = step(NEW, ObservedRunning(at(0)))
    attempt = step(attempt, Waits("preempted by Kueue", at(HOUR)))
    attempt = step(attempt, Waits("no room", at(2 * HOUR)))
    assert spent_by(attempt, now=at(5 * HOUR)) == RATE
    attempt = step(attempt, ObservedRunning(at(5 * HOUR)))
    attempt = step(attempt, Ended(SUCCEEDED, at(7 * HOUR)))
    assert spent_by(attempt, now=at(9 * HOUR)) == RATE.times(3)


def test_clocks_that_disagree_give_no_money_back() -> None:
    assert spent_by(ran(-1), now=at(0)) == Spent()


def test_the_memory_keeps_one_sum_over_retries_the_final_stage_and_what_runs() -> None:
    memory = Memory(SPEC)
    ended = [
        ran(1, FAILED),
        ran(0.5, PRUNED, number=2),
        ran(2, trial=1),
        ran(0.25, trial=FINAL),
    ]
    for attempt in ended:
        memory.note_attempt(attempt)
    running = replace(NEW, trial=2, state=RUNNING, start_time=at(HOUR))
    memory.note_attempt(running)
    memory.open(a_trial(2), [running])
    now = at(3 * HOUR)
    expected = spent_by_all([*ended, running], now=now)
    assert expected.gpu_hours == pytest.approx(2 * (3.75 + 2))
    assert memory.spent(now).cost == pytest.approx(expected.cost)
    assert memory.spending_rate() == RATE


def test_the_next_attempt_is_counted_by_the_file_in_force() -> None:
    assert Memory(SPEC).rate_of_next(0) == RATE
    final = replace(SPEC.trial, resources=Resources(gpu=1.0))
    assert Memory(replace(SPEC, final=final)).rate_of_next(FINAL) == Spent(1.0, 2.5)


@pytest.mark.parametrize(
    ("spec", "rate", "seconds"),
    [
        (SPEC, Spent(2.0, 1.0), 4 * HOUR),
        (SPEC, Spent(1.0, 10.0), 2 * HOUR),
        (SPEC, Spent(), None),
        (a_spec(), Spent(2.0, 5.0), None),
    ],
)
def test_the_loop_wakes_when_what_runs_reaches_the_first_limit(
    spec: ExperimentSpec, rate: Spent, seconds: float | None
) -> None:
    assert until_used_up_s(spec, Spent(2.0, 10.0), rate) == seconds


@pytest.mark.parametrize(
    ("resource", "counts"),
    [
        ("nvidia.com/gpu", True),
        ("nvidia.com/gpu.shared", True),
        ("nvidia.com/mig-1g.10gb", True),
        ("amd.com/gpu", True),
        ("gpu.intel.com/i915", True),
        ("aliyun.com/gpu-count", True),
        ("volcano.sh/vgpu-number", True),
        ("habana.ai/gaudi", True),
        ("nvidia.com/gpumem", False),
        ("nvidia.com/gpumem-percentage", False),
        ("nvidia.com/gpucores", False),
        ("nvidia.com/priority", False),
        ("aliyun.com/gpu-mem", False),
        ("volcano.sh/vgpu-memory", False),
        ("koordinator.sh/gpu-core", False),
        ("gpu.intel.com/memory.max", False),
        ("gpu.intel.com/tiles", False),
        ("gpu.intel.com/i915_monitoring", False),
        ("nvidia.com/hostdev", False),
        ("amd.com/nic", False),
        ("rdma/hca", False),
        ("cpu", False),
        ("gpu", False),
    ],
)
def test_a_gpu_counts_and_not_what_is_requested_beside_it(resource: str, counts: bool) -> None:
    assert is_gpu(resource) == counts
