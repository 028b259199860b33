"""evaluate, check and speed of a model with code of its own: it runs where the user says so, and never before."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer

from distilvec.__main__ import run_command

CODE = """
from pathlib import Path
import torch

Path({trace!r}).touch()


class Reversed(torch.nn.Module):
    def forward(self, features):
        features["sentence_embedding"] = features["sentence_embedding"].flip(-1)
        return features

    def save(self, folder, *args, **kwargs):
        pass

    @classmethod
    def load(cls, *args, **kwargs):
        return cls()
"""
WORDS = "river stone bridge water cloud field house light north south east west green blue red day".split()


@pytest.fixture
def with_code(tiny_model: Path, tmp_path: Path) -> Path:
    """The tiny model behind a module that its folder defines."""
    folder = tmp_path / "with-code"
    shutil.copytree(tiny_model, folder)
    (folder / "own.py").write_text(CODE.format(trace=str(tmp_path / "it-ran")))
    modules = json.loads((folder / "modules.json").read_text())
    number = len(modules)
    modules.append({"idx": number, "name": str(number), "path": "", "type": "own.Reversed"})
    (folder / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture
def command(request, tiny_model: Path, with_code: Path, tmp_path: Path) -> list[str]:
    suite = tmp_path / "suite.yaml"
    if request.param.startswith("evaluate"):
        (tmp_path / "sts.csv").write_text("sentence1,sentence2,score\nriver,stone,1\nbridge,river,3\nstone,stone,5\n")
        suite.write_text("- {name: mini, type: sts, path: sts.csv}\n")
    texts = [f"{first} {second}" for first in WORDS for second in WORDS]
    if request.param == "check":
        vectors = SentenceTransformer(str(tiny_model), device="cpu").encode(texts).astype(np.float32)[:, ::-1]
        pq.write_table(pa.table({"text": texts, "embedding": list(vectors)}), tmp_path / "index.parquet")
    return {
        "evaluate": ["evaluate", str(with_code), "--suite", str(suite)],
        "evaluate-teacher": ["evaluate", str(tiny_model), "--teacher", str(with_code), "--suite", str(suite)],
        "check": ["check", str(with_code), str(tmp_path / "index.parquet")],
        "speed": ["speed", str(with_code), "--seconds", "0.001"],
    }[request.param]


@pytest.mark.parametrize("command", ["evaluate", "evaluate-teacher", "check", "speed"], indirect=True)
def test_code_runs_where_the_user_trusts_it(command: list[str], tmp_path: Path, capsys) -> None:
    assert run_command(command) == 2
    assert "--trust-remote-code" in capsys.readouterr().err and not (tmp_path / "it-ran").exists()
    assert run_command([*command, "--trust-remote-code"]) == 0
    assert (tmp_path / "it-ran").exists()
