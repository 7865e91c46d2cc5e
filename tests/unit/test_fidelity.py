"""Trials that run in steps of a fidelity: which are promoted, how far,
and what the algorithms learn from them.
"""

from __future__ import annotations

import contextvars
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest

from suggest import deadline
from suggest.engine import Engine, check_spec
from suggest.errors import TimedOut
from suggest.proposal import PointRequest
from suggest.samplers import registry
from suggest.samplers.bohb import BohbSampler, BohbSettings
from suggest.samplers.by_fidelity import ByFidelity
from suggest.samplers.family import missing
from suggest.samplers.history import History
from suggest.samplers.sampler import Sampler, SteppedSampler
from suggest.space import Assignment, Float, Int, Parameter, Space
from suggest.study import (
    Algorithm,
    Criteria,
    Direction,
    Fidelity,
    Objective,
    Pruning,
    Study,
    StudyName,
    StudySpec,
)
from suggest.trial import NO_LABELS, RungResult, Trial, TrialState

PAUSED, RUNNING, SUCCEEDED = TrialState.PAUSED, TrialState.RUNNING, TrialState.SUCCEEDED
EPOCHS = Fidelity("epochs", 1, 9, 3)
SPACE = Space((Parameter("x", Float(-5.0, 5.0)), Parameter("n", Int(1, 4))))
FINITE = Space((Parameter("x", Int(1, 20)), Parameter("n", Int(1, 4))))
LOSS = Objective("loss", Direction.MINIMIZE)


def a_study(
    algorithm: str = "random",
    *,
    fidelity: Fidelity = EPOCHS,
    pruning: str = "",
    space: Space = SPACE,
) -> Study:
    family = next(f for f in registry.algorithms() if f.name == algorithm)
    settings = {s.name: 3 for s in family.settings if s.name == "startupTrials"}
    rule = Pruning(pruning) if pruning else None
    spec = StudySpec(space, (LOSS,), Algorithm(algorithm, 5, settings), rule, fidelity=fidelity)
    return Study(StudyName("default", "steps"), "uid", registry.resolve(spec), 5)


class StudyClient:
    """A client that runs one study: `begin` hands out trials,
    and `end` completes one with a value.
    """

    def __init__(self, study: Study) -> None:
        self.engine = Engine(study, (), ())

    def begin(self, count: int = 1, *, paused_only: bool = False) -> list[Trial]:
        proposal = self.engine.propose_paused(count) if paused_only else self.engine.propose(count)
        found = []
        for one in proposal.trials:
            there = self.engine.open_trial(one.number) or Trial(one.number, RUNNING, one.parameters)
            trial = replace(there, state=RUNNING, fidelity=one.fidelity, value=None)
            self.engine.put(trial)
            found.append(trial)
        return found

    def end(self, trial: Trial, loss: float) -> Trial:
        assert trial.fidelity is not None
        ended = replace(trial, state=SUCCEEDED, value=loss)
        if self.engine.pauses(trial):
            ended = replace(
                ended, state=PAUSED, rungs=(*trial.rungs, RungResult(trial.fidelity, loss))
            )
        self.engine.put(ended)
        return ended

    def run(self, count: int, loss: Callable[[Trial], float], *, at_once: int = 3) -> list[Trial]:
        """Run a search with this many trials to its end, like the controller."""
        running: list[Trial] = []
        while True:
            while len(running) < at_once:
                begun = self.begin(paused_only=self.engine.next_number >= count)
                if not begun:
                    break
                running += begun
            if not running:
                return list(self.engine.trials())
            trial = running.pop(0)
            self.end(trial, loss(trial))


def far(trial: Trial) -> float:
    """Better values for x near 1, with less noise after more epochs."""
    assert trial.fidelity is not None
    return (float(trial.parameters["x"]) - 1) ** 2 + math.sin(trial.number) / trial.fidelity


@pytest.mark.parametrize(
    ("fidelity", "levels"),
    [
        (Fidelity("epochs", 1, 81, 3), (1, 3, 9, 27, 81)),
        (Fidelity("epochs", 1, 100, 3), (1, 4, 11, 33, 100)),
        (Fidelity("epochs", 2, 20, 2), (2, 5, 10, 20)),
        (Fidelity("share", 0.25, 1.0, 2), (0.25, 0.5, 1.0)),
        (Fidelity("epochs", 10, 30, 4), (30,)),
    ],
)
def test_levels_divide_the_largest_fidelity(fidelity: Fidelity, levels: Sequence[float]) -> None:
    assert fidelity.levels == pytest.approx(levels)


def test_a_trial_is_promoted_if_it_is_among_the_best_third_of_its_rung() -> None:
    client = StudyClient(a_study())
    first, second, third = client.begin(3)
    assert {t.fidelity for t in (first, second, third)} == {1}
    client.end(first, 0.5)
    client.end(second, 0.3)
    assert [t.number for t in client.begin()] == [3]  # a third of two trials is none
    client.end(third, 0.4)
    (on,) = client.begin()
    assert (on.number, on.fidelity, on.rungs) == (second.number, 3, (RungResult(1, 0.3),))
    assert [t.number for t in client.begin()] == [4]  # it runs already


def test_higher_rungs_go_first_and_the_last_rung_ends_a_trial() -> None:
    client = StudyClient(a_study())
    for trial in client.begin(9):
        client.end(trial, float(trial.number))
    promoted = client.begin(3)
    assert [(t.number, t.fidelity) for t in promoted] == [(0, 3), (1, 3), (2, 3)]
    for trial in promoted:
        client.end(trial, float(trial.number))
    for trial in client.begin(3, paused_only=True):
        assert (trial.number, trial.fidelity) == (0, 9)
        assert client.end(trial, 0.0).state is SUCCEEDED


def test_a_search_that_begins_no_more_trials_ends_with_a_complete_one() -> None:
    client = StudyClient(a_study())
    for trial in client.begin(2):
        client.end(trial, float(trial.number))
    for fidelity in (3, 9):
        (trial,) = client.begin(paused_only=True)
        assert (trial.number, trial.fidelity) == (0, fidelity)
        assert not client.engine.propose_paused(1).exhausted  # its outcome may promote another one
        client.end(trial, 0.0)
    assert client.engine.propose_paused(1).exhausted


def test_brackets_begin_at_every_fidelity() -> None:
    for made in (a_study("hyperband"), a_study("bohb"), a_study(pruning="hyperband")):
        begun = StudyClient(made).begin(60)
        assert {t.fidelity for t in begun} == {1, 3, 9}
    assert {t.fidelity for t in StudyClient(a_study(pruning="asha")).begin(60)} == {1}


def test_trials_of_different_brackets_do_not_compete() -> None:
    client = StudyClient(a_study("hyperband"))
    begun = client.begin(60)
    later = [t for t in begun if t.fidelity == 3]
    for trial in begun:
        if trial.fidelity == 1:
            client.end(trial, 100.0 + trial.number)
    for trial in later[:3]:
        client.end(trial, float(trial.number))
    goes_on = {t.number for t in client.begin(60, paused_only=True)}
    assert later[0].number in goes_on


def test_new_brackets_of_a_revision_do_not_move_known_trials() -> None:
    client = StudyClient(a_study(pruning="asha"))
    for trial in client.begin(9):
        client.end(trial, float(trial.number))
    study = client.engine.study
    changed = replace(study, spec=replace(study.spec, pruning=Pruning("hyperband")))
    client.engine.update_study(changed)
    assert [(t.number, t.fidelity) for t in client.begin(3)] == [(0, 3), (1, 3), (2, 3)]
    assert {t.fidelity for t in client.begin(60)} == {1, 3, 9}
    client.engine.update_study(study)
    assert {t.fidelity for t in client.begin(20)} == {1}
    again = Engine(study, list(client.engine.trials()), ())
    assert again.propose(3) == client.engine.propose(3)


ALGORITHMS = [
    family.name
    for family in registry.algorithms()
    if family.name != "optuna:gp" and not missing(family.requires)
]


def suited(algorithm: str) -> Study:
    made = a_study(algorithm)
    if list(registry.space_problems(made.spec)):
        made = a_study(algorithm, space=FINITE)
    if list(registry.space_problems(made.spec)):
        pytest.skip("not a space for it")
    return made


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_rebuilt_engine_proposes_and_promotes_the_same(algorithm: str) -> None:
    client = StudyClient(suited(algorithm))
    running: list[Trial] = []
    for k in range(40):
        if len(running) < 3:
            running += client.begin()
        elif running:
            trial = running.pop(k * 7 % len(running))
            client.end(trial, far(trial))
        if k % 9 == 8:
            again = Engine(client.engine.study, reversed(list(client.engine.trials())), ())
            assert again.propose(3) == client.engine.propose(3)


@pytest.mark.parametrize("algorithm", ["random", "tpe", "bohb", "hyperband", "gp", "default"])
def test_a_search_costs_less_than_whole_runs_and_counts_each_trial_once(algorithm: str) -> None:
    trials = StudyClient(a_study(algorithm)).run(27, far)
    assert len(trials) == 27
    assert any(t.state is SUCCEEDED for t in trials)
    assert {t.state for t in trials} <= {SUCCEEDED, PAUSED}
    epochs = sum(t.fidelity or 0 for t in trials)
    assert epochs < 27 * 9 * 0.7
    best = min((t for t in trials if t.state is SUCCEEDED), key=lambda t: t.value or 0.0)
    assert abs(float(best.parameters["x"]) - 1) < 3


class Recorder(Sampler):
    """A sampler that records the trials it is shown."""

    def __init__(self) -> None:
        self.shown: dict[int, Trial] = {}

    def put(self, trial: Trial) -> None:
        self.shown[trial.number] = trial

    def propose(self, wanted: Sequence[PointRequest]) -> list[Assignment]:
        return [{} for _ in wanted]

    @property
    def values(self) -> dict[int, float | None]:
        return {
            number: trial.value for number, trial in self.shown.items() if trial.state is SUCCEEDED
        }


@pytest.mark.parametrize(("base", "required"), [(Sampler, "propose"), (SteppedSampler, "steps")])
def test_a_sampler_that_cannot_propose_is_not_created(base: type[Sampler], required: str) -> None:
    with pytest.raises(TypeError, match=f"abstract methods? .*{required}"):
        type("Incomplete", (base,), {})()


def test_samplers_keep_the_points_of_a_study_and_not_copies_of_them() -> None:
    trials = [
        Trial(number, SUCCEEDED, {"x": 0.5, "n": 2}, value=0.5, labels={"a": "b"})
        for number in range(3)
    ]
    history = History(Criteria((LOSS,)))
    recorder = Recorder()
    by_fidelity = ByFidelity(EPOCHS, lambda: recorder, enough=2)
    for trial in trials:
        history.put(trial)
        by_fidelity.put(trial)
    for kept in (history.learned(), recorder.shown.values()):
        for trial, shown in zip(trials, kept, strict=True):
            assert shown.parameters is trial.parameters
            assert shown.labels is NO_LABELS


def test_bohb_stops_drawing_random_points_at_the_deadline_of_its_call() -> None:
    sampler = BohbSampler(a_study("bohb").spec, 5, BohbSettings(random_share=1.0))

    def late() -> None:
        deadline.begin(-1.0)
        sampler.propose([PointRequest(number, {}) for number in range(3)])

    with pytest.raises(TimedOut):
        contextvars.Context().run(late)


def test_an_algorithm_sees_the_values_of_one_fidelity_only() -> None:
    made: list[Recorder] = []

    def make() -> Recorder:
        made.append(Recorder())
        return made[-1]

    sampler = ByFidelity(EPOCHS, make, enough=2)
    point = {"x": 0.5}
    at_one = [
        Trial(k, PAUSED, point, value=k / 10, fidelity=1, rungs=(RungResult(1, k / 10),))
        for k in range(3)
    ]
    for trial in at_one:
        sampler.put(replace(trial, state=RUNNING, value=None, rungs=()))
        sampler.put(trial)
    assert made[-1].values == {0: 0.0, 1: 0.1, 2: 0.2}
    sampler.put(replace(at_one[0], state=RUNNING, fidelity=3, value=None))
    # what is known of it stays known while it runs
    assert made[-1].values == {0: 0.0, 1: 0.1, 2: 0.2}
    for trial in at_one[:2]:
        sampler.put(
            replace(
                trial,
                fidelity=3,
                value=5.0,
                rungs=(*trial.rungs, RungResult(3, 5.0 + trial.number)),
            )
        )
    # two are enough: the smaller fidelity is not mixed in
    assert made[-1].values == {0: 5.0, 1: 6.0}
    assert made[-1].shown[2].state is TrialState.CANCELLED
    assert len(made) == 2


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        (
            {"fidelity": Fidelity("x", 1, 9)},
            "fidelity.parameter",
            "x is also a parameter of the search",
        ),
        ({"fidelity": Fidelity("{x}", 1, 9)}, "fidelity.parameter", "'{x}' is not a name"),
        ({"fidelity": Fidelity("epochs", 0, 9)}, "fidelity.min", "0 is not above 0"),
        ({"fidelity": Fidelity("epochs", math.nan, 9)}, "fidelity.min", "nan is not above 0"),
        ({"fidelity": Fidelity("epochs", 1, math.inf)}, "fidelity.max", "inf is not finite"),
        ({"fidelity": Fidelity("epochs", 1, 2)}, "fidelity.max", "2 is below min times eta, 3"),
        ({"fidelity": Fidelity("epochs", 9, 1)}, "fidelity.max", "1 is below min times eta, 27"),
        ({"fidelity": Fidelity("epochs", 1, 9, 1)}, "fidelity.eta", "1 is below 2"),
        (
            {"fidelity": Fidelity("epochs", 1, 1e99, 2**31)},
            "fidelity.eta",
            "2147483648 is too large; use at most",
        ),
        ({"fidelity": Fidelity("epochs", 1e-300, 1)}, "fidelity.min", "more than 32 steps by 3"),
        (
            {"fidelity": Fidelity("epochs", 1, sys.float_info.max)},
            "fidelity.min",
            "more than 305 powers of ten",
        ),
        ({"fidelity": Fidelity("epochs", 1e-9, 1e290)}, "fidelity.min", "more than 32 steps by 3"),
        (
            {"fidelity": Fidelity("epochs", 5e-324, 1e308, 10**30)},
            "fidelity.min",
            "more than 305 powers of ten",
        ),
        (
            {"fidelity": None, "algorithm": Algorithm("hyperband")},
            "algorithm.name",
            "hyperband needs a fidelity",
        ),
        (
            {"fidelity": None, "algorithm": Algorithm("bohb")},
            "algorithm.name",
            "bohb needs a fidelity",
        ),
        (
            {"pruning": Pruning("asha", {"eta": 4})},
            "pruning.settings.eta",
            "min, max and eta of the fidelity",
        ),
        (
            {"objectives": (LOSS, Objective("s", Direction.MINIMIZE))},
            "fidelity",
            "promoted by one objective",
        ),
    ],
)
def test_invalid_fidelities_are_refused(change: dict[str, object], path: str, words: str) -> None:
    # drawn from the table
    problems = check_spec(replace(a_study().spec, **change))  # type: ignore[arg-type]
    assert [p.path for p in problems if words in p.message] == [path], problems


def test_all_values_of_whole_runs_are_shown() -> None:
    recorder = Recorder()
    sampler = ByFidelity(EPOCHS, lambda: recorder, enough=2)
    rungs = (RungResult(1, 0.1), RungResult(3, 0.2))
    whole = [
        Trial(
            k,
            SUCCEEDED,
            {"x": 0.5},
            value=0.3,
            further=(7.0,),
            constraint_values=(2.0,),
            fidelity=9,
            rungs=rungs,
        )
        for k in range(2)
    ]
    for trial in whole:
        sampler.put(trial)
    shown = [recorder.shown[k] for k in range(2)]
    assert [(t.value, t.further, t.constraint_values) for t in shown] == [(0.3, (7.0,), (2.0,))] * 2
