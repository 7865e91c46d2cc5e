"""Simulation tests: whole drawn experiments in virtual time,
with faults and crashes at any call.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from controller.core.attempt import AttemptStatus, RuntimeLost
from controller.core.model import (
    AttemptState,
    Budget,
    ExperimentObjective,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    Overrun,
    ReasonCode,
    Resources,
    TrialTemplate,
)
from controller.experiment_store import SqlExperimentStore
from controller.loop import GIVE_UP_S, Loop
from suggest.errors import NotFound, Unavailable
from suggest.space import Space
from suggest.studies.study_service import Suggestions
from suggest.study import Algorithm, Direction, StudyName
from suggest.trial import Outcome, TrialState
from tests.sim.invariant import InvariantViolation
from tests.sim.plans import GRID, POPULATION, RANDOM, TRUNCATION, plans
from tests.sim.simulated_runtime import Script, SimulatedRuntime
from tests.sim.simulation import Fault, Plan, Simulation, stores
from tests.sim.spending_invariants import CORES, GPUS, PRICES

_UIDS = (f"{n:05d}" for n in itertools.count())


@pytest.fixture(scope="module")
def play_plan(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Callable[[Plan], ExperimentState]]:
    folder: Path = tmp_path_factory.mktemp("sim")
    store, studies = stores(folder)
    yield lambda plan: Simulation(
        plan, store=store, studies=studies, uid=next(_UIDS), home=folder
    ).run()
    studies.close()
    store.close()


@pytest.mark.timeout(0)
@settings(
    max_examples=int(os.environ.get("TUNER_SIM_EXAMPLES", "150")),
    # an experiment that hangs; on a busy machine one may take half a minute
    deadline=timedelta(minutes=5),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    # deterministic in CI, so that failures belong to the change; random elsewhere
    derandomize="CI" in os.environ,
)
@given(plan=plans())
def test_no_experiment_violates_an_invariant(
    play_plan: Callable[[Plan], ExperimentState], plan: Plan
) -> None:
    assert play_plan(plan).finished


LOST = Plan(
    ExperimentSpec(
        "sim",
        "default",
        space=GRID,
        objective=ExperimentObjective("score", Direction.MAXIMIZE, target=0.9),
        algorithm=Algorithm("grid", seed=1),
        trial=TrialTemplate(("true",), retries={FailureClass.INFRASTRUCTURE: 0}),
        parallelism=2,
        canary_s=0.0,
    ),
    scripts=[Script(((0.2, "score=0.0"),), 0.3, 0), Script(((0.3, "score=0.9"),), 0.35, 0)],
)
# Its trials name their parameters while they run.
NAMING = replace(
    LOST.spec, space=Space(()), define_by_run=True, algorithm=Algorithm("random", seed=1)
)


def test_a_new_controller_in_the_final_stage_does_not_evaluate_the_search_again(
    play_plan: Callable[[Plan], ExperimentState],
) -> None:
    """The last point of the grid fails like two before it,
    and the next controller must find the space exhausted.
    """
    good, bad = Script(((0.2, "score=0.5"),), 0.3, 0), Script(((0.2, "score=0.5"),), 0.3, 1)
    template = TrialTemplate(
        ("true",), retries={FailureClass.INFRASTRUCTURE: 0, FailureClass.USER_ERROR: 0}
    )
    spec = replace(
        LOST.spec,
        objective=ExperimentObjective("score", Direction.MAXIMIZE),
        trial=template,
        final=template,
        parallelism=1,
        budget=Budget(trials=5),
    )
    plan = Plan(
        spec,
        scripts=[good] * 3 + [bad] * 3,
        finals=[Script((), 1.1, 0)],
        last_requests=[(2.0, "detach")],
        grows="finished",  # the sixth trial is the last point, and the budget allows one more
    )
    assert play_plan(plan) is ExperimentState.SUCCEEDED


def test_a_final_stage_is_waited_for_although_the_search_left_next_to_no_time(
    play_plan: Callable[[Plan], ExperimentState],
) -> None:
    """A controller that takes a turn in each millisecond does not end in the simulation."""
    spec = replace(LOST.spec, parallelism=1, budget=Budget(trials=1, wall_clock_s=0.3 + 1e-9))
    template = TrialTemplate(("true",))
    spec = replace(spec, trial=template, final=template, canary_s=0.0)
    plan = Plan(spec, scripts=[Script(((0.1, "score=0.5"),), 0.3, 0)], finals=[Script((), 60.0, 0)])
    assert play_plan(plan) is ExperimentState.SUCCEEDED


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("hit", range(1, 16))
def test_failures_that_were_set_aside_count_as_failures_when_the_experiment_ends(
    play_plan: Callable[[Plan], ExperimentState], fault: Fault, hit: int
) -> None:
    """Three failures pause the experiment, and the fourth trial, which runs on,
    reaches the target.
    """
    bad, good = Script(((0.2, "score=0.1"),), 0.3, 1), Script(((0.9, "score=0.95"),), 1.0, 0)
    template = TrialTemplate(("true",), retries={FailureClass.USER_ERROR: 0})
    spec = replace(LOST.spec, parallelism=4, budget=Budget(failed_trials=3), trial=template)
    plan = Plan(spec, scripts=[bad, bad, bad, good], faults={("save", hit): fault})
    assert play_plan(plan) is ExperimentState.SUCCEEDED


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("hit", range(1, 6))
def test_failures_that_were_set_aside_do_not_run_again_in_the_final_stage(
    play_plan: Callable[[Plan], ExperimentState], fault: Fault, hit: int
) -> None:
    """The target is reached during the pause, so the final stage runs,
    and a new controller continues it.
    """
    bad, good = Script(((0.2, "score=0.1"),), 0.3, 1), Script(((0.9, "score=0.95"),), 1.0, 0)
    template = TrialTemplate(("true",), retries={FailureClass.USER_ERROR: 0})
    spec = replace(
        LOST.spec, parallelism=4, budget=Budget(failed_trials=3), trial=template, final=template
    )
    plan = Plan(
        spec,
        scripts=[bad, bad, bad, good],
        finals=[Script((), 1.1, 0)],
        last_faults={("save", hit): fault},
    )
    assert play_plan(plan) is ExperimentState.SUCCEEDED


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("hit", range(1, 6))
def test_the_study_has_what_a_short_trial_has_met_when_it_gets_the_outcome(
    play_plan: Callable[[Plan], ExperimentState], fault: Fault, hit: int
) -> None:
    """Each trial has ended when its log is read for the first time."""
    spec = replace(NAMING, budget=Budget(trials=3))
    scripts = [Script(((0.0, "score=0.5"),), 0.0, 0)]
    faults = {("decide_parameter", hit): fault}
    assert play_plan(Plan(spec, scripts, faults=faults)) is ExperimentState.SUCCEEDED


@pytest.mark.parametrize("fault", Fault)
@pytest.mark.parametrize("hit", range(1, 9))
def test_a_trial_that_ends_the_search_is_the_last_one_to_begin(
    play_plan: Callable[[Plan], ExperimentState], fault: Fault, hit: int
) -> None:
    """The simulation checks that no other trial begins."""
    spec = replace(NAMING, budget=Budget(trials=9))
    scripts = [
        Script(((0.2, "score=0.5"),), 2.0, 0),
        Script(((0.2, "score=0.5"), (0.3, "tuner.end")), 0.3, 0),
    ]
    faults = {("save", hit): fault}
    assert play_plan(Plan(spec, scripts, faults=faults)) is ExperimentState.SUCCEEDED


@pytest.mark.parametrize("hit", range(1, 6))
def test_a_trial_whose_suggest_reply_was_lost_is_not_left_open(
    play_plan: Callable[[Plan], ExperimentState], hit: int
) -> None:
    """The target is reached before the request whose reply was lost has been repeated."""
    assert play_plan(replace(LOST, faults={("suggest", hit): Fault.REPLY_LOST})).finished
    assert play_plan(
        replace(LOST, faults={("suggest", hit): Fault.REPLY_LOST}, requests=[(0.31, "stop")])
    ).finished


@pytest.mark.parametrize(("shows_at_once", "then"), [(True, "observe"), (False, "wait")])
def test_the_loop_observes_after_a_start_only_if_the_runtime_shows_it(
    play_plan: Callable[[Plan], ExperimentState],
    monkeypatch: pytest.MonkeyPatch,
    shows_at_once: bool,
    then: str,
) -> None:
    calls: list[str] = []

    def noted(method: str) -> Callable[..., Awaitable[object]]:
        known = getattr(SimulatedRuntime, method)

        async def called(*given: Any, **more: Any) -> object:
            calls.append(method)
            return await known(*given, **more)

        return called

    for method in ("start", "observe", "wait"):
        monkeypatch.setattr(SimulatedRuntime, method, noted(method))
    assert play_plan(replace(LOST, shows_at_once=shows_at_once)).finished
    after = {
        b for a, b in itertools.pairwise(calls) if (a, b) != ("start", "start") and a == "start"
    }
    assert after == {then}


def test_a_stop_ends_an_attempt_whose_record_was_in_doubt(
    play_plan: Callable[[Plan], ExperimentState],
) -> None:
    """The store has the record, the reply was lost, and the experiment is stopped
    before it is recorded again.
    """
    one = replace(
        LOST.spec, algorithm=Algorithm("random", seed=1), parallelism=1, budget=Budget(trials=1)
    )
    plan = Plan(
        one,
        scripts=[Script(((0.2, "score=0.0"),), 0.3, 0)],
        faults={
            ("save", 1): Fault.REFUSED,
            ("save", 2): Fault.REPLY_LOST,
            ("suggest", 1): Fault.REFUSED,
        },
        requests=[(0.25, "stop")],
        shows_at_once=False,
    )
    assert play_plan(plan).finished


def test_a_controller_reads_again_what_a_store_has_after_its_restart(
    play_plan: Callable[[Plan], ExperimentState], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = 0
    known = Loop.open

    async def noted(loop: Loop) -> None:
        nonlocal opened
        opened += 1
        await known(loop)

    monkeypatch.setattr(Loop, "open", noted)
    # It restarts once, after it was read.
    monkeypatch.setattr(SqlExperimentStore, "restarts", property(lambda _: min(opened, 1)))
    assert play_plan(replace(LOST, faults={})).finished
    assert opened == 2


@pytest.mark.parametrize("overrun", Overrun)
def test_the_loop_wakes_when_what_runs_has_used_up_the_money(
    tmp_path: Path, overrun: Overrun
) -> None:
    """Nothing else happens then: the trial prints nothing more, and ends much later."""
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        template = TrialTemplate(("true",), resources=Resources(cpu=CORES, gpu=GPUS))
        budget = Budget(cost=7.3, overrun=overrun)
        spec = replace(LOST.spec, trial=template, budget=budget, prices=PRICES, parallelism=1)
        plan = Plan(spec, scripts=[Script(((0.2, "score=0.5"),), 60.0)])
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        assert simulation.run().finished
        ends_at_s = {Overrun.STOP: 7.3, Overrun.FINISH: 60.0}[overrun]
        assert simulation.clock.elapsed_s() == pytest.approx(ends_at_s, abs=0.01)
        assert len(simulation.runtime.starts) == 1


def test_a_search_does_not_end_by_what_ended_attempts_have_not_used(tmp_path: Path) -> None:
    """The controller is behind: it sees that attempts have ended two seconds later."""
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        template = TrialTemplate(("true",), resources=Resources(cpu=CORES, gpu=GPUS))
        spec = replace(LOST.spec, algorithm=Algorithm("random", 1), trial=template, prices=PRICES)
        plan = Plan(replace(spec, budget=Budget(cost=6.0)), [Script(((0.2, "score=0.5"),), 1.5)])
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        simulation.runtime.late_s = 2.0
        simulation.run()
        (ended,) = store.experiments()
        assert (ended.reason_code, ended.cost >= 6) == (ReasonCode.COST_SPENT, True)


@pytest.mark.parametrize(
    "fault",
    [("save", number) for number in range(4, 10)] + [("stop", 1), ("stop", 2), ("start", 3)],
)
@pytest.mark.parametrize("death", [Fault.DIE_BEFORE, Fault.DIE_AFTER])
def test_what_may_not_run_for_a_while_runs_again_whenever_its_controller_is_killed(
    tmp_path: Path, fault: tuple[str, int], death: Fault
) -> None:
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        objective = replace(LOST.spec.objective, target=None)
        spec = replace(LOST.spec, objective=objective, space=GRID)
        scripts = [Script(((0.2, "score=0.5"),), 1.5)]
        plan = Plan(spec, scripts, faults={fault: death})
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        simulation.runtime.barred_s = (2.0, 9.0)
        assert simulation.run() is ExperimentState.SUCCEEDED
        (experiment,) = store.experiments()
        attempts = store.attempts(experiment.uid)
        ended = [each.state for each in attempts if each.stop_cause is None]
        stopped = [each for each in attempts if each.stop_cause is not None]
        assert ended == [AttemptState.SUCCEEDED] * 6
        assert [each.reason for each in stopped] == ["the budget is used up"] * 2


def test_a_run_gives_up_when_the_study_keeps_answering_not_found(tmp_path: Path) -> None:
    """Whatever the cause is: only a database that was set back is cured by looking again."""
    store, studies = stores(tmp_path)
    with (
        closing(store),
        closing(studies),
        patch.object(studies, "complete", side_effect=NotFound("no such trial")),
    ):
        simulation = Simulation(LOST, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        with pytest.raises(NotFound, match="no such trial"):
            simulation.run()
        assert GIVE_UP_S < simulation.clock.elapsed_s() < 2 * GIVE_UP_S


def test_a_search_waits_for_the_trials_of_other_clients_as_long_as_they_run(tmp_path: Path) -> None:
    simulation, state = play_beside_others(tmp_path)
    assert (state, simulation.lives) == (ExperimentState.SUCCEEDED, 1)
    assert simulation.clock.elapsed_s() > 3 * GIVE_UP_S


def test_a_controller_can_detach_while_it_waits_for_the_trials_of_other_clients(
    tmp_path: Path,
) -> None:
    simulation, state = play_beside_others(tmp_path, requests=[(GIVE_UP_S, "detach")])
    assert (state, simulation.lives) == (ExperimentState.SUCCEEDED, 2)
    assert simulation.clock.elapsed_s() < 2 * GIVE_UP_S


def play_beside_others(
    tmp_path: Path, *, requests: Sequence[tuple[float, str]] = ()
) -> tuple[Simulation, ExperimentState]:
    """Another client of a shared study evaluates the whole first generation of pbt, until there is
    a second controller.

    Without one, it takes longer than `GIVE_UP_S`.
    """
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        algorithm = Algorithm("pbt", 1, {"population": POPULATION, "truncation": TRUNCATION})
        spec = replace(LOST.spec, space=RANDOM, algorithm=algorithm, budget=Budget(trials=2))
        plan = Plan(spec, scripts=[Script(((0.2, "score=0.5"),), 0.3, 0)], requests=requests)
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        of_others: list[int] = []
        suggest = studies.suggest

        def after_others(study: StudyName, count: int, **request: Any) -> Suggestions:
            if not of_others:
                others = suggest(study, POPULATION, client_id="other", request_id="generation")
                of_others.extend(trial.number for trial in others.trials)
            elif simulation.lives == 2 or simulation.clock.elapsed_s() > 3 * GIVE_UP_S:
                for number in of_others:
                    studies.complete(
                        study, number, Outcome(TrialState.FAILED, reason="exit code 1")
                    )
            return suggest(study, count, **request)

        with patch.object(studies, "suggest", after_others):
            return simulation, simulation.run()


def test_a_controller_can_detach_while_its_study_does_not_answer(tmp_path: Path) -> None:
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        plan = replace(LOST, requests=[(5.0, "detach")])
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        suggest = studies.suggest

        def by_the_second_controller(*arguments: Any, **request: Any) -> Suggestions:
            if simulation.lives == 1:
                raise Unavailable("the database does not answer")
            return suggest(*arguments, **request)

        with patch.object(studies, "suggest", by_the_second_controller):
            simulation.run()
        assert simulation.lives == 2


def test_a_second_interruption_kills_the_trials_of_a_controller_whose_store_fails(
    tmp_path: Path,
) -> None:
    """It cannot even look what the study has, so what runs is known only to the runtime."""
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        endless = [Script(ends_at=None, ignores_sigterm=True)]
        plan = replace(LOST, scripts=endless, requests=[(0.25, "interrupt"), (20.0, "kill")])
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)

        def until_the_disk_is_full(call: Callable[..., Any]) -> Callable[..., Any]:
            def called(*arguments: Any) -> Any:
                simulation.act_as_user()
                if simulation.clock.elapsed_s() > 0.2:
                    raise Unavailable("the disk is full")
                return call(*arguments)

            return called

        with (
            patch.object(store, "save", until_the_disk_is_full(store.save)),
            patch.object(studies, "study", until_the_disk_is_full(studies.study)),
            pytest.raises(InvariantViolation, match="gave up: the disk is full"),
        ):
            simulation.run()
        assert not simulation.runtime.running()


def test_a_second_interruption_says_that_a_frozen_runtime_kills_nothing(tmp_path: Path) -> None:
    store, studies = stores(tmp_path)
    with closing(store), closing(studies):
        endless = [Script(ends_at=None)]
        plan = replace(LOST, scripts=endless, requests=[(0.25, "interrupt"), (20.0, "kill")])
        simulation = Simulation(plan, store=store, studies=studies, uid=next(_UIDS), home=tmp_path)
        observe = simulation.runtime.observe

        async def until_it_is_suspended() -> Mapping[str, AttemptStatus]:
            if simulation.clock.elapsed_s() > 0.2:
                raise RuntimeLost("the supervisor does not answer")
            return await observe()

        with (
            patch.object(simulation.runtime, "observe", until_it_is_suspended),
            pytest.raises(
                InvariantViolation,
                match="does not answer; running trials continue, because they could not",
            ),
        ):
            simulation.run()
        assert simulation.runtime.running()
