"""Odd folders of models: weights, adapters, lengths and tokens that do not fit are refused by name."""

from __future__ import annotations

import dataclasses
import json
import shutil
from contextlib import nullcontext

import architectures
import numpy as np
import pytest
import torch
from architectures import TEXTS
from peft import LoraConfig, get_peft_model
from refusals import refused
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, StaticEmbedding, Transformer
from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import PreTokenizer
from transformers import AutoModel, AutoTokenizer, T5Gemma2Config, T5Gemma2ForConditionalGeneration
from transformers.models.t5gemma2.modeling_t5gemma2 import T5Gemma2Encoder

from distilvec.config.student import StudentSection
from distilvec.core.errors import DistilvecError, about
from distilvec.core.info import TeacherInfo
from distilvec.core.model_name import ModelName
from distilvec.models.checks import check_complete
from distilvec.models.load import load_backbone, load_tokenizer
from distilvec.models.tokenizers import has_all_parts
from distilvec.pipeline.resolve import resolve
from distilvec.students.build import build_student
from distilvec.students.shape import read_shape
from distilvec.teachers.graph_embedder import GraphEmbedder
from distilvec.teachers.open import open_embedder
from distilvec.verbs.plan.plan import make_plan

WEIGHTS = "model.safetensors"


@pytest.fixture
def folder(tmp_path):
    """The folder of a small model: BERT of four layers, mean, length 1."""
    return architectures.sentence_transformer(tmp_path / "model", architectures.bert(tmp_path / "backbone"))


def change_json(path, **settings):
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(content | settings))


def change_weights(folder, change):
    weights = {}
    for name, value in load_file(folder / WEIGHTS).items():
        changed = change(name)
        if changed:
            weights[changed] = value
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


# -- weights -----------------------------------------------------------------------------------------------------------

GAPS = {
    "a layer": lambda folder: change_weights(folder, lambda name: name if ".layer.3." not in name else None),
    "a bias": lambda folder: change_weights(
        folder, lambda name: name if "layer.1.output.dense.bias" not in name else None
    ),
    "all of other names": lambda folder: change_weights(folder, lambda name: f"net.{name}"),
    "layers of the configuration": lambda folder: change_json(folder / "config.json", num_hidden_layers=6),
    "layers that it leaves out": lambda folder: change_json(folder / "config.json", num_hidden_layers=2),
}


@pytest.mark.parametrize("gap", GAPS)
def test_weights_and_layers_must_meet(folder, gap):
    GAPS[gap](folder)
    with refused("", "weights"):
        open_embedder(str(folder))
    with refused("student.model", "weights"), about("student.model"):
        load_backbone(ModelName(str(folder)))


@pytest.mark.parametrize("gap", [None, "an earlier version", *GAPS])
def test_names_alone_and_a_second_network_give_one_answer(folder, gap, monkeypatch):
    if gap in GAPS:
        GAPS[gap](folder)
    elif gap is not None:
        weights = load_file(folder / WEIGHTS) | {"embeddings.position_ids": torch.arange(128)[None]}
        save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})
    backbone, networks, answers = AutoModel.from_pretrained(folder), [], []
    load_network = type(backbone).from_pretrained

    def from_pretrained(*arguments, **options):
        networks.append(arguments)
        return load_network(*arguments, **options)

    monkeypatch.setattr(type(backbone), "from_pretrained", from_pretrained)
    for needs_network in (False, True):
        if needs_network:
            monkeypatch.setattr("distilvec.models.checks._has_own_names", lambda *_: False)
        try:
            check_complete(backbone, ModelName(str(folder)), "")
            answers.append("")
        except DistilvecError as error:
            answers.append(str(error))
    assert answers[0] == answers[1] and bool(answers[0]) == (gap in GAPS)
    assert len(networks) == (2 if gap in GAPS else 1)


@pytest.mark.parametrize("gap", ["a layer", "layers that it leaves out"])
def test_weights_for_code_of_the_folders_own_name_that_cure(folder, gap):
    """transformers has a class of the same name, of another version of the network (as with nomic's second model)."""
    change_json(folder / "config.json", auto_map={"AutoModel": "modeling_bert.BertModel"})
    (folder / "modeling_bert.py").write_text("from transformers import BertModel\n")
    GAPS[gap](folder)
    with refused("", "--trust-remote-code"):
        open_embedder(str(folder))


def test_a_shard_that_the_index_does_not_name_is_missed(folder):
    backbone = AutoModel.from_pretrained(folder)
    (folder / WEIGHTS).unlink()
    backbone.save_pretrained(folder, max_shard_size="60KB")
    index = folder / f"{WEIGHTS}.index.json"
    places = json.loads(index.read_text())["weight_map"]
    lost = places["encoder.layer.0.intermediate.dense.weight"]
    change_json(index, weight_map={name: place for name, place in places.items() if place != lost})
    with refused("", "weights"):
        open_embedder(str(folder))


@pytest.mark.parametrize("lost", [None, "model.encoder.layers.1.mlp.up_proj.weight"])
def test_the_encoder_of_a_whole_t5gemma2_is_compared_with_its_own_weights(lost, tmp_path):
    """Those are called otherwise in the whole model, and lie there beside the decoder's."""
    sizes = {**architectures.DECODER, "hidden_size": 32, "num_hidden_layers": 2, "vocab_size": 64}
    image = {"model_type": "siglip_vision_model", **architectures.SIZES, "num_hidden_layers": 1, "image_size": 28}
    encoder = {"text_config": sizes, "vision_config": image, "mm_tokens_per_image": 4}
    config = T5Gemma2Config(encoder=encoder, decoder=sizes, image_token_index=63)
    folder = tmp_path / "whole"
    T5Gemma2ForConditionalGeneration(config).save_pretrained(folder)
    change_weights(folder, lambda name: name if name != lost else None)
    with nullcontext() if lost is None else refused("", "does not have 1 of"):
        check_complete(T5Gemma2Encoder(config.encoder), ModelName(str(folder)), "")


def test_weights_that_nothing_reads_may_be_missing_and_prefixes_are_those_of_other_tasks(folder):
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    change_weights(folder, lambda name: None if "pooler" in name else f"bert.{name}")
    np.testing.assert_allclose(open_embedder(str(folder)).embed(TEXTS), expected, atol=1e-5)


# -- adapters ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(folder, tmp_path):
    """The folder of a model with an adapter, as sentence-transformers saves it: its base is the backbone's folder.

    peft writes it: `add_adapter` of transformers 5.24 asks for a peft that is not released.
    """
    new = shutil.copytree(folder, tmp_path / "adapter")
    for name in (WEIGHTS, "config.json"):
        (new / name).unlink()
    config = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    get_peft_model(AutoModel.from_pretrained(tmp_path / "backbone"), config).save_pretrained(new)
    return new


def test_an_adapter_is_merged_and_its_student_is_a_plain_model(adapter):
    expected = SentenceTransformer(str(adapter), device="cpu").encode(TEXTS)
    merged = load_backbone(ModelName(str(adapter)))
    assert not [name for name, _ in merged.named_parameters() if "lora" in name]
    assert all(weight.requires_grad for weight in merged.parameters())
    np.testing.assert_allclose(merged.encode(TEXTS), expected, atol=1e-5)
    np.testing.assert_allclose(open_embedder(str(adapter)).embed(TEXTS), expected, atol=1e-5)
    assert read_shape(ModelName(str(adapter))).layers == 4
    info = TeacherInfo(dim=32, max_length=128)
    whole = build_student(StudentSection(model=str(adapter)), info, seed=0)
    np.testing.assert_allclose(whole.encode(TEXTS), expected, atol=1e-5)
    assert (
        len(build_student(StudentSection(model=str(adapter), layers=2), info, seed=0)[0].auto_model.encoder.layer) == 2
    )


@pytest.mark.parametrize("base", ["/nowhere/model", "", None, 3])
def test_an_adapter_without_its_base(adapter, base):
    change_json(adapter / "adapter_config.json", base_model_name_or_path=base)
    with refused("", "base_model_name_or_path"):
        open_embedder(str(adapter))
    with refused("student.model", "base_model_name_or_path"), about("student.model"):
        read_shape(ModelName(str(adapter)))


@pytest.mark.parametrize("layers", [2, 6])
def test_an_adapter_of_another_base(adapter, layers, tmp_path):
    other = architectures.bert(tmp_path / "other", num_hidden_layers=layers)
    change_json(adapter / "adapter_config.json", base_model_name_or_path=str(other))
    with refused("", "adapter"):
        open_embedder(str(adapter))
    with refused("student.model", "is an adapter that does not fit"), about("student.model"):
        load_backbone(ModelName(str(adapter)))


def test_an_adapter_that_lacks_weights(adapter):
    weights = load_file(adapter / "adapter_model.safetensors")
    some = {name: value for name, value in weights.items() if ".layer.1." not in name}
    save_file(some, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    with refused("", "adapter"):
        open_embedder(str(adapter))


# -- tokens and lengths ------------------------------------------------------------------------------------------------


def save(folder, backbone, *later, **settings):
    SentenceTransformer(modules=[Transformer(str(backbone)), *later], device="cpu", **settings).save_pretrained(
        str(folder)
    )
    return folder


def test_a_token_without_a_row_is_named_with_its_text(tmp_path):
    backbone = architectures.bert(tmp_path / "backbone")
    tokenizer = AutoTokenizer.from_pretrained(backbone)
    tokenizer.add_tokens(["[PRODUCT]"], special_tokens=True)
    tokenizer.save_pretrained(backbone)
    folder = save(tmp_path / "model", backbone, Pooling(32, "mean"))
    embedder = open_embedder(str(folder))
    expected = SentenceTransformer(str(folder), device="cpu").encode(TEXTS)
    np.testing.assert_allclose(embedder.embed(TEXTS), expected, atol=1e-5)
    with refused("", "[PRODUCT]"):
        embedder.embed([*TEXTS, "a [PRODUCT] here"])
    exported = GraphEmbedder("model.onnx", embedder.model, None, 64)
    for embed in (exported.embed, exported.embed_prompted):
        with refused("", "[PRODUCT]"):
            embed(["a [PRODUCT] here"])


def test_a_static_table_that_is_too_short_for_its_tokenizer(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(architectures.bert(tmp_path / "backbone"))
    table = StaticEmbedding(tokenizer, embedding_weights=np.ones((50, 8), dtype=np.float32))
    SentenceTransformer(modules=[table], device="cpu").save_pretrained(str(tmp_path / "static"))
    with refused("", "no row"):
        open_embedder(str(tmp_path / "static"))


@pytest.mark.parametrize("length", [0, 2, -1])
def test_a_length_without_room_for_a_text(folder, length):
    change_json(folder / "sentence_bert_config.json", max_seq_length=length)
    with refused("", str(length)):
        open_embedder(str(folder))


def test_lower_case_is_a_setting_of_the_tokenizer_too(tmp_path):
    folder = save(tmp_path / "model", architectures.xlm_roberta(tmp_path / "backbone"), Pooling(32, "mean"))
    change_json(folder / "sentence_bert_config.json", do_lower_case=True, max_seq_length=9)
    expected = SentenceTransformer(str(folder), device="cpu").tokenizer
    tokenizer = load_tokenizer(ModelName(str(folder)))
    for text in [text.upper() for text in TEXTS]:
        assert tokenizer.tokenize(text) == expected.tokenize(text) == tokenizer.tokenize(text.lower())
    assert tokenizer.model_max_length == expected.model_max_length == 9


ALL_LAYERS = {"student__layers": None}
TURKISH_LETTERS = {
    "type": "Sequence",
    "normalizers": [{"type": "Replace", "pattern": {"String": "I"}, "content": "\u0131"}, {"type": "Lowercase"}],
}
SINGLE_LETTER = {
    "type": "Sequence",
    "pretokenizers": [
        {"type": "Split", "pattern": {"String": "e"}, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
    ],
}


@pytest.mark.parametrize(
    ("make", "part", "state", "tokenizer_class"),
    [
        (architectures.bert, "normalizer", TURKISH_LETTERS, "BertTokenizer"),
        (architectures.bert, "model", {"max_input_chars_per_word": 3}, "BertTokenizer"),
        (architectures.bert, "post_processor", None, "BertTokenizer"),
        (architectures.gpt2, "pre_tokenizer", SINGLE_LETTER, "GPT2Tokenizer"),
    ],
)
def test_parts_of_a_tokenizer_that_transformers_leaves_out_are_told(
    make, part, state, tokenizer_class, tiny_model, tiny_recipe, tmp_path
):
    """A plan says so, of a teacher and of the model that a student starts from; with the whole file nothing is said."""
    folder = save(tmp_path / "model", make(tmp_path / "backbone"), Pooling(32, "mean"))
    change_json(folder / "tokenizer_config.json", tokenizer_class=tokenizer_class)

    def notes(**models):
        job = resolve(tiny_recipe(**models), tmp_path / "run")
        return [line[1] for line in make_plan(job).lines if "tokenizer.json" in line[1]]

    assert not notes(teacher__model=str(folder))
    whole = json.loads((folder / "tokenizer.json").read_text())[part]
    change_json(folder / "tokenizer.json", **{part: whole | state if part == "model" else state})
    sizes = json.loads((folder / "config.json").read_text())
    fresh = {"student__config": sizes, "student__tokenizer": str(folder), "student__model": None}
    student = {"student__model": str(folder)}
    for models in ({"teacher__model": str(folder)}, student | ALL_LAYERS, fresh | ALL_LAYERS):
        (note,) = notes(**models)
        assert f"makes a {tokenizer_class} of its vocabulary alone" in note
        word = note.split("such as ")[1].split("'")[1]
        stated = Tokenizer.from_file(str(folder / "tokenizer.json")).encode(word).ids
        assert SentenceTransformer(str(folder), device="cpu").tokenizer(word)["input_ids"] != stated
    change_json(folder / "tokenizer_config.json", tokenizer_class="PreTrainedTokenizerFast")
    assert SentenceTransformer(str(folder), device="cpu").tokenizer(word)["input_ids"] == stated
    assert not notes(teacher__model=str(folder))


def test_a_tokenizer_with_a_part_in_python_is_no_other_tokenizer(tmp_path):
    """As RoFormer's, which cuts Chinese words in Python: no file can state such a part."""

    class Cutter:
        def pre_tokenize(self, text):
            text.split(lambda number, piece: [piece])

    folder = architectures.bert(tmp_path)
    change_json(folder / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.pre_tokenizer = PreTokenizer.custom(Cutter())
    assert has_all_parts(tokenizer, folder / "tokenizer.json")


def test_lower_case_by_its_setting_is_no_other_tokenizer(tmp_path):
    folder = save(tmp_path / "model", architectures.gpt2(tmp_path / "backbone"), Pooling(32, "mean"))
    change_json(folder / "tokenizer_config.json", tokenizer_class="GPT2Tokenizer")
    change_json(folder / "sentence_bert_config.json", do_lower_case=True)
    embedder = open_embedder(str(folder))
    assert type(embedder.model.tokenizer).__name__ == "GPT2Tokenizer"
    assert embedder.model.tokenizer.tokenize("ABC") == embedder.model.tokenizer.tokenize("abc")
    assert embedder.notes == ()


def test_a_model_of_the_hub_with_its_transformer_in_a_subfolder(folder, tmp_path, monkeypatch):
    """As early versions of sentence-transformers saved it: 0_Transformer has the tokenizer and its settings."""
    change_json(folder / "sentence_bert_config.json", do_lower_case=True, max_seq_length=9)
    repository = tmp_path / "hub" / "models--some--old"
    inside = repository / "snapshots" / ("a" * 40) / "0_Transformer"
    shutil.copytree(folder, inside.parent)
    inside.mkdir()
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = inside.name
    (inside.parent / "modules.json").write_text(json.dumps(modules))
    others = ("modules.json", "config_sentence_transformers.json")
    for file in [file for file in inside.parent.iterdir() if file.is_file() and file.name not in others]:
        file.rename(inside / file.name)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))

    tokenizer = load_tokenizer(ModelName("some/old"))
    assert tokenizer.get_vocab() == load_tokenizer(ModelName(str(folder))).get_vocab()
    assert tokenizer.model_max_length == 9
    assert tokenizer.tokenize("A TEXT") == tokenizer.tokenize("a text")
    assert dataclasses.replace(read_shape(ModelName("some/old")), name="model") == read_shape(ModelName(str(folder)))
    assert tokenizer.get_vocab() == load_tokenizer(ModelName(str(inside.parent))).get_vocab()


def test_padding_on_the_left_does_not_move_the_positions_of_a_text(folder):
    change_json(folder / "tokenizer_config.json", padding_side="left")
    model = SentenceTransformer(str(folder), device="cpu")
    alone = np.concatenate([model.encode([text]) for text in TEXTS])
    np.testing.assert_allclose(open_embedder(str(folder)).embed(TEXTS), alone, atol=1e-5)


# -- prompts -----------------------------------------------------------------------------------------------------------


def notes(tmp_path, **settings):
    folder = save(tmp_path / "model", architectures.bert(tmp_path / "b"), Pooling(32, "mean"), Normalize(), **settings)
    return open_embedder(str(folder)).notes


def test_prompts_that_no_role_finds_are_named(tmp_path, capfd):
    (note,) = notes(tmp_path, prompts={"search_query": "find: ", "search_document": "text: "})
    assert "search_query 'find: '" in note and "teacher.prompts" in note
    assert "search_query 'find: '" in capfd.readouterr().err


def test_a_default_prompt_that_is_not_used_is_named(tmp_path):
    prompts = {"query": "q: ", "document": "d: ", "topic": "t: "}
    (note,) = notes(tmp_path, prompts=prompts, default_prompt_name="topic")
    assert "'topic' is its default" in note


@pytest.mark.parametrize("prompts", [{}, {"query": "q: "}, {"query": "q: ", "passage": "p: ", "topic": "t: "}])
def test_prompts_that_are_used_need_no_note(tmp_path, prompts):
    assert notes(tmp_path, prompts=prompts) == ()
