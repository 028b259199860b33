"""Tiny causal models and a recipe on them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from architectures import byte_level, metaspace
from causal_samples import STUDENT, TEACHER, word_rows, write_rows
from transformers import AutoConfig, AutoModelForCausalLM

from distilvec.config.yaml_dialect import dump_yaml
from experiments.causal.schema import load_causal


@pytest.fixture(scope="package")
def models(tmp_path_factory) -> dict[str, Path]:
    """A Qwen3-type teacher (saved whole) and the tokenizer of a GPT-2-type student."""
    folder = tmp_path_factory.mktemp("causal")
    tokenizer = byte_level(["<|endoftext|>"], "$A <|endoftext|>", eos="<|endoftext|>", pad="<|endoftext|>")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        teacher = AutoModelForCausalLM.from_config(AutoConfig.for_model(vocab_size=len(tokenizer), **TEACHER))
    for saved in (teacher, tokenizer):
        saved.save_pretrained(folder / "teacher")
    metaspace("<s> $A </s>", ["<unk>", "<s>", "</s>"]).save_pretrained(folder / "tokenizer")
    return {"teacher": folder / "teacher", "tokenizer": folder / "tokenizer"}


@pytest.fixture
def causal_recipe(models, tmp_path):
    """A causal recipe on tiny models; call it with changes such as "train.epochs=3"."""

    def make(*changes: str):
        tree = {
            "name": "tiny-causal",
            "teacher": {"model": str(models["teacher"])},
            "student": {"config": STUDENT, "tokenizer": str(models["tokenizer"]), "experts": {"count": 3, "width": 16}},
            "data": {
                "train": str(write_rows(tmp_path / "train.jsonl", word_rows(64))),
                "tests": {"own": str(write_rows(tmp_path / "test.jsonl", word_rows(5)))},
                "template": "{instruction}\n",
                "template_with_input": "{instruction} ({input})\n",
                "holdout_rows": 8,
                "max_prompt": 40,
                "max_length": 60,
            },
            "train": {
                "epochs": 2,
                "batch_size": 8,
                "learning_rate": 3e-3,
                "precision": "fp32",
                "device": "cpu",
                "logging_steps": 2,
            },
            "generation": {"max_new_tokens": 8, "batch_size": 2},
        }
        path = tmp_path / "recipe.yaml"
        path.write_text(dump_yaml(tree), encoding="utf-8")
        return load_causal(path, None, list(changes))

    return make
