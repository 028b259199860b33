"""Students whose vectors can be cut: `student.dims`."""

from __future__ import annotations

import json

import pytest
import torch
import torch.nn.functional as F
from contexts import make_context
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.config.recipe import section_of
from distilvec.config.student import StudentSection
from distilvec.core.batch import TextBatch
from distilvec.core.info import ObjectiveContext, TeacherInfo
from distilvec.core.outputs import ModelOutputs
from distilvec.core.registry import build_objective
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.run import run


def context(dims, **fields):
    base = make_context(student_dim=8, teacher_dim=8, **fields)
    return ObjectiveContext(base.student, base.teachers, base.task, dims=dims)


@pytest.mark.parametrize(("method", "term"), [("redact", "l2"), ("offline_cosine", "cosine")])
@pytest.mark.parametrize("normalized", [True, False])
def test_the_loss_is_a_loop_over_cuts(method, term, normalized):
    generator = torch.Generator().manual_seed(0)
    y, y_hat, other = (torch.randn(5, width, generator=generator) for width in (8, 8, 6))
    if normalized:
        y, y_hat = F.normalize(y, dim=-1), F.normalize(y_hat, dim=-1)
    about = context((8, 4, 2), teacher_normalized=normalized, others=(TeacherInfo(6),))
    torch.manual_seed(0)
    objective = build_objective(method, {}, {}, about)
    rows = torch.arange(5)
    batch = TextBatch(rows, {"input_ids": rows[:, None]}, rows * 0)
    teacher = ModelOutputs(embedding=y_hat, others=(ModelOutputs(embedding=other),))
    terms = objective(batch, ModelOutputs(embedding=y), teacher)
    for row in range(5):
        total = 0.0
        for dim in (8, 4, 2):
            a, b = y[row, :dim], y_hat[row, :dim]
            if normalized:
                a, b = a / a.norm(), b / b.norm()
            total += float((a - b).norm() if term == "l2" else 1 - a @ b / a.norm() / b.norm())
        assert float(terms[term][row]) == pytest.approx(total / 3, abs=1e-5)

    # The other teacher's term reads the whole vector
    whole = build_objective(method, {}, {}, context((), teacher_normalized=normalized, others=(TeacherInfo(6),)))
    whole.load_state_dict(objective.state_dict())
    assert torch.equal(whole(batch, ModelOutputs(embedding=y), teacher)[f"{term}_2"], terms[f"{term}_2"])


@pytest.mark.parametrize("dims", [[], [2, 4], [4, 4], [8, 2, 4], [4, 0]])
def test_dims_fall_and_are_distinct(dims):
    with refused("student.dims.1" if 0 in dims else "student.dims"):
        section_of(StudentSection, "student", {"model": "teacher", "dims": dims})


@pytest.mark.parametrize("dims", [[16, 8], [64, 32]])
def test_dims_begin_with_the_student_s(tiny_recipe, tmp_path, dims, shared_cache):
    with refused("student.dims", "32"):
        resolve(tiny_recipe(student__dims=dims), tmp_path / "run")


@pytest.mark.parametrize("method", ["rkd", "redact_scores", "simcse"])
def test_other_methods_are_refused(tiny_recipe, tmp_path, method, shared_cache):
    with refused("student.dims", method):
        resolve(tiny_recipe(student__dims=[32, 16], method={"name": method}), tmp_path / "run")


@pytest.mark.parametrize("layers", [2, 0])
def test_a_whole_run(tiny_recipe, tmp_path, no_pages, layers):
    texts = make_texts(40, seed=5)
    rows = [
        {"sentence1": one, "sentence2": other, "score": number % 6, "split": "test"}
        for number, (one, other) in enumerate(zip(texts[::2], texts[1::2], strict=True))
    ]
    (tmp_path / "sts.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    labels = [{"text": text, "label": "ab"[n % 2], "split": ["train", "test"][n < 20]} for n, text in enumerate(texts)]
    (tmp_path / "topics.jsonl").write_text("\n".join(json.dumps(row) for row in labels))
    suite = "- {name: sts, type: sts, path: sts.jsonl}\n- {name: topics, type: classification, path: topics.jsonl}\n"
    (tmp_path / "suite.yaml").write_text(suite)
    recipe = tiny_recipe(
        student__layers=layers,
        student__dims=[32, 20, 8],
        evaluation__suite=str(tmp_path / "suite.yaml"),
        evaluation__parts=["compression"],
    )
    result = run(recipe, tmp_path / "run")
    assert result.record.student.dims == [32, 20, 8]
    assert [cut.dim for cut in result.record.cuts] == [32, 20, 8]
    scores = {score.task: score.value for score in result.record.scores["student"]}
    assert result.record.cuts[0].score == pytest.approx(scores["sts"], abs=1e-3)
    folder = tmp_path / "run" / "student"
    card = (folder / "README.md").read_text()
    assert "truncate_dim=8" in card
    assert f"| 20 | {result.record.cuts[1].score:.2f} |" in card
    assert "Averages are over 1 of 2 tasks, without topics." in card
    assert SentenceTransformer(str(folder), device="cpu", truncate_dim=8).encode(texts[:2]).shape == (2, 8)
