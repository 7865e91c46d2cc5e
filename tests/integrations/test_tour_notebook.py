"""The notebook runs from its first cell to its last, and its figures are drawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integrations.conftest import EXAMPLES


@pytest.mark.filterwarnings("ignore")  # those of Jupyter
def test_the_tour_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("TUNER_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "jupyter"))
    notebook = nbformat.read(EXAMPLES / "notebook" / "tour.ipynb", as_version=4)
    assert [cell.get("outputs") for cell in notebook.cells if cell.get("outputs")] == [], (
        "it is stored without output"
    )
    NotebookClient(notebook, timeout=200, resources={"metadata": {"path": str(tmp_path)}}).execute()

    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    kinds = [kind for output in outputs for kind in output.get("data", {})]
    assert kinds.count("image/svg+xml") == 3
    assert "text/html" in kinds  # the table of trials
    progress = [
        output["data"]
        for output in outputs
        if output.get("data", {}).get("text/html", "").count("<progress")
    ]
    assert [data["text/plain"].partition(" trials")[0] for data in progress] == ["tour: 12/12"], (
        "one output, updated"
    )
    assert "best: <b>" in progress[0]["text/html"]
    texts = "".join(output.get("text", "") for output in outputs)
    assert "20 trials; best: {'x':" in texts
