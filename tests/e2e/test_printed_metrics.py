"""Printed metrics through all of `tuner`: steps across attempts, percentages,
and misspelled names.
"""

from __future__ import annotations

import json
import sqlite3

import pytest

from tests.e2e.cli import Cli, experiment, why


def program(cli: Cli, text: str, *, trials: int = 1, trial: str = "gracePeriod: 1s") -> None:
    (cli.folder / "train.py").write_text(text)
    cli.file.write_text(experiment(["python", "train.py"], trials=trials, trial=trial))


def curves(cli: Cli) -> dict[int, dict[int, float]]:
    """Return the stored values of the objective: attempt -> step -> value."""
    found: dict[int, dict[int, float]] = {}
    with sqlite3.connect(cli.folder / "state" / "studies.db") as database:
        query = (
            "SELECT attempt, step, value FROM measurements WHERE metric = 'score' ORDER BY "
            "attempt, step"
        )
        for attempt, step, value in database.execute(query):
            found.setdefault(attempt, {})[step] = value
    return found


RESUMES = """
import os, signal
folder = os.environ["TUNER_CHECKPOINT_DIR"]
path = os.path.join(folder, "epoch")
first = int(open(path).read()) if os.path.exists(path) else 1
for epoch in range(first, 9):
    print({line}, flush=True)
    open(path, "w").write(str(epoch + 1))
    if epoch == 5 and first == 1:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize(
    "line",
    [
        'f"epoch {epoch}: score={epoch / 10}"',
        'f"Epoch {epoch}/8\\nscore: {epoch / 10}"',
        'f"score={epoch / 10}"',
        'f"\\rEpoch {epoch}: 1/2 [00:01<00:01, score=0]\\rEpoch {epoch}: 2/2 [00:01, score={epoch '
        '/ 10}]"',
    ],
    ids=["word", "header", "counter", "bar"],
)
def test_steps_continue_in_a_resumed_attempt(cli: Cli, line: str) -> None:
    program(cli, RESUMES.replace("{line}", line))
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert curves(cli)[2] == {6: 0.6, 7: 0.7, 8: 0.8}
    (trial,) = cli.trials()
    assert (trial["step"], trial["value"]) == (8, 0.8)


@pytest.mark.parametrize(
    ("line", "old", "new"),
    [
        ("val_acc=0.5", "metric: score", "metric: val_acc"),
        (
            "score is 0.5",
            "  parameters:",
            "  metrics: {pattern: '(?P<name>score) is (?P<value>.*)'}\n  parameters:",
        ),
    ],
)
def test_resume_accepts_the_cure_of_a_metric_that_is_not_read(
    cli: Cli, line: str, old: str, new: str
) -> None:
    cli.file.write_text(
        experiment(["sh", "-c", f"echo '{line}'", "sh", "${x}"]).replace(
            "canary: 0s", "canary: 10s"
        )
    )
    assert cli.tuner("run", cli.file)[0] == 8
    cli.file.write_text(cli.file.read_text().replace(old, new))
    code, out, err = cli.tuner("resume", cli.file)
    assert (code, "0.5" in out) == (0, True), err
    assert [(trial["value"], len(trial["attempts"])) for trial in cli.trials()] == [(0.5, 2)] * 2


PRINTS_ANOTHER_NAME_LATER = 'test "$TUNER_TRIAL_NUMBER" -lt 2 && echo score=$1 || echo points=$1'


def test_a_metric_that_trials_no_longer_report_may_be_renamed_and_no_other(cli: Cli) -> None:
    cli.file.write_text(
        experiment(["sh", "-c", PRINTS_ANOTHER_NAME_LATER, "sh", "${x}"], trials=20)
    )
    assert cli.tuner("run", cli.file)[0] == 8
    cli.file.write_text(cli.file.read_text().replace("metric: score", "metric: points"))
    code, _, err = cli.tuner("resume", cli.file)
    assert (code, len(cli.trials())) == (0, 20), err
    _, told, _ = cli.tuner("describe", "tiny/0")
    assert "  points " in told, "the name of its measurement"
    cli.file.write_text(cli.file.read_text().replace("metric: points", "metric: others"))
    code, _, err = cli.tuner("resume", cli.file)
    assert (code, "trials of tiny have values of the old one" in err) == (6, True), err


def test_a_percentage_is_read_as_a_fraction_and_reported_once(cli: Cli) -> None:
    program(cli, "print('score: 91.3%')\nprint('score: 92%')", trials=3)
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    message = '"score" is printed as a percentage and read as a fraction: 91.3% is 0.913'
    assert err.count(message) == 1
    assert [trial["value"] for trial in cli.trials()] == [0.92] * 3
    cli.file.write_text(cli.file.read_text().replace("trials: 3", "trials: 5"))
    code, _, err = cli.tuner("resume", cli.file)
    assert (code, len(cli.trials())) == (0, 5), err
    assert message not in err


def test_a_nearly_matching_metric_name_is_reported(cli: Cli) -> None:
    program(cli, "for n in range(10):\n    print(f'epoch={n} Score=0.5 loss=0.1')")
    code, _, _ = cli.tuner("run", cli.file)
    assert code != 0
    assert why(cli, "tiny/0") == (
        'Why: exit code 0, but no "score" in the log; it has "Score" (10 times): '
        'set spec.objective.metric to the name that is printed, or print "score"'
    )


def test_a_value_after_a_carriage_return_counts_for_pruning(cli: Cli) -> None:
    """The worse trials print a progress bar without a line end, and then wait."""
    program(
        cli,
        "import json, os, sys, time\n"
        "good = int(os.environ['TUNER_TRIAL_NUMBER']) < 2\n"
        "for n in range(5):\n"
        "    sys.stdout.write(f'\\r{20 * n}%|#| {n}/4 [00:01<00:01, 1it/s, score={0.9 if good "
        "else 0.1}]')\n"
        "    sys.stdout.flush()\n"
        "if not good:\n"
        "    time.sleep(600)\n"
        "print()\n",
        trials=3,
    )
    cli.file.write_text(
        cli.file.read_text().replace(
            "  parallelism", "  pruning: {name: median, minTrials: 2}\n  parallelism"
        )
    )
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert [trial["state"] for trial in cli.trials()] == ["succeeded", "succeeded", "pruned"]


def test_a_long_progress_bar_gives_few_measurements(cli: Cli) -> None:
    program(
        cli,
        "import sys\n"
        "for n in range(20_001):\n"
        "    sys.stdout.write(f'\\r 1%|#| {n}/20000 [00:01<00:01, 1it/s, score={n}]')\n"
        "print()\n",
    )
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    kept = curves(cli)[1]
    assert len(kept) < 1000
    assert kept[20_000] == 20_000
    (trial,) = cli.trials()
    assert (trial["value"], trial["step"]) == (20_000, 20_000), json.dumps(trial)
