"""The output of `tuner version`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_every_module_that_declares_a_failpoint_is_listed() -> None:
    root = Path(__file__).parents[2]
    files = [*root.glob("suggest/**/*.py"), *root.glob("controller/**/*.py")]
    declaring = {
        ".".join(file.relative_to(root).with_suffix("").parts)
        for file in files
        if "failpoints.register(" in file.read_text() and file.name != "failpoints.py"
    }
    program = (
        "import sys\n"
        "from controller.cli.main import main\n"
        "main(['debug', 'failpoints'])\n"
        "print(*sys.modules, file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True
    )
    assert declaring <= set(done.stderr.split())
    assert "study.complete.before" in done.stdout.splitlines()
