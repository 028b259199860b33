"""The verb `transplant`: a folder that loads anywhere, and bad input that leaves nothing behind."""

from __future__ import annotations

import json
import re
from pathlib import Path

import architectures
import numpy as np
import pytest
import torch
from architectures import ARCHITECTURES, sentence_transformer
from huggingface_hub import ModelCard
from peft import LoraConfig, get_peft_model
from refusals import refused
from samples import make_texts
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel, ByT5Tokenizer

from distilvec.cli.app import app
from distilvec.core.errors import DistilvecError, plain_errors
from distilvec.models.load import resolve_model
from distilvec.verbs.transplant.transplant import _card, _fixed, _model_sizes, rows_line, some_of_each

TEXTS = make_texts(300)


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teachers")
    return {
        name: sentence_transformer(
            folder / f"{name}-model", ARCHITECTURES[name](folder / name), "mean dense:24 normalize"
        )
        for name in ("bert", "gemma3")
    }


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS), encoding="utf-8")
    return path


@plain_errors()
def transplant(*arguments):
    app(["transplant", *map(str, arguments)], standalone_mode=False)


@pytest.mark.parametrize("name", ["bert", "gemma3"])
def test_trimming_keeps_the_vectors_of_the_texts(teachers, texts, tmp_path, name, capsys):
    transplant(teachers[name], "--texts", texts, "--out", tmp_path / "out")
    old, new = (
        SentenceTransformer(str(teachers[name]), device="cpu"),
        SentenceTransformer(str(tmp_path / "out"), device="cpu"),
    )
    np.testing.assert_allclose(new.encode(TEXTS), old.encode(TEXTS), atol=1e-6)
    assert [type(module).__name__ for module in new] == [type(module).__name__ for module in old]
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(tokenizer) == new[0].auto_model.get_input_embeddings().num_embeddings < len(old.tokenizer)
    record = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert record["chosen"]["tokens"] == len(tokenizer) and record["without_pieces"] == []
    assert f"{len(tokenizer):,}" in capsys.readouterr().out


def test_a_merged_adapter_is_saved_under_the_names_of_the_plain_model(tmp_path, texts):
    """Of a folder that transformers reads with its adapter; by peft alone, since its own call asks for a newer one."""
    backbone = architectures.bert(tmp_path / "backbone")
    folder = sentence_transformer(tmp_path / "adapted", backbone)
    for name in ("model.safetensors", "config.json"):
        (folder / name).unlink()
    config = LoraConfig(r=4, target_modules=["query", "value"], init_lora_weights=False)
    get_peft_model(AutoModel.from_pretrained(backbone), config).save_pretrained(folder)
    transplant(folder, "--texts", texts, "--out", tmp_path / "out")
    old, new = (SentenceTransformer(str(path), device="cpu").encode(TEXTS) for path in (folder, tmp_path / "out"))
    np.testing.assert_allclose(new, old, atol=1e-5)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece"])
def test_a_new_tokenizer_is_trained_and_its_rows_composed(teachers, texts, tmp_path, kind):
    transplant(
        teachers["bert"], "--texts", f"en={texts}", "--kind", kind, "--vocab-size", 380, "--out", tmp_path / "out"
    )
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert len(model.tokenizer) == 380 and np.isfinite(model.encode(TEXTS[:5])).all()
    again = tmp_path / "again"
    transplant(teachers["bert"], "--tokenizer", tmp_path / "out", "--out", again)
    np.testing.assert_array_equal(
        SentenceTransformer(str(again), device="cpu").encode(TEXTS[:5]), model.encode(TEXTS[:5])
    )


def test_a_longer_reach_where_positions_allow_it(teachers, texts, tmp_path):
    transplant(teachers["gemma3"], "--texts", texts, "--max-length", 8192, "--out", tmp_path / "out")
    model = SentenceTransformer(str(tmp_path / "out"), device="cpu")
    assert model.max_seq_length == model.tokenizer.model_max_length == 8192
    assert model[0].auto_model.config.max_position_embeddings == 8192
    long = " ".join(TEXTS[:80])
    assert len(model.tokenizer(long, truncation=True)["input_ids"]) > 512 and np.isfinite(model.encode(long)).all()
    with refused("--max-length", "8192"):
        transplant(teachers["bert"], "--texts", texts, "--max-length", 8192, "--out", tmp_path / "bert")
    assert not (tmp_path / "bert").exists()


def parameters(folder):
    return sum(weight.numel() for weight in SentenceTransformer(str(folder), device="cpu").parameters())


def test_a_rank_gives_a_factorized_table(teachers, texts, tmp_path):
    transplant(teachers["bert"], "--texts", texts, "--rank", 8, "--out", tmp_path / "out")
    config = SentenceTransformer(str(tmp_path / "out"), device="cpu")[0].auto_model.config
    assert (config.model_type, config.embedding_size) == ("electra", 8)
    assert json.loads((tmp_path / "out" / "vocabulary.json").read_text())["rank"] == 8
    assert "each of 8 numbers" in (tmp_path / "out" / "README.md").read_text()


@pytest.mark.parametrize(("option", "unit"), [("--budget", 1), ("--budget-mb", 4e-6)])
def test_a_budget_chooses_the_nearest_of_several_tables(teachers, texts, tmp_path, option, unit, capsys):
    limit = 39_200  # rank 8 with all 113 tokens, or rank 16 with 100
    transplant(teachers["bert"], "--texts", texts, option, limit * unit, "--out", tmp_path / "out")
    record = json.loads((tmp_path / "out" / "vocabulary.json").read_text())
    assert 0.9 * limit < parameters(tmp_path / "out") <= limit
    tried = re.findall(r"rank (\d+) with (\d+) tokens, start distance (\d\.\d+)", capsys.readouterr().err)
    assert len(tried) == 2 and min(float(distance) for *_, distance in tried) == pytest.approx(
        record["start_distance"], abs=1e-3
    )
    assert [str(record["rank"]), str(record["chosen"]["tokens"])] in [list(one[:2]) for one in tried]


def test_the_first_rank_of_a_budget_leaves_every_token_and_less_than_eight_further_numbers_for_each():
    sizes = {"hidden_size": 96, "num_attention_heads": 2, "intermediate_size": 8}
    first = torch.nn.Module()
    first.auto_model = BertModel(BertConfig(vocab_size=500, num_hidden_layers=1, **sizes))
    model = torch.nn.Sequential(first)
    budget = _fixed(model, 40) + 40 * 500 + 1000
    (rank, tokens), *larger = _model_sizes(model, budget, 500, 10)
    assert (rank, tokens) == (40, 500) and [one for one, _ in larger] == [48, 64]
    assert all(_fixed(model, one) + one * left <= budget for one, left in [(rank, tokens), *larger])


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("bert", ["--rank", "32"], r"^\[--rank\] found 32; give a number from 2 to 31"),
        ("gemma3", ["--rank", "8"], r"^\[--rank\] found Gemma3TextModel .*expected a BERT encoder"),
        ("gemma3", ["--budget", "30k"], r"^\[--budget\] .*found Gemma3TextModel"),
        ("bert", ["--budget", "30k"], r"^\[--budget\] found 0.03 M parameters; the model's layers"),
        ("bert", ["--budget", "much"], r"^\[--budget\] found 'much'; expected a number of parameters"),
        ("bert", ["--budget", "25%"], r"^\[--budget\] found '25%'; expected a number of parameters"),
        ("bert", ["--budget-mb", "-1"], r"^\[--budget-mb\] found -1"),
        ("bert", ["--budget", "1M", "--rank", "8"], r"^\[--budget\] found several"),
        ("bert", ["--budget", "1M", "--vocab-size", "90"], r"^\[--budget\] chooses how many tokens"),
    ],
)
def test_a_table_that_cannot_be_made_is_refused(teachers, texts, tmp_path, name, arguments, message):
    with pytest.raises(DistilvecError, match=message):
        transplant(teachers[name], "--texts", texts, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kind", "bpe"], r"^\[--vocab-size\] .*bpe"),
        (["--kind", "hybrid", "--vocab-size", "300"], r"^\[--target\] .*hybrid"),
        (
            ["--kind", "hybrid", "--vocab-size", "300", "--target", "tr", "--share", "9"],
            r"\[--target\] no texts of 'tr'",
        ),
        (["--tokenizer", "/nowhere"], r"\[--tokenizer\] .*/nowhere"),
    ],
)
def test_bad_input_is_named_and_leaves_nothing(teachers, texts, tmp_path, arguments, message):
    with pytest.raises(DistilvecError, match=message):
        transplant(teachers["bert"], "--texts", texts, "--out", tmp_path / "out", *arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["trim", "bpe", "unigram", "wordpiece", "hybrid"])
@pytest.mark.parametrize("size", [9, 99_999])
def test_a_size_that_cannot_be_had_is_a_wish(teachers, texts, tmp_path, capsys, kind, size):
    more = ["--target", "texts", "--share", size] if kind == "hybrid" else []
    more += ["--texts", f"en={tmp_path / 'en.txt'}"] if kind == "hybrid" else []
    (tmp_path / "en.txt").write_text("the river and the bridge\n")
    out = tmp_path / "out"
    transplant(teachers["bert"], "--texts", texts, "--kind", kind, "--vocab-size", size, *more, "--out", out)
    record = json.loads((out / "vocabulary.json").read_text())
    tokens = len(SentenceTransformer(str(out), device="cpu").tokenizer)
    assert record["notes"][-1].startswith(f"{tokens:,} tokens instead of {size:,}: ")
    log = capsys.readouterr().err
    assert all(f"vocabulary: {note}\n" in log for note in record["notes"])


def test_bad_tokenizers_are_named_and_leave_nothing(teachers, tmp_path):
    """A slow one, ids with holes, none for the tokens around a text; and texts that the model's own cannot read."""
    ByT5Tokenizer().save_pretrained(tmp_path / "slow")
    state = json.loads(architectures.wordpiece().backend_tokenizer.to_str())
    state["model"]["vocab"] = {token: number + (number > 50) for token, number in state["model"]["vocab"].items()}
    architectures.wrap(architectures.Tokenizer.from_str(json.dumps(state)), pad_token="[PAD]").save_pretrained(
        tmp_path / "holes"
    )
    byte_level = architectures.byte_level(
        ["<|endoftext|>"], "$A <|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>"
    )
    byte_level.save_pretrained(tmp_path / "headless")
    for name, message in {
        "slow": "is a ByT5Tokenizer without a fast form",
        "holes": "its ids have holes, 51 has no token",
        "holes/tokenizer.json": "its ids have holes, 51 has no token",
        "headless": r"the model reads texts with \[CLS\], which the new tokenizer has no token for",
        "headless/tokenizer.json": r"the model reads texts with \[CLS\], and .* Expected one of \[CLS\], <cls>, <s>",
    }.items():
        with pytest.raises(DistilvecError, match=message):
            transplant(teachers["bert"], "--tokenizer", tmp_path / name, "--out", tmp_path / "out")
    (tmp_path / "amharic.txt").write_text("የአማርኛ ጽሑፍ\nሰላም ለዓለም\n", encoding="utf-8")
    with refused("--kind", "100%"):
        transplant(teachers["bert"], "--texts", tmp_path / "amharic.txt", "--out", tmp_path / "out")
    assert not list(tmp_path.glob("*out*"))


def test_a_tokenizer_file_is_taken_with_the_old_roles(teachers, texts, tmp_path):
    transplant(
        teachers["gemma3"], "--texts", texts, "--kind", "unigram", "--vocab-size", 380, "--out", tmp_path / "folder"
    )
    transplant(teachers["gemma3"], "--tokenizer", tmp_path / "folder" / "tokenizer.json", "--out", tmp_path / "file")
    whole, bare = (SentenceTransformer(str(tmp_path / name), device="cpu") for name in ("folder", "file"))
    assert bare.tokenizer.special_tokens_map == whole.tokenizer.special_tokens_map
    np.testing.assert_array_equal(bare.encode(TEXTS[:9]), whole.encode(TEXTS[:9]))


def test_texts_have_to_be_there(teachers, tmp_path):
    with pytest.raises(DistilvecError, match="no texts to choose a vocabulary from"):
        transplant(teachers["bert"], "--out", tmp_path / "out")
    (tmp_path / "empty.txt").write_text("\n\n")
    with pytest.raises(DistilvecError, match="no texts to choose a vocabulary from"):
        transplant(teachers["bert"], "--texts", tmp_path / "empty.txt", "--out", tmp_path / "out")
    with pytest.raises(DistilvecError, match="not found"):
        transplant(teachers["bert"], "--texts", tmp_path / "absent.txt", "--out", tmp_path / "out")


def test_overwriting_keeps_what_others_put_into_the_folder(teachers, texts, tmp_path):
    out = tmp_path / "out"
    transplant(teachers["bert"], "--texts", texts, "--out", out)
    (out / "notes.txt").write_text("mine")
    (out / "onnx").mkdir()
    (out / "onnx" / "model.onnx").write_bytes(b"onnx")
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(DistilvecError, match=r"\[--out\] .* is not empty.*--overwrite"):
        transplant(teachers["bert"], "--texts", texts, "--out", out)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    transplant(teachers["bert"], "--texts", texts, "--kind", "bpe", "--vocab-size", 380, "--out", out, "--overwrite")
    assert len(SentenceTransformer(str(out), device="cpu").tokenizer) == 380
    assert (out / "notes.txt").read_text() == "mine" and (out / "onnx" / "model.onnx").read_bytes() == b"onnx"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "texts.txt"]


def test_texts_are_cut_at_the_positions_of_a_model_that_states_more(tmp_path):
    """XLM-R counts positions from its padding id: 130 of them are enough for 128 tokens."""
    teacher = sentence_transformer(tmp_path / "model", ARCHITECTURES["xlm_roberta"](tmp_path / "xlm_roberta"))
    path = tmp_path / "long.txt"
    path.write_text("\n".join([" ".join(TEXTS), *TEXTS[:5]]), encoding="utf-8")
    transplant(teacher, "--texts", path, "--out", tmp_path / "out")
    assert SentenceTransformer(str(tmp_path / "out"), device="cpu").max_seq_length == 128


def test_the_models_card_names_its_model(teachers, texts, tmp_path):
    """A name with marks of YAML and Markdown in it stays a name, and is no id."""
    about = {"chosen": {"before": 1000, "tokens": 10}}
    card = ModelCard(_card("org/a: [b] *c*\nd", about))
    assert card.data.get("base_model") is None and card.data.pipeline_tag == "sentence-similarity"
    assert "\n# org/a: \\[b\\] \\*c\\* d with another vocabulary\n" in card.text
    card = ModelCard(_card("all-MiniLM-L6-v2", about))
    assert card.data.base_model == ["sentence-transformers/all-MiniLM-L6-v2"]
    if (folder := Path(resolve_model("all-MiniLM-L6-v2"))).is_dir():
        assert card.data.license == ModelCard.load(str(folder / "README.md")).data.license == "apache-2.0"
        assert "The license is that of the original: apache-2.0." in card.text
    text = _card("all-MiniLM-L6-v2", about)
    assert str(ModelCard(text)) == text


def test_the_card_names_the_stated_languages_only(teachers, texts, tmp_path):
    (tmp_path / "abc.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    transplant(teachers["bert"], "--texts", f"tr={texts}", "--texts", tmp_path / "abc.txt", "--out", tmp_path / "out")
    assert ModelCard.load(str(tmp_path / "out" / "README.md")).data.language == ["tr"]


def test_rows_without_an_old_piece_are_explained():
    record = {"rows": {"special": 5, "missing": 9}, "without_pieces": ["<0x00>", "<0xFF>", *"▁abcdef"]}
    first, second = rows_line(record).splitlines()
    assert first == "rows 9 missing, 5 special" and "2 bytes of rare characters; ▁ a b c d …" in second
    assert rows_line({"rows": {"special": 5}, "without_pieces": []}) == "rows 5 special"
    assert rows_line({"rows": {"missing": 1}, "without_pieces": ["▁"]}).endswith("(▁)")


@pytest.mark.parametrize("name", ["bert", "gemma3"])
def test_a_budget_that_leaves_room_changes_no_vector(teachers, texts, tmp_path, name):
    transplant(teachers[name], "--texts", texts, "--budget", "5_000_000", "--out", tmp_path / "out")
    old, new = (SentenceTransformer(str(folder), device="cpu") for folder in (teachers[name], tmp_path / "out"))
    np.testing.assert_allclose(new.encode(TEXTS), old.encode(TEXTS), atol=1e-6)
    assert "rank" not in json.loads((tmp_path / "out" / "vocabulary.json").read_text())


def test_every_language_is_among_the_texts_that_a_table_is_fitted_to():
    many, few = [f"en {number}" for number in range(50)], ["tr 0", "tr 1", "tr 2"]
    read = some_of_each({"en": lambda: iter(many), "tr": lambda: iter(few)}, 20)
    assert len(read) == 20 and {*few} < {*read} and {*read} - {*few} == {*many[:17]}


def test_the_smallest_table_is_a_budget():
    sizes = {"hidden_size": 96, "num_attention_heads": 2, "intermediate_size": 8}
    first = torch.nn.Module()
    first.auto_model = BertModel(BertConfig(vocab_size=500, num_hidden_layers=1, **sizes))
    model = torch.nn.Sequential(first)
    assert [*_model_sizes(model, _fixed(model, 8) + 8 * 500, 500, 500)] == [(8, 500)]
