"""docs/kubernetes.md: its excerpts of experiment files are valid,
and the files that it names exist.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
EXAMPLE = ROOT / "examples" / "digits" / "experiment.yaml"
# tests/unit/test_collectors_docs.py checks the piece of a pod.
PIECES = [
    piece
    for piece in re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    if not piece.startswith("initContainers:")
]


@pytest.mark.parametrize("piece", PIECES, ids=lambda piece: piece.partition(":")[0])
def test_each_piece_of_a_trial_is_valid(piece: str, tmp_path: Path) -> None:
    document = yaml.safe_load(EXAMPLE.read_text(encoding="utf-8"))
    document["spec"]["trial"] |= yaml.safe_load(piece)
    (tmp_path / "experiment.yaml").write_text(yaml.safe_dump(document))
    (tmp_path / "train.py").touch()
    done = subprocess.run(
        [Path(sys.executable).parent / "tuner", "validate", "experiment.yaml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_file_named_on_the_page_exists() -> None:
    named = set(re.findall(r"(?:examples|deploy|docs)/[\w./-]*\w", PAGE)) | {
        f"docs/{page}" for page in re.findall(r"\]\((\w+\.md)", PAGE)
    }
    assert len(named) >= 4
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []
