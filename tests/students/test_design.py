"""The design of students: shapes read without weights, splits of a budget, and built students that keep within it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from architectures import ARCHITECTURES, TEXTS, sentence_transformer, t5
from refusals import refused
from transformers import AutoTokenizer

from distilvec.config.recipe import section_of
from distilvec.config.student import StudentSection
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_backbone
from distilvec.students import design
from distilvec.students.build import TeacherInfo, build_student
from distilvec.students.design import (
    Budget,
    Design,
    ModelShape,
    Split,
    TokensUsed,
    count_parts,
    describe_split,
    design_student,
    parse_size,
    smallest_split,
    smallest_static,
)
from distilvec.students.shape import count_tokens, read_shape
from distilvec.vocabulary.choose import choose
from distilvec.vocabulary.pieces import Pieces

MINILM = ModelShape(
    name="all-MiniLM-L6-v2",
    architecture="bert",
    hidden_size=384,
    layers=6,
    neurons=1536,
    vocabulary=30522,
    row_size=384,
    dim=384,
    linear_dim=384,
    position_parameters=198_144,
    layer_parameters=1_774_464,
    neuron_parameters=769,
    other_parameters=147_840,
)
MPNET = ModelShape(
    name="all-mpnet-base-v2",
    architecture="mpnet",
    hidden_size=768,
    layers=12,
    neurons=3072,
    vocabulary=30527,
    row_size=768,
    dim=768,
    linear_dim=768,
    position_parameters=396_288,
    layer_parameters=7_087_872,
    neuron_parameters=1537,
    other_parameters=590_976,
    no_factorizing="MPNet's layers have no factorized table.",
)
FEW_TEXTS = TEXTS[:4]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("models")
    return {name: make(root / name) for name, make in ARCHITECTURES.items()}


@pytest.fixture
def tiny_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """The least number of tokens is larger than the whole vocabulary of a tiny model."""
    monkeypatch.setattr(design, "LEAST_TOKENS", 0)


def built_parameters(folder: Path, made: Design, dim: int, dense: str = "auto") -> int:
    """The parameters of the student that is built from the design's keys on the few texts."""
    section = section_of(StudentSection, "student", {"model": str(folder), "dense": dense, **made.student_keys()})
    vocabulary = None
    if section.vocabulary is not None:
        pieces = Pieces(AutoTokenizer.from_pretrained(folder))
        vocabulary = choose(section.vocabulary, pieces, {"en": lambda: iter(FEW_TEXTS)}).tokenizer
    teacher = TeacherInfo(dim=dim, normalized=True, max_length=64)
    student = build_student(section, teacher, 0, vocabulary=vocabulary, texts=FEW_TEXTS)
    return sum(weight.numel() for weight in student.parameters())


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("2M", Budget(2_000_000)),
        ("20m", Budget(20_000_000)),
        ("0.5M", Budget(500_000)),
        ("800k", Budget(800_000)),
        ("5_000_000", Budget(5_000_000)),
        (" 25% ", Budget(share=0.25)),
    ],
)
def test_a_size_is_a_number_or_a_share(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "5MB", "small", "-5M", "0", "0%", "150%", "5 %%", "M", "1e6", "5,5M"])
def test_other_sizes_are_refused(text):
    with refused("", text):
        parse_size(text)


def test_a_share_is_of_the_whole_model():
    assert Budget(share=0.25).of(MINILM) == MINILM.parameters // 4 == 22_713_216 // 4


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_shape_is_read_without_weights(folders, name, tmp_path):
    whole = sum(weight.numel() for weight in load_backbone(ModelName(str(folders[name]))).parameters())
    for file in folders[name].iterdir():
        if file.suffix in (".json", ".txt"):
            (tmp_path / file.name).write_bytes(file.read_bytes())
    assert read_shape(ModelName(str(tmp_path))).parameters == whole


def test_the_encoder_of_a_t5_counts_alone(tmp_path):
    whole = sum(weight.numel() for weight in load_backbone(ModelName(str(t5(tmp_path / "t5")))).parameters())
    assert read_shape(ModelName(str(tmp_path / "t5"))).parameters == whole


def test_linear_layers_behind_the_pooling_are_read(folders, tmp_path):
    folder = sentence_transformer(tmp_path / "dense", folders["bert"], "mean dense:48 dense:16 normalize")
    shape = read_shape(ModelName(str(folder)))
    assert (shape.dim, shape.linear_dim) == (16, 16)
    assert shape.dense_parameters == 32 * 48 + 48 * 16
    whole = sum(weight.numel() for weight in load_backbone(ModelName(str(folder))).parameters())
    assert shape.parameters == whole


def test_a_transformer_in_a_folder_of_its_own_is_read(folders, tmp_path):
    folder = sentence_transformer(tmp_path / "old", folders["bert"], "mean dense:16 normalize")
    modules = json.loads((folder / "modules.json").read_text())
    modules[0]["path"] = "0_Transformer"
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "0_Transformer").mkdir()
    for file in [*folder.glob("config.json"), *folder.glob("tokenizer*"), *folder.glob("*.safetensors")]:
        file.rename(folder / "0_Transformer" / file.name)
    whole = sum(weight.numel() for weight in load_backbone(ModelName(str(folder))).parameters())
    assert read_shape(ModelName(str(folder))).parameters == whole


def test_a_missing_model_is_refused(tmp_path):
    with refused("", "nothing"):
        read_shape(ModelName(str(tmp_path / "nothing")))


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_tokens_used_are_those_of_a_trimmed_vocabulary(folders, name):
    tokenizer = AutoTokenizer.from_pretrained(folders[name])
    used = count_tokens(tokenizer, {"en": lambda: iter(FEW_TEXTS)})
    section = section_of(StudentSection, "student", {"model": "x", "vocabulary": {"kind": "trim", "letters": "seen"}})
    assert section.vocabulary is not None
    trimmed = choose(section.vocabulary, Pieces(tokenizer), {"en": lambda: iter(FEW_TEXTS)}).tokenizer
    assert used.number == len(trimmed) <= len(tokenizer)
    assert 0 < used.least <= used.number
    assert used.coverage(len(used.counts)) == pytest.approx(1)
    assert used.coverage(1) < used.coverage(5) < 1


@pytest.mark.parametrize("share", [0.3, 0.7])
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_built_students_have_the_parameters_of_their_design(folders, name, share, tiny_tables):
    shape = read_shape(ModelName(str(folders[name])))
    used = count_tokens(AutoTokenizer.from_pretrained(folders[name]), {"en": lambda: iter(FEW_TEXTS)})
    smallest = count_parts(shape, smallest_split(shape, used)).total
    budget = Budget(max(smallest, int(share * shape.parameters)))
    made = design_student(shape, budget, used)
    assert made.parts.total == built_parameters(folders[name], made, dim=32) <= budget.of(shape)


def test_a_linear_layer_counts(folders, tiny_tables):
    shape = replace(read_shape(ModelName(str(folders["bert"]))), linear_dim=80)
    used = count_tokens(AutoTokenizer.from_pretrained(folders["bert"]), {"en": lambda: iter(FEW_TEXTS)})
    made = design_student(shape, Budget(share=0.7), used)
    assert made.parts.dense == 32 * 80
    assert made.parts.total == built_parameters(folders["bert"], made, dim=80) <= made.budget


@pytest.mark.parametrize(
    ("width", "dense"), [(24, "auto"), (32, "auto"), (40, "auto"), (32, "always"), (24, "keep"), (24, "never")]
)
@pytest.mark.parametrize("static", [False, True])
def test_linear_layers_count_where_they_are_built(folders, tmp_path, width, dense, static, tiny_tables):
    """Of a model with 32 hidden dimensions, and 24 behind a Dense module of its own, for teachers of `width`."""
    if static and dense == "keep":
        return  # no static student can have it
    folder = sentence_transformer(tmp_path / "dense", folders["bert"], "mean dense:24 normalize")
    shape = read_shape(ModelName(str(folder)))
    shape = replace(shape, linear_dim=width, linear=dense, kept_parameters=shape.dense_parameters)
    used = count_tokens(AutoTokenizer.from_pretrained(folder), {"en": lambda: iter(FEW_TEXTS)})
    made = design_student(shape, Budget(share=0.5), used, static=static)
    assert made.parts.total == built_parameters(folder, made, dim=width, dense=dense) <= made.budget


def test_half_in_the_table_half_of_the_neurons_and_every_token():
    made = design_student(MINILM, parse_size("5M"), 24_000)
    assert made.split.tokens == 24_000
    assert made.split.neurons == 768
    assert made.split.layers == 2
    assert made.split.rank is not None
    assert made.parts.table / made.parts.total == pytest.approx(0.5, abs=0.06)
    assert made.student_keys() == {
        "layers": {"count": 2, "choose": "best"},
        "intermediate_size": 768,
        "vocabulary": {"kind": "trim", "size": 24_000, "letters": "seen"},
        "embedding": {"rank": made.split.rank},
    }


def test_a_whole_budget_keeps_the_whole_model():
    made = design_student(MINILM, parse_size("100%"), 30_522)
    assert made.student_keys() == {}
    assert made.parts.total == MINILM.parameters


def test_what_is_left_beside_whole_layers_goes_to_tokens_for_new_texts():
    used = TokensUsed(7000, 900, [1.0] * 7000, possible=18_000)
    whole_layers = count_parts(MINILM, Split(6, 1536, 7000)).total
    made = design_student(MINILM, Budget(whole_layers + 5000 * 384), used)
    assert made.split == Split(6, 1536, 12_000)
    assert any("5,000 tokens are kept beside the 7,000" in note for note in made.notes)
    assert design_student(MINILM, Budget(whole_layers + 12_000 * 384), used).split.tokens == 18_000
    assert design_student(MINILM, parse_size("100%"), used).student_keys() == {}
    assert design_student(MINILM, parse_size("5M"), used).split.tokens == 7000


def test_a_static_student_keeps_tokens_for_new_texts():
    used = TokensUsed(7000, 900, [1.0] * 7000, possible=18_000)
    assert design_student(MINILM, Budget(10_000 * 384), used, static=True).split == Split(0, 0, 10_000, 384)


@pytest.mark.parametrize("tokens", [3000, 14_000, 28_000])
@pytest.mark.parametrize("shape", [MINILM, MPNET], ids=["factorized", "rows as they are"])
def test_no_budget_is_exceeded_nor_left_unused(shape, tokens):
    everything = replace(smallest_split(shape, TokensUsed(tokens, 1000)), layers=shape.layers, neurons=shape.neurons)
    most = count_parts(shape, replace(everything, tokens=tokens, rank=None)).total
    for parameters in range(6_000_000, most, 500_000):
        made = design_student(shape, Budget(parameters), tokens)
        assert 0.8 * parameters <= made.parts.total <= parameters


def test_a_table_that_cannot_be_factorized_has_fewer_tokens():
    made = design_student(MPNET, parse_size("20M"), TokensUsed(28_000, 900, [1.0] * 28_000))
    assert made.split.rank is None
    assert made.split.tokens < 28_000
    assert made.parts.table / made.parts.total == pytest.approx(0.5, abs=0.06)
    assert any(MPNET.no_factorizing in note for note in made.notes)
    assert any(f"{made.split.tokens:,} of the 28,000 tokens" in note for note in made.notes)


def test_narrow_layers_leave_room_for_rows_that_cannot_be_shorter():
    """One layer of 768 dimensions has most of 5M: of its neurons a sixteenth stays, the best of those measured."""
    made = design_student(MPNET, parse_size("5M"), TokensUsed(28_000, 900, [1.0] * 28_000))
    assert (made.split.layers, made.split.neurons, made.split.tokens) == (1, 192, 1759)
    # Where rows can be shorter, layers keep an eighth at least
    large = replace(MINILM, vocabulary=250_000)
    assert design_student(large, parse_size("2M"), 60_000).split.neurons >= large.neurons // 8


def test_layers_go_before_tokens():
    """60,000 tokens leave a table of half of the budget less than 32 numbers for each token."""
    large = replace(MINILM, vocabulary=250_000)
    made = design_student(large, parse_size("3.6M"), 60_000)
    assert made.split.tokens == 60_000
    assert made.split.layers == 1
    assert design_student(large, parse_size("2M"), 60_000).split.tokens < 60_000


def test_wide_layers_on_a_small_budget_name_a_smaller_model():
    assert any("all-MiniLM-L6-v2" in note for note in design_student(MPNET, parse_size("8M"), 28_000).notes)
    multilingual = replace(MPNET, vocabulary=250_002)
    assert any("multilingual-e5-small" in note for note in design_student(multilingual, parse_size("8M"), 28_000).notes)
    assert not any("--student" in note for note in design_student(MPNET, parse_size("40M"), 28_000).notes)
    assert not any("--student" in note for note in design_student(MINILM, parse_size("5M"), 28_000).notes)


@pytest.mark.parametrize("shape", [MINILM, MPNET], ids=["factorized", "rows as they are"])
def test_below_the_smallest_student_with_layers_the_student_is_static(shape):
    used = TokensUsed(28_000, 1200)
    smallest = smallest_split(shape, used)
    least = count_parts(shape, smallest).total
    assert design_student(shape, Budget(least), used).parts.total == least
    made = design_student(shape, Budget(least - 1), used)
    assert made.split.is_static
    assert 0.9 * least < made.parts.total < least
    assert any(describe_split(smallest) in note for note in made.notes)


@pytest.mark.parametrize("shape", [MINILM, MPNET], ids=["factorized", "rows as they are"])
def test_the_least_possible_size_is_stated_and_possible(shape):
    used = TokensUsed(28_000, 1200)
    least = count_parts(shape, smallest_static(shape, used)).total
    assert least == 1200 * 32 + 32 * shape.dim
    with refused("", f"{least:,}"):
        design_student(shape, Budget(least - 1), used)
    assert design_student(shape, Budget(least), used).parts.total == least


def test_a_size_above_the_models_own_is_refused():
    """It would be a copy of the model."""
    with refused("student.size", "50.00M parameters cannot be cut from all-MiniLM-L6-v2"):
        design_student(MINILM, parse_size("50M"), 28_000)


@pytest.mark.parametrize("size", ["50k", "500k", "2M", "5M", "20M"])
def test_a_static_student_that_is_asked_for(size):
    used = TokensUsed(28_000, 900, [1.0] * 28_000)
    made = design_student(MINILM, parse_size(size), used, static=True)
    rank = made.split.rank
    linear = 0 if rank == 384 else rank * 384
    assert made.parts.total == made.split.tokens * rank + linear <= made.budget
    vocabulary = {"vocabulary": {"kind": "trim", "size": made.split.tokens, "letters": "seen"}}
    is_whole = made.split.tokens == MINILM.vocabulary
    assert made.student_keys() == {"layers": 0, "embedding": {"rank": rank}, **({} if is_whole else vocabulary)}
    if size in ("50k", "500k"):
        assert rank == 32
        assert any(f"{made.split.tokens:,} of the 28,000 tokens" in note for note in made.notes)
    else:
        assert made.split.tokens == (MINILM.vocabulary if size == "20M" else 28_000)
    assert not any("needs at least" in note for note in made.notes)


@pytest.mark.parametrize(("share", "dim"), [(0.05, 32), (0.9, 32), (0.2, 80)])
def test_built_static_students_have_the_parameters_of_their_design(folders, share, dim, tiny_tables):
    shape = replace(read_shape(ModelName(str(folders["bert"]))), linear_dim=dim)
    used = count_tokens(AutoTokenizer.from_pretrained(folders["bert"]), {"en": lambda: iter(FEW_TEXTS)})
    made = design_student(shape, Budget(share=share), used, static=True)
    assert made.parts.total == built_parameters(folders["bert"], made, dim=dim) <= made.budget


def test_a_vocabulary_that_cannot_be_trimmed_stays_whole():
    shape = replace(MINILM, no_trimming="its tokenizer is slow.")
    made = design_student(shape, parse_size("8M"), 9000)
    assert made.split.tokens == MINILM.vocabulary
    assert "vocabulary" not in made.student_keys()
    assert any("its tokenizer is slow." in note for note in made.notes)


def test_layers_that_cannot_be_cut_or_narrowed_stay():
    shape = replace(MINILM, no_pruning="no list of layers.", no_narrowing="no known neurons.")
    made = design_student(shape, parse_size("15M"), 28_000)
    assert (made.split.layers, made.split.neurons) == (6, 1536)
    assert made.parts.total <= 15_000_000
    assert {"layers", "intermediate_size"}.isdisjoint(made.student_keys())
