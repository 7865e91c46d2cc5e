"""What the code before the first release exported is imported whole.

`tuner export NAME --format json` of commit 799b4279 wrote tests/fixtures/exports-before-0.1.0:
conditional parameters with succeeded, pruned, infeasible and failed trials; two objectives with a
constraint; trials of several fidelities. They are cut to a trial of each kind, without events.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cli import Cli

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
