"""An experiment without an algorithm gets `default`, which reports its choice."""

from __future__ import annotations

from pathlib import Path

from tests.e2e.cli import cli_in, experiment

SMALL = "x: {type: int, min: 1, max: 3}, kind: [a, b]"


def test_the_choice_of_default_is_reported_with_its_reasons(tmp_path: Path) -> None:
    text = experiment(parameters=SMALL, parallelism=3, trials=6, algorithm="default, seed: 1")
    with cli_in(tmp_path) as cli:
        (tmp_path / "experiment.yaml").write_text(
            text.replace("  algorithm: {name: default, seed: 1}\n", "")
        )
        assert cli.tuner("run", "experiment.yaml")[0] == 0
        out = cli.tuner("describe", "tiny")[1]
        assert "default: grid (parallelism 3, trials 6)\n" in out
        (tmp_path / "starts.txt").unlink()
        (tmp_path / "other.yaml").write_text(
            text.replace("tiny", "other").replace("trials: 6", "trials: 5")
        )
        assert cli.tuner("run", "other.yaml")[0] == 0
        out = cli.tuner("describe", "other")[1]
        assert "default: hedge (" in out
        assert "duplicates resample, firstPoints random, goodShare 0.1, " in out
        assert len(set((tmp_path / "starts.txt").read_text().splitlines())) == 5
