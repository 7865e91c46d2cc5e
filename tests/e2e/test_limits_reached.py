"""An experiment pauses with a reason when the limits of the service are reached,
and continues when there is room.
"""

from __future__ import annotations

from pathlib import Path

from suggest.server import ServerOptions
from tests.e2e.cli import cli_in, eventually, experiment
from tests.service.running import a_server


def test_a_full_namespace_pauses_and_resume_continues_when_there_is_room(tmp_path: Path) -> None:
    limits = tmp_path / "limits.yaml"
    limits.write_text("defaults: {trials: 3, measurements: 1}")
    with (
        a_server(tmp_path / "studies.db", options=ServerOptions(limits=str(limits))) as server,
        cli_in(tmp_path) as cli,
    ):
        cli.file.write_text(experiment(trials=5))
        code, _, err = cli.tuner("run", "experiment.yaml", "--server", server.address)
        assert code == 8, err
        assert "the namespace default has 3 of the 3 trials allowed" in err
        states = [trial["state"] for trial in cli.trials()]
        assert states == ["succeeded"] * 3, "what ran is ended, though reports were refused"
        limits.write_text("defaults: {trials: 6}")
        eventually(
            lambda: cli.tuner("resume", "tiny")[0] == 0, within_s=30
        )  # the file of limits is reloaded within a second
        assert [trial["state"] for trial in cli.trials()] == ["succeeded"] * 5
