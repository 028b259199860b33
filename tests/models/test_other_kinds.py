"""Folders that sentence-transformers has saved as another kind of model than one with a dense vector for each text."""

from __future__ import annotations

from pathlib import Path

import architectures
import pytest
from refusals import refused
from sentence_transformers import CrossEncoder, SentenceTransformer, SparseEncoder
from sentence_transformers.sentence_transformer.modules import Transformer
from sentence_transformers.sparse_encoder.modules import MLMTransformer, SpladePooling
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPProcessor,
    SiglipConfig,
    SiglipModel,
)

from distilvec.config.student import StudentSection
from distilvec.core.errors import about
from distilvec.core.info import TeacherInfo
from distilvec.core.model_name import ModelName
from distilvec.models.checks import refuse_several_parts
from distilvec.models.load import load_model, load_with_settings
from distilvec.models.settings import ModelSettings
from distilvec.students.build import load_source
from distilvec.students.shape import read_shape
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
    with refused("teacher.model", kind), about("teacher.model"):
        load_with_settings(ModelName(folder), ModelSettings(), "cpu")
    with refused("student.model", kind), about("student.model"):
        load_model(ModelName(folder))
    with refused("", kind):
        open_embedder(folder)


def test_another_kind_is_known_by_its_modules_where_the_folder_does_not_state_it(other_kind):
    kind, folder = other_kind
    if kind == "CrossEncoder":
        pytest.skip("its only module is a Transformer: without a statement it is a model without a pooling")
    (Path(folder) / "config_sentence_transformers.json").unlink()
    with refused("", kind):
        open_embedder(folder)


# -- models of texts and images ----------------------------------------------------------------------------------------

HALF = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
IMAGES = {**HALF, "image_size": 8, "patch_size": 4}


@pytest.fixture
def clip(tmp_path):
    """The folder of a small CLIP model."""
    tokenizer = AutoTokenizer.from_pretrained(architectures.bert(tmp_path / "bert"))
    texts = {**HALF, "vocab_size": len(tokenizer), "eos_token_id": tokenizer.sep_token_id}
    CLIPModel(CLIPConfig(text_config=texts, vision_config=IMAGES)).save_pretrained(tmp_path / "backbone")
    CLIPProcessor(CLIPImageProcessorPil(), tokenizer).save_pretrained(tmp_path / "backbone")
    folder = str(tmp_path / "clip")
    SentenceTransformer(modules=[Transformer(str(tmp_path / "backbone"))], device="cpu").save_pretrained(folder)
    return folder


def test_clip_teaches_and_no_student_is_cut_from_it(clip):
    teacher = open_embedder(clip)
    assert teacher.embed(["a text"]).shape == (1, teacher.dim)
    with refused("student.model", "CLIPModel"), about("student.model"):
        read_shape(ModelName(clip))
    info = TeacherInfo(dim=teacher.dim, max_length=77, normalized=False, model=clip)
    with refused("student.model", "CLIPModel"):
        load_source(StudentSection(model="teacher"), info)


def test_every_model_of_several_parts_is_refused():
    model = SiglipModel(SiglipConfig(text_config={**HALF, "vocab_size": 50}, vision_config=IMAGES))
    with refused("", "SiglipModel"):
        refuse_several_parts(model, "siglip")
