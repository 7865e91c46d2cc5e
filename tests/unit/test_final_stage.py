"""Decisions about the final stage: when it begins, what ends it, its parameters,
and how its end is classified.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.core.attempt import Exit
from controller.core.decide import beginnings, decide
from controller.core.failures import LogSummary, judge
from controller.core.model import (
    FINAL,
    Attempt,
    AttemptState,
    ExperimentState,
    FailureClass,
    FinalRun,
    ReasonCode,
    StopCause,
    attempt_name,
)
from controller.core.snapshot import (
    Action,
    AskStop,
    ChangeState,
    CreateAttempt,
    DesiredState,
    Forget,
    OutdateFinal,
    SendStop,
    Snapshot,
    StartAttempt,
    Suggest,
)
from controller.folders import ExperimentFolders
from controller.memory import Memory
from controller.runtime.kubernetes.labels import attempt_of, labels_of, name_of
from controller.runtime.kubernetes.launch import cluster_launch
from controller.runtime.launch import host_launch, identity
from suggest.trial import TrialState
from tests.unit.builders import (
    CANCELLED,
    CREATED,
    FAILED,
    RUNNING,
    START,
    STOPPING,
    SUCCEEDED,
    UID,
    a_spec,
    a_template,
    a_trial,
    an_experiment,
    an_objective,
    attempt,
    final_stage,
    open_trial,
    snapshot,
)

LOST, CRASHED, CONFIG = (
    FailureClass.INFRASTRUCTURE,
    FailureClass.USER_ERROR,
    FailureClass.CONFIGURATION,
)
INTERRUPTED, UNWANTED = StopCause.INTERRUPTED, StopCause.CANCELLED
OK = TrialState.SUCCEEDED

export = a_template("python", "export.py", "--lr=${lr}")
two = a_spec(parallelism=2, trials=2, final=export)
aiming = a_spec(parallelism=2, objective=an_objective(target=0.9), final=export)
nine = a_spec(parallelism=2, trials=9, final=export)
tried = {OK: 2}
ALL = "all 2 trials are done"
lost_once = attempt(1, FAILED, trial=FINAL, failed=LOST)
lost_thrice = tuple(attempt(n, FAILED, trial=FINAL, failed=LOST) for n in (1, 2, 3))


def over(reason: str = ALL) -> ChangeState:
    return ChangeState(ExperimentState.SUCCEEDED, reason, True, ReasonCode.TRIALS_DONE)


def ended(final: object = None, **more: object) -> Snapshot:
    """A snapshot of a search that has used its budget, with a succeeded trial."""
    # its own words
    return snapshot(two, done=tried, best=0.5, final=final, **more)  # type: ignore[arg-type]


SENTENCES: list[tuple[str, Snapshot, list[Action]]] = [
    (
        "it begins when nothing is left of the search",
        ended(final_stage()),
        [CreateAttempt(FINAL, 1)],
    ),
    ("without one the experiment is over", ended(), [over()]),
    (
        "it waits for a trial that still runs",
        snapshot(two, open_trial(1, RUNNING), done={OK: 1}, best=0.5, final=final_stage()),
        [],
    ),
    (
        "and for one that is told but not yet removed",
        snapshot(
            two, open_trial(1, SUCCEEDED, running=False), done=tried, best=0.5, final=final_stage()
        ),
        [Forget(1)],
    ),
    (
        "it continues where the target was reached, which cancels trials",
        snapshot(aiming, done={OK: 1}, best=0.95, final=final_stage(RUNNING)),
        [],
    ),
    (
        "nothing succeeded: there is nothing to run",
        snapshot(two, done={TrialState.PRUNED: 2}, final=final_stage()),
        [
            ChangeState(
                ExperimentState.FAILED,
                "all 2 trials are done; no trial succeeded",
                True,
                ReasonCode.NO_TRIAL_SUCCEEDED,
            )
        ],
    ),
    (
        "a search that failed has no final stage",
        snapshot(
            a_spec(trials=9, failed_trials=1, final=export),
            done={OK: 1, TrialState.FAILED: 1},
            best=0.5,
            final=final_stage(),
        ),
        [
            ChangeState(
                ExperimentState.FAILED,
                "1 trial failed (budget.failedTrials: 1)",
                True,
                ReasonCode.TOO_MANY_FAILURES,
            )
        ],
    ),
    (
        "recorded and not seen, it is started again",
        ended(final_stage(CREATED)),
        [StartAttempt(FINAL, 1)],
    ),
    (
        "what the runtime holds for room is waited for",
        ended(final_stage(CREATED), held={FINAL}),
        [],
    ),
    ("it ended: the runtime forgets it", ended(final_stage(SUCCEEDED)), [Forget(FINAL)]),
    ("and then the experiment is over", ended(final_stage(SUCCEEDED, kept=False)), [over()]),
    (
        "lost with its machine it runs again",
        ended(final_stage(FAILED, failed=LOST)),
        [CreateAttempt(FINAL, 2)],
    ),
    (
        "as often as a trial would",
        ended(final_stage(FAILED, failed=LOST, earlier=lost_thrice, reason="gone", kept=False)),
        [over(f"{ALL}; its final stage failed: gone")],
    ),
    (
        "its own error ends it, and not the experiment's success",
        ended(final_stage(FAILED, failed=CRASHED, reason="exit code 1: no such file", kept=False)),
        [over(f"{ALL}; its final stage failed: exit code 1: no such file")],
    ),
    (
        "a command that is not there pauses nothing: there is no budget to save",
        ended(final_stage(FAILED, failed=CONFIG, reason="no such program", kept=False)),
        [over(f"{ALL}; its final stage failed: no such program")],
    ),
    (
        "what failed at an earlier end of the search does not count against it",
        ended(final_stage(FAILED, failed=LOST, first=5)),
        [CreateAttempt(FINAL, 6)],
    ),
    (
        "a later end begins where the earlier one stopped counting",
        ended(final_stage(first=3)),
        [CreateAttempt(FINAL, 3)],
    ),
    # The person.
    (
        "Ctrl-C stops it so that it runs again",
        ended(final_stage(RUNNING), desired=DesiredState.INTERRUPT),
        [AskStop(FINAL, INTERRUPTED, "interrupted")],
    ),
    (
        "the stop is sent once it is recorded",
        ended(final_stage(STOPPING, cause=INTERRUPTED), desired=DesiredState.INTERRUPT),
        [SendStop(FINAL, 30.0)],
    ),
    (
        "interrupted, it is what resume continues with",
        ended(final_stage(CANCELLED, cause=INTERRUPTED), desired=DesiredState.INTERRUPT),
        [
            ChangeState(
                ExperimentState.STOPPED,
                "interrupted; its final stage runs again on resume",
                True,
                ReasonCode.INTERRUPTED,
            )
        ],
    ),
    (
        "and resumed it runs again",
        ended(final_stage(CANCELLED, cause=INTERRUPTED)),
        [CreateAttempt(FINAL, 2)],
    ),
    (
        "a controller that died while it stopped sends the stop again",
        ended(final_stage(STOPPING, cause=INTERRUPTED)),
        [SendStop(FINAL, 30.0)],
    ),
    (
        "Ctrl-C before it began: it has not run",
        ended(final_stage(), desired=DesiredState.INTERRUPT),
        [
            ChangeState(
                ExperimentState.STOPPED,
                "interrupted; its final stage runs again on resume",
                True,
                ReasonCode.INTERRUPTED,
            )
        ],
    ),
    (
        "tuner stop ends it for good",
        ended(final_stage(RUNNING), desired=DesiredState.STOP),
        [
            AskStop(FINAL, UNWANTED, "tuner stop"),
            ChangeState(ExperimentState.STOPPING, "tuner stop", False, ReasonCode.STOP_REQUESTED),
        ],
    ),
    (
        "tuner stop before it began: there is none",
        ended(final_stage(), desired=DesiredState.STOP),
        [
            ChangeState(
                ExperimentState.STOPPED, "stopped by tuner stop", True, ReasonCode.STOP_REQUESTED
            )
        ],
    ),
    # The search has grown meanwhile.
    (
        "it makes way for a search that continues, and nothing begins beside it",
        snapshot(
            a_spec(parallelism=2, trials=9, final=export),
            open_trial(2),
            done=tried,
            best=0.5,
            final=final_stage(RUNNING),
        ),
        [AskStop(FINAL, UNWANTED, "the search continues")],
    ),
    (
        "whether there is more to try is asked before it is stopped for it",
        snapshot(
            a_spec(parallelism=2, final=export), done=tried, best=0.5, final=final_stage(RUNNING)
        ),
        [Suggest(2)],
    ),
    (
        "what ended before the search continued is of an earlier end",
        snapshot(nine, open_trial(2, RUNNING), done=tried, best=0.5, final=final_stage(SUCCEEDED)),
        [OutdateFinal(), Suggest(1), Forget(FINAL)],
    ),
    (
        "and so is what was stopped for it",
        snapshot(
            nine,
            open_trial(2),
            done=tried,
            best=0.5,
            final=final_stage(CANCELLED, cause=UNWANTED, kept=False),
        ),
        [OutdateFinal(), CreateAttempt(2, 1), Suggest(1)],
    ),
    (
        "the file has lost it: it is stopped",
        snapshot(a_spec(trials=2), done=tried, best=0.5, final=final_stage(RUNNING)),
        [AskStop(FINAL, UNWANTED, "the file has no final stage any more")],
    ),
]


@pytest.mark.parametrize(
    ("situation", "actions"), [s[1:] for s in SENTENCES], ids=[s[0] for s in SENTENCES]
)
def test_decide_returns_the_actions_of_the_final_stage(
    situation: Snapshot, actions: list[Action]
) -> None:
    assert decide(situation) == actions


# How it ended


def test_no_suggestion_begins_the_final_stage_while_earlier_actions_are_pending() -> None:
    lost = final_stage(FAILED, failed=LOST)
    asked = snapshot(a_spec(parallelism=2, final=export), done=tried, best=0.5, final=lost)
    assert decide(asked) == [Suggest(2), Forget(FINAL)]
    nothing_came = replace(asked, exhausted=True)
    assert decide(nothing_came) == [CreateAttempt(FINAL, 2)]
    assert beginnings(nothing_came) == []


def test_a_final_stage_needs_no_metric() -> None:
    assert (
        judge(Exit(START, code=0), LogSummary(), None, of_trial=False).verdict
        is AttemptState.SUCCEEDED
    )


def test_exit_code_42_is_a_failure_in_the_final_stage() -> None:
    judged = judge(Exit(START, code=42), LogSummary(last_line="too wide"), None, of_trial=False)
    assert (judged.verdict, judged.failure_class, judged.reason) == (
        FAILED,
        CRASHED,
        "exit code 42: too wide",
    )


# Whose parameters


def test_attempts_of_an_earlier_final_stage_do_not_count() -> None:
    memory = Memory(two)
    attempts = [Attempt(FINAL, n, AttemptState.SUCCEEDED) for n in (1, 2, 3)]
    memory.recall_finals(attempts, begun=FinalRun(7, 3))
    assert (memory.finals, memory.earlier_finals) == ([attempts[2]], 2)
    memory.recall_finals(memory.finals, begun=None)
    assert (memory.finals, memory.earlier_finals) == ([], 3)


@pytest.mark.parametrize(
    ("cause", "chosen_anew"), [(INTERRUPTED, False), (UNWANTED, True), (None, False)]
)
def test_the_final_trial_is_chosen_again_only_after_a_stop(
    cause: StopCause | None, chosen_anew: bool
) -> None:
    memory = Memory(two)
    assert memory.may_choose_final
    memory.recall_finals([attempt(1, CANCELLED, trial=FINAL, cause=cause)], begun=FinalRun(7, 1))
    assert memory.may_choose_final is chosen_anew


# What it is told, and what it is called


def test_the_final_stage_gets_the_number_of_its_trial_and_its_own_stage() -> None:
    experiment = replace(an_experiment(two), final=FinalRun(12, 1))
    folders = ExperimentFolders(Path("/state/x")).attempt(FINAL, 2)
    made = host_launch(
        experiment,
        a_trial(12, lr=0.25),
        [Attempt(FINAL, 2)],
        folders,
        environ={},
        interpreter_directory=Path("/venv/bin"),
    )
    assert made.name == "digits-x7k2q-final-r2"
    assert made.command == ("python", "export.py", "--lr=0.25")
    assert (made.env["TUNER_STAGE"], made.env["TUNER_TRIAL_NUMBER"], made.env["TUNER_ATTEMPT"]) == (
        "final",
        "12",
        "2",
    )
    assert made.env["TUNER_TRIAL_NAME"] == "digits-x7k2q-final"
    assert made.env["TUNER_OUTPUT_DIR"] == "/state/x/final/2/output"
    assert made.env["TUNER_CHECKPOINT_DIR"] == "/state/x/final/checkpoint"


def test_a_trial_gets_no_stage() -> None:
    variables = identity(
        an_experiment(two), a_trial(12), Attempt(12, 1), output="/o", checkpoint="/c"
    )
    assert "TUNER_STAGE" not in variables


def test_each_end_of_the_search_has_checkpoints_of_its_own() -> None:
    experiment = replace(an_experiment(two), final=FinalRun(12, 3))
    folders = ExperimentFolders(Path("/state/x")).attempt(FINAL, 4)
    part = cluster_launch(
        experiment, a_trial(12, lr=0.25), [Attempt(FINAL, 4)], folders, environ={}
    )
    assert part.env["TUNER_CHECKPOINT_DIR"] == "/tuner/checkpoints/final-r3"


def test_a_final_stage_is_found_by_its_labels_and_is_not_taken_for_a_trial() -> None:
    folders = ExperimentFolders(Path("/state/x")).attempt(FINAL, 2)
    part = cluster_launch(
        an_experiment(two), a_trial(12, lr=0.25), [Attempt(FINAL, 2)], folders, environ={}
    ).cluster
    labels = labels_of(part)
    assert (labels["tuner.dev/trial"], labels["tuner.dev/attempt"]) == ("final", "2")
    found = {"metadata": {"labels": labels}}
    assert attempt_of(found) == (FINAL, 2)
    assert (
        name_of(found, (FINAL, 2))
        == attempt_name("digits", UID, FINAL, 2)
        == "digits-x7k2q-final-r2"
    )
