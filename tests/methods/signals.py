"""A batch and signals of a teacher of the right shapes, without a teacher: what tests of all methods run on."""

from __future__ import annotations

import copy
from functools import cache

import torch
from samples import make_texts
from sentence_transformers import SentenceTransformer

from distilvec.config.student import StudentSection
from distilvec.core.batch import Alignment, PairBatch, TextBatch
from distilvec.core.outputs import ModelOutputs, OutputSpec, Projections
from distilvec.core.registry import method_class
from distilvec.students.build import TeacherInfo, build_student

ROWS = 6
PAIRS, SELECTED = 4, 3
STUDENTS = {
    "distillmoe": {"experts": {"count": 3, "width": 16}}
}  # what a method needs of the student, and of its options there
OPTIONS = {"distillmoe": {"layers": 2}}


def make_student(name: str, teacher: str) -> SentenceTransformer:
    """A method's student of two layers; those of all methods are copies of a few."""
    return copy.deepcopy(_student(teacher, "experts" in STUDENTS.get(name, {}), method_class(name).in_teacher_space))


@cache
def _student(teacher: str, experts: bool, compatible: bool) -> SentenceTransformer:
    info = TeacherInfo(dim=24, normalized=True, max_length=64, model=teacher)
    section = StudentSection(model="teacher", layers=2, **(STUDENTS["distillmoe"] if experts else {}))
    return build_student(section, info, seed=0, compatible=compatible)


def labelled_batch(model: SentenceTransformer) -> TextBatch:
    """Texts of several lengths with three classes, the first tokens as aligned pairs, and answers of the last three."""
    tokens = model.tokenizer(make_texts(ROWS), padding=True, return_tensors="pt")
    tokens = {key: tokens[key] for key in ("input_ids", "attention_mask")}
    # every text has at least PAIRS tokens, special ones included
    positions = torch.arange(PAIRS)[None, :, None].expand(ROWS, PAIRS, 2)
    labels = torch.arange(ROWS) % 3
    return TextBatch(
        torch.arange(ROWS),
        tokens,
        torch.zeros(ROWS, dtype=torch.long),
        labels=labels,
        alignment=Alignment(positions.contiguous()),
        pairs=answered_queries(),
    )


def answered_queries() -> PairBatch:
    """The last three texts as queries with an answer each, and two mined candidates."""
    is_query = torch.arange(ROWS) >= ROWS - 3
    answers = (torch.arange(ROWS) - (ROWS - 3)).clamp(min=0)
    may_be_negative = answers[:, None] != torch.arange(5)
    return PairBatch(
        is_query=is_query,
        answers=answers,
        weights=torch.ones(ROWS),
        candidates=torch.randn(5, 24, generator=torch.Generator().manual_seed(2)),
        log_frequency=torch.zeros(5),
        may_be_negative=may_be_negative,
        is_mined=(torch.arange(5) >= 3).expand(ROWS, 5).contiguous(),
    )


def teacher_signals(required: OutputSpec, batch: TextBatch) -> ModelOutputs:
    """Random signals of the teacher's shapes: exactly the wanted ones, so a method that reads others fails."""
    generator = torch.Generator().manual_seed(1)
    rows, tokens = batch.tokens["input_ids"].shape

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    wanted, mask = required.tokens, batch.mask
    importance = mask / mask.sum(1, keepdim=True)
    selected = batch.alignment.pairs[:, :SELECTED].clone()
    grams = {layer: draw(rows, SELECTED, SELECTED) for layer in wanted.gram_layers} if wanted else {}
    for layer, values in grams.items():
        centred = values - values.mean(1, keepdim=True)
        gram = centred @ centred.transpose(1, 2)
        grams[layer] = gram / gram.flatten(1).norm(dim=1)[:, None, None]
    hidden = {layer: draw(rows, tokens, 40) for layer in (wanted.hidden if wanted else ())}
    return ModelOutputs(
        embedding=torch.nn.functional.normalize(draw(rows, 24), dim=-1) if required.embedding else None,
        pre_dense=draw(rows, 40) if required.pre_dense else None,
        pooled_layers={layer: draw(rows, 40) for layer in required.pooled_layers},
        hidden_layers=hidden | {layer: draw(rows, tokens, 40) for layer in required.hidden_layers},
        attentions={layer: draw(rows, tokens, tokens).softmax(-1) for layer in required.attention_layers},
        mask=mask,
        projections={
            layer: Projections(*(draw(rows, 4, tokens, 10) for _ in range(3))) for layer in required.projection_layers
        },
        logits=draw(rows, 3) if required.logits else None,
        importance=importance if wanted and wanted.importance else None,
        selected=selected if wanted and wanted.gram_layers else None,
        grams=grams,
    )
