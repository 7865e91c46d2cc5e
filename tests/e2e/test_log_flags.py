"""`tuner logs` and its flags."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import UNTIL_GO, Cli, cli_in, eventually, experiment

TWICE = [
    "sh",
    "-c",
    "for i in 1 2 3; do echo attempt $TUNER_ATTEMPT line $i; done; kill -9 $$",
    "sh",
    "${x}",
]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """A command line with two finished trials, each with two attempts."""
    with cli_in(tmp_path_factory.mktemp("logs")) as cli:
        cli.file.write_text(experiment(TWICE, trial="retries: {infrastructure: 1}"))
        cli.tuner("run", cli.file)
        yield cli


def test_the_last_lines_of_an_attempt(cli: Cli) -> None:
    assert cli.tuner("logs", "tiny/1", "--tail", "1") == (0, "attempt 2 line 3\n", "")
    assert (
        cli.tuner("logs", "tiny/1", "--attempt", "1", "--tail", "2")[1]
        == "attempt 1 line 2\nattempt 1 line 3\n"
    )


def test_a_missing_resource_is_reported(cli: Cli) -> None:
    for words, said in (
        (("logs", "tiny/99"), "tiny has no trial 99; its trials are 0 to 1"),
        (("describe", "tiny/99"), "tiny has no trial 99; its trials are 0 to 1"),
        (("logs", "tiny/1", "--attempt", "7"), "tiny/1 has no attempt 7; it has attempts 1 to 2"),
    ):
        code, out, err = cli.tuner(*words)
        assert (code, out) == (5, "")
        assert said in err


def test_invalid_flags_are_usage_errors(cli: Cli) -> None:
    for words in (
        ("tiny", "--attempt", "1"),
        ("tiny/1", "--tail", "-2"),
    ):
        assert cli.tuner("logs", *words)[0] == 2


def test_a_long_log_is_capped_while_the_trial_runs(tmp_path: Path) -> None:
    with cli_in(tmp_path) as cli:
        floods = ["sh", "-c", f"seq 1 700000; echo score=0.5; {UNTIL_GO}", "sh", "${x}"]
        cli.file.write_text(experiment(floods, trials=1, trial="logLimit: 1Mi"))
        run = cli.start("run", cli.file)
        eventually(
            lambda: any(map(_is_capped, tmp_path.glob("state/experiments/*/trials/0/1/log.txt")))
        )
        cli.let_go()
        assert run.wait(timeout=60) == 0
        assert cli.trials()[0]["value"] == 0.5
        printed = cli.tuner("logs", "tiny")[1]
        assert (printed[:4], printed.splitlines()[-1], printed.count("# tuner: gap: ")) == (
            "1\n2\n",
            "score=0.5",
            1,
        )
        assert len(printed) < 2 << 20
        limited = [
            event
            for event in cli.json("export", "tiny", "--format", "json")["events"]
            if event["kind"] == "logLimit"
        ]
        assert len(limited) == 1


def _is_capped(log: Path) -> bool:
    status = log.stat()
    return status.st_size > 4 << 20 and status.st_blocks * 512 < 2 << 20
