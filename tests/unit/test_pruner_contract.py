"""The contract of every pruning rule in the registry."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from random import Random
from types import FrameType

import pytest

from suggest.curves import Curve, TrialCurve
from suggest.pruners import new_pruner, pruning_problems, rules
from suggest.space import Value
from suggest.study import Objective, Pruning
from suggest.trial import StopAdvice, TrialState
from tests.unit.pruning_histories import (
    DrawnEvent,
    EngineReplay,
    a_study,
    draw_history,
    learning_curve,
    negated,
)
from tests.unit.searches import MAXIMIZE, MINIMIZE, RUNNING, SUCCEEDED, THOROUGH, accuracy, seeds

NAMES = [rule.name for rule in rules()]
# Settings under which short histories have verdicts.
EAGER: dict[str, dict[str, Value]] = {
    "median": {"minTrials": 2},
    "percentile": {"minTrials": 2, "percentile": 40},
    "threshold": {"lower": 0.2},
    "patient": {"patience": 2},
    "optuna:median": {"nStartupTrials": 2},
    "optuna:percentile": {"nStartupTrials": 2},
    "optuna:threshold": {"lower": 0.2},
    "optuna:patient": {"patience": 2},
}
UPSIDE_DOWN: dict[str, dict[str, Value]] = {
    "threshold": {"upper": -0.2},
    "optuna:threshold": {"upper": -0.2},
}
WARMUP = ("warmupSteps", "minSteps", "nWarmupSteps", "minResource", "nStartupSteps")
# Their verdicts depend on the order of arrival at a rung, which Optuna records and curves do not.
BY_ARRIVAL = ("optuna:successive-halving", "optuna:hyperband")
# which look at no other trial
ALONE = ("threshold", "patient", "optuna:threshold", "optuna:patient")
NEVER = ("optuna:nop",)
SLOW = "optuna:wilcoxon"  # a verdict takes up to a tenth of a second


@pytest.mark.parametrize("name", NAMES)
class TestPrunerContract:
    def settings(self, name: str) -> dict[str, Value]:
        return EAGER.get(name, {})

    def seeds(self, name: str, count: int) -> range:
        return seeds(count) if name == SLOW else range(count if THOROUGH else (count + 1) // 2)

    def history(self, name: str, seed: int, odd: float = 0.0) -> list[DrawnEvent]:
        return (
            draw_history(seed, trials=12, steps=10, odd=odd)
            if name == SLOW
            else draw_history(seed, odd=odd)
        )

    def test_its_defaults_are_right(self, name: str) -> None:
        assert list(pruning_problems(Pruning(name))) == []
        assert list(pruning_problems(Pruning(name, self.settings(name)))) == []

    def test_it_stops_some_trials_and_says_why_in_one_sentence_with_figures(
        self, name: str
    ) -> None:
        advices = [
            advice
            for seed in self.seeds(name, 8)
            for advice in EngineReplay(a_study(name, self.settings(name))).apply_all(
                self.history(name, seed)
            )
            if advice is not None
        ]
        reasons = [advice.reason for advice in advices if advice.should_stop]
        assert {advice.reason for advice in advices if not advice.should_stop} == {""}
        assert bool(reasons) != (name in NEVER)
        for reason in reasons:
            assert any(c.isdigit() for c in reason), reason
            assert reason.startswith("accuracy ")
            assert "\n" not in reason
            assert not reason.endswith(".")

    def test_the_same_history_gives_the_same_verdicts(self, name: str) -> None:
        for seed in self.seeds(name, 3):
            first = EngineReplay(a_study(name, self.settings(name))).apply_all(
                self.history(name, seed, odd=0.05)
            )
            assert (
                EngineReplay(a_study(name, self.settings(name))).apply_all(
                    self.history(name, seed, odd=0.05)
                )
                == first
            )

    def test_the_verdict_on_a_curve_does_not_change_until_the_curve_grows(self, name: str) -> None:
        replay = EngineReplay(a_study(name, self.settings(name)))
        advices: dict[int, StopAdvice] = {}
        for event in self.history(name, 5):
            advice = replay.apply(event)
            if advice is not None:
                advices[event.number] = advice
                repeated = replay.apply(event)  # a report that is sent twice
                assert repeated == advice
            for number in replay.running():
                assert replay.engine.advise(number) == advices[number]

    def test_a_restart_in_the_middle_changes_no_later_verdict(self, name: str) -> None:
        if name in BY_ARRIVAL:
            pytest.skip("depends on the order of arrival")
        for seed in self.seeds(name, 3):
            events = self.history(name, seed, odd=0.02)
            whole = EngineReplay(a_study(name, self.settings(name))).apply_all(events)
            for middle in (len(events) // 3, len(events) // 2):
                replay = EngineReplay(a_study(name, self.settings(name)))
                replay.apply_all(events[:middle])
                replay.restart()
                assert replay.apply_all(events[middle:]) == whole[middle:]

    def test_the_order_in_which_others_came_does_not_matter(self, name: str) -> None:
        if name in BY_ARRIVAL:
            pytest.skip("depends on the order of arrival")
        draw = Random(3)
        others = [trial_curve(n, learning_curve(draw, 12), SUCCEEDED) for n in range(20)]
        others += [
            trial_curve(n, learning_curve(draw, 5), TrialState.PRUNED) for n in range(20, 30)
        ]
        own = [trial_curve(n, learning_curve(draw, 9), RUNNING) for n in range(30, 50)]
        expected = self.verdicts(name, others, own)
        for _ in range(3):
            draw.shuffle(others)
            assert self.verdicts(name, others, own) == expected

    def verdicts(
        self, name: str, others: list[TrialCurve], own: list[TrialCurve]
    ) -> list[StopAdvice]:
        advices = []
        for trial in own:
            pruner = new_pruner(Pruning(name, self.settings(name)), Objective("accuracy", MAXIMIZE))
            for other in others:
                pruner.put(other)
            pruner.put(trial)
            advices.append(pruner.judge(trial, before=None))
        return advices

    def test_minimizing_the_negated_values_has_the_same_verdicts(self, name: str) -> None:
        for seed in self.seeds(name, 4):
            events = self.history(name, seed, odd=0.02)
            up = EngineReplay(a_study(name, self.settings(name))).apply_all(events)
            other = UPSIDE_DOWN.get(name, self.settings(name))
            down = EngineReplay(a_study(name, other, MINIMIZE)).apply_all(negated(events))
            assert [a and a.should_stop for a in up] == [a and a.should_stop for a in down]

    def test_equal_trials_continue(self, name: str) -> None:
        replay = EngineReplay(a_study(name, self.settings(name)))
        for number in range(8 if name == SLOW else 16):
            for step in range(8):
                advice = replay.apply(DrawnEvent(number, tuple(accuracy(0.5, first=step))))
                assert advice == StopAdvice(False)
            replay.apply(DrawnEvent(number, end=SUCCEEDED))

    def test_a_single_trial_continues(self, name: str) -> None:
        if name in ALONE:
            pytest.skip("looks at no other trial")
        replay = EngineReplay(a_study(name, self.settings(name)))
        for step, value in enumerate(learning_curve(Random(1), 40)):
            assert replay.apply(DrawnEvent(0, tuple(accuracy(value, first=step)))) == StopAdvice(
                False
            )

    def test_nan_and_infinities_are_judged_like_other_values(self, name: str) -> None:
        for seed in self.seeds(name, 4):
            advices = EngineReplay(a_study(name, self.settings(name))).apply_all(
                self.history(name, seed, odd=0.4)
            )
            assert all(isinstance(advice, StopAdvice | None) for advice in advices)
        replay = EngineReplay(a_study(name, self.settings(name)))
        for number, value in enumerate((math.nan, math.inf, -math.inf, 0.5) * 4):
            replay.apply_all(
                [
                    DrawnEvent(number, tuple(accuracy(*[value] * 9))),
                    DrawnEvent(number, end=SUCCEEDED),
                ]
            )

    def test_values_however_large_or_small(self, name: str) -> None:
        for values in ((1e300, -1e300), (1.7e308, -1.7e308), (1e-300, 2e-300), (5e-324, 0.0)):
            replay = EngineReplay(a_study(name, self.settings(name)))
            for number in range(12):
                curve = [values[(number + step) % 2] for step in range(5 if name == SLOW else 9)]
                advice = replay.apply(DrawnEvent(number, tuple(accuracy(*curve))))
                assert isinstance(advice, StopAdvice), values
                replay.apply(DrawnEvent(number, end=SUCCEEDED))

    def test_a_trial_is_not_compared_with_failed_ones(self, name: str) -> None:
        if name in (*ALONE, *BY_ARRIVAL):
            pytest.skip("looks at no other trial, or at all that reported")
        for end in (TrialState.FAILED, TrialState.INFEASIBLE, TrialState.CANCELLED):
            replay = EngineReplay(a_study(name, self.settings(name)))
            for number in range(12):
                replay.apply_all(
                    [DrawnEvent(number, tuple(accuracy(*[0.9] * 12))), DrawnEvent(number, end=end)]
                )
            for step in range(12):
                assert replay.apply(DrawnEvent(12, tuple(accuracy(0.1, first=step)))) == StopAdvice(
                    False
                ), end

    def test_steps_may_come_in_any_order_and_twice(self, name: str) -> None:
        draw, replay = Random(9), EngineReplay(a_study(name, self.settings(name)))
        for number in range(15):
            points = accuracy(*learning_curve(draw, 12))
            shuffled = [*points, *points[:5]]
            draw.shuffle(shuffled)
            for point in shuffled:
                assert replay.apply(DrawnEvent(number, (point,))) is not None
            replay.apply(DrawnEvent(number, end=SUCCEEDED))

    def test_no_trial_stops_before_the_warm_up(self, name: str) -> None:
        (rule,) = (rule for rule in rules() if rule.name == name)
        warmups = [setting.name for setting in rule.settings if setting.name in WARMUP]
        for warmup in warmups:
            settings = {**self.settings(name), warmup: 7}
            for seed in self.seeds(name, 4):
                seen: dict[int, int] = {}
                replay = EngineReplay(a_study(name, settings))
                for event in self.history(name, seed, odd=0.1):
                    advice = replay.apply(event)
                    seen[event.number] = seen.get(event.number, 0) + len(event.measurements)
                    # Folds are counted, steps begin at 0.
                    last = (
                        seen[event.number] if name == "optuna:wilcoxon" else seen[event.number] - 1
                    )
                    assert advice is None or not advice.should_stop or last >= 7

    def test_a_report_costs_the_same_however_many_trials_have_ended(self, name: str) -> None:
        few, many = self.calls_of_a_report(name, 300), self.calls_of_a_report(name, 3_000)
        assert many <= 2 * few + 50

    def calls_of_a_report(self, name: str, ended: int) -> int:
        """Of functions, after the first report has prepared what can be prepared;
        another trial ends in between.
        """
        pruner = new_pruner(Pruning(name, self.settings(name)), Objective("accuracy", MAXIMIZE))
        draw = Random(4)
        kinds = [learning_curve(draw, 10) for _ in range(50)]
        for number in range(ended):
            pruner.put(trial_curve(number, kinds[number % 50], SUCCEEDED))
        own = trial_curve(ended, kinds[0][:9], RUNNING)
        pruner.put(own)
        pruner.judge(own, before=7)
        next_one = trial_curve(ended + 1, kinds[1], SUCCEEDED)

        def report() -> None:
            pruner.put(next_one)
            own.curve.add(9, 0.4)
            pruner.put(own)
            pruner.judge(own, before=8)
            own.curve.add(9, 0.4)
            pruner.judge(own, before=8)

        warm = trial_curve(ended + 2, kinds[2], RUNNING)
        pruner.put(warm)
        pruner.judge(warm, before=8)
        return calls(report)


def trial_curve(number: int, values: list[float], state: TrialState) -> TrialCurve:
    value = values[-1] if state is SUCCEEDED else None
    return TrialCurve(number, state, Curve(list(enumerate(values))), value)


def calls(work: Callable[[], None]) -> int:
    count = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(profile)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.parametrize(
    ("name", "settings", "path", "says"),
    [
        ("hyperbnd", {}, "name", "did you mean hyperband?"),
        ("zzz", {}, "name", "there are auto, median, percentile, asha, hyperband"),
        ("asha", {"eta": 1}, "settings.eta", "1 is too small; use 2 or more"),
        (
            "asha",
            {"eta": 2**53 + 2},
            "settings.eta",
            "9007199254740994 is too large; use 9007199254740992 or less",
        ),
        ("asha", {"eta": 10**400}, "settings.eta", "is too large; use 9007199254740992 or less"),
        ("asha", {"min": 1}, "settings.min", "no such setting"),
        (
            "hyperband",
            {"minSteps": 9, "maxSteps": 3},
            "settings.maxSteps",
            "3 is below minSteps, 9",
        ),
        ("threshold", {"lower": 2, "upper": 1}, "settings.lower", "2 is above upper, 1"),
        ("threshold", {"lower": math.nan}, "settings.lower", "not a number"),
        ("patient", {"rule": "medium"}, "settings.rule", "'medium' is not one of none, median"),
        ("patient", {"rule": "asha", "eta": 1}, "settings.eta", "1 is too small; use 2 or more"),
        ("patient", {"eta": 3}, "settings.eta", "no such setting"),
        (
            "optuna:hyperband",
            {"bootstrapCount": 1},
            "settings",
            "Optuna refuses these settings: bootstrap_count",
        ),
        (
            "optuna:threshold",
            {"lower": 2, "upper": 1},
            "settings",
            "Optuna refuses these settings: lower should be",
        ),
    ],
)
def test_wrong_settings_are_refused_at_their_place(
    name: str, settings: Mapping[str, Value], path: str, says: str
) -> None:
    (problem,) = pruning_problems(Pruning(name, settings))
    assert problem.path == path
    assert says in problem.message
