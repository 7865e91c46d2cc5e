"""The forecast of GPU-hours and money: from the timeout, from the first trials, then an interval."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from controller.app.validate import guess
from controller.core.budget import most_trials
from controller.core.forecast import MOST_TRIALS, Forecast, forecast, trials_left
from controller.core.model import Attempt, Budget, ExperimentState, Resources
from controller.core.spending import Spent
from controller.memory import Memory
from controller.report import description, documents
from controller.report.record import ExperimentRecord, TrialRecord
from controller.report.spending import amount, document, foreseen
from suggest.domain import Choice, Int
from suggest.space import Parameter, Space
from suggest.study import Algorithm
from suggest.trial import Trial, TrialState
from tests.unit.builders import RUNNING, SUCCEEDED, a_spec, a_template, a_trial, an_experiment, at

HOUR = 3600.0
RATE = Spent(1.0, 2.5)
TEMPLATE = replace(a_template(), resources=Resources(gpu=1.0), timeout_s=3 * HOUR)
SPEC = replace(
    a_spec(trial=TEMPLATE),
    budget=Budget(trials=60, gpu_hours=100.0),
)


GRID = (Parameter("x", Int(1, 4)), Parameter("y", Choice(("a", "b", "c"))))


def of(
    *hours: float, left: int = 60, running_h: Sequence[float] = (), spent_h: float = 0.0
) -> Forecast:
    found = forecast(
        SPEC,
        [each * HOUR for each in hours],
        seen=len(hours),
        left=left,
        running_s=[each * HOUR for each in running_h],
        rate=RATE,
        spent=RATE.times(spent_h),
    )
    assert found is not None
    return found


def test_before_a_trial_has_ended_its_timeout_bounds_it() -> None:
    assert of() == Forecast(RATE.times(180), seen=0)
    assert foreseen(SPEC, of()) == [
        "at most 180 of 100 GPU-hours, by trial.timeout without retries"
    ]


def test_without_a_timeout_nothing_is_known_before_a_trial_has_ended() -> None:
    endless = replace(SPEC, trial=replace(TEMPLATE, timeout_s=None))
    found = forecast(endless, [], seen=0, left=60, running_s=[], rate=RATE, spent=Spent())
    assert foreseen(endless, found) == []


def test_the_first_trial_gives_a_figure_without_an_interval() -> None:
    one = of(1.0, left=59, spent_h=1.0)
    assert one == Forecast(RATE.times(60), seen=1)
    assert foreseen(SPEC, one) == ["about 60 of 100 GPU-hours, from 1 trial"]


def test_what_runs_has_used_a_part_of_what_is_expected() -> None:
    assert of(1.0, left=59, running_h=[0.25], spent_h=1.25).expected.gpu_hours == pytest.approx(60)


def test_a_running_trial_is_expected_to_run_as_long_as_those_that_ran_longer() -> None:
    some = of(1.0, 1.0, 3.0, 5.0, left=10, running_h=[2.0], spent_h=12.0)
    mean_h = (1 + 1 + 3 + 4 + 5) / 5
    assert some.expected.gpu_hours == pytest.approx(12 + (4 - 2) + 9 * mean_h)


def test_what_runs_longer_than_all_that_have_ended_gives_a_lower_bound() -> None:
    few = of(1.0, 1.0, left=10, running_h=[2.0, 2.0, 2.0], spent_h=8.0)
    assert few == Forecast(RATE.times(8 + 7 * 8 / 5), seen=2, at_least=True)
    assert foreseen(SPEC, few) == ["at least 19.2 of 100 GPU-hours, from 2 trials"]


def test_one_of_many_that_runs_longest_runs_half_as_long_again() -> None:
    long = of(*[1.0] * 9, left=1, running_h=[2.0], spent_h=11.0)
    assert long.expected.gpu_hours == pytest.approx(12)
    assert long.high is not None
    assert long.high.gpu_hours > 12


def test_the_first_of_parallel_trials_to_end_do_not_make_the_forecast_too_low() -> None:
    draws, inside, bias = random.Random(11), 0, 0.0
    for _ in range(200):
        hours = [draws.lognormvariate(0, 0.5) for _ in range(60)]
        now, running, ended = 0.0, [(each, 0.0) for each in hours[:6]], list[float]()
        for begun in range(6, 30):
            now, began = min(running)
            running.remove((now, began))
            ended.append(now - began)
            running.append((now + hours[begun], now))
        ran = [now - began for _, began in running]
        found = of(*ended, left=36, running_h=ran, spent_h=sum(ended) + sum(ran))
        assert found.low is not None
        assert found.high is not None
        inside += found.low.gpu_hours <= sum(hours) <= found.high.gpu_hours
        bias += found.expected.gpu_hours / sum(hours) - 1
    assert inside >= 170
    assert abs(bias / 200) < 0.03


def test_a_search_of_many_trials_is_forecast_by_the_latest() -> None:
    memory = Memory(SPEC)
    for number in range(MOST_TRIALS + 100):
        memory.note_attempt(ran(number, 9.0 if number < 100 else 1.0))
    found = memory.forecast(at(0))
    assert found is not None
    assert found.seen == MOST_TRIALS + 100
    assert found.low == found.high


def test_three_trials_give_an_interval_around_the_same_figure() -> None:
    three = of(0.8, 1.0, 1.2, left=57, spent_h=3.0)
    assert three.low is not None
    assert three.high is not None
    assert three.expected.gpu_hours == pytest.approx(60)
    assert three.low.gpu_hours < 60 < three.high.gpu_hours
    assert three.high.cost == pytest.approx(2.5 * three.high.gpu_hours)
    assert foreseen(SPEC, three)[0].startswith("about 60 of 100 GPU-hours, 90 %: ")


def test_the_interval_never_says_less_than_what_is_used() -> None:
    wild = of(0.01, 0.01, 9.0, left=3, spent_h=9.02)
    assert wild.low is not None
    assert wild.low.gpu_hours == pytest.approx(9.02)


def test_nine_of_ten_intervals_have_the_truth() -> None:
    draws = random.Random(7)
    inside = 0
    for _ in range(1000):
        hours = [max(0.01, draws.gauss(1.0, 0.3)) for _ in range(60)]
        found = of(*hours[:12], left=48, spent_h=sum(hours[:12]))
        assert found.low is not None
        assert found.high is not None
        inside += found.low.gpu_hours <= sum(hours) <= found.high.gpu_hours
    assert 870 <= inside <= 930


def test_a_trial_counts_with_all_its_attempts() -> None:
    memory = Memory(SPEC)
    for attempt in (ran(0, 1.0), ran(1, 1.5), replace(ran(0, 2.0), number=2)):
        memory.note_attempt(attempt)
    found = memory.forecast(at(0))
    assert found is not None
    assert (found.seen, found.expected.gpu_hours) == (2, pytest.approx(4.5 + 60 * (3 + 1.5) / 2))


def test_trials_that_wait_for_a_larger_fidelity_are_no_longer_to_come() -> None:
    counts = {TrialState.SUCCEEDED: 3, TrialState.PAUSED: 7, TrialState.CANCELLED: 9}
    assert trials_left(60, counts) == 50


def test_a_grid_without_a_number_of_trials_is_forecast_by_its_points() -> None:
    budget, algorithm = Budget(gpu_hours=100.0), Algorithm("grid")
    grid = replace(SPEC, budget=budget, algorithm=algorithm, space=Space(GRID))
    assert most_trials(grid) == 12
    assert most_trials(replace(grid, budget=replace(budget, trials=5))) == 5
    assert trials_left(12, {TrialState.SUCCEEDED: 4, TrialState.CANCELLED: 3}) == 8
    one = TrialRecord(replace(a_trial(0), state=TrialState.SUCCEEDED), (ran(0, 2.0),))
    record = ExperimentRecord(an_experiment(grid), trials=[one])
    assert foreseen(grid, record.forecast(at(0))) == ["about 24 of 100 GPU-hours, from 1 trial"]


def test_lists_and_mappings_may_be_points_of_a_grid() -> None:
    layers = Parameter("layers", Choice(([64], [64, 64], {"first": 8})))
    assert most_trials(replace(SPEC, algorithm=Algorithm("grid"), space=Space((layers,)))) == 3


def test_a_grid_of_more_points_than_a_float_can_say_has_no_forecast() -> None:
    space = Space(tuple(Parameter(f"p{k}", Choice((False, True))) for k in range(1200)))
    budget, algorithm = Budget(gpu_hours=100.0), Algorithm("grid")
    assert most_trials(replace(SPEC, budget=budget, algorithm=algorithm, space=space)) is None


def test_a_search_without_any_end_has_no_forecast() -> None:
    endless = replace(SPEC, budget=Budget(gpu_hours=100.0), algorithm=Algorithm("random"))
    assert trials_left(most_trials(endless), {}) is None


def ran(trial: int, hours: float) -> Attempt:
    times = {"start_time": at(0), "end_time": at(hours * HOUR)}
    return Attempt(trial, 1, SUCCEEDED, gpus=1.0, price_per_hour=2.5, **times)  # type: ignore[arg-type]


def test_run_and_describe_say_the_same() -> None:
    ended = [ran(0, 0.8), ran(1, 1.0), ran(2, 1.2)]
    running = Attempt(3, 1, RUNNING, start_time=at(0), gpus=1.0, price_per_hour=2.5)
    memory, now = Memory(SPEC), at(HOUR / 2)
    records = []
    for attempt in ended:
        trial = Trial(int(attempt.trial), TrialState.SUCCEEDED, {}, value=0.5)  # type: ignore[call-overload]
        memory.note_attempt(attempt)
        memory.count(trial, attempt)
        records.append(TrialRecord(trial, (attempt,)))
    memory.note_attempt(running)
    memory.open(a_trial(3), [running])
    records.append(TrialRecord(a_trial(3), (running,)))
    spent = memory.spent(at(HOUR / 4))  # it is stored from time to time
    experiment = replace(an_experiment(SPEC), gpu_hours=spent.gpu_hours, cost=spent.cost)
    record = ExperimentRecord(experiment, trials=records, controlled_by="process 1")
    told = foreseen(SPEC, memory.forecast(now))
    assert told == foreseen(SPEC, record.forecast(now))
    described = description.describe_experiment(record, folder=None, now=now)
    assert f"Forecast:   {told[0]}\n" in described


def test_a_search_without_such_a_budget_has_no_forecast() -> None:
    record = ExperimentRecord(an_experiment(a_spec(trials=9)))
    assert record.forecast(at(0)) is None


@pytest.mark.parametrize(
    ("timeout_s", "sentence"),
    [
        (3 * HOUR, "180 of 100 GPU-hours if each of 60 trials runs its timeout of 3h00m"),
        (None, "60 of 100 GPU-hours if each of 60 trials runs an hour"),
    ],
)
def test_before_the_first_trial_a_guess_says_that_it_is_one(
    timeout_s: float | None, sentence: str
) -> None:
    spec = replace(SPEC, trial=replace(TEMPLATE, timeout_s=timeout_s))
    assert list(guess(spec)) == [f"a guess before the first trial: {sentence}"]


@pytest.mark.parametrize(("trials", "count"), [(None, 12), (60, 12), (5, 5)])
def test_a_grid_has_no_more_trials_than_points(trials: int | None, count: int) -> None:
    grid = replace(
        SPEC,
        budget=replace(SPEC.budget, trials=trials),
        algorithm=Algorithm("grid"),
        space=Space(GRID),
    )
    (said,) = guess(grid)
    assert f" of 100 GPU-hours if each of {count} trials runs " in said


def test_a_forecast_in_numbers_has_what_is_known() -> None:
    priced = replace(SPEC, prices={"nvidia.com/gpu": 2.5})
    assert document(priced, None) is None
    assert document(priced, of(1)) == {
        "trials": 1,
        "gpuHours": {"expected": 60},
        "cost": {"expected": 150},
    }
    assert document(replace(SPEC, prices={}), of(1, left=1, running_h=[2], spent_h=3)) == {
        "trials": 1,
        "atLeast": True,
        "gpuHours": {"expected": 3},
    }
    told = document(replace(SPEC, prices={}), of(1, 1.5, 2))
    assert told is not None
    assert told.keys() == {"trials", "gpuHours"}
    assert set(told["gpuHours"]) == {"expected", "low", "high"}


def test_describe_as_json_has_the_forecast_while_the_search_runs() -> None:
    running = ExperimentRecord(an_experiment(SPEC))
    assert documents.described(running, {}, at(0))["forecast"]["trials"] == 0
    ended = replace(an_experiment(SPEC), state=ExperimentState.SUCCEEDED)
    assert "forecast" not in documents.described(ExperimentRecord(ended), {}, at(0))


def test_a_huge_amount_is_a_power_of_ten() -> None:
    assert [amount(value) for value in (0.305, 1234.5, 1.6e299)] == ["0.305", "1234", "1.6e+299"]
