"""The student that experiments/shootout_cross_tokenizer.py begins with: another tokenizer, three layers, 256 wide, not
random.

    python -m experiments.cross_tokenizer_start --out runs/cross_tokenizer/start

Trains a byte-level BPE of 8,000 tokens on English sentences, then distils all-MiniLM-L6-v2 into a fresh BERT of three
layers by `redact` on 100,000 of them. Run again, it goes on where it stopped; a finished one is left alone. The student
is in OUT/student.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from benchmarks.texts import sample_texts
from distilvec.config import recipe as recipes
from distilvec.core.device import fast_bf16
from distilvec.pipeline.run import run

SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
VOCABULARY = 8000
TEXTS = 100_000
HELD_OUT = 64  # batches


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="changes of the recipe")
    arguments = parser.parse_args()
    print(make_start(arguments.out, arguments.texts, arguments.overrides))


def make_start(out: Path, count: int = TEXTS, overrides: list[str] | None = None) -> Path:
    """The student's folder, made if it is not there."""
    out.mkdir(parents=True, exist_ok=True)
    texts = out / "texts.txt"
    if not texts.exists():
        found, origin = sample_texts(count)
        print(f"{len(found):,} texts: {origin}", flush=True)
        texts.write_text("\n".join(found) + "\n", encoding="utf-8")
    if not (out / "tokenizer").exists():
        save_tokenizer(texts, out / "tokenizer")
    tree = start_recipe(texts, out / "tokenizer")
    for key, value in recipes.read_overrides(overrides or []).items():
        recipes.set_key(tree, key, value)
    run(recipes.validate(tree), out / "run")
    return out / "run" / "student"


def save_tokenizer(texts: Path, folder: Path) -> None:
    """A byte-level BPE trained on a file of texts, one a line, with BERT's special tokens."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train([str(texts)], trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **SPECIAL).save_pretrained(folder)


def start_recipe(texts: Path, tokenizer: Path) -> dict[str, Any]:
    """The recipe as plain data."""
    return {
        "name": "cross_tokenizer_start",
        "teacher": {
            "model": "all-MiniLM-L6-v2",
            "max_length": 128,
            "dtype": "bfloat16" if fast_bf16("cpu") else "float32",
        },
        "student": {
            "config": {
                "model_type": "bert",
                "hidden_size": 256,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "intermediate_size": 1024,
                "max_position_embeddings": 512,
            },
            "tokenizer": str(tokenizer),
            "max_length": 128,
            "dropout": 0.0,
        },
        "corpus": {
            "sources": [{"path": str(texts), "name": "english_text"}],
            "holdout_batches": HELD_OUT,
            "exclude_evaluation": False,
        },
        "method": {"name": "redact"},
        "train": {
            "epochs": 2,
            "batch_size": 32,
            "learning_rate": 1e-3,
            "final_learning_rate": 1e-5,
            "schedule": {"name": "cosine", "warmup": 0.05},
        },
        "evaluation": {"parts": []},
    }


if __name__ == "__main__":
    main()
