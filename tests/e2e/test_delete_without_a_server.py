"""`tuner delete` of an experiment whose suggestion server is gone permanently."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cli import Cli, cli_in, experiment
from tests.service.running import a_server


@pytest.fixture
def cli(tmp_path: Path) -> Iterator[Cli]:
    with cli_in(tmp_path) as cli:
        cli.file.write_text(experiment())
        with a_server(tmp_path / "shared.db") as server:
            assert cli.tuner("run", cli.file, "--server", server.address)[0] == 0
        yield cli


def test_delete_keeps_all_records_and_names_the_cure(cli: Cli) -> None:
    code, _, err = cli.tuner("delete", "tiny", "--yes")
    assert code == 7
    assert "its records are kept; tuner delete tiny --force removes what is here" in err
    assert [one["name"] for one in cli.json("get", "experiments", "-o", "json")] == ["tiny"]


def test_forced_delete_removes_local_records_and_reports_what_is_left(cli: Cli) -> None:
    (folder,) = (cli.folder / "state" / "experiments").iterdir()
    code, _, err = cli.tuner("delete", "tiny", "--yes", "--force")
    assert code == 0, err
    assert "tiny is deleted; left behind: the study namespaces/default/studies/tiny-" in err
    assert "with its trials, in the service at " in err
    assert not folder.exists()
    assert cli.json("get", "experiments", "-o", "json") == []
