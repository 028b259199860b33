"""Millions of short texts through corpus, duplicates, tokens and a vectors teacher: seconds, memory, disk.

    python -m benchmarks.scale --json FILE [--rows 1000000 10000000] [--stages corpus vectors]

A size that FILE has already stays. Each stage of a size runs in a process of its own. Of the texts 10 % are duplicates;
a text has 8 words and a number. The teacher is a table of vectors of 16 dimensions, since the time of a model is linear
anyway. Memory is the peak of the process's own (RssAnon, as in benchmarks.memory); `base_mb` is that before the stage
does anything. Disk is what stays, and `peak_disk_mb` what is there at most while the corpus is built: its texts twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import Peak, own_megabytes, tiny_teacher
from benchmarks.results import earlier_results
from benchmarks.texts import COMMON
from distilvec.core.files import write_json

DIM = 16
TEXTS, TABLE = "texts.txt", "table.parquet"
DUPLICATES = 10  # every tenth text repeats an earlier one
_ROWS = 100_000  # written together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, help="where the files are written; a temporary folder by default")
    parser.add_argument("--stages", nargs="+", choices=list(STAGES), default=list(STAGES))
    parser.add_argument("--stage", choices=list(STAGES), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.stage:
        print(json.dumps(measured_stage(arguments.stage, arguments.folder)))
        return
    result = earlier_results(arguments.json, {"sizes": {}})
    sizes = {int(rows): size for rows, size in result["sizes"].items()}
    for rows in arguments.rows:
        sizes[rows] = measure(rows, arguments.stages, arguments.folder)
        print(rows, sizes[rows], flush=True)
        write_json(arguments.json, result | {"sizes": sizes, "slopes": slopes(sizes)})
    print(json.dumps(slopes(sizes), indent=1))


def slopes(sizes: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Growth of each stage between its first size and its last: of the processor's time (1 is linear), and bytes of
    memory for each further row.
    """
    ratio, memory = {}, {}
    for name in STAGES:
        stages = {rows: size["stages"][name] for rows, size in sizes.items() if name in size["stages"]}
        if len(stages) < 2:
            continue
        first, last = min(stages), max(stages)
        seconds = [stages[rows]["processor_seconds"] / rows for rows in (first, last)]
        ratio[name] = round(seconds[1] / seconds[0], 3)
        memory[name] = round((stages[last]["peak_mb"] - stages[first]["peak_mb"]) * 2**20 / (last - first), 1)
    return {"seconds_a_row_ratio": ratio, "memory_bytes_a_row": memory}


def measure(rows: int, names: Sequence[str], parent: Path | None) -> dict[str, Any]:
    """Seconds, peak memory and disk of every stage, each in a process of its own."""
    from distilvec.data.corpus import Corpus

    with tempfile.TemporaryDirectory(dir=parent) as name:
        folder = Path(name)
        texts, table = write_inputs(rows, folder)
        tiny_teacher(folder)
        stages = {}
        for stage in names:
            line = [sys.executable, "-m", "benchmarks.scale", "--json", "-", "--stage", stage, "--folder", name]
            done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
            stages[stage] = json.loads(done.stdout.splitlines()[-1])
        sizes = {stage: round(megabytes(folder / stage), 1) for stage in names}
        return {
            "rows": rows,
            "kept": len(Corpus(folder / "corpus")),
            "stages": stages,
            "disk_mb": sizes,
            "peak_disk_mb": round(2 * sizes["corpus"], 1),
            "input_mb": round(megabytes(texts) + megabytes(table), 1),
        }


def measured_stage(name: str, folder: Path) -> dict[str, float]:
    """Seconds of the clock and of the processor, and peak memory of a stage, whose inputs are in the folder."""
    os.environ["DISTILVEC_CACHE"] = str(folder)
    work = STAGES[name](folder)
    base, processor, began = own_megabytes(), time.process_time(), time.monotonic()
    with Peak(every=0.02) as peak:
        work()
    return {
        "seconds": round(time.monotonic() - began, 2),
        "processor_seconds": round(time.process_time() - processor, 2),
        "base_mb": round(base, 1),
        "peak_mb": round(peak.megabytes, 1),
    }


def corpus_stage(folder: Path) -> Callable[[], Any]:
    """The texts become a corpus."""
    from distilvec.config.schema import CorpusSection, SourceSection
    from distilvec.data.corpus import build_corpus

    section = CorpusSection(sources=[SourceSection(path=folder / TEXTS)])
    prompts: Any = {"query": "", "document": ""}
    return lambda: build_corpus(section, prompts, folder / "corpus")


def tokens_stage(folder: Path) -> Callable[[], Any]:
    """The corpus is tokenized."""
    from transformers import AutoTokenizer

    from distilvec.data.corpus import Corpus
    from distilvec.data.tokens import build_tokens

    tokenizer = AutoTokenizer.from_pretrained(folder / "teacher")
    return lambda: build_tokens(Corpus(folder / "corpus"), tokenizer, 64, folder / "tokens")


def vectors_stage(folder: Path) -> Callable[[], Any]:
    """The cache is filled with the table's vectors."""
    from distilvec.config.schema import TeacherSection
    from distilvec.data.corpus import Corpus
    from distilvec.teachers.cache.fill import count_missing
    from distilvec.teachers.cache.store import TeacherCache
    from distilvec.teachers.table_embedder import TableEmbedder

    def fill() -> None:
        corpus = Corpus(folder / "corpus")
        teacher = TableEmbedder(TeacherSection(vectors=folder / TABLE))
        cache = TeacherCache.create_or_open(folder / "vectors", teacher.manifest())
        for _ in teacher.fill_steps(cache, corpus):
            pass
        assert not count_missing(cache, corpus)

    return fill


STAGES: dict[str, Callable[[Path], Callable[[], Any]]] = {
    "corpus": corpus_stage,
    "tokens": tokens_stage,
    "vectors": vectors_stage,
}


def write_inputs(rows: int, folder: Path) -> tuple[Path, Path]:
    """The texts, one a line, and the table with a vector for each distinct one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, table = folder / TEXTS, folder / TABLE
    generator = np.random.default_rng(0)
    schema = pa.schema([("text", pa.string()), ("teacher_embedding_final", pa.list_(pa.float32(), DIM))])
    with texts.open("w", encoding="utf-8") as lines, pq.ParquetWriter(table, schema) as writer:
        for chunk in distinct_texts(rows - rows // DUPLICATES, generator):
            again = chunk[: len(chunk) // (DUPLICATES - 1)]
            lines.writelines(text + "\n" for text in chunk + again)
            vectors = generator.standard_normal((len(chunk), DIM), dtype=np.float32).reshape(-1)
            columns = [pa.array(chunk), pa.FixedSizeListArray.from_arrays(pa.array(vectors), DIM)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return texts, table


def distinct_texts(count: int, generator: np.random.Generator) -> Iterator[list[str]]:
    """Texts of 8 words and a number, some at a time."""
    for start in range(0, count, _ROWS):
        words = np.array(COMMON, dtype=object)[generator.integers(0, len(COMMON), (min(_ROWS, count - start), 8))]
        yield [" ".join(row) + f" {start + number}" for number, row in enumerate(words.tolist())]


def megabytes(path: Path) -> float:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(file.stat().st_size for file in files) / 2**20


if __name__ == "__main__":
    main()
