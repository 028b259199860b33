"""`teacher.dtype: auto`: by the features of the hardware, decided once for a run and for a cache."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from jobs import filled
from samples import make_texts

import distilvec
from distilvec.config import recipe as recipes
from distilvec.config.schema import Recipe, TeacherSection
from distilvec.core.device import fast_bf16
from distilvec.pipeline.caches import folder_of_cache, own_cache
from distilvec.pipeline.decide import hardware_dtype
from distilvec.pipeline.prepare import cached_teachers
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run
from distilvec.teachers.cache.parts import Share
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.open import load_teacher
from distilvec.verbs.cache.cluster import fill_one_share, merge_shares
from distilvec.verbs.plan.plan import make_plan

Machine = Callable[[bool], None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """Call it with True for a processor with bf16 instructions, with False for one without."""

    def become(fast: bool) -> None:
        monkeypatch.setattr("distilvec.pipeline.decide.fast_bf16", lambda device: fast)

    return become


@pytest.fixture
def auto(tiny_recipe: Callable[..., Recipe]) -> Callable[..., Recipe]:
    def make(**changes: object) -> Recipe:
        return tiny_recipe(teacher__dtype="auto", **changes)

    return make


def dtype_of(recipe: Recipe, folder: Path) -> str:
    job = resolve(recipe, folder)
    assert job.recipe.teacher.dtype == job.teacher.section.dtype == job.teacher.manifest.compute_dtype
    assert job.stated_recipe.teacher.dtype == job.teacher.section.dtype == job.teacher.embeddings.compute_dtype
    return job.teacher.section.dtype


@pytest.mark.parametrize(
    ("amx", "avx512_bf16", "expected"),
    [(False, False, "float32"), (True, False, "bfloat16"), (False, True, "bfloat16")],
)
def test_features_of_the_processor_decide(
    monkeypatch: pytest.MonkeyPatch, amx: bool, avx512_bf16: bool, expected: str
) -> None:
    """A processor with AVX2, or AVX-512 without bf16, computes bf16 many times slower than fp32."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512_bf16, raising=False)
    assert hardware_dtype("cpu") == expected and fast_bf16("cpu") == (expected == "bfloat16")


def test_auto_is_the_default_and_has_the_fingerprint_of_its_value(
    auto: Callable[..., Recipe], tiny_recipe: Callable[..., Recipe], tmp_path: Path, machine: Machine
) -> None:
    assert TeacherSection(model="m").dtype == "auto"
    found = []
    for fast, value in ((False, "float32"), (True, "bfloat16")):
        machine(fast)
        job, stated = resolve(auto(), tmp_path / "run"), resolve(tiny_recipe(teacher__dtype=value), tmp_path / "run")
        assert dtype_of(auto(), tmp_path / "run") == value
        assert job.fingerprint == stated.fingerprint and folder_of_cache(job, job.teacher) == folder_of_cache(
            stated, stated.teacher
        )
        found.append(job.fingerprint)
        assert ["  precision", value] in make_plan(job).lines
    assert found[0] != found[1]


def test_the_teacher_computes_in_it(auto: Callable[..., Recipe], tmp_path: Path, machine: Machine) -> None:
    caches = []
    for fast in (False, True):
        machine(fast)
        caches.append(filled(auto(cache__root=str(tmp_path / str(fast))), tmp_path / "run"))
    texts = np.arange(20)
    one, two = (cache.read(texts) for cache in caches)
    assert 0 < np.abs(one - two).max() < 0.05 and caches[0].manifest.compute_dtype == "float32"


@pytest.mark.parametrize("first", [True, False])
def test_a_resumed_run_keeps_the_first_value(
    auto: Callable[..., Recipe], tmp_path: Path, machine: Machine, first: bool
) -> None:
    """Also where the cache is gone; a second run in another folder decides by its own machine."""
    machine(first)
    value = "bfloat16" if first else "float32"
    done = run(auto(), tmp_path / "run")
    assert recipes.load(tmp_path / "run" / "recipe.yaml").teacher.dtype == value
    shutil.rmtree(tmp_path / "cache" / "teachers")
    machine(not first)
    assert dtype_of(auto(), tmp_path / "run") == value
    again = run(auto(), tmp_path / "run")
    assert done is not None and again is not None and again.record.training.steps == done.record.training.steps
    assert dtype_of(auto(), tmp_path / "other") != value
    other = {"teacher__max_length": 20}
    assert dtype_of(auto(**other), tmp_path / "run") != value, "another teacher is decided anew"


@pytest.mark.parametrize("first", [True, False])
def test_a_second_machine_keeps_the_caches_value(
    auto: Callable[..., Recipe], tmp_path: Path, machine: Machine, first: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    value = "bfloat16" if first else "float32"
    machine(first)
    job = resolve(auto(), tmp_path / "one")
    own_cache(job, job.teacher)  # begun, and empty
    machine(not first)
    assert dtype_of(auto(), tmp_path / "two") == value
    assert f"teacher model: {value}, as its cache was begun" in capsys.readouterr().err
    filled(auto(), tmp_path / "two")
    (tmp_path / "more.txt").write_text("\n".join(make_texts(30, seed=1)))
    others = {"corpus": {"sources": [{"path": str(tmp_path / "more.txt")}]}}
    assert dtype_of(auto(**others), tmp_path / "three") != value, "a cache of other texts decides nothing"
    more = {"corpus__sources": [{"path": str(tmp_path / name)} for name in ("texts.txt", "more.txt")]}
    assert dtype_of(auto(**more), tmp_path / "four") == value


def test_of_two_caches_the_fuller_one_counts(
    auto: Callable[..., Recipe], tiny_recipe: Callable[..., Recipe], tmp_path: Path, machine: Machine
) -> None:
    filled(tiny_recipe(teacher__dtype="bfloat16"), tmp_path / "run")
    job = resolve(tiny_recipe(teacher__dtype="float32"), tmp_path / "run")
    own_cache(job, job.teacher)
    for fast in (True, False):
        machine(fast)
        assert dtype_of(auto(), tmp_path / "run") == "bfloat16"
    filled(tiny_recipe(teacher__dtype="float32"), tmp_path / "run")
    for fast, value in ((True, "bfloat16"), (False, "float32")):
        machine(fast)
        assert dtype_of(auto(), tmp_path / "run") == value


def test_shares_of_a_fleet_are_of_one_precision(auto: Callable[..., Recipe], tmp_path: Path, machine: Machine) -> None:
    for number, fast in ((1, True), (2, False)):
        machine(fast)
        job = resolve(auto(), Path())
        fill_one_share(job, cached_teachers(job)[0], Share(number, 2))
    job = resolve(auto(), Path())
    cache = merge_shares(job, cached_teachers(job)[0])
    assert len(cache) == 200 and cache.manifest.compute_dtype == "bfloat16"


def test_a_remote_cache_counts_before_local_ones(auto: Callable[..., Recipe], tmp_path: Path, machine: Machine) -> None:
    pytest.importorskip("fsspec")
    remote = {"cache__remote": f"file://{tmp_path / 'remote'}"}
    machine(True)
    filled(auto(**remote, cache__root=str(tmp_path / "first")), tmp_path / "run")
    machine(False)
    filled(auto(cache__root=str(tmp_path / "second")), tmp_path / "run")
    assert dtype_of(auto(**remote, cache__root=str(tmp_path / "second")), tmp_path / "run") == "bfloat16"


def test_a_folder_of_ones_own_and_a_superset_count(
    auto: Callable[..., Recipe], tmp_path: Path, machine: Machine
) -> None:
    machine(True)
    path = {"cache__path": str(tmp_path / "vectors")}
    filled(auto(**path), tmp_path / "run")
    machine(False)
    assert dtype_of(auto(**path), tmp_path / "run") == "bfloat16"
    assert TeacherCache.open(tmp_path / "vectors").manifest.compute_dtype == "bfloat16"


def test_what_is_judged_or_held_in_memory_computes_in_float32(tiny_model: Path, machine: Machine) -> None:
    machine(True)
    teacher = load_teacher(TeacherSection(model=str(tiny_model)), "cpu")
    assert teacher.settings.dtype == "float32" and teacher.manifest().compute_dtype == "float32"
    own = distilvec.load(tiny_model, device="cpu").encode(["a river"])
    np.testing.assert_allclose(teacher.embed(["a river"]), own, atol=1e-6)


def test_a_live_teacher_and_a_table(auto: Callable[..., Recipe], tmp_path: Path, machine: Machine) -> None:
    machine(True)
    assert dtype_of(auto(teacher__live=True), tmp_path / "run") == "bfloat16"
