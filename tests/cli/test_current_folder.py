"""Processes that a command starts import nothing from the folder in which it runs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from distilvec.evaluation.memory import measure_memory
from distilvec.verbs.run.command import launch


@pytest.fixture
def trap(tmp_path, monkeypatch):
    """A current folder whose modules have the names of libraries; the file that they write if one is imported."""
    marker = tmp_path / "imported"
    for name in ("typer", "yaml", "torch", "psutil", "sentence_transformers", "numpy"):
        code = f"open({str(marker)!r}, 'a').write({name!r})\nraise ImportError('of the current folder')\n"
        (tmp_path / f"{name}.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path.endswith("src")))
    return marker


def test_several_processes(trap, capfd):
    assert launch(2, ["--version"]) == 0, capfd.readouterr().err
    assert not trap.exists()


def test_the_process_that_measures_memory(trap, tmp_path):
    measure_memory(tmp_path / "missing", 1, 8, 1)
    assert not trap.exists()


@pytest.mark.slow
def test_workers_on_ray(trap, tiny_model, tmp_path):
    pytest.importorskip("ray")
    (tmp_path / "texts.txt").write_text("\n".join(f"a river and stone {number}" for number in range(40)))
    (tmp_path / "tiny.yml").write_text(
        f"name: tiny\nteacher: {{model: {tiny_model}, dtype: float32}}\nstudent: {{model: teacher, layers: 1}}\n"
        "corpus: {sources: [{path: texts.txt}], validation_rows: 8}\nmethod: {name: redact}\ntrain: {device: cpu}\n"
    )
    line = [sys.executable, "-P", "-m", "distilvec", "cache", "fill", "tiny.yml", "--ray", "local"]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert not trap.exists()
