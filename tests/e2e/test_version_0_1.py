"""A run folder, a cache and a student that version 0.1 made are resumed, read and loaded.

The fixture was made at commit d5ba92c in /tmp/distilvec-0.1: fingerprints hold the absolute paths of texts, so the test
puts it there again. `finished` is a whole run, `stopped` the same one interrupted before step 5 of 12.
"""

from __future__ import annotations

import fcntl
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest
from faults.harness import World, contents, execute
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

import distilvec

PLACE = Path("/tmp/distilvec-0.1")
FIXTURE = Path(__file__).parents[1] / "fixtures" / "version-0.1.tar.gz"


@pytest.fixture(scope="module")
def old():
    """The folder with everything that version 0.1 made; one process at a time uses it."""
    with Path(f"{PLACE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(PLACE, ignore_errors=True)
        with tarfile.open(FIXTURE) as archive:
            archive.extractall(PLACE.parent, filter="data")
        yield World(PLACE)
        shutil.rmtree(PLACE, ignore_errors=True)


def test_a_finished_run_has_nothing_left_to_do(old, monkeypatch):
    from distilvec.train.trainer import Trainer

    monkeypatch.setattr(Trainer, "_step", lambda *arguments: pytest.fail("trained again"))
    before = contents(PLACE)
    found = execute(old, ["run", "recipe.yaml", "--out", "finished"])
    assert found.status == 0, found.err
    assert "teacher:" not in found.err, "the cache was filled again"
    after = contents(PLACE)
    kept = [name for name in before if name.startswith(("cache/", "finished/checkpoint", "finished/metrics"))]
    assert len(kept) > 15 and all(after[name] == before[name] for name in kept)
    new = [name for name in after if name not in before and name.startswith("cache/")]
    assert all(name.startswith("cache/descriptions/") for name in new), "0.1 had no descriptions, all else is there"
    weights = "finished/student/model.safetensors"
    assert after[weights] == before[weights]


def test_a_stopped_run_goes_on_where_it_stopped(old, monkeypatch):
    from distilvec.train.trainer import Trainer

    steps, step = [], Trainer._step
    monkeypatch.setattr(
        Trainer, "_step", lambda loop, *arguments: (steps.append(loop.state.step), step(loop, *arguments))[-1]
    )
    found = execute(old, ["run", "recipe.yaml", "--out", "stopped"])
    assert found.status == 0, found.err
    assert steps == list(range(4, 12))
    resumed, whole = (load_file(PLACE / name / "last" / "model.safetensors") for name in ("stopped", "finished"))
    names = [name for name in whole if "key.bias" not in name]  # whose gradient is 0, but for rounding
    assert max(float(np.abs(resumed[name] - whole[name]).max()) for name in names) < 1e-5


def test_its_students_load(old):
    for model in (
        distilvec.load(PLACE / "finished" / "student"),
        SentenceTransformer(str(PLACE / "finished" / "last"), device="cpu"),
    ):
        assert model.encode(["river stone"]).shape == (1, 32)
