"""The methods that look into the teacher, on the signals of a real model: its own attention, and nothing to learn from
itself.
"""

from __future__ import annotations

import pytest
import torch
from contexts import make_context
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import OutputSpec
from distilvec.core.registry import build_objective
from distilvec.losses.relation_heads import left_align, relation_scores
from distilvec.students.encoder import Encoder


@pytest.fixture
def real(tiny_model):
    """A real model's encoder, six texts of different lengths for it, and context for a student that is its own teacher."""  # noqa: E501
    model = SentenceTransformer(str(tiny_model), device="cpu")
    encoder = Encoder(model).eval()
    tokens = dict(
        model.tokenizer(
            [text * (row % 3 + 1) for row, text in enumerate(make_texts(6))], padding=True, return_tensors="pt"
        )
    )
    tokens = {name: tokens[name] for name in ("input_ids", "attention_mask")}
    assert not tokens["attention_mask"].all()
    width, layers = encoder.hidden_size, encoder.layers
    context = make_context(
        student_hidden_size=width,
        student_layers=layers,
        teacher_dim=32,
        teacher_normalized=True,
        teacher_hidden_size=width,
        teacher_layers=layers,
        same_tokenizer=True,
        student_heads=4,
        teacher_heads=4,
    )
    return encoder, TextBatch(torch.arange(6), tokens, torch.zeros(6, dtype=torch.long)), context


def test_relations_of_a_real_model_are_its_attention(real):
    encoder, batch, _ = real
    with torch.no_grad():
        found = encoder(batch, OutputSpec(attention_layers=(-1, 2), projection_layers=(-1, 2)))
    for layer, attention in found.attentions.items():
        parts = left_align(found.projections[layer], batch.mask, batch.mask.shape[1])
        scores = relation_scores(parts.query, parts.key).masked_fill(~batch.mask[:, None, None], -torch.inf)
        ours, theirs = (maps[batch.mask] for maps in (scores.softmax(-1).mean(1), attention))
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "options"), [("minilm", {}), ("minilm", {"relation_heads": 8}), ("tinybert", {}), ("distilbert", {})]
)
def test_a_real_student_that_is_its_teacher_has_nothing_to_learn(real, name, options):
    encoder, batch, context = real
    objective = build_objective(name, options, {}, context)
    for parameter in objective.parameters():
        torch.nn.init.eye_(parameter)
    with torch.no_grad():
        terms = objective(batch, encoder(batch, objective.student_outputs), encoder(batch, objective.teacher_outputs))
    assert set(terms) == set(objective.weights)
    assert all(values.max() < 2e-6 for values in terms.values())
