"""Hypothesis strategies for whole experiments: the spec,
the behavior of each attempt, and faults of calls.
"""

from __future__ import annotations

import signal
from dataclasses import replace

from hypothesis import strategies as st

from controller.core.model import (
    Budget,
    ExperimentObjective,
    ExperimentSpec,
    FailureClass,
    MetricsFile,
    MetricsRule,
    Overrun,
    Resources,
    TrialTemplate,
)
from suggest.space import Choice, Float, Int, Parameter, Space
from suggest.study import Algorithm, Direction, Fidelity, Pruning, ValueRule
from tests.sim.checkpoint_invariants import POPULATION, TRUNCATION
from tests.sim.simulated_runtime import Script
from tests.sim.simulation import Fault, Plan
from tests.sim.spending_invariants import CORES, GPUS, PRICES

TIMEOUT_S, FINAL_TIMEOUT_S, GRACE_S = 60.0, 4.0, 5.0

METHODS = (
    *("complete", "save") * 4,  # these count outcomes and store ends
    *("suggest", "suggest", "complete", "report", "save", "start", "stop", "remove")
    * 2,  # calls that change something, twice as often
    *("reopen_trials", "complete", "save"),
    *("decide_parameter",) * 2,
    *("get_study", "create_study", "add_trial", "list_trials", "get_trial", "optimal_trials"),
    *("observe", "read_log", "read_metrics", "wait", "attempts", "requests", "launch"),
)

LAST_METHODS = (
    *("save",) * 6,
    *(
        "start",
        "stop",
        "remove",
        "observe",
        "wait",
        "attempts",
        "optimal_trials",
        "get_trial",
        "suggest",
    ),
)
# Short, because each runs to its end alone. The final stage needs no metric, and exit code 42 has
# no special meaning.
FINALS = (
    *(Script((), 1.1, 0),) * 4,
    *(Script((), 1.1, None, signal.SIGKILL),) * 2,
    Script((), 0.0, 0),
    Script(((0.5, "cannot open the model"),), 0.6, 1),
    Script(((0.5, "too big"),), 0.6, 42),
    Script((), None),
    Script((), 1.1, 0, ignores_sigterm=True, waits_s=0.7),
    Script((), 1.1, 0, vanishes_at=0.5),
    Script(refused="command not found"),
)

GRID = Space((Parameter("a", Choice(("x", "y"))), Parameter("b", Int(1, 3))))
ALGORITHMS = (
    Algorithm("random", 1),
    Algorithm("tpe", 1),
    Algorithm("pbt", 1, {"population": POPULATION, "truncation": TRUNCATION}),
)
RANDOM = Space((Parameter("lr", Float(0.1, 1.0)), Parameter("b", Int(1, 3))))


def _curve(
    values: list[float], pace_s: float, name: str = "score"
) -> tuple[tuple[float, str], ...]:
    return tuple(
        (pace_s * (i + 1), f"epoch={i + 1} {name}={value}") for i, value in enumerate(values)
    )


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    values = draw(st.lists(st.integers(0, 100).map(lambda n: n / 100), min_size=1, max_size=5))
    pace_s = draw(st.sampled_from([0.2, 1.0, 4.0]))
    lines = _curve(values, pace_s)
    end_s = pace_s * len(lines) + 0.1
    waits_s = draw(st.sampled_from([0.0, 0.0, 0.0, 0.7, 7.0]))
    preempted_at = draw(st.sampled_from([None, None, None, 0.1, 1.0]))
    return replace(_script(draw, lines, end_s), waits_s=waits_s, preempted_at=preempted_at)


def _script(draw: st.DrawFn, lines: tuple[tuple[float, str], ...], end_s: float) -> Script:
    kind = draw(
        st.sampled_from(
            ["good"] * 6
            + [
                "crash",
                "infeasible",
                "hang",
                "mute",
                "nan",
                "vanish",
                "killed",
                "oom",
                "refused",
                "stubborn",
                "instant",
                "ends",
            ]
        )
    )
    match kind:
        case "crash":
            return Script(lines, end_s, 1)
        case "infeasible":
            return Script((*lines, (end_s, "too big")), end_s, 42)
        case "hang":
            return Script(lines, None, ignores_sigterm=draw(st.booleans()))
        case "mute":
            return Script((), end_s, 0)
        case "nan":
            return Script((*lines, (end_s, "epoch=99 score=nan")), end_s, 0)
        case "vanish":
            return Script(
                lines, end_s + 1, 0, vanishes_at=draw(st.sampled_from([0.0, end_s / 2, end_s]))
            )
        case "killed":
            return Script(lines, end_s, None, signal.SIGKILL)
        case "oom":
            return Script(lines, end_s, None, signal.SIGKILL, out_of_memory=True)
        case "refused":
            return Script(refused="command not found")
        case "stubborn":
            return Script(lines, end_s, 0, ignores_sigterm=True)
        case "ends":  # where trials name their parameters
            return Script((*lines, (end_s, "tuner.end")), end_s, 0)
        case "instant":
            return Script(((0.0, "score=0.5"),), 0.0, 0)
        case _:
            return Script(lines, end_s, 0)


def _space(*, grid: bool, names: bool) -> Space:
    if names:
        return Space(())
    return GRID if grid else RANDOM


@st.composite
def specs(draw: st.DrawFn) -> ExperimentSpec:
    grid = draw(st.booleans())
    fidelity = draw(
        st.sampled_from([None, None, Fidelity("epochs", 1, 4, 2), Fidelity("epochs", 1, 9, 3)])
    )
    asha = (
        Pruning("asha", {"eta": 2})
        if fidelity is None
        else Pruning(draw(st.sampled_from(["asha", "hyperband"])))
    )
    names = not grid and fidelity is None and draw(st.sampled_from([True, False, False]))
    trial = TrialTemplate(
        command=("true",),
        resources=Resources(cpu=CORES, gpu=GPUS),
        timeout_s=TIMEOUT_S,
        grace_s=GRACE_S,
        retries={
            FailureClass.INFRASTRUCTURE: draw(st.integers(0, 3)),
            FailureClass.USER_ERROR: draw(st.integers(0, 1)),
        },
    )
    return ExperimentSpec(
        name="sim",
        namespace="default",
        space=_space(grid=grid, names=names),
        define_by_run=names,
        objective=ExperimentObjective(
            "score",
            Direction.MAXIMIZE,
            draw(st.sampled_from(ValueRule)),
            draw(st.sampled_from([None, None, 0.9])),
        ),
        algorithm=Algorithm("grid", 1)
        if grid
        else draw(st.sampled_from(ALGORITHMS[:2] if names or fidelity else ALGORITHMS)),
        trial=trial,
        final=draw(st.sampled_from([None, replace(trial, timeout_s=FINAL_TIMEOUT_S)])),
        initial=draw(st.sampled_from([(), ({"b": 2},), ({"b": 1}, {"b": 3})])),
        pruning=draw(
            st.sampled_from([None, Pruning("median", {"warmupSteps": 1, "minTrials": 2}), asha])
        ),
        fidelity=fidelity,
        parallelism=draw(st.integers(1, 4)),
        prices=PRICES,
        budget=Budget(
            trials=draw(st.sampled_from([None, 3, 8]) if grid else st.integers(1, 8)),
            failed_trials=draw(st.sampled_from([None, 1, 3])),
            wall_clock_s=draw(st.sampled_from([None, None, None, 10.0])),
            gpu_hours=draw(st.sampled_from([None, None, None, 0.002, 0.01])),
            cost=draw(st.sampled_from([None, None, None, 3.0, 15.0])),
            overrun=draw(st.sampled_from([None, *Overrun])),
        ),
        metrics=MetricsRule(source=draw(st.sampled_from([None, None, MetricsFile("metrics.txt")]))),
        canary_s=draw(st.sampled_from([0.0, 3.0, 10.0])),
        breaker=draw(st.sampled_from([True, True, True, False])),
    )


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    requests = draw(
        st.lists(
            st.tuples(st.floats(0, 40), st.sampled_from(["interrupt", "kill", "stop", "detach"])),
            max_size=2,
        )
    )
    plan = Plan(
        spec=draw(specs()),
        scripts=draw(st.lists(scripts(), min_size=1, max_size=8)),
        finals=draw(st.lists(st.sampled_from(FINALS), min_size=1, max_size=3)),
        faults=draw(
            st.dictionaries(
                st.tuples(st.sampled_from(METHODS), st.integers(1, 8)),
                st.sampled_from(Fault),
                max_size=8,
            )
        ),
        requests=sorted(requests, key=lambda pair: pair[0]),
        retries=draw(st.sampled_from(["", "", "all", "one"])),
        grows=draw(st.sampled_from(["", "", "finished", "killed"])),
        shows_at_once=draw(st.booleans()),
        last_faults=draw(
            st.dictionaries(
                st.tuples(st.sampled_from(LAST_METHODS), st.integers(1, 4)),
                st.sampled_from(Fault),
                max_size=3,
            )
        ),
        last_requests=draw(
            st.lists(
                st.tuples(
                    st.floats(0, 3), st.sampled_from(["interrupt", "kill", "stop", "detach"])
                ),
                max_size=1,
            )
        ),
    )
    return plan if draw(st.integers(0, 15)) else _failing_on(plan)


def _failing_on(plan: Plan) -> Plan:
    """Let trials fail before and after a pause that is not the breaker's,
    which would be drawn too rarely.
    """
    lines = _curve([0.5], 0.2)
    good, bad, refused = (
        Script(lines, 0.3, 0),
        Script(lines, 0.3, 1),
        Script(lines, 0.3, 1, refused="command not found"),
    )
    template = replace(
        plan.spec.trial, retries={**plan.spec.trial.retries, FailureClass.USER_ERROR: 0}
    )
    spec = replace(
        plan.spec,
        trial=template,
        objective=replace(plan.spec.objective, target=None),
        parallelism=1,
        budget=Budget(trials=5),
    )
    return replace(plan, spec=spec, scripts=[good, bad, bad, refused, bad, bad])
