"""Figures, rows, JSON and reasons in the output."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.core.model import (
    Attempt,
    AttemptState,
    Budget,
    Experiment,
    ExperimentObjective,
    ExperimentSpec,
    ExperimentState,
    FailureClass,
    FinalRun,
    ReasonCode,
    StopCause,
    TrialTemplate,
)
from controller.core.progress import Progress
from controller.report import (
    description,
    documents,
    ending,
    formatting,
    lines,
    plain_data,
    text_tables,
)
from controller.report.record import ExperimentRecord, TrialRecord, last_values
from suggest.space import Choice, Float, Parameter, Space
from suggest.study import Algorithm, Direction
from suggest.trial import REUSED, Measurement, Trial, TrialState

NOW = datetime(2026, 5, 1, 12, 0, tzinfo=UTC)
SPEC = ExperimentSpec(
    name="digits",
    namespace="default",
    space=Space((Parameter("lr", Float(0, 1)), Parameter("fast", Choice((True, False))))),
    objective=ExperimentObjective("accuracy", Direction.MAXIMIZE),
    algorithm=Algorithm("random"),
    trial=TrialTemplate(("true",)),
    parallelism=2,
    budget=Budget(trials=10, failed_trials=5),
)


def experiment(
    state: ExperimentState = ExperimentState.RUNNING, reason: str = "", running_s: float = 8
) -> Experiment:
    return Experiment(
        uid="abcdefgh",
        spec=SPEC,
        revision=1,
        directory="/work",
        study="namespaces/default/studies/digits-abcde",
        state=state,
        reason=reason,
        start_time=NOW,
        running_s=running_s,
    )


def trial(
    number: int,
    state: TrialState = TrialState.RUNNING,
    value: float | None = None,
    reason: str = "",
) -> Trial:
    return Trial(number, state, {"lr": 0.25, "fast": True}, value=value, reason=reason)


def attempt(
    number: int, state: AttemptState = AttemptState.RUNNING, *, trial: int = 0, **fields: object
) -> Attempt:
    end = NOW + timedelta(seconds=3) if state.ended else None
    return Attempt(trial, number, state, start_time=NOW, end_time=end, **fields)  # type: ignore[arg-type]


def record(
    *trials: TrialRecord,
    state: ExperimentState = ExperimentState.RUNNING,
    reason: str = "",
    by: str = "process 1",
    measurements: Sequence[Measurement] = (),
) -> ExperimentRecord:
    return ExperimentRecord(
        experiment(state, reason), trials=trials, controlled_by=by, measurements={0: measurements}
    )


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.04, "0.0s"),
        (9.94, "9.9s"),
        (9.96, "10s"),
        (59.6, "1m00s"),
        (187, "3m07s"),
        (7500, "2h05m"),
        (273600, "3d04h"),
    ],
)
def test_durations_have_two_units_at_most(seconds: float, text: str) -> None:
    assert formatting.duration(seconds) == text


@pytest.mark.parametrize(
    ("trend", "text"),
    [
        ([], ""),
        ([1.0], ""),
        ([1.0, 1.0], "▅▅"),
        ([0.0, 1.0, 2.0], "▁▅█"),
        ([0.0, math.nan, 1.0], "▁█"),
        ([-1.7e308, 1.7e308], "▁█"),
        ([float(i) for i in range(100)], "▁▃▆█"),
    ],
)
def test_a_trend_is_shown_in_four_characters(trend: list[float], text: str) -> None:
    assert formatting.sparkline(trend, 4) == text


def test_values_that_are_not_finite_are_strings_in_json() -> None:
    values = [math.nan, math.inf, -math.inf, 0.5]
    shown = [
        documents.measurement(Measurement(1, "m", i, value))["value"]
        for i, value in enumerate(values)
    ]
    assert shown == ["NaN", "Infinity", "-Infinity", 0.5]
    assert json.loads(plain_data.data_text(shown, "json")) == shown


def test_yaml_means_the_same_as_json() -> None:
    import yaml

    data = [
        {"a": 1.5, "b": {"c": "1e5", "d": []}, "e": [{"f": True, "g": "x: y"}, [1, 2]]},
        {"lr": 1e-05, "huge": -2e20, "y": "two\nlines"},
        {},
    ]
    assert yaml.safe_load(plain_data.data_text(data, "yaml")) == data


def test_a_trial_as_json_has_no_nulls() -> None:
    one = TrialRecord(
        trial(3, TrialState.FAILED, reason="exit code 1"),
        (
            attempt(
                1,
                AttemptState.FAILED,
                trial=3,
                exit_code=1,
                reason="exit code 1",
                failure_class=FailureClass.USER_ERROR,
            ),
        ),
    )
    assert documents.trial(record(one), one) == {
        "number": 3,
        "name": "digits-abcde-3",
        "state": "failed",
        "parameters": {"lr": 0.25, "fast": True},
        "reason": "exit code 1",
        "labels": {},
        "startTime": "2026-05-01T12:00:00.000Z",
        "endTime": "2026-05-01T12:00:03.000Z",
        "attempts": [
            {
                "number": 1,
                "state": "failed",
                "exitCode": 1,
                "startTime": "2026-05-01T12:00:00.000Z",
                "endTime": "2026-05-01T12:00:03.000Z",
                "reason": "exit code 1",
                "failureClass": "userError",
            }
        ],
    }


@pytest.mark.parametrize(
    ("sentence", "attempts", "state", "by", "shown", "reason"),
    [
        ("it runs", [attempt(1)], ExperimentState.RUNNING, "me", TrialState.RUNNING, ""),
        (
            "it has not begun",
            [],
            ExperimentState.RUNNING,
            "me",
            TrialState.QUEUED,
            "waits for a free slot",
        ),
        (
            "nobody is there",
            [],
            ExperimentState.STOPPED,
            "",
            TrialState.QUEUED,
            "no controller is running",
        ),
        (
            "it was interrupted",
            [attempt(1, AttemptState.CANCELLED, stop_cause=StopCause.INTERRUPTED)],
            ExperimentState.RUNNING,
            "me",
            TrialState.QUEUED,
            "interrupted; runs again",
        ),
        (
            "it paused the experiment",
            [
                attempt(
                    1,
                    AttemptState.FAILED,
                    failure_class=FailureClass.CONFIGURATION,
                    reason="no such command",
                )
            ],
            ExperimentState.PAUSED,
            "",
            TrialState.QUEUED,
            "runs again when the experiment is resumed: no such command",
        ),
        (
            "its machine died",
            [
                attempt(
                    1,
                    AttemptState.FAILED,
                    failure_class=FailureClass.INFRASTRUCTURE,
                    reason="killed",
                )
            ],
            ExperimentState.RUNNING,
            "me",
            TrialState.QUEUED,
            "to be retried: killed",
        ),
    ],
)
def test_a_running_trial_without_an_active_attempt_is_queued(
    sentence: str,
    attempts: list[Attempt],
    state: ExperimentState,
    by: str,
    shown: TrialState,
    reason: str,
) -> None:
    one = TrialRecord(trial(0), attempts)
    assert (one.state, record(one, state=state, by=by).reason_of(one)) == (shown, reason), sentence


@pytest.mark.parametrize(
    ("trials", "spec", "cure"),
    [
        (
            "programs of a file",
            SPEC,
            "correct it, then: `tuner resume FILE` (or `tuner resume digits`, if the file is "
            "right as it is)",
        ),
        (
            "calls of a function on this machine",
            replace(SPEC, trial=TrialTemplate(("python", "-m", "tuner.worker"))),
            "correct the function, then run the search again under the name 'digits' (or `tuner "
            "resume digits`, if the "
            "function is right as it is)",
        ),
        (
            "calls of a function on a cluster, for two objectives",
            replace(
                SPEC,
                trial=TrialTemplate(("python", "/tuner/objective.pyz")),
                further=(SPEC.objective,),
            ),
            "correct the function, then run the search again under the name 'digits' (or `tuner "
            "resume digits`, if the "
            "function is right as it is)",
        ),
    ],
)
def test_the_cure_of_a_pause_is_that_of_a_file_or_of_a_function(
    trials: str, spec: ExperimentSpec, cure: str
) -> None:
    assert description.cure(replace(experiment(ExperimentState.PAUSED), spec=spec)) == cure, trials


def test_a_failed_search_of_a_function_names_the_call_that_continues_it() -> None:
    spec = replace(SPEC, trial=TrialTemplate(("python", "-m", "tuner.worker")))
    failed = replace(experiment(ExperimentState.FAILED, "5 trials failed"), spec=spec)
    failed = replace(failed, reason_code=ReasonCode.TOO_MANY_FAILURES)
    assert ending.next_step(failed, {TrialState.FAILED: 5}, None).splitlines()[2:] == [
        "Run the failed trials again: `tuner retry digits --failed` (it calls the function as it "
        "is stored)",
        "Or continue without them: correct the function, then run the search again under "
        "the name 'digits' and a "
        "larger spec={'budget': {'failedTrials': N}}",
    ]


def test_the_best_is_the_first_of_equals_in_the_objectives_direction() -> None:
    values = [0.5, 0.9, 0.9]
    found = record(
        *(TrialRecord(trial(i, TrialState.SUCCEEDED, v)) for i, v in enumerate(values))
    ).best
    assert found is not None
    assert found.number == 1


@pytest.mark.parametrize(
    ("state", "reason", "by", "why"),
    [
        (
            ExperimentState.RUNNING,
            "",
            "me",
            "running 0 trials (parallelism 2), 0 queued; stop it with: `tuner stop digits`",
        ),
        (
            ExperimentState.RUNNING,
            "",
            "",
            "its controller ended without finishing it; continue with: `tuner resume digits`",
        ),
        (
            ExperimentState.STOPPED,
            "interrupted",
            "",
            "interrupted; continue with: `tuner resume digits`",
        ),
        (
            ExperimentState.SUCCEEDED,
            "all done",
            "",
            "all done; but no trial succeeded; look at one with: `tuner describe digits/0`",
        ),
    ],
)
def test_describe_explains_the_state_of_an_experiment(
    state: ExperimentState, reason: str, by: str, why: str
) -> None:
    assert description.why_experiment(record(state=state, reason=reason, by=by)) == why


@pytest.mark.parametrize(
    ("budget", "flags"),
    [
        (Budget(gpu_hours=2.5), "--set spec.budget.gpuHours=5"),
        (Budget(cost=9.5), "--set spec.budget.cost=19"),
        (Budget(cost=3), "--set spec.budget.cost=12"),
        (
            Budget(cost=2, gpu_hours=1),
            "--set spec.budget.cost=12 --set spec.budget.gpuHours=3",
        ),
        (Budget(wall_clock_s=3), "--set spec.budget.wallClock=9s"),
    ],
)
@pytest.mark.parametrize("state", [ExperimentState.SUCCEEDED, ExperimentState.FAILED])
def test_a_used_up_limit_is_described_with_a_command_that_raises_it_above_what_is_used(
    state: ExperimentState, budget: Budget, flags: str
) -> None:
    failed = TrialRecord(trial(0, TrialState.FAILED, reason="exit code 1"))
    ended = record(failed, state=state, reason="used up")
    spec = replace(ended.experiment.spec, budget=budget)
    used = replace(ended.experiment, spec=spec, gpu_hours=2.75, cost=11)
    raised = f"raise the limit: `tuner extend digits {flags}`"
    assert description.why_experiment(replace(ended, experiment=used)).endswith(f"; to {raised}")
    if state is ExperimentState.FAILED:  # tuner retry would refuse
        said = ending.next_step(used, {TrialState.FAILED: 1}, None)
        assert said.endswith(f"\nTo {raised}")
        assert "tuner retry" not in said


@pytest.mark.parametrize(
    ("budget", "used"),
    [
        (Budget(gpu_hours=2.5), "\nUsed: 2.75 of 2.5 GPU-hours\n"),
        (Budget(gpu_hours=2.5, cost=20), "\nUsed: 2.75 of 2.5 GPU-hours, cost 11 of 20\n"),
    ],
)
@pytest.mark.parametrize(
    "state", [ExperimentState.SUCCEEDED, ExperimentState.FAILED, ExperimentState.STOPPED]
)
def test_the_end_of_a_run_says_what_was_used_of_the_budget(
    state: ExperimentState, budget: Budget, used: str
) -> None:
    ended = experiment(state, "used up")
    priced = replace(ended.spec, budget=budget, prices={} if budget.cost is None else {"cpu": 1})
    found = replace(ended, spec=priced, gpu_hours=2.75, cost=11)
    assert used in ending.next_step(found, {}, None)
    assert "Used: " not in ending.next_step(ended, {}, None)


@pytest.mark.parametrize("final", [None, FinalRun(trial=0, first=1)])
@pytest.mark.parametrize("best", [None, trial(0, TrialState.SUCCEEDED, 0.9)])
def test_every_success_by_a_limit_says_how_to_raise_it(
    final: FinalRun | None, best: Trial | None
) -> None:
    ended = experiment(ExperimentState.SUCCEEDED, "the money is used up (budget.cost: 9.5)")
    spec = replace(ended.spec, budget=Budget(cost=9.5), prices={"cpu": 1})
    used = replace(ended, spec=spec, cost=11, final=final, reason_code=ReasonCode.COST_SPENT)
    raised = "To raise the limit: `tuner extend digits --set spec.budget.cost=19`"
    assert ending.next_step(used, {}, best).endswith(f"\n{raised}")


def test_a_limit_that_the_last_trial_reached_is_not_to_be_raised() -> None:
    ended = record(state=ExperimentState.SUCCEEDED, reason="all 9 trials are done")
    spec = replace(ended.experiment.spec, budget=Budget(trials=9, cost=9.5))
    done = replace(ended.experiment, spec=spec, cost=11, reason_code=ReasonCode.TRIALS_DONE)
    assert "raise the limit" not in description.why_experiment(replace(ended, experiment=done))


def test_a_detached_experiment_on_a_cluster_is_not_an_error() -> None:
    left = record(by="")
    elsewhere = replace(left.experiment, spec=replace(left.experiment.spec, runtime="kubernetes"))
    why = (
        "no controller is running; its Jobs on the cluster keep running; continue with: `tuner "
        "resume digits`"
    )
    assert description.why_experiment(replace(left, experiment=elsewhere)) == why


def test_a_description_ends_with_its_why() -> None:
    measurements = [Measurement(1, "accuracy", step, step / 10) for step in range(3)]
    one = TrialRecord(
        trial(0, TrialState.PRUNED, reason="below the median"), (attempt(1, AttemptState.PRUNED),)
    )
    text = description.describe_trial(
        record(one, measurements=measurements), one, log=Path("/log.txt"), now=NOW
    )
    assert text.splitlines()[-1] == "Why: it was pruned: below the median"
    assert "accuracy  3         0      0.2   0    0.2  ▁▅█" in text


def test_a_table_is_aligned_and_has_no_trailing_space() -> None:
    assert text_tables.aligned(("A", "LONG"), [["xyz", "1"], ["", ""]]) == "A    LONG\nxyz  1\n\n"


def test_choices_with_control_characters_are_escaped() -> None:
    assert [formatting.parameter(value) for value in ("a b", "a\nb", "\x1b[31mred", "ü")] == [
        "a b",
        '"a\\nb"',
        '"\\u001b[31mred"',
        "ü",
    ]


def test_csv_has_a_column_for_each_parameter() -> None:
    one = TrialRecord(trial(0, TrialState.SUCCEEDED, 1 / 3), (attempt(1, AttemptState.SUCCEEDED),))
    shown = record(one)
    (row,) = csv.DictReader(io.StringIO(text_tables.trials_csv(shown)))
    cells = row["value"], row["seconds"], row["parameters.lr"], row["parameters.fast"]
    assert cells == (str(1 / 3), "3.0", "0.25", "true")


@pytest.mark.parametrize("reason", ["one\rtwo", "\r", "one\r\ntwo", 'a "b", c', "one\ntwo"])
def test_csv_reads_back_whatever_is_in_its_cells(reason: str) -> None:
    text = text_tables.trials_csv(
        record(TrialRecord(trial(0, TrialState.FAILED, reason=reason), ()))
    )
    (row,) = csv.DictReader(io.StringIO(text, newline=""))
    assert row["reason"] == reason
    assert text.endswith(",true\n")


def test_progress_is_shown_in_one_line() -> None:
    counts = {TrialState.SUCCEEDED: 3, TrialState.PRUNED: 1, TrialState.CANCELLED: 1}
    progress = Progress(experiment(), counts, queued=0, running=(), best=None, trend=())
    assert (
        lines.summary(progress)
        == "4/10 trials (3 succeeded, 1 pruned, 1 cancelled), 0 running, about 12s left"
    )


def test_no_remaining_time_is_shown_while_trials_wait() -> None:
    counts = {TrialState.SUCCEEDED: 3}
    progress = Progress(
        experiment(), counts, queued=0, running=(), best=None, trend=(), trouble="the disk is full"
    )
    assert lines.summary(progress) == "3/10 trials (3 succeeded), 0 running"


def test_the_choice_of_default_is_shown_and_a_named_algorithm_is_shown_alone() -> None:
    chosen = {"chosen": "tpe", "candidates": 200, "multivariate": True, "duplicates": "resample"}
    shown = replace(record(), settings=chosen)
    shown = replace(
        shown,
        experiment=replace(shown.experiment, spec=replace(SPEC, algorithm=Algorithm("default"))),
    )
    page = description.describe_experiment(shown, folder=Path("/state"), now=NOW)
    assert "default: tpe (candidates 200, duplicates resample, multivariate true)\n" in page
    assert "Algorithm:  random\n" in description.describe_experiment(
        record(), folder=Path("/state"), now=NOW
    )


def test_a_trial_that_took_over_a_value_is_shown_as_not_run_and_counts_for_nothing() -> None:
    reason = "not run: the value of trial 0, which has the same parameters"
    taken = replace(trial(1, TrialState.SUCCEEDED, 0.9, reason), labels={REUSED: "0"})
    own = TrialRecord(trial(0, TrialState.SUCCEEDED, 0.9), [attempt(1, AttemptState.SUCCEEDED)])
    shown = record(own, TrialRecord(taken))
    state = text_tables.columns_of(shown, now=NOW)["state"]
    assert [state.shown(one) for one in shown.trials] == ["succeeded", "succeeded (not run)"]
    assert documents.experiment(shown)["trials"] == {"succeeded": 1}
    assert documents.experiment(shown)["best"]["number"] == 0
    page = description.describe_trial(shown, shown.trials[1], log=None, now=NOW)
    assert page.endswith(f"Why: it was {reason}\n")


def test_imported_trials_are_shown_as_such_and_count_for_the_best_alone() -> None:
    elsewhere = replace(
        trial(0, TrialState.SUCCEEDED, 0.9), labels={"tuner.dev/imported-from": "notes.csv"}
    )
    own = TrialRecord(
        trial(1, TrialState.SUCCEEDED, 0.5), [attempt(1, AttemptState.SUCCEEDED, trial=1)]
    )
    shown = record(TrialRecord(elsewhere), own)
    state = text_tables.columns_of(shown, now=NOW)["state"]
    assert [state.shown(one) for one in shown.trials] == ["succeeded (imported)", "succeeded"]
    assert documents.experiment(shown)["trials"] == {"succeeded": 1}
    assert documents.experiment(shown)["best"]["number"] == 0
    assert "attempts" in documents.trial(shown, shown.trials[0])
    page = description.describe_experiment(shown, folder=Path("/state"), now=NOW)
    assert "Budget:     1 of 10 trials" in page
    assert "Imported:   1 from notes.csv\n" in page
    one = description.describe_trial(shown, shown.trials[0], log=None, now=NOW)
    assert "Imported:   from notes.csv\n" in one
    assert "Why: it ended with accuracy 0.9 where it comes from; the best so far" in one
    assert ending.result(shown.experiment, elsewhere).startswith(
        "digits: best accuracy 0.9 (trial 0, imported)\n"
    )


def test_a_result_has_the_order_of_the_file() -> None:
    best = replace(trial(0, TrialState.SUCCEEDED, 0.9), parameters={"fast": True, "lr": 0.25})
    _, *parameters = ending.result(experiment(), best).splitlines()
    assert [line.split()[0] for line in parameters] == ["lr", "fast"]


def test_a_point_of_another_algorithm_than_the_studys_is_shown_as_such() -> None:
    cheaper = replace(trial(0, TrialState.SUCCEEDED, 0.9), labels={"tuner.dev/proposed-by": "tpe"})
    shown = record(TrialRecord(cheaper), TrialRecord(trial(1, TrialState.SUCCEEDED, 0.5)))
    pages = [description.describe_trial(shown, one, log=None, now=NOW) for one in shown.trials]
    name = shown.experiment.spec.algorithm.name
    assert f"Proposed:   by tpe, because {name} was not ready\n" in pages[0]
    assert "Proposed:" not in pages[1]


def test_the_last_value_of_a_metric_is_the_newest_attempts_at_its_last_step() -> None:
    measured = [
        (0, Measurement(1, "loss", 9, 0.9)),
        (0, Measurement(2, "loss", 2, 0.2)),
        (0, Measurement(2, "loss", 1, 0.1)),
        (0, Measurement(2, "accuracy", 1, 0.5)),
        (1, Measurement(1, "accuracy", 1, 0.5)),
    ]
    assert last_values(measured, without="accuracy") == {0: {"loss": 0.2}}


GAP = (
    "lines printed between 09:40 and 09:52 are missing: the node had rotated the log before "
    "they were read"
)
DOUBT = "the lines that were not read may have had another value of accuracy"


def with_gap(number: int, doubt: str = "") -> TrialRecord:
    ran = attempt(1, AttemptState.SUCCEEDED, trial=number, log_gap=GAP, value_doubt=doubt)
    return TrialRecord(trial(number, TrialState.SUCCEEDED, 0.5), [ran])


def test_an_experiment_names_the_trials_whose_values_a_gap_puts_in_doubt() -> None:
    text = description.describe_experiment(
        record(with_gap(2), with_gap(3, DOUBT)), folder=Path("/state"), now=NOW
    )
    assert "Log gaps:   trials 2, 3; in doubt: trial 3; see: `tuner describe digits/3`\n" in text


def test_a_gap_on_which_no_value_depends_is_named_too() -> None:
    text = description.describe_experiment(record(with_gap(2)), folder=Path("/state"), now=NOW)
    assert (
        "Log gaps:   trial 2, and no value depends on them; see: `tuner describe digits/2`\n"
        in text
    )


def test_a_trial_shows_the_gap_in_its_log_and_the_doubt() -> None:
    entry = with_gap(3, DOUBT)
    text = description.describe_trial(record(entry), entry, log=None, now=NOW)
    assert f"Log gap:    {GAP}\n" in text
    assert f"In doubt:   {DOUBT}\n" in text
    assert text.endswith(f"Why: it ended with accuracy 0.5; the best so far; but {DOUBT}\n")
    (shown,) = documents.trial(record(entry), entry)["attempts"]
    assert (shown["logGap"], shown["valueDoubt"]) == (GAP, DOUBT)


def test_the_best_value_is_printed_with_its_doubt() -> None:
    assert ending.doubt(record(with_gap(3, DOUBT))) == f"in doubt: {DOUBT} ({GAP})"
    assert ending.doubt(record(with_gap(3))) == ""


def test_why_says_what_a_controller_waits_for_and_why_the_last_one_ended() -> None:
    away = "the API server does not answer (since 2026-01-01T00:00:00Z)"
    waits = replace(record(), trouble=away)
    assert (
        description.why_experiment(waits)
        == f"its controller waits: {away}; stop it with: `tuner stop digits`"
    )
    assert f"\nTrouble:    {away}\n" in description.describe_experiment(
        waits, folder=Path("/x"), now=NOW
    )
    left = (
        f"its controller ended without finishing it: {away}; continue with: `tuner resume digits`"
    )
    assert description.why_experiment(replace(waits, controlled_by="")) == left
