"""The contract of every file in methods/: adding a method needs no edit here."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.batch import Encoded, TextBatch, Wants
from distilvec.errors import DistilvecError
from distilvec.export.portable import save_student
from distilvec.objective import Sizes, build_objective, method_class, method_names, total
from distilvec.students.build import TeacherFacts, build_student
from distilvec.students.encoder import Encoder
from distilvec.train.loop import Distillation

ROWS = 6


@pytest.fixture(params=method_names())
def name(request):
    return request.param


@pytest.fixture
def model(tiny_model):
    from distilvec.schema import StudentSection

    facts = TeacherFacts(width=24, normalized=True, max_length=64, model=str(tiny_model))
    return build_student(StudentSection(model="teacher", layers=2), facts, seed=0)


@pytest.fixture
def batch(model):
    tokens = model.tokenizer(make_texts(ROWS), padding=True, return_tensors="pt")
    tokens = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    return TextBatch(torch.arange(ROWS), tokens, torch.zeros(ROWS, dtype=torch.long), labels=torch.arange(ROWS) % 2)


@pytest.fixture
def objective(name, model):
    encoder = Encoder(model)
    return build_objective(name, {}, {}, Sizes(encoder.hidden_width, encoder.layers, 24, True, 40, 4))


def teacher_signals(wants: Wants, batch: TextBatch) -> Encoded:
    """Random signals of the teacher's shapes: exactly the wanted ones, so a method that reads others fails."""
    generator = torch.Generator().manual_seed(1)
    rows, tokens = batch.tokens["input_ids"].shape

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    return Encoded(
        embedding=torch.nn.functional.normalize(draw(rows, 24), dim=-1) if wants.embedding else None,
        pre_dense=draw(rows, 40) if wants.pre_dense else None,
        pooled_layers={layer: draw(rows, 40) for layer in wants.pooled_layers},
        hidden_layers={layer: draw(rows, tokens, 40) for layer in wants.hidden_layers},
        attentions={layer: draw(rows, tokens, tokens).softmax(-1) for layer in wants.attention_layers},
        mask=batch.mask,
    )


def test_named_terms_of_one_value_a_row(objective, model, batch):
    module = Distillation(Encoder(model), objective).train()
    terms = module(batch, teacher_signals(objective.teacher_wants, batch))
    assert set(terms) == set(objective.weights) and terms
    for name, values in terms.items():
        assert values.shape == (ROWS,), name
        assert values.dtype == torch.float32 and torch.isfinite(values).all(), name


def test_two_steps_lower_the_loss_and_reach_every_parameter(objective, model, batch):
    module = Distillation(Encoder(model), objective).train()
    teacher = teacher_signals(objective.teacher_wants, batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = total(module(batch, teacher), objective.weights)
        loss.backward()
        if not losses:
            silent = [n for n, p in module.named_parameters() if p.grad is None and "pooler" not in n]
            assert not silent, f"no gradient reaches {silent}"
            assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_no_gradient_reaches_the_teacher(objective, model, batch):
    teacher = teacher_signals(objective.teacher_wants, batch)
    tensors = [t.requires_grad_() for t in (teacher.embedding, teacher.pre_dense) if t is not None]
    student = Encoder(model)(batch, objective.student_wants)
    detached = Encoded(**{**vars(teacher), "embedding": None if teacher.embedding is None else teacher.embedding.detach()})
    total(objective(batch, student, detached), objective.weights).backward()
    assert all(tensor.grad is None for tensor in tensors)


def test_padding_changes_no_term(objective, model, batch):
    encoder = Encoder(model).eval()
    more = {name: torch.nn.functional.pad(value, (0, 3)) for name, value in batch.tokens.items()}
    padded = TextBatch(batch.rows, more, batch.sources, labels=batch.labels)
    if objective.teacher_wants.hidden_layers or objective.teacher_wants.attention_layers:
        pytest.skip("the teacher's token signals would need the same padding; the method's own tests cover it")
    teacher = teacher_signals(objective.teacher_wants, batch)
    with torch.no_grad():
        first = objective(batch, encoder(batch, objective.student_wants), teacher)
        second = objective(padded, encoder(padded, objective.student_wants), teacher)
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)


def test_exported_student_reloads_in_plain_sentence_transformers(objective, model, batch, tmp_path):
    texts = make_texts(4)
    expected = model.encode(texts)
    Distillation(Encoder(model), objective)
    save_student(model, tmp_path / "student", {"method": "contract"}, "# card\n")
    np.testing.assert_allclose(SentenceTransformer(str(tmp_path / "student"), device="cpu").encode(texts), expected, atol=1e-6)


def test_options_and_terms_are_checked(name):
    sizes = Sizes(32, 2, 24)
    with pytest.raises(DistilvecError, match=r"no option 'nonsense'"):
        build_objective(name, {"nonsense": 1}, {}, sizes)
    with pytest.raises(DistilvecError, match=r"no term 'nonsense'"):
        build_objective(name, {}, {"nonsense": 1.0}, sizes)


def test_documented(name):
    method = method_class(name)
    assert method.__doc__ and len(method.__doc__) > 40
    assert "@" in method.citation


def test_unknown_method_names_the_nearest():
    with pytest.raises(DistilvecError, match="did you mean 'redact'"):
        method_class("redcat")


def test_a_method_may_live_in_a_file_of_its_own(tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(
        "from distilvec.objective import Objective\n\n\nclass Mine(Objective):\n"
        "    def __init__(self, sizes, scale: float = 2.0):\n        super().__init__()\n        self.weights = {'mine': scale}\n"
        "    def forward(self, batch, student, teacher):\n        return {'mine': (student.embedding - teacher.embedding).abs().sum(-1)}\n"
    )
    objective = build_objective(str(file), {"scale": 3.0}, {}, Sizes(32, 2, 24))
    assert objective.weights == {"mine": 3.0}
    with pytest.raises(DistilvecError, match="no such file"):
        method_class(str(tmp_path / "absent.py"))
    file.write_text("x = 1\n")
    with pytest.raises(DistilvecError, match="exactly one Objective"):
        method_class(str(file))
