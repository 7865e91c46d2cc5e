"""With a broken script, the run pauses before it uses up the budget,
and failed trials can run again.
"""

from __future__ import annotations

import pytest

from tests.e2e.cli import Cli, eventually, experiment

# Fails until it is fixed. The output differs between trials.
BROKEN = 'test -e fixed || { echo starting; echo "KeyError: $1"; exit 1; }; echo score=$1'
# Fails for different reasons in the trials whose numbers are in `bad`.
UNLUCKY = (
    'if grep -qsx "$TUNER_TRIAL_NUMBER" bad; then case $TUNER_TRIAL_NUMBER in 1) echo lazy;; 2) '
    "echo crazy;; "
    "*) echo odd;; esac; exit 1; fi; echo score=$1"
)


def script(
    text: str, *, trials: int = 4, failures: int = 99, parallelism: int = 1, canary: bool = True
) -> str:
    # tpe prefetches no successors, so the number of trials does not depend on how fast they end.
    made = experiment(
        ["sh", "-c", text, "sh", "${x}"],
        trials=trials,
        parallelism=parallelism,
        algorithm="tpe, seed: 1",
    )
    made = made.replace("failedTrials: 99", f"failedTrials: {failures}")
    return made.replace("canary: 0s", "canary: 10s") if canary else made


def states(cli: Cli) -> list[tuple[object, int]]:
    return [(trial["state"], len(trial["attempts"])) for trial in cli.trials()]


@pytest.mark.parametrize(("trials", "failures"), [(4, 1), (1, 1)])
def test_a_broken_script_costs_only_two_trials_which_run_again_once_corrected(
    cli: Cli, trials: int, failures: int
) -> None:
    cli.file.write_text(script(BROKEN, trials=trials, failures=failures, parallelism=2))
    for again in (1, 2):
        words = ("run", cli.file) if again == 1 else ("resume", "tiny")
        code, out, err = cli.tuner(*words)
        assert (code, out) == (8, ""), err
        assert "tiny is paused: the first 2 trials failed: exit code 1: KeyError: 0." in err
        assert (
            "Trial 1 printed last (all of it: tuner logs tiny/1):\n    starting\n    KeyError: 0."
            in err
        )
        assert f"tuner resume {cli.file if again == 1 else 'FILE'}" in err
        assert states(cli) == [("queued", again)] * 2
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "    KeyError: 0." in err) == (8, True), "said again, and nothing runs"
    (cli.folder / "fixed").touch()
    code, out, err = cli.tuner("resume", cli.file)
    assert (code, out.startswith("tiny: best score ")) == (0, True), err
    assert states(cli) == [("succeeded", 3)] * 2 + [("succeeded", 1)] * (trials - 2)
    _, told, _ = cli.tuner("describe", "tiny")
    assert f", 0 of {failures} failures" in told


def test_a_missing_script_pauses_the_run_too(cli: Cli) -> None:
    cli.file.write_text(
        experiment(["python", "trian.py", "${x}"], trials=3).replace("canary: 0s", "canary: 10s")
    )
    code, _, err = cli.tuner("run", cli.file)
    assert (code, "the first 2 trials failed: exit code 2: " in err) == (8, True), err
    (cli.folder / "train.py").write_text("import sys\nprint(f'score={sys.argv[1]}')\n")
    cli.file.write_text(cli.file.read_text().replace("trian.py", "train.py"))
    assert cli.tuner("resume", cli.file)[0] == 0
    assert states(cli) == [("succeeded", 2)] * 2 + [("succeeded", 1)]


def test_a_script_that_breaks_later_pauses_too(cli: Cli) -> None:
    (cli.folder / "fixed").touch()
    later = 'test "$TUNER_TRIAL_NUMBER" = 2 && rm -f fixed; ' + BROKEN
    cli.file.write_text(script(later, trials=9))
    code, _, err = cli.tuner("run", cli.file)
    assert code == 8, err
    assert (
        "tiny is paused: the last 3 trials failed for one reason: exit code 1: KeyError: 0." in err
    )
    assert states(cli) == [("succeeded", 1)] * 2 + [("queued", 1)] * 3
    cli.file.write_text(script(BROKEN, trials=9))
    (cli.folder / "fixed").touch()
    assert cli.tuner("resume", cli.file)[0] == 0
    assert states(cli) == [("succeeded", 1)] * 2 + [("succeeded", 2)] * 3 + [("succeeded", 1)] * 4


MOMENTS = ("study.reopen.before", "store.reopen_trials.before")


def test_a_kill_at_any_write_loses_no_pause_and_no_retry(cli: Cli) -> None:
    cli.file.write_text(script(BROKEN, trials=2, failures=1))
    codes = []
    cli.env["TUNER_FAILPOINT"] = "controller.store.save.after:2"
    while not codes or codes[-1] == -9:
        codes.append(cli.tuner("run", cli.file)[0])
    assert (codes[-1], len(codes) > 3) == (8, True), codes
    assert states(cli) == [("queued", 1)] * 2
    (cli.folder / "fixed").touch()
    for moment in ("controller.store.save.before", *MOMENTS, "store.reopen_trials.after"):
        cli.env["TUNER_FAILPOINT"] = moment
        assert cli.tuner("resume", cli.file)[0] == -9, moment
    del cli.env["TUNER_FAILPOINT"]
    code, _, err = cli.tuner("run", cli.file)
    assert code == 0, err
    assert states(cli) == [("succeeded", 2)] * 2


@pytest.fixture
def failed(cli: Cli) -> Cli:
    """A command line whose experiment has reached its limit of failures, with trials 1, 2 and 4."""
    (cli.folder / "bad").write_text("1\n2\n4\n")
    cli.file.write_text(script(UNLUCKY, trials=6, failures=3))
    code, _, err = cli.tuner("run", cli.file)
    assert code == 1, err
    assert "tiny failed: 3 trials failed (budget.failedTrials: 3)" in err
    assert "Run the failed trials again: tuner retry tiny --failed" in err
    return cli


def test_failed_trials_run_again_and_the_search_continues(failed: Cli) -> None:
    (failed.folder / "bad").write_text("2\n")
    code, _, err = failed.tuner("retry", "tiny", "1", "2")
    assert code == 0, err
    assert "tiny: trials 1-2 run again as new attempts; their failures no longer count" in err
    assert states(failed) == [
        ("succeeded", 1),
        ("succeeded", 2),
        ("failed", 2),
        ("succeeded", 1),
        ("failed", 1),
        ("succeeded", 1),
    ]
    _, told, _ = failed.tuner("describe", "tiny/1")
    assert "retried    trial 1 runs again; it failed: exit code 1: lazy" in told
    (failed.folder / "bad").unlink()
    assert failed.tuner("retry", "tiny", "--reason", "crazy")[0] == 0
    assert failed.tuner("retry", "tiny", "--failed", "--reason", "userError")[0] == 0
    assert [len(trial["attempts"]) for trial in failed.trials()] == [1, 2, 3, 1, 2, 1]
    assert {trial["state"] for trial in failed.trials()} == {"succeeded"}


def test_a_retry_killed_between_its_writes_is_repeated_without_harm(failed: Cli) -> None:
    (failed.folder / "bad").unlink()
    for moment in (
        "controller.store.save.before",
        "controller.store.save.after",
        *MOMENTS,
        "study.reopen.after",
    ):
        failed.env["TUNER_FAILPOINT"] = moment
        assert failed.tuner("retry", "tiny", "1", "4")[0] == -9, moment
    del failed.env["TUNER_FAILPOINT"]
    code, _, err = failed.tuner("retry", "tiny", "1", "4")
    assert (code, "tiny: trials 1, 4 run again since an earlier retry" in err) == (0, True), err
    assert [len(trial["attempts"]) for trial in failed.trials()] == [1, 2, 1, 1, 2, 1]


REFUSED = [
    ("tiny", 2, "specify the trials to retry: their numbers, or --failed for all"),
    ("tiny 1 --failed", 2, "name trials by their numbers or with --failed, not both"),
    ("tiny one", 2, "one is not the number of a trial"),
    ("nothing --failed", 5, "there is no experiment nothing"),
    ("tiny 1 99", 5, "tiny has no trial 99; its trials are 0-4"),
    ("tiny 0 1", 6, "tiny: only failed trials can run again; trial 0 is succeeded"),
    ("tiny --reason timeout", 6, "failed with the reason 'timeout'; there are userError (3)"),
    ("FILE 4", 6, "tiny: its budget is already used up: 2 trials failed (budget.failedTrials: 2)"),
]


def test_a_trial_that_cannot_run_again_is_refused_in_one_sentence(failed: Cli) -> None:
    failed.file.write_text(failed.file.read_text().replace("failedTrials: 3", "failedTrials: 2"))
    for words, code, said in REFUSED:
        found, _, err = failed.tuner("retry", *words.replace("FILE", str(failed.file)).split())
        assert (found, said in err) == (code, True), err
    assert [len(trial["attempts"]) for trial in failed.trials()] == [1] * 5


def test_resume_at_the_failure_limit_names_the_cure_or_continues(failed: Cli) -> None:
    code, _, err = failed.tuner("resume", failed.file)
    assert (code, "tuner retry tiny --failed" in err, "resuming" in err) == (1, True, False), err
    failed.file.write_text(failed.file.read_text().replace("trials: 6", "trials: 7"))
    code, _, err = failed.tuner("resume", failed.file)
    assert (code, "its budget is still used up: 3 trials failed" in err, "--failed" in err) == (
        6,
        True,
        True,
    ), err
    failed.file.write_text(failed.file.read_text().replace("failedTrials: 3", "failedTrials: 4"))
    code, _, err = failed.tuner("resume", failed.file)
    assert (code, "revision 2:" in err, "resuming tiny (was failed)" in err) == (0, True, True), err
    assert [trial["state"] for trial in failed.trials()].count("failed") == 3


@pytest.mark.parametrize("words", ["resume FILE", "retry FILE --failed", "extend FILE"])
def test_a_file_that_the_service_refuses_is_never_recorded(failed: Cli, words: str) -> None:
    good = failed.file.read_text().replace("trials: 6", "trials: 7").replace(": 3", ": 4")
    failed.file.write_text(f"{good.rstrip()}\n  pruning: {{name: medan}}\n")
    code, _, err = failed.tuner(*words.replace("FILE", str(failed.file)).split())
    assert (code, "spec.pruning.name: 'medan' is not a pruning rule" in err) == (2, True), err
    assert "revision 2" not in err
    failed.file.write_text(good)
    code, _, err = failed.tuner("resume", failed.file)
    assert (code, "medan" in err) == (0, False), err


def test_retry_refuses_while_the_experiment_runs(cli: Cli) -> None:
    cli.file.write_text(experiment(trials=1, waits=True))
    run = cli.start("run", cli.file)
    eventually(lambda: len(cli.starts()) == 1)
    code, _, err = cli.tuner("retry", "tiny", "0")
    assert (
        code,
        "trials of tiny cannot be retried while it runs: tiny is being run by process" in err,
    ) == (6, True)
    cli.let_go()
    assert run.wait(timeout=60) == 0


def test_an_experiment_without_any_value_fails(cli: Cli) -> None:
    cli.file.write_text(experiment(["sh", "-c", "echo too big; exit 42", "sh", "${x}"], trials=2))
    for _ in range(2):
        code, _, err = cli.tuner("run", cli.file)
        assert (code, "tiny failed: all 2 trials are done; no trial succeeded" in err) == (
            3,
            True,
        ), err
    _, out, _ = cli.tuner("get", "experiments")
    assert out.splitlines()[1].split()[:4] == ["tiny", "default", "failed", "2/2"]
    assert "failed, all 2 trials are done; no trial succeeded" in cli.tuner("describe", "tiny")[1]
