"""`tests.called`: a command that is called in the process of the tests behaves as the program."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import called, forked
from tests.e2e.cli import Cli, cli_in


def processes(folder: Path) -> Cli:
    return Cli(folder, only_processes=True)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    with cli_in(tmp_path_factory.mktemp("called"), make=processes) as cli:
        assert cli.tuner("run", cli.write())[0] == 0
        yield cli


@pytest.mark.parametrize(
    "words",
    [
        ("get", "experiments", "-o", "json"),
        ("get", "trials", "tiny"),
        ("describe", "tiny"),
        ("describe", "tiny/1"),
        ("best", "tiny"),
        ("report", "tiny"),
        ("export", "tiny", "--format", "csv"),
        ("logs", "tiny/0"),
        ("validate", "experiment.yaml"),
        ("validate", "-"),
        ("run", "experiment.yaml"),
        ("extend", "tiny"),
        ("get", "trials", "none"),
        ("get", "trials", "tiny", "--log-format", "json"),
        ("get", "-v", "trials", "none"),
        ("delete", "tiny"),
        ("get",),
        ("--help",),
        ("logs", "tiny", "--tail", "-2"),
        ("convert", "experiment.yaml"),
    ],
    ids=" ".join,
)
def test_a_command_prints_the_same_here_and_as_a_process(
    finished: Cli, words: tuple[str, ...]
) -> None:
    results = []
    for run in (called.tuner, forked.run_tuner):
        done = run(words, folder=finished.folder, env=finished.env)
        results.append((done.returncode, done.stdout, done.stderr))
    assert results[0] == results[1]


def test_an_experiment_runs_the_same_here_and_as_a_process(tmp_path: Path) -> None:
    results = []
    for name, make in (("here", Cli), ("process", processes)):
        (tmp_path / name).mkdir()
        with cli_in(tmp_path / name, make=make) as cli:
            cli.write(parallelism=2)
            code, out, _ = cli.tuner("run", "experiment.yaml")
            assert bool(cli.started) == cli.only_processes
            points = [
                (trial["state"], trial["parameters"], trial["value"]) for trial in cli.trials()
            ]
            results.append((code, out, points, sorted(cli.starts())))
    assert results[0] == results[1]
    assert results[0][0] == 0


def test_a_called_command_leaves_this_process_as_it_was(finished: Cli) -> None:
    def state() -> tuple[object, ...]:
        return (
            Path.cwd(),
            dict(os.environ),
            sys.argv,
            sys.stdin,
            sys.stdout,
            sys.stderr,
            logging.root.handlers[:],
            [logging.getLogger(name).level for name in ("", "controller", "suggest")],
        )

    before = state()
    for words in (("get", "trials", "tiny", "-v"), ("get", "trials", "none"), ("--help",)):
        called.tuner(words, folder=finished.folder, env=finished.env)
        assert state() == before


@pytest.mark.parametrize(
    ("words", "more"),
    [
        (("serve",), {}),
        (("ui",), {}),
        (("logs", "-f", "tiny"), {}),
        (("get", "trials", "tiny", "--watch"), {}),
        (("get", "experiments"), {"TUNER_FAILPOINT": "study.create.before"}),
        (("get", "experiments"), {"PYTHONOPTIMIZE": "1"}),
    ],
)
def test_a_command_that_needs_a_process_is_not_called(
    words: tuple[str, ...], more: dict[str, str]
) -> None:
    assert not called.ends_here(words, env={**os.environ, **more})


def test_a_command_within_an_event_loop_is_not_called() -> None:
    async def asked() -> bool:
        return called.ends_here(("get", "experiments"), env=os.environ)

    assert not asyncio.run(asked())
    assert called.ends_here(("get", "experiments"), env=os.environ)
