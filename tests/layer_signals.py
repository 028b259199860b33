"""Hidden states and projections of a student and a teacher with the same tokens, padded on any side, for tests of
methods.
"""

from __future__ import annotations

import torch
from contexts import make_context

from distilvec.core.batch import TextBatch
from distilvec.core.outputs import ModelOutputs, Projections

LENGTHS = (5, 3, 1)
CONTEXT = make_context(
    student_hidden_size=12,
    student_layers=2,
    teacher_dim=7,
    teacher_normalized=True,
    teacher_hidden_size=24,
    teacher_layers=4,
    same_tokenizer=True,
    student_heads=4,
    teacher_heads=4,
)


def text_batch():
    """Three texts; the methods read nothing of it."""
    rows = torch.arange(len(LENGTHS))
    return TextBatch(rows, {"input_ids": torch.ones(len(LENGTHS), 5, dtype=torch.long)}, torch.zeros_like(rows))


def signals(seed, width, heads, layers, columns=5, left=False, grad=False):
    """All layers of a model `width` wide, the last one also as -1; padding is NaN, so that whoever reads it shows it.

    The tokens' own numbers depend on the seed alone, not on `columns` or `left`. With `grad` the leaves are in
    `leaves`.
    """
    generator = torch.Generator().manual_seed(seed)
    mask = torch.zeros(len(LENGTHS), columns, dtype=torch.bool)
    for text, length in enumerate(LENGTHS):
        mask[text, columns - length :] = left
        mask[text, :length] = mask[text, :length] | (not left)
    leaves = []

    def draw(*between, width):
        leaf = torch.randn(sum(LENGTHS), *between, width, generator=generator).requires_grad_(grad)
        leaves.append(leaf)
        values = torch.full((len(LENGTHS), columns, *between, width), torch.nan).index_put(
            tuple(mask.nonzero().T), leaf
        )
        return values.transpose(1, -2) if between else values

    hidden = {layer: draw(width=width) for layer in range(layers + 1)}
    projections = {
        layer: Projections(*(draw(heads, width=width // heads) for _ in range(3))) for layer in range(1, layers + 1)
    }
    embedding = torch.randn(len(LENGTHS), 7, generator=generator).requires_grad_(grad)
    encoded = ModelOutputs(
        embedding=embedding,
        hidden_layers=hidden | {-1: hidden[layers]},
        projections=projections | {-1: projections[layers]},
        mask=mask,
    )
    return encoded, [embedding, *leaves]
