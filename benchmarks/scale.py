"""Millions of short texts through corpus, duplicates, tokens and a vectors teacher: seconds, memory, disk.

    python -m benchmarks.scale --json FILE [--rows 1000000 10000000]

Each size runs in a process of its own. Of the texts 10 % are duplicates; a text has 8 words and a number. The teacher
is a table of vectors of 16 dimensions, since the time of a model is linear anyway. Memory is the peak of the process's
own (RssAnon, as in benchmarks.memory); `base_mb` is that of a process that has imported everything and done nothing.
Disk is what stays, and `peak_disk_mb` what is there at most while the corpus is built: its texts twice.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.memory import Peak, own_megabytes, tiny_teacher
from benchmarks.results import earlier_results
from benchmarks.texts import COMMON
from distilvec.core.files import write_json

DIM = 16
DUPLICATES = 10  # every tenth text repeats an earlier one
_ROWS = 100_000  # written together


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, required=True)
    parser.add_argument("--rows", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, help="where the files are written; a temporary folder by default")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
            print(json.dumps(measure(arguments.one, Path(folder))))
        return
    found = {}
    for rows in arguments.rows:
        line = [sys.executable, "-m", "benchmarks.scale", "--json", str(arguments.json), "--one", str(rows)]
        line += ["--folder", str(arguments.folder)] if arguments.folder else []
        done = subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True)
        found[rows] = json.loads(done.stdout.splitlines()[-1])
        print(rows, found[rows], flush=True)
    result = earlier_results(arguments.json, {}) | {"sizes": found, "slopes": slopes(found)}
    write_json(arguments.json, result)
    print(json.dumps(result["slopes"], indent=1))


def slopes(found: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Growth between the first size and the last: of time (1 is linear), and bytes of memory for each further row."""
    first, last = min(found), max(found)
    if first == last:
        return {}
    parts = found[first]["stages"]
    ratio = {
        name: round(found[last]["stages"][name]["seconds"] / max(parts[name]["seconds"], 1e-9) / (last / first), 3)
        for name in parts
    }
    grown = {name: found[last]["stages"][name]["peak_mb"] - parts[name]["peak_mb"] for name in parts}
    return {
        "seconds_a_row_ratio": ratio,
        "memory_bytes_a_row": {name: round(value * 2**20 / (last - first), 1) for name, value in grown.items()},
    }


def measure(rows: int, folder: Path) -> dict[str, Any]:
    """Seconds, peak memory and disk of every stage."""
    os.environ["DISTILVEC_CACHE"] = str(folder)
    from transformers import AutoTokenizer

    from distilvec.config.schema import CorpusSection, SourceSection, TeacherSection
    from distilvec.data.corpus import Corpus, build_corpus
    from distilvec.data.tokens import build_tokens
    from distilvec.teachers.cache.fill import count_missing
    from distilvec.teachers.cache.store import TeacherCache
    from distilvec.teachers.table_embedder import TableEmbedder

    texts, table = write_inputs(rows, folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_teacher(folder))
    base, stages = own_megabytes(), {}
    section = CorpusSection(sources=[SourceSection(path=texts)])
    prompts: Any = {"query": "", "document": ""}

    def stage(name: str, work: Any) -> Any:
        began = time.monotonic()
        with Peak(every=0.005 if rows < 100_000 else 0.02) as peak:
            done = work()
        stages[name] = {"seconds": round(time.monotonic() - began, 2), "peak_mb": round(peak.megabytes, 1)}
        return done

    corpus: Corpus = stage("corpus", lambda: build_corpus(section, prompts, folder / "corpus"))
    stage("tokens", lambda: build_tokens(corpus, tokenizer, 64, folder / "tokens"))

    def vectors() -> None:
        teacher = TableEmbedder(TeacherSection(vectors=table))
        cache = TeacherCache.create_or_open(folder / "vectors", teacher.manifest())
        for _ in teacher.fill_steps(cache, corpus):
            pass
        assert not count_missing(cache, corpus)

    stage("vectors", vectors)
    sizes = {name: round(megabytes(folder / name), 1) for name in ("corpus", "tokens", "vectors")}
    return {
        "rows": rows,
        "kept": len(corpus),
        "base_mb": round(base, 1),
        "stages": stages,
        "disk_mb": sizes,
        "peak_disk_mb": round(2 * sizes["corpus"], 1),
        "input_mb": round(megabytes(texts) + megabytes(table), 1),
    }


def write_inputs(rows: int, folder: Path) -> tuple[Path, Path]:
    """The texts, one a line, and the table with a vector for each distinct one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    texts, table = folder / "texts.txt", folder / "table.parquet"
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
