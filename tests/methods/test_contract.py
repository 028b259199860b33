"""The contract of every file in methods/: adding a method needs no edit here."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from contexts import make_context
from samples import make_texts
from sentence_transformers import SentenceTransformer
from signals import OPTIONS, ROWS, STUDENTS, labelled_batch, make_student, teacher_signals

from distilvec.core.errors import DistilvecError
from distilvec.core.method_file import method_names
from distilvec.core.objective import weighted_loss
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective, method_class
from distilvec.core.task_head import TaskInfo
from distilvec.formats.sentence_transformers import save_student
from distilvec.students.encoder import Encoder
from distilvec.train.distillation import Distillation


@pytest.fixture(params=method_names())
def name(request):
    return request.param


@pytest.fixture
def model(tiny_model, name):
    return make_student(name, str(tiny_model))


@pytest.fixture
def batch(model):
    return labelled_batch(model)


@pytest.fixture(params=["texts", "task"])
def objective(name, model, request):
    """The method on unlabelled texts, and on a labelled task with a fine-tuned teacher where it knows such."""
    encoder = Encoder(model)
    width = model.get_embedding_dimension()
    context = make_context(
        student_hidden_size=encoder.hidden_size,
        student_layers=encoder.layers,
        teacher_dim=24,
        teacher_normalized=True,
        teacher_hidden_size=40,
        teacher_layers=4,
        student_dim=width,
        same_tokenizer=True,
        student_heads=4,
        teacher_heads=4,
    )
    context = make_context(context, student_experts=encoder.experts)
    if request.param == "task":
        context = make_context(context, task=TaskInfo("classification", 3), teacher_logits=True)
    try:
        return build_objective(name, OPTIONS.get(name, {}), {}, context)
    except DistilvecError as error:
        if "task" not in str(error):
            raise
        pytest.skip(str(error))


def test_named_terms_of_one_value_a_row(objective, model, batch):
    module = Distillation(Encoder(model), objective).train()
    terms = module(batch, teacher_signals(objective.teacher_outputs, batch))
    assert terms and set(terms) == {name for name, weight in objective.weights.items() if weight}
    for name, values in terms.items():
        assert values.shape == (ROWS,), name
        assert values.dtype == torch.float32 and torch.isfinite(values).all(), name


def test_two_steps_lower_the_loss_and_reach_every_parameter(objective, model, batch):
    module = Distillation(Encoder(model), objective).train()
    teacher = teacher_signals(objective.teacher_outputs, batch)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        torch.manual_seed(0)
        loss = weighted_loss(module(batch, teacher), objective.weights)
        loss.backward()
        if not losses:
            silent = [n for n, p in module.named_parameters() if p.grad is None and "pooler" not in n]
            assert not silent, f"no gradient reaches {silent}"
            assert all(torch.isfinite(p.grad).all() for p in module.parameters() if p.grad is not None)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_no_gradient_reaches_the_teacher(objective, model, batch):
    teacher = teacher_signals(objective.teacher_outputs, batch)
    tensors = [t.requires_grad_() for t in (teacher.embedding, teacher.pre_dense) if t is not None]
    detached = replace(teacher, embedding=None if teacher.embedding is None else teacher.embedding.detach())
    weighted_loss(Distillation(Encoder(model), objective)(batch, detached), objective.weights).backward()
    assert all(tensor.grad is None for tensor in tensors)


def test_padding_changes_no_term(objective, model, batch):
    encoder = Encoder(model).eval()
    more = {name: torch.nn.functional.pad(value, (0, 3)) for name, value in batch.tokens.items()}
    padded = replace(batch, tokens=more)
    required = objective.teacher_outputs
    if required.hidden_layers or required.attention_layers or required.projection_layers:
        pytest.skip("these signals of the teacher would need the same padding; the method's own tests cover it")
    teacher = teacher_signals(required, batch)
    module = Distillation(encoder, objective).eval()
    with torch.no_grad():
        first, second = module(batch, teacher), module(padded, teacher)
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)


def test_exported_student_reloads_in_plain_sentence_transformers(name, objective, model, batch, tmp_path):
    texts = make_texts(4)
    expected = model.encode(texts)
    Distillation(Encoder(model), objective)
    save_student(model, tmp_path / "student", {"method": "contract"}, "# card\n")
    ours = "experts" in STUDENTS.get(name, {})  # the one module that is not sentence-transformers' own
    again = SentenceTransformer(str(tmp_path / "student"), device="cpu", trust_remote_code=ours)
    np.testing.assert_allclose(again.encode(texts), expected, atol=1e-6)


def test_options_and_terms_are_checked(name):
    context = make_context(student_hidden_size=32, student_layers=2, teacher_dim=24)
    with pytest.raises(DistilvecError, match=r"no option 'nonsense'"):
        build_objective(name, {"nonsense": 1}, {}, context)
    labelled = make_context(context, task=TaskInfo("classification", 3), teacher_logits=True)
    with pytest.raises(DistilvecError, match=r"no term 'nonsense'|does not train on labels"):
        build_objective(name, {}, {"nonsense": 1.0}, labelled)
    with pytest.raises(DistilvecError, match=r"no term 'nonsense'|task"):
        build_objective(name, {}, {"nonsense": 1.0}, context)


def test_the_labels_alone_need_nothing_of_the_teacher(name):
    labelled = make_context(
        task=TaskInfo("classification", 3), teacher_logits=True, teacher_layers=4, teacher_hidden_size=40
    )
    try:
        terms = build_objective(name, OPTIONS.get(name, {}), {}, make_context(labelled, student_experts=3)).weights
    except DistilvecError as error:
        pytest.skip(str(error))
    alone = build_objective(name, {}, {**dict.fromkeys(terms, 0.0), "task": 1.0}, labelled)
    assert alone.teacher_outputs == OutputSpec() and alone.student_outputs == OutputSpec(vector=True)


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
        "from distilvec.core.objective import Objective\n\n\nclass Mine(Objective):\n"
        "    def __init__(self, context, weights, scale: float = 2.0):\n        super().__init__(context, weights, "
        "{'mine': scale})\n"
        "    def forward(self, batch, student, teacher):\n        return {'mine': (student.embedding - "
        "teacher.embedding).abs().sum(-1)}\n"
    )
    objective = build_objective(
        str(file), {"scale": 3.0}, {}, make_context(student_hidden_size=32, student_layers=2, teacher_dim=24)
    )
    assert objective.weights == {"mine": 3.0}
    with pytest.raises(DistilvecError, match="no such file"):
        method_class(str(tmp_path / "absent.py"))
    file.write_text("x = 1\n")
    with pytest.raises(DistilvecError, match="exactly one Objective"):
        method_class(str(file))
