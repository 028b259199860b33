"""The compressed token cache: bytes a text by signal, and EMO's losses and gradients from it against the live teacher
in float32.

    python -m benchmarks.token_cache --json results/token_cache.json

Sizes are those of a 768-wide teacher of 12 layers (random weights, the tokenizer of all-MiniLM-L6-v2) that reads at
most 256 tokens, over a sample of english_text and over texts of exactly 256 tokens; the paper's figure is 768 KB a
text. Fidelity is that of all-MiniLM-L6-v2 with a student of 3 layers, 256 wide (random weights, no dropout) whose
tokenizer is a byte-level BPE of 8,192 tokens. In the JSON:

    bytes_per_text           of everything, and `by_signal`; `mean_tokens` are the teacher's
    times_smaller            768 KB (of 1,000 bytes) over bytes_per_text
    loss_error               largest and mean relative difference of a batch's loss (mean over its texts)
    gradient_error           the same of the gradient of all of the student's and the projection's weights, by norm
"""

from __future__ import annotations

import argparse
import json
import logging
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.models import Pooling, Transformer
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerFast

from benchmarks.texts import sample_texts
from distilvec.alignment.store import AlignmentStore, build_alignment
from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
from distilvec.core.batch import TextBatch
from distilvec.core.files import write_json
from distilvec.core.info import ObjectiveContext, StudentInfo, TeacherInfo
from distilvec.core.objective import Objective, weighted_loss
from distilvec.core.outputs import ModelOutputs, OutputSpec, TokenOutputSpec
from distilvec.core.registry import build_objective
from distilvec.data.corpus import Corpus, build_corpus
from distilvec.data.tokens import TokenStore, build_tokens
from distilvec.models.load import resolve_model
from distilvec.models.tokenizers import tokenizer_hash
from distilvec.students.encoder import Encoder
from distilvec.teachers.cache.fill import TokenSource, compute_tokens, fill_steps
from distilvec.teachers.cache.signals import token_settings
from distilvec.teachers.cache.store import TeacherCache
from distilvec.teachers.cached import CachedTeacher, LiveTeacher
from distilvec.teachers.embedder import BatchTeacher
from distilvec.teachers.model_embedder import ModelEmbedder
from distilvec.teachers.open import load_teacher
from distilvec.train.dataset import TrainingData

MODEL = "all-MiniLM-L6-v2"
PAPER_BYTES = 768_000
LENGTH, STUDENT_LENGTH, BATCH = 256, 256, 32
CPU = torch.device("cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=512, help="for the sizes, and for the fidelity")
    parser.add_argument("--long-texts", type=int, default=16, help="of exactly 256 tokens")
    arguments = parser.parse_args()
    logging.disable(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        report = measure(arguments.texts, arguments.long_texts, Path(folder))
    write_json(arguments.json, report)
    print(json.dumps(report, indent=1))


def measure(count: int, long_count: int, folder: Path) -> dict[str, Any]:
    """Everything the JSON holds."""
    texts, origin = sample_texts(max(count * 4, 4096))
    tokenizer = train_tokenizer(texts, folder / "tokenizer")
    wide, minilm = wide_teacher(folder / "wide"), load_teacher(TeacherSection(model=MODEL, max_length=LENGTH), "cpu")
    long = long_texts(texts, long_count, minilm)
    return {
        "texts": origin,
        "teacher": "BERT, 12 layers, 768 wide, at most 256 tokens",
        "sizes": {
            "english_text": size(Bench(wide, texts[:count], tokenizer, folder / "real")),
            "english_text_float16": size(Bench(wide, texts[:count], tokenizer, folder / "real16", hidden="float16")),
            "exactly_256_tokens": size(Bench(wide, long, tokenizer, folder / "long")),
        },
        "paper_bytes_per_text": PAPER_BYTES,
        "fidelity": {
            "teacher": MODEL,
            **{
                hidden: fidelity(Bench(minilm, texts[:count], tokenizer, folder / hidden, hidden))
                for hidden in ("int8", "float16")
            },
        },
    }


@dataclass
class Pieces:
    """A corpus with both sides' tokens and their pairs."""

    corpus: Corpus
    own: TokenStore
    theirs: TokenStore
    alignment: AlignmentStore


class Bench:
    """A teacher, a student with EMO, a corpus, and the filled token cache."""

    def __init__(
        self,
        teacher: ModelEmbedder,
        texts: list[str],
        tokenizer: PreTrainedTokenizerFast,
        folder: Path,
        hidden: str = "int8",
    ) -> None:
        self.teacher = teacher
        self.encoder = Encoder(small_student(tokenizer, folder / "student"))
        self.objective = emo(self.encoder, teacher)
        self.required = self.objective.teacher_outputs | OutputSpec(embedding=True)
        assert self.required.tokens is not None
        self.pieces = prepare(teacher, texts, tokenizer, self.required.tokens, folder)
        width = teacher.model[0].auto_model.config.hidden_size
        settings = token_settings(self.required.tokens, hidden, width, tokenizer_hash(tokenizer), STUDENT_LENGTH)
        self.cache = TeacherCache.create_or_open(folder / "cache", replace(teacher.manifest(), tokens=settings))
        self.live = LiveTeacher(teacher, self.pieces.theirs, self.required)
        source = TokenSource(self.live, self.pieces.theirs.lengths, self.pieces.alignment, 2048, CPU)
        compute = partial(compute_tokens, self.cache.manifest, self.pieces.corpus, source)
        for _ in fill_steps(self.cache, self.pieces.corpus, compute):
            pass

    def batches(self) -> Iterable[TextBatch]:
        """The corpus in batches."""
        rows = np.arange(len(self.pieces.corpus))
        data = TrainingData(self.pieces.corpus, self.pieces.own, self.live, rows, rows[:0], self.pieces.alignment)
        for start in range(0, len(rows) - BATCH + 1, BATCH):
            yield data.batch(rows[start : start + BATCH])


def size(bench: Bench) -> dict[str, Any]:
    """Bytes a text."""
    found = bench.cache.inspect()
    return {
        "texts": found["rows"],
        "mean_tokens": round(float(bench.pieces.theirs.lengths.mean()), 1),
        "most_tokens": int(bench.pieces.theirs.lengths.max()),
        "mean_pairs": round(float(bench.pieces.alignment.counts.mean()), 1),
        "bytes_per_text": found["bytes_per_text"],
        "by_signal": found["bytes_per_text_by_signal"],
        "times_smaller": round(PAPER_BYTES / found["bytes_per_text"], 1),
    }


def fidelity(bench: Bench) -> dict[str, Any]:
    """Relative errors of losses and gradients from the cache, term by term and of the whole."""
    cached = CachedTeacher(bench.cache, bench.pieces.corpus.keys, bench.required)
    errors: dict[str, list[tuple[float, float]]] = {}
    for batch in bench.batches():
        for name in (*bench.objective.weights, "total"):
            exact, slope = loss_and_gradient(bench, bench.live, batch, name)
            found, other = loss_and_gradient(bench, cached, batch, name)
            loss = float((found - exact).abs() / exact.abs())
            errors.setdefault(name, []).append((loss, float((other - slope).norm() / slope.norm())))
    report: dict[str, Any] = {"batches": len(next(iter(errors.values())))}
    for name, pairs in errors.items():
        losses, gradients = np.array(pairs).T
        report[name] = {"loss_error": summary(losses), "gradient_error": summary(gradients)}
    return report


def loss_and_gradient(
    bench: Bench, teacher: BatchTeacher, batch: TextBatch, term: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """A term (or "total") and its gradient with respect to all parameters, flat."""
    told: ModelOutputs = teacher.signals(batch)
    rows = None if told.selected is None else told.selected[..., 0]
    bench.encoder.eval()
    terms = bench.objective(batch, bench.encoder(batch, bench.objective.student_outputs, rows), told)
    loss = weighted_loss(terms, bench.objective.weights) if term == "total" else terms[term].mean()
    parameters = [*bench.encoder.parameters(), *bench.objective.parameters()]
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True)
    return loss.detach(), torch.cat([slope.flatten() for slope in slopes if slope is not None])


def summary(values: Any) -> dict[str, float]:
    return {"largest": float(f"{values.max():.3g}"), "mean": float(f"{values.mean():.3g}")}


# -- what is measured on -----------------------------------------------------------------------------------------------


def wide_teacher(folder: Path) -> ModelEmbedder:
    """BERT of 12 layers, 768 wide, with random weights and all-MiniLM's tokenizer."""
    tokenizer = AutoTokenizer.from_pretrained(resolve_model(MODEL))
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=len(tokenizer))).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    transformer = Transformer(str(folder), max_seq_length=LENGTH)
    return ModelEmbedder(SentenceTransformer(modules=[transformer, Pooling(768, "mean")], device="cpu"), "bert-768")


def small_student(tokenizer: PreTrainedTokenizerFast, folder: Path) -> SentenceTransformer:
    """BERT of 3 layers, 256 wide, with random weights."""
    torch.manual_seed(1)
    shape = {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 1024}
    BertModel(BertConfig(vocab_size=len(tokenizer), **shape)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    modules = [Transformer(str(folder), max_seq_length=STUDENT_LENGTH), Pooling(256, "mean")]
    return SentenceTransformer(modules=modules, device="cpu")


def emo(encoder: Encoder, teacher: ModelEmbedder) -> Objective:
    """EMO without labels, as in its recipe."""
    config = teacher.model[0].auto_model.config
    torch.manual_seed(2)
    return build_objective(
        "emo",
        {},
        {},
        ObjectiveContext(
            StudentInfo(encoder.hidden_size, encoder.layers),
            (
                TeacherInfo(
                    teacher.dim,
                    teacher.normalized,
                    hidden_size=config.hidden_size,
                    layers=config.num_hidden_layers,
                ),
            ),
        ),
    )


def prepare(
    teacher: ModelEmbedder,
    texts: list[str],
    tokenizer: PreTrainedTokenizerFast,
    required: TokenOutputSpec,
    folder: Path,
) -> Pieces:
    """The corpus, tokenised for both and aligned."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    section = CorpusSection(sources=[SourceSection(path=folder / "texts.txt")])
    corpus = build_corpus(section, {}, folder / "corpus")
    own = build_tokens(corpus, tokenizer, STUDENT_LENGTH, folder / "own")
    theirs = build_tokens(corpus, teacher.model.tokenizer, LENGTH, folder / "theirs")
    assert required.alignment is not None
    pairs = build_alignment(
        corpus, tokenizer, STUDENT_LENGTH, teacher.model.tokenizer, LENGTH, required.alignment, folder / "pairs"
    )
    return Pieces(corpus, own, theirs, pairs)


def train_tokenizer(texts: list[str], folder: Path) -> PreTrainedTokenizerFast:
    """A byte-level BPE of 8,192 tokens."""
    made = Tokenizer(models.BPE(unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        texts, trainers.BpeTrainer(vocab_size=8192, special_tokens=special, initial_alphabet=alphabet)
    )
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    )
    tokenizer.save_pretrained(folder)
    return tokenizer


def long_texts(texts: list[str], count: int, teacher: ModelEmbedder) -> list[str]:
    """Texts joined until the teacher cuts them, so that each has exactly as many tokens as it reads."""
    long, waiting = [], ""
    for text in texts:
        waiting = f"{waiting} {text}".strip()
        if len(teacher.model.tokenizer.tokenize(waiting)) > LENGTH:
            long.append(waiting)
            waiting = ""
        if len(long) == count:
            break
    return long


if __name__ == "__main__":
    main()
