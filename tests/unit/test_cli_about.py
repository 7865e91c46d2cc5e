"""What tuner says of itself."""

from __future__ import annotations

from pathlib import Path

from controller.cli.about import FAILPOINT_MODULES


def test_every_module_that_declares_a_failpoint_is_known() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("suggest/**/*.py"), *root.glob("controller/**/*.py")]
    declaring = {
        ".".join(file.relative_to(root).with_suffix("").parts)
        for file in files
        if "failpoints.register(" in file.read_text() and file.name != "failpoints.py"
    }
    assert declaring == set(FAILPOINT_MODULES)
