"""Memory while caching and training, at 10,000 and at 300,000 rows: it must not grow.

    python -m benchmarks.memory --json FILE [--rows 10000 300000]

Each size runs in a process of its own with a tiny random teacher, so that what is measured is the machinery: corpus,
cache, tokens, batches, loop (200 steps). The figure is the peak of the process's own memory (RssAnon); pages of
memory-mapped files belong to the system, which takes them back when it needs them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.texts import COMMON
from distilvec.core.files import write_json
from distilvec.pipeline.prepare import fill_whole_cache, prepare
from distilvec.pipeline.resolve import resolve
from distilvec.pipeline.train import train


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 300_000])
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one)))
        return
    found = {}
    for rows in arguments.rows:
        line = [sys.executable, "-m", "benchmarks.memory", "--json", str(arguments.json), "--one", str(rows)]
        done = subprocess.run(line, check=True, capture_output=True, text=True)
        found[rows] = json.loads(done.stdout.splitlines()[-1])
        print(rows, found[rows], flush=True)
    first, last = found[arguments.rows[0]], found[arguments.rows[-1]]
    result = {"peak_mb": found, "growth": {stage: last[stage] / first[stage] for stage in first}}
    write_json(arguments.json, result)
    print(json.dumps(result, indent=1))


def measure(rows: int) -> dict[str, float]:
    """Peak of this process's own memory in MB, while caching and while training on `rows` generated texts."""
    import numpy as np

    from distilvec.config import recipe as recipes

    with tempfile.TemporaryDirectory() as folder:
        os.environ["DISTILVEC_CACHE"] = folder
        generator, path = np.random.default_rng(0), Path(folder) / "texts.txt"
        with path.open("w", encoding="utf-8") as file:
            for number in range(rows):
                file.write(" ".join([*generator.choice(COMMON, 8), str(number)]) + "\n")
        recipe = recipes.validate(
            {
                "name": "memory",
                "teacher": {"model": tiny_teacher(Path(folder))},
                "student": {"model": "teacher"},
                "corpus": {"sources": [{"path": str(path)}]},
                "method": {"name": "redact"},
                "train": {"epochs": 1, "max_steps": 200, "device": "cpu", "precision": "fp32"},
            }
        )
        job = resolve(recipe, Path(folder) / "run")
        with Peak() as caching:
            fill_whole_cache(job, job.teacher)
        with Peak() as training:
            train(job, prepare(job))
    return {"caching": round(caching.megabytes, 1), "training": round(training.megabytes, 1)}


def tiny_teacher(folder: Path) -> str:
    """A random BERT, 64 wide, two layers, whose vocabulary is the words of the texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Normalize, Pooling, Transformer
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    pieces = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        *sorted(set(COMMON)),
        *[str(i) for i in range(10)],
        *[f"##{i}" for i in range(10)],
    ]
    tokenizer = Tokenizer(models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
    config = BertConfig(
        vocab_size=len(pieces), hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128
    )
    BertModel(config).save_pretrained(folder / "backbone")
    fast.save_pretrained(folder / "backbone")
    transformer = Transformer(str(folder / "backbone"), max_seq_length=64)
    model = SentenceTransformer(modules=[transformer, Pooling(64), Normalize()], device="cpu")
    model.save_pretrained(str(folder / "teacher"))
    return str(folder / "teacher")


class Peak:
    """Memory while the block runs (by default RssAnon of this process), sampled at an interval; `megabytes` is
    the highest.
    """

    def __init__(self, every: float = 0.02, measure: Callable[[], float] | None = None) -> None:
        self.every, self.measure = every, measure or own_megabytes

    def __enter__(self) -> Peak:
        self.samples, self.running = [self.measure()], True
        self.thread = threading.Thread(target=self._watch)
        self.thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.running = False
        self.thread.join()

    @property
    def megabytes(self) -> float:
        """The highest sample."""
        return max(self.samples)

    def _watch(self) -> None:
        while self.running:
            self.samples.append(self.measure())
            time.sleep(self.every)


def own_megabytes(process: int | None = None) -> float:
    """A process's own memory, by default this one's: RssAnon, without files that it maps (Linux)."""
    status = Path(f"/proc/{process or 'self'}/status")
    for line in status.read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no RssAnon in {status}: the process has ended, or this is not Linux")


if __name__ == "__main__":
    main()
