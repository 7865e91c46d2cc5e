"""`tuner report --html` and `--figure`: each command in docs/reports.md,
and the errors of invalid ones.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import tuner
from tests.e2e.cli import Cli

PAGE = Path(__file__).parents[2] / "docs" / "reports.md"


def test_the_commands_on_the_page_write_the_files_that_they_name(cli: Cli) -> None:
    assert cli.tuner("run", cli.write(name="digits", trials=4))[0] == 0
    shown = re.findall(r"^tuner (report .*)$", PAGE.read_text(), re.MULTILINE)
    assert len(shown) == 4
    for line in shown:
        words = shlex.split(line)
        code, out, err = cli.tuner(*words)
        assert (code, out.strip()) == (0, words[-1]), err
        assert (cli.folder / words[-1]).stat().st_size > 1000
    page = (cli.folder / "report.html").read_text()
    assert "<h1>digits</h1>" in page
    assert "4 succeeded" in page


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--figure", "histroy", "--to", "a.svg"), "no figure 'histroy'; did you mean history?"),
        (("--figure", "history"), "requires --to"),
        (("--figure", "history", "--to", "a.pdf"), "a.pdf: not an svg, png or json file"),
    ],
)
def test_a_wrong_figure_is_refused(cli: Cli, words: tuple[str, ...], message: str) -> None:
    assert cli.tuner("run", cli.write(trials=1))[0] == 0
    code, _, err = cli.tuner("report", "tiny", *words)
    assert (code, message in err) == (2, True), err


def test_every_figure_is_available_in_python(cli: Cli) -> None:
    assert cli.tuner("run", cli.write(trials=3))[0] == 0
    study = tuner.open("tiny", state_dir=cli.folder / "state")
    for name in ("history", "curves", "parallel", "slice", "contour", "importance", "timeline"):
        figure = getattr(study.plot, name)()
        figure.save(cli.folder / f"{name}.json")
        assert "application/vnd.vegalite.v5+json" in figure._repr_mimebundle_()
    with pytest.raises(KeyError, match="no figure 'front'"):
        study.plot.front()
