"""The output for trials on a cluster: what they wait for, where they ran, and their resources."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from controller.core.model import Attempt, AttemptState, Event, Experiment, FailureClass, Resources
from controller.core.progress import Progress, RunningTrial
from controller.report import description, documents, lines, text_tables
from controller.report.record import ExperimentRecord, TrialRecord
from controller.runtime.requested import gpus_of
from suggest.trial import Trial, TrialState
from tests.unit.builders import START, a_spec, a_template, an_experiment

WAITS = "QuotaExceeded: requests.nvidia.com/gpu 8/8 (quota gpus)"
NOW = START + timedelta(seconds=10)


def on_cluster(*, gpu: float = 1.0, workers: int = 1) -> Experiment:
    cluster: dict[str, object] = {"distributed": {"workers": workers}} if workers > 1 else {}
    template = replace(a_template(), resources=Resources(gpu=gpu), cluster=cluster)
    return an_experiment(replace(a_spec(parallelism=4, trial=template), runtime="kubernetes"))


def waiting(number: int = 0, reason: str = WAITS, *earlier: Attempt) -> TrialRecord:
    newest = Attempt(number, len(earlier) + 1, reason=reason)
    return TrialRecord(Trial(number, TrialState.RUNNING, {"lr": 0.1}), (*earlier, newest))


def ran(number: int = 0, **fields: object) -> TrialRecord:
    attempt = Attempt(
        number,
        1,
        AttemptState.SUCCEEDED,
        start_time=START,
        end_time=START + timedelta(seconds=3),
        gpus=1.0,
    )
    return TrialRecord(
        Trial(number, TrialState.SUCCEEDED, {"lr": 0.1}, value=0.5),
        (replace(attempt, node="node1", image="example/tiny@sha256:" + "12ab" * 16, **fields),),  # type: ignore[arg-type]
    )


def record(
    *trials: TrialRecord, experiment: Experiment | None = None, by: str = "process 1"
) -> ExperimentRecord:
    return ExperimentRecord(experiment or on_cluster(), trials=trials, controlled_by=by)


def describe(found: ExperimentRecord, one: TrialRecord) -> str:
    return description.describe_trial(found, one, log=None, now=NOW)


def test_a_trial_whose_attempt_waits_is_queued_for_its_reason() -> None:
    found = record(waiting())
    (shown,) = [documents.trial(found, one) for one in found.trials]
    assert (shown["state"], shown["reason"]) == ("queued", WAITS)
    assert text_tables.columns_of(found, now=NOW)["state"].shown(found.trials[0]) == "queued"
    assert found.counts == {TrialState.QUEUED: 1}


@pytest.mark.parametrize(
    ("one", "by", "reason", "why"),
    [
        (
            waiting(),
            "me",
            WAITS,
            f"it waits for room in its namespace, and starts by itself: {WAITS}",
        ),
        (
            waiting(0, "being pulled: a"),
            "me",
            "being pulled: a",
            "it waits, and starts by itself: being pulled: a",
        ),
        (waiting(0, ""), "me", "is being started", "is being started"),
        (waiting(), "", "no controller is running", "no controller is running"),
        (
            waiting(
                0,
                WAITS,
                Attempt(0, 1, AttemptState.FAILED, failure_class=FailureClass.INFRASTRUCTURE),
            ),
            "me",
            WAITS,
            f"it waits for room in its namespace, and starts by itself in attempt 2: {WAITS}",
        ),
    ],
)
def test_describe_explains_why_a_trial_waits(
    one: TrialRecord, by: str, reason: str, why: str
) -> None:
    found = record(one, by=by)
    assert (found.reason_of(one), description.why_trial(found, one)) == (reason, why)


def test_describe_says_what_a_trial_is_queued_for() -> None:
    one = waiting()
    assert f"Queued:     {WAITS}" in describe(record(one), one).splitlines()


def test_describe_lists_the_waiting_trials() -> None:
    found = record(*(waiting(number) for number in range(10)))
    text = description.describe_experiment(found, folder=Path("/x"), now=NOW)
    assert f"Waiting\n  TRIAL  FOR WHAT\n  0      {WAITS}\n" in text
    assert "  and 2 more\n" in text
    assert text.splitlines()[-1].startswith(
        f"Why: running 0 trials (parallelism 4), 10 queued ({WAITS}); stop it with"
    )


def test_an_attempt_shows_node_image_and_gpu_seconds() -> None:
    one = ran()
    lines = describe(record(one), one).splitlines()
    assert (
        " ".join(lines[lines.index("Attempts") + 1].split())
        == "NUMBER STATE FOR EXIT CLASS NODE IMAGE GPU-S REASON"
    )
    assert (
        " ".join(lines[lines.index("Attempts") + 2].split())
        == "1 succeeded 3.0s node1 sha256:12ab12ab12ab 3"
    )


@pytest.mark.parametrize(("gpu", "workers", "seconds"), [(1, 1, 3.0), (2, 4, 24.0), (0, 1, None)])
def test_gpu_seconds_count_every_worker(gpu: float, workers: int, seconds: float | None) -> None:
    experiment = on_cluster(gpu=gpu, workers=workers)
    found = record(ran(gpus=gpus_of(experiment.spec.trial)), experiment=experiment)
    (attempt,) = documents.trial(found, found.trials[0])["attempts"]
    assert attempt.get("gpuSeconds") == seconds
    assert attempt["image"].startswith("example/tiny@sha256:")


def test_local_experiments_show_nothing_about_clusters() -> None:
    one = ran()
    (attempt,) = one.attempts
    local = TrialRecord(one.trial, (replace(attempt, node="", image="", gpus=0.0),))
    found = record(local, experiment=an_experiment())
    lines = describe(found, local).splitlines()
    assert (
        " ".join(lines[lines.index("Attempts") + 1].split()) == "NUMBER STATE FOR EXIT CLASS REASON"
    )
    assert documents.trial(found, local)["attempts"][0].keys() == {
        "number",
        "state",
        "startTime",
        "endTime",
    }


def test_the_line_of_progress_tells_those_that_wait_from_those_that_run() -> None:
    waits = RunningTrial(1, 1, AttemptState.CREATED, None, None, None, {}, waiting_for=WAITS)
    runs = RunningTrial(0, 1, AttemptState.RUNNING, START, None, None, {})
    progress = Progress(on_cluster(), {}, queued=0, running=(runs, waits), best=None, trend=())
    assert lines.summary(progress) == f"0 trials, 1 running, 1 waiting ({WAITS})"


def test_a_common_reason_of_waiting_trials_is_shown_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    view = lines.Lines()
    for number, used in ((1, "2/2"), (2, "3/2")):
        reason = f"QuotaExceeded: {used}"
        waits = RunningTrial(
            number, 1, AttemptState.CREATED, None, None, None, {}, waiting_for=reason
        )
        view.event(Event(START, "waiting", f"trial=x-{number} attempt=1 waiting", number, 1))
        view.refresh(Progress(on_cluster(), {}, queued=0, running=(waits,), best=None, trend=()))
    assert capsys.readouterr().err == "waiting: QuotaExceeded: 2/2\n"
