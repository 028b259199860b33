"""Objects as inputs of a recipe: what names their stored copies."""

from __future__ import annotations

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Dense, Pooling

from distilvec.pipeline.inputs import model_name


def with_cls_pooling(model):
    model[1] = Pooling(model[0].get_embedding_dimension(), "cls")


def with_fewer_heads(model):
    model[0].auto_model.config.num_attention_heads //= 2


def with_lower_case_off(model):
    model.tokenizer.backend_tokenizer.normalizer = None


def with_prompt(model):
    model.prompts = {"query": "find: "}


def with_length(model):
    model.max_seq_length = 7


def with_other_activation(model):
    model[2].activation_function = torch.nn.Identity()


@pytest.mark.parametrize(
    "change",
    [with_cls_pooling, with_fewer_heads, with_lower_case_off, with_prompt, with_length, with_other_activation],
)
def test_a_model_in_memory_is_named_by_what_it_saves(tiny_model, tmp_path, change):
    def build():
        model = SentenceTransformer(str(tiny_model), device="cpu")
        torch.manual_seed(0)
        dim = model[0].get_embedding_dimension()
        return SentenceTransformer(modules=[model[0], model[1], Dense(dim, dim)], device="cpu")

    before = model_name(build(), tmp_path, "teacher")
    assert model_name(build(), tmp_path, "teacher") == before
    changed = build()
    change(changed)
    assert model_name(changed, tmp_path, "teacher") != before
    assert len(list((tmp_path / "inputs").iterdir())) == 2  # nothing unfinished is left
