"""What the token-by-token methods refuse, and that the message says why and what to do."""

from __future__ import annotations

import pytest
from contexts import make_context
from layer_signals import CONTEXT

from distilvec.core.errors import DistilvecError
from distilvec.core.registry import build_objective
from distilvec.core.task_head import TaskInfo

METHODS = ["minilm", "tinybert", "distilbert"]


@pytest.mark.parametrize("name", METHODS)
def test_other_tokenizers(name):
    with pytest.raises(DistilvecError, match=r"^\[method.name\].*student.model: teacher"):
        build_objective(name, {}, {}, make_context(CONTEXT, same_tokenizer=False))


@pytest.mark.parametrize("name", METHODS)
def test_a_table_of_vectors_has_no_layers(name):
    with pytest.raises(DistilvecError, match=r"^\[method.name\].*teacher.model"):
        build_objective(name, {}, {}, make_context(CONTEXT, teacher_layers=None, teacher_hidden_size=None))


@pytest.mark.parametrize("name", ["minilm", "tinybert"])
@pytest.mark.parametrize("heads", [6, None])
def test_other_heads_and_the_way_out(name, heads):
    with pytest.raises(DistilvecError, match=r"^\[method.name\].*option relation_heads"):
        build_objective(name, {}, {}, make_context(CONTEXT, teacher_heads=heads))


def test_what_lifts_the_refusal_of_other_heads():
    other = make_context(CONTEXT, teacher_heads=6)
    assert build_objective("minilm", {"relation_heads": 12}, {}, other).relation_heads == 12
    assert build_objective("tinybert", {}, {"attention": 0.0}, other).weights["hidden"] == 1.0
    assert build_objective("distilbert", {}, {}, other).weights["cosine"] == 1.0


@pytest.mark.parametrize("name", METHODS)
def test_labelled_tasks(name):
    with pytest.raises(DistilvecError, match=rf"{name} does not train on labels"):
        build_objective(name, {}, {}, make_context(CONTEXT, task=TaskInfo("classification", 2)))
