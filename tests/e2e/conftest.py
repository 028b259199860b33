"""Benchmarks in small, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def measured(tmp_path, monkeypatch, forked_modules):
    """Runs a benchmark by name and arguments; what it printed and the JSON that it wrote."""
    monkeypatch.chdir(Path(__file__).parents[2])

    def run(name, *arguments):
        line = [sys.executable, "-m", f"benchmarks.{name}", "--json", str(tmp_path / "out.json"), *arguments]
        done = subprocess.run(line, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout, json.loads((tmp_path / "out.json").read_text())

    return run
