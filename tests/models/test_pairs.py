"""The boundary between the two texts of a pair that a model reads as one input."""

from __future__ import annotations

import json

import architectures
import numpy as np
import pytest
from labelled import write_task
from refusals import refused
from tokenizers import processors
from transformers import AutoTokenizer

from distilvec.__main__ import run_command
from distilvec.config.schema import TeacherSection
from distilvec.core.model_name import ModelName
from distilvec.models.load import load_tokenizer
from distilvec.students.task_head import TaskModel
from distilvec.teachers.open import load_teacher

FIRST, SECOND = ("the cat", "sat"), ("the", " catsat")
BYTES = processors.ByteLevel(trim_offsets=True)


def bare(folder, post_processor=None, **roles):
    """The folder of a GPT-2 whose tokenizer has this post-processor, and the roles of its special token."""
    architectures.gpt2(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.backend_tokenizer.post_processor = post_processor
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | roles))
    return folder


def template(pair):
    return processors.TemplateProcessing(single="<s> $A", pair=pair, special_tokens=[("<s>", 0)])


@pytest.mark.parametrize("name", ["gpt2", "opt", "qwen3", "roberta", "modernbert"])
def test_the_end_of_a_text_is_marked_where_a_tokenizer_marks_nothing(name, tmp_path):
    folder = getattr(architectures, name)(tmp_path / name)
    plain, tokenizer = AutoTokenizer.from_pretrained(folder), load_tokenizer(ModelName(str(folder)))
    assert plain(*FIRST)["input_ids"] == plain(*SECOND)["input_ids"]
    first, second = tokenizer(*FIRST)["input_ids"], tokenizer(*SECOND)["input_ids"]
    mark = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.sep_token_id
    assert (
        first != second
        and first.count(mark) == 1
        and [number for number in first if number != mark] == [number for number in second if number != mark]
    )
    assert tokenizer("the cat")["input_ids"] == plain("the cat")["input_ids"]
    tokenizer.save_pretrained(tmp_path / "saved")
    assert AutoTokenizer.from_pretrained(tmp_path / "saved")(*FIRST)["input_ids"] == first


@pytest.mark.parametrize("post_processor", [None, BYTES, processors.Sequence([BYTES, template("<s> $A $B")])])
def test_any_post_processor_is_kept_beside_the_mark(post_processor, tmp_path):
    folder = bare(tmp_path / "m", post_processor)
    plain, tokenizer = AutoTokenizer.from_pretrained(folder), load_tokenizer(ModelName(str(folder)))
    without, found = plain(*FIRST)["input_ids"], tokenizer(*FIRST)["input_ids"]
    length = len(plain("the cat")["input_ids"])
    assert found == [*without[:length], tokenizer.eos_token_id, *without[length:]]


@pytest.mark.parametrize("name", ["bert", "xlm_roberta", "xlnet"])
def test_a_tokenizer_with_a_mark_stays_as_it_is(name, tmp_path):
    folder = getattr(architectures, name)(tmp_path / name)
    plain, tokenizer = AutoTokenizer.from_pretrained(folder), load_tokenizer(ModelName(str(folder)))
    assert tokenizer.backend_tokenizer.to_str() == plain.backend_tokenizer.to_str()


def test_teacher_training_and_saved_classifier_read_the_same_pairs(tmp_path, monkeypatch):
    monkeypatch.setattr("distilvec.report.write.draw_report", lambda folder, found: None)
    folder = architectures.sentence_transformer(tmp_path / "m", bare(tmp_path / "gpt2"), "lasttoken normalize")
    embed = load_teacher(TeacherSection(model=str(folder)), "cpu").signals([FIRST, SECOND])["embedding"]
    assert np.abs(embed[0] - embed[1]).max() > 1e-3
    task, out = write_task(tmp_path / "task.jsonl", "pair", 64, 16), tmp_path / "run"
    words = ["--type", "pair", "--epochs", "1", "--no-lora", "train.device=cpu", "evaluation.parts=[]"]
    assert run_command(["finetune", str(folder), "--task", str(task), "--out", str(out), *words]) == 0
    first, second = TaskModel(out / "student").predict_proba([FIRST, SECOND])
    assert np.abs(first - second).max() > 1e-6
    tokenizer = AutoTokenizer.from_pretrained(out / "student")  # as any reader has it
    assert tokenizer(*FIRST)["input_ids"] != tokenizer(*SECOND)["input_ids"]


def test_a_tokenizer_without_a_token_for_the_end_reads_no_pairs(tmp_path, capsys):
    backbone = bare(tmp_path / "gpt2", eos_token=None, pad_token="<|endoftext|>")
    folder = architectures.sentence_transformer(tmp_path / "m", backbone)
    with refused("task.encode", "pair"):
        load_teacher(TeacherSection(model=str(folder)), "cpu").signals([FIRST])
    task, out = write_task(tmp_path / "task.jsonl", "pair", 64, 16), tmp_path / "run"
    words = ["--type", "pair", "--epochs", "1", "--no-lora", "train.device=cpu", "evaluation.parts=[]"]
    assert run_command(["finetune", str(folder), "--task", str(task), "--out", str(out), *words]) == 2
    assert "--encode" in capsys.readouterr().err
