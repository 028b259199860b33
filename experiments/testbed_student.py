"""A small BERT that never saw a teacher: the student that the shootouts begin with.

    python -m experiments.testbed_student --out runs/testbed/student
    python -m experiments.testbed_student --out runs/six-layers/student --layers 6 --width 384

Trains a byte-level BPE of 8,000 tokens on the open English texts, then a BERT, of four layers with 256 dims or another
shape, on them by masked language modelling (transformers' Trainer). Texts follow one another in sequences of 96 tokens,
each ended by [SEP]; those after the first have BERT's second token type, so that pairs in one input are not new to the
student. Run again, it goes on at its last checkpoint; a finished student is left alone. Two uninterrupted runs give the
same weights, a resumed one does not: compare methods on one student.
"""

from __future__ import annotations

import argparse
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DataCollatorForLanguageModeling,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
)
from transformers.modeling_outputs import MaskedLMOutput
from transformers.trainer_utils import get_last_checkpoint

from distilvec.core.device import fast_bf16
from distilvec.core.files import write_json

DATA = Path(__file__).parents[2] / "shared" / "data"
TEXTS = {
    "english_text/english_text.jsonl.gz": ("text",),
    "english_text/english_passages.jsonl.gz": ("text",),
    "wordnet_definitions/wordnet_definitions.jsonl.gz": ("word", "definition"),
}
SPECIAL = {
    "pad_token": "[PAD]",
    "unk_token": "[UNK]",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}
VOCABULARY = 8000
LENGTH = 96  # tokens per sequence
DROPOUT = (
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
)  # 0 in the one pass; saved as 0.1
POSITIONS = 512
LAYERS, WIDTH = 4, 256
HEAD_WIDTH, NEURONS = 64, 4  # dims of an attention head; neurons of a layer for each dim


class SparseMaskedLM(BertForMaskedLM):
    """BertForMaskedLM whose head reads the masked positions alone: a sixth of the head's work, the same loss."""

    def forward(self, input_ids: torch.Tensor, labels: torch.Tensor, **inputs: torch.Tensor) -> MaskedLMOutput:
        """Return the mean cross-entropy over masked positions."""
        masked = labels != -100
        logits = self.cls(self.bert(input_ids, **inputs).last_hidden_state[masked])
        return MaskedLMOutput(loss=torch.nn.functional.cross_entropy(logits.float(), labels[masked]), logits=logits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--epochs", type=float, default=1.0)
    parser.add_argument("--sequences", type=int, default=None, help="train on the first n sequences")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--width", type=int, default=WIDTH, help="a multiple of 64")
    arguments = parser.parse_args()
    shape = bert_shape(arguments.layers, arguments.width)
    print(make_student(arguments.out, arguments.data, arguments.epochs, arguments.sequences, shape))


def bert_shape(layers: int = LAYERS, width: int = WIDTH) -> dict[str, int]:
    """Return the keys of BertConfig for so many layers and dims."""
    return {
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": width // HEAD_WIDTH,
        "intermediate_size": NEURONS * width,
        "max_position_embeddings": POSITIONS,
    }


def make_student(
    out: Path,
    data: Path = DATA,
    epochs: float = 1.0,
    limit: int | None = None,
    shape: dict[str, int] | None = None,
) -> Path:
    """Return the student's folder, made if it is not there: the model without its head, and its tokenizer."""
    if (out / "config.json").exists():
        return out
    if not (out / "tokenizer").exists():
        save_tokenizer(read_texts(data), out / "tokenizer")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(out / "tokenizer")
    torch.manual_seed(0)
    sizes = {**(shape or bert_shape()), "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    model = SparseMaskedLM(BertConfig(**sizes, **dict.fromkeys(DROPOUT, 0.0)))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    settings = TrainingArguments(
        output_dir=str(out / "checkpoints"),
        num_train_epochs=epochs,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        lr_scheduler_type="cosine",
        warmup_steps=200,
        adam_beta2=0.98,
        weight_decay=0.01,
        logging_steps=100,
        save_steps=500,
        save_total_limit=1,
        bf16=fast_bf16(device),
        report_to=[],
        use_cpu=device == "cpu",
    )
    collator = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    trainer = Trainer(model, settings, collator, Sequences(data, tokenizer, limit))
    begun = (out / "checkpoints").exists() and get_last_checkpoint(settings.output_dir)
    trainer.train(resume_from_checkpoint=begun or None)
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    write_json(out / "log.json", losses)
    tokenizer.save_pretrained(out)
    model.bert.config.update(dict.fromkeys(DROPOUT, 0.1))
    model.bert.save_pretrained(out)
    return out


def read_texts(data: Path) -> Iterator[str]:
    """Yield the open texts, file by file."""
    for name, columns in TEXTS.items():
        with gzip.open(data / name, "rt", encoding="utf-8") as lines:
            for row in map(json.loads, lines):
                yield ": ".join(row[column] for column in columns)


def save_tokenizer(texts: Iterator[str], folder: Path) -> None:
    """Train a byte-level BPE with BERT's special tokens and save it."""
    tokenizer = Tokenizer(models.BPE(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **SPECIAL).save_pretrained(folder)


class Sequences(torch.utils.data.Dataset[dict[str, Any]]):
    """The texts' tokens in file order, [SEP] after each text, cut into sequences that begin with [CLS]."""

    def __init__(self, data: Path, tokenizer: PreTrainedTokenizerFast, limit: int | None) -> None:
        ids = (tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids for text in read_texts(data))
        flat = np.fromiter((i for text in ids for i in (*text, tokenizer.sep_token_id)), np.int64)
        cut = flat[: len(flat) // (LENGTH - 1) * (LENGTH - 1)].reshape(-1, LENGTH - 1)[:limit]
        self.ids = np.hstack([np.full((len(cut), 1), tokenizer.cls_token_id), cut])
        self.types = np.cumsum(np.roll(self.ids == tokenizer.sep_token_id, 1, axis=1), axis=1) > 0
        self.types[:, 0] = False

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"input_ids": self.ids[index], "token_type_ids": self.types[index].astype(np.int64)}


if __name__ == "__main__":
    main()
