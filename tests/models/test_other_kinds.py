"""Folders that sentence-transformers has saved as another kind of model than one with a dense vector for each text."""

from __future__ import annotations

import architectures
import pytest
from refusals import refused
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from transformers import AutoModelForMaskedLM

from distilvec.models.load import load_model, load_with_settings
from distilvec.models.settings import ModelSettings
from distilvec.teachers.open import open_embedder


@pytest.fixture(params=["SparseEncoder", "CrossEncoder"])
def other_kind(request, tmp_path):
    """The folder of a small model of another kind, as its own class saves it."""
    backbone = architectures.bert(tmp_path / "backbone")
    folder = str(tmp_path / "other")
    if request.param == "CrossEncoder":
        CrossEncoder(str(backbone), num_labels=1, device="cpu").save_pretrained(folder)
    else:
        AutoModelForMaskedLM.from_pretrained(backbone).save_pretrained(backbone)
        modules = [MLMTransformer(str(backbone)), SpladePooling()]
        SparseEncoder(modules=modules, device="cpu").save_pretrained(folder)
    return request.param, folder


def test_another_kind_of_model_is_refused_by_its_name(other_kind):
    kind, folder = other_kind
    with refused("teacher.model", kind):
        load_with_settings(folder, "teacher.model", ModelSettings(), "cpu")
    with refused("student.model", kind):
        load_model(folder, "student.model")
    with refused("model", kind):
        open_embedder(folder)
