"""How fast tokens are aligned, between all-MiniLM-L6-v2's tokenizer and a byte-level BPE of 8,000 that is trained here.

    python -m benchmarks.alignment --json FILE

The mark: 20,000 English sentences a second on two cores. `kinds` has, for each kind of pairs, sentences a second of the
alignment alone (`aligned`: the encodings are there), by the clock and by this process's time on a processor (`..._cpu`,
a core's worth), and the same `with_tokenising` by both tokenizers, which two threads do. `corpus` is all that a run
does: reading the corpus, both tokenizers one chunk ahead, aligning, writing. Times are the best of the repeats. `rates`
are mapping rates (per cent, as in EMO's table 6) on the first texts of parts of english_text and of ConTRoL-nli, where
they are.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from benchmarks.texts import SHARED, sample_texts
from distilvec.alignment.align import Aligner, mapping_rates
from distilvec.alignment.coverage import measure_mapping
from distilvec.alignment.store import build_alignment
from distilvec.config.schema import CorpusSection
from distilvec.core.files import write_json
from distilvec.core.model_name import ModelName
from distilvec.core.outputs import AlignmentKind
from distilvec.data.corpus import build_corpus
from distilvec.models.load import load_tokenizer

MODEL, VOCABULARY, LENGTH, CHUNK, MARK, CORES = "all-MiniLM-L6-v2", 8000, 256, 1024, 20_000, 2
KINDS: tuple[AlignmentKind, ...] = ("offsets", "overlap", "mined", "strict")
RATED = 2000  # texts of each part, at most
PARTS = ("scitldr-abstracts", "snli-dev-test", "rte-premises")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--texts", type=int, default=50_000)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument(
        "--data", type=Path, default=None, help="english_text.jsonl.gz; generated texts where it is absent"
    )
    arguments = parser.parse_args()
    os.environ |= {"RAYON_NUM_THREADS": str(CORES), "TOKENIZERS_PARALLELISM": "true"}
    texts, origin = sample_texts(arguments.texts, arguments.data)
    student, teacher = train_bpe(texts), load_tokenizer(ModelName(MODEL))
    kinds = {kind: measure_kind(student, teacher, kind, texts, arguments.repeats) for kind in KINDS}
    with tempfile.TemporaryDirectory() as folder:
        corpus = measure_corpus(student, teacher, texts, arguments.repeats, Path(folder))
    report = {
        "texts": origin,
        "count": len(texts),
        "characters_a_text": round(sum(map(len, texts)) / len(texts), 1),
        "machine": f"{CORES} threads, one-minute load {os.getloadavg()[0]:.1f} of {os.cpu_count()} cores at the end",
        "mark": MARK,
        "kinds": kinds,
        "corpus": corpus,
        "ratio_mined_to_offsets": kinds["offsets"]["aligned"] / kinds["mined"]["aligned"],
        "rates": {
            name: rates(student, teacher, part[:RATED]) for name, part in parts(arguments.data or SHARED).items()
        },
    }
    write_json(arguments.json, report)
    print(json.dumps(report, indent=1))


def train_bpe(texts: Sequence[str]) -> PreTrainedTokenizerBase:
    """A byte-level BPE with RoBERTa's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>")


def measure_kind(
    student: PreTrainedTokenizerBase,
    teacher: PreTrainedTokenizerBase,
    kind: AlignmentKind,
    texts: Sequence[str],
    repeats: int,
) -> dict[str, float]:
    """Sentences a second and mapping rates of one kind; the slow kinds take a tenth of the texts."""
    aligner = Aligner(student, LENGTH, teacher, LENGTH, kind)
    texts = texts if kind in ("offsets", "overlap") else texts[: max(CHUNK, len(texts) // 10)]
    aligner.align(texts[:CHUNK])
    found = [one_pass(aligner, texts) for _ in range(repeats)]
    best = {name: len(texts) / min(times[name] for times, _ in found) for name in found[0][0]}
    return {**{name: round(value) for name, value in best.items()}, **mapping_rates(found[0][1])}


def one_pass(aligner: Aligner, texts: Sequence[str]) -> tuple[dict[str, float], dict[str, int]]:
    """Seconds of one pass over the texts, and the counts."""
    clocks: dict[str, Callable[[], float]] = {"": time.perf_counter, "_cpu": time.process_time}
    seconds = {f"{name}{clock}": 0.0 for name in ("aligned", "with_tokenising") for clock in clocks}
    report: dict[str, int] = {}
    for start in range(0, len(texts), CHUNK):
        chunk = texts[start : start + CHUNK]
        began = {name: clock() for name, clock in clocks.items()}
        encoded = aligner.encode(chunk)
        between = {name: clock() for name, clock in clocks.items()}
        found = aligner.align(chunk, encoded)
        del encoded
        for name, clock in clocks.items():
            now = clock()
            seconds[f"aligned{name}"] += now - between[name]
            seconds[f"with_tokenising{name}"] += now - began[name]
        report = {name: report.get(name, 0) + count for name, count in found.report.items()}
    return seconds, report


def measure_corpus(
    student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, texts: Sequence[str], repeats: int, folder: Path
) -> dict[str, float]:
    """Sentences a second of `build_alignment`, by the clock and by processor time, and its bytes a text."""
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    section = CorpusSection.model_validate({"sources": [{"path": folder / "texts.jsonl"}]})
    corpus = build_corpus(section, {}, folder / "corpus")
    best = {"sentences": 0.0, "sentences_cpu": 0.0}
    for repeat in range(repeats):
        began = time.perf_counter(), time.process_time()
        build_alignment(corpus, student, LENGTH, teacher, LENGTH, "offsets", folder / f"pairs-{repeat}")
        for name, clock, start in zip(best, (time.perf_counter, time.process_time), began, strict=True):
            best[name] = max(best[name], len(corpus) / (clock() - start))
    size = sum(file.stat().st_size for file in (folder / "pairs-0").iterdir())
    return {**{name: round(value) for name, value in best.items()}, "bytes_a_text": round(size / len(corpus), 1)}


def parts(english: Path) -> dict[str, list[str]]:
    """Texts of English data sets by name; {} where the files are absent."""
    found: dict[str, list[str]] = {}
    if english.exists():
        with gzip.open(english, "rt", encoding="utf-8") as file:
            for line in file:
                row = json.loads(line)
                if row["source"] in PARTS:
                    found.setdefault(row["source"], []).append(row["text"])
    control = english.parents[1] / "control_nli" / "control_nli.jsonl.gz"
    if control.exists():
        with gzip.open(control, "rt", encoding="utf-8") as file:
            rows = [json.loads(line) for line in file]
        found["ConTRoL-nli"] = [row[name] for row in rows for name in ("sentence1", "sentence2")]
    return found


def rates(student: PreTrainedTokenizerBase, teacher: PreTrainedTokenizerBase, texts: Sequence[str]) -> dict[str, Any]:
    """Mapping rates of every one-to-one kind."""
    kinds: tuple[AlignmentKind, ...] = ("offsets", "mined", "strict")
    found = {kind: measure_mapping(Aligner(student, 512, teacher, 512, kind), texts) for kind in kinds}
    kept = ("teacher_rate", "student_rate", "teacher_rate_ordinary", "student_rate_ordinary")
    return {"texts": len(texts), **{kind: {name: round(row[name], 2) for name in kept} for kind, row in found.items()}}


if __name__ == "__main__":
    main()
