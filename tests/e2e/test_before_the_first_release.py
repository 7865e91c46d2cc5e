"""What the code before the first release stored: its exports are imported whole,
and its databases say how.

`tuner export NAME --format json` of commit 799b4279 wrote tests/fixtures/exports-before-0.1.0:
conditional parameters with succeeded, pruned, infeasible and failed trials; two objectives with a
constraint; trials of several fidelities. They are cut to a trial of each kind, without events.
"""

from __future__ import annotations

import json
import sqlite3
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli
from tests.forked import TUNER

EXPORTS = Path(__file__).parents[1] / "fixtures" / "exports-before-0.1.0"
KEPT = (
    "number",
    "state",
    "parameters",
    "value",
    "values",
    "metrics",
    "reason",
    "failureClass",
    "measurements",
)
BEFORE = {
    "studies.db": "CREATE TABLE suggest_schema_version (version_num VARCHAR(32) NOT NULL)",
    "controller.db": "CREATE TABLE controller_schema (version INTEGER NOT NULL)",
}


def kept(export: Any) -> list[dict[str, Any]]:
    return [{key: trial[key] for key in KEPT if key in trial} for trial in export["trials"]]


@pytest.mark.parametrize("name", ["digits", "front", "rungs"])
def test_an_export_is_imported_with_all_trials_and_measurements(cli: Cli, name: str) -> None:
    exported = json.loads((EXPORTS / f"{name}.json").read_text())
    cli.file.write_text(json.dumps(exported["experiment"]["file"]))
    for _ in range(2):
        assert cli.tuner("import", cli.file, "--from", EXPORTS / f"{name}.json")[0] == 0
    imported = cli.json("export", name, "--format", "json")
    assert len(kept(imported)) > 1
    assert kept(imported) == kept(exported)


@pytest.mark.parametrize(
    "spoiled", ['{"trials": []}', '{"study": {"uid": "a"}}', "{", '{"op_code": 1']
)
def test_another_json_file_is_refused(cli: Cli, spoiled: str) -> None:
    exported = json.loads((EXPORTS / "digits.json").read_text())
    cli.file.write_text(json.dumps(exported["experiment"]["file"]))
    (cli.folder / "other.json").write_text(spoiled)
    code, _, err = cli.tuner("import", cli.file, "--from", "other.json")
    assert code == 2
    assert "other.json" in err


@pytest.fixture
def old(cli: Cli) -> Cli:
    state = cli.folder / "state"
    state.mkdir()
    for name, statement in BEFORE.items():
        with closing(sqlite3.connect(state / name)) as connection:
            connection.execute(statement)
    return cli


@pytest.mark.parametrize(
    "words",
    [
        ("get", "trials", "digits"),
        ("get", "studies"),
        ("resume", "digits"),
        ("db", "check"),
        ("serve", "--address", "unix:s", "--insecure"),
        ("serve", "--check", "--address", "unix:s", "--insecure"),
    ],
)
def test_every_command_says_how_to_move_the_experiments(old: Cli, words: tuple[str, ...]) -> None:
    code, out, err = old.tuner(*words)
    said = out + err
    assert code == 7, said
    assert "was made before the first release" in said
    assert "run: tuner export NAME --format json > NAME.json" in said
    assert "run: tuner import FILE --from NAME.json" in said


def test_python_says_it_too(old: Cli) -> None:
    program = f"import tuner; tuner.open('digits', state_dir={str(old.folder / 'state')!r})"
    found = subprocess.run(
        [TUNER.with_name("python"), "-c", program], capture_output=True, text=True, check=False
    )
    assert "was made before the first release" in found.stderr.splitlines()[-1]
